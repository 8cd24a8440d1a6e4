"""Trains in one mode after another, and prints what came of it.

    modes.py MODE[,MODE...] [STEPS]      or      modes.py policy
"""

from __future__ import annotations

import json
import sys
import time

import quick  # noqa: F401, I001
import torch

import paceline.torch as pl


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    pl.init()
    by_policy = sys.argv[1] == "policy"
    names = ["synchronous"] if by_policy else sys.argv[1].split(",")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    optimizer = pl.DistributedOptimizer(inner, model, mode=mode_of(names[0]))
    truth = torch.randn(8, 1)
    generator = torch.Generator().manual_seed(pl.rank() + 10)
    losses, parameters, seen, lead = [], [], [], 0.0
    counted = Counted()
    if by_policy:
        pl.attach(ByStep())
    if "counted" in sys.argv:
        pl.attach(counted)
    for name in [*names[1:], None]:
        for _ in range(steps):
            if pl.rank() == 1 and "slow" in sys.argv:
                time.sleep(0.01)
            inputs = torch.randn(16, 8, generator=generator)
            loss = torch.nn.functional.mse_loss(model(inputs), 0.3 * inputs @ truth)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            seen.append(optimizer.mode)
        lead = max(lead, getattr(optimizer._mode, "lead", 0.0))
        optimizer.switch(mode_of(name) if name is not None else "synchronous")
        parameters.append([value.sum().item() for value in model.state_dict().values()])
    told = {"rank": pl.rank(), "losses": losses, "parameters": parameters, "seen": seen, "lead": lead, "counted": counted.steps}
    print("RESULT " + json.dumps(told), flush=True)
    pl.shutdown()


def mode_of(name: str) -> object:
    return pl.Asynchronous(staleness=3) if name == "asynchronous" else name


class ByStep(pl.Policy):
    def after_step(self, ctx: pl.Context) -> None:
        if ctx.step in (10, 40):
            ctx.set_mode("averaging" if ctx.step == 10 else "synchronous", reason="it is time")


class Counted(pl.Policy):
    """Notes the steps that it is asked in, and those that it knows of then."""

    def __init__(self) -> None:
        self.steps: list[list[int | None]] = []

    def after_step(self, ctx: pl.Context) -> None:
        self.steps.append([ctx.step, ctx.observed.step if ctx.observed else None])


if __name__ == "__main__":
    main()
