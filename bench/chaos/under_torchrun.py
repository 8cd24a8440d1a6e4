"""The task under DDP and Gloo, restarted as a whole by torchrun where a worker is lost, from a checkpoint every few steps."""

from __future__ import annotations

import os
import time

import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY = 10


def main() -> None:
    options = task.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    log = task.Log(options.folder)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = task.model()
    optimizer = task.optimizer(model)
    kept, begin = options.folder / "checkpoint.pt", 0
    if kept.exists():
        state = torch.load(kept)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    parallel, samples = DistributedDataParallel(model), task.Samples(options.steps * task.BATCH)
    end = task.End(options)
    for step in range(begin, options.steps):
        if end.reached(step):
            break
        first = (step * size + rank) * task.BATCH
        numbers = list(range(first, first + task.BATCH))
        points, classes = samples.batch(numbers)
        time.sleep(options.pause)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(points), classes)
        loss.backward()
        optimizer.step()
        log.step(step, size, loss.item(), numbers)
        if rank == 0 and (step + 1) % EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, kept.with_suffix(".new"))
            os.replace(kept.with_suffix(".new"), kept)
    log.end(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
