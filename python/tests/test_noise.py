"""Gradient noise and variance of a running job, against a computation from all workers' gradients."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
from conftest import PROGRAMS, run_launcher, run_ranks

pytest.importorskip("torch")

PROGRAM = PROGRAMS / "noise.py"
SMOOTHING = 0.99


def results(output: str) -> list[dict[str, Any]]:
    return [json.loads(line.split("RESULT ")[1]) for line in output.splitlines() if "RESULT " in line]


def smoothed(steps: list[list[float]], size: int) -> list[tuple[float, float]]:
    """Variance and squared norm after each step, as textbooks have them."""
    inverse = sum(1.0 / (5 + rank) for rank in range(size)) / size
    sums, weight, found = [0.0, 0.0], 0.0, []
    for contributed, averaged, _ in steps:
        variance = (contributed - averaged) * size / (size - 1) / inverse
        squared = (size * averaged - contributed) / (size - 1)
        weight = SMOOTHING * weight + 1 - SMOOTHING
        sums = [SMOOTHING * before + (1 - SMOOTHING) * new for before, new in zip(sums, (variance, squared))]
        found.append((sums[0] / weight, sums[1] / weight))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_the_job_sees_the_noise_that_its_gradients_have_on_all_workers_alike(size: int) -> None:
    ranks = run_ranks(size, PROGRAM, "1")
    assert [rank.code for rank in ranks] == [0] * size, ranks[0].errors
    workers = [results(rank.output)[0] for rank in ranks]
    assert all(worker["told"] == workers[0]["told"] for worker in workers)
    told, expected = workers[0]["told"], workers[0]["expected"]
    # The policy was attached before the first step, whose gradients were measured from the second on.
    long_way = smoothed(expected[1:], size)
    for number, seen in enumerate(told):
        if seen is None:
            assert number < 2
            continue
        step, variance, squared, scale, loss = seen
        assert step == number - 2 or step == number - 1
        if step >= 1:
            assert variance == pytest.approx(long_way[step - 1][0], rel=1e-5)
            assert squared == pytest.approx(long_way[step - 1][1], rel=1e-3, abs=1e-6)
            assert loss == pytest.approx(expected[step][2], rel=1e-5)
            assert scale is None or scale == pytest.approx(variance / squared, rel=1e-9)


def test_parts_of_tensors_that_take_turns_see_what_the_whole_has(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    # With gradients sent together, and a model that stays as it is, so that only the parts differ.
    plan = tmp_path / "plan.toml"
    plan.write_text('[fusion]\ngroups = [["0.weight", "0.bias", "2.weight"], ["4.weight", "4.bias"]]\n')
    seen = {}
    for parts in ("1", "4"):
        launch = (paceline_command, "run", "-q", "--no-prefix", "-n", "2", "--plan", plan, "--")
        run = run_launcher(*launch, sys.executable, PROGRAM, parts, "bundled")
        assert run.returncode == 0, run.stderr
        worker = results(run.stdout)[0]
        seen[parts] = [told[1] for told in worker["told"] if told is not None and told[1] is not None]
    assert seen["1"][-1] == pytest.approx(seen["4"][-1], rel=0.25)
    assert seen["1"][0] != seen["4"][0]


@pytest.mark.parametrize("way", ["accumulate", "no_sync"])
def test_batches_whose_gradients_are_accumulated_count_together(way: str) -> None:
    ranks = run_ranks(2, PROGRAMS / "passes.py", way)
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].errors
    workers = [results(rank.output)[0] for rank in ranks]
    assert workers[0] == workers[1]
    # Four batches of two make a step of eight samples, as one batch of eight does; a policy that wants sixteen gets four batches of four.
    assert (workers[0]["batch"], workers[0]["global"]) == (8, 16)
    assert workers[0]["noise"] == pytest.approx(workers[0]["expected"], rel=0.15)
    assert workers[0]["lengths"] == [4]
