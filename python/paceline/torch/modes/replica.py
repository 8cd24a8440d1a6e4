"""A worker's own copy of the model, and what a mode may do with it. How bytes reach other workers is not known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch.optim import Optimizer

from paceline._native import Handle, Worker
from paceline.torch import staging, tensors


class Mode:
    """How copies stay together. All workers are in the same mode between the same two steps."""

    #: What policies and programs call it.
    name = ""
    #: Whether workers are in the same step: where they are not, settings stay as they are.
    in_step = True
    #: Whether it goes on when workers are lost.
    in_elastic_jobs = False

    def meets(self) -> bool:
        """Whether all workers come together in the step that is over, to agree on what policies want."""
        return True

    def begin(self, replica: Replica) -> None:
        """From the next step on. All copies are equal."""

    def step(self, replica: Replica, update: Callable[[], None]) -> None:
        """One step. ``update`` applies this worker's own gradients to its copy."""
        raise NotImplementedError

    def land(self, replica: Replica, places: Iterable[int] | None = None) -> None:
        """Wait until these parameters (all, if ``None``) are what the last step made of them."""

    def end(self, replica: Replica) -> None:
        """No further step: nothing is in flight afterwards."""


class Flight:
    """A tensor on its way to an average."""

    def __init__(self, tensor: torch.Tensor, flat: torch.Tensor, handle: Handle) -> None:
        self._tensor, self._flat, self._handle = tensor, flat, handle

    def wait(self) -> torch.Tensor:
        """The average, in the tensor's own memory."""
        self._handle.wait()
        staging.follow(self._handle, self._tensor.device)
        if self._flat.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._flat.view_as(self._tensor))
        return self._tensor


class Replica:
    """Parameters by name, the optimizer that updates them, and the worker that holds them."""

    def __init__(self, worker: Worker, inner: Optimizer, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        self.worker = worker
        self.inner = inner
        self.named = list(named)
        #: What policies multiply the program's learning rate by.
        self.learning_rate = 1.0

    def values(self) -> list[torch.Tensor]:
        """The parameters' own memory."""
        return [parameter.data for _, parameter in self.named]

    def average(
        self, values: Sequence[torch.Tensor], what: str, ranks: Sequence[int] | None = None, reduce: str = "average"
    ) -> list[Flight]:
        """Average these in place with those of other workers (all, or ``ranks``), the first parameters first.

        To ``mix`` is to average with those whom the job's strategy says.
        """
        if self.worker.size == 1 or (ranks is not None and len(ranks) < 2):
            return []
        names = (f"{what} of {name}" for name, _ in self.named)
        return [
            self._post(value, name, place, ranks, reduce) for place, (name, value) in enumerate(zip(names, values))
        ]

    def equalize(self) -> None:
        """Give all workers the mean of their copies, and of what their optimizers remember."""
        if self.worker.size == 1:
            return
        flights = self.average(self.values(), "copy")
        last = len(flights)
        flights += [self._post(value, f"memory {number}", last) for number, value in enumerate(self._memories())]
        for flight in flights:
            flight.wait()

    def _memories(self) -> Iterator[torch.Tensor]:
        """What the optimizer remembers of each parameter, in the same order on all workers."""
        for _, parameter in self.named:
            state = self.inner.state.get(parameter, {})
            for key in sorted(state):
                memory = state[key]
                # A count of steps is no tensor of the parameter's shape, and the same everywhere.
                if isinstance(memory, torch.Tensor) and memory.shape == parameter.shape and memory.is_floating_point():
                    yield memory

    def _post(
        self,
        value: torch.Tensor,
        name: str,
        priority: int,
        ranks: Sequence[int] | None = None,
        reduce: str = "average",
    ) -> Flight:
        flat, dtype = tensors.to_reduce(value, name, reduce)
        rest = {"reduce": reduce, "priority": priority}
        handle = staging.start(self.worker, ranks, name, "all_reduce", dtype, [flat.numel()], flat, flat, rest)
        return Flight(value, flat, handle)
