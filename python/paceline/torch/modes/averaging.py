"""Modes in which copies are averaged: with all others in every step, with one other in every step, with all now and then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from paceline._native import PacelineError
from paceline.torch.modes.replica import Flight, Mode, Replica


class _Crossing(Mode):
    """What is sent in one step is used in the next, so that it hides behind a whole step of computation."""

    #: How far a copy is moved towards the average.
    pull: float

    def __init__(self) -> None:
        self._flights: list[Flight] = []
        self._sent: list[torch.Tensor] = []
        self._steps = 0

    def _partners(self, replica: Replica) -> Sequence[int] | None:
        """Whom to average with in this step; all if ``None``."""
        raise NotImplementedError

    def begin(self, replica: Replica) -> None:
        self._steps = 0

    @torch.no_grad()
    def step(self, replica: Replica, update: Callable[[], None]) -> None:
        self._land(replica)
        update()
        self._steps += 1
        values = replica.values()
        # What is in flight must not change; what was sent is what the average is held against.
        self._sent = [value.clone() for value in values]
        self._flights = replica.average([value.clone() for value in values], "copy", self._partners(replica))

    def land(self, replica: Replica, places: Iterable[int] | None = None) -> None:
        # What came is used in the next step; forward passes wait for nothing.
        if places is None:
            for flight in self._flights:
                flight.wait()

    @torch.no_grad()
    def arrive(self, replica: Replica) -> None:
        self._land(replica)

    def elastic_state(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]

    def _land(self, replica: Replica) -> None:
        for value, sent, flight in zip(replica.values(), self._sent, self._flights):
            # The copy has gone on by a step since it was sent.
            value.add_(flight.wait() - sent, alpha=self.pull)
        self._flights, self._sent = [], []


class ModelAveraging(_Crossing):
    """Synchronous model averaging: each copy trains by itself and is pulled towards the mean of all in every step."""

    name = "averaging"

    def __init__(self, pull: float = 0.1) -> None:
        super().__init__()
        if not 0.0 < pull <= 1.0:
            raise PacelineError(f"a copy is pulled by more than 0 and at most 1, not by {pull}")
        self.pull = pull

    def numbers(self) -> tuple[float]:
        return (self.pull,)

    def __repr__(self) -> str:
        return f"ModelAveraging(pull={self.pull})"

    def _partners(self, replica: Replica) -> None:
        return None


class PairAveraging(_Crossing):
    """Two by two (AD-PSGD): in every step each worker averages with one other, chosen anew; nobody waits for all.

    >>> PairAveraging(seed=1).pairs(4, 0) == PairAveraging(seed=1).pairs(4, 0)
    True
    """

    name = "pairs"
    pull = 1.0
    #: Workers that do not meet for a while may be as far apart.
    reach = 8

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def numbers(self) -> tuple[int]:
        return (self.seed,)

    def __repr__(self) -> str:
        return f"PairAveraging(seed={self.seed})"

    def pairs(self, size: int, step: int) -> list[list[int]]:
        """Everybody once, the same on all workers; of an odd number one is left alone."""
        ranks = list(range(size))
        random.Random(f"{self.seed} {step}").shuffle(ranks)
        return [sorted(ranks[at : at + 2]) for at in range(0, size, 2)]

    def _partners(self, replica: Replica) -> Sequence[int]:
        rank = replica.worker.rank
        return next(pair for pair in self.pairs(replica.worker.size, self._steps) if rank in pair)


class LocalSGD(Mode):
    """Each copy trains by itself, and every so many steps all are made equal."""

    name = "local"

    def __init__(self, every: int = 8) -> None:
        if every < 1:
            raise PacelineError(f"copies are averaged every 1 step or more, not every {every}")
        self.every = self.reach = every
        self._steps = 0

    def numbers(self) -> tuple[int]:
        return (self.every,)

    def __repr__(self) -> str:
        return f"LocalSGD(every={self.every})"

    def begin(self, replica: Replica) -> None:
        self._steps = 0

    def step(self, replica: Replica, update: Callable[[], None]) -> None:
        update()
        self._steps += 1
        if self._steps % self.every == 0:
            self.settle(replica)

    def settle(self, replica: Replica) -> None:
        for flight in replica.average(replica.values(), "copy"):
            flight.wait()
        replica.average_buffers()

    def elastic_state(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
