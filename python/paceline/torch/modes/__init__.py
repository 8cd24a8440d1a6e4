"""How workers stay together, other than by averaging every gradient before it is applied.

In each of these modes a worker updates its own copy of the model and lets the others pull it back: every step or now and then,
all at once or two by two, or through servers that keep the model. :class:`~paceline.torch.DistributedOptimizer` goes from one mode
to another while training; it makes all copies equal first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline._native import PacelineError
from paceline.adaptation import MODES
from paceline.torch.modes.averaging import LocalSGD, ModelAveraging, PairAveraging
from paceline.torch.modes.groups import GroupAveraging
from paceline.torch.modes.replica import Mode, Replica
from paceline.torch.modes.server import Asynchronous

__all__ = [
    "SYNCHRONOUS", "Asynchronous", "GroupAveraging", "LocalSGD", "Mode", "ModelAveraging", "PairAveraging", "Replica", "made",
    "named",
]  # fmt: skip

#: The mode that needs no other copies: gradients are averaged before they are applied.
SYNCHRONOUS = "synchronous"


def named(mode: Mode | str) -> Mode | None:
    """A mode by its name, with its usual numbers; ``None`` is the synchronous one.

    >>> named("local")
    LocalSGD(every=8)
    >>> named("synchronous") is None
    True
    """
    if isinstance(mode, Mode):
        return mode
    if mode == SYNCHRONOUS:
        return None
    return made(mode)


def made(name: str, numbers: Sequence[Any] = ()) -> Mode:
    """A mode by its name and the numbers that it is made with, or the usual ones.

    >>> made("local", LocalSGD(every=4).numbers())
    LocalSGD(every=4)
    """
    for kind in (ModelAveraging, PairAveraging, GroupAveraging, LocalSGD, Asynchronous):
        if kind.name == name:
            return kind(*numbers)
    raise PacelineError(f"there is no mode `{name}`; choose one of {', '.join(MODES)}")
