"""The arguments of PyTorch's calls, which come in several forms: a tensor or a list of them, options or what is
in them. This module knows nothing of collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline._native import PacelineError


def listed(given: Any) -> list[torch.Tensor]:
    """The tensors, whether one was given or a list."""
    return [given] if isinstance(given, torch.Tensor) else list(given)


def nested(given: Any) -> list[list[torch.Tensor]]:
    """The lists of tensors, whether one list was given or a list of lists."""
    return [given] if given and isinstance(given[0], torch.Tensor) else given


def paired(first: Sequence[Any], second: Sequence[Any], operation: str) -> Sequence[Any]:
    """``first``, which has as many as ``second``."""
    if len(first) != len(second):
        raise PacelineError(f"{operation}: {len(first)} lists for {len(second)} tensors; give as many of each")
    return first


def reduce_op(options: Any) -> Any:
    """PyTorch's reduction, by itself or in options."""
    if options is None:
        return dist.ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def root(options: Any) -> int:
    """The root's rank, by itself or in options."""
    return options if isinstance(options, int) else int(getattr(options, "rootRank", 0))


def seconds(given: Any, otherwise: timedelta) -> float:
    """A timeout; what is none or not positive means the group's own."""
    if isinstance(given, (int, float)) and given > 0:
        return float(given)
    if isinstance(given, timedelta) and given.total_seconds() > 0:
        return given.total_seconds()
    return otherwise.total_seconds()
