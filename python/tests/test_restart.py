"""What policies made of a job, and copies that workers train by themselves, are as they were after a restart or a change of members."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import sys
import time
from typing import Any

import pytest
from conftest import PROGRAMS, long, run_launcher
from test_elastic import Job

torch = pytest.importorskip("torch")

from paceline.torch import checkpoints  # noqa: E402

PROGRAM = PROGRAMS / "restarted.py"
NOISE = "noise_scale:most=16,rule=linear,every=5"


def train(paceline: str, size: int, folder: pathlib.Path, steps: int, *options: str, mode: str = "") -> list[dict[str, Any]]:
    """What each worker says of it, by rank."""
    folder.mkdir(exist_ok=True)
    command = [paceline, "run", "-q", "--no-prefix", "-n", str(size), *options, "--", sys.executable, str(PROGRAM)]
    run = run_launcher(*command, str(folder), str(steps), *([mode] if mode else []))
    assert run.returncode == 0, run.stderr
    lines = [line.split("RESULT ")[1] for line in run.stdout.splitlines() if "RESULT " in line]
    told = sorted((json.loads(line) for line in lines), key=lambda one: one["rank"])
    assert len(told) == size
    return told


def end(job: Job, folder: pathlib.Path) -> None:
    """All workers end after one step, which nobody has come to yet."""
    latest = max(int(step) for line in list(job.lines) for step in re.findall(r'^.*member \d+ {"step": (\d+)', line))
    (folder / "soon").write_text(str(latest + 100))
    (folder / "soon").rename(folder / "enough")
    assert job.finish() == 0, "\n".join(job.lines)


def test_a_job_that_is_restarted_sets_batches_and_rates_like_one_that_never_was(paceline_command: str, tmp_path: pathlib.Path) -> None:
    undisturbed = train(paceline_command, 2, tmp_path / "one", 30, "--policy", NOISE)[0]["course"]
    before = train(paceline_command, 2, tmp_path / "two", 20, "--policy", NOISE)[0]["course"]
    after = train(paceline_command, 2, tmp_path / "two", 30, "--policy", NOISE)
    assert all(one["restored"] for one in after) and after[0]["course"] == after[1]["course"]
    chosen = [[(now["step"], now["batch"], now["factor"]) for now in course] for course in (undisturbed, before + after[0]["course"])]
    assert chosen[0] == chosen[1]
    # The batch of both workers has grown from 8 to 32, so it is not what a restart begins with.
    assert chosen[1][-1] == (30, 16, 4.0)
    # What is known of the noise is not forgotten, either.
    assert after[0]["course"][0]["noise"] == pytest.approx(before[-1]["noise"], rel=0.2)


def test_workers_that_are_left_when_the_first_are_gone_set_rates_by_what_those_began_with(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    job = Job(
        paceline_command, 2, name, "--min", "1", "--max", "4", "--policy", NOISE, program="restarted.py", arguments=(str(tmp_path), "0")
    )

    def holds(member: int, **what: Any) -> bool:
        told = [line.split(f"member {member} ")[1] for line in list(job.lines) if f"member {member} " in line]
        return bool(told) and all(json.loads(told[-1])[key] == value for key, value in what.items())

    job.wait_until(lambda: holds(0, size=2, batch=16, factor=4.0))
    job.tell("resize", "4")
    job.wait_until(lambda: holds(3, size=4, batch=16, factor=8.0))
    for member in (0, 1):
        os.kill(job.status()[0]["process"], signal.SIGKILL)
        job.wait_until(lambda: holds(3, size=3 - member))
    # Nobody is left of those who saw the batch of the beginning, 4 for each of two.
    job.wait_until(lambda: all(holds(member, size=2, batch=16, factor=4.0) for member in (2, 3)))
    end(job, tmp_path)


def test_mode_and_settings_that_policies_chose_hold_after_a_restart_at_another_size(paceline_command: str, tmp_path: pathlib.Path) -> None:
    schedule = tmp_path / "schedule.toml"
    entries = ['batch = 8\npartition = "64KiB"', 'credit = "128KiB"\nmode = "local"', "learning_rate = 0.5"]
    schedule.write_text("".join(f"[[at]]\nstep = 3\n{entry}\n" for entry in entries))
    options = ("--policy", f"schedule:{schedule}")
    first = train(paceline_command, 2, tmp_path / "job", 20, *options)[0]["course"]
    begun, end = first[0], first[-1]
    assert (begun["mode"], begun["batch"], begun["factor"]) == ("synchronous", 4, 1.0)
    assert (end["mode"], end["batch"], end["factor"], end["partition"]) == ("local", 8, 0.5, 64 << 10)
    for worker in train(paceline_command, 3, tmp_path / "job", 40, *options):
        course = worker["course"]
        assert worker["restored"] and len(course) == 20
        assert {(now["mode"], now["batch"], now["factor"]) for now in course} == {("local", 8, 0.5)}
        # The settings take an agreement.
        assert course[-1]["partition"] == 64 << 10


def test_copies_are_saved_while_workers_come_and_die(paceline_command: str, tmp_path: pathlib.Path) -> None:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    options = ("--min", "1", "--max", "3", "--policy", "averaging:at=1,mode=local")
    job = Job(paceline_command, 2, name, *options, program="restarted.py", arguments=(str(tmp_path), "0"))

    def saved() -> int:
        return max((int(path.stem[5:]) for path in tmp_path.glob("saved/*.paceline")), default=0)

    def wait_for_another() -> None:
        begun = saved()
        job.wait_until(lambda: saved() >= begun + 20)

    wait_for_another()
    job.tell("resize", "3")
    job.wait_for(r'member 2 .*"mode": "local"')
    wait_for_another()
    # The next of them saves from here on.
    os.kill(job.status()[0]["process"], signal.SIGKILL)
    job.wait_for(r"goes on with 2 workers")
    wait_for_another()
    end(job, tmp_path)
    (tmp_path / "enough").unlink()
    last = saved()
    for worker in train(paceline_command, 2, tmp_path, last + 10, *options[4:]):
        assert worker["restored"] and [now["mode"] for now in worker["course"]] == ["local"] * 10


@pytest.mark.parametrize("mode", [long("averaging"), long("pairs"), "local", long("groups"), "asynchronous"])
def test_a_checkpoint_of_copies_is_their_mean_and_leaves_them_alone(paceline_command: str, tmp_path: pathlib.Path, mode: str) -> None:
    size = 4 if mode == "groups" else 3
    # A copy is averaged with few others at a time, so that it differs from the mean.
    options = ("--strategy", "shuffle") if mode == "groups" else ()
    train(paceline_command, size, tmp_path, 20, *options, mode=mode)
    state = checkpoints.read(next(tmp_path.glob("saved/*-000000000020.paceline")))
    before, after = (
        [torch.load(tmp_path / f"{when}-20-{rank}.pt", weights_only=True) for rank in range(size)] for when in ("before", "after")
    )
    parameters = [name for name in before[0]["model"] if "parts" in name]
    buffers = ["statistics.running_mean", "statistics.running_var"]
    for name in [*parameters, *buffers]:
        found = state["parts"]["model"][name]
        copies = [one["model"][name] for one in before]
        is_kept_by_servers = mode == "asynchronous" and name in parameters
        if not is_kept_by_servers:
            torch.testing.assert_close(found, torch.stack(copies).mean(0))
            assert all(torch.equal(one["model"][name], copy) for one, copy in zip(after, copies))
            assert not torch.equal(found, copies[0]), "they differ"
        else:
            assert all(torch.equal(one["model"][name], after[0]["model"][name]) for one in after)
            torch.testing.assert_close(found, after[0]["model"][name])
    momentum = [state["parts"]["optimizer"]["inner"]["state"][place]["momentum_buffer"] for place in range(len(parameters))]
    for found, name in zip(momentum, parameters):
        copies = [one["momentum"][name] for one in (after if mode == "asynchronous" else before)]
        torch.testing.assert_close(found, torch.stack(copies).mean(0))
        assert found.abs().sum() > 0
    # They go on from the mean, and what servers keep is no older.
    told = train(paceline_command, 2, tmp_path, 30, *options, mode=mode)
    assert all(one["restored"] for one in told)
    again = checkpoints.read(next(tmp_path.glob("saved/*-000000000030.paceline")))
    for name in parameters:
        moved = (again["parts"]["model"][name] - state["parts"]["model"][name]).abs().max()
        assert 0 < moved < 0.1, name
