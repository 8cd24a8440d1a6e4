"""Adaptation apart from the training program: policies, what they read and what they propose.

Every worker runs the same policies at the same steps. What they read is agreed: the same on all workers at that step. What they
propose is agreed too: the wishes of worker 0 count, and all workers follow them between the same two steps. When that is, and how
workers come to agree, is :mod:`paceline.adaptation`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.adaptation import Adaptation
    from paceline.metering import Metrics


class Policy:
    """A control loop beside training: overwrite what you need. Attach it with :func:`paceline.attach`.

    >>> class GrowWithNoise(Policy):
    ...     def after_step(self, ctx):
    ...         noise = ctx.grad_noise_scale()
    ...         if noise is not None and noise > 2 * ctx.global_batch_size:
    ...             ctx.set_batch_size(2 * ctx.batch_size, reason="the gradient is noisy")
    """

    #: Names of numbers of the program's own that the policy reads: :func:`paceline.report` and :meth:`Context.metric`.
    metrics: tuple[str, ...] = ()

    def before_train(self, ctx: Context) -> None:
        """Before the first step. A newcomer of an elastic job is alone yet, and what it proposes nobody hears."""

    def after_train(self, ctx: Context) -> None:
        """When the worker leaves, or the policy is detached. Nothing can be proposed any more."""

    def before_epoch(self, ctx: Context) -> None:
        """``ctx.epoch`` begins."""

    def after_epoch(self, ctx: Context) -> None:
        """``ctx.epoch`` is over."""

    def before_step(self, ctx: Context) -> None:
        """``ctx.step`` begins."""

    def after_step(self, ctx: Context) -> None:
        """``ctx.step`` is over, but for updates that its successor waits for."""

    def leaves(self) -> str | None:
        """Why this worker, of an elastic job, is to leave, if it is: asked before each step, and while a spare waits."""
        return None

    def refused(self, ctx: Context, wish: str, reason: str) -> None:
        """What was proposed will not be in force."""

    def state_dict(self) -> Mapping[str, object]:
        """What a checkpoint keeps of it."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from there."""


@dataclass(frozen=True)
class Observed:
    """What all workers know of a step that is over."""

    #: Which one.
    step: int
    #: How long it took, on average over workers.
    seconds: float
    #: The mean of what workers reported.
    reported: Mapping[str, float] = field(default_factory=dict)
    #: In samples; ``None`` while it is not known.
    noise_scale: float | None = None
    #: Of one sample's gradient, over all parameters.
    variance: float | None = None
    #: Of the true gradient.
    squared_norm: float | None = None
    #: The share of the workers whose steps were slower than usual.
    interference: float | None = None


@dataclass(frozen=True)
class Resize:
    """Another number of workers, asked for by a policy and heard by all workers at the same step."""

    size: int
    step: int
    #: Of the policy's own; empty on workers that did not propose it.
    reason: str


class Context:
    """What a policy is given: what it reads, and what it proposes."""

    def __init__(self, adaptation: Adaptation) -> None:
        self._adaptation = adaptation

    # What it reads.

    @property
    def rank(self) -> int:
        """This worker."""
        return self._adaptation.worker.rank

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self._adaptation.worker.size

    @property
    def step(self) -> int:
        """The step that the hook is about, counted from 0 since policies were attached, or on from a checkpoint.

        In the mode ``asynchronous`` hooks are called in every ``staleness`` + 1st step only, and ``step`` counts all of them.
        """
        return self._adaptation.talk.step

    @property
    def epoch(self) -> int:
        """The epoch that the hook is about."""
        return self._adaptation.talk.epoch

    @property
    def batch_size(self) -> int | None:
        """Samples of this worker's step, in however many batches; ``None`` if nobody said so."""
        return self._adaptation.batch_size

    @property
    def global_batch_size(self) -> int | None:
        """Samples of a step of all workers, if all have as many."""
        return None if self.batch_size is None else self.batch_size * self.size

    @property
    def learning_rate(self) -> float:
        """The factor on the program's own learning rate that is in force."""
        return self._adaptation.talk.learning_rate

    @property
    def observed(self) -> Observed | None:
        """The last step of which all workers know; ``None`` in the first two."""
        return self._adaptation.observed

    @property
    def seconds(self) -> float | None:
        """How long that step took."""
        return None if self.observed is None else self.observed.seconds

    @property
    def throughput(self) -> float | None:
        """Samples a second of all workers, smoothed over some steps; steps a second, if nobody said how large a batch is."""
        return self._adaptation.talk.throughput

    @property
    def metrics(self) -> Metrics | None:
        """Layer times and link rates, as :func:`paceline.metrics` has them, of the last step that all workers heard of."""
        return self._adaptation.metrics

    @property
    def interference(self) -> float | None:
        """The share of the workers, between 0 and 1, for whom the median of the last ten steps was slower than 0.8 of the usual
        speed: that of the first ten with as many workers and this batch size, or of faster ones since. ``None`` before."""
        return None if self.observed is None else self.observed.interference

    @property
    def strategy(self) -> str:
        """In force now, as are ``partition`` and ``credit`` in bytes."""
        return self._adaptation.worker.settings["strategy"]

    @property
    def mode(self) -> str:
        """How workers stay together."""
        return self._adaptation.talk.mode

    @property
    def partition(self) -> int:
        return self._adaptation.worker.settings["partition"]

    @property
    def credit(self) -> int:
        return self._adaptation.worker.settings["credit"]

    @property
    def loss(self) -> float | None:
        """The mean over workers of what ``paceline.report(loss=...)`` said."""
        return self.metric("loss")

    def metric(self, name: str) -> float | None:
        """The mean over workers of a number that the program reported; ``None`` if nobody did in that step."""
        return None if self.observed is None else self.observed.reported.get(name)

    def grad_noise_scale(self) -> float | None:
        """In samples: about the batch size beyond which a larger one gains little. ``None`` while it is not known."""
        return None if self.observed is None else self.observed.noise_scale

    def grad_variance(self) -> float | None:
        """Of one sample's gradient, over all parameters."""
        return None if self.observed is None else self.observed.variance

    def grad_squared_norm(self) -> float | None:
        """Of the true gradient, without the noise."""
        return None if self.observed is None else self.observed.squared_norm

    # What this worker knows alone.

    @property
    def own_seconds(self) -> float:
        """How long this worker's last step took: to report something about it, not to decide by it. 0 if there was none."""
        return self._adaptation.own_seconds

    def report(self, name: str, value: float) -> None:
        """A number of this worker's; all see the mean, two steps later, by :meth:`metric`. The policy names it in ``metrics``."""
        self._adaptation.report({name: value})

    # What it proposes.

    def set_batch_size(self, batch_size: int, reason: str = "") -> None:
        """So many samples for each worker's step, in a few steps from now."""
        self._adaptation.wish(batch_size=_at_least(1, batch_size, "a batch size"), reason=reason)

    def scale_learning_rate(self, factor: float, reason: str = "") -> None:
        """The program's learning rate times this, in a few steps from now; schedulers do not see it."""
        if not factor > 0.0:
            raise ValueError(f"a learning rate is multiplied by a number above 0, not by {factor}")
        self._adaptation.wish(learning_rate=float(factor), reason=reason)

    def resize(self, size: int, reason: str = "") -> None:
        """So many workers. Who can give them is asked at a step that all workers agree on."""
        self._adaptation.wish(size=_at_least(1, size, "a number of workers"), reason=reason)

    def leave(self) -> None:
        """This worker leaves the job, and the others go on. The one thing that a worker may want for itself."""
        self._adaptation.leave()

    def set_mode(self, mode: str, reason: str = "") -> None:
        """Another way to stay together, as :meth:`paceline.torch.DistributedOptimizer.switch` has it."""
        self._adaptation.wish(mode=mode, reason=reason)

    def propose(
        self, *, strategy: str | None = None, partition: int | str | None = None, credit: int | str | None = None
    ) -> None:
        """Other settings, as :func:`paceline.propose` does."""
        self._adaptation.propose(strategy=strategy, partition=partition, credit=credit)


def _at_least(least: int, number: int, what: str) -> int:
    if int(number) < least:
        raise ValueError(f"{what} is {least} or more, not {number}")
    return int(number)
