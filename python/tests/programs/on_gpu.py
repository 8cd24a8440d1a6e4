"""Collectives of CUDA tensors against their expectations: those of collectives.py, and what only devices have. All
ranks share one GPU. Where there is none, everything is done on CPU tensors, which proves the checks themselves."""

import json
import os
import traceback
from datetime import timedelta

import collectives
import torch
import torch.distributed as dist
from collectives import equal, raises
from torch.nn.parallel import DistributedDataParallel

import paceline.torch as pl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Made of several pieces, the last of them short.
LONG = (9 << 20) // 4 + 3
#: Sparse tensors stay in CPU memory, and the others here are about the host alone.
HOST_ONLY = {
    "sparse_tensors_are_summed",
    "tensors_on_several_devices_are_refused_before_anything_is_sent",
    "the_profiler_shows_collectives_from_start_to_end",
}
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def busy() -> None:
    """Give the current stream something to do for some milliseconds."""
    if DEVICE == "cuda":
        torch.cuda._sleep(20_000_000)


@check
def long_tensors_are_whole(rank: int, size: int) -> None:
    for length in (1, 1023, (4 << 20) // 4, LONG):
        base = torch.arange(length, dtype=torch.float32) % 1021
        tensor = base * (rank + 1)
        dist.all_reduce(tensor)
        equal(tensor, base * (size * (size + 1) // 2))
        tensor = base + rank
        dist.broadcast(tensor, size - 1)
        equal(tensor, base + (size - 1))
        tensor = base + rank
        dist.reduce(tensor, 0)
        equal(tensor, base * size + size * (size - 1) // 2 if rank == 0 else base + rank)
    tensor = torch.full((LONG,), rank + 1, dtype=torch.int8)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    equal(tensor, torch.full((LONG,), size, dtype=torch.int8))
    tensor = torch.full((1500, 1001), float(rank)).t()
    dist.all_reduce(tensor)
    equal(tensor.contiguous(), torch.full((1001, 1500), size * (size - 1) / 2))


@check
def blocks_of_long_tensors_are_whole(rank: int, size: int) -> None:
    blocks = torch.empty(size * LONG)
    dist.all_gather_into_tensor(blocks, torch.full((LONG,), float(rank)))
    equal(blocks, torch.arange(float(size)).repeat_interleave(LONG))
    share = torch.empty(LONG)
    dist.reduce_scatter_tensor(share, blocks + rank)
    equal(share, torch.full((LONG,), float(size * rank + size * (size - 1) // 2)))
    exchanged = torch.empty(size * 1001)
    dist.all_to_all_single(exchanged, torch.arange(float(size)).repeat_interleave(1001) + 10 * rank)
    equal(exchanged, torch.arange(float(size)).repeat_interleave(1001) * 10 + rank)


@check
def a_collective_waits_for_what_its_stream_still_computes(rank: int, size: int) -> None:
    tensor, result = torch.zeros(LONG), torch.empty(size * LONG)
    busy()
    tensor.fill_(rank + 1)
    gathered = dist.all_gather_into_tensor(result, tensor, async_op=True)
    reduced = dist.all_reduce(tensor, async_op=True)
    gathered.wait()
    reduced.wait()
    # No synchronisation: this stream comes after the result.
    equal(tensor + 1, torch.full((LONG,), size * (size + 1) / 2 + 1))
    equal(result, torch.arange(1.0, size + 1).repeat_interleave(LONG))


@check
def other_streams_can_be_used(rank: int, size: int) -> None:
    if DEVICE == "cpu":
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        busy()
        tensor = torch.full((LONG,), float(rank + 1))
        dist.all_reduce(tensor)
        tensor += 1
    stream.synchronize()
    equal(tensor, torch.full((LONG,), size * (size + 1) / 2 + 1))


@check
def results_are_written_after_they_were_last_read(rank: int, size: int) -> None:
    result = torch.full((size * LONG,), -1.0)
    seen = torch.empty_like(result)
    busy()
    seen.copy_(result)
    dist.all_gather_into_tensor(result, torch.full((LONG,), float(rank)))
    equal(seen, torch.full((size * LONG,), -1.0))
    equal(result, torch.arange(float(size)).repeat_interleave(LONG))


@check
def memory_is_not_used_again_too_early(rank: int, size: int) -> None:
    kept = []
    for turn in range(30):
        works = []
        for length in (3, 50_001, LONG // 3):
            tensor = torch.full((length,), float(turn + rank))
            works.append((dist.all_reduce(tensor, async_op=True), tensor))
        for work, tensor in works:
            work.wait()
            kept.append((turn, tensor[-3:].clone()))
        del works, work, tensor
        # Whatever was given back is taken again, and overwritten.
        torch.full((LONG // 3,), -7.0)
        if DEVICE == "cuda":
            torch.empty(LONG // 3, device="cpu", pin_memory=True).fill_(-7.0)
    for turn, tensor in kept:
        equal(tensor, torch.full((3,), float(size * turn + size * (size - 1) // 2)))


@check
def works_that_nobody_keeps_end(rank: int, size: int) -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(LONG // 2), async_op=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    equal(tensor, torch.full((1,), float(size)))


@check
def futures_hold_results(rank: int, size: int) -> None:
    tensor = torch.full((LONG,), float(rank))
    busy()
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    equal(doubled.wait(), torch.full((LONG,), float(size * (size - 1))))


def trained(rank: int, wrap) -> list[torch.Tensor]:
    torch.manual_seed(5)
    # The largest parameter is several pieces.
    layers = [torch.nn.Linear(1100, 1100), torch.nn.Tanh(), torch.nn.Linear(1100, 3), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = wrap(model, optimizer)
    generator = torch.Generator(device=DEVICE).manual_seed(rank)
    for _ in range(10):
        model(torch.randn(16, 1100, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value.clone() for value in model.state_dict().values()]


@check
def the_optimizer_gives_what_ddp_over_gloo_gives(rank: int, size: int) -> None:
    group = dist.new_group(backend="gloo")
    wanted = trained(rank, lambda model, optimizer: (DistributedDataParallel(model, process_group=group), optimizer))
    ddp = trained(rank, lambda model, optimizer: (DistributedDataParallel(model), optimizer))
    ours = trained(rank, lambda model, optimizer: (model, pl.DistributedOptimizer(optimizer, model)))
    for gloo, backend, scheduled in zip(wanted, ddp, ours):
        equal(backend, gloo)
        equal(scheduled, gloo)


@check
def a_gradient_that_is_written_in_flight_is_reported(rank: int, size: int) -> None:
    model = torch.nn.Linear(1100, 1100)
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model(torch.ones(1, 1100)).sum().backward()
    model.weight.grad.mul_(2)
    raises("was written while it was in flight", optimizer.synchronize)
    dist.barrier()


@check
def ranks_that_disagree_are_told(rank: int, size: int) -> None:
    # The others have one piece more, which nobody meets.
    length = LONG if rank == 0 else LONG + (4 << 20) // 4
    raises("same shape", lambda: dist.all_reduce(torch.ones(length)))


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    dist.init_process_group("paceline", timeout=timedelta(seconds=30))
    torch.set_default_device(DEVICE)
    rank, size = dist.get_rank(), dist.get_world_size()
    outcomes = {}
    last = CHECKS.pop("ranks_that_disagree_are_told")
    every = {name: one for name, one in collectives.CHECKS.items() if name not in HOST_ONLY}
    for name, function in (CHECKS | every | {"ranks_that_disagree_are_told": last}).items():
        try:
            function(rank, size)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
        # Where nothing comes after this, the next one hangs.
        print(f"{name}: {outcomes[name] or 'holds'}", flush=True)
    print("OUTCOMES " + json.dumps(outcomes), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
