"""What it costs to add a worker to a running job, and to take one away.

    python bench/chaos/resize.py --width 2048 --layers 6 --rounds 5      # parameters of 100 MB, and as much of the optimizer's

A job with a spare (`paceline run --spare 1`) is given one worker more, which is warm, and one less, in turns; then a job without, whose
newcomers are started when they are asked for. For each change:

- until the first step with the new number of workers begins and is over, from the request on;
- the standstill: how long no worker computes or communicates. A worker stands still from the moment at which it has called for its
  next step and all operations of the steps before are over, until that step has begun; the standstill is the time in which all
  workers that stay do so at once. Connecting with each other and agreeing fall into it. State that newcomers get is communication: it is
  shown beside, as the time that the others give it;
- the longest time between two steps' ends of any old worker within two seconds, beside the median step before. With more processes than
  cores it holds what processes that start or end take from the others.

Everything is on this machine, with one thread of PyTorch's for each worker. Prints a line for each change and medians; --json keeps it.

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
from collections.abc import Callable
from typing import Any

from chaos import HERE, Told

#: Around a change, in seconds.
AFTERMATH = 2.0

#: Seconds that a change may take, and a job to begin.
PATIENCE = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="warm,cold", help="which newcomers: warm, cold or both")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory(prefix="paceline-resize-") as name:
            code = Job(options, pathlib.Path(name), kind).measure(found)
        if code != 0:
            return code
    print(summary(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


class Job:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path, kind: str) -> None:
        self._options, self._folder, self._kind, self._name = options, folder, kind, f"resize-{kind}-{os.getpid()}"
        self._told = Told()

    def measure(self, found: list[dict[str, Any]]) -> int:
        options = self._options
        spare = ["--spare", "1"] if self._kind == "warm" else []
        with (self._folder / "log").open("wb") as log:
            command = [
                options.paceline, "run", "--elastic", *spare, "--name", self._name, "-n", str(options.workers), "--",
                sys.executable, os.fspath(HERE / "under_paceline.py"), "--steps", "1000000", "--folder", str(self._folder),
                "--width", str(options.width), "--layers", str(options.layers),
            ]  # fmt: skip
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
        try:
            self._wait(lambda: len(self._steps()) > 20 * options.workers)
            for _ in range(options.rounds):
                self._settle()
                found.append(self._change(f"{self._kind} addition", options.workers + 1))
                print(line_of(found[-1]), flush=True)
                self._settle()
                found.append(self._change("removal", options.workers))
                print(line_of(found[-1]), flush=True)
        except TimeoutError:
            print((self._folder / "log").read_text()[-2000:], file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            running.wait()
        return 0

    def _settle(self) -> None:
        """Until the spare is ready, and steps are as usual."""
        if self._kind == "warm":
            self._wait(lambda: any(member["standing"] == "spare" for member in self._status()["members"]))
        time.sleep(2 * AFTERMATH)

    def _status(self) -> Any:
        command = [self._options.paceline, "status", "--json", self._name]
        return json.loads(subprocess.run(command, check=True, timeout=60, capture_output=True).stdout)

    def _change(self, what: str, size: int) -> dict[str, Any]:
        self._told.read_on(self._folder)
        before = {process for process, lines in self._told.logs.items() if any("step" in line for line in lines)}
        asked = time.time()
        subprocess.run([self._options.paceline, "resize", self._name, str(size)], check=True, timeout=60)
        self._wait(lambda: any(line["size"] == size and line["at"] > asked for line in self._steps()))
        time.sleep(AFTERMATH)
        over = min(line["at"] for line in self._steps() if line["size"] == size and line["at"] > asked)
        logs = {process: self._told.logs[process] for process in before}
        changes = [line for lines in logs.values() for line in lines if line.get("changed") == size and line["over"] > asked]
        waits, usual = [], []
        for lines in logs.values():
            ends = [line["at"] for line in lines if "step" in line]
            gaps = [(later, later - sooner) for sooner, later in zip(ends, ends[1:])]
            waits += [gap for at, gap in gaps if asked <= at <= over + AFTERMATH]
            usual += [gap for at, gap in gaps if asked - 2 * AFTERMATH < at < asked]
        return {
            "what": what, "size": size,
            "request_to_begin": min(line["over"] for line in changes) - asked,
            "request_to_step": over - asked,
            "standstill": max(0.0, min(line["begun"] for line in changes) - max(line["begun"] - line["still"] for line in changes)),
            "settling": max(line["settling"] for line in changes),
            "sharing": max(line["over"] - line["begun"] for line in changes),
            "longest": max(waits), "step": statistics.median(usual),
        }  # fmt: skip

    def _steps(self) -> list[dict[str, Any]]:
        self._told.read_on(self._folder)
        return self._told.steps()

    def _wait(self, over: Callable[[], bool]) -> None:
        began = time.time()
        while not over():
            if time.time() - began > PATIENCE:
                raise TimeoutError
            time.sleep(0.05)


def line_of(found: dict[str, Any]) -> str:
    def ms(key: str) -> str:
        return f"{1e3 * found[key]:.0f} ms"

    return (
        f"{found['what']} (to {found['size']}): first step begins after {found['request_to_begin']:.2f} s, is over after "
        f"{found['request_to_step']:.2f} s; standstill {ms('standstill')}, last operations {ms('settling')}, state {ms('sharing')}; "
        f"longest step {ms('longest')}, usual {ms('step')}"
    )


def summary(found: list[dict[str, Any]]) -> str:
    kinds = dict.fromkeys(one["what"] for one in found)
    lines = ["medians (most):"]
    for kind in kinds:
        of = [one for one in found if one["what"] == kind]

        def both(key: str, of: list[dict[str, Any]] = of) -> str:
            values = [1e3 * one[key] for one in of]
            return f"{statistics.median(values):.0f} ({max(values):.0f}) ms"

        lines.append(
            f"  {kind}, {len(of)} times: begins {both('request_to_begin')}, over {both('request_to_step')}, standstill "
            f"{both('standstill')}, state {both('sharing')}, longest step {both('longest')}, usual {both('step')}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
