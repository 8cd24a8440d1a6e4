"""Steps of a profile on the hosts of a testbed, recorded or only timed, and the command `paceline` that reads recordings.

What is compared with what is not known here.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
from collections.abc import Sequence
from typing import Any

import bounds
from cell import START, Cell, CellError, Testbed
from profiles import Profile

#: Steps that are recorded or measured, after those that only warm up.
STEPS = 6

#: A recording begins after this many steps, and ends with the step after its last.
BEFORE_RECORDING, AFTER_RECORDING = 3, 1

#: A run that takes this many times as long as it should has failed.
PATIENCE = 8.0

#: A replay or a search for a plan takes seconds; one that takes this many is stuck.
COMMAND_LIMIT = 300


class Trial:
    """A profile on a testbed."""

    def __init__(self, profile: Profile, slow: float, testbed: str, paceline: str) -> None:
        self._profile, self._slow, self._paceline = profile, slow, paceline
        self._testbed = Testbed(testbed)

    def stop(self) -> None:
        self._testbed.stop()

    def record(self, folder: pathlib.Path, hosts: int, rate: str, settings: str, way: str) -> None:
        """Leave the recording of a few steps in `folder`."""
        os.environ.update(PACELINE_TRACE=str(folder), PACELINE_TRACE_STEPS=str(STEPS))
        try:
            self._run(hosts, rate, settings, (way,), (), 1, STEPS + BEFORE_RECORDING + AFTER_RECORDING)
        finally:
            for name in ("PACELINE_TRACE", "PACELINE_TRACE_STEPS"):
                os.environ.pop(name, None)

    def step(self, hosts: int, rate: str, settings: str, way: str) -> float:
        """Seconds of a step."""
        return statistics.median(self.ways(hosts, rate, settings, (way,), 1)[way])

    def ways(self, hosts: int, rate: str, settings: str, ways: tuple[str, ...], rounds: int) -> dict[str, list[float]]:
        """Seconds of a step of each way, by round."""
        found: dict[str, list[float]] = self._run(hosts, rate, settings, ways, (), rounds, STEPS)["seconds"]
        return found

    def settings(self, hosts: int, rate: str, settings: Sequence[str], rounds: int) -> dict[str, list[float]]:
        """Seconds of a step of our optimizer under each of several settings, by round."""
        found: dict[str, list[float]] = {one: [] for one in settings}
        ran = self._run(hosts, rate, settings[0], ("optimizer",), tuple(settings) * rounds, 1, 1)
        for turn in ran["search"]:
            found[turn["settings"]].append(turn["seconds"])
        return found

    def command(self, *arguments: str) -> dict[str, Any]:
        """What `paceline ... --json` says."""
        command = [self._paceline, *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT)
        if done.returncode:
            raise CellError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def _run(
        self, hosts: int, rate: str, settings: str, ways: tuple[str, ...], search: tuple[str, ...], rounds: int, steps: int
    ) -> dict[str, Any]:
        name, slow = self._profile.name, self._slow
        cell = Cell(name, self._profile, slow, 0, rate, hosts, settings, search, STEPS, ways, rounds, steps)
        limits = bounds.bound(self._profile, hosts, payload(rate))
        taken = {*ways, "optimizer"} if search else {*ways}
        steps_in_all = sum(cell.steps_of(way) for way in taken)
        patience = START + len(search) + PATIENCE * steps_in_all * (limits.computation + limits.wire)
        return self._testbed.measure(cell, patience, lambda _: None)


def payload(rate: str) -> float:
    """Bits a second that are left for payload."""
    return bounds.bits_per_second(rate) * bounds.PAYLOAD
