"""What it costs to add a worker to a running job, and to take one away.

    python bench/chaos/resize.py --width 2048 --layers 6 --rounds 3      # parameters of 100 MB

For each change: seconds from the request until the newcomer's process is there and has its program (its first line), from then until
the first step of the new view is over, and the longest time between two steps' ends of any old worker, beside the median step. Everything is
on this machine. Prints a table; --json keeps it.

Exit codes: 0 measured, 1 the job ended or did not follow, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from chaos import HERE, Told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-resize-") as name:
        return Job(options, pathlib.Path(name)).measure()


class Job:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self._options, self._folder, self._name = options, folder, f"resize-{os.getpid()}"

    def measure(self) -> int:
        options = self._options
        with (self._folder / "log").open("wb") as log:
            command = [
                options.paceline, "run", "--elastic", "--name", self._name, "-n", str(options.workers), "--",
                sys.executable, os.fspath(HERE / "under_paceline.py"), "--steps", "1000000", "--folder", str(self._folder),
                "--width", str(options.width), "--layers", str(options.layers),
            ]  # fmt: skip
            running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        found: list[dict[str, Any]] = []
        try:
            self._wait(lambda: len(self._steps()) > 20 * options.workers, 120)
            for _ in range(options.rounds):
                for size in (options.workers + 1, options.workers):
                    found.append(self._change(size))
                    print(line_of(found[-1]), flush=True)
        except TimeoutError:
            print((self._folder / "log").read_text()[-2000:], file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait()
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))
        return 0

    def _change(self, size: int) -> dict[str, Any]:
        before = set(Told.read(self._folder).logs)
        asked = time.time()
        subprocess.run([self._options.paceline, "resize", self._name, str(size)], check=True, timeout=60)
        self._wait(lambda: any(line["size"] == size and line["at"] > asked for line in self._steps()), 120)
        time.sleep(2.0)
        told = Told.read(self._folder)
        first = min(line["at"] for line in self._steps() if line["size"] == size and line["at"] > asked)
        came = [lines[0]["began"] for process, lines in told.logs.items() if process not in before]
        waits, usual = [], []
        for process in before:
            ends = [line["at"] for line in told.logs[process] if "step" in line]
            gaps = [(later, later - sooner) for sooner, later in zip(ends, ends[1:])]
            waits += [gap for at, gap in gaps if asked <= at <= first + 2.0]
            usual += [gap for at, gap in gaps if at < asked]
        return {
            "size": size, "request_to_step": first - asked, "warm": first - min(came) if came else None,
            "longest": max(waits), "step": statistics.median(usual[-100:]),
        }  # fmt: skip

    def _steps(self) -> list[dict[str, Any]]:
        return Told.read(self._folder).steps()

    def _wait(self, over: Any, limit: float) -> None:
        began = time.time()
        while not over():
            if time.time() - began > limit:
                raise TimeoutError
            time.sleep(0.05)


def line_of(found: dict[str, Any]) -> str:
    warm = "" if found["warm"] is None else f", {found['warm']:.2f} s of them since the newcomer's program began"
    return (
        f"to {found['size']} workers: first step after {found['request_to_step']:.2f} s{warm}; longest step "
        f"{1e3 * found['longest']:.0f} ms, usual {1e3 * found['step']:.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
