"""Paceline: adaptive distributed training.

A PyTorch script needs nothing from here: ``torch.distributed.init_process_group("paceline")`` finds the
backend. What is here joins a job without PyTorch's process groups:

>>> import paceline as pl
>>> pl.init()
>>> pl.rank(), pl.size()
(0, 1)
>>> pl.shutdown()

With PyTorch installed, ``all_reduce``, ``broadcast``, ``broadcast_parameters`` and
``broadcast_optimizer_state`` are here too (they live in :mod:`paceline.torch`).
"""

from __future__ import annotations

from typing import Any

from paceline import policies
from paceline._native import (
    AbortedError,
    JoinError,
    MismatchError,
    PacelineError,
    PeerLostError,
    Retired,
    StalledError,
    __version__,
)
from paceline.adaptation import attach, detach, epoch, report
from paceline.metering import Metrics, WorkerMetrics, metrics
from paceline.policy import Context, Policy, Resize
from paceline.world import (
    begin_step,
    init,
    is_initialized,
    leave,
    local_rank,
    local_size,
    members,
    propose,
    rank,
    resize,
    shutdown,
    size,
)

_IN_TORCH = (
    "DistributedOptimizer",
    "ElasticDataLoader",
    "ElasticSampler",
    "all_reduce",
    "all_reduce_",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "checkpoint",
    "clip_grad_norm_",
    "elastic",
    "trace",
)

__all__ = [
    "AbortedError",
    "Context",
    "JoinError",
    "Metrics",
    "MismatchError",
    "PacelineError",
    "PeerLostError",
    "Policy",
    "Resize",
    "Retired",
    "StalledError",
    "WorkerMetrics",
    "__version__",
    "attach",
    "begin_step",
    "detach",
    "epoch",
    "init",
    "is_initialized",
    "leave",
    "local_rank",
    "local_size",
    "members",
    "metrics",
    "policies",
    "propose",
    "rank",
    "report",
    "resize",
    "shutdown",
    "size",
    *_IN_TORCH,
]


def __getattr__(name: str) -> Any:
    if name in _IN_TORCH:
        import paceline.torch

        return getattr(paceline.torch, name)
    raise AttributeError(f"module 'paceline' has no attribute '{name}'")
