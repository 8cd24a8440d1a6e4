"""A job whose workers come and go: trains one epoch, says which samples it was dealt and what it has in the end."""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
import time

import torch

import paceline.torch as pl
from paceline import world

SAMPLES, BATCH = 1200, 4

pl.init()
# Newcomers begin with other parameters than they end with.
torch.manual_seed(os.getpid())
generator = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 8, generator=generator))
model = torch.nn.Sequential(torch.nn.Linear(8, 500), torch.nn.ReLU(), torch.nn.Linear(500, 100), torch.nn.Linear(100, 3))
optimizer = pl.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model)
loader = pl.ElasticDataLoader(data, batch_size=BATCH, seed=3)
shared = pl.elastic(model=model, optimizer=optimizer, loader=loader)
print(f"ready joined={shared.joined} size={pl.size()} process={os.getpid()}", flush=True)
held = pathlib.Path(os.environ["TEST_HELD"]) if "TEST_HELD" in os.environ else None
die_at = [int(step) for step in os.environ.get("TEST_DIE_AT", "-1").split(",")]
for _ in loader.epochs(1):
    for numbers, inputs in loader:
        step, member = world.membership().step, pl.members()[pl.rank()]
        print(f"dealt {step} {member} {','.join(map(str, numbers.tolist()))} size={pl.size()}", flush=True)
        optimizer.zero_grad()
        (model(inputs).square().mean() * loader.weight).backward()
        if step in die_at and pl.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        # The test says when it has seen enough.
        time.sleep(0.01 if not held or held.exists() or step < 10 else 0.4)
shown = pl.metrics()
print(f"metrics of {len(shown.workers) if shown else 0} workers", flush=True)
# Where workers train in groups, they are equal from here on.
optimizer.switch("synchronous")
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
updates = {int(state["step"]) for state in optimizer.state_dict()["state"].values()}
print(f"parameters {digest[:16]} updates={updates}", flush=True)
