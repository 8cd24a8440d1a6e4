"""What recording a trace costs: the same steps with and without it, in turn, in one process.

    paceline run -n 2 -- python bench/training/recording.py [--ways ddp,optimizer] [--rounds 20] [--steps 10]
    paceline run -n 2 -- python bench/training/recording.py --real resnet50      # needs a GPU

Prints, for each way, the median over rounds of how much longer a step took, and of how much more processor time all
threads of the worker took, in percent, with the middle half of the rounds. The processor time of writing the file, which
happens after the steps and stands back behind everything else, is told for itself.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import workloads
from cell import REAL
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline.torch as pl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="ddp,optimizer")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--real", choices=REAL, help="train this on a GPU, instead of linear layers")
    parser.add_argument("--batch", type=int, help="samples of a worker's step, with --real")
    options = parser.parse_args()
    dist.init_process_group("paceline")
    pl.init()
    workload: workloads.Workload = Linear(options.width, options.layers)
    if options.real:
        workload = workloads.load(options.real, options.batch or REAL[options.real], dist.get_rank())
    for way in options.ways.split(","):
        found = measure(step_of(way, workload), options.rounds, options.steps)
        if dist.get_rank() == 0:
            print(json.dumps({"way": way, **found}), flush=True)
    dist.destroy_process_group()


class Linear(workloads.Workload):
    """Layers that are all alike."""

    def __init__(self, width: int, layers: int) -> None:
        self._width, self._layers = width, layers
        self._values = torch.randn(64, width)

    def model(self) -> nn.Module:
        width = self._width
        return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(self._layers)))

    def loss(self, model: nn.Module) -> torch.Tensor:
        return model(self._values).square().mean()


def step_of(way: str, workload: workloads.Workload) -> Callable[[], None]:
    torch.manual_seed(0)
    model: nn.Module = workload.model()
    optimizer = workload.optimizer(model)
    if way == "ddp":
        model = DistributedDataParallel(model)
    if way == "optimizer":
        optimizer = pl.DistributedOptimizer(optimizer, model)

    def step() -> None:
        workload.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if workload.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    return step


def measure(step: Callable[[], None], rounds: int, steps: int) -> dict[str, object]:
    """Every round has both, and another one first each time: what the machine does meanwhile meets both."""
    longer, dearer, plain, writing, events = [], [], [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            times: dict[bool, tuple[float, float]] = {}
            for recorded in (False, True) if number % 2 else (True, False):
                recording = pl.trace(folder, steps=None, warm_up=0) if recorded else None
                if recording is not None:
                    recording.start()
                # The first step of a recording meets the model.
                step()
                dist.barrier()
                times[recorded] = timed(step, steps)
                if recording is not None:
                    writing.append(timed(recording.close, 1)[1])
                    with gzip.open(recording.path or pathlib.Path()) as file:
                        events = len(json.load(file)["traceEvents"])
            if number > 0:
                plain.append(times[False][0] / steps)
                longer.append(100 * (times[True][0] / times[False][0] - 1))
                dearer.append(100 * (times[True][1] / times[False][1] - 1))
    return {
        "step_ms": round(1e3 * statistics.median(plain), 2),
        "events_per_step": events // (steps + 1),
        "longer_percent": middle(longer),
        "processor_percent": middle(dearer),
        "writing_ms_per_step": round(1e3 * statistics.median(writing) / (steps + 1), 2),
    }


def timed(act: Callable[[], None], times: int) -> tuple[float, float]:
    """Seconds that passed, and those that processors worked for this process."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(times):
        act()
    return time.perf_counter() - wall, time.process_time() - processor


def middle(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, 2), "from": round(low, 2), "to": round(high, 2)}


if __name__ == "__main__":
    main()
