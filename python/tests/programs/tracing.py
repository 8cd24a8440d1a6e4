"""Trains a small model and leaves a trace behind: by DDP as any script would, or by our optimizer; see
`test_tracing.py`."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import quick  # noqa: F401, I001
import torch
import torch.distributed as dist
from torch import nn

STEPS = 9


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 4))


def train(run: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    for _ in range(steps):
        loss = nn.functional.cross_entropy(run(torch.randn(16, 8)), torch.randint(4, (16,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp() -> None:
    dist.init_process_group("paceline")
    run = nn.parallel.DistributedDataParallel(model())
    train(run, torch.optim.SGD(run.parameters(), lr=0.1))
    dist.destroy_process_group()


def ours() -> None:
    import paceline.torch as pl

    pl.init()
    run = model()
    train(run, pl.DistributedOptimizer(torch.optim.SGD(run.parameters(), lr=0.1), run))


def block() -> None:
    """Two recordings in one process, by its own wish."""
    import paceline.torch as pl

    pl.init()
    run = model()
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(run.parameters(), lr=0.1), run)
    for name in ("first", "second"):
        with pl.trace(pathlib.Path(sys.argv[2]) / name, steps=2, warm_up=1) as recording:
            train(run, optimizer, 5)
        assert recording.path is not None and recording.path.is_file()
    # Nothing of it is left on PyTorch.
    hooks = torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks
    assert not any(hooks), hooks


def killed() -> None:
    """A launcher loses patience in the middle of the steps."""
    import paceline.torch as pl

    pl.init()
    run = model()
    train(run, pl.DistributedOptimizer(torch.optim.SGD(run.parameters(), lr=0.1), run))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


def unwritable() -> None:
    """The folder is a file: training goes on without a trace."""
    ours()
    print("trained")


if __name__ == "__main__":
    {"ddp": ddp, "ours": ours, "block": block, "killed": killed, "unwritable": unwritable}[sys.argv[1]]()
