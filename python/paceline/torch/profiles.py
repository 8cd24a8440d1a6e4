"""What PyTorch's profiler saw of GPUs while a trace was recorded, so that the trace can show it.

The profiler belongs to the program: it is asked when it has stopped, and its own files stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler.profiler import _KinetoProfile

#: Of one trace; a viewer would not open more.
MOST_KERNELS = 1_000_000


class Kernels:
    """Takes what the profilers that stop while this is attached saw on GPUs."""

    def __init__(self, stopped: Callable[[], None]) -> None:
        #: Name, begin in nanoseconds since 1970, length, device, stream.
        self.found: list[tuple[str, int, int, int, int]] = []
        self._stopped = stopped
        self._stop: Any = None

    def attach(self) -> None:
        """From now on."""
        stop, kernels = _KinetoProfile.stop_trace, self

        def stop_trace(profile: Any) -> None:
            stop(profile)
            kernels._take(profile)

        self._stop = stop
        _KinetoProfile.stop_trace = stop_trace  # type: ignore[method-assign]

    def detach(self) -> None:
        """Leave profilers alone."""
        if self._stop is not None:
            _KinetoProfile.stop_trace = self._stop  # type: ignore[method-assign]
            self._stop = None

    def _take(self, profile: Any) -> None:
        results = getattr(getattr(profile, "profiler", None), "kineto_results", None)
        if results is not None:
            cuda = torch.autograd.DeviceType.CUDA
            for event in results.events():
                if event.device_type() == cuda and len(self.found) < MOST_KERNELS:
                    length = max(event.duration_ns(), 0)
                    where = (max(event.device_index(), 0), max(event.device_resource_id(), 0))
                    self.found.append((event.name(), event.start_ns(), length, *where))
        self._stopped()
