"""Collectives as PyTorch's profiler shows them: from their start to their end, which another thread sees.

This module knows nothing of what is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.profiler import record_function

from paceline.torch import versions

#: From here on a record that carries its tensors may end on another thread.
_WITH_TENSORS = (2, 13)

#: How long a wait for the result waits for the record of it, in seconds. It is made a moment later.
_A_MOMENT = 1.0

#: Whether a profiler runs. It is asked for every collective.
enabled: Callable[[], bool] = torch.autograd._profiler_enabled


class Recording:
    """An event that has begun."""

    def __init__(self, name: str, inputs: Sequence[torch.Tensor]) -> None:
        self._ended = threading.Event()
        self._end: Callable[[], Any] | None = _begin(f"paceline:{name}", list(inputs))

    def end(self) -> None:
        """It ended, on this thread. Only the first call counts."""
        end, self._end = self._end, None
        if end is not None:
            end()
            self._ended.set()

    def wait(self) -> None:
        """Until it has ended, if that is soon."""
        self._ended.wait(_A_MOMENT)


def _begin(name: str, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    if versions.number(torch.__version__) >= _WITH_TENSORS:
        record = torch._C._profiler._RecordFunctionFast(name, inputs)
        record.__enter__()
        return lambda: record.__exit__(None, None, None)
    ended: torch.futures.Future[None] = torch.futures.Future()
    recording = record_function(name, str([list(tensor.shape) for tensor in inputs]))
    recording.__enter__()
    recording._call_end_callbacks_on_future(ended)
    return lambda: ended.set_result(None)
