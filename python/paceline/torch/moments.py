"""When something happened: on the clock of the host, or on that of a GPU, which works behind the host's back.

What happened is not known here.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from paceline._native import Recording


class HostMoments:
    """Moments are numbers, and spans are recorded at once."""

    def __init__(self, recording: Recording) -> None:
        self.now = perf_counter_ns
        # Something took from one moment to another; without a detour, since it happens for every layer.
        self.span = recording.span

    def step_over(self) -> None:
        """A step ended."""

    def settle(self) -> None:
        """Record what is still open."""


#: Steps whose moments are asked for when recording ends, and not while the program trains: asking takes the host as long as
#: making them. Those of longer recordings are asked for step by step.
DEFERRED_STEPS = 64


class DeviceMoments:
    """Moments are events in the stream that is current then. What they mean in nanoseconds is asked when they are
    over, never before, so that the host does not wait for the GPU."""

    def __init__(self, recording: Recording, device: torch.device) -> None:
        self._record = recording.span
        self._device = device
        self._number = 0 if device.index is None else device.index
        self._free: list[torch.cuda.Event] = []
        #: Events of the step in progress, and its spans.
        self._used: list[torch.cuda.Event] = []
        #: Events of the step that was recorded last: spans of the next may have begun there.
        self._old: list[torch.cuda.Event] = []
        self._spans: list[tuple[int, int, Any, Any]] = []
        #: Steps that were not asked for yet. Bounded: DEFERRED_STEPS and the few that the GPU is behind.
        self._steps: deque[tuple[torch.cuda.Event, list[Any], list[Any]]] = deque()
        self._handle: int | None = None
        self._stream: torch.cuda.Stream | None = None
        # The only time that the host waits: to see both clocks at once.
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._anchor.record(torch.cuda.current_stream(device))
        self._anchor.synchronize()
        self._anchored = perf_counter_ns()

    def now(self) -> torch.cuda.Event:
        """A moment of the current stream."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        handle = torch._C._cuda_getCurrentRawStream(self._number)
        if handle != self._handle:
            # Making the object that stands for a stream takes as long as all the rest.
            self._handle, self._stream = handle, torch.cuda.current_stream(self._device)
        event.record(self._stream)
        self._used.append(event)
        return event

    def span(self, activity: int, layer: int, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        """Something took from one moment to another."""
        self._spans.append((activity, layer, begin, end))

    def step_over(self) -> None:
        """A step ended: record those long ago that the GPU has ended, too."""
        self._fence()
        while len(self._steps) > DEFERRED_STEPS and self._steps[0][0].query():
            self._resolve()

    def settle(self) -> None:
        """Record what is still open. The host waits for the GPU."""
        self._fence()
        torch.cuda.synchronize(self._device)
        while self._steps:
            self._resolve()

    def _fence(self) -> None:
        fence = self.now()
        self._steps.append((fence, self._spans, self._used))
        self._spans, self._used = [], []

    def _resolve(self) -> None:
        fence, spans, used = self._steps.popleft()
        for activity, layer, begin, end in spans:
            self._record(activity, layer, self._host_time(begin), self._host_time(end), self._number)
        # Milliseconds since the anchor lose digits as they grow, so it moves on.
        then = self._host_time(fence)
        self._free += [self._anchor, *self._old]
        self._anchor, self._anchored = fence, then
        self._old = [event for event in used if event is not fence]

    def _host_time(self, event: torch.cuda.Event) -> int:
        return self._anchored + int(self._anchor.elapsed_time(event) * 1e6)
