"""One worker of the training benchmark: trains a model in several ways, alternating, and tells the step times.

Started once on every host of a testbed (`paceline-testbed run`). All ways live in one process, so that they meet the
same machine in the same minute; the others rest meanwhile. Worker 0 writes what was measured. What it means (bounds,
ratios, tables) is not known here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import profiles
import torch
import torch.distributed as dist
import workloads
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl
from paceline import world
from paceline._native import Worker

#: The way that the best settings are searched for.
SEARCHED = "optimizer"

#: Where the coordinator of worker 0 listens: one port for each job that this process takes part in.
FIRST_PORT = 29400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, type=pathlib.Path, help="what to measure (JSON)")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="where worker 0 writes what was measured")
    options = parser.parse_args()
    cell = json.loads(options.cell.read_text())

    rank, size = meet()
    if cell["profile"] is not None:
        (profile,) = profiles.parse(cell["profile"], "cell", "cell", None, 0.0)
        workload: workloads.Workload = workloads.Played(profile)
    else:
        workload = workloads.load(cell["workload"], cell["batch"], rank)
    bench = Bench(workload, cell, rank, size)
    searched = [bench.search(settings) for settings in cell["search"]]
    best = min(searched, key=lambda found: found["seconds"])["settings"] if searched else cell["settings"]
    report = bench.compare(best)
    if rank == 0:
        options.out.write_text(json.dumps({**report, "asked": best, "search": searched}))
    dist.barrier()
    dist.destroy_process_group()


class Way:
    """A model and how it is trained."""

    def __init__(self, name: str, workload: workloads.Workload, groups: dict[str, Any]) -> None:
        self.name = name
        self._workload = workload
        # The same everywhere, so that nobody has to send it first.
        torch.manual_seed(0)
        self.model: nn.Module = workload.model()
        self.optimizer: Any = workload.optimizer(self.model)
        if name.startswith("ddp-"):
            self.model = DistributedDataParallel(
                self.model,
                process_group=groups[name.removeprefix("ddp-")],
                device_ids=[workload.device] if workload.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                init_sync=False,
            )
        if name.startswith("optimizer"):
            scheduled = name == "optimizer"
            self.optimizer = pl.DistributedOptimizer(self.optimizer, self.model, scheduled=scheduled, broadcast=False)

    def step(self) -> None:
        self._workload.loss(self.model).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def begun(self) -> None:
        """The processor is through with a step; so shall the GPU be, but not what crosses the step."""
        if self._workload.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def settle(self) -> None:
        """Wait for what the last step left over."""
        if isinstance(self.optimizer, pl.DistributedOptimizer):
            self.optimizer.drain()
        if self._workload.device.type == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        if isinstance(self.optimizer, pl.DistributedOptimizer):
            self.optimizer.close()


class Bench:
    """Measures ways, one after the other, over the same network."""

    def __init__(self, workload: workloads.Workload, cell: dict[str, Any], rank: int, size: int) -> None:
        self._workload, self._cell = workload, cell
        self._rank, self._size = rank, size
        self._jobs = 0

    def compare(self, settings: str) -> dict[str, Any]:
        """All ways in rounds, each way once a round, and another one first each time."""
        names: list[str] = self._cell["ways"]
        rounds: int = self._cell["rounds"]
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        with self._job(settings) as groups:
            ways = [Way(name, self._workload, groups) for name in names]
            for number in range(rounds):
                first = number % len(ways)
                for place, way in enumerate(ways[first:] + ways[:first]):
                    self._tell(f"round {number + 1} of {rounds}: {way.name} ({place + 1} of {len(ways)})")
                    # The later ones of a round find a warm way; the first time there is more to set up.
                    turns[way.name].append(self._measure(way, self._cell["steps"], 2 if number == 0 else 1))
            report = {
                "settings": world.membership().worker.settings,
                "bytes": self._workload.bytes(ways[0].model),
                "seconds": {name: [turn["seconds"] for turn in found] for name, found in turns.items()},
                "busy": {name: statistics.median(turn["busy"] for turn in found) for name, found in turns.items()},
            }
            for way in ways:
                way.close()
        report["medians"] = {name: statistics.median(values) for name, values in report["seconds"].items()}
        return report

    def search(self, settings: str) -> dict[str, Any]:
        """A few steps of our optimizer under these settings."""
        self._tell(f"searching: {settings}")
        with self._job(settings) as groups:
            way = Way(SEARCHED, self._workload, groups)
            turn = self._measure(way, self._cell["search_steps"], 2)
            way.close()
        return {"settings": settings, **turn}

    def _measure(self, way: Way, steps: int, warmup: int) -> dict[str, float]:
        """A turn of a way: seconds of a step on the slowest worker, and how busy the processors were.

        Nothing waits for what crosses a step, neither before the first one that counts nor after the last: so the
        time is that of a step among many. What is left over at the end was left over at the beginning, too.
        """
        dist.barrier()
        for _ in range(warmup):
            way.step()
        way.begun()
        busy, begun = processor_seconds(), time.perf_counter()
        for _ in range(steps):
            way.step()
        way.begun()
        seconds = time.perf_counter() - begun
        share = (processor_seconds() - busy) / seconds / (os.cpu_count() or 1)
        way.settle()
        slowest = torch.tensor([seconds / steps], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return {"seconds": slowest.item(), "busy": share}

    @contextlib.contextmanager
    def _job(self, settings: str) -> Iterator[dict[str, Any]]:
        """Take part in a job with these settings; the process groups of both backends."""
        address = f"{os.environ['MASTER_ADDR']}:{FIRST_PORT + self._jobs}"
        self._jobs += 1
        coordinator = coordinate(address, self._size, settings.split()) if self._rank == 0 else None
        membership = world.acquire(range(self._size), lambda: Worker.join(address, self._rank, self._size))
        pl.init()
        ours = dist.new_group(backend="paceline")
        yield {"paceline": ours, "gloo": dist.group.WORLD}
        dist.barrier()
        dist.destroy_process_group(ours)
        pl.shutdown()
        world.release(membership)
        if coordinator is not None:
            coordinator.wait(60)

    def _tell(self, what: str) -> None:
        if self._rank == 0:
            print(f"progress: {what}", file=sys.stderr, flush=True)


def meet() -> tuple[int, int]:
    """Meet the workers of the other hosts of the testbed, over Gloo; rank and size."""
    rank, size = int(os.environ["TESTBED_HOST"]), int(os.environ["TESTBED_HOSTS"])
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR=os.environ["TESTBED_ADDRESSES"].split(",")[0], MASTER_PORT="29500", GLOO_SOCKET_IFNAME="eth0",
        PACELINE_HOST=f"host{rank}", PACELINE_INSECURE="1",
    )  # fmt: skip
    dist.init_process_group("gloo")
    return rank, size


def coordinate(address: str, size: int, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the coordinator beside worker 0. The secret is in the environment of all."""
    command = [os.environ.get("PACELINE_COMMAND", "paceline"), "coordinator", "--listen", address]
    return subprocess.Popen([*command, "--size", str(size), *settings], stdout=subprocess.DEVNULL)


def processor_seconds() -> float:
    """What all processors of this machine have worked since it started."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, interrupts, soft = map(int, file.readline().split()[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
