"""Gradients on their way, the updates that wait for them, and the order in which they are needed.

What is posted when is decided by :mod:`paceline.torch.optimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline._native import Handle, PacelineError, Squares, Worker
from paceline.torch import horovod, staging, tensors
from paceline.torch.state import from_first

if TYPE_CHECKING:
    from paceline.torch.bundles import Bundle


class Gradient:
    """One parameter's gradient on its way."""

    __slots__ = (
        "parameter", "name", "place", "passes", "used", "arrives", "ended", "arrived", "tensor", "version", "host",
        "bundle",
    )  # fmt: skip

    def __init__(self, parameter: nn.Parameter, name: str, place: int) -> None:
        self.parameter = parameter
        self.name = name
        self.place = place
        #: Backward passes since the last post.
        self.passes = 0
        #: Whether a backward pass made a gradient since the last step, posted or not.
        self.used = False
        #: The operation in flight.
        self.arrives: Handle | None = None
        #: The one that ended last, until its memory is surely no longer being copied: then letting go is free.
        self.ended: Handle | None = None
        #: Whether the average is there, and not used yet.
        self.arrived = False
        self.tensor: torch.Tensor | None = None
        self.version = 0
        #: Where a gradient on a GPU passes through host memory, step after step.
        self.host: torch.Tensor | None = None
        #: What it is sent together with.
        self.bundle: Bundle | None = None

    def description(self) -> tuple[str, tuple[int, ...], str]:
        return (self.name, tuple(self.parameter.shape), str(self.parameter.dtype))

    def start(self, worker: Any, priority: int, squares: Squares | None = None) -> None:
        """Send it; ``squares`` measures what goes and what comes."""
        gradient = self.parameter.grad
        assert gradient is not None
        if worker.everyone == 1:
            self.arrived = True
            return
        tensors.check(gradient, self.name)
        if not gradient.is_contiguous():
            gradient = self.parameter.grad = gradient.contiguous()
        self.tensor, self.version = gradient, gradient._version
        if self.bundle is not None:
            self.bundle.add(self, worker, priority, squares)
            return
        flat, dtype = tensors.to_reduce(gradient, self.name, "average")
        rest = {"reduce": "average", "priority": priority, "squares": squares, "everyone": True, "holds": "step"}
        if flat.is_cuda and (self.host is None or (self.host.shape, self.host.dtype) != (flat.shape, flat.dtype)):
            self.host = staging.pinned(flat)
        self.arrives = staging.start(
            worker, None, self.name, "all_reduce", dtype, [flat.numel()], flat, flat, rest, self.host
        )

    @property
    def posted(self) -> bool:
        """Whether the average is in flight or there."""
        return self.arrives is not None or self.arrived

    @property
    def held(self) -> bool:
        """Whether it waits for others that it is sent together with."""
        return not self.posted and self.bundle is not None and self.bundle.holds(self)

    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.arrives is None or self.arrives.done()

    def finish(self) -> None:
        """Wait for the average, if it is in flight, and see that nobody wrote meanwhile."""
        arrives, self.arrives = self.arrives, None
        if arrives is None:
            return
        arrives.wait()
        assert self.tensor is not None
        staging.follow(arrives, self.tensor.device)
        self.ended = arrives
        if self.tensor._version != self.version:
            raise PacelineError(
                f"the gradient of `{self.name}` was written while it was in flight; call synchronize() before "
                "changing gradients, or change the loss instead"
            )
        if self.bundle is not None:
            self.bundle.take(self)
        self.arrived = True

    def reset(self) -> None:
        self.used = self.arrived = False
        self.tensor = self.ended = None
        if self.bundle is not None:
            self.bundle.leave(self)


class Step:
    """Updates that are due, with the hyper-parameters as they stood, and learning rates times a factor."""

    def __init__(self, inner: Optimizer, due: Iterable[Gradient], learning_rate: float = 1.0) -> None:
        #: By place.
        self.waiting = {gradient.place: gradient for gradient in due}
        self._all = len(self.waiting)
        self.afterwards: Callable[[nn.Parameter], None] | None = None
        self._groups = [
            {key: _kept(value) for key, value in group.items() if key != "params"}
            for group in inner.param_groups
        ]
        if learning_rate != 1.0:
            for group in self._groups:
                if "lr" in group:
                    group["lr"] = group["lr"] * learning_rate

    def update(self, inner: Optimizer, step: Callable[[], Any], due: Sequence[Gradient]) -> None:
        """Let the optimizer see only these parameters, as it would have seen them in its step."""
        # Optimizers pass over parameters without a gradient, so there is nothing to choose if all others are due.
        chosen = None if len(due) == self._all else {gradient.parameter for gradient in due}
        present = [dict(group) for group in inner.param_groups]
        for group, then in zip(inner.param_groups, self._groups):
            group.update(then)
            if chosen is not None:
                group["params"] = [parameter for parameter in group["params"] if parameter in chosen]
        try:
            step()
            changed = _changed(inner.param_groups, self._groups)
            if changed is not None and len(due) < len(self.waiting):
                raise PacelineError(
                    f"{type(inner).__name__} keeps `{changed}` for all parameters together, so they cannot be "
                    "updated a few at a time; use it with DDP and the paceline backend"
                )
        finally:
            for group, now in zip(inner.param_groups, present):
                group.update(now)
        for gradient in due:
            del self.waiting[gradient.place]
            gradient.reset()
            if self.afterwards is not None:
                self.afterwards(gradient.parameter)


class Order:
    """The order in which the forward pass first uses parameters."""

    def __init__(self) -> None:
        self.agreed = False
        self._seen: dict[int, int] = {}
        self._places: dict[int, int] = {}

    def see(self, places: Iterable[int]) -> None:
        """The forward pass uses these parameters now."""
        if not self.agreed:
            for place in places:
                self._seen.setdefault(place, len(self._seen))

    def unseen(self, places: Iterable[int]) -> list[int]:
        """Those of these parameters that no forward pass was seen to use."""
        return [place for place in places if place not in self._seen]

    def priority(self, gradient: Gradient) -> int:
        """Smaller is more urgent. Until it is known, the order in which the model lists parameters."""
        return self._places.get(gradient.place, gradient.place)

    def known(self) -> dict[int, int] | None:
        """What was agreed, by place."""
        return self._places if self.agreed else None

    def adopt(self, places: dict[int, int] | None) -> None:
        """What others have agreed."""
        if places is not None:
            self._places, self._seen, self.agreed = dict(places), {}, True

    def agree(self, gradients: Sequence[Gradient], worker: Worker) -> None:
        """What the first worker saw holds everywhere."""
        last = len(self._seen)
        places = [self._seen.get(gradient.place, last) for gradient in gradients]
        if worker.size > 1:
            mine = torch.tensor(places, device="cpu")
            name = "order of parameters"
            places = from_first(lambda root: horovod.broadcast_(mine.clone(), root, name=name)).tolist()
        in_order = sorted(range(len(gradients)), key=places.__getitem__)
        self._places = {gradients[index].place: rank for rank, index in enumerate(in_order)}
        self._seen = {}
        self.agreed = True


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _changed(groups: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> str | None:
    for group, then in zip(groups, before):
        for key, value in then.items():
            if not isinstance(value, torch.Tensor) and group[key] != value:
                return key
    return None


def to_none(parameter: nn.Parameter) -> None:
    parameter.grad = None


def to_zero(parameter: nn.Parameter) -> None:
    if parameter.grad is not None:
        parameter.grad.detach_().zero_()
