"""Collectives in Horovod's habit: its scripts port by changing the import.

They work on the worker that :func:`paceline.init` joined, with or without a process group. Operations are
matched by name where one is given, else by their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from paceline import world
from paceline._native import PacelineError
from paceline.torch import staging, tensors
from paceline.torch.matching import Matching

_matching: tuple[world.Membership, Matching] | None = None


def all_reduce(
    tensor: torch.Tensor, op: Any = dist.ReduceOp.AVG, *, name: str | None = None
) -> torch.Tensor:
    """The average over all workers (or what ``op`` says), as a new tensor.

    >>> world.init()
    >>> all_reduce(torch.tensor([2.0, 4.0])).tolist()
    [2.0, 4.0]
    """
    return all_reduce_(tensor.detach().clone(), op, name=name)


def all_reduce_(
    tensor: torch.Tensor, op: Any = dist.ReduceOp.AVG, *, name: str | None = None
) -> torch.Tensor:
    """:func:`all_reduce` in place."""
    tensors.check(tensor, "all_reduce")
    reduce = tensors.reduction(op, "all_reduce")
    flat, dtype = tensors.to_reduce(tensor, "all_reduce", reduce)
    _run("all_reduce", name, dtype, flat, tensor, reduce=reduce)
    return tensor


def broadcast(tensor: torch.Tensor, root_rank: int = 0, *, name: str | None = None) -> torch.Tensor:
    """The tensor of ``root_rank``, as a new tensor.

    >>> world.init()
    >>> broadcast(torch.tensor([5])).tolist()
    [5]
    """
    return broadcast_(tensor.detach().clone(), root_rank, name=name)


def broadcast_(tensor: torch.Tensor, root_rank: int = 0, *, name: str | None = None) -> torch.Tensor:
    """:func:`broadcast` in place."""
    tensors.check(tensor, "broadcast")
    if not 0 <= root_rank < world.size():
        raise PacelineError(f"broadcast: there is no rank {root_rank} among {world.size()} workers")
    flat, dtype = tensors.to_move(tensor)
    _run("broadcast", name, dtype, flat, tensor, root=root_rank)
    return tensor


def broadcast_parameters(
    parameters: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0
) -> None:
    """Give every worker the parameters of ``root_rank``: a ``state_dict()`` or ``named_parameters()``.

    >>> world.init()
    >>> broadcast_parameters(torch.nn.Linear(2, 2).state_dict())
    """
    items = parameters.items() if isinstance(parameters, Mapping) else parameters
    named = [(name, value) for name, value in items if isinstance(value, torch.Tensor)]
    same_everywhere([(name, tuple(value.shape), str(value.dtype)) for name, value in named], root_rank)
    for _, value in named:
        broadcast_(value.data, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give every worker the optimizer's state and hyper-parameters of ``root_rank``.

    The other workers need no state yet: they take the shape of it from ``root_rank``.

    >>> world.init()
    >>> broadcast_optimizer_state(torch.optim.Adam(torch.nn.Linear(2, 2).parameters()))
    """
    ours = optimizer.state_dict()
    layout = [len(group["params"]) for group in ours["param_groups"]]
    same_everywhere(layout, root_rank)
    state = _broadcast_object(_without_tensors(ours) if world.rank() == root_rank else None, root_rank)
    filled = _with_tensors(state, ours if world.rank() == root_rank else None, root_rank)
    if world.rank() != root_rank:
        optimizer.load_state_dict(filled)


class _Hole:
    """Where a tensor stands in a state that travels without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _without_tensors(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return _Hole(state)
    if isinstance(state, dict):
        return {key: _without_tensors(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_without_tensors(value) for value in state)
    return state


def _with_tensors(state: Any, ours: Any, root_rank: int) -> Any:
    """Fill the holes in the order they stand in, which is the same on all workers."""
    if isinstance(state, _Hole):
        tensor = torch.empty(state.shape, dtype=state.dtype) if ours is None else ours.detach().cpu()
        return broadcast_(tensor, root_rank)
    if isinstance(state, dict):
        return {
            key: _with_tensors(value, None if ours is None else ours[key], root_rank)
            for key, value in state.items()
        }
    if isinstance(state, (list, tuple)):
        own = [None] * len(state) if ours is None else ours
        return type(state)(_with_tensors(value, mine, root_rank) for value, mine in zip(state, own))
    return state


def _broadcast_object(value: Any, root_rank: int) -> Any:
    """Everybody gets the root's object. It is pickled, so workers trust each other with it; only those
    that hold the job's secret can send one."""
    import pickle

    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    length = broadcast_(torch.tensor([data.numel()]), root_rank)
    if world.rank() != root_rank:
        data = torch.empty(int(length), dtype=torch.uint8)
    return pickle.loads(broadcast_(data, root_rank).numpy().tobytes())


def same_everywhere(ours: Any, root_rank: int) -> None:
    """Refuse lists that differ, on every worker, before anything is overwritten."""
    theirs = _broadcast_object(ours, root_rank)
    agree = all_reduce_(torch.tensor([theirs == ours], dtype=torch.uint8), dist.ReduceOp.MIN)
    if agree.item():
        return
    if theirs == ours:
        raise PacelineError(f"another worker's parameters differ from those of worker {root_rank}")
    first = next((pair for pair in zip(ours, theirs) if pair[0] != pair[1]), None)
    detail = f"{len(ours)} here, {len(theirs)} there" if first is None else f"{first[0]} here, {first[1]} there"
    raise PacelineError(
        f"this worker's parameters differ from those of worker {root_rank}: {detail}; build the same model "
        "everywhere"
    )


def _run(kind: str, name: str | None, dtype: str, flat: torch.Tensor, tensor: torch.Tensor, **rest: Any) -> None:
    host = flat.cpu() if flat.is_cuda else flat
    worker = world.membership().worker
    handle = staging.post(
        worker, None, name or _next_name(), kind, dtype, [host.numel()], host, host, rest
    )
    handle.wait()
    if tensor.numel() and host.data_ptr() != tensor.data_ptr():
        with torch.no_grad():
            tensor.copy_(host.view(tensor.dtype).view(tensor.shape))


def _next_name() -> str:
    global _matching
    membership = world.membership()
    if _matching is None or _matching[0] is not membership:
        _matching = (membership, Matching(membership, "init"))
    return _matching[1].next()
