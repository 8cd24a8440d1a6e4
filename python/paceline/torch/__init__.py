"""Paceline for PyTorch: the backend behind ``dist.init_process_group("paceline")``, and Horovod's habit.

>>> import torch
>>> import paceline.torch as pl
>>> pl.init()
>>> pl.all_reduce(torch.ones(2)).tolist()
[1.0, 1.0]
>>> pl.shutdown()
"""

from paceline._native import (
    AbortedError,
    JoinError,
    MismatchError,
    PacelineError,
    PeerLostError,
    StalledError,
)
from paceline.autoload import register
from paceline.torch.horovod import (
    all_reduce,
    all_reduce_,
    broadcast,
    broadcast_,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from paceline.torch.optimizer import DistributedOptimizer, clip_grad_norm_
from paceline.world import init, is_initialized, local_rank, local_size, rank, shutdown, size

register()

__all__ = [
    "AbortedError",
    "DistributedOptimizer",
    "JoinError",
    "MismatchError",
    "PacelineError",
    "PeerLostError",
    "StalledError",
    "all_reduce",
    "all_reduce_",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "clip_grad_norm_",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
