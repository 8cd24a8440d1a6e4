"""What the running job shows of itself: how long steps take, what wires carry, how long each layer computes.

It is collected while :class:`~paceline.torch.DistributedOptimizer` trains, or whoever else calls
:func:`~paceline.begin_step`, and put together over all workers every few steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline import world
from paceline._native import Talk, Worker


@dataclass(frozen=True)
class WorkerMetrics:
    """One worker, smoothed over the last steps. Times are in seconds, rates in bytes a second."""

    #: From one step's beginning to the next.
    seconds: float
    #: While something was on its way; 0 where too little was sent to tell.
    upload: float
    download: float
    #: What belongs neither to a layer nor to waiting: data that is loaded, updates after the backward pass.
    rest: float
    #: Of each tensor's layer, in the order of :attr:`Metrics.tensors`.
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    #: What came from single workers, by their ranks: from those that sent most.
    flows: dict[int, float]


@dataclass(frozen=True)
class Metrics:
    """All workers, the same on each of them."""

    #: The last step that is in it.
    step: int
    #: The version of the view, and its settings, that were in force in that step.
    view: int
    strategy: str
    partition: int
    credit: int
    #: Name and bytes of what a step synchronises, in the order of the forward pass; empty until two steps were alike.
    tensors: tuple[tuple[str, int], ...]
    #: By rank.
    workers: tuple[WorkerMetrics, ...]

    @property
    def speed(self) -> float:
        """Steps a second: the slowest worker paces all."""
        slowest = max(worker.seconds for worker in self.workers)
        return 1.0 / slowest if slowest > 0.0 else 0.0


def metrics() -> Metrics | None:
    """What all workers last saw; None before the first steps are over.

    >>> world.init()
    >>> for _ in range(6):
    ...     world.begin_step()
    >>> 0 < metrics().step < 6
    True
    """
    return of(world.membership().worker)


def of(source: Worker | Talk) -> Metrics | None:
    """The metrics of a job, as one who knows them has them."""
    shown = source.metrics()
    if shown is None:
        return None
    workers = tuple(
        WorkerMetrics(seconds, upload, download, rest, tuple(forward), tuple(backward), dict(flows))
        for seconds, upload, download, rest, forward, backward, flows in shown.pop("workers")
    )
    return Metrics(**shown | {"tensors": tuple(shown["tensors"])}, workers=workers)
