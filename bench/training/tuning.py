"""A real job whose link rates and workers change while it runs, under several tuners: speed over time against the best
fixed setting of each phase.

    sudo -E python bench/training/tuning.py --profile resnet50 --slow 20 --hosts 4 --rate 1gbit --script rates.txt

Layers are played by timers on the hosts of a testbed, one worker each; `--real` trains the model of that name instead, on
the GPU that all share. The script has the lines of `paceline-testbed run
--script` and of `paceline tune` (`60 host3 100mbit`, `120 worker2 2x`), with seconds since training begins. The beginning is
measured first, in a whole run without a tuner (`default`), then other fixed settings for a while in the conditions of each phase:
those of `--settings`, or what the replay takes for the best of each phase and of all. What there was to gain is printed before
any tuner runs. The clock of a run begins after its first steps, whose start-up no tuner can help. The table goes to standard
output, everything to --json, speed over time to --plot (and `curves.py` draws it of what --json kept).

Exit codes: 0 all measured, 1 error, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import bounds
import curves
import profiles
from cell import START, CellError, Testbed, environment

#: In force at the beginning.
BEGINNING = "ring 1MiB 1MiB"

#: The part of a phase whose speed is that of its end.
END = 0.25

#: The part of the first phase by which steps have to count.
LATEST = 0.5

#: Steps at the beginning of a run that do not count.
WARMUP = 4

#: Longer than a script lasts by this factor and this many seconds, and it has failed.
PATIENCE, GRACE = 2.0, 60.0


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a script."""

    at: float
    what: str
    how: str

    def written(self, delay: float) -> str:
        return f"{self.at + delay} {self.what} {self.how}\n"


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of time between two changes, and all that was changed until then."""

    begin: float
    end: float
    lines: tuple[Line, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def conditions(self, rate: str) -> frozenset[tuple[str, str]]:
        """What is otherwise than at the beginning: equal for phases that are alike."""
        last = {line.what: line.how for line in self.lines}
        return frozenset((what, how) for what, how in last.items() if how not in (rate, "1x"))


def main() -> int:
    options = arguments().parse_args()
    try:
        (profile,) = profiles.read(options.profile)
        bounds.bits_per_second(options.rate)
        lines = read_script(options.script)
        settings = [setting.strip() for setting in options.settings.split(",") if setting.strip()]
        if any(len(setting.split()) != 3 for setting in settings):
            raise ValueError("--settings: write STRATEGY PARTITION CREDIT, such as `ring 1MiB 4MiB`")
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as problem:
        print(f"tuning.py: {problem}", file=sys.stderr)
        return 2
    bench = Bench(options, profile.slowed(options.slow).shrunk(options.shrink), lines)
    try:
        bench.run(settings, [method.strip() for method in options.methods.split(",")])
    except KeyboardInterrupt:
        bench.stop()
        return 130
    except (CellError, OSError) as problem:
        print(f"tuning.py: {problem}", file=sys.stderr)
        return 1
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", required=True, help="to play: NAME, FILE or FILE#MODEL")
    parser.add_argument("--slow", type=float, default=20.0, help="how many times slower than it was measured [20]")
    parser.add_argument("--shrink", type=float, default=1.0, help="how many times fewer bytes it has [1]")
    parser.add_argument("--real", action="store_true", help="train the model of that name; the profile is for the replay only")
    parser.add_argument("--hosts", type=int, default=4, help="[4]")
    parser.add_argument("--racks", type=int, default=1, help="[1]")
    parser.add_argument("--rate", default="1gbit", help="of each host's wire at the beginning [1gbit]")
    parser.add_argument("--script", type=pathlib.Path, required=True, help="what changes, and when")
    parser.add_argument("--length", type=float, default=180.0, help="seconds that the script lasts [180]")
    parser.add_argument("--methods", default="bo,autobyte,replay", help="to compare with the beginning and with each other")
    parser.add_argument("--settings", default="", help="fixed ones to measure, STRATEGY PARTITION CREDIT each [foreseen]")
    parser.add_argument("--start", type=float, default=START, help=f"seconds until workers have met [{START:g}]")
    parser.add_argument("--probe", type=float, default=12.0, help="seconds for a fixed setting in a phase [12]")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--json", type=pathlib.Path, help="where everything measured goes")
    parser.add_argument("--plot", type=pathlib.Path, help="draw speed over time (SVG)")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for what tuners decided")
    return parser


def read_script(path: pathlib.Path) -> list[Line]:
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        words = text.partition("#")[0].split()
        if words and len(words) != 3:
            raise ValueError(f"{path}, line {number}: expected SECONDS WHAT HOW, such as `60 host3 100mbit`")
        if words:
            lines.append(Line(float(words[0]), words[1], words[2]))
    return sorted(lines, key=lambda line: line.at)


def phases(lines: list[Line], length: float) -> list[Phase]:
    cuts = sorted({line.at for line in lines if 0 < line.at < length})
    begins, ends = [0.0, *cuts], [*cuts, length]
    return [
        Phase(begin, end, tuple(dataclasses.replace(line, at=0.0) for line in lines if line.at <= begin))
        for begin, end in zip(begins, ends)
    ]


class Bench:
    def __init__(self, options: argparse.Namespace, profile: profiles.Profile, lines: list[Line]) -> None:
        self._options, self._profile, self._lines = options, profile, lines
        self._testbed = Testbed(options.testbed)
        self._phases = phases(lines, options.length)

    def stop(self) -> None:
        self._testbed.stop()

    def run(self, settings: list[str], methods: list[str]) -> None:
        found: dict[str, Any] = {"phases": [dataclasses.asdict(phase) for phase in self._phases]}
        settings = settings or self._foreseen()
        runs = {"default": self._tuned("default")}
        fixed = [setting for setting in dict.fromkeys(settings) if setting != BEGINNING]
        speeds = {BEGINNING: self._alike(Run(runs["default"][0]).speeds(self._phases))}
        speeds.update((setting, self._speeds(setting)) for setting in fixed)
        yardstick = Yardstick(self._phases, speeds)
        found.update(fixed=speeds, yardstick=yardstick.figures())
        print(yardstick.text(), flush=True)
        print(HEADER, flush=True)
        found["methods"] = {}
        for method in dict.fromkeys(["default", *methods]):
            ends, decisions = runs[method] if method in runs else self._tuned(method)
            row = yardstick.row(Run(ends), decisions)
            found["methods"][method] = {**row, "ends": ends, "decisions": decisions}
            print(line_of(method, row), flush=True)
            if self._options.json:
                self._options.json.write_text(json.dumps(found, indent=1))
            if self._options.plot:
                self._options.plot.write_text(curves.draw(self._options.script.stem, found))

    def _alike(self, speeds: list[float]) -> list[float]:
        """The same speeds where conditions are the same: the mean over the time that these lasted."""
        lasted: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
        for phase, speed in zip(self._phases, speeds):
            lasted.setdefault(phase.conditions(self._options.rate), []).append((phase.seconds, speed))
        mean = {
            conditions: sum(seconds * speed for seconds, speed in pairs) / sum(seconds for seconds, _ in pairs)
            for conditions, pairs in lasted.items()
        }
        return [mean[phase.conditions(self._options.rate)] for phase in self._phases]

    def _foreseen(self) -> list[str]:
        """What the replay takes for the best of each phase, and of all."""
        with tempfile.TemporaryDirectory(prefix="paceline-tuning-") as folder:
            profile, script = pathlib.Path(folder, "profile.json"), pathlib.Path(folder, "script.txt")
            profile.write_text(json.dumps(self._profile.written()))
            script.write_text("".join(line.written(0.0) for line in self._lines))
            command = [
                self._options.paceline, "tune", str(profile), "--script", str(script), "--method", "default", "--json",
                "--length", f"{self._options.length}s", "--workers", str(self._options.hosts),
                "--racks", str(self._options.racks), "--bandwidth", self._options.rate,
            ]  # fmt: skip
            self._say("looking for the best settings of each phase in virtual time")
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        if done.returncode:
            raise CellError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        self._say(f"virtual time: headroom {100 * report['headroom']:.1f} % over the best single setting")
        best = [*report["yardstick"]["best"], report["yardstick"]["static_best"]]
        return [f"{one['strategy']} {one['partition']} {one['credit']}" for one in best]

    def _speeds(self, setting: str) -> list[float]:
        """Steps a second of a fixed setting in each phase: in jobs of their own, or in a whole run where that is shorter."""
        unlike = len({phase.conditions(self._options.rate) for phase in self._phases})
        if unlike * (self._options.start + self._options.probe) > self._options.start + self._options.length:
            self._say(f"{setting}: {self._options.length:.0f} s")
            ends = self.job(setting, tuple(self._lines), self._options.length, {})
            return self._alike(Run(ends).speeds(self._phases))
        speeds: list[float] = []
        known: dict[frozenset[tuple[str, str]], float] = {}
        for place, phase in enumerate(self._phases):
            conditions = phase.conditions(self._options.rate)
            if conditions in known:
                speeds.append(known[conditions])
                continue
            self._say(f"{setting}: phase {place + 1} of {len(self._phases)}")
            ends = [end for end in self.job(setting, phase.lines, self._options.probe, {}) if end >= 0]
            counted = ends[WARMUP:] if len(ends) > WARMUP + 2 else ends
            lengths = [later - sooner for sooner, later in zip(counted, counted[1:])]
            if not lengths:
                raise CellError(f"{setting} made no two steps in {self._options.probe:g} s; give a longer --probe")
            known[conditions] = 1 / statistics.mean(lengths)
            speeds.append(known[conditions])
        return speeds

    def _tuned(self, method: str) -> tuple[list[float], list[dict[str, Any]]]:
        """When steps ended under a tuner, and what it decided."""
        self._say(f"{method}: {self._options.length:.0f} s")
        with tempfile.TemporaryDirectory(prefix="paceline-tuning-") as folder:
            log = (self._options.logs or pathlib.Path(folder)) / f"{method}.jsonl"
            log.unlink(missing_ok=True)
            extra = {} if method == "default" else {"PACELINE_TUNE": method, "PACELINE_TUNE_LOG": str(log)}
            ends = self.job(BEGINNING, tuple(self._lines), self._options.length, extra)
            decisions = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if Run(ends).begin > LATEST * self._phases[0].end:
            raise CellError(f"steps count from {Run(ends).begin:.0f} s on, which misses the first phase; give a longer --start")
        return ends, decisions

    def job(self, setting: str, lines: tuple[Line, ...], seconds: float, extra: dict[str, str]) -> list[float]:
        """Train for so long. When steps ended, since the beginning of the script."""
        ends: list[float] = self.report(setting, lines, seconds, extra)["ends"]
        return ends

    def report(
        self, setting: str, lines: tuple[Line, ...], seconds: float, extra: dict[str, str], more: str = "",
        neighbour: dict[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The same, with which links were marked when. A neighbour has a host more in each rack."""
        strategy, partition, credit = setting.split()
        start = self._options.start
        # Until workers have met, links carry what they carry at the beginning.
        links = [line for line in lines if not line.what.startswith("worker")]
        slow = [(line.at, int(line.what[6:]), float(line.how[:-1])) for line in lines if line.what.startswith("worker")]
        job = {
            "profile": self._profile.written(), "seconds": seconds, "delay": start, "slowness": slow, "neighbour": neighbour,
            "real": self._options.profile if self._options.real else None,
            "settings": f"--strategy {strategy} --partition {partition} --credit {credit} {more}",
        }  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="paceline-tuning-") as name:
            folder = pathlib.Path(name)
            (folder / "job.json").write_text(json.dumps(job))
            (folder / "script.txt").write_text("".join(line.written(start) for line in links))
            hosts = self._options.hosts + (self._options.racks if neighbour else 0)
            uplink = getattr(self._options, "uplink", None)
            command = [
                self._options.testbed, "run", "--hosts", str(hosts), "--racks", str(self._options.racks),
                "--rate", self._options.rate, *(["--uplink", uplink] if uplink else []), "--script", str(folder / "script.txt"), "--", sys.executable,
                str(pathlib.Path(__file__).parent / "tuned.py"), "--job", str(folder / "job.json"),
                "--out", str(folder / "out.json"),
            ]  # fmt: skip
            variables = {**environment(played=not self._options.real), "PACELINE_COMMAND": self._options.paceline, **extra}
            patience = start + PATIENCE * seconds + GRACE
            code, words = self._testbed.run(command, variables, patience, lambda text: self._say(f"  {text}"))
            if code or not (folder / "out.json").exists():
                raise CellError(f"the workers ended with {code}:\n{words}")
            found: dict[str, Any] = json.loads((folder / "out.json").read_text())
        return found

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Run:
    """When the steps of a run ended, and since when they count."""

    def __init__(self, ends: list[float]) -> None:
        if len(ends) <= WARMUP:
            raise CellError(f"a run made only {len(ends)} steps; give a longer --length")
        self._ends, self.begin = ends, max(0.0, ends[WARMUP - 1])

    def steps(self, begin: float, end: float) -> float:
        """Those between two moments, the first and last in part."""
        return self._progress(end) - self._progress(max(begin, self.begin))

    def speed(self, begin: float, end: float) -> float:
        """Steps a second between two moments, as far as they count."""
        seconds = end - max(begin, self.begin)
        return self.steps(begin, end) / seconds if seconds > 0 else 0.0

    def speeds(self, phases: list[Phase]) -> list[float]:
        """Steps a second in each phase."""
        return [self.speed(phase.begin, phase.end) for phase in phases]

    def _progress(self, at: float) -> float:
        place = bisect.bisect_right(self._ends, at)
        if place in (0, len(self._ends)):
            return float(place)
        before, after = self._ends[place - 1], self._ends[place]
        return place + (at - before) / (after - before)


class Yardstick:
    """What there was to gain: the best fixed setting of each phase against the best single one."""

    def __init__(self, phases: list[Phase], speeds: dict[str, list[float]]) -> None:
        self._phases, self._speeds = phases, speeds
        self._best = [max(speeds, key=lambda setting: speeds[setting][place]) for place in range(len(phases))]
        self._single = max(speeds, key=lambda setting: self._steps(speeds[setting]))
        self._oracle = [speeds[setting][place] for place, setting in enumerate(self._best)]

    def _steps(self, speeds: list[float], begin: float = 0.0) -> float:
        """Of a run with these speeds that begins then."""
        seconds = [max(0.0, phase.end - max(begin, phase.begin)) for phase in self._phases]
        return sum(lasts * speed for lasts, speed in zip(seconds, speeds))

    def figures(self) -> dict[str, Any]:
        single, beginning = self._steps(self._speeds[self._single]), self._steps(self._speeds[BEGINNING])
        return {
            "best": self._best,
            "single": self._single,
            "headroom": self._steps(self._oracle) / single - 1,
            "headroom_over_beginning": self._steps(self._oracle) / beginning - 1,
        }

    def text(self) -> str:
        lines = [
            f"{phase.begin:6.0f} to {phase.end:6.0f} s: {setting:<32} {speed:.3f} steps/s"
            for phase, setting, speed in zip(self._phases, self._best, self._oracle)
        ]
        figures = self.figures()
        lines.append(
            f"Headroom: {100 * figures['headroom']:+.1f} % over the best single setting ({self._single}), "
            f"{100 * figures['headroom_over_beginning']:+.1f} % over the beginning.\n"
        )
        return "\n".join(lines)

    def row(self, run: Run, decisions: list[dict[str, Any]]) -> dict[str, Any]:
        """What a run was worth, from when its steps count."""
        steps = run.steps(0.0, self._phases[-1].end)
        single, beginning, oracle = (
            self._steps(speeds, run.begin)
            for speeds in (self._speeds[self._single], self._speeds[BEGINNING], self._oracle)
        )
        ends = [(phase.end - END * phase.seconds, phase.end) for phase in self._phases]
        return {
            "begin": run.begin,
            "steps": steps,
            "over_beginning": steps / beginning - 1,
            "over_single": steps / single - 1,
            "recovered": share(steps, single, oracle),
            "recovered_from_beginning": share(steps, beginning, oracle),
            "end_shares": [run.speed(*end) / speed for end, speed in zip(ends, self._oracle)],
            "switches": sum(decision["action"] in ("switch", "try", "roll_back") for decision in decisions),
        }


def share(steps: float, base: float, oracle: float) -> float | None:
    """How much of what there is to gain was gained; None where that is less than 1 %."""
    return (steps - base) / (oracle - base) if oracle > 1.01 * base else None


HEADER = (
    "| method | over beginning | over best single | recovered | recovered from beginning | worst end of a phase "
    "| switches |\n|---|---|---|---|---|---|---|"
)


def line_of(method: str, row: dict[str, Any]) -> str:
    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:+.1f} %"

    cells = [percent(row[name]) for name in ("over_beginning", "over_single", "recovered", "recovered_from_beginning")]
    return f"| {method} | {' | '.join(cells)} | {percent(min(row['end_shares']) - 1)} | {row['switches']} |"


if __name__ == "__main__":
    sys.exit(main())
