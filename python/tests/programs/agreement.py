"""Trains with settings that change on the way, or not, and prints what each step saw and a digest of the parameters.

``agreement.py OPTIMIZER CHANGE`` with OPTIMIZER `ours` or `ddp`, and CHANGE `none` or a partition such as `3KiB`.
"""

from __future__ import annotations

import hashlib
import json
import sys

import quick  # noqa: F401, I001
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline import world

STEPS = 16
#: In this step one worker proposes and waits for the answer; the others wait for its gradients.
PROPOSED = 5


def main() -> None:
    which, change = sys.argv[1:]
    if which == "ddp":
        dist.init_process_group("paceline")
    else:
        pl.init()
    worker = world.memberships()[0].worker
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if which == "ddp":
        trained, optimizer = DistributedDataParallel(model), inner
        optimizer.register_step_post_hook(lambda *_: pl.begin_step())
    else:
        trained, optimizer = model, pl.DistributedOptimizer(inner, model)
    torch.manual_seed(worker.rank)
    seen, agreed = [], None
    for step in range(STEPS):
        settings = worker.settings
        seen.append((settings["version"], settings["partition"], settings["credit"]))
        if change != "none" and (step, worker.rank) == (PROPOSED, worker.size - 1):
            agreed = pl.propose(partition=change, credit=12345).wait(60.0)
        trained(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in model.state_dict().values():
        digest.update(parameter.numpy().tobytes())
    print("RESULT " + json.dumps({"seen": seen, "agreed": agreed, "digest": digest.hexdigest()}), flush=True)
    if which == "ddp":
        dist.destroy_process_group()
    else:
        pl.shutdown()


if __name__ == "__main__":
    main()
