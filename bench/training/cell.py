"""A cell of the training benchmark: one workload at one rate, measured by workers on the hosts of a testbed.

It starts `paceline-testbed` and brings back what worker 0 wrote. What the times mean is not known here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from profiles import Profile

#: A step without synchronisation.
ALONE = "alone"
#: All ways to train, in the order of the table.
WAYS = (ALONE, "ddp-gloo", "ddp-paceline", "optimizer-fifo", "optimizer")

#: Real models, and the samples of a worker's step where nothing else is asked for.
REAL = {"resnet50": 32, "vgg16": 32, "bert-base": 16, "gpt2": 8, "lstm": 32}

#: Seconds until four workers have imported PyTorch and met.
START = 15.0

#: What an interrupted testbed may take to clean up, in seconds.
CLEANING = 15.0


class CellError(RuntimeError):
    """A cell could not be measured; the text says why."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is measured."""

    workload: str
    #: What is played, as slow as it is to be; None where a real model is trained.
    profile: Profile | None
    #: How much slower than it was measured the profile is played.
    slow: float
    batch: int
    rate: str
    hosts: int
    #: Of the coordinator, as the command line of `paceline coordinator` has them.
    settings: str
    #: Settings to choose the best of, before the ways are compared.
    search: tuple[str, ...]
    search_steps: int
    ways: tuple[str, ...]
    rounds: int
    steps: int

    @property
    def name(self) -> str:
        slow = f" {self.slow:g}x slower" if self.slow != 1 else ""
        return f"{self.workload}{slow} at {self.rate}"

    def steps_of(self, way: str) -> int:
        """How many steps of this way are taken, those that only warm it up included."""
        compared = self.rounds * (self.steps + 1) + 1 if way in self.ways else 0
        searched = len(self.search) * (self.search_steps + 2) if way == "optimizer" else 0
        return compared + searched


class Testbed:
    """The command `paceline-testbed`, and at most one run of it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: subprocess.Popen[str] | None = None

    def check(self, hosts: int, rate: str) -> dict[str, Any]:
        """What raw TCP carries, all hosts at once: the lowest share of the rate, and how busy that keeps processors."""
        command = [self._command, "check", "--json", "--hosts", str(hosts), "--rate", rate]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            raise CellError(f"the testbed cannot be checked at {rate}: {done.stderr.strip()}") from None
        shares = [flow["together_mbit_per_second"] / flow["nominal_mbit_per_second"] for flow in report["flows"]]
        busy = report["processors_busy_together"]
        return {"share": min(shares), "busy": busy, "busy_before": report["processors_busy_before"]}

    def measure(self, cell: Cell, patience: float, progress: Callable[[str], None]) -> dict[str, Any]:
        """Run the cell, for `patience` seconds at most."""
        with tempfile.TemporaryDirectory(prefix="paceline-training-") as name:
            folder = pathlib.Path(name)
            (folder / "cell.json").write_text(json.dumps(_described(cell)))
            command = [self._command, "run", "--hosts", str(cell.hosts), "--rate", cell.rate, "--", sys.executable]
            command += [str(pathlib.Path(__file__).parent / "worker.py")]
            command += ["--cell", str(folder / "cell.json"), "--out", str(folder / "out.json")]
            code, last_words = self.run(command, _environment(cell), patience, progress)
            if code or not (folder / "out.json").exists():
                raise CellError(f"the workers ended with {code}:\n{last_words}")
            found: dict[str, Any] = json.loads((folder / "out.json").read_text())
            return found

    def stop(self) -> None:
        """End what runs, as ctrl-C does: the testbed removes its network itself."""
        running = self._running
        if running is not None and running.poll() is None:
            running.send_signal(signal.SIGINT)
            try:
                running.wait(CLEANING)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()

    def run(
        self, command: list[str], environment: dict[str, str], patience: float, progress: Callable[[str], None]
    ) -> tuple[int, str]:
        """Run a command of the testbed, for `patience` seconds at most: its exit code and its last words."""
        timed_out = False

        def expire(*_: Any) -> None:
            nonlocal timed_out
            timed_out = True
            if self._running is not None:
                self._running.send_signal(signal.SIGINT)

        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, patience)
        # The last lines only: a failing worker may say the same thing without end.
        words: list[str] = []
        try:
            self._running = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            assert self._running.stdout is not None
            for line in self._running.stdout:
                _, found, step = line.partition("progress: ")
                if found:
                    progress(step.strip())
                else:
                    words = [*words[-19:], line.rstrip()]
            code = self._running.wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            self.stop()
            self._running = None
        if timed_out:
            words.append(f"it took longer than {patience:.0f} s")
        return code, "\n".join(words)


def _described(cell: Cell) -> dict[str, Any]:
    return {**dataclasses.asdict(cell), "profile": None if cell.profile is None else cell.profile.written()}


def _environment(cell: Cell) -> dict[str, str]:
    return environment(played=cell.profile is not None)


def environment(played: bool) -> dict[str, str]:
    """Of a job's workers; `played` where nothing is computed."""
    variables = {**os.environ, "PACELINE_SECRET": secrets.token_hex(32), "PYTHONWARNINGS": "ignore"}
    # Whoever started this may be a worker of something else.
    variables.pop("PACELINE_COORDINATOR", None)
    if played:
        # Several workers share the processors, and nothing is computed: more threads are only in the way.
        variables.setdefault("OMP_NUM_THREADS", "1")
    return variables
