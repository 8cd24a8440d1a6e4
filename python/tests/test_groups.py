"""Averaging of parameters in groups (DS-Sync), with real processes: groups are those of the plan, and all end equal."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from conftest import PROGRAMS, run_launcher

torch = pytest.importorskip("torch")

import paceline.torch as pl  # noqa: E402
from paceline import PacelineError  # noqa: E402

PROGRAM = PROGRAMS / "groups.py"


def play(command: str, size: int, strategy: str, *arguments: str) -> list[dict[str, Any]]:
    """What workers tell, by rank."""
    options = ("-q", "--no-prefix", "-n", str(size), "--strategy", strategy, "--insecure")
    done = run_launcher(command, "run", *options, "--", sys.executable, PROGRAM, *arguments)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line.split("RESULT ")[1]) for line in done.stdout.splitlines() if "RESULT " in line]
    return sorted(told, key=lambda one: one["rank"])


def planned(command: str, size: int) -> list[list[list[int]]]:
    """The groups of each step of a period, as the command explains them."""
    shown = run_launcher(command, "strategies", "shuffle", "--ranks", str(size), "--hosts", str(size)).stdout
    lines = re.findall(r"^\s+step\s+\d+\s+(\{.*\})$", shown, re.MULTILINE)
    assert lines, shown
    return [[[int(rank) for rank in group.split()] for group in re.findall(r"\{([^}]*)\}", line)] for line in lines]


def test_workers_average_with_those_whom_the_plan_names(paceline_command: str) -> None:
    size, steps = 4, 3
    told = play(paceline_command, size, "shuffle", "walk", str(steps))
    assert {one["mode"] for one in told} == {"groups"}
    plan = planned(paceline_command, size)
    now = [float(2**rank) for rank in range(size)]
    for step in range(steps):
        for group in plan[step % len(plan)]:
            mean = sum(now[rank] for rank in group) / len(group)
            now = [mean if rank in group else value for rank, value in enumerate(now)]
        for rank in range(size):
            assert told[rank]["values"][step] == [now[rank]] * 24, (step, rank)


def test_every_so_many_steps_all_are_equal(paceline_command: str) -> None:
    # Groups alone need two steps.
    told = play(paceline_command, 4, "shuffle:1", "walk", "1")
    assert [one["values"][0] for one in told] == [[15 / 4] * 24] * 4


def test_workers_differ_while_they_train_and_end_equal(paceline_command: str) -> None:
    told = play(paceline_command, 4, "shuffle", "learn", "usual")
    assert {one["mode"] for one in told} == {"groups"}
    assert any(one["steps"][-1] != told[0]["steps"][-1] for one in told)
    assert all(one["end"] == told[0]["end"] for one in told)
    mean = [sum(column) / 4 for column in zip(*(one["steps"][-1] for one in told))]
    assert told[0]["end"] == pytest.approx(mean, abs=1e-6)
    assert sum(told[0]["losses"][-5:]) < 0.7 * sum(told[0]["losses"][:5])


def test_an_ensemble_is_the_mean_over_the_ways_of_all_workers(paceline_command: str) -> None:
    told = play(paceline_command, 4, "shuffle", "ensemble")
    taken = [one["steps"][step - 1] for one in told for step in range(7, 21, 3)]
    mean = [sum(column) / len(taken) for column in zip(*taken)]
    for one in told:
        assert one["end"] == told[0]["end"]
        assert one["end"] == pytest.approx(mean, abs=1e-6)
    assert one["end"] != pytest.approx(one["steps"][-1], abs=1e-6)


def test_gradients_are_averaged_over_all_whatever_the_strategy(paceline_command: str) -> None:
    told = play(paceline_command, 3, "shuffle", "learn", "synchronous")
    exact = play(paceline_command, 3, "ring", "learn", "usual")
    assert {one["mode"] for one in (*told, *exact)} == {"synchronous"}
    for one in told:
        assert one["steps"] == told[0]["steps"]
        assert one["end"] == pytest.approx(exact[0]["end"], abs=1e-5)


def test_a_strategy_that_sums_averages_over_all(paceline_command: str) -> None:
    told = play(paceline_command, 3, "ring", "learn", "groups")
    assert all(one["steps"] == told[0]["steps"] for one in told)


def test_an_ensemble_that_cannot_be_is_refused() -> None:
    for wrong in ({"ensemble": 0}, {"ensemble": 1, "after": -1}):
        with pytest.raises(PacelineError):
            pl.GroupAveraging(**wrong)
