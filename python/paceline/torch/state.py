"""What every worker is to have alike: parameters, the state of an optimizer, any object.

This module posts nothing by itself; it knows the collectives of all workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from paceline import world
from paceline._native import PacelineError, PeerLostError
from paceline.torch.collectives import all_gather, all_reduce_, broadcast_

Given = TypeVar("Given")


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
    state = broadcast_object(without_tensors(ours) if world.rank() == root_rank else None, root_rank)
    filled = _with_tensors(state, ours if world.rank() == root_rank else None, root_rank)
    if world.rank() != root_rank:
        optimizer.load_state_dict(filled)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The object of ``root_rank``. It is pickled, so workers trust each other with it; only those that hold the
    job's secret can send one.

    >>> world.init()
    >>> broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    data = _pickled(obj if world.rank() == root_rank else None)
    length = broadcast_(torch.tensor([data.numel()], device="cpu"), root_rank)
    if world.rank() != root_rank:
        data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
    return pickle.loads(broadcast_(data, root_rank, name=name).numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all workers, by rank. They are pickled: see :func:`broadcast_object`.

    >>> world.init()
    >>> allgather_object("ours")
    ['ours']
    """
    data = _pickled(obj)
    lengths = all_gather(torch.tensor([data.numel()], device="cpu")).tolist()
    parts = all_gather(data, name=name).split(lengths)
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def from_first(give: Callable[[int], Given]) -> Given:
    """What ``give(root)`` gives all workers, with the first of them as root. Where an elastic job loses that one before all have it, none keeps any of it,
    and the next is the root."""
    worker = world.membership().worker
    for root in range(worker.size - 1):
        try:
            return give(root)
        except PeerLostError as lost:
            if not worker.elastic or lost.peer != root:
                raise
    return give(worker.size - 1)


def same_everywhere(ours: Any, root_rank: int) -> None:
    """Refuse lists that differ, on every worker, before anything is overwritten."""
    theirs = broadcast_object(ours, root_rank)
    agree = all_reduce_(torch.tensor([theirs == ours], dtype=torch.uint8, device="cpu"), dist.ReduceOp.MIN)
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


class Hole:
    """Where a tensor stands in a state that travels without its tensors."""

    def __init__(self, tensor: torch.Tensor, known: bool = False) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        #: Whether it is there already.
        self.known = known


def without_tensors(state: Any, is_known: Callable[[torch.Tensor], bool] = lambda _: False) -> Any:
    """``state`` with a hole for each tensor, which says whether it is known where the state goes."""
    if isinstance(state, torch.Tensor):
        return Hole(state, is_known(state))
    if isinstance(state, dict):
        return {key: without_tensors(value, is_known) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(without_tensors(value, is_known) for value in state)
    return state


def leaves(state: Any, kind: type) -> Iterator[Any]:
    """What of this kind a state has, in the order it stands in, which is the same on all workers."""
    if isinstance(state, kind):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from leaves(value, kind)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from leaves(value, kind)


def _with_tensors(state: Any, ours: Any, root_rank: int) -> Any:
    """Fill the holes in the order they stand in, which is the same on all workers."""
    if isinstance(state, Hole):
        tensor = torch.empty(state.shape, dtype=state.dtype, device="cpu") if ours is None else ours.detach().cpu()
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


def _pickled(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
