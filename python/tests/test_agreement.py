"""Settings that change while PyTorch trains: on all workers at one step, and without a trace in the results."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from conftest import PROGRAMS, run_launcher, run_ranks

pytest.importorskip("torch")

PROGRAM = PROGRAMS / "agreement.py"


def results(output: str) -> list[dict[str, Any]]:
    return [json.loads(line.split("RESULT ")[1]) for line in output.splitlines() if "RESULT " in line]


def changed_together(workers: list[dict[str, Any]], partition: int) -> None:
    """All workers saw the same, and the change at the step that was announced to the one that proposed."""
    announced = [worker["agreed"] for worker in workers if worker["agreed"]]
    assert len(announced) == 1
    version, step = announced[0]
    assert 5 < step < 16
    for worker in workers:
        assert worker["seen"] == workers[0]["seen"]
        for number, (in_force, size, credit) in enumerate(worker["seen"]):
            assert (in_force == version) == (number >= step)
            assert (size == partition and credit == 12345) == (number >= step)


@pytest.mark.parametrize("which", ["ours", "ddp"])
def test_two_workers_change_at_one_step_with_results_as_if_they_had_not(which: str) -> None:
    # As under torchrun: rank 0 hosts the coordinator. Two workers' sums are the same however they are cut.
    runs = {}
    for change in ("none", "3KiB"):
        ranks = run_ranks(2, PROGRAM, which, change)
        assert [rank.code for rank in ranks] == [0, 0], ranks[0].errors + ranks[1].errors
        runs[change] = [results(rank.output)[0] for rank in ranks]
    changed_together(runs["3KiB"], 3 << 10)
    digests = {worker["digest"] for run in runs.values() for worker in run}
    assert len(digests) == 1


def test_four_workers_change_at_one_step_under_our_launcher(paceline_command: str) -> None:
    runs = {}
    for change in ("none", "2KiB"):
        launch = (paceline_command, "run", "-n", "4", "--strategy", "recursive_doubling", "--")
        run = run_launcher(*launch, sys.executable, PROGRAM, "ours", change)
        assert run.returncode == 0, run.stderr
        runs[change] = results(run.stdout)
        assert len(runs[change]) == 4
    changed_together(runs["2KiB"], 2 << 10)
    digests = {worker["digest"] for run in runs.values() for worker in run}
    assert len(digests) == 1
