"""Workers that come to a running job of PyTorch's and leave it, with real processes under ``paceline run --elastic``."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from conftest import LIMIT, PROGRAMS, environment, etcd_server, long

SAMPLES = 1200

#: Of the model that elastic.py trains.
PARAMETERS = 8


class Job:
    """A job that runs, and what it wrote so far."""

    def __init__(
        self,
        paceline: str,
        size: int,
        name: str | None,
        *options: str,
        program: str = "elastic.py",
        arguments: Sequence[str] = (),
        **more: str,
    ) -> None:
        self.paceline, self.name = paceline, name or ""
        named = ["--name", name] if name else []
        command = [paceline, "run", "-n", str(size), "--elastic", *named, *options]
        self.process = subprocess.Popen(
            [*command, "--", "python", str(PROGRAMS / program), *arguments],
            env=environment(PATH=python_first(), **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, pattern: str) -> str:
        """The first line that has it."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            if self.process.poll() is not None:
                self._reader.join()
                break
            time.sleep(0.02)
        found = [line for line in self.lines if re.search(pattern, line)]
        assert found, f"no line has {pattern}: " + "\n".join(self.lines)
        return found[0]

    def tell(self, *words: str) -> str:
        """Say something to the job by its name."""
        return subprocess.run(
            [self.paceline, words[0], self.name, *words[1:]],
            env=environment(), capture_output=True, text=True, timeout=LIMIT, check=True,
        ).stdout  # fmt: skip

    def status(self) -> list[dict[str, Any]]:
        """Who is connected."""
        return json.loads(self.tell("status", "--json"))["members"]

    def spare(self) -> int:
        """A process that waits until it is needed, once there is one."""
        found: list[int] = []
        self.wait_until(lambda: found.extend(it["process"] for it in self.status() if it["standing"] == "spare") or bool(found))
        return found[0]

    def pipes(self) -> int:
        """How many ``paceline run`` holds."""
        held = pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()
        return sum(os.readlink(descriptor).startswith("pipe:") for descriptor in held)

    def wait_until(self, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not so():
            assert time.monotonic() < deadline, "\n".join(self.lines)
            time.sleep(0.05)

    def finish(self) -> int:
        """Its exit code, when all is written."""
        code = self.process.wait(LIMIT)
        self._reader.join()
        return code

    def wait_for_latest(self, pattern: str, member: int = 0) -> None:
        """Until this is what a member was dealt last."""

        def latest() -> str:
            dealt = [line for line in list(self.lines) if re.search(rf"dealt \d+ {member} ", line)]
            return dealt[-1] if dealt else ""

        self.wait_until(lambda: re.search(pattern, latest()) is not None)

    def check(self, finished: int, epochs: int = 1, reach: int = 2, left: int = 0) -> None:
        """All who finished have the same parameters and made the same updates, and every sample was trained on once.

        Of ``reach`` steps samples come back if a worker dies, and if one of the ``left`` leaves.
        """
        assert self.finish() == 0, "\n".join(self.lines)
        ends = [line.split("parameters ")[1] for line in self.lines if "parameters " in line]
        assert len(ends) == finished and len(set(ends)) == 1, "\n".join(self.lines)
        dealt = {}
        for line in self.lines:
            match = re.search(r"dealt (\d+) (\d+) ([\d,]+) size=\d+ epoch=(\d+)", line)
            if match:
                samples = [int(match[4]) * SAMPLES + int(sample) for sample in match[3].split(",")]
                dealt[int(match[1]), int(match[2])] = samples
        # Of those who were killed, what came back was dealt again.
        killed = [line for line in self.lines if "was ended by SIGKILL" in line]
        counts = collections.Counter(sample for samples in dealt.values() for sample in samples)
        again = [sample for sample, count in counts.items() if count > 1]
        assert set(counts) == set(range(epochs * SAMPLES))
        # A share of a few steps at most, all of it one worker's.
        gone = len(killed) + left
        assert len(again) <= 4 * reach * gone and max(counts.values()) <= 1 + gone, again


def python_first() -> str:
    import sys

    return f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def name() -> Iterator[str]:
    yield f"test-{os.getpid()}-{time.monotonic_ns()}"


@pytest.mark.parametrize("strategy", ["auto", "shuffle"])
def test_workers_are_added_and_removed_while_the_job_trains(
    paceline_command: str, name: str, tmp_path: pathlib.Path, strategy: str
) -> None:
    held = tmp_path / "enough"
    options = ("--min", "1", "--max", "4", "--strategy", strategy)
    job = Job(paceline_command, 2, name, *options, TEST_HELD=str(held))
    job.wait_for(r"dealt 5 ")
    job.tell("resize", "3")
    # In groups, workers have parameters of their own.
    job.wait_for(rf"ready joined=True listened={strategy == 'auto'} size=3")
    job.wait_for(r"dealt \d+ 2 .*size=3")
    status = json.loads(job.tell("status", "--json"))
    assert [member["rank"] for member in status["members"]] == [0, 1, 2]
    assert "3 workers" in job.tell("status")
    job.tell("resize", "2")
    job.wait_for(r"exited|dealt [1-9]\d+ 0 .*size=2")
    held.touch()
    job.check(2)


@pytest.mark.parametrize(
    ("extra", "listened"),
    [
        long("policies, slows", True),
        # In eight steps, a parameter in each; the second newcomer comes in the middle of it, and the first begins anew.
        ("policies, slows, bit by bit", True),
        long("sums, bit by bit", False),
        # What it keeps besides, and changes after each step.
        ("averages", True),
        long("averages, sums", False),
        # Operations of the program's own: in each step, and in none but that in which the newcomer listens.
        ("sums", False),
        long("adds", True),
        # What cannot be followed: gradients and parameters that the program changes.
        ("clips", False),
        long("skips", True),
        long("writes", False),
    ],
)
def test_a_newcomer_listens_to_a_step_of_whatever_the_others_do(
    paceline_command: str, name: str, tmp_path: pathlib.Path, extra: str, listened: bool
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, TEST_HELD=str(held), TEST_EXTRA=extra)
    job.wait_for(r"dealt 5 ")
    job.tell("resize", "4")
    for size in (3, 4):
        job.wait_for(rf"ready joined=True listened={listened} size={size}|ready joined=True .* size=4")
    held.touch()
    job.check(4)
    came = [line for line in job.lines if "joined=True" in line]
    assert sum(f"listened={listened}" in line for line in came) == 2, "\n".join(job.lines)
    steps = [int(re.search(r"steps=(\d+)", line)[1]) for line in came]
    # Who trains at last has heard a step for each parameter, one after another.
    assert not listened or min(steps) >= (PARAMETERS if "bit by bit" in extra else 1), "\n".join(job.lines)


def test_newcomers_close_together_are_let_in_where_processes_load_the_data(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    # Processes that are forked while workers meet have copies of all that these have open.
    job = Job(paceline_command, 2, name, "--max", "5", "--spare", "3", TEST_HELD=str(held), TEST_LOADERS="2")
    job.wait_for(r"dealt 5 ")
    job.wait_until(lambda: sum(member["standing"] == "spare" for member in job.status()) == 3)
    for size in (3, 4, 5):
        job.tell("resize", str(size))
        time.sleep(0.3)
    for member in (2, 3, 4):
        job.wait_for(rf"dealt \d+ {member} .* size=5")
    held.touch()
    job.check(5)


# In the step that a newcomer listens to, one of the others or itself; or in what follows that step, which members change after.
@pytest.mark.parametrize(
    ("dies", "size"),
    [
        ("0 is killed", 2), long("1 is killed", 2), long("dies entering", None), ("dies listening", None),
        long("0 is killed after the step", 3), ("1 is killed after the step", 3),
    ],
)  # fmt: skip
def test_one_that_is_killed_while_the_state_travels_holds_up_nobody(
    paceline_command: str, name: str, tmp_path: pathlib.Path, dies: str, size: int | None
) -> None:
    held = tmp_path / "enough"
    # Tens of megabytes, in pieces of two workers: those of the one that dies as the step begins come from the other.
    job = Job(paceline_command, 2, name, "--min", "1", TEST_HELD=str(held), TEST_EXTRA=dies, TEST_WIDTH="20000")
    job.wait_for(r"dealt 5 ")
    job.tell("resize", "3")
    job.wait_for(r"was ended by SIGKILL")
    if size is not None:
        job.wait_for(f"ready joined=True listened=True size={size}")
    held.touch()
    job.check(2)


# Where workers compare, where rank 0 has given away some of its parameters, and one that only gets them.
@pytest.mark.parametrize("dies", [long("0:0"), long("0:1"), "0:7", "1:0", long("1:6")])
def test_one_that_is_killed_before_the_first_step_leaves_the_others_to_begin_without_it(
    paceline_command: str, name: str, dies: str
) -> None:
    job = Job(paceline_command, 3, name, "--min", "2", TEST_DIE_BEFORE=dies)
    job.wait_for(r"goes on with 2 workers")
    # Equal parameters at the end, and every sample once: those that were dealt to it in the first step come back.
    job.check(2)


def test_the_next_worker_reads_the_checkpoint_where_the_first_is_killed_meanwhile(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    saved = {"TEST_SAVED": str(tmp_path / "saved")}
    Job(paceline_command, 2, name, **saved).check(2)
    job = Job(paceline_command, 3, name, "--min", "1", TEST_DIE_RESTORING="0", TEST_EPOCHS="2", **saved)
    job.wait_for(r"the job goes on after step 1\d\d, .* with \d workers")
    assert job.finish() == 0, "\n".join(job.lines)
    assert sum("parameters" in line for line in job.lines) == 2


def test_a_newcomer_leaves_the_checkpoints_of_the_others_alone(paceline_command: str, name: str, tmp_path: pathlib.Path) -> None:
    schedule, held = tmp_path / "schedule.toml", tmp_path / "held"
    schedule.write_text('[[at]]\nstep = 3\npartition = "2MiB"\n')
    more = {"TEST_SAVED": str(tmp_path / "saved"), "TEST_HELD": str(held)}
    job = Job(paceline_command, 2, name, "--max", "3", "--policy", f"schedule:{schedule}", **more)
    # What it would find there holds settings that policies chose.
    job.wait_for(r"dealt 12 ")
    job.tell("resize", "3")
    job.wait_for(r"ready joined=True")
    held.touch()
    job.check(3)
    assert not [line for line in job.lines if "was not written" in line or "goes on after step" in line]


def test_a_newcomer_that_enters_as_an_epoch_ends_begins_with_the_next(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    # A newcomer is let in a few steps after the one that all are in: here, where the last one is over.
    late = SAMPLES // 8 - 3
    job = Job(paceline_command, 2, name, TEST_HELD=str(held), TEST_HELD_IN=str(late), TEST_EPOCHS="2")
    job.wait_for(rf"dealt {late} ")
    job.tell("resize", "3")
    job.wait_for(r"\[2\] built")
    held.touch()
    job.wait_for(r"ready joined=True")
    job.check(3, epochs=2)


def test_a_newcomer_goes_on_alone_where_the_others_end_in_the_step_it_listens_to(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, "--min", "1", TEST_HELD=str(held), TEST_EXTRA="ends")
    job.wait_for(r"dealt 5 ")
    job.tell("resize", "3")
    job.wait_for(r"ready joined=True listened=False")
    held.touch()
    assert job.finish() == 0, "\n".join(job.lines)
    # It goes on where they were, and has the rest of the samples.
    assert sum("parameters " in line for line in job.lines) == 1
    job.wait_for(r"dealt \d+ 2 .* size=1")


def test_a_worker_that_is_killed_does_not_end_a_job_that_is_tuned(paceline_command: str, name: str, tmp_path: pathlib.Path) -> None:
    log = tmp_path / "decisions.jsonl"
    job = Job(paceline_command, 3, name, "--min", "2", "--tune", "replay", "--tune-log", str(log), TEST_DIE_AT="12")
    job.wait_for(r"goes on with 2 workers")
    job.check(2)
    # Steps with those who are left are measured by all of them.
    assert sum("metrics of 2 workers" in line for line in job.lines) == 2, "\n".join(job.lines)
    assert all(json.loads(line)["step"] > 0 for line in log.read_text().splitlines())


def test_a_worker_whose_machine_is_taken_away_leaves_between_two_steps(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 3, name, "--min", "2", "--policy", "spot", TEST_HELD=str(held))
    job.wait_for(r"dealt 5 ")
    members = json.loads(job.tell("status", "--json"))["members"]
    first, second, third = (member["process"] for member in members)
    os.kill(third, signal.SIGTERM)
    job.wait_for(r"SIGTERM says that this machine is to be given back")
    job.wait_for(r"dealt \d+ 0 .*size=2")
    # The job needs the others: who wants to leave all the same is told why it stays.
    os.kill(second, signal.SIGTERM)
    job.wait_for(r"wants to leave: .*needs 2 workers")
    held.touch()
    job.check(2)


def test_one_that_leaves_by_its_own_wish_lets_nobody_be_started_for_another_that_died(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 4, name, "--min", "2", "--policy", "spot", TEST_HELD=str(held))
    job.wait_for(r"dealt 5 ")
    _, _, third, fourth = (member["process"] for member in job.status())
    os.kill(third, signal.SIGKILL)
    job.wait_for(r"goes on with 3 workers")
    os.kill(fourth, signal.SIGTERM)
    job.wait_for_latest(r"size=2 ")
    held.touch()
    # Nobody came, so all lines "built" are of those who were there from the beginning.
    job.check(2, left=1)
    assert len([line for line in job.lines if line.endswith("built")]) == 4


def test_a_spare_whose_machine_is_taken_away_goes_and_another_waits_in_its_place(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, "--spare", "1", "--policy", "spot", TEST_HELD=str(held))
    job.wait_for(r"dealt 5 ")
    spare = job.spare()
    os.kill(spare, signal.SIGTERM)
    job.wait_for(r"policy spot: SIGTERM says that this machine is to be given back")
    job.wait_for(rf"pid {spare}\) exited with code 0 before it took part in the job .*another process is started \(1 of 10")
    job.wait_until(lambda: any(it["standing"] == "spare" and it["process"] != spare for it in job.status()))
    held.touch()
    assert job.finish() == 0


def test_workers_killed_while_they_train_in_groups_leave_the_others_to_agree(paceline_command: str, name: str) -> None:
    kills = f"{random.randrange(8, 30)},{random.randrange(35, 60)}"
    job = Job(paceline_command, 4, name, "--min", "2", "--strategy", "shuffle", TEST_DIE_AT=kills)
    job.wait_for(r"goes on with 3 workers")
    job.wait_for(r"goes on with 2 workers")
    print(f"killed at steps {kills}")
    job.check(2)


@pytest.mark.parametrize(("mode", "reach"), [long("averaging", 2), ("pairs", 9), long("local", 9)])
def test_a_policy_averages_models_while_there_are_many_workers_and_they_come_go_and_die(
    paceline_command: str, name: str, tmp_path: pathlib.Path, mode: str, reach: int
) -> None:
    held = tmp_path / "enough"
    options = ("--min", "1", "--max", "4", "--policy", f"averaging:at=3,mode={mode}")
    job = Job(paceline_command, 2, name, *options, TEST_HELD=str(held))
    job.wait_for(r"dealt 5 .*mode=synchronous")
    job.tell("resize", "3")
    job.wait_for_latest(rf"size=3 .*mode={mode}")
    # One comes where workers have copies of their own, and one dies there.
    job.tell("resize", "4")
    job.wait_for(r"ready joined=True listened=False size=4")
    for member in (0, 3):
        job.wait_for_latest(rf"size=4 .*mode={mode}", member)
    os.kill(job.status()[1]["process"], signal.SIGKILL)
    job.wait_for(r"goes on with 3 workers")
    job.wait_for_latest(rf"size=3 .*mode={mode}")
    job.tell("resize", "2")
    job.wait_for_latest(r"size=2 .*mode=synchronous")
    # And from there again: where others have come once, they come once more.
    job.tell("resize", "3")
    job.wait_for_latest(rf"size=3 .*mode={mode}", member=4)
    held.touch()
    job.check(3, reach=reach, left=1)


@pytest.mark.parametrize("mode", [long("averaging"), long("pairs"), "local"])
def test_workers_killed_while_they_average_models_leave_the_others_to_agree(
    paceline_command: str, name: str, mode: str
) -> None:
    kills = f"{random.randrange(8, 30)},{random.randrange(35, 60)}"
    job = Job(paceline_command, 4, name, "--min", "2", "--policy", f"averaging:at=1,mode={mode}", TEST_DIE_AT=kills)
    job.wait_for(r"goes on with 2 workers")
    print(f"killed at steps {kills}")
    job.check(2, reach=9)
    assert any(f"mode={mode}" in line for line in job.lines)


def test_a_mode_that_cannot_go_on_without_lost_workers_is_refused_with_those_that_can(paceline_command: str, name: str) -> None:
    job = Job(paceline_command, 2, name, "--policy", "averaging:at=1,mode=asynchronous")
    job.wait_for(r"mode stays as it is: mode asynchronous: .*choose averaging, pairs, groups or local")
    job.check(2)
    assert all("mode=synchronous" in line for line in job.lines if "dealt " in line)


@pytest.fixture
def etcd(tmp_path: pathlib.Path) -> Iterator[str]:
    with etcd_server(tmp_path) as address:
        yield address


def test_machines_meet_in_etcd_and_the_job_outlives_the_one_that_came_first(
    paceline_command: str, name: str, etcd: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    options = ("--min", "1", "--max", "4", "--rendezvous", f"etcd://{etcd}/{name}", "--world", "3", "--partition", "64KiB")
    more = {"TEST_HELD": str(held), "PACELINE_SECRET": "a secret for two machines"}
    first, second = (Job(paceline_command, size, None, *options, **more) for size in (1, 2))
    second.wait_for(r"dealt 5 .*size=3")
    # With all that it started.
    first.process.kill()
    second.wait_for(r"dealt \d+ \d+ .*size=2")
    held.touch()
    assert second.finish() == 0, "\n".join(second.lines)
    ends = [line.split("parameters ")[1] for line in second.lines if "parameters " in line]
    assert len(ends) == 2 and len(set(ends)) == 1, "\n".join(second.lines)
    first.finish()


def test_fewer_workers_than_needed_end_the_job_with_the_reason(paceline_command: str, name: str) -> None:
    job = Job(paceline_command, 2, name, "--min", "2", TEST_DIE_AT="5")
    assert job.finish() == 137
    job.wait_for(r"the job failed: rank \d .* was ended by SIGKILL")


def test_a_spare_is_let_in_by_resize_and_another_takes_its_place_until_the_job_ends(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, "--min", "1", "--max", "3", "--spare", "1", TEST_HELD=str(held))
    # The name is known from the first line on.
    job.wait_for(r"dealt 1 ")
    spare = job.spare()
    assert [member["rank"] for member in job.status()] == [0, 1, None]
    assert "2 workers, 1 spare" in job.tell("status")
    job.tell("resize", "3")
    job.wait_for(rf"ready joined=True listened=\w+ size=3 steps=\d+ process={spare}")
    another = job.spare()
    assert another != spare and len(job.status()) == 4
    # Those who are too many leave, and spares stay what they are.
    job.tell("resize", "2")
    job.wait_until(lambda: [member["rank"] for member in job.status()] == [0, 1, None])
    assert job.spare() == another
    held.touch()
    job.check(2)
    assert is_gone(spare) and is_gone(another)
    assert not any("exited with code" in line or "restarts" in line for line in job.lines), "\n".join(job.lines)


def test_a_spare_takes_the_place_of_a_worker_that_is_killed(paceline_command: str, name: str, tmp_path: pathlib.Path) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, "--spare", "1", "--restarts", "1", TEST_HELD=str(held))
    job.wait_for(r"dealt 1 ")
    spare, pipes = job.spare(), job.pipes()
    killed = job.status()[1]["process"]
    os.kill(killed, signal.SIGKILL)
    job.wait_for(rf"ready joined=True listened=\w+ size=2 steps=\d+ process={spare}")
    job.wait_for(r"goes on with 1 worker; another process is started \(1 of 1 restarts\)")
    another = job.spare()
    os.kill(another, signal.SIGKILL)
    job.wait_for(r"goes on with 2 workers; no other process is started: all 1 restarts are used")
    # Nothing is left of those two while the job goes on, and of the pipes that they wrote to.
    job.wait_until(lambda: not any(pathlib.Path(f"/proc/{process}").exists() for process in (killed, another)))
    job.wait_until(lambda: job.pipes() == pipes - 2)
    held.touch()
    assert job.finish() == 0, "\n".join(job.lines)
    assert sum("parameters " in line for line in job.lines) == 2


def test_workers_that_die_are_started_again_as_often_as_was_asked(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, "--restarts", "1", TEST_HELD=str(held))
    job.wait_for(r"dealt 1 ")
    os.kill(job.status()[1]["process"], signal.SIGKILL)
    job.wait_for(r"another process is started \(1 of 1 restarts\)")
    came = job.wait_for(r"ready joined=True listened=\w+ size=2")
    os.kill(int(came.split("process=")[1]), signal.SIGKILL)
    job.wait_for(r"no other process is started: all 1 restarts are used")
    held.touch()
    job.check(1)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_spares_end_with_a_job_that_is_ended(paceline_command: str, name: str, tmp_path: pathlib.Path, ending: signal.Signals) -> None:
    job = Job(paceline_command, 1, name, "--spare", "2", TEST_HELD=str(tmp_path / "never"))
    job.wait_for(r"dealt 1 ")
    job.spare()
    processes = [member["process"] for member in job.status()]
    job.process.send_signal(ending)
    assert job.finish() == (128 + ending if ending == signal.SIGTERM else -ending)
    job.wait_until(lambda: all(map(is_gone, processes)))


def is_gone(process: int) -> bool:
    """Whether it has ended, though nobody may have looked at it yet."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ddp_says_what_to_use_instead(paceline_command: str, name: str) -> None:
    job = Job(paceline_command, 2, name, "--min", "1", program="elastic_ddp.py")
    job.wait_for("trains")
    job.tell("resize", "1")
    job.wait_for(r"came to the job or left it.*pl.elastic\(model=model")
    job.finish()


def test_a_newcomer_to_ddp_is_told_what_to_use_instead_and_the_others_go_on(paceline_command: str, name: str) -> None:
    job = Job(paceline_command, 2, name, "--min", "1", program="elastic_ddp.py")
    job.wait_for("trains")
    job.tell("resize", "3")
    job.wait_for(r"this worker came to a running job.*pl.elastic\(model=model")
    job.wait_for(r"exited with code 1 before it took part in the job .*goes on with 2 workers")
    job.process.terminate()
    job.finish()


@pytest.mark.parametrize("extra", ["sums, dies first", long("shows, dies first")])
def test_what_a_program_sums_for_itself_holds_nothing_of_the_samples_of_a_worker_that_is_killed(
    paceline_command: str, name: str, extra: str
) -> None:
    job = Job(paceline_command, 3, name, TEST_EXTRA=extra, TEST_DIE_AT="10")
    job.check(2)
    dealt = [match for line in job.lines if (match := re.search(r"dealt (\d+) (\d+) ([\d,]+) size=", line))]
    lost = {sample for match in dealt if (match[1], match[2]) == ("10", "1") for sample in match[3].split(",")}
    again = {sample for match in dealt if int(match[1]) > 10 for sample in match[3].split(",")}
    assert lost and lost <= again, "\n".join(job.lines)


def test_a_newcomer_of_a_program_that_expects_none_does_not_train_alone(
    paceline_command: str, name: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    job = Job(paceline_command, 2, name, TEST_EXTRA="expects nobody", TEST_HELD=str(held))
    job.wait_for("dealt 5 ")
    job.tell("resize", "3")
    job.wait_for(r"enters before its first step .*pl.elastic\(model=model")
    job.wait_for(r"exited with code 1 before it took part in the job .*goes on with 2 workers")
    held.touch()
    assert job.finish() == 0
