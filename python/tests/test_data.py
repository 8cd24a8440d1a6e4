"""Elastic samples: every one once in an epoch, whatever is fetched ahead and however many workers there are."""

from __future__ import annotations

import collections
import json
import pathlib
import sys

import pytest
from conftest import PROGRAMS, run_ranks

torch = pytest.importorskip("torch")

import paceline.torch as pl  # noqa: E402
from paceline import PacelineError, world  # noqa: E402

sys.path.insert(0, str(PROGRAMS))
PROGRAM = PROGRAMS / "data.py"


@pytest.fixture(autouse=True)
def alone():
    pl.init()
    yield
    pl.shutdown()


def test_jobs_of_other_sizes_share_epochs_without_losing_or_repeating_a_sample(tmp_path: pathlib.Path) -> None:
    from data import SAMPLES

    # Two workers leave in the first epoch, three in the second, one ends it; some fetch ahead, some do not.
    for size, steps, batch, fetching in ((2, 7, 4, 2), (3, 20, 5, 0), (1, 1000, 7, 1)):
        for rank in run_ranks(size, PROGRAM, tmp_path, str(steps), str(batch), str(fetching)):
            assert rank.code == 0, rank.errors
    used: dict[int, collections.Counter[int]] = {0: collections.Counter(), 1: collections.Counter()}
    for file in tmp_path.glob("used-by-*.jsonl"):
        for line in file.read_text().splitlines():
            epoch, samples, weight = json.loads(line)
            used[epoch].update(samples)
            assert 0.0 <= weight <= 3.0
    assert all(used[epoch] == collections.Counter(range(SAMPLES)) for epoch in used)
    assert json.loads((tmp_path / "position.json").read_text())["epoch"] == 2


def test_what_was_fetched_ahead_does_not_count_as_used() -> None:
    loader = pl.ElasticDataLoader(range(100), 10, num_workers=1, prefetch_factor=4)
    batches = iter(loader)
    first = next(batches)
    assert loader.state_dict()["dealt"] == 10
    restored = pl.ElasticDataLoader(range(100), 10)
    restored.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = torch.cat(list(restored))
    assert sorted(torch.cat([first, rest]).tolist()) == list(range(100))


def test_samples_of_a_lost_worker_come_next_even_if_their_epoch_seemed_over() -> None:
    loader = pl.ElasticDataLoader(range(8), 4, shuffle=False)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.epoch == 1
    loader.elastic.give_back([0])
    assert (loader.epoch, [batch.tolist() for batch in loader]) == (0, [[4, 5, 6, 7]])


def test_a_loop_that_goes_on_after_a_loss_meets_the_samples_that_came_back() -> None:
    loader = pl.ElasticDataLoader(range(8), 2, shuffle=False)
    met = []
    for batch in loader:
        met.append(batch.tolist())
        if len(met) == 2:
            loader.elastic.give_back([0])
    assert met == [[0, 1], [2, 3], [2, 3], [4, 5], [6, 7]]


def test_whoever_gets_none_of_the_last_samples_has_one_that_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "size", lambda: 3)
    found = []
    for rank in range(3):
        monkeypatch.setattr(world, "rank", lambda rank=rank: rank)
        loader = pl.ElasticDataLoader(torch.arange(10, 12), 4, shuffle=False)
        found.append([(batch.tolist(), loader.weight) for batch in loader])
    assert found == [[([10], 0.0)], [([10], 1.5)], [([11], 1.5)]]


def test_a_loader_that_says_nothing_of_its_use_is_not_taken_twice_over_one_epoch() -> None:
    sampler = pl.ElasticSampler(8, 4)
    loader = torch.utils.data.DataLoader(range(8), batch_sampler=sampler)
    assert len(list(loader)) == 2
    with pytest.raises(PacelineError, match="advance"):
        list(loader)


def test_positions_of_other_data_and_streams_are_refused() -> None:
    state = pl.ElasticSampler(8, 4, seed=3).state_dict()
    with pytest.raises(PacelineError, match="seed 3"):
        pl.ElasticSampler(8, 4, seed=4).load_state_dict(state)
    with pytest.raises(PacelineError, match="none of a data set"):
        pl.ElasticSampler(8, 4, seed=3).load_state_dict({**state, "dealt": 9})
    with pytest.raises(PacelineError, match="batch sizes for 1 workers"):
        len(pl.ElasticSampler(8, [4, 4]))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(PacelineError, match="by number"):
        pl.ElasticDataLoader(Stream(), 4)
