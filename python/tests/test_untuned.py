"""Where a job is to be tuned and cannot be, or its decisions cannot be written, somebody hears of it."""

from __future__ import annotations

import pathlib
import sys

import pytest
from conftest import PROGRAMS, run_launcher

WEIGHTS = pathlib.Path(__file__).resolve().parents[2] / "crates" / "learn" / "weights" / "metanet.bin"
#: Takes so many steps by our optimizer, or by nobody's.
PROGRAM = """
import sys
import torch
import paceline.torch as pl

pl.init()
model = torch.nn.Linear(8, 8)
steps = int(sys.argv[1])
if steps:
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
for _ in range(steps):
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
pl.shutdown()
"""


def surrounded(command: str, variables: dict[str, str]) -> tuple[str, ...]:
    """The command with these variables."""
    return ("env", *(f"{name}={value}" for name, value in variables.items()), command)


def said(command: str, workers: int, steps: int, environment: dict[str, str], *options: str) -> list[str]:
    """What was said of tuning."""
    program = ("--", sys.executable, "-c", PROGRAM, str(steps))
    run = (*surrounded(command, environment), "run", "-q", "-n", str(workers), *options)
    done = run_launcher(*run, *program)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "tuning" in line]


@pytest.mark.parametrize(
    ("workers", "steps", "environment", "words"),
    [
        (2, 5, {"PACELINE_METRICS": "off"}, "can do nothing: workers do not measure"),
        (1, 5, {}, "can do nothing: a job of one worker"),
        (2, 0, {}, "did nothing: the program trained neither by `DistributedOptimizer` nor by DDP"),
        (2, 0, {"PACELINE_METRICS": "off"}, "did nothing: workers do not measure"),
        (2, 1, {}, "did nothing: no metrics were ever seen"),
    ],
)
def test_worker_0_says_once_why_nothing_is_tuned(
    paceline_command: str, workers: int, steps: int, environment: dict[str, str], words: str
) -> None:
    lines = said(paceline_command, workers, steps, environment, "--tune", "replay")
    assert len(lines) == 1 and words in lines[0], lines
    assert not said(paceline_command, workers, steps, environment)


def test_nothing_is_said_where_a_tuner_observed_the_job(paceline_command: str) -> None:
    assert not said(paceline_command, 2, 100, {}, "--tune", "autobyte", "--tune-weights", str(WEIGHTS))


def test_weights_that_cannot_be_read_are_named_whoever_launches(paceline_command: str) -> None:
    program = ("--", sys.executable, "-c", PROGRAM, "1")
    missing = {"PACELINE_TUNE": "autobyte", "PACELINE_TUNE_WEIGHTS": "/no/such.bin"}
    done = run_launcher(*surrounded(paceline_command, missing), "run", "-q", "-n", "2", *program)
    assert done.returncode == 1 and "the weights /no/such.bin cannot be used" in done.stderr


def test_decisions_that_cannot_be_written_are_said_once_and_the_job_goes_on(paceline_command: str) -> None:
    poor = ("--strategy", "ring", "--partition", "2KiB", "--credit", "2KiB", "--insecure")
    options = ("-q", "-n", "2", *poor, "--tune", "replay", "--tune-log", "/dev/full")
    done = run_launcher(paceline_command, "run", *options, "--", sys.executable, PROGRAMS / "tuning.py", "ours")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("decisions cannot be written to /dev/full: No space left") == 1, done.stderr
