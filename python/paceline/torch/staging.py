"""How tensors reach the engine: CPU memory as it is, CUDA memory through pinned buffers.

What happens to CUDA memory between the call and the result happens in native code, without the interpreter.
Here it is only chosen which pinned memory and which streams are used. Nothing here blocks the thread that
calls a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline._native import Handle, Worker
from paceline.torch import tracing


def post(
    worker: Worker,
    ranks: Sequence[int] | None,
    name: str,
    kind: str,
    dtype: str,
    counts: Sequence[int],
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    rest: dict[str, Any],
) -> Handle:
    """Post an operation on flat CPU tensors, which are kept until it ended."""
    return worker.post(
        kind, name, dtype, counts, _region(send), _region(receive), ranks=ranks, keep=(send, receive), **rest
    )


def start(
    worker: Worker,
    ranks: Sequence[int] | None,
    name: str,
    kind: str,
    dtype: str,
    counts: Sequence[int],
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    rest: dict[str, Any],
    host: torch.Tensor | None = None,
) -> Handle:
    """Start an operation on flat tensors of any device.

    The result of one on CUDA tensors is in ``receive`` on :func:`return_stream`. ``host`` is pinned memory as
    long as ``receive``, for an operation in place. Whoever gives it uses the result only on streams that wait
    for it (:func:`follow`), and so spares two allocators their work.
    """
    begin = tracing.begin_post()
    try:
        memory = send if send is not None else receive
        if memory is None or not memory.is_cuda:
            return post(worker, ranks, name, kind, dtype, counts, send, receive, rest)
        lanes = _lanes(memory.device)
        in_place = send is not None and receive is not None and send.data_ptr() == receive.data_ptr()
        host_send = pinned(send) if host is None else host
        host_receive = host_send if in_place else pinned(receive)
        if host is None and receive is not None:
            receive.record_stream(lanes.up)
        return worker.stage(
            kind,
            name,
            dtype,
            counts,
            _region(send),
            _region(receive),
            _region(host_send),
            _region(host_receive),
            (torch.cuda.current_stream(memory.device).cuda_stream, *lanes.handles),
            ranks=ranks,
            keep=(send, receive, host_send, host_receive),
            **rest,
        )
    finally:
        tracing.end_post(begin)


def follow(started: Handle, device: torch.device) -> None:
    """Let the current stream wait for the result of an operation that ended well."""
    if device.type == "cuda":
        started.precede(torch.cuda.current_stream(device).cuda_stream)


def pinned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Host memory for a tensor. PyTorch keeps freed pinned memory for the next one."""
    if tensor is None:
        return None
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)


class Later:
    """A number on a device, which is copied down now and read later."""

    def __init__(self, value: torch.Tensor) -> None:
        value = value.detach().double()
        self._host = pinned(value)
        self._host.copy_(value, non_blocking=True)
        self._copied = torch.cuda.current_stream(value.device).record_event()

    def __float__(self) -> float:
        self._copied.synchronize()
        return self._host.item()


def return_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which results come back."""
    return _lanes(device).up


def _region(tensor: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if tensor is None or not tensor.numel() else (tensor.data_ptr(), tensor.numel())


class _Lanes:
    """The two streams of a device, and what native code calls them."""

    def __init__(self, device: torch.device) -> None:
        self.down = torch.cuda.Stream(device)
        self.up = torch.cuda.Stream(device)
        self.handles = (self.down.cuda_stream, self.up.cuda_stream)


_lanes_by_device: dict[torch.device, _Lanes] = {}


def _lanes(device: torch.device) -> _Lanes:
    # Of two threads that come first, one makes streams for nothing: the first put here are everybody's.
    known = _lanes_by_device.get(device)
    return _lanes_by_device.setdefault(device, _Lanes(device)) if known is None else known
