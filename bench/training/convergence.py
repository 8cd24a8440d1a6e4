"""What ways to stay together cost in accuracy: the same number of iterations in each, over several seeds.

    python bench/training/convergence.py --workers 6 --racks 2 --steps 300 --seeds 5 --json convergence.json

Tasks: Fashion-MNIST with a small convolutional network (`cnn`), a wider one (`wide`) and a small transformer over patches (`transformer`), and the
characters of this project's own documents with a small causal transformer (`text`). Ways: gradients averaged in every step (`bsp`), parameters
averaged in groups (`shuffle`, the same with an exact average every 16th step, and with an ensemble over the last quarter), with
one other worker (`gossip`), every eighth step (`local`), and servers that apply whatever comes (`asynchronous`). Workers have
the same hyper-parameters and their own share of the data in all of them, and a learning rate that falls to nothing in the second half; accuracy is
that of the averaged model at the end. With --rates 1,2,4 every way has the best of several learning rates, found with a seed that does not count: an
optimizer that scales gradients by their noise, such as Adam, takes shorter steps where each worker has its own.

With --rate workers are on hosts of a testbed instead (as root), and it is also measured how long they train until the first of them is as
accurate as --target says, in percent:

    sudo -E python bench/training/convergence.py --tasks wide --ways bsp,ring,shuffle --workers 12 --racks 4 --rate 100mbit --uplink 150mbit \\
        --slow rack1=20mbit --target 80

Each strategy is one job of `paceline run`, whose workers count as hosts of their own. A way is marked as below `bsp` where its mean
is by more than one standard deviation of `bsp`. Tables go to standard output, progress to standard error, all runs to --json.

Exit codes: 0 all runs came to their end, 1 one did not, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import racks

HERE = pathlib.Path(__file__).parent
TASKS = ("cnn", "transformer", "text", "wide")
#: Those that are usual.
USUAL = TASKS[:3]
#: By name: the job's strategy.
WAYS = {
    "bsp": "auto",
    "ring": "ring",
    "hierarchical": "hierarchical:racks",
    "shuffle": "shuffle",
    "shuffle:16": "shuffle:16",
    "ensemble": "shuffle",
    "gossip": "gossip",
    "local": "auto",
    "asynchronous": "auto",
}
#: Those that differ from others in more than the strategy.
COMPARED = tuple(way for way in WAYS if way not in ("ring", "hierarchical"))


def main() -> int:
    options = arguments().parse_args()
    tasks, ways = options.tasks.split(","), options.ways.split(",")
    wrong = [name for name in tasks if name not in TASKS] + [name for name in ways if name not in WAYS]
    command = options.paceline or shutil.which("paceline")
    if wrong or command is None or options.workers % options.racks:
        problem = f"there is no {wrong[0]}" if wrong else "no `paceline` command" if command is None else "racks of unequal size"
        print(f"convergence.py: {problem}", file=sys.stderr)
        return 2
    runs: list[dict[str, Any]] = []
    try:
        for strategy in dict.fromkeys(WAYS[way] for way in ways):
            chosen = [way for way in ways if WAYS[way] == strategy]
            if not play(options, command, strategy, tasks, chosen, runs):
                return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if options.json is not None:
            described = {key: str(value) for key, value in vars(options).items()}
            options.json.write_text(json.dumps({"options": described, "runs": runs}, indent=1))
        report(tasks, ways, runs, options.target)
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(USUAL), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--ways", default=",".join(COMPARED), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--racks", type=int, default=2, help="that the workers are divided into [2]")
    parser.add_argument("--steps", type=int, default=300, help="iterations of every worker [300]")
    parser.add_argument("--batch", type=int, default=16, help="samples of a worker's iteration [16]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", default="1", help="learning rates to choose from, as multiples of the usual one [1]")
    parser.add_argument("--images", default="/usr/share/datasets/fashion-mnist", help="folder of the four files")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND"), help="the command [the one on the path]")
    network = parser.add_argument_group("on a testbed")
    network.add_argument("--rate", help="of each host's wire, such as 100mbit")
    network.add_argument("--uplink", help="of each rack's uplink [what its hosts carry together]")
    network.add_argument("--slow", help="an uplink that others use, and what they leave, such as rack1=20mbit; it is marked as contended")
    network.add_argument("--target", type=float, help="the accuracy to reach, in percent")
    network.add_argument("--judge", type=int, default=10, help="steps between two looks at it [10]")
    network.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--json", type=pathlib.Path, help="file for all runs")
    return parser


def play(
    options: argparse.Namespace, command: str, strategy: str, tasks: list[str], ways: list[str], runs: list[dict[str, Any]]
) -> bool:
    """One job for all runs under one strategy; whether it came to its end."""
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.toml"
        plan.write_text(described(options, strategy))
        told = {
            "tasks": tasks, "ways": ways, "steps": options.steps, "batch": options.batch, "seeds": options.seeds,
            "images": options.images, "rates": [float(rate) for rate in options.rates.split(",")], "paceline": command, "plan": str(plan), "judge": options.judge if options.rate else 0,
        }  # fmt: skip
        program = [sys.executable, str(HERE / "convergence_worker.py"), json.dumps(told)]
        if options.rate:
            changes = pathlib.Path(folder) / "changes.txt"
            changes.write_text(f"0 {options.slow.replace('=', ' ')}\n" if options.slow else "")
            launch = [options.testbed, "run", "--hosts", str(options.workers), "--racks", str(options.racks), "--rate", options.rate]
            launch += [*(["--uplink", options.uplink] if options.uplink else []), "--script", str(changes), "--", *program]
        else:
            launch = [command, "run", "-q", "--no-prefix", "--insecure", "-n", str(options.workers), "--plan", str(plan), "--", *program]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_SECRET": secrets.token_hex(16)}
        with subprocess.Popen(launch, stdout=subprocess.PIPE, text=True, env=variables) as job:
            assert job.stdout is not None
            try:
                for line in job.stdout:
                    # A testbed says of every line whose it is.
                    told_by, brace, rest = line.partition("{")
                    if not brace or told_by not in ("", "[host0] "):
                        continue
                    run = json.loads(brace + rest)
                    runs.append(run)
                    name = f"{run['task']} {run['way']} seed {run['seed']}"
                    print(f"{name}: {100 * run['accuracy']:.2f} % after {run['seconds']:.1f} s", file=sys.stderr)
            except BaseException:
                job.terminate()
                raise
    return job.returncode == 0


def described(options: argparse.Namespace, strategy: str) -> str:
    """A plan: the strategy, and these workers' hosts, in racks."""
    rate = options.rate or "10gbit"
    slow, _, left = (options.slow or "").partition("=")
    uplinks = [left if slow == f"rack{rack}" else options.uplink or rate for rack in range(options.racks)]
    lines = ["[settings]", f'strategy = "{strategy}"']
    if slow:
        lines += ["[settings.contended]", f"racks = [{slow.removeprefix('rack')}]"]
    return "\n".join([*lines, "[settings.topology]", racks.described(options.workers, rate, uplinks)])


def reached(run: dict[str, Any], target: float) -> float | None:
    """Seconds of training until so many percent were right, twice in a row."""
    enough = [100 * accuracy >= target for _, _, accuracy in run["reached"]]
    both = (place for place, (one, other) in enumerate(zip(enough, enough[1:])) if one and other)
    place = next(both, None)
    return None if place is None else float(run["reached"][place][1])


def report(tasks: list[str], ways: list[str], runs: list[dict[str, Any]], target: float | None) -> None:
    """Accuracies, in percent: mean and standard deviation over seeds."""
    for task in tasks:
        print(f"\n{task:<14}  accuracy        seeds  against bsp")
        found = {way: [100 * run["accuracy"] for run in runs if (run["task"], run["way"]) == (task, way)] for way in ways}
        baseline = found.get("bsp", [])
        for way, accuracies in found.items():
            if not accuracies:
                continue
            against = ""
            if way != "bsp" and len(baseline) > 1:
                difference = statistics.mean(accuracies) - statistics.mean(baseline)
                below = difference < -statistics.stdev(baseline)
                against = f"{difference:+.2f}, {'below' if below else 'not below'} by more than its deviation"
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            rates = {run["rate"] for run in runs if (run["task"], run["way"]) == (task, way)}
            if rates != {1.0}:
                against += f" at {', '.join(f'{rate:g}' for rate in rates)} times the learning rate"
            print(f"{way:<14}  {statistics.mean(accuracies):5.2f} ± {spread:4.2f} %  {len(accuracies):>5}  {against}")
        if target is not None:
            print(f"\n{task:<14}  seconds a step  seconds to {target:g} %, each seed")
            for way in ways:
                of_way = [run for run in runs if (run["task"], run["way"]) == (task, way) and run["reached"]]
                if of_way:
                    step = statistics.median(run["reached"][-1][1] / run["reached"][-1][0] for run in of_way)
                    times = [reached(run, target) for run in of_way]
                    print(f"{way:<14}  {step:14.3f}  {', '.join('never' if time is None else f'{time:.1f}' for time in times)}")


if __name__ == "__main__":
    sys.exit(main())
