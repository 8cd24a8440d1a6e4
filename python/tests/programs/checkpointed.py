"""Trains, slowly, with checkpoints, until it is over or killed; see `test_checkpoint.py`.

``checkpointed.py FOLDER``: each worker notes in a file of FOLDER the samples of every step, and the loss over all after it.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

import quick  # noqa: F401, I001
import torch
from torch import nn

import paceline.torch as pl

SAMPLES = 240
EPOCHS = 2


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    pl.init()
    torch.manual_seed(pl.rank())
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = pl.DistributedOptimizer(inner, model)
    schedule = torch.optim.lr_scheduler.StepLR(inner, 10, 0.9)
    loader = pl.ElasticDataLoader(torch.arange(SAMPLES), batch_size=4, seed=1, num_workers=1)
    saved = pl.checkpoint(model=model, optimizer=optimizer, loader=loader, schedule=schedule)
    begun = {"restored": saved.restored, "steps": saved.steps, "rate": inner.param_groups[0]["lr"]}
    begun["loss"] = loss_of(model, torch.arange(SAMPLES)).item()
    with (folder / f"worker-{pl.rank()}-of-{pl.size()}.jsonl").open("a") as notes:
        for epoch in loader.epochs(EPOCHS):
            for batch in loader:
                (loss_of(model, batch) * loader.weight).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                saved.step()
                with torch.no_grad():
                    loss = loss_of(model, torch.arange(SAMPLES)).item()
                entry = [saved.steps, epoch, batch.tolist(), loss, begun]
                notes.write(json.dumps(entry) + "\n")
                notes.flush()
                time.sleep(0.02)
    pl.shutdown()


def loss_of(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
    inputs = samples[:, None] / SAMPLES
    return (model(inputs) - (3 * inputs).sin()).square().mean()


if __name__ == "__main__":
    main()
