"""The same step in virtual time: the replay's engines play a profile, and nothing but wires takes time.

Runs the example `step` of `paceline-replay`, where it is built. A step there is a check on what `bounds` calculates,
and, with the settings of a measured cell, says how much of a distance is the settings' and how much the machine's.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

from profiles import Profile

ROOT = pathlib.Path(__file__).parents[2]
BUILD = "cargo build --release -p paceline-replay --example step"

#: Seconds that a prediction may take.
PATIENCE = 120.0

#: What the kernel holds ready to send (`TCP_NOTSENT_LOWAT`), which nothing overtakes.
QUEUE = 128 << 10


def find(given: pathlib.Path | None) -> pathlib.Path | None:
    """The example, if it is built."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    command = given or target / "release" / "examples" / "step"
    return command if command.exists() else None


class Virtual:
    """Plays a profile over wires of one rate."""

    def __init__(self, command: pathlib.Path, profile: Profile, workers: int, rate: float) -> None:
        self._command, self._profile = command, profile
        self._network = ["--workers", str(workers), "--rate", f"{rate / 1e3:.3f}kbit", "--json"]

    def perfect(self) -> float:
        """Seconds of a step, scheduled, in tiny chunks."""
        return self._play([])

    def with_settings(self, partition: int, credit: int, scheduled: bool) -> float:
        """Seconds of a step with these settings, in bytes."""
        # All bits set stand for no limit.
        allowed = "unlimited" if credit >= 1 << 63 else f"{credit}B"
        settings = ["--partition", f"{partition}B", "--credit", allowed, "--queue", f"{QUEUE}B"]
        return self._play([*settings, "--order", "scheduled" if scheduled else "fifo"])

    def _play(self, arguments: list[str]) -> float:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(self._profile.written(), file)
            file.flush()
            command = [str(self._command), file.name, *self._network, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return float(json.loads(done.stdout)["seconds"])
