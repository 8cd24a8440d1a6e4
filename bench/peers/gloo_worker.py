"""One rank of the Gloo side of `paceline bench allreduce`.

Speaks the protocol described in crates/cli/src/bench/protocol.rs: one command a line on standard
input, one JSON answer a line on standard output. It knows nothing of the other contenders nor of
how the answers are judged.

    RANK=0 WORLD_SIZE=4 PACELINE_BENCH_STORE=/tmp/store python gloo_worker.py
"""

import gc
import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pattern(tensor: int, length: int) -> torch.Tensor:
    """Small integers: their sum times a rank's factor is exact in f32, in any order."""
    return ((torch.arange(length, dtype=torch.int32) + tensor) % 7 + 1).to(torch.float32)


def all_reduce(buffers: list[torch.Tensor]) -> None:
    """One tensor: the blocking call. Several: all in flight, then wait for all."""
    if len(buffers) == 1:
        dist.all_reduce(buffers[0])
        return
    for work in [dist.all_reduce(buffer, async_op=True) for buffer in buffers]:
        work.wait()


def sums_are_right(buffers: list[torch.Tensor], rank: int, ranks: int) -> bool:
    for index, buffer in enumerate(buffers):
        buffer.copy_(pattern(index, buffer.numel()) * (rank + 1))
    all_reduce(buffers)
    factor = ranks * (ranks + 1) // 2
    return all(
        torch.equal(buffer, pattern(index, buffer.numel()) * factor)
        for index, buffer in enumerate(buffers)
    )


def measure(iterations: int, warmup: int, sizes: list[int], rank: int, ranks: int) -> dict:
    buffers = [torch.empty(size // 4, dtype=torch.float32) for size in sizes]
    right = sums_are_right(buffers, rank, ranks)
    # From here on the sums are reduced in place over and over: zeros neither overflow nor
    # become denormal.
    for buffer in buffers:
        buffer.zero_()
    for _ in range(warmup):
        all_reduce(buffers)

    gc.disable()
    dist.barrier()
    cpu = cpu_seconds()
    stamps = [time.monotonic_ns()]
    for _ in range(iterations):
        all_reduce(buffers)
        stamps.append(time.monotonic_ns())
    cpu = cpu_seconds() - cpu
    gc.enable()
    return {"bytes": sum(sizes), "cpu_seconds": cpu, "check": right, "stamps_ns": stamps}


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The ranks share the cores; more threads in each would only fight over them.
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method="file://" + os.environ["PACELINE_BENCH_STORE"],
        rank=rank,
        world_size=ranks,
    )
    dist.barrier()
    about = f"Gloo of PyTorch {torch.__version__}"
    print(json.dumps({"about": about, "pids": [os.getpid()]}), flush=True)

    for line in sys.stdin:
        words = line.split()
        if words[:1] != ["allreduce"] or len(words) < 4:
            break
        iterations, warmup, *sizes = map(int, words[1:])
        print(json.dumps(measure(iterations, warmup, sizes, rank, ranks)), flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
