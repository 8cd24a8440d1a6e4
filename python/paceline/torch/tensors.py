"""Tensors as the engine sees them: contiguous memory of one of its element types, and how PyTorch's
reductions are named there. This module posts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from paceline._native import PacelineError

_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}

_REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.PRODUCT: "product",
    # Of contributions that were multiplied first.
    dist.ReduceOp.PREMUL_SUM: "sum",
}

_BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def element(dtype: torch.dtype) -> str | None:
    """What the engine calls elements of this type, if it knows them."""
    return _NAMES.get(dtype)


def check(tensor: Any, operation: str) -> None:
    """Refuse what no operation can take, by name."""
    device_of([tensor], operation)


def device_of(tensors: Sequence[Any], operation: str) -> torch.device:
    """The one device that all of these are on. What no operation can take is refused, by name."""
    for tensor in tensors:
        _check_kind(tensor, operation)
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        named = ", ".join(sorted(str(device) for device in devices))
        raise PacelineError(f"{operation}: its tensors are on several devices ({named}); move them to one")
    if not devices:
        raise PacelineError(f"{operation} takes tensors; it was given none")
    device = devices.pop()
    if device.type not in ("cpu", "cuda"):
        raise PacelineError(f"{operation}: the paceline backend takes CPU and CUDA tensors, not {device.type}")
    return device


def _check_kind(tensor: Any, operation: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{operation} takes tensors, not {type(tensor).__name__}")
    if type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor):
        raise PacelineError(
            f"{operation}: the paceline backend takes tensors with memory of their own, not a "
            f"{type(tensor).__name__}; use its `to_local()`, or `fully_shard` without DistributedOptimizer"
        )
    if tensor.layout != torch.strided:
        raise PacelineError(
            f"{operation}: the paceline backend takes dense tensors, not {tensor.layout}; use "
            "`tensor.to_dense()`, or `sparse=False` for embeddings"
        )


def same_type(tensors: Sequence[torch.Tensor], operation: str) -> None:
    """All of these have one element type."""
    types = {tensor.dtype for tensor in tensors}
    if len(types) > 1:
        named = ", ".join(sorted(str(dtype) for dtype in types))
        raise PacelineError(f"{operation}: its tensors have several types ({named}); they need the same type")


def to_move(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A flat contiguous view (or copy) to be moved as it is. Types the engine lacks go as bytes."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    name = _NAMES.get(flat.dtype)
    return (flat.view(torch.uint8), "u8") if name is None else (flat, name)


def to_reduce(tensor: torch.Tensor, operation: str, reduce: str) -> tuple[torch.Tensor, str]:
    """A flat contiguous view (or copy) to be combined with others. What cannot be is refused, by name."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.is_complex():
        if reduce not in ("sum", "average", "mix"):
            raise PacelineError(f"{operation}: {reduce} of complex numbers ({tensor.dtype}) has no meaning")
        flat = torch.view_as_real(flat.resolve_conj()).view(-1)
    name = _NAMES.get(flat.dtype)
    if name is None:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _NAMES)
        raise PacelineError(f"{operation}: cannot reduce {tensor.dtype}; cast it to one of {known}")
    return flat, name


def contribution(tensor: torch.Tensor, operation: str, op: Any) -> tuple[torch.Tensor, str, str]:
    """What a tensor gives to a reduction: flat memory, the engine's names of its type and of ``op``.

    It is a copy if it has to be multiplied first: the tensor may not be what is written.

    >>> halves = dist._make_nccl_premul_sum(0.5)
    >>> contribution(torch.tensor([2.0, 3.0]), "all_reduce", halves)
    (tensor([1.0000, 1.5000]), 'f32', 'sum')
    """
    reduce = reduction(op, operation)
    flat, dtype = to_reduce(tensor, operation, reduce)
    if op == dist.ReduceOp.PREMUL_SUM:
        _, factor = op.__getstate__()
        flat = (flat * factor).to(flat.dtype)
    return flat, dtype, reduce


def is_bitwise(op: Any) -> bool:
    """Whether the engine has no such reduction, but gathering and combining does it."""
    return any(op == bitwise for bitwise in _BITWISE)


def bitwise(op: Any, blocks: torch.Tensor, operation: str) -> torch.Tensor:
    """Combine the rows of ``blocks``, which came from one member each."""
    if blocks.is_floating_point() or blocks.is_complex():
        raise PacelineError(f"{operation}: Cannot use ReduceOp.{_op_name(op)} with non-integral dtype")
    combine = next(function for known, function in _BITWISE.items() if op == known)
    result = blocks[0].clone()
    for block in blocks[1:]:
        combine(result, block, out=result)
    return result


def reduction(op: Any, operation: str) -> str:
    """The engine's name for PyTorch's reduction."""
    for known, name in _REDUCTIONS.items():
        if op == known:
            return name
    raise PacelineError(
        f"{operation}: the paceline backend has no ReduceOp.{_op_name(op)}; use SUM, AVG, MIN, MAX or PRODUCT"
    )


def _op_name(op: Any) -> str:
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    known = (name for name in names if op == getattr(dist.ReduceOp, name, None))
    return next(known, str(op))


def overlaps(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    start, other = first.data_ptr(), second.data_ptr()
    return start < other + second.nbytes and other < start + first.nbytes


def copy_back(tensor: torch.Tensor, flat: torch.Tensor, copies: list[Callable[[], None]]) -> None:
    """If ``flat`` is not the tensor's own memory, its contents must get there: one more copy to make."""
    if tensor.numel() and flat.data_ptr() != tensor.data_ptr():
        copies.append(lambda: assign(tensor, flat))


def assign(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Fill a tensor with what arrived for it."""
    tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))
