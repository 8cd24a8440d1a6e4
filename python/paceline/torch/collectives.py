"""Collectives of all workers, without a process group: on the worker that :func:`paceline.init` joined.

Operations are matched by name where one is given, else by their order. CUDA tensors are copied to host memory
first, since nobody computes meanwhile. This module knows nothing of Horovod's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from paceline import world
from paceline._native import Handle, PacelineError
from paceline.torch import staging, tensors
from paceline.torch.matching import Matching

_matching: tuple[world.Membership, Matching] | None = None


class Pending:
    """A collective in flight, and the tensor that will hold its result."""

    def __init__(self, handle: Handle, result: Any, copies: list[Callable[[], None]]) -> None:
        self._handle = handle
        self._result = result
        self._copies = copies

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self._handle.done()

    def wait(self) -> Any:
        """The result, when it is there."""
        self._handle.wait()
        copies, self._copies = self._copies, []
        with torch.no_grad():
            for copy in copies:
                copy()
        return self._result


def start_all_reduce(tensor: torch.Tensor, op: Any, name: str | None = None, gradient: bool = False) -> Pending:
    """Start :func:`all_reduce_`."""
    tensors.check(tensor, "all_reduce")
    flat, dtype, reduce = tensors.contribution(tensor, "all_reduce", op)
    return _start_in_place("all_reduce", name, dtype, flat, tensor, reduce=reduce, holds="step" if gradient else None)


def start_broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> Pending:
    """Start :func:`broadcast_`."""
    tensors.check(tensor, "broadcast")
    if not 0 <= root_rank < world.size():
        raise PacelineError(f"broadcast: there is no rank {root_rank} among {world.size()} workers")
    flat, dtype = tensors.to_move(tensor)
    return _start_in_place("broadcast", name, dtype, flat, tensor, root=root_rank)


def start_all_gather(tensor: torch.Tensor, name: str | None = None) -> Pending:
    """Start :func:`all_gather`. It waits to hear how much everybody has."""
    tensors.check(tensor, "all_gather")
    rows = tensor.reshape(1, *tensor.shape) if tensor.dim() == 0 else tensor
    counts = _one_from_each(rows.shape[0])
    flat, dtype = tensors.to_move(rows)
    width = flat.numel() // rows.shape[0] if rows.shape[0] else _elements_of_a_row(rows)
    result = rows.new_empty(sum(counts), *rows.shape[1:])
    return _start("all_gather", name, dtype, [count * width for count in counts], flat, result)


def start_reduce_scatter(tensor: torch.Tensor, op: Any, name: str | None = None) -> Pending:
    """Start a reduction of which each worker gets its share of the rows; the first get one more, if need be."""
    tensors.check(tensor, "reduce_scatter")
    if tensor.dim() == 0:
        raise PacelineError("reduce_scatter: a tensor without dimensions cannot be shared out")
    flat, dtype, reduce = tensors.contribution(tensor, "reduce_scatter", op)
    share, more = divmod(tensor.shape[0], world.size())
    rows = [share + (rank < more) for rank in range(world.size())]
    width = flat.numel() // tensor.shape[0] if tensor.shape[0] else 0
    result = tensor.new_empty(rows[world.rank()], *tensor.shape[1:])
    return _start("reduce_scatter", name, dtype, [count * width for count in rows], flat, result, reduce=reduce)


def start_all_to_all(tensor: torch.Tensor, splits: list[int], name: str | None = None) -> tuple[Pending, list[int]]:
    """Start sending ``splits`` rows to each worker, in order; and how many rows come from each."""
    tensors.check(tensor, "all_to_all")
    size = world.size()
    if tensor.dim() == 0 or len(splits) != size or sum(splits) != tensor.shape[0] or min(splits) < 0:
        raise PacelineError(
            f"all_to_all: splits {splits} do not fit a tensor of shape {list(tensor.shape)} and {size} workers"
        )
    everybody = all_gather(torch.tensor(splits, device="cpu")).view(size, size)
    receives = everybody[:, world.rank()].tolist()
    flat, dtype = tensors.to_move(tensor)
    width = flat.numel() // tensor.shape[0] if tensor.shape[0] else _elements_of_a_row(tensor)
    result = tensor.new_empty(sum(receives), *tensor.shape[1:])
    sends, incoming = ([count * width for count in rows] for rows in (splits, receives))
    return _start("all_to_all", name, dtype, sends, flat, result, receives=incoming), receives


def all_reduce(
    tensor: torch.Tensor, op: Any = dist.ReduceOp.AVG, *, name: str | None = None, gradient: bool = False
) -> torch.Tensor:
    """The average over all workers (or what ``op`` says), as a new tensor.

    In an elastic job the samples of a worker that is lost are dealt again, unless a gradient of theirs was averaged:
    programs that do that themselves, instead of a ``DistributedOptimizer``, say ``gradient=True`` there.

    >>> world.init()
    >>> all_reduce(torch.tensor([2.0, 4.0])).tolist()
    [2.0, 4.0]
    """
    return all_reduce_(tensor.detach().clone(), op, name=name, gradient=gradient)


def all_reduce_(
    tensor: torch.Tensor, op: Any = dist.ReduceOp.AVG, *, name: str | None = None, gradient: bool = False
) -> torch.Tensor:
    """:func:`all_reduce` in place."""
    return start_all_reduce(tensor, op, name, gradient).wait()


def broadcast(tensor: torch.Tensor, root_rank: int = 0, *, name: str | None = None) -> torch.Tensor:
    """The tensor of ``root_rank``, as a new tensor.

    >>> world.init()
    >>> broadcast(torch.tensor([5])).tolist()
    [5]
    """
    return broadcast_(tensor.detach().clone(), root_rank, name=name)


def broadcast_(tensor: torch.Tensor, root_rank: int = 0, *, name: str | None = None) -> torch.Tensor:
    """:func:`broadcast` in place."""
    return start_broadcast(tensor, root_rank, name).wait()


def all_gather(tensor: torch.Tensor, *, name: str | None = None) -> torch.Tensor:
    """The rows of all workers, one after another. Workers may have different numbers of them.

    >>> world.init()
    >>> all_gather(torch.tensor([[1, 2]])).tolist()
    [[1, 2]]
    """
    return start_all_gather(tensor, name).wait()


def barrier() -> None:
    """Nobody leaves before everybody has come."""
    token = torch.zeros(1, dtype=torch.uint8, device="cpu")
    _post("barrier", None, "u8", [], token, token, {"reduce": "max"}).wait()


def _start_in_place(
    kind: str, name: str | None, dtype: str, flat: torch.Tensor, tensor: torch.Tensor, **rest: Any
) -> Pending:
    host = flat.cpu()
    copies: list[Callable[[], None]] = []
    tensors.copy_back(tensor, host, copies)
    return Pending(_post(kind, name, dtype, [host.numel()], host, host, rest), tensor, copies)


def _start(
    kind: str, name: str | None, dtype: str, counts: list[int], flat: torch.Tensor, result: torch.Tensor, **rest: Any
) -> Pending:
    host = torch.empty_like(result, device="cpu")
    # Complex numbers are reduced as pairs of real ones, and unknown types moved as bytes.
    into = host.view(-1).view(flat.dtype) if host.numel() else flat.new_empty(0)
    copies: list[Callable[[], None]] = []
    if result.is_cuda:
        copies.append(lambda: tensors.assign(result, host))
    else:
        result = host
    return Pending(_post(kind, name, dtype, counts, flat.cpu(), into, rest), result, copies)


def _post(
    kind: str,
    name: str | None,
    dtype: str,
    counts: list[int],
    send: torch.Tensor,
    receive: torch.Tensor,
    rest: dict[str, Any],
) -> Handle:
    worker = world.membership().worker
    return staging.post(worker, None, name or _next_name(), kind, dtype, counts, send, receive, rest)


def _one_from_each(number: int) -> list[int]:
    send = torch.tensor([number], device="cpu")
    gathered = torch.empty(world.size(), dtype=torch.int64, device="cpu")
    _post("all_gather", None, "i64", [1] * world.size(), send, gathered, {}).wait()
    return gathered.tolist()


def _elements_of_a_row(rows: torch.Tensor) -> int:
    """Of a tensor without rows, in the units it travels in."""
    return tensors.to_move(rows.new_empty(1, *rows.shape[1:]))[0].numel()


def _next_name() -> str:
    global _matching
    membership = world.membership()
    if _matching is None or _matching[0] is not membership:
        _matching = (membership, Matching(membership, "init"))
    return _matching[1].next(membership.changes)
