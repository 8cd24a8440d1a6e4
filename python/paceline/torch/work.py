"""What PyTorch holds while a collective is in flight.

Whoever waits drives the engine on its own thread. A future is completed by the one thread that delivers
notices, and is made only when somebody asks for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline._native import Handle, StalledError
from paceline.torch import tracing
from paceline.torch.profiling import Recording


class Work(dist.Work):
    """A collective in flight: one or more operations, and what is to be done with their results.

    ``finish`` runs once, after all operations ended well, on the thread that first notices; for CUDA
    tensors on ``stream``. ``recording`` is what PyTorch's profiler sees of it.
    """

    def __init__(
        self,
        operations: Sequence[Handle],
        result: Any,
        name: str,
        timeout: float | None,
        finish: Callable[[], None] | None = None,
        stream: torch.cuda.Stream | None = None,
        source: int = -1,
        recording: Recording | None = None,
    ) -> None:
        super().__init__()
        self._operations = list(operations)
        self._result = result
        self._name = name
        self._timeout = timeout
        self._finish = finish
        self._stream = stream
        self._source = source
        self._lock = threading.Lock()
        self._settled = False
        self._error: BaseException | None = None
        self._ready: torch.cuda.Event | None = None
        self._ended: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._recording = recording
        if recording is not None:
            # Before anybody asks for the future: who waits for that finds the event recorded.
            for operation in self._operations:
                operation.when_done(self._end_recording)
            if not self._operations:
                recording.end()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the result, and raise if there is none."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        if timeout is not None and seconds <= 0:
            seconds = self._timeout
        begin = tracing.begin_wait()
        for operation in self._operations:
            try:
                ended = operation.wait(seconds)
            except StalledError as error:
                raise StalledError(f"`{self._name}` ran into the timeout of its group: {error}") from error
            except Exception:
                break
            if not ended:
                raise StalledError(
                    f"`{self._name}`: not finished after {seconds:g} s, the timeout of this wait; see "
                    "whether all ranks called it, or give it more time"
                )
        tracing.end_wait(begin)
        self._settle()
        if self._error is not None:
            raise self._error
        if self._recording is not None:
            self._recording.wait()
        self.synchronize()
        return True

    def give_up(self, reason: str) -> None:
        """Let it fail for this reason, unless it has ended. Whoever waits hears it."""
        for operation in self._operations:
            operation.give_up(f"`{self._name}`: {reason}")

    def is_completed(self) -> bool:
        """Whether it ended, well or not."""
        return self._settled or (all(one.done() for one in self._operations) and self._settle())

    def is_success(self) -> bool:
        """Whether it ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What it ended with, if it ended badly."""
        return self._error if self.is_completed() else None

    def result(self) -> Any:
        """The tensors that hold the result."""
        return self._result

    def synchronize(self) -> None:
        """Let the current stream wait for the result."""
        if self._ready is not None and self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._ready)

    def block_current_stream(self) -> None:
        """The result must be there before the current stream goes on."""
        self.wait()

    def source_rank(self) -> int:
        """Who sent it; for receives."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result."""
        with self._lock:
            if self._future is not None:
                return self._future
            devices = None if self._stream is None else [self._stream.device]
            self._ended = torch.futures.Future(devices=devices)
            # An exception set on a future from Python is one for Python alone: C++ would take it for the
            # result. One that is raised in a callback is an error for both.
            self._future = self._ended.then(self._take_result)
        pending = [operation for operation in self._operations if not operation.done()]
        # Whichever notice comes when all have ended counts.
        for operation in pending:
            operation.when_done(self._complete_future)
        if not pending:
            self._complete_future()
        return self._future

    def _complete_future(self) -> None:
        if not all(operation.done() for operation in self._operations):
            return
        self._settle()
        with self._lock:
            ended, self._ended = self._ended, None
        if ended is not None:
            with _on(self._stream):
                if self._ready is not None and self._stream is not None:
                    torch.cuda.current_stream(self._stream.device).wait_event(self._ready)
                ended.set_result(None)

    def _end_recording(self) -> None:
        if self._recording is not None and all(operation.done() for operation in self._operations):
            self._recording.end()

    def _take_result(self, ended: torch.futures.Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def _settle(self) -> bool:
        """All operations ended: take the result, or the first error, once."""
        with self._lock:
            if self._settled:
                return True
            for operation in self._operations:
                self._error = self._error or operation.exception()
            try:
                if self._error is None:
                    with torch.no_grad(), _on(self._stream):
                        if self._finish is not None:
                            self._finish()
                        if self._stream is not None:
                            self._ready = torch.cuda.Event()
                            self._ready.record(self._stream)
            except Exception as error:
                self._error = error
            self._finish = None
            self._settled = True
        return True


def _on(stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
