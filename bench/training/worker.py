"""One worker of the training benchmark: trains a model in several ways, alternating, and tells the step times.

Started once on every host of a testbed (`paceline-testbed run`). All ways live in one process, so that they
meet the same machine in the same minute; the others rest meanwhile. Worker 0 writes one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import workloads
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl

#: How a step can be synchronised, and what it is measured against.
WAYS = ("alone", "ddp-gloo", "ddp-paceline", "optimizer-fifo", "optimizer")


class Way:
    """A model and how it is trained."""

    def __init__(self, name: str, workload: workloads.Workload, groups: dict[str, Any]) -> None:
        self.name = name
        self._workload = workload
        torch.manual_seed(0)
        self.model: nn.Module = workload.model()
        inner = workload.optimizer(self.model)
        if name.startswith("ddp-"):
            group = groups[name.removeprefix("ddp-")]
            devices = [workload.device] if workload.device.type == "cuda" else None
            self.model = DistributedDataParallel(
                self.model, process_group=group, device_ids=devices, gradient_as_bucket_view=True
            )
        if name.startswith("optimizer"):
            inner = pl.DistributedOptimizer(inner, self.model, scheduled=name == "optimizer")
        self.optimizer = inner

    def step(self) -> None:
        self._workload.loss(self.model).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Wait for what the last step left over."""
        if isinstance(self.optimizer, pl.DistributedOptimizer):
            self.optimizer.drain()
        if self._workload.device.type == "cuda":
            torch.cuda.synchronize()


def measure(way: Way, steps: int, warmup: int, barrier: Callable[[], None]) -> float:
    """Seconds of a step: those of all steps together, since they may overlap."""
    for _ in range(warmup):
        way.step()
    way.settle()
    barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        way.step()
    way.settle()
    return (time.perf_counter() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", required=True, help="a model's name, or a profile's path")
    parser.add_argument("--batch", type=int, default=32, help="samples of a worker's step")
    parser.add_argument("--slow", type=float, default=1.0, help="how many times slower a profile's layers are")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", default="", help="of the coordinator, such as '--partition 4MiB'")
    parser.add_argument("--out", required=True, help="where worker 0 writes what was measured")
    options = parser.parse_args()

    rank, size = int(os.environ["TESTBED_HOST"]), int(os.environ["TESTBED_HOSTS"])
    first = os.environ["TESTBED_ADDRESSES"].split(",")[0]
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR=first, MASTER_PORT="29500", GLOO_SOCKET_IFNAME="eth0",
        PACELINE_HOST=f"host{rank}", PACELINE_INSECURE="1", PACELINE_COORDINATOR=f"{first}:29400",
    )  # fmt: skip
    coordinator = coordinate(first, size, options.settings.split()) if rank == 0 else None
    ways = options.ways.split(",")
    dist.init_process_group("paceline")
    pl.init()
    groups = {"paceline": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    workload = workloads.load(options.workload, options.batch, options.slow, rank)

    def barrier() -> None:
        dist.barrier()

    times: dict[str, list[float]] = {name: [] for name in ways}
    made = {name: Way(name, workload, groups) for name in ways}
    for _ in range(options.rounds):
        for name in ways:
            seconds = measure(made[name], options.steps, options.warmup, barrier)
            slowest = torch.tensor([seconds], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times[name].append(slowest.item())
    if rank == 0:
        report = {
            "workload": options.workload,
            "batch": options.batch,
            "slow": options.slow,
            "workers": size,
            "bytes": workload.bytes(made[ways[0]].model),
            "settings": pl.world.membership().worker.settings,
            "asked": options.settings,
            "seconds": times,
            "medians": {name: statistics.median(values) for name, values in times.items()},
        }
        with open(options.out, "a") as file:
            file.write(json.dumps(report) + "\n")
    barrier()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    pl.shutdown()
    if coordinator is not None:
        coordinator.terminate()
        coordinator.wait()


def coordinate(address: str, size: int, settings: list[str]) -> subprocess.Popen[bytes]:
    """Start the coordinator beside worker 0. The secret is in the environment of all."""
    command = [os.environ.get("PACELINE_COMMAND", "paceline"), "coordinator", "--listen", f"{address}:29400"]
    return subprocess.Popen([*command, "--size", str(size), *settings], stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
