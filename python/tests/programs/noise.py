"""Gradient statistics of a job against the same computed the long way; see `test_noise.py`.

Prints, for every step, what the job says it saw and what the gradients of all workers say.
"""

from __future__ import annotations

import json
import sys

import quick  # noqa: F401, I001
import torch
from torch import nn

import paceline.torch as pl
from paceline import adaptation

STEPS = 12


def main() -> None:
    parts, bundled = int(sys.argv[1]), len(sys.argv) > 2
    adaptation.PARTS = parts
    pl.init()
    torch.manual_seed(3)
    # One tensor that is looked at in parts, and some that are not.
    model = nn.Sequential(nn.Linear(24, 900), nn.Tanh(), nn.Linear(900, 40), nn.Tanh(), nn.Linear(40, 3))
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0 if bundled else 0.05), model)
    watched = pl.attach(batch_size=5 + pl.rank())
    torch.manual_seed(10 + pl.rank())
    told, expected = [], []
    for step in range(STEPS):
        inputs, labels = torch.randn(5 + pl.rank(), 24), torch.randint(3, (5 + pl.rank(),))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        # The same gradient, of this worker alone.
        alone = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        own = torch.cat([one.flatten() for one in alone]).double()
        norms = pl.all_gather(torch.tensor([[own.square().sum().item(), loss.item()]], dtype=torch.float64))
        average = pl.all_reduce(own)
        expected.append([norms[:, 0].mean().item(), average.square().sum().item(), norms[:, 1].mean().item()])
        pl.report(loss=loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen = watched.observed
        told.append(None if seen is None else [seen.step, seen.variance, seen.squared_norm, seen.noise_scale, seen.reported["loss"] if seen.reported else None])
    print("RESULT " + json.dumps({"told": told, "expected": expected}), flush=True)
    pl.shutdown()


if __name__ == "__main__":
    main()
