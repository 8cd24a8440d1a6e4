"""What every system trains under disturbance: a small classifier on samples that follow from their numbers, and a log of it.

This module knows no system.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import time

import torch
from torch import nn

FEATURES, CLASSES = 64, 10
BATCH = 32


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


class Log:
    """A line for each step of one process, whole or not at all."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self.line(began=time.time())

    def line(self, **fields: object) -> None:
        self._file.write(json.dumps(fields) + "\n")

    def step(self, step: int, size: int, loss: float, numbers: list[int], epoch: int | None = None) -> None:
        self.line(at=time.time(), step=step, size=size, loss=loss, numbers=numbers, epoch=epoch)

    def end(self, of: nn.Module) -> None:
        text = b"".join(value.detach().numpy().tobytes() for value in of.state_dict().values())
        self.line(ended=time.time(), parameters=hashlib.sha256(text).hexdigest()[:16])
