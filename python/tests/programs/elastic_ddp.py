"""DDP in a job whose workers come and go: it cannot follow, and says so."""

import time

import quick  # noqa: F401, I001
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import paceline.torch  # noqa: F401

dist.init_process_group("paceline")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10_000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 3:
        print("trains", flush=True)
    time.sleep(0.005)
