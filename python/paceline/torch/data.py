"""Samples for workers that come and go: in an epoch every sample is trained on once, whatever happened meanwhile.

Which worker gets which samples is computed alike on all workers, from the seed, the position in the epoch and the
workers there are; nobody asks anybody. The position counts what was *used*: batches that a loader fetched ahead are
dealt again if the workers or the batch size change before their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Sampler as TorchSampler

from paceline import world
from paceline._native import Deal, PacelineError
from paceline._native import Sampler as Dealer


#: Deals that may still come back: workers are two steps apart at most.
KEPT = 4


class ElasticSampler(TorchSampler[list[int]]):
    """The batches of this worker, for ``DataLoader(dataset, batch_sampler=...)``.

    ``samples`` is a data set or a number, ``batch_size`` what each worker takes in a step (or a number for each worker).
    A loader of PyTorch's fetches batches before they are used, and only the program knows when they are: it calls
    :meth:`advance` after each step, or takes :class:`ElasticDataLoader`, which does.

    >>> world.init()
    >>> sampler = ElasticSampler(10, batch_size=4, shuffle=False)
    >>> list(sampler)
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    >>> sampler.advance()
    >>> sampler.state_dict()["dealt"], list(sampler)
    (4, [[4, 5, 6, 7], [8, 9]])
    """

    def __init__(
        self, samples: Sized | int, batch_size: int | Sequence[int], *, seed: int = 0, shuffle: bool = True
    ) -> None:
        self._samples = samples if isinstance(samples, int) else len(samples)
        self._seed = seed if shuffle else None
        self._used = Dealer(self._samples, self._seed)
        self.batch_size = batch_size
        #: The step in use, and where the epoch was after it.
        self._last: tuple[Deal, Dealer] | None = None
        #: In an elastic job the last ones, with their steps, the members they were for, and how to deal them again.
        self._deals: list[tuple[int, Deal, tuple[int, ...], tuple[dict[str, Any], list[int]]]] = []
        #: Counts what makes batches that were fetched ahead worthless.
        self._changes = 0
        #: Where a loader fetched to the end of the epoch without anybody saying what was used.
        self._fetched_from: dict[str, Any] | None = None
        #: Batches in use since somebody asked.
        self._count = 0

    @property
    def epoch(self) -> int:
        """Counted from 0."""
        return self._used.epoch

    @property
    def weight(self) -> float:
        """By what to multiply the loss of the batch in use, so that the average over workers is that over samples.

        It is 1 but for the last steps of an epoch, where workers may have different numbers of samples. Where workers outnumber the
        samples that are left, whoever gets none has sample 0 instead, and a weight of 0.
        """
        return 1.0 if self._last is None else self._last[0].weight(world.rank())

    def terms(self) -> tuple[int, ...]:
        """What decides who gets what. Batches that were fetched under other terms must not be used."""
        return (self._changes, world.rank(), *self._batches())

    def __len__(self) -> int:
        """Steps that are left of the epoch, if nothing changes."""
        return self._used.steps(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        """From what was used last to the end of the epoch; nothing counts as used by that."""
        if self._fetched_from == self._used.position() and self._used.left:
            raise PacelineError(
                "the epoch was fetched to its end, and nobody said what was used: call advance() after each step, "
                "or use paceline.torch.ElasticDataLoader"
            )
        ahead, before = self._used.copy(), self._used.position()
        batches, rank = self._batches(), world.rank()
        while (deal := ahead.deal(batches)) is not None:
            # Where nothing is left for this worker it takes part with a sample that counts nothing.
            yield deal.of(rank) or [0]
        self._fetched_from = before

    def advance(self) -> None:
        """The next batch is in use, on every worker. At the end of the epoch there is none."""
        membership, batches = world.membership(), self._batches()
        again = (self._used.position(), batches) if membership.worker.elastic else None
        deal = self._used.deal(batches)
        if deal is None:
            raise PacelineError("the epoch is over: call next_epoch()")
        self._last = (deal, self._used.copy())
        self._count += 1
        if again is not None:
            membership.samplers.add(self)
            self._deals = [*self._deals[1 - KEPT - membership.reach :], (membership.step, deal, world.members(), again)]

    def take_count(self) -> int:
        """Batches that came into use since this was asked last."""
        count, self._count = self._count, 0
        return count

    def follow_loss(self, gone: Sequence[int], counts: Callable[[int, int], bool]) -> None:
        """Workers of an elastic job are lost: what they had and nobody trained on is dealt again, on all workers alike."""
        for step, deal, members, _ in self._deals:
            lost = [members.index(member) for member in gone if member in members and not counts(member, step)]
            if lost:
                self._used.give_back(deal, lost)
                self.forget_fetched()

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self._used.next_epoch()
        self._deals = []
        self.forget_fetched()

    def give_back(self, lost: Sequence[int]) -> None:
        """These workers were lost before the last step counted, and their samples are dealt again."""
        if self._last is None:
            raise PacelineError("no step is under way whose samples could come back")
        # The epoch may have ended with that step: then we go there again.
        (deal, self._used), self._last = self._last, None
        self._used.give_back(deal, lost)
        self.forget_fetched()

    def forget_fetched(self) -> None:
        """Batches that were fetched ahead are worth nothing."""
        self._changes += 1
        self._fetched_from = None

    def state_dict(self) -> dict[str, Any]:
        """The position: a few numbers, the same on all workers."""
        return {"samples": self._samples, "seed": self._seed, **self._used.position()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position, with as many workers and whatever batch size there are now."""
        if (state["samples"], state["seed"]) != (self._samples, self._seed):
            raise PacelineError(
                f"the position is of {state['samples']} samples in the order of seed {state['seed']}; here are "
                f"{self._samples} in that of {self._seed}"
            )
        self._used.restore(state["epoch"], state["dealt"], [tuple(pair) for pair in state["returned"]])
        self._last = None
        self.forget_fetched()

    def elastic_state(self) -> dict[str, Any]:
        """For a worker that comes to the job: also what may still come back."""
        return {**self.state_dict(), "deals": [(step, members, *again) for step, _, members, again in self._deals]}

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        """Go on as the others do."""
        self._deals = []
        for step, members, position, batches in state["deals"]:
            self.load_state_dict({**state, **position})
            deal = self._used.deal(batches)
            assert deal is not None, "it was dealt before"
            self._deals.append((step, deal, tuple(members), (position, batches)))
        self.load_state_dict(state)
        world.membership().samplers.add(self)

    def _batches(self) -> list[int]:
        # Those who came with the step get samples of it, too.
        world.membership().hand_over()
        size = world.size()
        if isinstance(self.batch_size, int):
            return [self.batch_size] * size
        if len(self.batch_size) != size:
            raise PacelineError(f"there are {len(self.batch_size)} batch sizes for {size} workers")
        return list(self.batch_size)


class ElasticDataLoader(DataLoader[Any]):
    """PyTorch's ``DataLoader`` over an :class:`ElasticSampler`, which counts what was used.

    ``options`` are those of ``DataLoader``. A batch counts as used when the loop gets it. If the workers or the batch
    size change, what was fetched ahead is dealt anew.

    >>> world.init()
    >>> loader = ElasticDataLoader(range(10), batch_size=4, seed=1)
    >>> for epoch in loader.epochs(2):
    ...     print(epoch, [len(batch) for batch in loader])
    0 [4, 4, 2]
    1 [4, 4, 2]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | Sequence[int] = 1,
        shuffle: bool = True,
        *,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise PacelineError("samples are dealt by number, so a data set that can only be iterated is of no use")
        self.elastic = ElasticSampler(dataset, batch_size, seed=seed, shuffle=shuffle)
        super().__init__(dataset, batch_sampler=self.elastic, collate_fn=collate_fn, **options)

    @property
    def epoch(self) -> int:
        """Counted from 0."""
        return self.elastic.epoch

    @property
    def weight(self) -> float:
        """See :attr:`ElasticSampler.weight`."""
        return self.elastic.weight

    def epochs(self, number: int) -> Iterator[int]:
        """Those up to ``number`` that are not over, for a job that may have been restored in the middle of one."""
        while self.epoch < number:
            before = self.epoch
            yield before
            if self.epoch == before:
                # The loop was left early; whoever asks for the next epoch means it.
                self.elastic.next_epoch()
                self._end_epoch()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        adaptation = world.membership().adaptation
        if adaptation is not None:
            adaptation.follow_with(self.elastic)
            # Of a loader for something else, epochs are no epochs of the training's.
            if adaptation.data is self.elastic:
                adaptation.begin_epoch(self.epoch)
        while True:
            self.elastic.forget_fetched()
            terms = self.elastic.terms()
            for batch in super().__iter__():
                if self.elastic.terms() != terms:
                    break
                self.elastic.advance()
                yield batch
            else:
                # Who listens has nothing to listen to here, and takes part in what follows.
                world.membership().let_in()
                if self.elastic.terms() == terms:
                    # Samples of the last step may come back, and then the epoch is not over.
                    world.membership().settle()
                if self.elastic.terms() == terms:
                    self.elastic.next_epoch()
                    break
        self._end_epoch()

    def _end_epoch(self) -> None:
        adaptation = world.membership().adaptation
        if adaptation is not None and adaptation.data is self.elastic:
            adaptation.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`ElasticSampler.state_dict`."""
        return self.elastic.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`ElasticSampler.load_state_dict`."""
        self.elastic.load_state_dict(state)

    def elastic_state(self) -> dict[str, Any]:
        """See :meth:`ElasticSampler.elastic_state`."""
        return self.elastic.elastic_state()

    def load_elastic_state(self, state: dict[str, Any]) -> None:
        """See :meth:`ElasticSampler.load_elastic_state`."""
        self.elastic.load_elastic_state(state)
