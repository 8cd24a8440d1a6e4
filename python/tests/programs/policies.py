"""Trains under policies and tells what each worker saw of them; see `test_policies.py`.

``policies.py own`` attaches a policy of its own, ``policies.py named`` trains under what the command line named, and in
``policies.py slowed`` one worker is slow for a while.
"""

from __future__ import annotations

import json
import random
import sys
import time

import quick  # noqa: F401, I001
import torch
from torch import nn

import paceline.torch as pl
from paceline import world

SAMPLES = 300
EPOCHS = 2


class Dice(pl.Policy):
    """Throws dice of its own on every worker, and notes what it is called for."""

    metrics = ("accuracy",)

    def __init__(self) -> None:
        self.hooks: list[list[object]] = []
        self.read: list[object] = []
        self.refusals: list[list[str]] = []

    def before_train(self, ctx: pl.Context) -> None:
        self.hooks.append(["before_train", ctx.step])

    def after_train(self, ctx: pl.Context) -> None:
        self.hooks.append(["after_train", ctx.step])

    def before_epoch(self, ctx: pl.Context) -> None:
        self.hooks.append(["before_epoch", ctx.epoch])

    def after_epoch(self, ctx: pl.Context) -> None:
        self.hooks.append(["after_epoch", ctx.epoch])

    def before_step(self, ctx: pl.Context) -> None:
        self.hooks.append(["before_step", ctx.step])

    def after_step(self, ctx: pl.Context) -> None:
        self.hooks.append(["after_step", ctx.step])
        metrics = ctx.metrics
        self.read.append(
            [ctx.size, ctx.batch_size, ctx.learning_rate, ctx.seconds, ctx.throughput, ctx.loss, ctx.metric("accuracy"),
             ctx.grad_noise_scale(), ctx.grad_variance(), metrics and [metrics.step, metrics.speed]]
        )  # fmt: skip
        if ctx.step % 7 == 0:
            ctx.set_batch_size(random.randint(3, 9))
            ctx.scale_learning_rate(random.uniform(0.5, 2.0))
        if ctx.step == 5:
            ctx.resize(ctx.size + 1, reason="for a test")
        if ctx.step == 8:
            ctx.propose(partition="8KiB")

    def refused(self, ctx: pl.Context, wish: str, reason: str) -> None:
        self.refusals.append([wish, reason])


class Watch(pl.Policy):
    """Notes how many workers find the job slow."""

    def __init__(self) -> None:
        self.read: list[object] = []

    def after_step(self, ctx: pl.Context) -> None:
        self.read.append(ctx.interference)


def main() -> None:
    pl.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 200), nn.Tanh(), nn.Linear(200, 1))
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
    loader = pl.ElasticDataLoader(torch.arange(SAMPLES, dtype=torch.float32), batch_size=4, seed=2)
    told: dict[str, object] = {}
    policy = Watch() if sys.argv[1] == "slowed" else Dice()
    heard: list[list[object]] = []
    if sys.argv[1] != "named":
        pl.attach(policy, loader=loader)
        if len(sys.argv) > 2:
            world.membership().adaptation.resizer = lambda wish: heard.append([wish.size, wish.step])
    used, sizes = [], []
    for _ in loader.epochs(EPOCHS):
        for batch in loader:
            if sys.argv[1] == "slowed" and pl.rank() == 1 and 30 <= len(sizes) < 55:
                time.sleep(0.2)
            used += batch.tolist() if loader.weight else []
            sizes.append(len(batch))
            loss = (model(batch[:, None] / SAMPLES) - 1).square().mean() * loader.weight
            own = {"accuracy": float(pl.rank())} if sys.argv[1] == "own" else {}
            pl.report(loss=loss, **own)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    settings = world.membership().worker.settings
    optimizer.drain()
    told = {"used": used, "sizes": sizes, "rate": world.membership().adaptation.talk.learning_rate}
    pl.detach()
    noted = {} if isinstance(policy, Watch) else {"hooks": policy.hooks, "refusals": policy.refusals}
    told |= {"read": policy.read, "heard": heard, **noted}
    told |= {"partition": settings["partition"], "parameters": [one.sum().item() for one in model.parameters()]}
    print("RESULT " + json.dumps(told), flush=True)
    pl.shutdown()


if __name__ == "__main__":
    main()
