"""How an optimizer goes from one way to stay together to another, and takes a step in those that train copies.

What each way does, :mod:`paceline.torch.modes` knows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from paceline import tuning, world
from paceline._native import PacelineError, Worker
from paceline.torch import modes, tracing
from paceline.torch.gradients import Gradient, Order, Step


class Switching:
    """A part of :class:`~paceline.torch.DistributedOptimizer`, which has all that is only named here."""

    _gradients: dict[torch.nn.Parameter, Gradient]
    _by_place: dict[int, Gradient]
    _order: Order
    _worker: Worker
    _membership: world.Membership
    _replica: modes.Replica
    _pending: Step | None
    _unseen: list[int] | None

    #: Another way than the synchronous one.
    _mode: modes.Mode | None = None
    #: Whether it is another than the program began with.
    _switched = False

    @property
    def mode(self) -> str:
        """How workers stay together."""
        return modes.SYNCHRONOUS if self._mode is None else self._mode.name

    def switch(self, mode: modes.Mode | str) -> None:
        """Stay together otherwise from the next step on, with equal parameters. All workers call it after the same step.

        >>> from paceline.torch import DistributedOptimizer
        >>> world.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, mode="local")
        >>> optimizer.switch("synchronous")
        >>> optimizer.mode
        'synchronous'
        """
        self._go_on_in(modes.named(mode))
        self._switched = True

    def _go_on_in(self, following: modes.Mode | None) -> None:
        self._check_mode(following)
        self._membership.let_in()
        self.drain()
        if self._mode is not None:
            self._mode.end(self._replica)
            self._replica.trained = self._membership.step
            self._replica.equalize()
        self._begin_mode(following)

    @property
    def copied(self) -> bool:
        """Whether each worker trains a copy of its own."""
        return self._mode is not None

    def means(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Whatever workers have copies of their own of, with its mean over all. All workers call it in the same step."""
        self.drain()
        if self._mode is None:
            return []
        self._mode.gather(self._replica)
        return self._replica.means(self._mode.memories())

    def copies(self) -> list[tuple[str, torch.Tensor]] | None:
        """What workers have copies of their own of, which newcomers get the mean of; ``None`` if they train alike."""
        if self._mode is None:
            return None
        self._mode.arrive(self._replica)
        self._replica.trained = self._membership.step
        return self._replica.kept(self._mode.memories())

    def average_copies(self, copies: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Make them equal, between two steps. Whoever has none gives zeros."""
        self._replica.trained = self._membership.step
        self._replica.hear(copies)

    def adopt_mode(self, mode: modes.Mode | None) -> None:
        """Stay together as the others do already."""
        self._check_mode(mode)
        self._mode = mode
        self._squares = self._measured = None
        if self._worker.elastic:
            self._worker.train_apart(mode is not None and mode.apart)
            self._membership.reach = 1 if mode is None else mode.reach

    def settle(self) -> None:
        """All updates are made, and others have what follows from them. All workers call it in the same step."""
        self.drain()
        if self._mode is not None:
            self._replica.trained = self._membership.step
            self._mode.settle(self._replica)

    @contextlib.contextmanager
    def while_restored(self, state: dict[str, Any]) -> Iterator[None]:
        """Inside, all workers load the same; then they stay together as they did, or as the program says if it was never
        otherwise."""
        programs = self._mode
        self._go_on_in(None)
        yield
        saved, self._switched = state["mode"], state["switched"]
        try:
            chosen = None if saved is None else modes.made(saved["name"], saved["numbers"])
            self._go_on_in(chosen if self._switched else programs)
        except PacelineError as error:
            if self._worker.rank == 0:
                print(f"paceline: workers stay together otherwise than in the checkpoint: {error}", file=sys.stderr, flush=True)
            self._go_on_in(programs)
        if self._mode is not None and saved is not None and (self.mode, self._mode.numbers()) == (saved["name"], tuple(saved["numbers"])):
            self._mode.load_elastic_state(saved["kept"])

    # Inside.

    def _step_by_itself(self, mode: modes.Mode) -> None:
        """A step of this worker's own copy."""
        due = [gradient for gradient in self._gradients.values() if gradient.parameter.grad is not None]
        # In an elastic job there may be more workers than samples.
        if not due and not self._worker.elastic:
            raise PacelineError("step() without a backward pass since the last one: was it called twice?")
        # Which modules use what is known by now, but for those that are never called.
        if self._unseen is None:
            self._unseen = self._order.unseen(self._by_place)
        adaptation = self._exchange() if mode.meets() else None
        attached = self._membership.adaptation
        self._replica.learning_rate = 1.0 if attached is None else attached.talk.learning_rate
        self._pending = Step(self._inner, due, self._replica.learning_rate)
        self._replica.trained = self._membership.step + 1
        mode.step(self._replica, lambda: self._update(due))
        # Servers update instead, in one of the modes.
        self._pending = self._measured = None
        for gradient in due:
            gradient.reset()
        if adaptation is not None:
            adaptation.after_step()
        if mode.in_step:
            self._membership.advance()
        if adaptation is not None:
            self._let_in_before_switching(adaptation)
            adaptation.before_step()
        elif attached is not None:
            attached.pass_step()
        tracing.step_over(crosses_step=False)

    def _switch_for(self, mode: str) -> str | None:
        """For a policy; why not, if it cannot be."""
        try:
            self._check_mode(modes.named(mode))
        except PacelineError as error:
            return str(error)
        self.switch(mode)
        return None

    def _usual_mode(self) -> str:
        """What was asked for where the job was started."""
        return modes.GroupAveraging.name if self._worker.mixes or tuning.averages() else modes.SYNCHRONOUS

    def _check_mode(self, mode: modes.Mode | None) -> None:
        if mode is not None and self._worker.elastic and not mode.in_elastic_jobs:
            raise PacelineError(
                f"mode {mode.name}: it cannot go on without workers that are lost; in an elastic job train synchronously, or choose "
                "averaging, pairs, groups or local"
            )

    def _begin_mode(self, mode: modes.Mode | None) -> None:
        self.adopt_mode(mode)
        if mode is not None:
            mode.begin(self._replica)
