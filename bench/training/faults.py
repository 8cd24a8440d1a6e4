"""What kills cost training: workers that are killed at random while they average parameters in groups, against the same job left alone.

    python bench/training/faults.py --ways bsp,shuffle,shuffle:16 --workers 6 --racks 2 --epochs 3 --seeds 3 --every 3

Fashion-MNIST with the convolutional network of `convergence.py`, in an elastic job of `paceline run` whose workers count as hosts of their own, in racks.
Every so many seconds (--every, drawn anew each time between half and one and a half of that) one worker that trains is killed (kill -9), whichever lot decides, and a spare
takes its place. Every image is seen --epochs times. Printed: accuracy of the end, mean and standard deviation over seeds, kills, and whether all workers ended with
the same parameters. All runs go to --json.

Exit codes: 0 all runs came to their end and workers agree, 1 one did not, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent import futures
from typing import Any

import racks
from convergence import WAYS

HERE = pathlib.Path(__file__).parent
#: That workers are spread over. Those that come later are one of them by chance.
HOSTS = 960
#: Of workers that train, nobody is killed below so many.
LEAST = 3


def main() -> int:
    options = arguments().parse_args()
    ways = options.ways.split(",")
    wrong = [way for way in ways if WAYS.get(way) is None]
    command = options.paceline or shutil.which("paceline")
    if wrong or command is None or options.workers < LEAST:
        problem = f"there is no {wrong[0]}" if wrong else "no `paceline` command" if command is None else f"--workers is below {LEAST}"
        print(f"faults.py: {problem}", file=sys.stderr)
        return 2
    runs: list[dict[str, Any]] = []
    with futures.ThreadPoolExecutor(options.at_once) as pool:
        cells = [(seed, way, killed) for seed in range(options.seeds) for way in ways for killed in (False, True)]
        jobs = [pool.submit(play, options, command, *cell) for cell in cells]
        try:
            for job in futures.as_completed(jobs):
                runs.append(job.result())
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            return 130
    if options.json is not None:
        described = {key: str(value) for key, value in vars(options).items()}
        options.json.write_text(json.dumps({"options": described, "runs": runs}, indent=1))
    report(ways, runs)
    return 0 if all(run["finished"] and run["equal"] for run in runs) else 1


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="bsp,shuffle,shuffle:16", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--racks", type=int, default=2, help="that the workers are divided into [2]")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="images of a worker's iteration [16]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between kills [3]")
    parser.add_argument("--at-once", type=int, default=1, help="jobs that run at the same time [1]")
    parser.add_argument("--images", default="/usr/share/datasets/fashion-mnist", help="folder of the four files")
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND"), help="the command [the one on the path]")
    parser.add_argument("--json", type=pathlib.Path, help="file for all runs")
    return parser


def play(options: argparse.Namespace, command: str, seed: int, way: str, killed: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="paceline-faults-") as folder:
        plan = pathlib.Path(folder) / "plan.toml"
        topology = racks.described(HOSTS, "10gbit", ["10gbit"] * options.racks)
        plan.write_text(f'[settings]\nstrategy = "{WAYS[way]}"\n[settings.topology]\n{topology}')
        told = {
            "way": way, "seed": seed, "epochs": options.epochs, "batch": options.batch, "images": options.images,
            "hosts": HOSTS, "workers": options.workers,
        }  # fmt: skip
        launch = [command, "run", "-q", "--no-prefix", "--insecure", "--elastic", "-n", str(options.workers), "--min", "1"]
        launch += ["--spare", "1", "--restarts", "1000", "--plan", str(plan), "--", sys.executable, str(HERE / "faults_worker.py"), json.dumps(told)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_SECRET": secrets.token_hex(16)}
        with (
            (pathlib.Path(folder) / "errors.txt").open("w+") as errors,
            subprocess.Popen(launch, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables) as job,
        ):
            try:
                found = watched(options, job, random.Random(seed), killed)
            except BaseException:
                job.terminate()
                raise
            if job.wait():
                errors.seek(0)
                print(f"faults.py: {way} seed {seed} ended with {job.returncode}:\n{errors.read()[-2000:]}", file=sys.stderr)
    return {"way": way, "seed": seed, "killed": killed, "finished": job.returncode == 0, **found}


def watched(options: argparse.Namespace, job: subprocess.Popen[str], lots: random.Random, killed: bool) -> dict[str, Any]:
    """Read what workers say, and kill one now and then."""
    training: set[int] = set()
    ends: list[dict[str, Any]] = []
    kills, over = 0, threading.Event()

    def kill_some() -> None:
        nonlocal kills
        while not over.wait(options.every * lots.uniform(0.5, 1.5)):
            there = sorted(training)
            if len(there) >= LEAST:
                victim = lots.choice(there)
                training.discard(victim)
                os.kill(victim, signal.SIGKILL)
                kills += 1

    killer = threading.Thread(target=kill_some)
    if killed:
        killer.start()
    try:
        assert job.stdout is not None
        for line in job.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if "trains" in said:
                training.add(said["trains"])
            elif "ending" in said:
                # What counts from here on is that all agree.
                over.set()
            else:
                ends.append(said)
    finally:
        over.set()
        if killed:
            killer.join()
    accuracies = [end["accuracy"] for end in ends if end["accuracy"] is not None]
    return {
        "kills": kills, "workers": len(ends), "equal": len({end["parameters"] for end in ends}) == 1,
        "accuracy": accuracies[0] if accuracies else float("nan"), "seconds": max((end["seconds"] for end in ends), default=float("nan")),
    }  # fmt: skip


def report(ways: list[str], runs: list[dict[str, Any]]) -> None:
    print(f"{'':<12} {'':<11} {'accuracy':>15}  {'kills':>6}  {'seconds':>8}  workers at the end, all equal")
    for way in ways:
        for killed in (False, True):
            of_way = [run for run in runs if (run["way"], run["killed"]) == (way, killed)]
            accuracies = [100 * run["accuracy"] for run in of_way]
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            print(
                f"{way:<12} {'killed' if killed else 'left alone':<11} {statistics.mean(accuracies):6.2f} ± {spread:4.2f} %  "
                f"{sum(run['kills'] for run in of_way):6}  {statistics.median(run['seconds'] for run in of_way):8.1f}  "
                f"{', '.join(str(run['workers']) for run in of_way)}, {'yes' if all(run['equal'] for run in of_way) else 'NO'}"
            )


if __name__ == "__main__":
    sys.exit(main())
