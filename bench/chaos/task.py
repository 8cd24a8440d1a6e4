"""What every system trains under disturbance: a small classifier on samples that follow from their numbers, and a log of it.

This module knows no system.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import time

import torch
from torch import nn

FEATURES, CLASSES = 64, 10
BATCH = 32


def arguments(about: str | None) -> argparse.ArgumentParser:
    """What every system's program is told."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--steps", type=int, required=True, help="at most")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for logs")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step sleeps, as if a device computed")
    parser.add_argument("--samples", type=int, help="of an epoch, where samples have epochs [as many as one worker's steps have]")
    return parser


def model(width: int = 512, layers: int = 1) -> nn.Module:
    torch.manual_seed(3)
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))


def optimizer(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(of.parameters(), lr=0.05, momentum=0.9)


class Samples(torch.utils.data.Dataset):
    """Sample n is the same everywhere and always: a point, and the class that a fixed rule gives it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rule = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        point = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1_000_003 + number))
        return point, (point @ self._rule).argmax(), number

    def batch(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        points, classes, _ = zip(*(self[number % self._count] for number in numbers))
        return torch.stack(points), torch.stack(classes)


class End:
    """After which step it is over: when all are made, or where somebody wrote a number of steps, soon enough for all workers to see it, into
    the file `last`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._steps, self._file = options.steps, options.folder / "last"

    def reached(self, step: int) -> bool:
        if self._file.exists():
            self._steps = min(self._steps, int(self._file.read_text()))
        return step >= self._steps


class Log:
    """A line for each step of one process, whole or not at all."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self.line(began=time.time())

    def line(self, **fields: object) -> None:
        self._file.write(json.dumps(fields) + "\n")

    def dealt(self, numbers: list[int], epoch: int) -> None:
        self.line(dealt=numbers, epoch=epoch)

    def step(self, step: int, size: int, loss: float, numbers: list[int], epoch: int | None = None) -> None:
        self.line(at=time.time(), step=step, size=size, loss=loss, numbers=numbers, epoch=epoch)

    def end(self, of: nn.Module) -> None:
        text = b"".join(value.detach().numpy().tobytes() for value in of.state_dict().values())
        self.line(ended=time.time(), parameters=hashlib.sha256(text).hexdigest()[:16])
