"""The mode in which copies are averaged in every step with those whom the job's strategy says: under ``shuffle`` a group that
keeps slow links apart and changes from step to step (DS-Sync). Who is in which group is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from paceline._native import PacelineError
from paceline.torch.modes.replica import Flight, Mode, Replica


class GroupAveraging(Mode):
    """Each copy is updated by its own gradients and then averaged, as the job's strategy does: in groups under ``shuffle`` and
    ``gossip``, over all workers under the others.

    With ``ensemble`` every so many steps, from step ``after`` on, a worker adds its parameters to a mean over its way, and when
    the mode ends all workers take the mean of these means: stochastic weight averaging over the ways of all workers.

    >>> GroupAveraging(ensemble=10, after=500)
    GroupAveraging(ensemble=10, after=500)
    """

    name = "groups"
    apart = False

    def __init__(self, ensemble: int | None = None, after: int = 0) -> None:
        if ensemble is not None and ensemble < 1:
            raise PacelineError(f"parameters are added to the ensemble every 1 step or more, not every {ensemble}")
        if after < 0:
            raise PacelineError(f"an ensemble begins after 0 steps or more, not after {after}")
        self.ensemble, self.after = ensemble, after
        self._steps = 0
        #: What is under way, by the parameter's number.
        self._flights: dict[int, Flight] = {}
        self._mean: list[torch.Tensor] = []
        self._added = 0

    def numbers(self) -> tuple[int | None, int]:
        return (self.ensemble, self.after)

    def __repr__(self) -> str:
        return f"GroupAveraging(ensemble={self.ensemble}, after={self.after})"

    def begin(self, replica: Replica) -> None:
        self._steps = self._added = 0
        self._mean = []

    def step(self, replica: Replica, update: Callable[[], None]) -> None:
        update()
        self._steps += 1
        # In the parameters' own memory; the forward pass waits for each where it needs it.
        self._flights = dict(enumerate(replica.average(replica.values(), "copy", reduce="mix")))
        if self.ensemble is not None and self._steps > self.after and (self._steps - self.after) % self.ensemble == 0:
            self.land(replica)
            self._add(replica.values())

    @torch.no_grad()
    def land(self, replica: Replica, places: Iterable[int] | None = None) -> None:
        for place in list(self._flights) if places is None else places:
            flight = self._flights.pop(place, None)
            if flight is not None:
                flight.wait()

    @torch.no_grad()
    def end(self, replica: Replica) -> None:
        self.arrive(replica)
        for value, mean in zip(replica.values(), self._mean):
            value.copy_(mean)

    def memories(self) -> list[torch.Tensor]:
        return self._mean

    def elastic_state(self) -> dict[str, Any]:
        return {"steps": self._steps, "added": self._added, "mean": self._mean}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        self._steps, self._added, self._mean = state["steps"], state["added"], state["mean"]

    @torch.no_grad()
    def _add(self, values: list[torch.Tensor]) -> None:
        self._added += 1
        if not self._mean:
            self._mean = [value.clone() for value in values]
        for mean, value in zip(self._mean, values):
            mean.lerp_(value, 1.0 / self._added)
