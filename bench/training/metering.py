"""What a job's metrics cost: the same steps with and without them, in turn, in one process.

    paceline run -n 2 -- python bench/training/metering.py [--rounds 40] [--steps 20] [--width 256] [--layers 24]

Each process takes part in two jobs, of which one collects metrics. Prints the median over rounds of how much longer a step
took with them, and of how much more processor time all threads of the worker took, in percent, with the middle half of the
rounds. `--null` measures nothing against nothing, to show what the machine does by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Callable, Iterator

import torch
from recording import Linear, middle, step_of, timed

import paceline.torch as pl
from paceline import world
from paceline._native import Coordinator, Worker, fresh_secret


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--null", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pl.init()
    rank = pl.rank()
    workload = Linear(options.width, options.layers)
    steps: dict[bool, Callable[[], None]] = {}
    jobs = {measured: join(measured and not options.null) for measured in (False, True)}
    for measured, job in jobs.items():
        with inside(job):
            steps[measured] = step_of("optimizer", workload)
            for _ in range(10):
                steps[measured]()
    longer, dearer, plain = [], [], []
    for number in range(options.rounds + 1):
        times: dict[bool, tuple[float, float]] = {}
        for measured in (False, True) if number % 2 else (True, False):
            with inside(jobs[measured]):
                steps[measured]()
                times[measured] = timed(steps[measured], options.steps)
        if number > 0:
            plain.append(times[False][0] / options.steps)
            longer.append(100 * (times[True][0] / times[False][0] - 1))
            dearer.append(100 * (times[True][1] / times[False][1] - 1))
    shown = jobs[True].worker.metrics()
    if rank == 0:
        found = {
            "step_ms": round(1e3 * statistics.median(plain), 2),
            "tensors": 2 * options.layers,
            "longer_percent": middle(longer),
            "processor_percent": middle(dearer),
            "metrics": shown is not None and shown["step"],
        }
        print(json.dumps(found), flush=True)
    for job in jobs.values():
        job.close()


def join(measured: bool) -> world.Membership:
    """A job of its own, of the same processes."""
    secret = fresh_secret()
    hosting = Coordinator("127.0.0.1", pl.size(), secret) if pl.rank() == 0 else None
    address, secret = pl.broadcast_object((hosting.address, secret) if hosting is not None else None)
    os.environ["PACELINE_METRICS"] = "on" if measured else "off"
    return world.Membership(Worker.join(address, pl.rank(), pl.size(), secret, hosting), range(pl.size()), False)


@contextlib.contextmanager
def inside(job: world.Membership) -> Iterator[None]:
    """What asks for the process's job gets this one."""
    before, world._initialized = world._initialized, job
    try:
        yield
    finally:
        world._initialized = before


if __name__ == "__main__":
    main()
