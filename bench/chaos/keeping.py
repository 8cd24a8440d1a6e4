"""What it costs to be able to recover a step: the same job with and without `--elastic`, in turns, while nobody comes, goes or dies.

    python bench/chaos/keeping.py [--rounds 6] [--width 2048] [--layers 6]      # gradients of 100 MB

A worker of an elastic job keeps a copy of each result until all have it. Prints how much longer a step took and how much more
processor time a worker's threads took in percent, and how much more memory a worker held at most, as medians over rounds with the middle half of them.
Everything is on this machine, with one thread of PyTorch's for each worker.

Exit codes: 0 measured, 1 a job failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys

sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parents[1] / "training"))

from recording import Linear, middle, step_of, timed

#: Steps that make no figure: memory is being taken.
WARMUP = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--paceline", default=os.environ.get("PACELINE_COMMAND", "paceline"), help="the command")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    longer, dearer, more, plain = [], [], [], []
    try:
        for number in range(options.rounds):
            seen = {elastic: run(options, elastic) for elastic in ((False, True) if number % 2 else (True, False))}
            plain.append(seen[False]["step"])
            longer.append(100 * (seen[True]["step"] / seen[False]["step"] - 1))
            dearer.append(100 * (seen[True]["processor"] / seen[False]["processor"] - 1))
            more.append((seen[True]["held"] - seen[False]["held"]) / 1e6)
            print(f"round {number}: {longer[-1]:+.1f} %, {more[-1]:+.0f} MB", file=sys.stderr, flush=True)
    except subprocess.CalledProcessError as problem:
        print(f"keeping.py: {problem}\n{problem.stderr}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    gradients = 4 * options.layers * (options.width + 1) * options.width
    found = {
        "gradients_mb": round(gradients / 1e6, 1), "step_ms": round(1e3 * statistics.median(plain), 1), "longer_percent": middle(longer),
        "processor_percent": middle(dearer), "more_mb": middle(more),
    }  # fmt: skip
    print(json.dumps(found))
    return 0


def run(options: argparse.Namespace, elastic: bool) -> dict[str, float]:
    """What worker 0 of a job saw."""
    command = [options.paceline, "run", *(["--elastic"] if elastic else []), "-n", str(options.workers)]
    command += ["--", sys.executable, __file__, "--worker"]
    command += ["--steps", str(options.steps), "--width", str(options.width), "--layers", str(options.layers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    (line,) = [line for line in done.stdout.splitlines() if "held" in line]
    return json.loads(line[line.index("{") :])


def work(options: argparse.Namespace) -> None:
    import torch

    import paceline.torch as pl

    torch.set_num_threads(1)
    pl.init()
    step = step_of("optimizer", Linear(options.width, options.layers))
    for _ in range(WARMUP):
        step()
    seconds, processor = timed(step, options.steps)
    if pl.rank() == 0:
        held = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"step": seconds / options.steps, "processor": processor, "held": held}), flush=True)
    pl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
