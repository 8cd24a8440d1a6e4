"""Starts real workers on loopback, and sees that nothing of them is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

PROGRAMS = pathlib.Path(__file__).parent / "programs"
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
#: No test may take longer, in seconds, even where every core is busy.
LIMIT = 150.0


def long(*values: object) -> Any:
    """A case of a test of which others are always run: this one only by `scripts/test --long`, as what is marked so."""
    return pytest.param(*values, marks=pytest.mark.long)


@dataclasses.dataclass
class Outcome:
    """How one rank ended."""

    code: int
    output: str
    errors: str


def environment(**more: str) -> dict[str, str]:
    """Ours, without what a launcher around the tests may have set."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in launcher and not name.startswith(("PACELINE_", "OMPI_", "SLURM_", "TORCHELASTIC"))
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::FutureWarning", **more}


def free_port() -> int:
    """A port for workers to meet at, not of those that the kernel gives to whoever connects meanwhile."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("of 100 ports between 20000 and 30000 none is free")


@contextlib.contextmanager
def etcd_server(folder: pathlib.Path) -> Iterator[str]:
    """A real one; the address at which it answers."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("no etcd; on Debian or Ubuntu: apt-get install etcd-server")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    process = subprocess.Popen(
        [program, "--data-dir", folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
         "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield client.removeprefix("http://")
    finally:
        process.kill()
        process.wait()


def run_ranks(size: int, *command: str | pathlib.Path, secret: bool = True, limit: float = LIMIT) -> list[Outcome]:
    """Start ``size`` Python processes with torchrun's variables, and wait for all of them."""
    port = free_port()
    given = {"PACELINE_SECRET": secrets.token_hex(32)} if secret else {}
    ranks = []
    for rank in range(size):
        variables = environment(
            RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            **given,
        )
        output, errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        process = subprocess.Popen(
            [sys.executable, *map(str, command)], env=variables, stdout=output, stderr=errors
        )
        ranks.append((process, output, errors))
    deadline = time.monotonic() + limit
    outcomes = []
    try:
        for process, output, errors in ranks:
            code = process.wait(max(deadline - time.monotonic(), 0.1))
            output.seek(0)
            errors.seek(0)
            outcomes.append(Outcome(code, output.read(), errors.read()))
    finally:
        for process, output, errors in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
            output.close()
            errors.close()
    return outcomes


def run_launcher(*command: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run a launcher such as torchrun, and wait for it."""
    return subprocess.run(
        list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=LIMIT
    )


@pytest.fixture(scope="session")
def paceline_command() -> str:
    """The `paceline` command: what PACELINE_COMMAND names, what cargo built, or what is installed."""
    root = pathlib.Path(__file__).parents[2]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    candidates = [os.environ.get("PACELINE_COMMAND"), target / "release/paceline", target / "debug/paceline"]
    for candidate in candidates:
        if candidate and pathlib.Path(candidate).exists():
            return str(candidate)
    found = shutil.which("paceline")
    if found is None:
        pytest.skip("no `paceline` command; `cargo build` makes it")
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_in_shared_memory() -> Iterator[None]:
    folder = pathlib.Path("/dev/shm")
    before = set(folder.glob("paceline*"))
    yield
    time.sleep(0.2)
    # Benchmarks of this machine may come and go; what tests started is over.
    new = set(folder.glob("paceline*")) - before - set(folder.glob("paceline-bench-*"))
    left = {path for path in new if path.stat().st_uid == os.getuid()}
    assert not left, f"left in shared memory: {sorted(map(str, left))}"
