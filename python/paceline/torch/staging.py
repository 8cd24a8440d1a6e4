"""How tensors reach the engine: CPU memory as it is, CUDA memory through pinned buffers.

A CUDA tensor is copied down piece by piece on one stream, each piece is posted as soon as it is in host
memory, and copied up on a second stream as soon as the engine is done with it; so the copies overlap the
network and each other. Two streams, because a copy up must not stand behind a copy down that waits for
computation. Nothing here blocks the thread that calls a collective.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline._native import Handle, Worker
from paceline.torch.matching import Matching
from paceline.torch.work import InFlight

#: Bytes of a piece. The same on all ranks: each piece is an operation of its own.
PIECE = 4 << 20

#: Collectives that can be done piece by piece: those in which element i depends on elements i only.
_IN_PIECES = ("all_reduce", "broadcast", "reduce")


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


def _region(tensor: torch.Tensor | None) -> tuple[int, int]:
    return (0, 0) if tensor is None or not tensor.numel() else (tensor.data_ptr(), tensor.numel())


def start(
    matching: Matching,
    ranks: Sequence[int] | None,
    kind: str,
    dtype: str,
    counts: Sequence[int],
    send: torch.Tensor | None,
    receive: torch.Tensor | None,
    rest: dict[str, Any],
    host: torch.Tensor | None = None,
) -> list[InFlight]:
    """Start a collective of flat CUDA tensors; its result is in ``receive`` on :func:`return_stream`.

    ``host`` is pinned memory as long as ``receive``, for a collective in place. Whoever gives it keeps both
    until its own stream has waited for the return stream, and so spares two allocators their work.
    """
    memory = send if send is not None else receive
    assert memory is not None and memory.is_cuda
    device = memory.device
    lanes = _lanes(device)
    # The return stream need not wait: what comes up has been down, which is awaited before it is posted.
    lanes.down.wait_stream(torch.cuda.current_stream(device))
    pieces: list[InFlight] = []
    with torch.cuda.stream(lanes.down):
        for begin, end in _bounds(kind, memory):
            whole = begin == 0 and end == memory.numel()
            piece = Staged(
                matching.worker,
                ranks,
                matching.next(),
                kind,
                dtype,
                counts if whole else [end - begin],
                None if send is None else (send if whole else send[begin:end]),
                None if receive is None else (receive if whole else receive[begin:end]),
                rest,
                lanes,
                None if host is None else (host if whole else host[begin:end]),
            )
            _poster().put(piece)
            pieces.append(piece)
    return pieces


def _bounds(kind: str, memory: torch.Tensor) -> list[tuple[int, int]]:
    elements = memory.numel()
    step = max(PIECE // memory.element_size(), 1)
    if kind not in _IN_PIECES or elements <= step:
        return [(0, elements)]
    return [(begin, min(begin + step, elements)) for begin in range(0, elements, step)]


def return_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which results come back."""
    return _lanes(device).up


class Staged:
    """One piece on its way down, over the network and up again."""

    def __init__(
        self,
        worker: Worker,
        ranks: Sequence[int] | None,
        name: str,
        kind: str,
        dtype: str,
        counts: Sequence[int],
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        rest: dict[str, Any],
        lanes: _Lanes,
        host: torch.Tensor | None,
    ) -> None:
        """On the stream that goes down."""
        self._arguments = (worker, ranks, name, kind, dtype, counts)
        self._rest = rest
        # Until it is copied: then its memory may be used for something else.
        self._send = send
        self._receive = receive
        self._lanes = lanes
        self._kept = host is not None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._posted = threading.Event()
        self._handle: Handle | None = None
        self._error: BaseException | None = None
        self._listeners: list[Callable[[], Any]] = []
        in_place = send is not None and receive is not None and send.data_ptr() == receive.data_ptr()
        self._host_send = pinned(send) if host is None else host
        self._host_receive = self._host_send if in_place else pinned(receive)
        if send is not None and self._host_send is not None:
            self._host_send.copy_(send, non_blocking=True)
        self._down = lanes.down.record_event()

    def proceed(self) -> None:
        """On the poster's thread: post when the copy down is finished. In order, for all pieces."""
        try:
            self._down.synchronize()
            self._send = None
            worker, ranks, name, kind, dtype, counts = self._arguments
            self._handle = post(
                worker, ranks, name, kind, dtype, counts, self._host_send, self._host_receive, self._rest
            )
            self._posted.set()
            self._handle.when_done(self._arrived)
        except Exception as error:
            self._end(error)

    def _arrived(self) -> None:
        """On the notice thread: copy up what arrived."""
        assert self._handle is not None
        error = self._handle.exception()
        if error is None and self._receive is not None and self._host_receive is not None:
            try:
                with torch.no_grad(), torch.cuda.stream(self._lanes.up):
                    self._receive.copy_(self._host_receive, non_blocking=True)
                    if not self._kept:
                        self._receive.record_stream(self._lanes.up)
            except Exception as problem:
                error = problem
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = error
            self._ended.set()
            listeners, self._listeners = self._listeners, []
        self._posted.set()
        self._host_send = self._host_receive = self._send = self._receive = None
        for listener in listeners:
            listener()

    def done(self) -> bool:
        return self._ended.is_set()

    def exception(self) -> BaseException | None:
        return self._error

    def wait(self, timeout: float | None = None) -> bool:
        # The notice thread copies up; waiting here for the engine first lets this thread drive it.
        if not self._posted.wait(timeout):
            return False
        if self._handle is not None and self._error is None and not self._handle.wait(timeout):
            return False
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def when_done(self, listener: Callable[[], Any]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._listeners.append(listener)
                return
        listener()


def pinned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Host memory for a tensor. PyTorch keeps freed pinned memory for the next one."""
    if tensor is None:
        return None
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


class _Lanes:
    """The two streams of a device."""

    def __init__(self, device: torch.device) -> None:
        self.down = torch.cuda.Stream(device)
        self.up = torch.cuda.Stream(device)


class _Poster:
    """One thread that posts pieces in the order they were started: the order ranks match them by."""

    def __init__(self) -> None:
        # Bounded by the pieces of the tensors in flight, which their callers hold.
        self._pieces: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="paceline-staging", daemon=True).start()

    def put(self, piece: Staged) -> None:
        self._pieces.put(piece)

    def _run(self) -> None:
        while True:
            self._pieces.get().proceed()


_lock = threading.Lock()
_lanes_by_device: dict[torch.device, _Lanes] = {}
_the_poster: _Poster | None = None


def _lanes(device: torch.device) -> _Lanes:
    with _lock:
        if device not in _lanes_by_device:
            _lanes_by_device[device] = _Lanes(device)
        return _lanes_by_device[device]


def _poster() -> _Poster:
    global _the_poster
    with _lock:
        if _the_poster is None:
            _the_poster = _Poster()
        return _the_poster
