"""Elastic jobs of PyTorch's that other launchers start, with a real etcd: torchrun, mpirun, and a real Slurm."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from conftest import LIMIT, PROGRAMS, environment, etcd_server, free_port
from test_elastic import SAMPLES, Job

CONFIGURATION = pathlib.Path(__file__).parents[2] / "crates/net/tests/slurm_support/slurm.conf"
PROGRAM = str(PROGRAMS / "elastic.py")


@pytest.fixture
def etcd(tmp_path: pathlib.Path) -> Iterator[str]:
    with etcd_server(tmp_path) as address:
        yield address


def variables(url: str, **more: str) -> dict[str, str]:
    return environment(PACELINE_COORDINATOR=url, PACELINE_SECRET="a secret for all launchers", PACELINE_JOIN_TIMEOUT="120", **more)


def run(command: list[str], given: dict[str, str]) -> str:
    """What it wrote. It must come to its end, and may then fail for a worker that was killed."""
    ran = subprocess.run(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
    return ran.stdout


def check(output: str, finished: int) -> None:
    """All who finished have the same parameters, and every sample was trained on, in the end by all who were left."""
    ends = re.findall(r"parameters (\S+)", output)
    assert len(ends) == finished and len(set(ends)) == 1, output
    dealt: collections.Counter[int] = collections.Counter()
    for numbers in re.findall(r"dealt \d+ \d+ ([\d,]+) ", output):
        dealt.update(int(number) for number in numbers.split(","))
    assert set(dealt) == set(range(SAMPLES)), output


def test_torchrun_starts_a_job_that_meets_in_etcd(etcd: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", PROGRAM]
    output = run(torchrun, variables(f"etcd://{etcd}/under-torchrun"))
    check(output, finished=3)
    assert re.search(r"dealt 5 .*size=3", output), output


def test_a_job_that_torchrun_restarts_as_a_whole_begins_anew(etcd: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", PROGRAM]
    output = run(torchrun, variables(f"etcd://{etcd}/restarted", TEST_DIE_AT="5"))
    assert "none of the workers of the job before came back: a new one begins" in output, output
    check(output, finished=2)


def test_workers_that_mpirun_started_outlive_one_that_is_killed(etcd: str) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("no mpirun; on Debian or Ubuntu: apt-get install openmpi-bin")
    given = variables(f"etcd://{etcd}/under-mpirun", TEST_DIE_AT="5", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    passed = [word for name in given if name.startswith(("PACELINE_", "TEST_", "PYTHON", "OMP_")) for word in ("-x", name)]
    recovery = ["--oversubscribe", "--mca", "orte_enable_recovery", "1"]
    output = run([mpirun, "-n", "3", *recovery, *passed, sys.executable, PROGRAM], given)
    check(output, finished=2)
    assert re.search(r"dealt \d+ \d+ .*size=3", output) and re.search(r"dealt \d+ \d+ .*size=2", output), output


@pytest.fixture
def slurm(tmp_path: pathlib.Path) -> Iterator[dict[str, str]]:
    """The variables that lead to a controller with three nodes on this machine."""
    daemons = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("slurmctld", "slurmd")]
    if None in daemons or os.geteuid() != 0:
        pytest.skip("needs root and Slurm; on Debian or Ubuntu: apt-get install slurm-wlm")
    host = socket.gethostname()
    text = CONFIGURATION.read_text()
    for name, value in {"host": host, "folder": tmp_path, "controller": free_port(), "daemon": free_port()}.items():
        text = text.replace(f"{{{name}}}", str(value))
    nodes = [f"NodeName=node{it} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4\n" for it in range(3)]
    (tmp_path / "slurm.conf").write_text("".join(nodes) + text)
    (tmp_path / "state").mkdir()
    given = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    commands = [[daemons[0], "-D", "-i"], *([daemons[1], "-D", "-N", f"node{it}"] for it in range(3))]
    with contextlib.ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((tmp_path / f"slurm-{number}.log").open("w"))
            process = subprocess.Popen(command, env={**os.environ, **given}, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
        deadline = time.monotonic() + LIMIT
        sinfo = ["sinfo", "-h", "-o", "%D %T"]
        while subprocess.run(sinfo, env={**os.environ, **given}, capture_output=True, text=True).stdout.strip() != "3 idle":
            assert time.monotonic() < deadline, "Slurm's nodes do not come up"
            time.sleep(0.2)
        yield given


def test_workers_that_slurm_started_outlive_one_that_is_killed(slurm: dict[str, str], etcd: str) -> None:
    given = {**variables(f"etcd://{etcd}/under-slurm", TEST_DIE_AT="5"), **slurm}
    output = run(["srun", "--nodes", "3", "--ntasks", "3", "--kill-on-bad-exit=0", sys.executable, PROGRAM], given)
    check(output, finished=2)
    assert re.search(r"dealt \d+ \d+ .*size=3", output) and re.search(r"dealt \d+ \d+ .*size=2", output), output


def test_a_job_that_meets_in_etcd_says_how_it_stands_and_is_made_smaller(
    paceline_command: str, etcd: str, tmp_path: pathlib.Path
) -> None:
    held, url = tmp_path / "enough", f"etcd://{etcd}/asked"
    given = {"TEST_HELD": str(held), "PACELINE_SECRET": "a secret of this job"}
    job = Job(paceline_command, 3, None, "--rendezvous", url, **given)
    job.wait_for(rf"`paceline status {url}`")
    job.wait_for(r"dealt 5 .*size=3")

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        command = [paceline_command, words[0], url, *words[1:]]
        return subprocess.run(command, env=environment(**given), capture_output=True, text=True, timeout=LIMIT)

    assert "3 workers" in ask("status").stdout
    assert [member["rank"] for member in json.loads(ask("status", "--json").stdout)["members"]] == [0, 1, 2]
    more = ask("resize", "4")
    assert more.returncode == 1 and "nobody here starts more" in more.stderr and "--rendezvous" in more.stderr, more
    assert ask("resize", "2").returncode == 0
    job.wait_for(r"dealt \d+ \d+ .*size=2")
    held.touch()
    assert job.finish() == 0, "\n".join(job.lines)
    gone = ask("status")
    assert gone.returncode == 1 and "no coordinator" in gone.stderr, gone


def test_a_policy_hears_that_nobody_starts_the_workers_it_wants(paceline_command: str, etcd: str, tmp_path: pathlib.Path) -> None:
    schedule = tmp_path / "schedule"
    schedule.write_text("[[at]]\nstep = 3\nsize = 4\n")
    job = Job(
        paceline_command, 2, None, "--rendezvous", f"etcd://{etcd}/wishing", "--policy", f"schedule:{schedule}",
        PACELINE_SECRET="a secret of this job",
    )  # fmt: skip
    job.wait_for(r"size stays as it is: .*nobody here starts more, up to 4")
    assert job.finish() == 0, "\n".join(job.lines)


@pytest.mark.long
def test_a_worker_that_is_frozen_is_given_up_and_another_takes_its_place(
    paceline_command: str, tmp_path: pathlib.Path
) -> None:
    held = tmp_path / "enough"
    name = f"frozen-{os.getpid()}"
    job = Job(paceline_command, 2, name, "--spare", "1", "--restarts", "1", TEST_HELD=str(held))
    job.wait_for(r"dealt 1 ")
    spare, frozen = job.spare(), job.status()[1]["process"]
    os.kill(frozen, signal.SIGSTOP)
    job.wait_until(lambda: any(it["process"] == frozen and it["standing"] == "slow" for it in job.status()))
    job.wait_for(r"worker 1 is gone: nothing was heard of it for 2\d s")
    job.wait_for(rf"ready joined=True listened=\w+ size=2 steps=\d+ process={spare}")
    job.wait_until(lambda: not pathlib.Path(f"/proc/{frozen}").exists())
    held.touch()
    assert job.finish() == 0, "\n".join(job.lines)
