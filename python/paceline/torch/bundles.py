"""Gradients that are sent together, as a plan says: one operation instead of many small ones.

Members are copied into one flat buffer when the last of them is there, and out of it one by one as their
parameters are updated. Which gradients belong together is part of the view, so all workers agree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from paceline._native import Handle, PacelineError, Squares
from paceline.torch import staging, tensors
from paceline.torch.gradients import Gradient


class Bundle:
    """Gradients that are sent together."""

    def __init__(self, members: Sequence[Gradient]) -> None:
        self.members = list(members)
        self.name = f"{self.members[0].name} and {len(self.members) - 1} more"
        #: Those that are there and not used yet, by place.
        self._ready: dict[int, Gradient] = {}
        self._priority: int | None = None
        #: The operation, until all members used what it made.
        self._arrives: Handle | None = None
        #: Whether the step has begun: what comes now is of the next one.
        self._closed = False
        self._flat: torch.Tensor | None = None
        self._host: torch.Tensor | None = None
        self._views: dict[int, torch.Tensor] = {}
        for member in self.members:
            member.bundle = self

    def add(self, gradient: Gradient, worker: Any, priority: int, squares: Squares | None) -> None:
        """One more is there; the last one takes all of them with it."""
        if self._closed:
            self._begin()
        if self._arrives is not None and gradient.used:
            raise PacelineError(
                f"`{gradient.name}` got its gradient when those that a plan sends together with it were on their "
                "way: call synchronize() after the last backward pass"
            )
        self._ready[gradient.place] = gradient
        self._priority = priority if self._priority is None else min(self._priority, priority)
        if self._arrives is not None:
            # It went without this one, which some other worker used.
            gradient.arrives = self._arrives
        elif len(self._ready) == len(self.members):
            self._post(worker, squares)

    def holds(self, gradient: Gradient) -> bool:
        """Whether it is there."""
        return gradient.place in self._ready

    def flush(self, worker: Any, squares: Squares | None) -> None:
        """Go without those that are not there: nothing is added for them."""
        if self._ready and self._arrives is None:
            self._post(worker, squares)

    def close(self) -> None:
        """The step begins."""
        self._closed = self._arrives is not None

    def take(self, gradient: Gradient) -> None:
        """Copy the average of one gradient out of the buffer."""
        assert gradient.tensor is not None
        with torch.no_grad():
            gradient.tensor.copy_(self._views[gradient.place])

    def leave(self, gradient: Gradient) -> None:
        """A gradient was used or dropped. The buffer is free after the last one."""
        if self._ready.pop(gradient.place, None) is not None and not self._ready:
            self._begin()

    def _begin(self) -> None:
        """The buffer is needed again: whoever did not take what is in it takes it now."""
        for gradient in self._ready.values():
            gradient.finish()
        self._ready = {}
        self._arrives = self._priority = None
        self._closed = False

    def _post(self, worker: Any, squares: Squares | None) -> None:
        flat = self._buffer()
        with torch.no_grad():
            for member in self.members:
                view = self._views[member.place]
                if member.place in self._ready and member.tensor is not None:
                    view.copy_(member.tensor)
                else:
                    view.zero_()
        memory, dtype = tensors.to_reduce(flat, self.name, "average")
        if memory.is_cuda and self._host is None:
            self._host = staging.pinned(memory)
        rest = {"reduce": "average", "priority": self._priority, "squares": squares, "everyone": True, "holds": "step"}
        counts = [memory.numel()]
        self._arrives = staging.start(
            worker, None, self.name, "all_reduce", dtype, counts, memory, memory, rest, self._host
        )
        for gradient in self._ready.values():
            gradient.arrives = self._arrives

    def _buffer(self) -> torch.Tensor:
        first = self.members[0].parameter
        if self._flat is None or self._flat.device != first.device:
            lengths = [member.parameter.numel() for member in self.members]
            self._flat = torch.empty(sum(lengths), dtype=first.dtype, device=first.device)
            self._host = None
            parts = zip(self.members, self._flat.split(lengths))
            self._views = {member.place: part.view(member.parameter.shape) for member, part in parts}
        return self._flat


def bundled(gradients: Iterable[Gradient], groups: Sequence[Sequence[str]], rank: int) -> list[Bundle]:
    """Bundles of what the plan's groups name, apart by element type and device."""
    known = {gradient.name: gradient for gradient in gradients}
    unknown = [name for group in groups for name in group if name not in known]
    if unknown and rank == 0:
        print(
            f"paceline: the plan names {len(unknown)} tensors that the model does not have, such as "
            f"`{unknown[0]}`; they are passed over",
            file=sys.stderr,
        )
    bundles = []
    for group in groups:
        kinds: dict[Any, list[Gradient]] = {}
        for gradient in (known[name] for name in group if name in known):
            kind = (gradient.parameter.dtype, gradient.parameter.device)
            kinds.setdefault(kind, []).append(gradient)
        bundles.extend(Bundle(members) for members in kinds.values() if len(members) > 1)
    return bundles
