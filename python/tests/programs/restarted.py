"""Trains some steps under policies and in modes that the command line or a policy names, with checkpoints; says what held in each step.

    restarted.py FOLDER STEPS [MODE]

Gradients have a noise scale that is known, whatever the parameters are: samples are a constant and noise around it, and the loss is
their product with the parameters. In an elastic job workers say what holds as they go, up to the step that the file `enough` says.
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
from paceline import world

LENGTH, PARTS, SAMPLES, BATCH, EVERY = 10_000, 4, 4_000, 4, 10
#: The squared norm of the gradient is 1, the variance of one sample's is this.
VARIANCE = 256.0


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> torch.Tensor:
        noise = torch.randn(PARTS * LENGTH, generator=torch.Generator().manual_seed(number))
        return (noise * VARIANCE**0.5 + 1.0) / (PARTS * LENGTH) ** 0.5


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(LENGTH, 1, bias=False) for _ in range(PARTS))
        self.statistics = nn.BatchNorm1d(1, affine=False)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.statistics(samples[:, :2].reshape(-1, 1))
        return sum(part(samples[:, at * LENGTH : (at + 1) * LENGTH]) for at, part in enumerate(self.parts)).mean()


def main() -> None:
    folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    pl.init()
    model = Product()
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = pl.DistributedOptimizer(inner, model, mode=sys.argv[3] if len(sys.argv) > 3 else None)
    loader = pl.ElasticDataLoader(Samples(), batch_size=BATCH, seed=1)
    saved = pl.checkpoint(model=model, optimizer=optimizer, loader=loader, directory=folder / "saved", every=EVERY)
    elastic = world.membership().worker.elastic
    if elastic:
        pl.elastic(model=model, optimizer=optimizer, loader=loader)
    course = []
    for _ in loader.epochs(1000):
        for samples in loader:
            if samples is not None:
                model(samples).backward()
            optimizer.step()
            optimizer.zero_grad()
            keep(folder, "before", saved.steps + 1, model, inner)
            saved.step()
            keep(folder, "after", saved.steps, model, inner)
            adaptation = world.membership().adaptation
            if adaptation is not None:
                now = {"step": adaptation.talk.step, "factor": adaptation.talk.learning_rate, "batch": loader.elastic.batch_size}
                noise = adaptation.observed and adaptation.observed.noise_scale
                settings = world.membership().worker.settings
                course.append({**now, "noise": noise, "mode": optimizer.mode, "size": pl.size(), "partition": settings["partition"]})
            if elastic:
                print(f"member {pl.members()[pl.rank()]} {json.dumps(course[-1])}", flush=True)
                time.sleep(0.05)
            if elastic and (folder / "enough").exists():
                steps = int((folder / "enough").read_text())
            if steps and saved.steps >= steps:
                break
        if steps and saved.steps >= steps:
            break
    saved.wait()
    print("RESULT " + json.dumps({"rank": pl.rank(), "restored": saved.restored, "course": course}), flush=True)
    pl.shutdown()


def keep(folder: pathlib.Path, when: str, steps: int, model: nn.Module, inner: torch.optim.Optimizer) -> None:
    """What this worker has around its checkpoints."""
    if steps % EVERY == 0 and not world.membership().worker.elastic:
        remembered = {name: inner.state[value].get("momentum_buffer") for name, value in model.named_parameters()}
        torch.save({"model": model.state_dict(), "momentum": remembered}, folder / f"{when}-{steps}-{pl.rank()}.pt")


if __name__ == "__main__":
    main()
