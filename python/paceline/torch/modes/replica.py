"""A worker's own copy of the model, and what a mode may do with it. How bytes reach other workers is not known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

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
    in_elastic_jobs = True
    #: Whether what a worker trained on counts when something holds its copy, and not by every sum that it takes part in.
    apart = True
    #: Of how many steps the samples may be in nothing but one worker's copy.
    reach = 1

    def numbers(self) -> tuple[Any, ...]:
        """What it was made with."""
        return ()

    def __reduce__(self) -> tuple[Any, ...]:
        # To whoever comes to the job: how it is made, and by `elastic_state` what it keeps.
        return (type(self), self.numbers())

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

    def arrive(self, replica: Replica) -> None:
        """Nothing is in flight afterwards, and what came is in the copy."""
        self.land(replica)

    def settle(self, replica: Replica) -> None:
        """Everything that was trained on is in something that others have, too. All workers call it in the same step."""
        self.land(replica)

    def end(self, replica: Replica) -> None:
        """No further step."""
        self.arrive(replica)

    def gather(self, replica: Replica) -> None:
        """Copies are what a mean of the model can be taken of. All workers call it in the same step, and go on as before."""
        self.land(replica)

    def memories(self) -> list[torch.Tensor]:
        """What it keeps for each worker, as long on all; where copies are made equal, all get the mean."""
        return []

    def elastic_state(self) -> dict[str, Any]:
        """What it keeps, for a worker that comes when copies were made equal."""
        return {}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        """Go on as the others do."""


class Flight:
    """A tensor on its way to an average."""

    def __init__(self, tensor: torch.Tensor, flat: torch.Tensor, handle: Handle) -> None:
        self._tensor, self._flat = tensor, flat
        self._handle: Handle | None = handle

    def wait(self) -> torch.Tensor:
        """The average, in the tensor's own memory."""
        if self._handle is None:
            return self._tensor
        self._handle.wait()
        staging.follow(self._handle, self._tensor.device)
        if self._flat.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._flat.view_as(self._tensor))
        self._handle = None
        return self._tensor


class Replica:
    """Parameters by name, the model that they are of, the optimizer that updates them, and the worker that holds them."""

    def __init__(
        self, worker: Worker, inner: Optimizer, named: Sequence[tuple[str, torch.nn.Parameter]], model: torch.nn.Module
    ) -> None:
        self.worker = worker
        self.inner = inner
        self.named = list(named)
        self._model = model
        #: What policies multiply the program's learning rate by.
        self.learning_rate = 1.0
        #: Copies have been trained on the samples of all steps below this one.
        self.trained = 0

    def values(self) -> list[torch.Tensor]:
        """The parameters' own memory."""
        return [parameter.data for _, parameter in self.named]

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """What forward passes keep, such as the statistics of batch normalisation; counts are no matter of means."""
        return [(name, buffer.detach()) for name, buffer in self._model.named_buffers() if buffer.is_floating_point()]

    def average(
        self, values: Sequence[torch.Tensor], what: str, ranks: Sequence[int] | None = None, reduce: str = "average"
    ) -> list[Flight]:
        """Average these in place with those of other workers (all, or ``ranks``), the first parameters first.

        To ``mix`` is to average with those whom the job's strategy says.
        """
        alone = ranks is not None and len(ranks) < 2
        # In an elastic job all worker count averages alike, and those of some are recovered as what is mixed is.
        if self.worker.size == 1 or (alone and not self.worker.elastic):
            return []
        if ranks is not None and self.worker.elastic:
            reduce = "mix"
        names = (f"{what} of {name}" for name, _ in self.named)
        return [
            self._post(value, name, place, ranks, reduce) for place, (name, value) in enumerate(zip(names, values))
        ]

    def equalize(self, memories: Sequence[torch.Tensor] = ()) -> None:
        """Give all workers the mean of their copies, with buffers, of what their optimizers remember, and of ``memories``."""
        self._average_all(self.kept(memories))

    def kept(self, memories: Sequence[torch.Tensor] = ()) -> list[tuple[str, torch.Tensor]]:
        """What :meth:`equalize` makes equal, in the same order on all workers."""
        copies = [(f"copy of {name}", parameter.data) for name, parameter in self.named]
        more = [*self._memories(), *memories]
        buffers = [(f"buffer {name}", buffer) for name, buffer in self.buffers()]
        return copies + [(f"memory {number}", memory) for number, memory in enumerate(more)] + buffers

    def means(self, memories: Sequence[torch.Tensor] = ()) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What :meth:`equalize` makes equal, each with its mean over all workers. Nothing is changed, and nobody's copy is held
        by anything that anybody trains on."""
        kept = self.kept(memories)
        means = [(f"mean of {name}", value.clone()) for name, value in kept]
        self._average_all(means, trained_on=False)
        return [(value, mean) for (_, value), (_, mean) in zip(kept, means)]

    def hear(self, kept: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Take part in :meth:`equalize` of others, with zeros that are as long."""
        self._average_all(kept)

    def average_buffers(self) -> None:
        """All workers take the mean of what their forward passes kept."""
        self._average_all([(f"buffer {name}", buffer) for name, buffer in self.buffers()])

    def _average_all(self, kept: Sequence[tuple[str, torch.Tensor]], trained_on: bool = True) -> None:
        if self.worker.size == 1:
            return
        flights = [
            self._post(value, name, min(place, len(self.named)), trained_on=trained_on) for place, (name, value) in enumerate(kept)
        ]
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
        trained_on: bool = True,
    ) -> Flight:
        flat, dtype = tensors.to_reduce(value, name, reduce)
        holds = self.trained if self.worker.elastic and trained_on else None
        rest = {"reduce": reduce, "priority": priority, "everyone": True, "holds": holds}
        handle = staging.start(self.worker, ranks, name, "all_reduce", dtype, [flat.numel()], flat, flat, rest)
        return Flight(value, flat, handle)
