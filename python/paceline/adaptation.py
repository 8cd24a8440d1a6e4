"""Policies at work: called at the edges of steps, shown what all workers agree on, followed by all at one step.

In every step a worker adds a few numbers of the last one, and worker 0 its policies' wishes, to a sum that is there in the next
step (:mod:`paceline.exchange`). So whatever comes of it happens on all workers between the same two steps, and nobody waits. This
module knows nothing of PyTorch.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from paceline import metering, world
from paceline._native import GradientNoise, Pace, PacelineError, Proposal, ShippedPolicy, Squares, Worker
from paceline.exchange import Exchange
from paceline.policy import Context, Observed, Policy, Resize, Wishes

#: Of large tensors, so many parts take turns at being looked at for the norms of gradients.
PARTS = 8
#: The share of the newest step in the throughput that policies see.
NEWEST = 0.2
#: Metrics that may wait until all workers have heard of them.
MOST_METRICS = 4

#: Ways to stay together that policies may ask for, in one order on all workers: they tell each other a number.
MODES = tuple(ShippedPolicy.modes())

#: Settings that policies may propose, and that a checkpoint has of what they chose.
SETTINGS = ("strategy", "partition", "credit")

#: As policies hear of it when it is refused: one worker's wish to go.
LEAVE = "leave"

#: What the sum holds before the numbers that the program reports.
_FIELDS = (
    "seconds", "contributed", "averaged", "measured", "inverse_batch",
    "slowed", "judged", "metrics", "metrics_squared", "batch_size", "learning_rate", "size", "mode",
)  # fmt: skip


class Batched(Protocol):
    """Whoever deals samples."""

    batch_size: Any


class Adaptation:
    """The policies of one worker."""

    def __init__(self, worker: Worker, policies: Sequence[Policy], batch_size: int | None = None) -> None:
        self.worker = worker
        self.policies = list(policies)
        self.step = 0
        self.epoch = 0
        #: Of the program, while nobody deals samples who follows.
        self._batch_size = batch_size
        #: What policies made of it.
        self._chosen: int | None = None
        self.learning_rate = 1.0
        self.observed: Observed | None = None
        self.metrics: metering.Metrics | None = None
        self.throughput: float | None = None
        #: Whether whoever makes steps can scale learning rates.
        self.scales = False
        #: Who deals samples and follows the batch size.
        self.data: Batched | None = None
        #: Who changes the number of workers.
        self.resizer: Callable[[Resize], None] | None = self._ask_for_workers if worker.elastic else None
        #: How many workers said what is being summed.
        self._speakers = worker.size
        #: Who goes from one synchronisation mode to another.
        #: Says why not, where it cannot be.
        self.switcher: Callable[[str], str | None] | None = None
        #: How workers stay together, if whoever makes steps knows several ways.
        self.mode = MODES[0]
        #: Whether the step that workers are in has begun, as policies see it.
        self.begun = False
        self._context = Context(self)
        self._exchange = Exchange(worker)
        self._noise = GradientNoise()
        self._pace = Pace()
        #: What the job began with, and which of it policies asked to be otherwise.
        self._began = {key: worker.settings[key] for key in SETTINGS}
        self._asked: set[str] = set()
        names = ["loss", *(name for policy in self.policies for name in policy.metrics)]
        self._names = list(dict.fromkeys(names))
        self._reported: dict[str, list[Any]] = {}
        self._wishes = Wishes()
        self._told = Wishes()
        self._agreed = Wishes()
        self._proposals: list[Proposal] = []
        self._heard: dict[int, metering.Metrics] = {}
        self._moment = time.perf_counter()
        #: How long the last step took, whether it was slow, and what was reported in it.
        self._last: tuple[float, bool | None, dict[str, list[Any]]] = (0.0, None, {})
        #: The last step that is in it, and that of what is being summed: policies are not asked in every step of all modes.
        self._last_step = self._told_step = -1
        self._over = False
        self._call("before_train")

    # What the program and its policies say.

    @property
    def batch_size(self) -> int | None:
        """Samples of a worker's step."""
        dealt = self.data.batch_size if self.data is not None else None
        return dealt if isinstance(dealt, int) else self._batch_size

    @property
    def own_seconds(self) -> float:
        """Of this worker's last step."""
        return self._last[0]

    def follow_with(self, data: Batched) -> None:
        """Whoever deals samples follows the batch size, if nobody does yet."""
        if self.data is None:
            self.data = data
            if self._chosen is not None:
                data.batch_size = self._chosen

    def report(self, values: dict[str, Any]) -> None:
        """Numbers of this worker's step."""
        unknown = [name for name in values if name not in self._names]
        if unknown:
            raise PacelineError(
                f"no policy reads `{unknown[0]}`: name it in the policy's `metrics`, on all workers, before attaching it"
            )
        for name, value in values.items():
            self._reported.setdefault(name, []).append(_readable(value))

    def wish(self, reason: str = "", **wishes: Any) -> None:
        """A policy wants something."""
        if wishes.get("mode") not in (None, *MODES):
            raise PacelineError(f"there is no mode `{wishes['mode']}`; choose one of {', '.join(MODES)}")
        for name, value in wishes.items():
            setattr(self._wishes, name, value)
        self._wishes.reason = reason or self._wishes.reason

    def propose(self, **settings: Any) -> None:
        """A policy wants other settings. Worker 0 asks for them, and all agree."""
        self._asked |= {key for key, value in settings.items() if value is not None}
        if self.worker.rank == 0:
            self._proposals.append(self.worker.propose(**settings))

    # What a checkpoint keeps.

    def state_dict(self) -> dict[str, Any]:
        """What policies remember, read and chose, and what was said and agreed in the last step and not followed yet."""
        policies = [{"kind": _kind(policy), "state": dict(policy.state_dict())} for policy in self.policies]
        sums = self._exchange.finish()
        if sums is not None:
            self._exchange.resume(sums)
        now = self.worker.settings
        return {
            "step": self.step, "begun": self.begun, "policies": policies,
            "batch_size": self._chosen, "learning_rate": self.learning_rate,
            "settings": {key: now[key] for key in sorted(self._asked) if now[key] != self._began[key]},
            "wishes": asdict(self._wishes), "agreed": asdict(self._agreed),
            "said": None if sums is None else list(sums), "names": self._names, "speakers": self._speakers,
            "told_step": self._told_step, "last_step": self._last_step,
            "noise": list(self._noise.known()), "throughput": self.throughput, "usual": self._pace.usual,
            "observed": self.observed and asdict(self.observed),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, on all workers alike."""
        self._resume(state)
        self._pace.expect(state["usual"] if self.worker.size == state["speakers"] else None)
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
        self.step, self.begun, self._moment = state["step"], state["begun"], time.perf_counter()
        if state["batch_size"] is not None:
            self._use_batch(state["batch_size"])
        self.learning_rate = state["learning_rate"]
        self._wishes, self._agreed = Wishes(**state["wishes"]), Wishes(**state["agreed"])
        self._told_step, self._last_step = state["told_step"], state["last_step"]
        # Other policies read other numbers.
        if state["said"] is not None and state["names"] == self._names:
            self._exchange.finish()
            self._exchange.resume(state["said"])
            self._speakers = state["speakers"]
        self._noise.resume(state["noise"])
        self.throughput, observed = state["throughput"], state["observed"]
        self.observed = None if observed is None else Observed(**observed)
        kept = list(state["policies"])
        for policy in self.policies:
            own = next((one for one in kept if one["kind"] == _kind(policy)), None)
            if own is not None:
                kept.remove(own)
                policy.load_state_dict(own["state"])
            elif self.worker.rank == 0:
                print(f"paceline: policy {_kind(policy)} is new to the job, and begins with it now", file=sys.stderr, flush=True)

    @property
    def switches(self) -> bool:
        """Whether workers stay together otherwise from the step on that is about to begin."""
        return self._agreed.mode is not None

    @property
    def numbers(self) -> int:
        """How many a worker says in each step."""
        return len(_FIELDS) + 2 * len(self._names)

    def leaves(self) -> bool:
        """Whether a policy says that this worker is to leave; each notice once."""
        found = False
        for policy in self.policies:
            reason = policy.leaves()
            if reason is not None:
                print(f"paceline: step {self.step}, policy {_kind(policy)}: {reason}", file=sys.stderr, flush=True)
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
            self._hear(sums)
        self._told, self._wishes = self._wishes, Wishes()
        if self.worker.size != self._speakers:
            # Steps of other workers say nothing of these.
            self._speakers = self.worker.size
            self._pace.expect(None)
        self._exchange.start(self._numbers(squares))
        now, self._told_step = time.perf_counter(), self._last_step
        seconds, self._moment = (now - self._moment) / max(self.step - self._last_step, 1), now
        self._last, self._reported = (seconds, self._pace.slowed(seconds), self._reported), {}
        self._last_step = self.step

    def after_step(self) -> None:
        """Everything of the step is posted."""
        self.begun = False
        self._call("after_step")
        self._look_after_proposals()

    def before_step(self) -> Squares | None:
        """The next step begins. What its gradients are to be measured with, if they are."""
        self.step += 1
        self.begun = True
        self._follow()
        if self.leaves():
            self.leave()
        self._call("before_step")
        if self.worker.size == 1:
            return None
        return Squares(self.step, self.worker.rank, self.worker.size, PARTS)

    def pass_step(self) -> None:
        """A step that workers do not come together in: policies are not asked."""
        self.step += 1

    def begin_epoch(self, number: int) -> None:
        """An epoch begins."""
        self.epoch = number
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
        for policy in self.policies:
            getattr(policy, hook)(self._context)

    def _refuse(self, wish: str, reason: str) -> None:
        for policy in self.policies:
            policy.refused(self._context, wish, reason)

    def _numbers(self, squares: Squares | None) -> list[float]:
        seconds, slowed, reported = self._last
        found = squares.found() if squares is not None else None
        contributed, averaged = found or (0.0, 0.0)
        batch = self.batch_size
        shown = metering.of(self.worker)
        if shown is not None:
            self._heard[shown.step] = shown
            for step in sorted(self._heard)[:-MOST_METRICS]:
                del self._heard[step]
        latest = 0.0 if shown is None else float(shown.step)
        mine = self._told if self.worker.rank == 0 else Wishes()
        numbers = [
            seconds, contributed, averaged, float(found is not None), 1.0 / (batch or 1),
            float(bool(slowed)), float(slowed is not None), latest, latest * latest, float(mine.batch_size or 0), mine.learning_rate or 0.0, float(mine.size or 0),
            float(1 + MODES.index(mine.mode)) if mine.mode else 0.0,
        ]  # fmt: skip
        for name in self._names:
            values = [float(value) for value in reported.get(name, ())]
            numbers += [sum(values), float(len(values))]
            if name == "loss":
                self.worker.tell(sum(values) / len(values) if values else None, batch)
        return numbers

    def _hear(self, sums: Sequence[float]) -> None:
        size = self._speakers
        heard = dict(zip(_FIELDS, sums))
        pairs = zip(self._names, sums[len(_FIELDS) :: 2], sums[len(_FIELDS) + 1 :: 2])
        reported = {name: total / count for name, total, count in pairs if count}
        if heard["measured"] == size > 1:
            self._noise.add(size, heard["contributed"] / size, heard["averaged"], heard["inverse_batch"] / size)
        seconds = heard["seconds"] / size
        slowed = heard["slowed"] / heard["judged"] if heard["judged"] else None
        noise = (self._noise.scale, self._noise.variance, self._noise.squared_norm)
        self.observed = Observed(self._told_step, seconds, reported, *noise, slowed)
        if seconds > 0.0:
            speed = (size * self.batch_size if self.batch_size is not None else 1) / seconds
            before = self.throughput
            self.throughput = speed if before is None else before + NEWEST * (speed - before)
        # All workers have the same last metrics if and only if the mean of the squares is the square of the mean.
        if heard["metrics"] and size * heard["metrics_squared"] == heard["metrics"] ** 2:
            self.metrics = self._heard.get(int(heard["metrics"]) // size, self.metrics)
        self._agreed = Wishes(
            int(heard["batch_size"]) or None, heard["learning_rate"] or None, int(heard["size"]) or None,
            MODES[int(heard["mode"]) - 1] if heard["mode"] else None,
        )  # fmt: skip

    def _follow(self) -> None:
        """Do what was agreed, on all workers between the same two steps."""
        agreed, self._agreed = self._agreed, Wishes()
        self._show(agreed)
        if agreed.batch_size is not None and agreed.batch_size != self.batch_size:
            self._use_batch(agreed.batch_size)
        if agreed.learning_rate is not None and self.scales:
            self.learning_rate = agreed.learning_rate
        elif agreed.learning_rate is not None:
            self._refuse("learning_rate", "only paceline.DistributedOptimizer scales learning rates")
        if agreed.mode is not None:
            unknown = "only paceline.DistributedOptimizer knows other modes"
            refusal = unknown if self.switcher is None else self.switcher(agreed.mode)
            if refusal is not None:
                self._refuse("mode", refusal)
            else:
                self.mode = agreed.mode
        if agreed.size is not None and agreed.size != self.worker.size:
            if self.resizer is None:
                self._refuse("size", "nobody can change the number of workers of this job")
            else:
                self.resizer(Resize(agreed.size, self.step, self._told.reason))

    def _show(self, agreed: Wishes) -> None:
        """Tell people who watch the job what policies made of it."""
        wishes = {"batch size": agreed.batch_size, "learning rate times": agreed.learning_rate, "workers": agreed.size}
        wanted = [f"{name} {wish:g}" for name, wish in wishes.items() if wish is not None]
        wanted += [f"mode {agreed.mode}"] if agreed.mode is not None else []
        if wanted and self.worker.rank == 0:
            reason = f" ({self._told.reason})" if self._told.reason else ""
            self.worker.decided(f"step {self.step}: {', '.join(wanted)}{reason}")

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

    def _use_batch(self, batch_size: int) -> None:
        if self.data is not None:
            self.data.batch_size = batch_size
        # Steps of another length say nothing of these.
        self._batch_size = self._chosen = batch_size
        self.throughput = None
        self._pace.expect(None)

    def _look_after_proposals(self) -> None:
        open_proposals = []
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
    joined.adaptation = Adaptation(joined.worker, policies, batch_size)
    joined.adaptation.data = getattr(loader, "elastic", loader)
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

