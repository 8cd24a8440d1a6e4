"""Horovod's names, so that its scripts port by changing the import.

What they mean is in :mod:`paceline.torch.collectives` and :mod:`paceline.torch.state`; here are Horovod's defaults
and the order of its arguments. What Horovod has and we have not is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from paceline import world
from paceline._native import PacelineError
from paceline.torch import collectives
from paceline.torch.collectives import Pending, broadcast, broadcast_
from paceline.torch.state import broadcast_object, broadcast_optimizer_state, broadcast_parameters, same_everywhere

#: What Horovod calls as we do, and what the optimizer looks for here.
__all__ = [
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "same_everywhere",
]

Average, Sum, Min, Max, Product = (
    dist.ReduceOp.AVG,
    dist.ReduceOp.SUM,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.PRODUCT,
)
#: Known by name, and refused wherever it is used.
Adasum = "Adasum"


class Compression:
    """What tensors travel as."""

    class none:
        """As they are."""

    class fp16:
        """As float16, in allreduce."""


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """The average over all workers, or what ``op`` says, as a new tensor.

    >>> world.init()
    >>> allreduce(torch.tensor([2.0]), op=Sum).tolist()
    [2.0]
    """
    return synchronize(
        allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, compression=compression)
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """:func:`allreduce` in place."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    compression: Any = Compression.none,
) -> Handle:
    """Start :func:`allreduce`; :func:`synchronize` gives the result."""
    return _allreduce(tensor.detach().clone(), average, name, op, prescale_factor, postscale_factor, compression)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start :func:`allreduce_`."""
    return _allreduce(tensor, average, name, op, prescale_factor, postscale_factor, Compression.none)


def grouped_allreduce(tensors: Sequence[torch.Tensor], *args: Any, **rest: Any) -> list[torch.Tensor]:
    """:func:`allreduce` of several tensors, all under way at once."""
    return [synchronize(handle) for handle in _grouped(allreduce_async, tensors, *args, **rest)]


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *args: Any, **rest: Any) -> list[torch.Tensor]:
    """:func:`grouped_allreduce` in place."""
    return [synchronize(handle) for handle in _grouped(allreduce_async_, tensors, *args, **rest)]


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The rows of all workers, one after another; workers may have different numbers of them."""
    return synchronize(allgather_async(tensor, name))


def allgather_async(tensor: torch.Tensor, name: str | None = None) -> Handle:
    """Start :func:`allgather`. It waits to hear how much everybody has."""
    return Handle(collectives.start_all_gather(tensor, name))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Start :func:`broadcast`."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> Handle:
    """Start :func:`broadcast_`."""
    return Handle(collectives.start_broadcast(tensor, root_rank, name))


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None) -> Any:
    """Rows to each worker in turn: equal shares, or as ``splits`` says; then also how many came from each.

    >>> world.init()
    >>> alltoall(torch.tensor([1, 2])).tolist()
    [1, 2]
    """
    if splits is None:
        rows, left = divmod(tensor.shape[0] if tensor.dim() else 0, world.size())
        if left:
            raise PacelineError(f"alltoall: {world.size()} workers cannot share {tensor.shape[0]} rows; give splits")
        return collectives.start_all_to_all(tensor, [rows] * world.size(), name)[0].wait()
    pending, received = collectives.start_all_to_all(tensor, [int(count) for count in splits], name)
    return pending.wait(), torch.tensor(received, dtype=torch.int32)


def reducescatter(tensor: torch.Tensor, op: Any = Average, name: str | None = None) -> torch.Tensor:
    """This worker's share of the rows of the average, or of what ``op`` says."""
    return collectives.start_reduce_scatter(tensor, op, name).wait()


def join(device: int = -1) -> int:
    """Workers with less data cannot stand aside here."""
    raise PacelineError("join: workers must make the same number of steps; drop the last batches, or repeat some")


class Handle:
    """What :func:`synchronize` and :func:`poll` take."""

    def __init__(self, pending: Pending, then: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._pending = pending
        self._then = then

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._pending.done()

    def wait(self) -> torch.Tensor:
        """The result, when it is there."""
        result = self._pending.wait()
        then, self._then = self._then, None
        return result if then is None else then(result)


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for the result.

    >>> world.init()
    >>> synchronize(allreduce_async(torch.ones(1))).item()
    1.0
    """
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether :func:`synchronize` would not wait."""
    return handle.done()


def cross_size() -> int:
    """How many hosts there are."""
    return len(set(world.membership().worker.hosts))


def cross_rank() -> int:
    """This worker's host among the hosts, from 0."""
    worker = world.membership().worker
    return list(dict.fromkeys(worker.hosts)).index(worker.hosts[worker.rank])


def _allreduce(
    tensor: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: Any,
    prescale: float,
    postscale: float,
    compression: Any,
) -> Handle:
    if average is not None and op is not None:
        raise PacelineError("allreduce: give `op` or `average`, not both")
    if op is None:
        op = Sum if average is False else Average
    if prescale != 1.0:
        tensor.mul_(prescale)
    half = compression is Compression.fp16 and tensor.is_floating_point()
    pending = collectives.start_all_reduce(tensor.half() if half else tensor, op, name)

    def then(result: torch.Tensor) -> torch.Tensor:
        if half:
            result = result.to(tensor.dtype)
        return result.mul_(postscale) if postscale != 1.0 else result

    return Handle(pending, then)


def _grouped(start: Callable[..., Handle], tensors: Sequence[torch.Tensor], *args: Any, **rest: Any) -> list[Handle]:
    name = rest.pop("name", None)
    names = [None if name is None else f"{name}/{place}" for place in range(len(tensors))]
    return [start(tensor, *args, name=one, **rest) for tensor, one in zip(tensors, names)]
