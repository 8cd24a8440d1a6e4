"""Follows the plan's passes over a batch, and compares with one pass over the batches of all workers."""

import quick  # noqa: F401, I001
import torch
from torch import nn

import paceline
import paceline.torch as pl

torch.manual_seed(1)
paceline.init()
rank, size = paceline.rank(), paceline.size()
model, alone = nn.Linear(8, 4), nn.Linear(8, 4)
optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model, accumulate=None)
alone.load_state_dict(model.state_dict())
plain = torch.optim.SGD(alone.parameters(), lr=0.5)
for step in range(3):
    batches = torch.randn(size, 12, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    for part in batches[rank].chunk(optimizer.accumulate):
        (model(part).square().mean() / optimizer.accumulate).backward()
    optimizer.step()
    plain.zero_grad()
    alone(batches.flatten(0, 1)).square().mean().backward()
    plain.step()
optimizer.synchronize()
optimizer.drain()
torch.testing.assert_close(dict(model.named_parameters()), dict(alone.named_parameters()))
print(f"passes {optimizer.accumulate}")
