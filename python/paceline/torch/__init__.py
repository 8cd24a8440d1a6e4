"""Paceline for PyTorch: the backend behind ``dist.init_process_group("paceline")``, and Horovod's habit.

>>> import torch
>>> import paceline.torch as pl
>>> pl.init()
>>> pl.all_reduce(torch.ones(2)).tolist()
[1.0, 1.0]
>>> pl.shutdown()
"""

from paceline import policies
from paceline._native import (
    AbortedError,
    JoinError,
    MismatchError,
    PacelineError,
    PeerLostError,
    Retired,
    StalledError,
)
from paceline.adaptation import attach, detach, epoch, report
from paceline.autoload import register
from paceline.metering import metrics
from paceline.policy import Context, Policy, Resize
from paceline.torch.checkpoints import Checkpoint, checkpoint
from paceline.torch.collectives import all_gather, all_reduce, all_reduce_, barrier, broadcast, broadcast_
from paceline.torch.data import ElasticDataLoader, ElasticSampler
from paceline.torch.horovod import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    broadcast_async,
    broadcast_async_,
    cross_rank,
    cross_size,
    grouped_allreduce,
    grouped_allreduce_,
    join,
    poll,
    reducescatter,
    synchronize,
)
from paceline.torch.horovod_optimizer import DistributedOptimizer
from paceline.torch.modes import Asynchronous, GroupAveraging, LocalSGD, ModelAveraging, PairAveraging
from paceline.torch.newcomers import Elastic, elastic
from paceline.torch.optimizer import clip_grad_norm_
from paceline.torch.state import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from paceline.torch.tracing import trace
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

register()

__all__ = [
    "AbortedError",
    "Adasum",
    "Asynchronous",
    "Average",
    "Checkpoint",
    "Compression",
    "Context",
    "DistributedOptimizer",
    "Elastic",
    "ElasticDataLoader",
    "ElasticSampler",
    "GroupAveraging",
    "JoinError",
    "LocalSGD",
    "Max",
    "Min",
    "MismatchError",
    "ModelAveraging",
    "PacelineError",
    "PairAveraging",
    "PeerLostError",
    "Policy",
    "Product",
    "Resize",
    "Retired",
    "StalledError",
    "Sum",
    "all_gather",
    "all_reduce",
    "all_reduce_",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "attach",
    "barrier",
    "begin_step",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "checkpoint",
    "clip_grad_norm_",
    "cross_rank",
    "cross_size",
    "detach",
    "elastic",
    "epoch",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "is_initialized",
    "join",
    "leave",
    "local_rank",
    "local_size",
    "members",
    "metrics",
    "policies",
    "poll",
    "propose",
    "rank",
    "reducescatter",
    "report",
    "resize",
    "shutdown",
    "size",
    "synchronize",
    "trace",
]
