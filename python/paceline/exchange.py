"""Numbers that all workers sum in every step, by a small collective that crosses it: nobody waits for the others.

What is started in one step is there in the next, the same on all workers at the same step. This module does not know what the
numbers mean.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from paceline._native import EXCHANGE, URGENCY, Handle, Worker


class Exchange:
    """One sum in flight at a time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._flight: tuple[array[float], Handle | None] | None = None

    def start(self, numbers: Sequence[float]) -> None:
        """Add these to the others'. All workers give as many, in the same order, between the same two steps."""
        assert self._flight is None, "one at a time"
        sums = array("d", numbers)
        handle = None
        if self._worker.everyone > 1:
            region = (sums.buffer_info()[0], len(sums))
            handle = self._worker.post(
                "all_reduce", EXCHANGE, "f64", [len(sums)], region, region, reduce="sum", priority=URGENCY, keep=sums,
                everyone=True,
            )  # fmt: skip
        self._flight = (sums, handle)

    def resume(self, sums: Sequence[float]) -> None:
        """What all workers said was summed already, and is to be heard with the next step."""
        self._flight = (array("d", sums), None)

    def finish(self) -> Sequence[float] | None:
        """What was started last, summed over all workers; ``None`` if nothing was."""
        if self._flight is None:
            return None
        (sums, handle), self._flight = self._flight, None
        if handle is not None:
            handle.wait()
        return sums
