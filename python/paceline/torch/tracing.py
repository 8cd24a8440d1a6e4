"""Recording what a job does, step by step, for ``paceline replay`` and for people (the files open in Perfetto).

``paceline run --trace DIR`` records every worker; in a program, :class:`trace` does. Nothing here ever stops
training: what cannot be recorded is said on standard error.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

from paceline import world
from paceline._native import PacelineError, Worker
from paceline.torch.moments import DeviceMoments, HostMoments
from paceline.torch.observing import Observer
from paceline.torch.profiles import Kernels

if TYPE_CHECKING:
    from paceline._native import Recording

#: Steps that are recorded, unless it is said otherwise, and those before them that are not.
STEPS = 20
WARM_UP = 3

#: The recording of this process, while there is one.
current: trace | None = None


class trace:
    """Records ``steps`` steps, after ``warm_up`` others, into ``directory``: one file for each worker.

    A step ends when an optimizer has made its step. The file is written when the last one is over, or when the block
    or the job ends before. ``steps=None`` records until then.

    >>> import tempfile
    >>> world.init()
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with trace(directory, warm_up=0) as recording:
    ...         model(torch.ones(1, 2)).sum().backward()
    ...         optimizer.step()
    ...     recording.path.name
    'worker-0.json.gz'
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        steps: int | None = STEPS,
        warm_up: int = WARM_UP,
    ) -> None:
        given = directory if directory is not None else os.environ.get("PACELINE_TRACE")
        if not given:
            raise PacelineError("say where the trace goes: trace(directory), or the variable PACELINE_TRACE")
        if (steps is not None and steps < 1) or warm_up < 0:
            raise PacelineError(f"cannot record {steps} steps after {warm_up} others")
        self.directory = pathlib.Path(given)
        #: The file, once it is written.
        self.path: pathlib.Path | None = None
        self.crosses_step = False
        self._warm_up = warm_up
        self._last = None if steps is None else warm_up + steps
        self._observer = Observer(self._switch, self._step_over)
        self._kernels = Kernels(self._finish_if_due)
        self._recording: Recording | None = None
        self._worker: Worker | None = None
        self._step = 0
        self._begun = 0
        self._over = False
        self._due = False
        self._lock = threading.Lock()
        self._before_us: Any = None

    # From begin to end.

    def __enter__(self) -> trace:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def start(self) -> None:
        """Begin. If this process has not joined a job yet, recording begins when it does."""
        global current
        if current is not None:
            raise PacelineError("this process records a trace already; it can record one at a time")
        current = self
        self._observer.attach()
        self._kernels.attach()
        self._listen_for_the_end()
        for membership in world.memberships():
            self.join(membership.worker)

    def join(self, worker: Worker) -> None:
        """This process takes part in a job from now on."""
        if self._recording is not None or self._over:
            return
        try:
            self._recording = worker.trace(self.directory)
        except PacelineError as error:
            _warn(f"{error}; training goes on without")
            return self._forget()
        self._worker = worker
        self._observer.recording = self._recording
        self._begun = self._recording.now()
        self._switch()

    def leave(self, worker: Worker) -> None:
        """This process leaves that job."""
        if worker is self._worker:
            self.close()

    def close(self) -> None:
        """End now, whatever was recorded, and wait until the file is written."""
        self._finish()
        recording, self._recording = self._recording, None
        if recording is None:
            return
        try:
            written = recording.wait()
        except PacelineError as error:
            return _warn(str(error))
        if written is not None:
            self.path, _, dropped = written
            if dropped:
                _warn(f"{self.path}: {dropped} events were lost, because recording could not keep up")

    # What happens in between.

    def _switch(self) -> None:
        """On from the step before the first that counts until the one after the last: what crosses steps is whole."""
        recording, observer = self._recording, self._observer
        if recording is None or self._over or observer.moments is not None or self._step < max(self._warm_up - 1, 0):
            return
        recording.switch(True)
        if observer.layers:
            on_gpu = observer.device.type == "cuda"
            observer.moments = DeviceMoments(recording, observer.device) if on_gpu else HostMoments(recording)

    def _step_over(self) -> None:
        recording = self._recording
        if recording is None or self._over:
            return
        now, number = recording.now(), self._step
        if self._observer.moments is not None:
            self._observer.moments.step_over()
            if number >= self._warm_up and (self._last is None or number < self._last):
                recording.step(number, self._begun, now)
        self._step, self._begun = number + 1, now
        self._switch()
        if self._last is not None and number >= self._last:
            self._due = True
            self._finish_if_due()

    def _finish_if_due(self) -> None:
        # What a profiler sees is there when it has stopped.
        if self._due and not torch.autograd._profiler_enabled():
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        moments, recording = self._observer.moments, self._recording
        if moments is not None:
            moments.settle()
        self._forget()
        if recording is not None:
            layers = [(layer.name, layer.tensors, layer.activation_bytes) for layer in self._observer.layers]
            recording.finish(layers, self.crosses_step, self._kernels.found)

    def _forget(self) -> None:
        """Take our hooks off PyTorch."""
        global current
        self._over = True
        self._observer.detach()
        self._kernels.detach()
        if self._before_us is not None:
            signal.signal(signal.SIGTERM, self._before_us)
            self._before_us = None
        if current is self:
            current = None
            _recorded.append(self)

    def _listen_for_the_end(self) -> None:
        """A launcher ends workers by SIGTERM; unless the program has its own plans, write the file first."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._before_us = signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, frame: Any) -> None:
        self.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


#: Recordings whose hooks are gone and whose files may not be written yet.
_recorded: list[trace] = []


def begin_wait() -> int | None:
    """The host may have to wait from now on; for :func:`end_wait`."""
    return None if current is None else current._observer.begin_wait()


def end_wait(begin: int | None) -> None:
    """It has waited since ``begin``."""
    if begin is not None and current is not None:
        current._observer.end_wait(begin)


def end_wait_of_layer(begin: int | None) -> None:
    """It has waited since ``begin``, for what the layer needs whose forward pass is about to begin."""
    if begin is not None and current is not None:
        current._observer.end_wait(begin, current._observer.layer)


def begin_post() -> int | None:
    """An operation is handed over from now on; for :func:`end_post`."""
    return None if current is None else current._observer.begin_wait()


def end_post(begin: int | None) -> None:
    """It is handed over."""
    if begin is not None and current is not None:
        current._observer.end_post(begin)


def resume() -> None:
    """The forward pass of the layer begins only now."""
    if current is not None:
        current._observer.resume()


def begin_update() -> Any:
    """Parameters are updated from now on; for :func:`end_update`."""
    observer = None if current is None else current._observer
    return None if observer is None or observer.moments is None else observer.moments.now()


def end_update(begin: Any) -> None:
    """They are updated: for the layer whose forward pass waited for them, or for none outside of layers."""
    if begin is not None and current is not None:
        current._observer.update(current._observer.layer, begin)


def step_over(crosses_step: bool) -> None:
    """An optimizer of ours has made its step; whether its updates may come later."""
    if current is not None:
        current.crosses_step = crosses_step
        current._observer.step_over()


def joined(worker: Worker) -> None:
    """This process has joined a job: record it, if the environment or the program wants that."""
    if current is not None:
        current.join(worker)
    elif os.environ.get("PACELINE_TRACE"):
        steps = os.environ.get("PACELINE_TRACE_STEPS", str(STEPS))
        if not steps.isdigit() or int(steps) < 1:
            return _warn(f"PACELINE_TRACE_STEPS={steps} is not a number of steps; nothing is recorded")
        # What the environment wants is wanted of each job that this process takes part in, one after the other.
        trace(steps=int(steps)).start()


def left(worker: Worker) -> None:
    """This process is about to leave a job."""
    for one in [*_recorded, *([] if current is None else [current])]:
        one.leave(worker)
        if one in _recorded:
            _recorded.remove(one)


def _warn(text: str) -> None:
    rank = os.environ.get("RANK", "")
    print(f"paceline: {'worker ' + rank + ': ' if rank else ''}{text}", file=sys.stderr)
