"""A classifier that trains on while workers come, go and die.

    paceline run -n 3 --elastic --min 1 --max 4 --name digits -- python examples/elastic_classifier.py
    paceline resize digits 4        # in another terminal
    paceline status digits

Against a program for a fixed number of workers it has three lines more: the loader, `pl.elastic` and the loss's weight.
"""

import torch
from torch import nn

import paceline.torch as pl

pl.init()
torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(6000, 20, generator=generator)
labels = (inputs @ torch.randn(20, 5, generator=generator)).argmax(dim=1)
data = torch.utils.data.TensorDataset(inputs, labels)

model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 5))
optimizer = pl.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-3), model)
loader = pl.ElasticDataLoader(data, batch_size=16, seed=1)
# A worker that comes later gets all this from the others, and goes on where they are.
pl.elastic(model=model, optimizer=optimizer, loader=loader)

for epoch in loader.epochs(4):
    for batch, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), target)
        (loss * loader.weight).backward()
        optimizer.step()
    if pl.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}, {pl.size()} workers", flush=True)
