"""The state of a job, for workers that come to it while it runs.

What is shared is whatever has ``state_dict`` and ``load_state_dict``, in place and from all workers that have it at once.

A newcomer enters between two steps. Where it can, the others go on at once: trained parameters and what the optimizer keeps for them
do not change before the step's gradients are applied, so they travel while that step is computed, and the newcomer listens to its
gradients and makes the same updates. What a step has no time for travels in the next ones: the newcomer updates what it has, and
the rest comes as it is by then. In the end it gets the little that is left, such as the position in the data, and
trains from there on; until then the program does not see it. Elsewhere all stand still until it has everything: where the program
posts operations of its own, looks at gradients before the step, or trains otherwise than synchronously with one
:class:`~paceline.torch.DistributedOptimizer`.

Programs go on after a step: they change learning rates, or average parameters. What they keep for that comes last, when they begin
the next step.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline import world
from paceline._native import PacelineError, Sharing
from paceline.exchange import Exchange
from paceline.torch.checkpoints import Stateful, place
from paceline.torch.optimizer import DistributedOptimizer
from paceline.torch.state import Hole, leaves, without_tensors

#: Tensors with fewer bytes travel together.
SMALL = 1 << 16

#: What a worker has when others are about to get the state: nothing; a part of what updates read and write, as of now; all of that; all.
LACKS, FOLLOWS, LISTENED, HAS = range(4)

#: As often newcomers begin anew to listen because others came meanwhile; then all stand still.
BEGINNINGS = 8


class Elastic:
    """What :func:`elastic` gives."""

    def __init__(self, parts: dict[str, Stateful]) -> None:
        self._parts = parts
        self._membership = world.membership()
        self._membership.sharer = self._meet
        #: Whether this worker came to a running job.
        self.joined = self._membership.worker.outside
        #: Whether the others went on while this worker got the state, and in how many steps it listened to them.
        self.listened, self.steps = False, 0
        #: As much as travels in a step.
        self.portion = Portion()
        self._standing = LACKS if self.joined else HAS
        if self.joined:
            self._membership.enter()
            self._meet()
            # It has all when all has travelled, unless they did what cannot be followed.
            while self._membership.joining is not None:
                self._membership.joining.listen()
            self._membership.end_stepping()
            self._membership.hand_over()
            self._membership.see_members()

    def _meet(self) -> None:
        """Between two steps, all workers: whoever lacks something gets it, or begins to."""
        joining, self._membership.joining = self._membership.joining, None
        self._membership.comparison = None
        standings = self._membership.worker.roll_call(self._standing)
        senders = [rank for rank, standing in enumerate(standings) if standing == HAS]
        if len(senders) == len(standings):
            return
        if not senders:
            raise PacelineError("all workers that had the state of the job are gone; start it again from its last checkpoint")
        lacking = {standing for standing in standings if standing != HAS}
        if lacking == {LISTENED}:
            assert joining is not None, "who listened did so together with the others"
            return self._share(senders, joining.optimizer)
        # Ranks of newcomers are the last; who is missing elsewhere was lost just now.
        if senders == list(range(len(senders))):
            self._membership.joining = self._begin_joining(senders, len(standings) - len(senders), lacking, joining)
        if self._membership.joining is None:
            self._average_copies(senders, len(standings) - 1 - max(senders))
            self._share(senders)

    def _begin_joining(self, senders: list[int], newcomers: int, lacking: set[int], before: Joining | None) -> Joining | None:
        """Let newcomers listen to the next step, if the first of the senders says that they can."""
        found = self._optimizers()
        optimizer = found[0] if list(self._membership.drains) == found[:1] else None
        gives = self._standing == HAS
        #: From where on things travel, and how often that began anew.
        first, begun = 0, 1
        if before is not None:
            first, begun = (before.end, before.begun) if lacking == {FOLLOWS} else (0, before.begun + 1)
        # Not again where it came to nothing, or without end.
        hopeless = (before is not None and lacking == {LACKS}) or begun > BEGINNINGS
        told = None
        if gives and optimizer is not None and optimizer.can_be_followed and not (hopeless or self._membership.worker.own_before):
            optimizer.drain()
            state = _in_order(optimizer.followed_state())
            sizes = [sum(map(_bytes, tensors)) for _, tensors in optimizer.followed_parts(state)]
            end = self.portion.end(first, sizes, sum(map(_bytes, state["parameters"])))
            told = (without_tensors(state), first, end, begun)
        told = pickle.loads(self._tell(senders, "way of the state", pickle.dumps(told) if gives else None))
        if told is None:
            return None
        if optimizer is None:
            raise PacelineError("the others make steps with one DistributedOptimizer, which they gave to pl.elastic()")
        return Joining(self, optimizer, senders, newcomers, gives, *told)

    def _average_copies(self, senders: list[int], newcomers: int) -> None:
        """Where workers train copies of their own, make them equal first, so that nothing that anybody trained is left out."""
        optimizers = self._optimizers()
        gives = self._standing == HAS
        copies = [optimizer.copies() for optimizer in optimizers] if gives else None
        told = pickle.loads(self._tell(senders, "copies", pickle.dumps(without_tensors(copies)) if gives else None))
        if not any(told):
            return
        if copies is None:
            copies = _filled(told, None)
            for value in leaves(copies, torch.Tensor):
                value.zero_()
        worker = self._membership.worker
        worker.listen(newcomers)
        for optimizer, own in zip(optimizers, copies):
            if own is not None:
                optimizer.average_copies(own)
        worker.listen(0)

    def _share(self, senders: list[int], heard: DistributedOptimizer | None = None) -> None:
        """Everything, while all stand still; but for what was heard of an optimizer's steps, whose updates may be due."""
        gives = self._standing == HAS
        followed = [] if heard is None else list(leaves(heard.followed_state(), torch.Tensor))
        known = {place(tensor) for tensor in followed}
        if self._membership.checkpoint is not None:
            self._membership.checkpoint.came = self._membership.stepping
        with contextlib.nullcontext() if heard is None else heard.undrained():
            states = self._states(heard)
        received = self._send(senders, states, lambda tensor: place(tensor) in known and tensor.numel() > 0)
        if heard is not None:
            self._membership.comparison = lambda: self._compare(heard)
        if not gives:
            self._load(received, heard)
            self._standing = HAS
        if self._optimizers():
            self._membership.rest = Rest(self, senders, len(self._membership.worker.members) - 1 - max(senders), gives)

    def _send(
        self, senders: list[int], states: dict[str, Any], is_known: Callable[[torch.Tensor], bool] = lambda _: False
    ) -> dict[str, Any]:
        """What senders have, to whoever lacks it; its own memory is used there. What is known is there already."""
        worker, gives = self._membership.worker, self._membership.worker.rank in senders
        body = self._tell(senders, "state's frame", pickle.dumps(without_tensors(states, is_known)) if gives else None)
        frame = pickle.loads(body)
        if not gives:
            states = _filled(frame, states)
        holes, tensors = list(leaves(frame, Hole)), list(leaves(states, torch.Tensor))
        packed = Packed([tensor for hole, tensor in zip(holes, tensors) if not hole.known])
        worker.share_from(senders, "state", packed.regions)
        told = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        worker.compare("state", [_region(told), *packed.regions])
        if not gives:
            packed.unpack()
        return states

    def _optimizers(self) -> list[DistributedOptimizer]:
        return [part for part in self._parts.values() if isinstance(part, DistributedOptimizer)]

    def _of_programs(self) -> dict[str, Stateful]:
        """What programs may change between two steps by themselves: schedulers, averages of parameters."""
        if not self._optimizers():
            return {}
        trained = {parameter for optimizer in self._optimizers() for group in optimizer.param_groups for parameter in group["params"]}

        def is_ours(part: Stateful) -> bool:
            trains = isinstance(part, torch.nn.Module) and not trained.isdisjoint(part.parameters())
            return trains or hasattr(part, "elastic_state")

        return {name: part for name, part in self._parts.items() if not is_ours(part)}

    def share_rest(self, senders: list[int], gives: bool) -> None:
        """See :class:`Rest`."""
        parts = self._of_programs()
        states = {name: part.state_dict() for name, part in parts.items()}
        received = self._send(senders, _in_order({_GROUPS: [it.hyper_parameters() for it in self._optimizers()], **states}))
        if not gives:
            for optimizer, groups in zip(self._optimizers(), received[_GROUPS]):
                optimizer.use_hyper_parameters(groups)
            for name, part in parts.items():
                part.load_state_dict(received[name])

    def _compare(self, heard: DistributedOptimizer) -> None:
        """What was heard, with the updates that follow from it."""
        packed = Packed(list(leaves(_in_order(heard.followed_state()), torch.Tensor)))
        self._membership.worker.compare("state", packed.regions)

    def _heard(self, standing: int) -> None:
        """This worker listened to a step."""
        self._standing = standing
        self.listened = standing == LISTENED
        self.steps += 1

    def _tell(self, senders: list[int], what: str, body: bytes | None) -> bytes:
        """What the first of the senders says, or the next where that one is lost; ``body`` is what this worker would say."""
        worker = self._membership.worker
        length = torch.tensor([len(body or b"")], dtype=torch.int64, device="cpu")
        worker.share_from(senders, f"{what}, length", [_region(length)])
        flat = torch.zeros(int(length), dtype=torch.uint8, device="cpu")
        if body is not None and len(body) == len(flat):
            flat.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        worker.share_from(senders, what, [_region(flat)])
        return flat.numpy().tobytes()

    def _load(self, received: dict[str, Any], heard: DistributedOptimizer | None) -> None:
        for name in received.keys() & self._parts.keys():
            part = self._parts[name]
            load = getattr(part, "load_elastic_state", part.load_state_dict)
            if heard is not None and part is heard:
                load = heard.load_heard_state
            load(received[name])
        checkpoint, adaptation = self._membership.checkpoint, self._membership.adaptation
        if checkpoint is not None and _STEPS in received:
            checkpoint.load_state_dict(received[_STEPS])
        if adaptation is not None and _POLICIES in received:
            for optimizer in self._optimizers():
                optimizer.serve(adaptation)
            adaptation.load_elastic_state(received[_POLICIES])
            if not adaptation.begun:
                adaptation.before_step()

    def _states(self, heard: DistributedOptimizer | None) -> dict[str, Any]:
        of_programs = self._of_programs()
        found = {
            name: heard.heard_state() if part is heard else getattr(part, "elastic_state", part.state_dict)()
            for name, part in self._parts.items()
            if name not in of_programs
        }
        checkpoint, adaptation = self._membership.checkpoint, self._membership.adaptation
        if checkpoint is not None:
            found[_STEPS] = checkpoint.state_dict()
        if adaptation is not None:
            found[_POLICIES] = adaptation.elastic_state()
        # Optimizers list parameters in the order in which they were first updated, which every worker has its own of.
        return _in_order(found)


class Rest:
    """What newcomers get when the others' programs begin the step: hyper-parameters, and what programs change by themselves."""

    def __init__(self, elastic: Elastic, senders: list[int], newcomers: int, gives: bool) -> None:
        self._elastic, self._senders, self._newcomers, self._gives = elastic, senders, newcomers, gives

    def wait_for_programs(self) -> None:
        """They are still busy with what follows the last step: what they post there is among them."""
        world.membership().worker.listen(self._newcomers)

    def hand_over(self) -> None:
        """They are not any more."""
        world.membership().worker.listen(0)
        self._elastic.share_rest(self._senders, self._gives)


class Portion:
    """How much of the state travels in a step: as much as its computing hides, as far as the last such steps show."""

    #: Less than this is no matter.
    LEAST = 1 << 20
    #: However slow the way is, all has travelled in about so many steps.
    STEPS = 32

    def __init__(self) -> None:
        self._bytes = 0.0

    def end(self, first: int, sizes: Sequence[int], gradients: int) -> int:
        """Of parts of these sizes, those from the ``first`` on up to this one travel next. A step's gradients, which are as large
        as said, are on their way as long as so much state, so the first such step is not much longer than usual."""
        if first == 0:
            self._bytes = max(gradients, self.LEAST)
        most = max(self._bytes, sum(sizes) / self.STEPS)
        end, sent = first, 0
        while end < len(sizes) and (end == first or sent + sizes[end] <= most):
            sent, end = sent + sizes[end], end + 1
        return end

    def took(self, computing: float, waiting: float) -> None:
        """The others computed for so many seconds while it travelled, and then waited for it."""
        self._bytes *= 4 if waiting < computing / 10 else computing / (computing + waiting)


class Joining:
    """One step in which newcomers listen, while a portion of what the others updated in the last one travels to them."""

    def __init__(
        self,
        elastic: Elastic,
        optimizer: DistributedOptimizer,
        senders: list[int],
        newcomers: int,
        gives: bool,
        frame: Any,
        first: int,
        end: int,
        begun: int,
    ) -> None:
        self._elastic, self.optimizer, self._senders = elastic, optimizer, senders
        self._membership = world.membership()
        #: Whether this worker listens.
        self._listens = not gives
        #: Up to which part newcomers have the state then, and the how-manieth beginning that belongs to.
        self.end, self.begun = end, begun
        optimizer.drain()
        if self._listens:
            optimizer.adopt_mode(None)
        own = _in_order(optimizer.followed_state())
        if frame["described"] != own["described"]:
            raise PacelineError("this worker's parameters are not those of the others; build the same model everywhere")
        self._state = _filled(frame, own) if self._listens else own
        parts = optimizer.followed_parts(self._state)
        #: Whether all has travelled then, and what newcomers have, and so update.
        self._last = end == len(parts)
        self._known = [gradient for gradients, _ in parts[:end] for gradient in gradients]
        self._versions = [(tensor, tensor._version) for tensor in leaves(self._state, torch.Tensor)]
        self._packed = Packed([tensor for _, tensors in parts[first:end] for tensor in tensors])
        worker = self._membership.worker
        self._sharing: Sharing | None = worker.begin_share(senders, "state", self._packed.regions)
        self._begun_at = time.perf_counter()
        worker.listen(newcomers)
        #: Whether the step is made, or nobody listens any more.
        self._over = False

    def arrive(self) -> None:
        """Wait until all have what travels; it may be changed then."""
        sharing, self._sharing = self._sharing, None
        if sharing is not None:
            computed_at = time.perf_counter()
            self._membership.worker.finish_share(sharing)
            self._elastic.portion.took(computed_at - self._begun_at, time.perf_counter() - computed_at)
            if self._listens:
                self._packed.unpack()
                self.optimizer.load_followed_state(self._state)

    def end_step(self) -> None:
        """The next step begins."""
        if not self._over:
            self.let_in()

    # Those who train.

    def say(self, said: dict[str, Any]) -> None:
        """What this worker's optimizer is about to do."""
        written = any(tensor._version != version for tensor, version in self._versions)
        self._tell({**said, "updates": said["updates"] and not written})
        self._over = said["step"]

    def let_in(self) -> None:
        """Nothing is left to listen to in this step: newcomers get the rest, and take part from now on."""
        if not self._over:
            self._tell(None)
            self._complete()

    # Those who listen.

    def listen(self) -> None:
        """Take part in what the others do in this step, until it is over."""
        said = None
        while not self._over:
            self.optimizer.prepare_to_hear()
            said = self._tell(None)
            if said is None:
                self.optimizer.zero_grad()
                return self._complete()
            if said["gradients"]:
                self.optimizer.hear_gradients()
            self._over = said["step"]
            if not self._over:
                self.optimizer.forget_heard()
        assert said is not None
        exchange = Exchange(self._membership.worker)
        if said["exchanges"] is not None:
            exchange.start([0.0] * said["exchanges"])
        self.arrive()
        self.optimizer.hear_step(said, self._known)
        exchange.finish()
        has = LISTENED if self._last else FOLLOWS
        self._elastic._heard(has if said["updates"] else LACKS)
        self._membership.advance()

    def _complete(self) -> None:
        self._over = True
        self.arrive()
        self._membership.worker.listen(0)
        self._membership.joining = None
        self._elastic._share(self._senders, self.optimizer if self._last else None)
        self._membership.see_members()

    def _tell(self, said: dict[str, Any] | None) -> Any:
        return pickle.loads(self._elastic._tell(self._senders, "step", None if self._listens else pickle.dumps(said)))


class Packed:
    """Tensors as they travel: large ones where they lie, small ones together."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._places = [_in_memory(tensor) for tensor in tensors]
        self._small = [place for place in self._places if place.numel() < SMALL]
        self._together = torch.cat(self._small) if self._small else torch.empty(0, dtype=torch.uint8)
        large = [place for place in self._places if place.numel() >= SMALL]
        self.regions = [_region(place) for place in [self._together, *large] if place.numel()]

    def unpack(self) -> None:
        """What came goes where it belongs."""
        parts = self._together.split([place.numel() for place in self._small]) if self._small else ()
        for place, part in zip(self._small, parts):
            place.copy_(part)
        with torch.no_grad():
            for tensor, place in zip(self._tensors, self._places):
                if not _is_plain(tensor):
                    tensor.copy_(place.view(tensor.dtype).view(tensor.shape))


#: Under which policies' state travels, the number of steps that checkpoints go by, and hyper-parameters of optimizers.
_POLICIES, _STEPS, _GROUPS = "paceline policies", "paceline steps", "paceline hyper-parameters"


def elastic(**parts: Stateful) -> Elastic:
    """Say what a worker needs that comes to the job while it runs, and, as such a worker, take part from here on.

    All workers call it after everything is made, and before the first step. It returns at once, but on a worker that came to a
    running job: there it waits until the others have come to their next step, and gets what they have.

    >>> from paceline.torch import DistributedOptimizer
    >>> world.init()
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> elastic(model=model, optimizer=optimizer).joined
    False
    """
    if not parts:
        raise PacelineError("say what newcomers need: elastic(model=model, optimizer=optimizer, loader=loader)")
    return Elastic(parts)


def _in_order(state: Any) -> Any:
    """With dictionaries in one order on all workers."""
    if isinstance(state, dict):
        return {key: _in_order(state[key]) for key in sorted(state, key=lambda key: (str(type(key)), key))}
    if type(state) in (list, tuple):
        return type(state)(_in_order(value) for value in state)
    return state


def _filled(frame: Any, own: Any) -> Any:
    """With memory for each tensor: this worker's own, where that is as it should be."""
    if isinstance(frame, Hole):
        if isinstance(own, torch.Tensor) and (tuple(own.shape), own.dtype) == (frame.shape, frame.dtype):
            return own.detach()
        if frame.known:
            raise PacelineError("this worker's model and optimizer are not those of the others; build the same ones everywhere")
        return torch.empty(frame.shape, dtype=frame.dtype, device="cpu")
    if isinstance(frame, dict):
        ours = own if isinstance(own, dict) else {}
        return {key: _filled(value, ours.get(key)) for key, value in frame.items()}
    if isinstance(frame, (list, tuple)):
        mine = own if isinstance(own, (list, tuple)) and len(own) == len(frame) else [None] * len(frame)
        return type(frame)(_filled(value, part) for value, part in zip(frame, mine))
    return frame


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, where they lie if that can be."""
    plain = tensor.detach() if _is_plain(tensor) else tensor.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _region(tensor: torch.Tensor) -> tuple[int, int]:
    return (tensor.data_ptr(), _bytes(tensor))
