"""What ways to stay together cost in accuracy: the same number of iterations in each, over several seeds.

    python bench/training/convergence.py --workers 6 --racks 2 --steps 300 --seeds 5 --json convergence.json

Tasks: Fashion-MNIST with a small convolutional network (`cnn`) and a small transformer over patches (`transformer`), and the
characters of this project's own documents with a small causal transformer (`text`). Ways: gradients averaged in every step (`bsp`), parameters
averaged in groups (`shuffle`, the same with an exact average every 16th step, and with an ensemble over the last quarter), with
one other worker (`gossip`), every eighth step (`local`), and servers that apply whatever comes (`asynchronous`). Workers have
the same hyper-parameters and their own share of the data in all of them; accuracy is that of the averaged model at the end.

Each strategy is one job of `paceline run`, whose workers count as hosts of their own. A way is marked as below `bsp` where its mean
is by more than one standard deviation of `bsp`. Tables go to standard output, progress to standard error, all runs to --json.

Exit codes: 0 all runs came to their end, 1 one did not, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).parent
TASKS = ("cnn", "transformer", "text")
#: By name: the job's strategy.
WAYS = {
    "bsp": "auto",
    "shuffle": "shuffle",
    "shuffle:16": "shuffle:16",
    "ensemble": "shuffle",
    "gossip": "gossip",
    "local": "auto",
    "asynchronous": "auto",
}


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
        report(tasks, ways, runs)
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--racks", type=int, default=2, help="that the workers are divided into [2]")
    parser.add_argument("--steps", type=int, default=300, help="iterations of every worker [300]")
    parser.add_argument("--batch", type=int, default=16, help="samples of a worker's iteration [16]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", default="/usr/share/datasets/fashion-mnist", help="folder of the four files")
    parser.add_argument("--paceline", help="the command [the one on the path]")
    parser.add_argument("--json", type=pathlib.Path, help="file for all runs")
    return parser


def play(
    options: argparse.Namespace, command: str, strategy: str, tasks: list[str], ways: list[str], runs: list[dict[str, Any]]
) -> bool:
    """One job for all runs under one strategy; whether it came to its end."""
    told = {
        "tasks": tasks, "ways": ways, "steps": options.steps, "batch": options.batch, "seeds": options.seeds,
        "images": options.images,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        topology = pathlib.Path(folder) / "topology.toml"
        topology.write_text(described(options.workers, options.racks))
        launch = [command, "run", "-q", "--no-prefix", "--insecure", "-n", str(options.workers), "--strategy", strategy]
        launch += ["--topology", str(topology), "--", sys.executable, str(HERE / "convergence_worker.py"), json.dumps(told)]
        with subprocess.Popen(launch, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as job:
            assert job.stdout is not None
            try:
                for line in job.stdout:
                    run = json.loads(line)
                    runs.append(run)
                    name = f"{run['task']} {run['way']} seed {run['seed']}"
                    print(f"{name}: {100 * run['accuracy']:.2f} % after {run['seconds']:.1f} s", file=sys.stderr)
            except BaseException:
                job.terminate()
                raise
    return job.returncode == 0


def described(workers: int, racks: int) -> str:
    """A topology: these workers' hosts, in racks."""
    link = 'rate = "10gbit", latency = "20us"'
    lines = [f"uplinks = [{', '.join(f'{{ {link} }}' for _ in range(racks))}]", f"memory = {{ {link} }}", "hosts = ["]
    for host in range(workers):
        lines.append(f'  {{ name = "host{host}", rack = {host * racks // workers}, link = {{ {link} }} }},')
    return "\n".join([*lines, "]", ""])


def report(tasks: list[str], ways: list[str], runs: list[dict[str, Any]]) -> None:
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
            print(f"{way:<14}  {statistics.mean(accuracies):5.2f} ± {spread:4.2f} %  {len(accuracies):>5}  {against}")


if __name__ == "__main__":
    sys.exit(main())
