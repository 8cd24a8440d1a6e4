"""This process's membership in the job: one worker, shared by everything in the process.

The functions of :mod:`paceline` and the process groups of :mod:`paceline.torch` post on the same worker;
a sub-group is a list of ranks on it, never a new connection. This module knows nothing of PyTorch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from paceline import tuning
from paceline._native import Coordinator, PacelineError, Proposal, Worker, fresh_secret

if TYPE_CHECKING:
    from paceline.adaptation import Adaptation
    from paceline.torch.newcomers import Joining, Rest

#: How long the process that hosts the coordinator stays for the others, in seconds.
PATIENCE = 60.0
#: How long leaving waits for operations in flight that other workers may need, in seconds. They need no help
#: of the caller's any more; those that others never called would not end in any time.
DRAIN = 10.0


class Membership:
    """A worker that spans some ranks of the job, and the thread that tells of finished operations.

    ``ranks`` are the job's numbers of the worker's ranks, in the worker's order: all of them, unless only
    some processes ever made a group of this kind.
    """

    def __init__(self, worker: Worker, ranks: Sequence[int], lasting: bool) -> None:
        self.worker = worker
        self.ranks = tuple(ranks)
        self.lasting = lasting
        self.users = 0
        #: Whether the program, or our optimizer, says where steps begin.
        self.counts_steps = False
        #: The policies of the job, once some are attached.
        self.adaptation: Adaptation | None = None
        #: What the program last said of its loss, for the page, where there are no policies.
        self.loss: Any = None
        #: Whether those that the command line names were.
        self.named_policies = False
        #: The step that this worker is in, counted like the others'.
        self.step = 0
        #: Of how many steps the samples may be in nothing but one worker's copy of the model.
        self.reach = 1
        #: Counts how often other workers took part from one step to the next.
        self.changes = 0
        self._members = worker.members if worker.elastic else []
        #: Who makes updates that are due, before the state is looked at.
        self.drains: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Who deals samples.
        self.samplers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Who gives the state to workers that come.
        self.sharer: Callable[[], None] | None = None
        #: Whether workers still have to see that they are equal, and how.
        self.comparison: Callable[[], None] | None = None
        #: Whether our optimizer, or :func:`begin_step`, is at work: what the program does after a step, it has not done yet.
        self.stepping = False
        #: What saves the state now and then, once there is something.
        self.checkpoint: Any = None
        #: What those who only listen in this step still have to get.
        self.joining: Joining | None = None
        #: What those who came with this step still have to get, once programs begin it.
        self.rest: Rest | None = None
        self._place = {rank: place for place, rank in enumerate(self.ranks)}
        self._process = os.getpid()
        self._generations: dict[str, int] = {}
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=worker.deliver, name="paceline-notices", daemon=True)
        self._thread.start()
        if os.environ.get("PACELINE_WATCH_LINKS", "").strip() not in ("", "0"):
            worker.watch_links()

    def spans(self, ranks: Sequence[int]) -> bool:
        """Whether all of these ranks are reached by this worker."""
        return all(rank in self._place for rank in ranks)

    def places(self, ranks: Sequence[int]) -> tuple[int, ...] | None:
        """The worker's own numbers of these ranks; ``None`` if they are all, in order."""
        places = tuple(self._place[rank] for rank in ranks)
        return None if places == tuple(range(len(self.ranks))) else places

    def generation(self, group: str) -> int:
        """How often a group of this name was made on this worker, this time included."""
        with _lock:
            self._generations[group] = self._generations.get(group, 0) + 1
            return self._generations[group]

    def begin_step(self) -> None:
        """One step is over, and the next begins, of a program that measures no gradients."""
        self.hand_over()
        adaptation, self.stepping = self.adaptation, True
        if adaptation is not None:
            adaptation.exchange(None)
            adaptation.after_step()
        self.advance()
        if adaptation is not None:
            adaptation.before_step()
        self.end_stepping()

    def end_stepping(self) -> None:
        """It is the program's turn now."""
        self.stepping = False
        if self.rest is not None:
            self.rest.wait_for_programs()

    def hand_over(self) -> None:
        """The program begins the step: what it does after the last one is done."""
        rest, self.rest = self.rest, None
        if rest is not None:
            rest.hand_over()

    def advance(self) -> None:
        """The next step begins. In an elastic job, samples of those who are gone go back, and those who come get the state."""
        if self.joining is not None:
            self.joining.end_step()
        self.step = self.worker.begin_step()
        if not self.worker.elastic:
            return
        for gone, over, consumed in self.worker.take_losses():
            for sampler in self.samplers:
                sampler.follow_loss(gone, lambda member, step: step < over or _holds(consumed, member, step))
        if self.worker.newcomers or self.joining is not None:
            if self.sharer is None:
                raise PacelineError(
                    "a worker came to the job, and nobody says what state it is to get: "
                    "call pl.elastic(model=model, optimizer=optimizer, loader=loader) before the first step"
                )
            self.sharer()
        self.see_members()

    def check(self) -> None:
        """All updates of the last step are made: see that workers are equal, if somebody followed it by listening."""
        comparison, self.comparison = self.comparison, None
        if comparison is not None:
            comparison()

    def see_members(self) -> None:
        """Count it, if others take part than before."""
        members = self.worker.members
        if members != self._members:
            self._members, self.changes = members, self.changes + 1

    def enter(self) -> None:
        """Take part in the running job, from the step that all others are about to begin."""
        adaptation = self.adaptation
        self.step = self.worker.enter(lambda: adaptation is not None and adaptation.leaves())
        self._members = self.worker.members

    def let_in(self) -> None:
        """There is nothing in this step for those who only listen: they get the rest of the state, and take part from now on."""
        if self.joining is not None:
            self.joining.let_in()
        if not self.stepping:
            self.hand_over()

    def settle(self) -> None:
        """In an elastic job, see that all of the last step is over everywhere, and what came back of it is known."""
        if self.worker.elastic and not self.worker.outside:
            self.let_in()
            for drained in list(self.drains):
                drained.settle()
            self.check()
            token = array("B", [0])
            region = (token.buffer_info()[0], 1)
            handle = self.worker.post("barrier", "paceline settling", "u8", [], region, region, reduce="max", keep=token, everyone=True)
            handle.wait()
            self.advance()

    def close(self, patience: float = PATIENCE, drain: float = DRAIN) -> None:
        """Leave the job; what is in flight after ``drain`` seconds fails. After a fork, the child has
        nothing to leave."""
        if os.getpid() != self._process:
            return
        with self._closing:
            if drain > 0.0:
                # Who came has not trained yet, and goes on alone.
                with contextlib.suppress(PacelineError):
                    self.let_in()
            if self.adaptation is not None and drain > 0.0:
                self.adaptation.end()
            if drain > 0.0:
                tuning.end(self.worker)
            _tell_tracing("left", self.worker)
            self.worker.close(patience, drain)
            if threading.current_thread() is not self._thread:
                self._thread.join()


def _holds(consumed: list[tuple[int, int, int]], member: int, step: int) -> bool:
    return any(of == member and first <= step < end for of, first, end in consumed)


_lock = threading.RLock()
_memberships: list[Membership] = []
#: Those that were left: they are closed in the background, since rank 0 waits for the others.
_leaving: list[threading.Thread] = []
_initialized: Membership | None = None


def acquire(ranks: Sequence[int], join: Callable[[], Worker], lasting: bool = False) -> Membership:
    """The membership that spans ``ranks``, made by ``join`` if there is none yet.

    Each call is answered by one :func:`release`. A lasting membership stays until the process ends: the
    coordinator of ``paceline run`` lets each worker in once.
    """
    with _lock:
        for membership in _memberships:
            if membership.spans(ranks) and membership._process == os.getpid():
                membership.users += 1
                return membership
        if not _memberships:
            atexit.register(_leave_all)
        membership = Membership(join(), ranks, lasting)
        membership.users = 1
        _memberships.append(membership)
        _tell_tracing("joined", membership.worker)
        return membership


def memberships() -> list[Membership]:
    """The jobs that this process takes part in."""
    with _lock:
        return list(_memberships)


def _tell_tracing(what: str, worker: Worker) -> None:
    """Traces are recorded with PyTorch's help; without PyTorch there is nobody to tell."""
    # An entry of None is how a program forbids the import.
    if sys.modules.get("torch") is not None:
        from paceline.torch import tracing

        getattr(tracing, what)(worker)


def release(membership: Membership) -> None:
    """Give back what :func:`acquire` gave. The last one out leaves the job."""
    with _lock:
        membership.users -= 1
        if membership.users > 0 or membership.lasting or membership not in _memberships:
            return
        _memberships.remove(membership)
        # In a `finally`, say: what is in flight belongs to what failed.
        drain = DRAIN if sys.exc_info()[0] is None else 0.0
        leaving = threading.Thread(target=membership.close, args=(PATIENCE, drain), name="paceline-leaving")
        leaving.start()
        _leaving[:] = [thread for thread in _leaving if thread.is_alive()] + [leaving]


def _leave_all() -> None:
    # Whoever fails should not make the others wait to hear of it.
    failed = getattr(sys, "last_type", None) is not None
    with _lock:
        while _memberships:
            _memberships.pop().close(*((0.0, 0.0) if failed else (PATIENCE, DRAIN)))


def init() -> None:
    """Join the job that this process was started for. Does nothing the second time.

    Started by ``paceline run``, torchrun, mpirun or srun, it joins the others; started alone, it is a job
    of one worker.

    >>> init()
    >>> rank(), size(), local_rank()
    (0, 1, 0)
    """
    global _initialized
    with _lock:
        if _initialized is None:
            size_given = _number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
            ours = joins_by_environment()
            if size_given is None and not ours:
                _initialized = acquire(range(1), _join_alone)
            elif ours or _has_secret() or size_given is None:
                # Who does not know the size yet learns it by joining.
                _initialized = _acquire_from_environment(size_given, lasting=ours)
            else:
                from paceline.torch.rendezvous import join_default_store

                _initialized = acquire(range(size_given), join_default_store)


def shutdown() -> None:
    """Leave the job, unless a process group still needs it. Does nothing without :func:`init`.

    >>> init()
    >>> shutdown()
    >>> is_initialized()
    False
    """
    global _initialized
    with _lock:
        if _initialized is not None:
            membership, _initialized = _initialized, None
            release(membership)


def is_initialized() -> bool:
    """Whether :func:`init` was called, and not :func:`shutdown` since."""
    return _initialized is not None


def membership() -> Membership:
    """What :func:`init` joined."""
    if _initialized is None:
        raise PacelineError("this process has not joined a job; call `paceline.init()` first")
    return _initialized


def begin_step() -> None:
    """The next step of training begins: other settings, if some were agreed for it, hold for what follows.

    :class:`~paceline.torch.DistributedOptimizer` calls it at the end of ``step()``. With DDP, call it after the
    optimizer's step, on every worker alike. Where nothing was proposed it costs less than a microsecond.

    >>> init()
    >>> begin_step()
    """
    for joined in memberships():
        joined.counts_steps = True
        joined.begin_step()


def propose(
    *, strategy: str | None = None, partition: int | str | None = None, credit: int | str | None = None
) -> Proposal:
    """Propose other settings to all workers, while training goes on; what is ``None`` stays as it is.

    They come into force between two steps (:func:`begin_step`) that are the same on every worker.
    ``wait(timeout)`` of what this returns gives the view and its first step, once that is decided, and raises
    :class:`PacelineError` if others came first or the coordinator is gone.

    >>> init()
    >>> proposal = propose(partition="256KiB", credit="1MiB")
    >>> view, step = proposal.wait(10.0)
    """
    joined = _initialized or next(iter(memberships()), None) or membership()
    return joined.worker.propose(strategy=strategy, partition=partition, credit=credit)


def rank() -> int:
    """This worker's number, from 0."""
    return membership().worker.rank


def size() -> int:
    """How many workers there are."""
    return membership().worker.size


def members() -> tuple[int, ...]:
    """The numbers that workers keep for as long as they take part, by rank; ranks change as others come and go.

    >>> init()
    >>> members()
    (0,)
    """
    return tuple(membership().worker.members)


def resize(workers: int) -> None:
    """Ask for another number of workers, in a job of ``paceline run --elastic``; one worker's word is enough."""
    membership().worker.resize(workers)


def leave() -> None:
    """This worker leaves a job of ``paceline run --elastic`` after the step it is in: ``optimizer.step()`` raises
    :class:`Retired`, which ends the process well unless the program catches it. Where the job needs it, it stays."""
    membership().worker.leave()


def local_rank() -> int:
    """This worker's number among those of its host, from 0."""
    given = _number("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
    if given is not None:
        return given
    worker = membership().worker
    hosts = worker.hosts
    return hosts[: worker.rank].count(hosts[worker.rank])


def local_size() -> int:
    """How many workers this worker's host has."""
    worker = membership().worker
    return worker.hosts.count(worker.hosts[worker.rank])


def joins_by_environment() -> bool:
    """Whether ``paceline run`` started this process, or somebody who says where the coordinator is."""
    return bool(os.environ.get("PACELINE_COORDINATOR"))


def _acquire_from_environment(size_given: int | None, lasting: bool) -> Membership:
    if size_given is not None:
        return acquire(range(size_given), Worker.from_environment, lasting)
    worker = Worker.from_environment()
    return acquire(range(worker.size), lambda: worker, lasting)


def _join_alone() -> Worker:
    secret = fresh_secret()
    hosting = Coordinator("127.0.0.1", 1, secret)
    return Worker.join(hosting.address, 0, 1, secret, hosting)


def _has_secret() -> bool:
    return any(os.environ.get(name) for name in ("PACELINE_SECRET", "PACELINE_SECRET_FILE"))


def _number(*names: str) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.strip().isdigit():
            return int(text)
    return None
