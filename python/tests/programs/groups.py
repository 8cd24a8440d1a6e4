"""Trains in groups, and prints what every step left on this worker.

    groups.py walk [STEPS]     one parameter, moved in the first step only: by 2 to the power of the rank
    groups.py learn MODE       a small model on data of its own, in a mode (`usual` for none), then made equal
    groups.py ensemble         the same with an ensemble of every third step after the fourth
"""

from __future__ import annotations

import json
import os
import sys

import quick  # noqa: F401, I001
import torch

import paceline.torch as pl


def main() -> None:
    # As if on hosts of their own, so that groups are the lines of a grid.
    os.environ["PACELINE_HOST"] = f"host{os.environ['RANK']}"
    torch.manual_seed(1)
    torch.set_num_threads(1)
    pl.init()
    told = walk(int(sys.argv[2])) if sys.argv[1] == "walk" else learn()
    print("RESULT " + json.dumps({"rank": pl.rank(), **told}), flush=True)
    pl.shutdown()


def walk(steps: int) -> dict[str, object]:
    model = torch.nn.Linear(24, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
    values = []
    for step in range(steps):
        push = float(2 ** pl.rank()) if step == 0 else 0.0
        model(torch.full((1, 24), -push)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(model.state_dict()["weight"][0].tolist())
    return {"mode": optimizer.mode, "values": values}


def learn() -> dict[str, object]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    mode: object = None
    if sys.argv[1] == "ensemble":
        mode = pl.GroupAveraging(ensemble=3, after=4)
    elif sys.argv[2] != "usual":
        mode = sys.argv[2]
    optimizer = pl.DistributedOptimizer(inner, model, mode=mode)
    used, truth = optimizer.mode, torch.randn(4, 1)
    generator = torch.Generator().manual_seed(pl.rank() + 10)
    losses, steps = [], []
    for _ in range(20):
        inputs = torch.randn(16, 4, generator=generator)
        # Forward passes wait for the parameters that they use.
        loss = torch.nn.functional.mse_loss(model(inputs), 0.3 * inputs @ truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        steps.append(flat(model))
    optimizer.switch("synchronous")
    return {"mode": used, "losses": losses, "steps": steps, "end": flat(model)}


def flat(model: torch.nn.Module) -> list[float]:
    return [number for value in model.state_dict().values() for number in value.reshape(-1).tolist()]


if __name__ == "__main__":
    main()
