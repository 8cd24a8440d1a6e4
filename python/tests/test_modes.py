"""Ways to stay together: each of them trains, and workers go from one to another with equal parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import PROGRAMS, run_ranks

torch = pytest.importorskip("torch")

import paceline.torch as pl  # noqa: E402
from paceline import PacelineError  # noqa: E402

PROGRAM = PROGRAMS / "modes.py"


def play(size: int, *arguments: str) -> list[dict[str, Any]]:
    ranks = run_ranks(size, PROGRAM, *arguments)
    assert [rank.code for rank in ranks] == [0] * size, "\n".join(rank.errors for rank in ranks)
    lines = [next(line for line in rank.output.splitlines() if "RESULT " in line) for rank in ranks]
    return [json.loads(line.split("RESULT ")[1]) for line in lines]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("mode", ["synchronous", "averaging", "pairs", "groups", "local", "asynchronous"])
def test_a_mode_learns_and_ends_with_equal_parameters(mode: str) -> None:
    told = play(3, mode, "100")
    assert all(one["parameters"] == told[0]["parameters"] for one in told)
    for one in told:
        assert mean(one["losses"][-20:]) < 0.6 * mean(one["losses"][:10]), mode


def test_workers_go_from_one_mode_to_another_with_equal_parameters() -> None:
    order = "synchronous,local,asynchronous,pairs,groups,averaging,synchronous"
    told = play(3, order, "15")
    assert all(one["parameters"] == told[0]["parameters"] for one in told)
    assert told[0]["seen"] == [mode for mode in order.split(",") for _ in range(15)]
    assert mean(told[0]["losses"][-15:]) < 0.8 * mean(told[0]["losses"][:10])


def test_a_fast_worker_is_ahead_of_a_slow_one_but_not_by_more_than_allowed() -> None:
    told = play(2, "asynchronous", "40", "slow")
    # The push that makes the lead is counted before its answer waits.
    assert 1 < told[0]["lead"] <= 3 + 1


def test_policies_count_the_steps_that_they_are_not_asked_in() -> None:
    told = play(2, "local,asynchronous,local", "10", "counted")
    assert told[0]["counted"] == told[1]["counted"]
    # Ten steps, then every fourth of ten, then ten again.
    asked = [*range(10), 10, 14, 18, *range(20, 30)]
    # What is known is two of them old, and nothing in the first two.
    assert told[0]["counted"] == [[step, ([None, None, *asked])[at]] for at, step in enumerate(asked)]


def test_a_policy_switches_all_workers_after_the_same_step() -> None:
    told = play(2, "policy")
    assert told[0]["seen"] == told[1]["seen"]
    seen = told[0]["seen"]
    assert seen[5] == "synchronous" and seen[20] == "averaging" and seen[55] == "synchronous"
    assert told[0]["parameters"] == told[1]["parameters"]


def test_pairs_are_everybody_once_and_the_same_everywhere() -> None:
    for size in range(1, 9):
        for step in range(20):
            pairs = pl.PairAveraging(seed=3).pairs(size, step)
            assert sorted(rank for pair in pairs for rank in pair) == list(range(size))
            assert pairs == pl.PairAveraging(seed=3).pairs(size, step)
    assert len({str(pl.PairAveraging().pairs(6, step)) for step in range(50)}) > 10


def test_what_is_no_mode_is_refused_with_those_that_are() -> None:
    pl.init()
    model = torch.nn.Linear(2, 1)
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(PacelineError, match="choose one of synchronous, averaging, pairs, groups, local, asynchronous"):
        optimizer.switch("luck")
    for wrong in (lambda: pl.LocalSGD(every=0), lambda: pl.Asynchronous(-1), lambda: pl.ModelAveraging(0.0)):
        with pytest.raises(PacelineError):
            wrong()
    pl.shutdown()
