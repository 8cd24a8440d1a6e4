"""A job that accumulates gradients: four batches of two samples make a step. Says what policies read, against one batch of eight."""

from __future__ import annotations

import contextlib
import json
import sys

import quick  # noqa: F401, I001
import torch

import paceline.torch as pl

BATCH, PASSES, SAMPLES, WIDTH = 2, 4, 3200, 20


def train(batch: int, passes: int, no_sync: bool) -> tuple[pl.Context, pl.ElasticDataLoader]:
    """Of a linear model whose gradient is one half, and the mean of the samples besides."""
    points = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(WIDTH, 1, bias=False)
    accumulate = 1 if no_sync else passes
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model, accumulate=accumulate)
    loader = pl.ElasticDataLoader(torch.utils.data.TensorDataset(points), batch_size=batch, seed=1)
    watched = pl.attach(loader=loader)
    for number, (inputs,) in enumerate(loader, 1):
        is_last = number % passes == 0
        with optimizer.no_sync() if no_sync and not is_last else contextlib.nullcontext():
            ((model(inputs).mean() + 0.5 * model.weight.sum()) / passes).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.close()
    return watched, loader


pl.init()
expected, _ = train(BATCH * PASSES, 1, False)
noise = expected.grad_noise_scale()
pl.detach()
context, loader = train(BATCH, PASSES, sys.argv[1] == "no_sync")
found = {"batch": context.batch_size, "global": context.global_batch_size, "noise": context.grad_noise_scale(), "expected": noise}
context.set_batch_size(2 * BATCH * PASSES)
lengths = []
model = torch.nn.Linear(WIDTH, 1)
optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model, accumulate=PASSES)
for number, (inputs,) in enumerate(loader, 1):
    model(inputs).sum().backward()
    lengths.append(len(inputs))
    if number % PASSES == 0:
        optimizer.step()
        optimizer.zero_grad()
    if number == 10 * PASSES:
        break
found["lengths"] = sorted(set(lengths[-PASSES:]))
print("RESULT " + json.dumps(found), flush=True)
