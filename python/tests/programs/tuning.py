"""Trains until somebody changes the settings, and tells at which step that was; see `test_tuning.py`."""

from __future__ import annotations

import json
import os
import sys
import time

import quick  # noqa: F401, I001
import torch
import torch.distributed as dist
from torch import nn

import paceline
import paceline.torch as pl
from paceline import world

#: Long enough for a tuner to look and act, wherever this runs.
MOST_STEPS = 400
#: After a change, so that metrics tell of it.
MORE_STEPS = 20
#: After that, so that a page does: it is told four times a second at most.
SHOWN_STEPS, SHOWN_SECONDS = 10, 2.0


def main() -> None:
    # As if on hosts of their own: over a wire, small chunks one by one cost more than in memory.
    os.environ["PACELINE_HOST"] = f"host{os.environ['RANK']}"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    if sys.argv[1] == "ddp":
        dist.init_process_group("paceline")
        run: nn.Module = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(run.parameters(), lr=0.01)
    else:
        pl.init()
        run = model
        optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
    (membership,) = world.memberships()
    worker = membership.worker
    first = worker.settings
    changed = None
    for step in range(MOST_STEPS):
        loss = nn.functional.cross_entropy(run(torch.randn(16, 64)), torch.randint(4, (16,)))
        loss.backward()
        paceline.report(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if changed is None and worker.settings["version"] != first["version"]:
            changed = step, worker.settings
        since = -1 if changed is None else step - changed[0]
        if since <= MORE_STEPS:
            shown = worker.metrics()
        else:
            time.sleep(SHOWN_SECONDS / SHOWN_STEPS)
        if since >= MORE_STEPS + SHOWN_STEPS:
            break
    names = [name for name, _ in shown["tensors"]]
    told = {"changed": changed, "first": first, "view": shown["view"], "names": names}
    told |= {"mode": getattr(optimizer, "mode", None), "seconds": [worker[0] for worker in shown["workers"]]}
    print(json.dumps(told))
    if dist.is_initialized():
        dist.destroy_process_group()


main()
