"""A job whose workers come and go: trains one epoch, says which samples it was dealt and what it has in the end."""

from __future__ import annotations

import hashlib
import itertools
import os
import pathlib
import signal
import time

import quick  # noqa: F401, I001
import torch

import paceline.torch as pl
from paceline import world
from paceline.torch import newcomers, state

SAMPLES, BATCH = 1200, 4
#: What this program does besides, in the steps that newcomers listen to or in all.
EXTRA = os.environ.get("TEST_EXTRA", "")
WIDTH, EPOCHS = int(os.environ.get("TEST_WIDTH", "500")), int(os.environ.get("TEST_EPOCHS", "1"))


class Tracked(torch.nn.Module):
    """Forward passes change it, as they do layers that normalise batches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.mean.lerp_(values.detach().mean(0), 0.1)
        return values


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()[:16]


pl.init()
# Newcomers begin with other parameters than they end with.
torch.manual_seed(os.getpid())
generator = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 8, generator=generator))
model = torch.nn.Sequential(
    torch.nn.Linear(8, WIDTH), Tracked(WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 100), torch.nn.Linear(100, 3),
    # Nobody uses it.
    torch.nn.ModuleList([torch.nn.Linear(2, 2)]),
)  # fmt: skip
trained = model[:5]
if "TEST_DIE_BEFORE" in os.environ:
    # Before the first step, where parameters are made equal: this rank, at its so-manieth broadcast.
    dying, broadcasts = map(int, os.environ["TEST_DIE_BEFORE"].split(":"))
    counter, broadcast = itertools.count(), state.broadcast_

    def broadcast_or_die(*arguments: object, **named: object) -> object:
        if pl.rank() == dying and next(counter) == broadcasts:
            os.kill(os.getpid(), signal.SIGKILL)
        return broadcast(*arguments, **named)

    state.broadcast_ = broadcast_or_die
optimizer = pl.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01), model)
if "policies" in EXTRA:
    pl.attach(batch_size=BATCH)
if "dies listening" in EXTRA:
    optimizer.hear_step = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if "dies entering" in EXTRA:
    optimizer.hear_gradients = lambda: os.kill(os.getpid(), signal.SIGKILL)
if "bit by bit" in EXTRA:
    # A parameter in each step, as where links are slow.
    newcomers.Portion.end = lambda self, first, sizes, gradients: first + 1
loader = pl.ElasticDataLoader(data, batch_size=BATCH, seed=3, num_workers=int(os.environ.get("TEST_LOADERS", "0")))
# What a program changes by itself after a step.
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
besides = {"scheduler": scheduler, "averaged": averaged} if "averages" in EXTRA else {}
if os.environ.get("TEST_DIE_RESTORING") == str(pl.rank()):
    state.broadcast_object = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
saved = None
if "TEST_SAVED" in os.environ:
    saved = pl.checkpoint(model=model, optimizer=optimizer, loader=loader, directory=os.environ["TEST_SAVED"], every=1)
print("built", flush=True)
if EXTRA != "expects nobody":
    shared = pl.elastic(model=model, optimizer=optimizer, loader=loader, **besides)
    how = f"listened={shared.listened} size={pl.size()} steps={shared.steps}"
    print(f"ready joined={shared.joined} {how} process={os.getpid()}", flush=True)
held = pathlib.Path(os.environ["TEST_HELD"]) if "TEST_HELD" in os.environ else None
held_in = int(os.environ.get("TEST_HELD_IN", "-1"))
die_at = [int(step) for step in os.environ.get("TEST_DIE_AT", "-1").split(",")]
# Where a launcher starts all of them again, once is enough.
dies = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
for epoch in loader.epochs(EPOCHS):
    for numbers, inputs in loader:
        step, member = world.membership().step, pl.members()[pl.rank()]
        dealt = f"dealt {step} {member} {','.join(map(str, numbers.tolist() if loader.weight else []))}"
        print(f"{dealt} size={pl.size()} epoch={epoch} mode={optimizer.mode}", flush=True)
        listened = world.membership().joining is not None
        if listened and EXTRA == f"{member} is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if listened and "ends" in EXTRA:
            raise SystemExit
        if "sums" in EXTRA or (listened and "adds" in EXTRA):
            assert pl.all_reduce(torch.ones(3), torch.distributed.ReduceOp.SUM).tolist() == [pl.size()] * 3
        optimizer.zero_grad()
        if "dies first" in EXTRA and step in die_at and pl.rank() == 1:
            # The others have the sum, too.
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        (trained(inputs).square().mean() * loader.weight).backward()
        if dies and step in die_at and pl.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if listened and "skips" in EXTRA:
            # All gradients are waited for, and then the step is not made.
            optimizer.synchronize()
            optimizer.zero_grad()
            (trained(inputs).square().mean() * loader.weight).backward()
        if listened and "clips" in EXTRA:
            pl.clip_grad_norm_(optimizer, 1e-3)
        if listened and "writes" in EXTRA:
            with torch.no_grad():
                model[0].weight.mul_(0.5)
        while held and held_in == step and not held.exists():
            time.sleep(0.02)
        if "slows" in EXTRA:
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        optimizer.step()
        if world.membership().rest is not None and EXTRA == f"{member} is killed after the step":
            os.kill(os.getpid(), signal.SIGKILL)
        if "shows" in EXTRA:
            pl.all_reduce(torch.ones(1))
        if besides:
            scheduler.step()
            optimizer.drain()
            averaged.update_parameters(model)
        if saved is not None:
            saved.step()
        # The test says when it has seen enough.
        time.sleep(0.01 if not held or held.exists() or step < 10 or held_in >= 0 else 0.4)
shown = pl.metrics()
print(f"metrics of {len(shown.workers) if shown else 0} workers", flush=True)
# Where workers train in groups, they are equal from here on.
optimizer.switch("synchronous")
tracked = int(model[1].passes)
kept = f"{scheduler.get_last_lr()} {digest(averaged)}" if besides else None
updates = {int(state["step"]) for state in optimizer.state_dict()["state"].values()}
print(f"parameters {digest(model)} updates={updates} tracked={tracked} kept={kept}", flush=True)
