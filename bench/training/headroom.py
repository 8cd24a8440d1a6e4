"""What self-tuning can gain and what it does gain, in virtual time: models × scripts of changing conditions, models × rates
× kinds of strategies where nothing changes, and what finding a setting costs.

    python bench/training/headroom.py dynamic --out results
    python bench/training/headroom.py static --out results --rates 10gbit,25gbit,100gbit --beginnings usual,small --methods all

Every cell is one `paceline tune --json`, kept in --out: a run that is broken off goes on where it was, and methods that were not
asked for before are added. Tables go to standard output as Markdown. Nothing is measured in real time but how long tuners think.

Exit codes: 0 every cell was played, 1 error, 2 wrong usage, 3 a cell failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from profiles import SHIPPED

MODELS = "resnet50,vgg16,bert-base,gpt2,lstm"
SCRIPTS = "steps,ramp,bursts,slow-host,slow-rack,straggler,second-job"
METHODS = "default,bo,autobyte,replay"

#: With those that try so many settings on the job that it is long over before they know.
ALL = "default,grid,random,bo,autobyte,replay"

#: Kinds of strategies that are looked at apart from each other.
KINDS = {"parameter server": "parameter_server", "all-reduce": "ring,double_tree"}

#: What is in force at the beginning besides a strategy: what Paceline takes by itself, or what suits hardly any job.
BEGINNINGS = {"usual": "", "small": 'partition = "64KiB"\ncredit = "64KiB"\n'}

#: Seconds that a cell may take.
PATIENCE = 3600.0


def main() -> int:
    options = arguments().parse_args()
    unknown = [name for name in options.beginnings.split(",") if name not in BEGINNINGS]
    if unknown:
        print(f"headroom.py: no beginning is called {unknown[0]}; known: {', '.join(BEGINNINGS)}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        found = list(cells(options))
    except KeyboardInterrupt:
        return 130
    except OSError as problem:
        print(f"headroom.py: {problem}", file=sys.stderr)
        return 1
    print(dynamic(found) if options.what == "dynamic" else static(found))
    print(cost(found))
    return 3 if any(report is None for _, report in found) else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("dynamic", "static"))
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where cells are kept (JSON)")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--scripts", default=SCRIPTS, help="of `dynamic`")
    parser.add_argument("--rates", default="25gbit", help="of wires [25gbit]")
    parser.add_argument("--methods", default=METHODS, help=f"[{METHODS}]; all: also grid and random")
    parser.add_argument("--beginnings", default="usual", help=f"what is in force first: {', '.join(BEGINNINGS)} [usual]")
    parser.add_argument("--phase", type=int, default=250, help="steps of a phase of a script [250]")
    parser.add_argument("--workers", type=int, default=4, help="[4]")
    parser.add_argument("--latency", default="50us", help="of a message between hosts [50us]")
    parser.add_argument("--slow", type=float, default=1.0, help="how many times slower computation is [1]")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each cell [1]")
    parser.add_argument("--fine", action="store_true", help="all partitions and credits, not every second")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    return parser


def cells(options: argparse.Namespace) -> Iterator[tuple[dict[str, str], dict[str, Any] | None]]:
    """What each cell is called, and what came of it."""
    kinds = KINDS if options.what == "static" else {"any": ",".join(KINDS.values())}
    scripts = ["still"] if options.what == "static" else options.scripts.split(",")
    for model in options.models.split(","):
        for rate in options.rates.split(","):
            for script in scripts:
                for kind, strategies in kinds.items():
                    for beginning in options.beginnings.split(","):
                        for seed in range(1, options.seeds + 1):
                            names = {
                                "model": model, "rate": rate, "script": script, "kind": kind, "beginning": beginning,
                                "seed": str(seed),
                            }  # fmt: skip
                            yield names, played(options, names, strategies)


def played(options: argparse.Namespace, names: dict[str, str], strategies: str) -> dict[str, Any] | None:
    """One cell; from its file, as far as it was played before."""
    file = options.out / ("-".join(names.values()).replace(" ", "_") + ".json")
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"runs": []}
    methods = (ALL if options.methods == "all" else options.methods).split(",")
    missing = [method for method in methods if method not in (run["method"] for run in known["runs"])]
    if missing:
        print(" ".join(names.values()), file=sys.stderr, flush=True)
        command = [
            options.paceline, "tune", str(SHIPPED / f"{names['model']}.json"), "--json", "--script", names["script"],
            "--workers", str(options.workers), "--bandwidth", names["rate"], "--latency", options.latency,
            "--slow", str(options.slow), "--seed", names["seed"], "--strategies", strategies, "--phase", str(options.phase),
            "--racks", "2" if names["script"] == "slow-rack" else "1", *in_force(options, names, strategies),
        ]  # fmt: skip
        command += [] if options.fine else ["--coarse"]
        for method in missing:
            command += ["--method", method]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            print(f"failed: {done.stderr.strip()}", file=sys.stderr, flush=True)
            return None
        report: dict[str, Any] = json.loads(done.stdout)
        for run in report["runs"]:
            del run["decisions"]
        known = {**report, "runs": known["runs"] + report["runs"]}
        file.write_text(json.dumps(known))
    runs = {run["method"]: run for run in known["runs"]}
    return {**known, "runs": [runs[method] for method in methods]}


def in_force(options: argparse.Namespace, names: dict[str, str], strategies: str) -> list[str]:
    """How a job of this kind is told to begin: with its first strategy; of any kind, with what Paceline chooses by itself."""
    first = "" if names["kind"] == "any" else f'strategy = "{strategies.split(",")[0]}"\n'
    settings = first + BEGINNINGS[names["beginning"]]
    if not settings:
        return []
    plan = options.out / f"{names['kind']}-{names['beginning']}.toml".replace(" ", "_")
    plan.write_text(f"[settings]\n{settings}")
    return ["--in-force", str(plan)]


def dynamic(found: list[tuple[dict[str, str], dict[str, Any] | None]]) -> str:
    """Headroom, and what each method recovers of it."""
    methods = methods_of(found)
    lines = [
        f"| model, script | headroom over best single | over beginning | {' | '.join(methods)} |",
        f"|---|---|---|{'---|' * len(methods)}",
    ]
    for names, report in found:
        if report is None:
            continue
        runs = {run["method"]: run for run in report["runs"]}
        row = [
            f"{names['model']} {names['rate']}, {names['script']}{begun(names)}",
            percent(report["headroom"]),
            percent(report["headroom_over_default"]),
            *(recovered(runs[method]) for method in methods),
        ]
        lines.append(f"| {' | '.join(row)} |")
    lines.append(
        "\nUnder each method: steps over the beginning; (share of the headroom over the best single setting, share of that over "
        "the beginning); the worst end of a phase against its best setting; switches."
    )
    return "\n".join(lines)


def recovered(run: dict[str, Any]) -> str:
    shares = ", ".join(share(run[name]) for name in ("recovered", "recovered_over_default"))
    worst = min(phase["end_share"] for phase in run["phases"]) - 1
    return f"{percent(run['over_default'])} ({shares}), {percent(worst)}, {run['switches']}"


def static(found: list[tuple[dict[str, str], dict[str, Any] | None]]) -> str:
    """What each method ends with from each beginning, against the best of the grid."""
    methods = methods_of(found)
    lines = [
        f"| model, rate, kind | best of the grid | beginning | {' | '.join(methods)} |",
        f"|---|---|---|{'---|' * len(methods)}",
    ]
    ends: dict[str, list[list[float]]] = {}
    for names, report in found:
        if report is None:
            continue
        best = report["yardstick"]["best"][0]
        row = [run["phases"][0]["end_share"] - 1 for run in report["runs"]]
        ends.setdefault(names["beginning"], []).append(row)
        lines.append(
            f"| {names['model']}, {names['rate']}, {names['kind']} | {best['strategy']} {best['partition']}/{best['credit']} "
            f"| {names['beginning']} | {' | '.join(map(percent, row))} |"
        )
    for beginning, rows in ends.items():
        cells = [f"{percent(statistics.mean(column))} ({percent(min(column))})" for column in zip(*rows)]
        lines.append(f"| mean (worst) | | {beginning} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cost(found: list[tuple[dict[str, str], dict[str, Any] | None]]) -> str:
    """What finding settings costs, over whole runs: cells with a phase in which the beginning is more than 5 % from the best."""
    methods = [method for method in methods_of(found) if method != "default"]
    lines = [
        f"\n| model, script, seed | {' | '.join(methods)} |",
        f"|---|{'---|' * len(methods)}",
    ]
    rows = len(lines)
    lost: dict[str, list[float]] = {method: [] for method in methods}
    for names, report in found:
        runs = {run["method"]: run for run in report["runs"]} if report else {}
        if "default" not in runs or all(phase["found"] for phase in runs["default"]["phases"]):
            continue
        cells = []
        for method in methods:
            phases = runs[method]["phases"]
            steps = sum(phase["steps_until_near"] for phase in phases)
            lost[method].append(sum(phase["seconds_lost"] for phase in phases))
            never = sum(not phase["found"] for phase in phases)
            missed = f", {never} of {len(phases)} never" if never else ""
            cells.append(f"{steps} steps, {lost[method][-1]:.1f} s{missed}")
        case = f"{names['model']} {names['rate']}, {names['script']}{begun(names)}, {names['seed']}"
        lines.append(f"| {case} | {' | '.join(cells)} |")
    if len(lines) == rows:
        return "\nSearch cost: in no cell is the beginning ever more than 5 % from the best setting."
    medians = [f"{statistics.median(lost[method]):.1f} s" for method in methods]
    lines.append(f"| median | {' | '.join(medians)} |")
    lines.append(
        "\nUnder each method: steps that were taken in all phases until a step took at most 5 % more than with the best setting, and "
        "stayed so, and the time by which they were longer than with it; phases in which that never was so count whole."
    )
    return "\n".join(lines)


def methods_of(found: list[tuple[dict[str, str], dict[str, Any] | None]]) -> list[str]:
    first = next((report for _, report in found if report is not None), None)
    return [run["method"] for run in first["runs"]] if first else []


def begun(names: dict[str, str]) -> str:
    """What a cell's name says of a kind or a beginning that is not as usual."""
    return "".join(f", {names[name]}" for name, usual in (("kind", "any"), ("beginning", "usual")) if names[name] != usual)


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


if __name__ == "__main__":
    sys.exit(main())
