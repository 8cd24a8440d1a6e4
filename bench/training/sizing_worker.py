"""One worker of `sizing.py`, on a host of a testbed. It prints one line of JSON at the end, on worker 0."""

from __future__ import annotations

import json
import sys
import time

import torch
from convergence_worker import Convolutional, Images, judge, meet
from torch.nn import functional

import paceline.torch as pl


def main() -> None:
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    meet(told)
    pl.init()
    torch.manual_seed(told["seed"])
    images = Images(told["images"])
    model = Convolutional(wide=True)
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = pl.DistributedOptimizer(inner, model)
    loader = pl.ElasticDataLoader(torch.utils.data.TensorDataset(*images.train), batch_size=told["batch"], seed=told["seed"])
    if told["policy"] is not None:
        pl.attach(pl.policies.load(told["policy"]), loader=loader)
    total = told["epochs"] * len(images.train[1])
    seen, steps = 0, 0
    course: list[tuple[int, int]] = []
    pl.barrier()
    since = time.monotonic()
    for _ in loader.epochs(told["epochs"]):
        for inputs, labels in loader:
            # In the second half it falls to nothing, by what was seen and not by steps, of which there are fewer with larger batches.
            inner.param_groups[0]["lr"] = 0.05 * told["learning_rate"] * min(1.0, 2 * (1 - min(seen, total) / total))
            (functional.cross_entropy(model(inputs), labels) * loader.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            images_of_all = len(labels) * pl.size()
            # The last batch of an epoch may be smaller.
            if not course or images_of_all > course[-1][1]:
                course.append((steps, images_of_all))
            seen += images_of_all
            steps += 1
    # After other ways to stay together, too, all have the same.
    optimizer.switch("synchronous")
    seconds = time.monotonic() - since
    if pl.rank() == 0:
        accuracy = judge(model, *images.judged())
        print(json.dumps({"seed": told["seed"], "accuracy": accuracy, "seconds": seconds, "steps": steps, "course": course}), flush=True)
    pl.barrier()
    pl.shutdown()


if __name__ == "__main__":
    main()
