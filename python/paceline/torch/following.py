"""What a worker that comes to the job needs of an optimizer to make the others' updates of the step that it listens to.

When newcomers listen, and to whom, :mod:`paceline.torch.newcomers` knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from paceline import world
from paceline.torch import modes
from paceline.torch.gradients import Gradient, Order, Step
from paceline.torch.state import leaves


class Followed:
    """A part of :class:`~paceline.torch.DistributedOptimizer`, which has all that is only named here."""

    _inner: Optimizer
    _gradients: dict[torch.nn.Parameter, Gradient]
    _by_place: dict[int, Gradient]
    _order: Order
    _membership: world.Membership
    _mode: modes.Mode | None
    _pending: Step | None
    _unseen: list[int] | None
    _scheduled: bool
    _whole_steps: bool
    _synchronized: bool
    _switched: bool

    #: Whether whoever looks at the model's state sees all updates made.
    _drains_for_state = True

    @property
    def can_be_followed(self) -> bool:
        """Whether the updates of a step follow from averages and hyper-parameters, as far as the last step shows."""
        known = self._order.agreed or not self._scheduled
        return self._mode is None and known and not (self._whole_steps or self._hooked or self._synchronized)

    def followed_state(self) -> dict[str, Any]:
        """What updates read and write, and nothing else does. Some may be due."""
        described = [gradient.description() for gradient in self._gradients.values()]
        parameters = [parameter.detach() for parameter in self._gradients]
        return {"described": described, "parameters": parameters, "inner": self._inner.state_dict()}

    def followed_parts(self, state: dict[str, Any]) -> list[tuple[list[Gradient], list[torch.Tensor]]]:
        """What of a :meth:`followed_state` belongs to which gradients, and can be had without the rest."""
        groups = zip(self._inner.param_groups, state["inner"]["param_groups"])
        numbers = {parameter: number for own, group in groups for parameter, number in zip(own["params"], group["params"])}
        kept = dict(state["inner"]["state"])
        parts = []
        for gradient, parameter in zip(self._gradients.values(), state["parameters"]):
            memories = kept.pop(numbers.get(gradient.parameter), None)
            parts.append(([gradient], [parameter, *leaves(memories, torch.Tensor)]))
        if kept:
            # What is kept for all of them together goes with all of them.
            return [(list(self._gradients.values()), list(leaves(state, torch.Tensor)))]
        return parts

    def load_followed_state(self, state: dict[str, Any]) -> None:
        """Into the optimizer inside; parameters are where they belong."""
        self._inner.load_state_dict(state["inner"])

    def heard_state(self) -> dict[str, Any]:
        """What whoever followed a step has not got by that."""
        return {"order": self._order.known(), "unseen": self._unseen, "switched": self._switched}

    def load_heard_state(self, state: dict[str, Any]) -> None:
        """Go on as the others do."""
        self._order.adopt(state["order"])
        self._unseen, self._switched = state["unseen"], state["switched"]

    @contextlib.contextmanager
    def undrained(self) -> Iterator[None]:
        """Inside, looking at the model's state makes no updates that are due."""
        self._drains_for_state = False
        try:
            yield
        finally:
            self._drains_for_state = True

    def prepare_to_hear(self) -> None:
        """Have memory for gradients before others wait for it."""
        for parameter in self._gradients:
            parameter.grad = torch.zeros_like(parameter)

    def hear_gradients(self) -> None:
        """Take part in averaging the others' gradients, without one of this worker's own."""
        self._agree_on_use()
        for gradient in self._gradients.values():
            if not gradient.posted:
                gradient.parameter.grad = None

    def hear_step(self, said: dict[str, Any], known: Sequence[Gradient]) -> None:
        """Make the others' updates of gradients that were heard, where what they change is known."""
        if said["updates"]:
            self.use_hyper_parameters(said["groups"])
            for place in said["kept"]:
                parameter = self._by_place[place].parameter
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            due = [gradient for gradient in known if gradient.parameter.grad is not None]
            self._pending = Step(self._inner, due, said["learning_rate"])
            # As others do after the step: gradients are gone when they are used.
            self.zero_grad()
        else:
            self.forget_heard()

    def forget_heard(self) -> None:
        """Gradients that were heard are of no use any more."""
        self._wait_for_all()
        self.zero_grad()

    def _say(self, *, step: bool, gradients: bool, updates: bool) -> None:
        """Tell those who listen what is done now: gradients are averaged, and a step made, with updates that follow from them."""
        joining, adaptation = self._membership.joining, self._membership.adaptation
        if joining is not None:
            kept = [place for place, gradient in self._by_place.items() if gradient.parameter.grad is not None]
            joining.say(
                {
                    "step": step, "gradients": gradients, "updates": updates, "groups": self.hyper_parameters(), "kept": kept,
                    "learning_rate": 1.0 if adaptation is None else adaptation.talk.learning_rate,
                    "exchanges": None if adaptation is None else adaptation.talk.numbers,
                }
            )  # fmt: skip

    def hyper_parameters(self) -> list[dict[str, Any]]:
        """Of each group of parameters."""
        return [{key: value for key, value in group.items() if key != "params"} for group in self._inner.param_groups]

    def use_hyper_parameters(self, groups: Sequence[dict[str, Any]]) -> None:
        """Those of another worker."""
        for group, theirs in zip(self._inner.param_groups, groups):
            group.update(theirs)
