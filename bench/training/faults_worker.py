"""One worker of `faults.py`. It says when it trains, when it comes to the end, and with which parameters, in lines of JSON."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

import torch
from convergence_worker import Convolutional, Images, judge, mode
from torch.nn import functional

import paceline.torch as pl

RATE = 0.05


def main() -> None:
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    # Those that begin are spread over the racks, those that come later are anywhere.
    rank = os.environ.get("RANK")
    place = os.getpid() % told["hosts"] if rank is None else int(rank) * (told["hosts"] // told["workers"])
    os.environ["PACELINE_HOST"] = f"host{place}"
    pl.init()
    torch.manual_seed(told["seed"])
    images = Images(told["images"])
    model = Convolutional(wide=False)
    inner = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    optimizer = pl.DistributedOptimizer(inner, model, mode=mode(told["way"], 0))
    loader = pl.ElasticDataLoader(torch.utils.data.TensorDataset(*images.train), batch_size=told["batch"], seed=told["seed"])
    pl.elastic(model=model, optimizer=optimizer, loader=loader)
    say(trains=os.getpid())
    since = time.monotonic()
    for epoch in loader.epochs(told["epochs"]):
        for inputs, labels in loader:
            # In the second half it falls to nothing, by what all workers know alike: the last batches of an epoch may differ.
            left = len(loader.elastic) * told["batch"] * pl.size() / len(images.train[1])
            done = (epoch + 1 - min(1.0, left)) / told["epochs"]
            inner.param_groups[0]["lr"] = RATE * min(1.0, 2 * (1 - done))
            (functional.cross_entropy(model(inputs), labels) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
    say(ending=os.getpid())
    optimizer.switch("synchronous")
    seconds = time.monotonic() - since
    content = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    accuracy = judge(model, *images.judged()) if pl.rank() == 0 else None
    say(parameters=hashlib.sha256(content).hexdigest()[:16], accuracy=accuracy, seconds=seconds)
    pl.shutdown()


def say(**fields: object) -> None:
    # In one write, so that lines of several workers do not mix.
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
