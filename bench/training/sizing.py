"""What policies that come with Paceline make of a training: batches that grow with the gradient's noise or with the goodput, by a file, or models that are
averaged, against batches that stay small and batches that are large from the beginning.

    sudo -E python bench/training/sizing.py --hosts 4 --rate 1gbit --epochs 6 --seeds 5

Fashion-MNIST with a convolutional network of 0.9 MB, whose workers are on hosts of a testbed. All see every image --epochs times, with a learning
rate that falls to nothing in the second half. `small` has batches of --batch images for each worker and `large` of --most, with the learning
rate higher by the root of what is between them (in proportion to it nothing is learned with the defaults). The others begin with the small batch: `noise` follows
the policy `noise_scale`, `goodput` that of its name; `schedule` doubles batches where a file says so, with the learning rate by the root; `averaging` leaves them small,
and averages models instead of gradients (`averaging:at=2`). Printed: accuracy of the end, mean and standard
deviation over seeds, and how long it took, apart from starting. All runs go to --json.

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
from concurrent import futures
from typing import Any

HERE = pathlib.Path(__file__).parent
WAYS = ("small", "noise", "goodput", "schedule", "averaging", "large")


def main() -> int:
    options = arguments().parse_args()
    command = options.paceline or shutil.which("paceline")
    ways = options.ways.split(",")
    wrong = [way for way in ways if way not in WAYS]
    if wrong or command is None or options.most < options.batch:
        problem = f"there is no {wrong[0]}" if wrong else "no `paceline` command" if command is None else "--most is below --batch"
        print(f"sizing.py: {problem}", file=sys.stderr)
        return 2
    runs: list[dict[str, Any]] = []
    with futures.ThreadPoolExecutor(options.at_once) as pool:
        jobs = [pool.submit(play, options, command, way, seed) for seed in range(options.seeds) for way in ways]
        try:
            for job in futures.as_completed(jobs):
                runs.append(job.result())
                print(json.dumps({key: value for key, value in runs[-1].items() if key != "course"}), file=sys.stderr, flush=True)
        except (KeyboardInterrupt, subprocess.CalledProcessError) as problem:
            pool.shutdown(cancel_futures=True)
            if isinstance(problem, KeyboardInterrupt):
                return 130
            print(f"sizing.py: a job failed:\n{problem.stderr[-2000:]}", file=sys.stderr)
            return 1
        finally:
            if options.json is not None:
                described = {key: str(value) for key, value in vars(options).items()}
                options.json.write_text(json.dumps({"options": described, "runs": runs}, indent=1))
    report(ways, runs)
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="small,noise,large", help=f"of {', '.join(WAYS)} [small,noise,large]")
    parser.add_argument("--hosts", type=int, default=4, help="one worker each [4]")
    parser.add_argument("--rate", default="1gbit", help="of each host's wire [1gbit]")
    parser.add_argument("--batch", type=int, default=16, help="images of a worker's small batch [16]")
    parser.add_argument("--most", type=int, default=256, help="images of a worker's largest batch [256]")
    parser.add_argument("--rule", default="adascale", help="for the learning rate: adascale, linear or sqrt [adascale]")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=1, help="jobs that run at the same time [1]")
    parser.add_argument("--images", default="/usr/share/datasets/fashion-mnist", help="folder of the four files")
    parser.add_argument("--testbed", default="paceline-testbed", help="the paceline-testbed command")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND"), help="the command [the one on the path]")
    parser.add_argument("--json", type=pathlib.Path, help="file for all runs")
    return parser


def play(options: argparse.Namespace, command: str, way: str, seed: int) -> dict[str, Any]:
    batch = options.most if way == "large" else options.batch
    with tempfile.TemporaryDirectory(prefix="paceline-sizing-") as folder:
        plan = pathlib.Path(folder) / "plan.toml"
        plan.write_text("")
        (pathlib.Path(folder) / "schedule.toml").write_text(doublings(options))
        policies = {
            "noise": f"noise_scale:most={options.most},rule={options.rule}", "goodput": f"goodput:most={options.most}",
            "schedule": f"schedule:{folder}/schedule.toml", "averaging": "averaging:at=2",
        }  # fmt: skip
        told = {
            "images": options.images, "epochs": options.epochs, "seed": seed, "batch": batch, "learning_rate": (batch / options.batch) ** 0.5,
            "policy": policies.get(way), "paceline": command, "plan": str(plan),
        }  # fmt: skip
        launch = [options.testbed, "run", "--hosts", str(options.hosts), "--rate", options.rate, "--"]
        launch += [sys.executable, str(HERE / "sizing_worker.py"), json.dumps(told)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_SECRET": secrets.token_hex(16)}
        job = subprocess.run(launch, check=True, capture_output=True, text=True, env=variables)
    # A testbed says of every line whose it is.
    (line,) = [line.removeprefix("[host0] ") for line in job.stdout.splitlines() if line.startswith("[host0] {")]
    return {"way": way, **json.loads(line)}


def doublings(options: argparse.Namespace) -> str:
    """A file for the policy `schedule`: the batch twice as large after every sixth of the images."""
    lines, step, batch, images = [], 0, options.batch, 60_000 * options.epochs
    while 2 * batch <= options.most:
        step, batch = step + images // (6 * options.hosts * batch), 2 * batch
        lines.append(f"[[at]]\nstep = {step}\nbatch = {batch}\nlearning_rate = {(batch / options.batch) ** 0.5:.3f}\n")
    return "\n".join(lines)


def report(ways: list[str], runs: list[dict[str, Any]]) -> None:
    print(f"{'':<9} {'accuracy':>15}  {'seconds, median (least to most)':>32}  {'steps':>7}  images of all workers in a step, at the end")
    for way in ways:
        of_way = [run for run in runs if run["way"] == way]
        accuracies = [100 * run["accuracy"] for run in of_way]
        seconds = [run["seconds"] for run in of_way]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(
            f"{way:<9} {statistics.mean(accuracies):6.2f} ± {spread:4.2f} %  {statistics.median(seconds):12.1f} "
            f"({min(seconds):.1f} to {max(seconds):.1f})        {statistics.median(run['steps'] for run in of_way):7.0f}  "
            f"{', '.join(str(run['course'][-1][1]) for run in of_way)}"
        )


if __name__ == "__main__":
    sys.exit(main())
