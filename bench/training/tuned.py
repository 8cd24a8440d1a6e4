"""One worker of a job whose conditions change while it runs: trains for so many seconds and tells when each step ended.

Started once on every host of a testbed (`paceline-testbed run --script`), which changes the links; lines about workers
(`8 worker2 1.5x`) are followed here. Times are those of the script. Worker 0 writes what was seen. Who tunes, and what
the times mean, is not known here.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import neighbour
import profiles
import torch
import torch.distributed as dist
import workloads
from cell import REAL
from worker import FIRST_PORT, coordinate, meet

import paceline as pl
from paceline import world
from paceline._native import Worker

#: Steps between two questions to the others whether it is time to end. The answer is awaited at the next question.
ASKED_EVERY = 4

#: A step is told to whoever watches about this often, in seconds.
TOLD_EVERY = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True, type=pathlib.Path, help="what to run (JSON)")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="where worker 0 writes what it saw")
    options = parser.parse_args()
    job = json.loads(options.job.read_text())
    begun = started() + job["delay"]

    # Racks, connections to each, and when they begin to carry something.
    others = job["neighbour"]
    if others is not None and neighbour.here(others["racks"]):
        until = begun + others["at"] - now_since_boot()
        neighbour.load(others["racks"], others["flows"], until, others["seconds"])
        return
    rank, size = meet()
    address = f"{os.environ['MASTER_ADDR']}:{FIRST_PORT}"
    coordinator = coordinate(address, size, job["settings"].split()) if rank == 0 else None
    membership = world.acquire(range(size), lambda: Worker.join(address, rank, size))
    pl.init()

    if job["real"] is None:
        (profile,) = profiles.parse(job["profile"], "job", "job", None, 0.0)
        workload: workloads.Workload = workloads.Played(profile)
    else:
        workload = workloads.load(job["real"], REAL[job["real"]], rank)
    model = workload.model()
    optimizer = pl.DistributedOptimizer(workload.optimizer(model), model, broadcast=False)
    changes = [(at, factor) for at, worker, factor in job["slowness"] if worker == rank]
    marked: list[tuple[float, list[str]]] = []

    def look() -> None:
        settings = membership.worker.settings
        links = [*settings["contended_hosts"], *(f"rack{rack}" for rack in settings["contended_racks"])]
        if links != (marked[-1][1] if marked else []):
            marked.append((now_since_boot() - begun, links))

    ends = train(workload, model, optimizer, begun, job["seconds"], changes, rank, look)
    optimizer.drain()
    optimizer.close()
    if rank == 0:
        report = {"ends": ends, "settings": membership.worker.settings, "marked": marked}
        options.out.write_text(json.dumps(report))
    dist.barrier()
    pl.shutdown()
    world.release(membership)
    dist.destroy_process_group()
    if coordinator is not None:
        coordinator.wait(60)


def train(
    workload: workloads.Workload,
    model: torch.nn.Module,
    optimizer: pl.DistributedOptimizer,
    begun: float,
    seconds: float,
    changes: list[tuple[float, float]],
    rank: int,
    look: Callable[[], None],
) -> list[float]:
    """Train until the time is over on any worker. When steps ended, since `begun`."""
    ends: list[float] = []
    told = 0.0
    over = torch.zeros(1)
    answer = dist.all_reduce(over, op=dist.ReduceOp.MAX, async_op=True)
    while True:
        now = now_since_boot() - begun
        while changes and changes[0][0] <= now:
            workload.slow(changes.pop(0)[1])
        workload.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        now = now_since_boot() - begun
        ends.append(now)
        look()
        if rank == 0 and now - told > TOLD_EVERY:
            told = now
            print(f"progress: {now:.0f} of {seconds:.0f} s, {len(ends)} steps", file=sys.stderr, flush=True)
        if len(ends) % ASKED_EVERY == 0:
            answer.wait()
            if over.item() > 0:
                return ends
            over = torch.tensor([1.0 if now >= seconds else 0.0])
            answer = dist.all_reduce(over, op=dist.ReduceOp.MAX, async_op=True)


def started() -> float:
    """When this process was started, in seconds since the machine was."""
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # The 22nd field; the first two are before the last parenthesis.
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def now_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()
