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


class Course:
    """How many images all workers have seen: what a newcomer has to know for its learning rate."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


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
    course = Course()
    pl.elastic(model=model, optimizer=optimizer, loader=loader, course=course)
    say(trains=os.getpid())
    since = time.monotonic()
    total = told["epochs"] * len(images.train[1])
    for _ in loader.epochs(told["epochs"]):
        for inputs, labels in loader:
            # In the second half it falls to nothing.
            inner.param_groups[0]["lr"] = RATE * max(0.0, min(1.0, 2 * (1 - course.seen / total)))
            (functional.cross_entropy(model(inputs), labels) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            course.seen += len(labels) * pl.size()
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
