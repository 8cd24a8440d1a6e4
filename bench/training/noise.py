"""What gradient statistics cost: the same steps with and without them, in turn, in one process.

    paceline run -n 2 -- python bench/training/noise.py [--rounds 40] [--steps 20] [--width 256] [--layers 24]
    paceline run -n 2 -- python bench/training/noise.py --real resnet50      # needs a GPU

Gradient noise scale and variance are estimated in every step with them. Prints the median over rounds of how much longer a
step took, and of how much more processor time all threads of the worker took, in percent, with the middle half of the
rounds. `--parts 1` looks at every element of every gradient; `--null` measures nothing against nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
import workloads
from cell import REAL
from recording import Linear, middle, step_of, timed

import paceline.torch as pl
from paceline import adaptation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--parts", type=int, default=adaptation.PARTS)
    parser.add_argument("--real", choices=REAL, help="train this on a GPU, instead of linear layers")
    parser.add_argument("--batch", type=int, help="samples of a worker's step, with --real")
    parser.add_argument("--null", action="store_true")
    options = parser.parse_args()
    adaptation.PARTS = options.parts
    torch.set_num_threads(1)
    pl.init()
    workload: workloads.Workload = Linear(options.width, options.layers)
    batch = options.batch or REAL.get(options.real, 64)
    if options.real:
        workload = workloads.load(options.real, batch, pl.rank())
    step = step_of("optimizer", workload)
    for _ in range(10):
        step()
    longer, dearer, plain, scale = [], [], [], None
    for number in range(options.rounds + 1):
        times: dict[bool, tuple[float, float]] = {}
        for watched in (False, True) if number % 2 else (True, False):
            context = pl.attach(batch_size=batch) if watched and not options.null else None
            # The first step measures nothing, the second is the first to hear of it.
            for _ in range(3):
                step()
            times[watched] = timed(step, options.steps)
            if context is not None:
                scale = context.grad_noise_scale()
                pl.detach()
        if number > 0:
            plain.append(times[False][0] / options.steps)
            longer.append(100 * (times[True][0] / times[False][0] - 1))
            dearer.append(100 * (times[True][1] / times[False][1] - 1))
    if pl.rank() == 0:
        found = {
            "step_ms": round(1e3 * statistics.median(plain), 2),
            "parts": options.parts,
            "longer_percent": middle(longer),
            "processor_percent": middle(dearer),
            "noise_scale": scale,
        }
        print(json.dumps(found), flush=True)
    pl.shutdown()


if __name__ == "__main__":
    main()
