"""Sums of sparse tensors. The engine knows only dense memory, so every rank gathers the entries of all the
others and adds them up itself. It takes three rounds, one after another: the call blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from paceline._native import PacelineError
from paceline.torch import tensors
from paceline.torch.work import Work

if TYPE_CHECKING:
    from paceline.torch.backend import ProcessGroup


def all_reduce(group: ProcessGroup, tensor: torch.Tensor, op: Any, opts: Any) -> Work:
    """Sum (or average) a COO tensor over the group, in place."""
    if tensors.reduction(op, "all_reduce") not in ("sum", "average"):
        raise PacelineError("all_reduce: sparse tensors can be summed and averaged only")
    if tensor.layout != torch.sparse_coo or not tensor.device.type == "cpu":
        raise PacelineError(
            f"all_reduce: sparse tensors must be COO tensors in CPU memory, not {tensor.layout} on {tensor.device}"
        )
    ours = tensor.detach().coalesce()
    shape = [ours.sparse_dim(), *ours.shape]
    shapes = _gather(group, torch.tensor(shape, device="cpu"), [len(shape)] * group.size())
    if any(other.tolist() != shape for other in shapes):
        raise PacelineError(f"all_reduce: the ranks' sparse tensors have different shapes: {shapes}")
    counts = [int(count) for count in _gather(group, torch.tensor([ours._nnz()], device="cpu"), [1] * group.size())]
    dimensions = ours.sparse_dim()
    width = ours.values()[:1].numel() if ours._nnz() else ours.values().new_empty((1, *ours.values().shape[1:])).numel()
    indices = _gather(group, ours.indices(), [dimensions * count for count in counts])
    values = _gather(group, ours.values(), [width * count for count in counts])
    total = torch.sparse_coo_tensor(
        torch.cat([part.view(dimensions, -1) for part in indices], dim=1),
        torch.cat([part.view(-1, *ours.values().shape[1:]) for part in values]),
        ours.shape,
        check_invariants=False,
    ).coalesce()
    if op == dist.ReduceOp.AVG:
        total = total / group.size()
    with torch.no_grad():
        tensor.copy_(total)
    return group._work([], [tensor], "all_reduce", opts, [], tensor.device)


def _gather(group: ProcessGroup, own: torch.Tensor, counts: list[int]) -> list[torch.Tensor]:
    parts = [own.new_empty(count) for count in counts]
    group.allgather([parts], [own.contiguous().view(-1)]).wait()
    return parts
