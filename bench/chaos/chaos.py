"""A job that is disturbed every few seconds, under several systems: how long nobody trains, what is done twice, and whether all end
with the same parameters.

    python bench/chaos/chaos.py --systems paceline,torchft,torchrun --workers 4 --steps 1500 --interval 6

Each system runs the same task (`task.py`) calmly first, then with a worker killed (kill -9) or stopped for two seconds (SIGSTOP) by
turns at every interval. A killed worker is replaced after a second: by torchrun itself, by `paceline resize`, for torchft by this program.
`cluster` is Paceline with each worker on a host of its own and the coordinator on another (network namespaces: needs root and
`paceline-testbed`); there links are cut for three seconds too, the coordinator is killed and started again, and the disk that it
writes to is full for three seconds while a worker is killed. A
step that is waited for is the time from one step's end to the next one's, whoever ends it first; the longest around a disturbance
counts as its price. `--python` names an interpreter for a system that needs its own (`torchft=/path/to/python`). Prints a table;
everything goes to --json.

Exit codes: 0 all ran, 1 a job did not finish, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).parent

#: Seconds that a stopped worker stays stopped, and until a killed one is replaced.
STOPPED, REPLACED = 2.0, 1.0

#: Seconds between the first worker's end and the last's.
LAST = 5.0

#: Around a disturbance, in seconds.
AFTERMATH = 20.0


class System:
    """A job under one system."""

    name = ""
    #: By turns.
    disturbances = ("kill", "stop")

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path, disturbed: bool) -> None:
        self.options, self.folder, self.disturbed = options, folder, disturbed
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        raise NotImplementedError

    def replace(self) -> None:
        """A worker was killed a moment ago. Systems that see to it themselves do nothing."""

    def cuts(self) -> list[float]:
        """Seconds after the beginning at which links are cut, by whoever made them."""
        return []

    def python(self) -> str:
        return self.options.python.get(self.name, sys.executable)

    def run(self, *command: str | os.PathLike[str], **variables: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            stdout=log, stderr=log, start_new_session=True, cwd=HERE, env={**os.environ, **variables},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def task(self) -> list[str]:
        return ["--steps", str(self.options.steps), "--folder", str(self.folder)]

    def stop(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


class Torchrun(System):
    name = "torchrun"

    def start(self) -> None:
        self.run(
            self.python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.options.workers),
            "--max-restarts", "1000", "--monitor-interval", "0.1", HERE / "under_torchrun.py", *self.task(),
        )  # fmt: skip


class Torchft(System):
    name = "torchft"

    def start(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{found.getsockname()[1]}"
        lighthouse = pathlib.Path(self.python()).parent / "torchft_lighthouse"
        self.run(
            lighthouse, "--bind", self._address, "--min_replicas", "1", "--join_timeout_ms", "1000",
            "--heartbeat_timeout_ms", "1000",
        )  # fmt: skip
        self._count = 0
        for _ in range(self.options.workers):
            self.replace()

    def replace(self) -> None:
        self._count += 1
        self.run(
            self.python(), HERE / "under_torchft.py", *self.task(), "--replica", f"replica{self._count}",
            "--lighthouse", f"http://{self._address}",
        )  # fmt: skip


class Paceline(System):
    name = "paceline"

    def start(self) -> None:
        workers = str(self.options.workers)
        self._job = f"chaos-{os.getpid()}"
        self.run(
            self.options.paceline, "run", "--elastic", "--name", self._job, "--max", workers, "-n", workers, "--",
            self.python(), HERE / "under_paceline.py", *self.task(),
        )  # fmt: skip

    def replace(self) -> None:
        resize = [self.options.paceline, "resize", self._job, str(self.options.workers)]
        subprocess.run(resize, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)


class Cluster(System):
    name = "cluster"
    disturbances = ("kill", "stop", "coordinator", "full")

    #: Seconds that a link is cut, and that a disk is full.
    CUT, FULL = 3.0, 3.0
    #: Bytes of the disk that the coordinator writes to.
    DISK = 256 << 10

    def start(self) -> None:
        hosts, lots = self.options.workers + 1, random.Random(self.options.seed)
        script = self.folder / "cuts"
        cuts = [(at, f"host{lots.randrange(1, hosts)}") for at in self.cuts()]
        script.write_text("".join(f"{at} {host} cut\n{at + self.CUT} {host} restore\n" for at, host in cuts))
        self._disk = self.folder / "disk"
        self._disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.DISK}", "paceline-chaos", self._disk], check=True)
        self.run(
            self.options.testbed, "run", "--hosts", str(hosts), "--rate", "1gbit", "--script", script, "--",
            self.python(), HERE / "on_host.py", "--folder", self.folder, "--store", self._disk / "store", "--paceline",
            self.options.paceline, "--", self.python(), HERE / "under_paceline.py", *self.task(),
            PACELINE_SECRET=secrets.token_hex(32),
        )  # fmt: skip

    def cuts(self) -> list[float]:
        if not self.disturbed:
            return []
        # Between other disturbances, one in five intervals.
        interval, patience = self.options.interval, self.options.patience
        return [at * interval + interval / 2 for at in range(4, int(patience / interval), 5)]

    def kill_coordinator(self) -> None:
        os.kill(int((self.folder / "coordinator.pid").read_text()), signal.SIGKILL)

    def fill_disk(self) -> None:
        try:
            with (self._disk / "full").open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError:
            return

    def free_disk(self) -> None:
        (self._disk / "full").unlink(missing_ok=True)

    def stop(self) -> None:
        super().stop()
        subprocess.run(["umount", "--lazy", self._disk], check=False)


SYSTEMS = {system.name: system for system in (Paceline, Cluster, Torchft, Torchrun)}


@dataclasses.dataclass
class Told:
    """What the processes of one job wrote down."""

    #: By process: lines of its log.
    logs: dict[int, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    #: By process: how far its log was read.
    _read: dict[int, int] = dataclasses.field(default_factory=dict)

    @staticmethod
    def read(folder: pathlib.Path) -> Told:
        told = Told()
        told.read_on(folder)
        return told

    def read_on(self, folder: pathlib.Path) -> None:
        """What was written since: a job of ten minutes writes more than can be read again and again."""
        for path in folder.glob("*.jsonl"):
            process = int(path.stem)
            with path.open("rb") as file:
                file.seek(self._read.get(process, 0))
                # A process that was killed may have left half a line.
                whole, _, half = file.read().rpartition(b"\n")
                self._read[process] = file.tell() - len(half)
            self.logs.setdefault(process, []).extend(json.loads(line) for line in whole.split(b"\n") if line)

    def ends(self) -> list[str]:
        return [line["parameters"] for lines in self.logs.values() for line in lines if "parameters" in line]

    def steps(self) -> list[dict[str, Any]]:
        return sorted((line for lines in self.logs.values() for line in lines if "step" in line), key=lambda it: it["at"])

    def firsts(self) -> list[float]:
        """When each step was over for the first time and the job got further than ever before."""
        furthest, moments = -1, []
        for line in self.steps():
            if line["step"] > furthest:
                furthest = line["step"]
                moments.append(line["at"])
        return moments

    def redone(self) -> int:
        """Steps that were made again after the job had got further, because what came of them was lost."""
        furthest, again = -1, set()
        for line in self.steps():
            # Workers end one step within the next.
            if line["step"] < furthest - 1:
                again.add(line["step"])
            furthest = max(furthest, line["step"])
        return len(again)


    def twice(self) -> int | None:
        """Samples that somebody trained on and another did again in the same epoch; none where nobody says which epoch it is."""
        seen: set[tuple[int, int]] = set()
        again = 0
        for line in self.steps():
            if line["epoch"] is None:
                return None
            for number in line["numbers"]:
                again += (line["epoch"], number) in seen
                seen.add((line["epoch"], number))
        return again


def main() -> int:
    options = arguments().parse_args()
    options.python = dict(pair.split("=", 1) for pair in options.python)
    names = [name.strip() for name in options.systems.split(",")]
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        print(f"chaos.py: no system `{unknown[0]}`; choose of {', '.join(SYSTEMS)}", file=sys.stderr)
        return 2
    # So that what was started is ended in either case, also where whoever started this had it ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    found: dict[str, Any] = {}
    print(HEADER, flush=True)
    try:
        for name in names:
            calm = play(SYSTEMS[name], options, [])
            disturbed = play(SYSTEMS[name], options, list(SYSTEMS[name].disturbances))
            found[name] = {"calm": calm, "disturbed": disturbed}
            print(line_of(name, calm, disturbed), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1))
    except KeyboardInterrupt:
        return 130
    return 0 if all(run["finished"] for runs in found.values() for run in runs.values()) else 1


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="paceline,torchft,torchrun")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--interval", type=float, default=6.0, help="seconds between disturbances [6]")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that a job may take [600]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", action="append", default=[], metavar="SYSTEM=INTERPRETER")
    parser.add_argument("--testbed", default="paceline-testbed", help="the command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path)
    return parser


def play(kind: type[System], options: argparse.Namespace, disturbances: list[str]) -> dict[str, Any]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    system, told = kind(options, folder, bool(disturbances)), Told()
    held: list[dict[int, dict[str, int]]] = []
    lots, events = random.Random(options.seed), []
    began = time.time()
    cuts = [{"what": "cut", "at": began + at} for at in system.cuts()]
    try:
        system.start()
        while not told.steps():
            wait(began, options.patience)
            told.read_on(folder)
        due, over = time.time() + options.interval, None
        while time.time() - began < options.patience:
            time.sleep(0.2)
            told.read_on(folder)
            ended = told.ends()
            if ended:
                # Those who began too late to take part are not waited for.
                over = over or time.time() + LAST
                if len(ended) >= options.workers or time.time() > over:
                    break
            elif disturbances and time.time() >= due:
                what = disturbances[len(events) % len(disturbances)]
                victims = alive(told)
                held.append({process: holdings(process) for process in victims})
                # The last one that trains would take the job with it.
                if len(victims) >= 2:
                    events.append({"what": what, "at": time.time()})
                    disturb(what, lots.choice(victims), system)
                due = time.time() + options.interval
        cuts = [cut for cut in cuts if cut["at"] < time.time()]
        told.read_on(folder)
        return {**figures(told, events + cuts, options), "held": growth(held)}
    finally:
        system.stop()
        told.read_on(folder)
        # Whatever left its group: only processes that wrote a log here.
        for process in alive(told):
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def wait(began: float, patience: float) -> None:
    if time.time() - began > patience:
        raise SystemExit("chaos.py: the job made no step")
    time.sleep(0.1)


def alive(told: Told) -> list[int]:
    """Processes of the job that are there and have not ended."""
    found = []
    for process, lines in sorted(told.logs.items()):
        status = pathlib.Path(f"/proc/{process}/stat")
        running = status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
        if running and not any("parameters" in line for line in lines) and any("step" in line for line in lines):
            found.append(process)
    return found


def holdings(process: int) -> dict[str, int]:
    """What a process holds of the machine; nothing if it is gone."""
    home = pathlib.Path(f"/proc/{process}")
    try:
        status = dict(line.split(":", 1) for line in (home / "status").read_text().splitlines())
        open_files = len(list((home / "fd").iterdir()))
        return {"kilobytes": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]), "descriptors": open_files}
    except (OSError, KeyError):
        return {}


def growth(held: list[dict[int, dict[str, int]]]) -> dict[str, Any]:
    """What the process held that lived through most disturbances: soon after its beginning, and at last."""
    lives: dict[int, list[dict[str, int]]] = {}
    for look in held:
        for process, holds in look.items():
            lives.setdefault(process, []).extend([holds] if holds else [])
    longest = max(lives.values(), key=len, default=[])
    return {"looks": len(longest), "first": longest[1], "last": longest[-1]} if len(longest) > 2 else {}


def disturb(what: str, victim: int, system: System) -> None:
    if what == "kill":
        os.kill(victim, signal.SIGKILL)
        time.sleep(REPLACED)
        system.replace()
    elif what == "coordinator":
        system.kill_coordinator()
    elif what == "full":
        system.fill_disk()
        os.kill(victim, signal.SIGKILL)
        time.sleep(system.FULL)
        system.free_disk()
    else:
        os.kill(victim, signal.SIGSTOP)
        time.sleep(STOPPED)
        try:
            os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            pass


def figures(told: Told, events: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    firsts = told.firsts()
    gaps = [(later, later - sooner) for sooner, later in zip(firsts, firsts[1:])]
    for event in events:
        near = [gap for at, gap in gaps if event["at"] <= at <= event["at"] + AFTERMATH and at - gap <= event["at"] + 5]
        event["price"] = max(near, default=float("nan"))
    ends = told.ends()
    losses = [line["loss"] for line in told.steps()[-options.workers * 20 :]]
    return {
        "finished": len(ends) > 0 and bool(firsts) and told.steps()[-1]["step"] >= options.steps - 1,
        "seconds": firsts[-1] - firsts[0] if firsts else float("nan"),
        "step_ms": 1e3 * statistics.median(gap for _, gap in gaps) if gaps else float("nan"),
        "events": events,
        "redone": told.redone(),
        "twice": told.twice(),
        "equal": len(set(ends)) == 1,
        "loss": statistics.mean(losses) if losses else float("nan"),
    }


HEADER = (
    "| system | calm, s | disturbed, s | disturbances: longest wait after each, median (most) | steps made again | samples twice "
    "| equal parameters | loss, calm and disturbed |\n|---|---|---|---|---|---|---|---|"
)


def line_of(name: str, calm: dict[str, Any], disturbed: dict[str, Any]) -> str:
    kinds: dict[str, list[float]] = {}
    for event in disturbed["events"]:
        kinds.setdefault(event["what"], []).append(event["price"])

    def told(what: str, prices: list[float]) -> str:
        known = [price for price in prices if price == price]
        waits = f"{statistics.median(known):.2f} s ({max(known):.2f} s)" if known else "–"
        return f"{len(prices)} {what}: {waits}"

    finished = "" if disturbed["finished"] else " (not finished)"
    twice = "–" if disturbed["twice"] is None else disturbed["twice"]
    return (
        f"| {name} | {calm['seconds']:.0f} | {disturbed['seconds']:.0f}{finished} "
        f"| {'; '.join(told(*kind) for kind in kinds.items())} | {disturbed['redone']} | {twice} "
        f"| {'yes' if disturbed['equal'] else 'no'} | {calm['loss']:.3f}, {disturbed['loss']:.3f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
