"""A job that is disturbed every few seconds, under several systems: how long nobody trains, what is done twice, and whether all end
with the same parameters.

    python bench/chaos/chaos.py --systems paceline,torchft,torchrun --workers 4 --steps 1500 --interval 6

Each system runs the same task (`task.py`) calmly first, then with a worker killed (kill -9) or stopped for two seconds (SIGSTOP) by
turns at every interval. A killed worker is replaced after a second: by torchrun itself, by `paceline resize`, for torchft by this program.
Systems whose name ends in `-hosts` have each worker on a host of its own and what coordinates them on another (network namespaces: needs
root and `paceline-testbed`); there links are cut for three seconds too. What coordinates is killed and started again under Paceline and
torchft (torchrun's workers end without it), and the disk that Paceline's writes to is full for three seconds while a worker is killed. There Paceline's workers
are given notice, too (SIGTERM, with the policy `spot`), and another comes after each. A
step that is waited for is the time from one step's end to the next one's, whoever ends it first; the longest around a disturbance
counts as its price. Where the job writes down when it learnt of a loss (Paceline's coordinator and workers do), the time from the disturbance
to that moment and from there to the next step's end are told apart: what is merely waited for, such as a worker that is stopped for two
seconds, is never noticed as a loss. `--python` names an interpreter for a system that needs its own (`torchft=/path/to/python`). With `--pause` every step
sleeps so long, with `--seconds` jobs are ended after that time, and with `--spare-first` the worker that began first is stopped and never
killed, and what it and what coordinates hold is compared with what they held at first. Prints a table; everything goes to --json.

Exit codes: 0 all ran, 1 a job did not finish, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from typing import Any

HERE = pathlib.Path(__file__).parent

#: Seconds that a stopped worker stays stopped, and until a killed one is replaced.
STOPPED, REPLACED = 2.0, 1.0

#: Seconds between the first worker's end and the last's.
LAST = 5.0

#: Steps from the one at which a job is told to end until it does.
AHEAD = 100

#: Samples of which a mean loss is kept.
BLOCK = 5_000

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

    def noticed(self) -> list[float]:
        """When the job learnt of a loss, as far as it writes that down."""
        return []

    def python(self) -> str:
        return self.options.python.get(self.name.removesuffix("-hosts"), sys.executable)

    def supervisor(self) -> int:
        """The process that was there first and stays to the end."""
        return self.processes[0].pid

    def run(self, *command: str | os.PathLike[str], **variables: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            stdout=log, stderr=log, start_new_session=True, cwd=HERE, env={**os.environ, **variables},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def task(self) -> list[str]:
        samples = ["--samples", str(self.options.samples)] if self.options.samples else []
        return ["--steps", str(self.options.steps), "--folder", str(self.folder), "--pause", str(self.options.pause), *samples]

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


def lighthouse(python: str) -> list[str]:
    program = os.fspath(HERE / "lighthouse.py")
    return [python, program, "--min_replicas", "1", "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000"]


class Torchft(System):
    name = "torchft"

    def start(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{found.getsockname()[1]}"
        self.run(*lighthouse(self.python()), "--bind", self._address)
        self._count = 0
        for _ in range(self.options.workers):
            self.replace()

    def replace(self) -> None:
        self._count += 1
        self.run(
            self.python(), HERE / "under_torchft.py", *self.task(), "--replica", f"replica{self._count}",
            "--lighthouse", f"http://{self._address}",
        )  # fmt: skip


#: What Paceline's processes write when they learn of a loss, and when that was.
LOSS = re.compile(r"(?: is gone: | did not come back|coordinator is gone).*\[(\d{4}-\d\d-\d\dT[\d:.]+)Z\]")


def losses(folder: pathlib.Path) -> list[float]:
    lines = [line for log in folder.glob("*.log") for line in log.read_text(errors="replace").splitlines()]
    moments = [datetime.datetime.fromisoformat(found[1]) for line in lines if (found := LOSS.search(line))]
    return sorted(moment.replace(tzinfo=datetime.timezone.utc).timestamp() for moment in moments)


class Paceline(System):
    name = "paceline"

    def start(self) -> None:
        workers = str(self.options.workers)
        self._job = self.folder.name
        self.run(
            self.options.paceline, "run", "--elastic", "--name", self._job, "--max", workers, "-n", workers, "--",
            self.python(), HERE / "under_paceline.py", *self.task(),
        )  # fmt: skip

    def noticed(self) -> list[float]:
        return losses(self.folder)

    def replace(self) -> None:
        resize = [self.options.paceline, "resize", self._job, str(self.options.workers)]
        subprocess.run(resize, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)


class OnHosts(System):
    """Each worker on a host of its own, and what coordinates them on the first."""

    #: Seconds that a link is cut.
    CUT = 3.0

    def first(self) -> list[str]:
        """What runs on the first host."""
        raise NotImplementedError

    def others(self) -> list[str]:
        """What runs on each other one."""
        raise NotImplementedError

    def start(self) -> None:
        hosts, lots = self.options.workers + 1, random.Random(self.options.seed)
        script = self.folder / "cuts"
        cuts = [(at, f"host{lots.randrange(1, hosts)}") for at in self.cuts()]
        script.write_text("".join(f"{at} {host} cut\n{at + self.CUT} {host} restore\n" for at, host in cuts))
        self.run(
            self.options.testbed, "run", "--hosts", str(hosts), "--rate", "1gbit", "--script", script, "--",
            sys.executable, HERE / "on_host.py", "--folder", self.folder, "--first", shlex.join(self.first()),
            *(["--notices"] if "notice" in self.disturbances else []), "--", *self.others(),
            PACELINE_SECRET=secrets.token_hex(32), PACELINE_POLICY="spot",
        )  # fmt: skip

    def cuts(self) -> list[float]:
        if not self.disturbed:
            return []
        # Between other disturbances, one in five intervals.
        interval, patience = self.options.interval, self.options.patience
        return [at * interval + interval / 2 for at in range(4, int(patience / interval), 5)]

    def kill_coordinator(self) -> None:
        os.kill(int((self.folder / "coordinator.pid").read_text()), signal.SIGKILL)


class PacelineOnHosts(OnHosts):
    name = "paceline-hosts"
    disturbances = ("kill", "stop", "coordinator", "full", "notice")

    #: Seconds that a disk is full, and bytes of the one that the coordinator writes to.
    FULL, DISK = 3.0, 256 << 10

    def start(self) -> None:
        self._disk = self.folder / "disk"
        self._disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.DISK}", "paceline-chaos", self._disk], check=True)
        super().start()

    def first(self) -> list[str]:
        workers = str(self.options.workers)
        return [
            self.options.paceline, "coordinator", "--listen", "{coordinator}", "--size", workers, "--elastic", f"1:{workers}",
            "--store", str(self._disk / "store"),
        ]  # fmt: skip

    def others(self) -> list[str]:
        return [self.python(), os.fspath(HERE / "under_paceline.py"), *self.task()]

    def noticed(self) -> list[float]:
        return losses(self.folder)

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


class TorchftOnHosts(OnHosts):
    name = "torchft-hosts"
    disturbances = ("kill", "stop", "coordinator")

    def first(self) -> list[str]:
        return [*lighthouse(self.python()), "--bind", "{coordinator}"]

    def others(self) -> list[str]:
        return [
            self.python(), os.fspath(HERE / "under_torchft.py"), *self.task(), "--replica", "{name}",
            "--lighthouse", "http://{coordinator}",
        ]  # fmt: skip


class TorchrunOnHosts(OnHosts):
    name = "torchrun-hosts"

    def first(self) -> list[str]:
        store = "host, port = sys.argv[1].split(':'); kept = TCPStore(host, int(port), is_master=True, wait_for_workers=False)"
        main = f"import sys, time; from torch.distributed import TCPStore; {store}; time.sleep(1e6)"
        return [self.python(), "-c", main, "{coordinator}"]

    def others(self) -> list[str]:
        # Nobody begins without all: its agents live on when workers die, and those that restart apart from each other never meet again
        # where fewer may begin.
        return [
            self.python(), "-m", "torch.distributed.run", "--nnodes", str(self.options.workers), "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "{coordinator}", "--rdzv-id", "chaos", "--rdzv-conf",
            "is_host=false,last_call_timeout=1", "--local-addr", "{address}", "--max-restarts", "1000", "--monitor-interval", "0.1",
            os.fspath(HERE / "under_torchrun.py"), *self.task(),
        ]  # fmt: skip


SYSTEMS = {system.name: system for system in (Paceline, Torchft, Torchrun, PacelineOnHosts, TorchftOnHosts, TorchrunOnHosts)}

#: Set where whoever plays is to end.
ended_by_hand = threading.Event()


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

    def began(self, process: int) -> float:
        return self.logs[process][0]["began"] if self.logs[process] else float("inf")

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

    def left_out(self) -> int | None:
        """Samples of finished epochs that nobody trained on; none where nobody says what it was dealt. A worker that was killed had no
        time to write down its last two steps, one of which ends within the other: what it was dealt there and nobody else trained on was
        in the parameters already."""
        dealt: dict[int, set[int]] = {}
        made: dict[int, set[int]] = {}
        for lines in self.logs.values():
            given = [line for line in lines if "dealt" in line]
            for line in given:
                dealt.setdefault(line["epoch"], set()).update(line["dealt"])
            for line in lines:
                if "step" in line and line["epoch"] is not None:
                    made.setdefault(line["epoch"], set()).update(line["numbers"])
            if not any("parameters" in line for line in lines):
                for line in given[-2:]:
                    made.setdefault(line["epoch"], set()).update(line["dealt"])
        if not dealt:
            return None
        samples = max(max(numbers, default=0) for numbers in dealt.values()) + 1
        return sum(len(set(range(samples)) - made.get(epoch, set())) for epoch in range(max(dealt)))


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
        with futures.ThreadPoolExecutor(2 * len(names) if options.at_once else 1) as pool:
            try:
                runs = {
                    name: [pool.submit(play, SYSTEMS[name], options, some) for some in ([], chosen(SYSTEMS[name], options))]
                    for name in names
                }
                for name, (calm, disturbed) in runs.items():
                    found[name] = {"calm": calm.result(), "disturbed": disturbed.result()}
                    print(line_of(name, **found[name]), flush=True)
                    if options.json:
                        options.json.write_text(json.dumps(found, indent=1))
            except BaseException:
                ended_by_hand.set()
                pool.shutdown(cancel_futures=True)
                raise
    except KeyboardInterrupt:
        return 130
    return 0 if all(run["finished"] for runs in found.values() for run in runs.values()) else 1


def chosen(kind: type[System], options: argparse.Namespace) -> list[str]:
    """Disturbances of a system, by turns."""
    without = (options.without or "").split(",")
    return [what for what in kind.disturbances if what not in without and f"{kind.name}:{what}" not in without]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default="paceline,torchft,torchrun")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1500, help="at most [1500]")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="from the first step until the job is ended [when all steps are made]")
    parser.add_argument("--interval", type=float, default=6.0, help="seconds between disturbances [6]")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that a job may take [600]")
    parser.add_argument("--without", help="disturbances to leave out: kill, stop, coordinator, full, notice; of one system: torchft-hosts:coordinator")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step sleeps, as if a device computed [0]")
    parser.add_argument("--samples", type=int, help="of an epoch, so that epochs end [as many as one worker's steps have]")
    parser.add_argument("--at-once", action="store_true", help="play all systems, calm and disturbed, at the same time")
    parser.add_argument("--spare-first", action="store_true", help="never kill the worker that began first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", action="append", default=[], metavar="SYSTEM=INTERPRETER")
    parser.add_argument("--testbed", default="paceline-testbed", help="the command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path)
    return parser


def play(kind: type[System], options: argparse.Namespace, disturbances: list[str]) -> dict[str, Any]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    system, told = kind(options, folder, bool(disturbances)), Told()
    held: list[dict[str, Any]] = []
    lots, events = random.Random(options.seed), []
    began = time.time()
    cuts = [{"what": "cut", "at": began + at} for at in system.cuts()]
    try:
        system.start()
        while not told.steps():
            wait(began, options.patience)
            told.read_on(folder)
        due, over = time.time() + options.interval, None
        end = time.time() + options.seconds
        while time.time() - began < options.patience and not ended_by_hand.is_set():
            time.sleep(0.2)
            told.read_on(folder)
            ended = told.ends()
            if ended:
                # Those who began too late to take part are not waited for.
                over = over or time.time() + LAST
                if len(ended) >= options.workers or time.time() > over:
                    break
            elif time.time() >= end:
                (folder / "last.new").write_text(str(told.steps()[-1]["step"] + AHEAD))
                (folder / "last.new").rename(folder / "last")
                end = float("inf")
            elif disturbances and time.time() >= due and not (folder / "last").exists():
                what = disturbances[len(events) % len(disturbances)]
                victims = alive(told)
                held.append(holdings(system, victims))
                # The last one that trains would take the job with it.
                if len(victims) >= 2:
                    spared = min(told.logs, key=told.began) if options.spare_first and what != "stop" else None
                    events.append({"what": what, "at": time.time()})
                    disturb(what, lots.choice([victim for victim in victims if victim != spared]), system)
                due = time.time() + options.interval
        cuts = [cut for cut in cuts if cut["at"] < time.time()]
        told.read_on(folder)
        return {**figures(told, events + cuts, system.noticed()), "held": growth(held)}
    finally:
        system.stop()
        told.read_on(folder)
        # Whatever left its group: only processes that wrote a log here.
        for process in alive(told):
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def wait(began: float, patience: float) -> None:
    if time.time() - began > patience or ended_by_hand.is_set():
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


def holdings(system: System, workers: list[int]) -> dict[str, Any]:
    """What the job's processes hold of the machine now, and how much all have of memory that is shared by name."""
    shared = sum(path.stat().st_blocks * 512 for path in pathlib.Path("/dev/shm").iterdir() if path.is_file())
    return {
        "workers": {process: held for process in workers if (held := of_process(process))},
        "supervisor": of_process(system.supervisor()), "shared_kilobytes": shared // 1024,
    }  # fmt: skip


def of_process(process: int) -> dict[str, int]:
    """Nothing if it is gone."""
    home = pathlib.Path(f"/proc/{process}")
    try:
        status = dict(line.split(":", 1) for line in (home / "status").read_text().splitlines())
        open_files = len(list((home / "fd").iterdir()))
        return {"kilobytes": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]), "descriptors": open_files}
    except (OSError, KeyError):
        return {}


def growth(held: list[dict[str, Any]]) -> dict[str, Any]:
    """What was held by the worker that lived through most disturbances, soon after its beginning and at last, and by the rest."""
    lives: dict[int, list[dict[str, int]]] = {}
    for look in held:
        for process, holds in look["workers"].items():
            lives.setdefault(process, []).append(holds)
    longest = max(lives.values(), key=len, default=[])
    if len(longest) <= 2:
        return {}
    rest = {key: {"first": held[1][key], "last": held[-1][key]} for key in ("supervisor", "shared_kilobytes")}
    return {"looks": len(longest), "worker": {"first": longest[1], "last": longest[-1]}, **rest, "course": longest[:: max(1, len(longest) // 20)]}


def disturb(what: str, victim: int, system: System) -> None:
    if what == "kill":
        os.kill(victim, signal.SIGKILL)
        time.sleep(REPLACED)
        system.replace()
    elif what == "coordinator":
        system.kill_coordinator()
    elif what == "notice":
        os.kill(victim, signal.SIGTERM)
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


def figures(told: Told, events: list[dict[str, Any]], noticed: list[float]) -> dict[str, Any]:
    firsts = told.firsts()
    gaps = [(later, later - sooner) for sooner, later in zip(firsts, firsts[1:])]
    beginnings = sorted(event["at"] for event in events) + [float("inf")]
    for event in events:
        # What is noticed after the next disturbance may be that one's.
        until = min(event["at"] + AFTERMATH, next(at for at in beginnings if at > event["at"]))
        known = next((at for at in noticed if event["at"] <= at < until), None)
        event["noticed"] = known and known - event["at"]
        event["resumed"] = known and next((at - known for at in firsts if at > known), None)
        near = [gap for at, gap in gaps if event["at"] <= at <= event["at"] + AFTERMATH and at - gap <= event["at"] + 5]
        event["price"] = max(near, default=float("nan"))
    ends = told.ends()
    blocks: dict[int, list[float]] = {}
    samples = 0
    for line in told.steps():
        if not line["numbers"]:
            continue
        blocks.setdefault(samples // BLOCK, []).append(line["loss"])
        samples += len(line["numbers"])
    return {
        "finished": len(ends) > 0 and bool(firsts),
        "steps": len(firsts),
        "seconds": firsts[-1] - firsts[0] if firsts else float("nan"),
        "step_ms": 1e3 * statistics.median(gap for _, gap in gaps) if gaps else float("nan"),
        "events": events,
        "redone": told.redone(),
        "twice": told.twice(),
        "left_out": told.left_out(),
        "equal": len(set(ends)) == 1,
        "losses": [statistics.mean(blocks[block]) for block in sorted(blocks)],
    }


HEADER = (
    "| system | calm | disturbed | disturbances: longest wait after each, median (most) | noticed as a loss after | from there to the next step "
    "| steps made again | samples twice, left out | equal parameters | loss after as many samples, calm and disturbed |\n|---|---|---|---|---|---|---|---|---|---|"
)


def line_of(name: str, calm: dict[str, Any], disturbed: dict[str, Any]) -> str:
    def told(column: str) -> str:
        kinds: dict[str, list[float | None]] = {}
        for event in disturbed["events"]:
            kinds.setdefault(event["what"], []).append(event[column])
        return "; ".join(of_kind(*kind) for kind in kinds.items()) or "–"

    def of_kind(what: str, times: list[float | None]) -> str:
        known = [time for time in times if time is not None and time == time]
        waits = f"{statistics.median(known):.2f} s ({max(known):.2f} s)" if known else "–"
        number = f"{len(times)}" if len(known) == len(times) else f"{len(known)} of {len(times)}"
        return f"{number} {what}: {waits}"

    finished = "" if disturbed["finished"] else " (not finished)"
    twice, left_out = ("–" if disturbed[column] is None else disturbed[column] for column in ("twice", "left_out"))
    # The last block may hold a few samples only.
    same = max(0, min(len(calm["losses"]), len(disturbed["losses"])) - 2)
    losses = [f"{run['losses'][same]:.3f}" if run["losses"] else "–" for run in (calm, disturbed)]
    return (
        f"| {name} | {calm['steps']} steps in {calm['seconds']:.0f} s | {disturbed['steps']} in {disturbed['seconds']:.0f} s{finished} "
        f"| {told('price')} | {told('noticed')} | {told('resumed')} | {disturbed['redone']} | {twice}, {left_out} "
        f"| {'yes' if disturbed['equal'] else 'no'} | {', '.join(losses)} |"
    )


if __name__ == "__main__":
    sys.exit(main())
