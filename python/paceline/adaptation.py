"""Policies at work: called at the edges of steps, shown what all workers agree on, followed by all at one step.

What workers tell each other in every step, what all know of it and when it is followed, is native code's (``Talk``), which programs of
Rust have too. Here policies of Python are called, sums cross steps (:mod:`paceline.exchange`), and what was agreed is passed on to
whoever can do it. This module knows nothing of PyTorch.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from paceline import metering, world
from paceline._native import PacelineError, Proposal, ShippedPolicy, Squares, Talk, Worker
from paceline.exchange import Exchange
from paceline.policy import Context, Observed, Policy, Resize

#: Of large tensors, so many parts take turns at being looked at for the norms of gradients.
PARTS = 8

#: Ways to stay together that policies may ask for.
MODES = tuple(ShippedPolicy.modes())

#: Settings that policies may propose, and that a checkpoint has of what they chose.
SETTINGS = ("strategy", "partition", "credit")

#: As policies hear of it when it is refused: one worker's wish to go.
LEAVE = "leave"


class Batched(Protocol):
    """Whoever deals samples."""

    #: Of each worker, or of all alike, in a batch.
    batch_size: Any

    def take_count(self) -> int:
        """Batches that came into use since this was asked last."""


class Adaptation:
    """The policies of one worker."""

    def __init__(
        self, worker: Worker, policies: Sequence[Policy], batch_size: int | None = None, data: Batched | None = None
    ) -> None:
        self.worker = worker
        self.policies = list(policies)
        self.talk = Talk([name for policy in self.policies for name in policy.metrics], batch_size)
        self.talk.mode = MODES[0]
        #: Whether whoever makes steps can scale learning rates.
        self.scales = False
        #: Who deals samples and follows the batch size.
        self.data = data
        #: Who changes the number of workers.
        self.resizer: Callable[[Resize], None] | None = self._ask_for_workers if worker.elastic else None
        #: Who goes from one synchronisation mode to another.
        #: Says why not, where it cannot be.
        self.switcher: Callable[[str], str | None] | None = None
        #: Whether the step that workers are in has begun, as policies see it.
        self.begun = False
        #: How long the last step took.
        self.own_seconds = 0.0
        #: Batches that make one step, as far as the last one shows: several, where gradients are accumulated.
        self._passes = 1
        self._context = Context(self)
        self._exchange = Exchange(worker)
        #: What the job began with, and which of it policies asked to be otherwise.
        self._began = {key: worker.settings[key] for key in SETTINGS}
        self._asked: set[str] = set()
        #: Of this step, and of the last one, which is said next.
        self._reported: dict[str, list[Any]] = {}
        self._reported_before: dict[str, list[Any]] = {}
        self._proposals: list[Proposal] = []
        self._moment = time.perf_counter()
        self._over = False
        self._call("before_train")
        if not worker.outside:
            self.begun = True
            self._call("before_step")

    # What the program and its policies say.

    @property
    def batch_size(self) -> int | None:
        """Samples of a worker's step."""
        if self.data is None:
            return self.talk.batch
        dealt = self.data.batch_size
        return self._passes * (dealt if isinstance(dealt, int) else dealt[self.worker.rank])

    @property
    def observed(self) -> Observed | None:
        """The last step of which all workers know."""
        known = self.talk.observed
        if known is None:
            return None
        step, seconds, reported, interference = known
        return Observed(step, seconds, reported, *self.talk.noise, interference)

    @property
    def metrics(self) -> metering.Metrics | None:
        """The last that all workers heard of."""
        return metering.of(self.talk)

    def follow_with(self, data: Batched) -> None:
        """Whoever deals samples follows the batch size, if nobody does yet."""
        if self.data is None:
            self.data = data
            self._deal(self.talk.followed_batch)

    def report(self, values: dict[str, Any]) -> None:
        """Numbers of this worker's step."""
        unknown = [name for name in values if not self.talk.knows(name)]
        if unknown:
            raise PacelineError(
                f"no policy reads `{unknown[0]}`: name it in the policy's `metrics`, on all workers, before attaching it"
            )
        for name, value in values.items():
            self._reported.setdefault(name, []).append(_readable(value))

    def wish(self, **wishes: Any) -> None:
        """A policy wants something, for a ``reason``."""
        if wishes.get("mode") not in (None, *MODES):
            raise PacelineError(f"there is no mode `{wishes['mode']}`; choose one of {', '.join(MODES)}")
        self.talk.want(**wishes)

    def propose(self, **settings: Any) -> None:
        """A policy wants other settings. Worker 0 asks for them, and all agree."""
        self._asked |= {key for key, value in settings.items() if value is not None}
        self.talk.ask(**settings)
        self._propose_what_is_due()

    # What a checkpoint keeps.

    def state_dict(self) -> dict[str, Any]:
        """What policies remember, read and chose, and what was said and agreed in the last step and not followed yet."""
        policies = [{"kind": _kind(policy), "state": dict(policy.state_dict())} for policy in self.policies]
        said = self._exchange.finish()
        if said is not None:
            self._exchange.resume(said)
        now = self.worker.settings
        return {
            "talk": self.talk.remember(said), "begun": self.begun, "policies": policies, "passes": self._passes,
            "settings": {key: now[key] for key in sorted(self._asked) if now[key] != self._began[key]},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, on all workers alike."""
        self._resume(state)
        if state["settings"]:
            try:
                self.propose(**state["settings"])
            except PacelineError as error:
                self._refuse("settings", str(error))

    # What a worker needs that comes to the job.

    def elastic_state(self) -> dict[str, Any]:
        """The same, and what settings the job began with."""
        return {**self.state_dict(), "began": self._began, "asked": sorted(self._asked)}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        """Go on as the others do, who are about to begin the step."""
        self._resume(state)
        self._began, self._asked = state["began"], set(state["asked"])

    def _resume(self, state: dict[str, Any]) -> None:
        self.begun, self._moment, self._passes = state["begun"], time.perf_counter(), state["passes"]
        said = self.talk.resume(state["talk"], self.worker)
        self._deal(self.talk.followed_batch)
        if said is not None:
            self._exchange.finish()
            self._exchange.resume(said)
        kept = list(state["policies"])
        for policy in self.policies:
            own = next((one for one in kept if one["kind"] == _kind(policy)), None)
            if own is not None:
                kept.remove(own)
                policy.load_state_dict(own["state"])
            elif self.worker.rank == 0:
                print(f"paceline: policy {_kind(policy)} is new to the job, and begins with it now", file=sys.stderr, flush=True)

    def leaves(self) -> bool:
        """Whether a policy says that this worker is to leave; each notice once."""
        found = False
        for policy in self.policies:
            reason = policy.leaves()
            if reason is not None:
                print(f"paceline: step {self.talk.step}, policy {_kind(policy)}: {reason}", file=sys.stderr, flush=True)
                found = True
        return found

    # The edges of steps, as whoever makes them says.

    def exchange(self, squares: Squares | None) -> None:
        """Hear what all workers said in the last step, and say what is new: once a step, before it ends.

        ``squares`` are those of the step before, whose gradients have all arrived. The rest is of that step too: what lies on
        a device was computed by now, so that reading it waits for nothing.
        """
        sums = self._exchange.finish()
        if sums is not None:
            self.talk.hear(sums)
        if self.data is not None:
            self._passes = self.data.take_count() or self._passes
        self.talk.batch = self.batch_size
        self._say_reported()
        if squares is not None:
            self.talk.report_norms(squares)
        self._exchange.start(self.talk.say(self.worker))
        now = time.perf_counter()
        self.own_seconds = self.talk.time(now - self._moment, self.worker)
        self._moment = now

    def after_step(self) -> None:
        """Everything of the step is posted."""
        self.begun = False
        self._call("after_step")
        self._look_after_proposals()

    def before_step(self) -> Squares | None:
        """The next step begins. What its gradients are to be measured with, if they are."""
        self.begun = True
        self._follow()
        if self.leaves():
            self.leave()
        self._call("before_step")
        if self.worker.size == 1:
            return None
        return Squares(self.talk.step, self.worker.rank, self.worker.size, PARTS)

    def pass_step(self) -> None:
        """A step that workers do not come together in: policies are not asked."""
        self.talk.pass_step()

    def begin_epoch(self, number: int) -> None:
        """An epoch begins."""
        self.talk.epoch = number
        self._call("before_epoch")

    def end_epoch(self) -> None:
        """It is over."""
        self._call("after_epoch")

    def end(self) -> None:
        """Training is over."""
        if not self._over:
            self._over = True
            self._call("after_train")

    # Inside.

    def _call(self, hook: str) -> None:
        self.talk.batch = self.batch_size
        for policy in self.policies:
            getattr(policy, hook)(self._context)

    def _refuse(self, wish: str, reason: str) -> None:
        for policy in self.policies:
            policy.refused(self._context, wish, reason)

    def _say_reported(self) -> None:
        """What the program and its policies reported in the last step: it can be read now without waiting for a device."""
        reported = {name: [float(value) for value in values] for name, values in self._reported_before.items()}
        self._reported, self._reported_before = {}, self._reported
        for name, values in reported.items():
            for value in values:
                self.talk.report(name, value)
        losses = reported.get("loss")
        self.worker.tell(sum(losses) / len(losses) if losses else None, self.batch_size)

    def _follow(self) -> None:
        """Do what was agreed, on all workers between the same two steps."""
        batch_size, learning_rate, size, mode, reason = self.talk.begin_step()
        self._show({"batch size": batch_size, "learning rate times": learning_rate, "workers": size, "mode": mode}, reason)
        if batch_size is not None and batch_size != self.batch_size:
            self.talk.follow_batch(batch_size)
            self._deal(batch_size)
        if learning_rate is not None and self.scales:
            self.talk.learning_rate = learning_rate
        elif learning_rate is not None:
            self._refuse("learning_rate", "only paceline.DistributedOptimizer scales learning rates")
        if mode is not None:
            unknown = "only paceline.DistributedOptimizer knows other modes"
            refusal = unknown if self.switcher is None else self.switcher(mode)
            if refusal is not None:
                self._refuse("mode", refusal)
            else:
                self.talk.mode = mode
        if size is not None and size != self.worker.size:
            if self.resizer is None:
                self._refuse("size", "nobody can change the number of workers of this job")
            else:
                self.resizer(Resize(size, self.talk.step, reason))

    def _deal(self, batch_size: int | None) -> None:
        """So many samples make a step of a worker."""
        if self.data is not None and batch_size is not None:
            self.data.batch_size = max(1, round(batch_size / self._passes))

    def _show(self, agreed: dict[str, float | str | None], reason: str) -> None:
        """Tell people who watch the job what policies made of it."""
        wanted = [f"{name} {wish if isinstance(wish, str) else f'{wish:g}'}" for name, wish in agreed.items() if wish is not None]
        if wanted and self.worker.rank == 0:
            self.worker.decided(f"step {self.talk.step}: {', '.join(wanted)}{f' ({reason})' if reason else ''}")

    def leave(self) -> None:
        """This worker, if the job can do without it."""
        if self.worker.elastic:
            self.worker.leave()
        else:
            self._refuse(LEAVE, "workers leave elastic jobs only; give --elastic")

    def _ask_for_workers(self, resize: Resize) -> None:
        """All hear of it at one step; one asks whoever runs the job."""
        if self.worker.rank == 0:
            self.worker.resize(resize.size)

    def _propose_what_is_due(self) -> None:
        """What policies asked for, where that is this worker's to propose. Nobody hears a newcomer yet."""
        if not self.worker.outside and (due := self.talk.due(self.worker)) is not None:
            self._proposals.append(self.worker.propose(**dict(zip(SETTINGS, due))))

    def _look_after_proposals(self) -> None:
        open_proposals = []
        try:
            # Of a worker 0 that is gone, perhaps.
            self._propose_what_is_due()
        except PacelineError as error:
            self._refuse("settings", str(error))
        for proposal in self._proposals:
            try:
                if proposal.wait(0.0) is None:
                    open_proposals.append(proposal)
            except PacelineError as error:
                self._refuse("settings", str(error))
        self._proposals = open_proposals
        if (refusal := self.worker.refusal()) is not None:
            self._refuse("size", refusal)


def _kind(policy: Policy) -> str:
    """By which a checkpoint finds it again."""
    return str(getattr(policy, "kind", type(policy).__qualname__))


def _readable(value: Any) -> Any:
    """A number that can be read in the next step without waiting for a device."""
    if getattr(value, "is_cuda", False):
        from paceline.torch.staging import Later

        return Later(value)
    return float(value.detach() if hasattr(value, "detach") else value)


def attach(*policies: Policy, loader: Any = None, batch_size: int | None = None) -> Context:
    """Let policies adapt this job from now on; all workers attach the same ones between the same two steps.

    ``loader`` is the :class:`~paceline.torch.ElasticDataLoader` that follows batch sizes (else the first that is iterated does);
    a program that deals its samples itself says how many with ``batch_size`` and reads ``batch_size`` of what this returns.
    Without policies, the job is only watched.

    >>> world.init()
    >>> watched = attach(batch_size=8)
    >>> for _ in range(3):
    ...     world.begin_step()
    >>> watched.observed.step
    0
    >>> detach()
    """
    joined = world.membership()
    if joined.adaptation is not None:
        raise PacelineError("policies are attached already: attach all of them at once, or detach() first")
    joined.adaptation = Adaptation(joined.worker, policies, batch_size, getattr(loader, "elastic", loader))
    return joined.adaptation._context


def detach() -> None:
    """End all policies, on all workers between the same two steps. The learning rate is the program's again."""
    joined = world.membership()
    if joined.adaptation is not None:
        joined.adaptation.end()
        joined.adaptation = None


def report(**values: Any) -> None:
    """Numbers of this worker's step, for policies, which see the mean over workers, and for the page of the job.

    ``loss`` is always known; others are those that policies name, and do nothing where none is attached. Tensors are read a step
    later, so that nobody waits for a device.
    """
    for joined in world.memberships() or [world.membership()]:
        if joined.adaptation is not None:
            joined.adaptation.report(values)
        elif "loss" in values:
            before, joined.loss = joined.loss, _readable(values["loss"])
            if before is not None:
                joined.worker.tell(float(before))


@contextlib.contextmanager
def epoch(number: int) -> Iterator[None]:
    """Tell policies that an epoch begins, and at the end of the block that it is over.

    :class:`~paceline.torch.ElasticDataLoader` does so by itself.
    """
    adaptation = world.membership().adaptation
    if adaptation is not None:
        adaptation.begin_epoch(number)
    yield
    if adaptation is not None:
        adaptation.end_epoch()

