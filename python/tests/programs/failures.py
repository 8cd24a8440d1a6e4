"""Ranks that fail in various ways; the others must hear of it."""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import paceline.torch as pl


def backward(rank: int, fail: Callable[[torch.Tensor], None]) -> None:
    """One step in which rank 1 calls ``fail`` when some gradients are on their way and some are not."""
    layers = (torch.nn.Linear(300, 300) for _ in range(4))
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.3)
    if rank == 1:
        model.module[1].weight.register_hook(fail)
    model(torch.ones(2, 300)).sum().backward()


def refuse(gradient: torch.Tensor) -> None:
    raise ValueError("this rank cannot go on")


def raise_in_the_middle_of_backward(rank: int) -> None:
    backward(rank, refuse)


def raise_in_the_middle_of_backward_with_the_optimizer(rank: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(4)))
    optimizer = pl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(3):
        if rank == 1 and step == 1:
            model[1].weight.register_hook(refuse)
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.drain()


def exit_in_the_middle_of_backward(rank: int) -> None:
    backward(rank, lambda gradient: os._exit(7))


def disagree_about_the_model(rank: int) -> None:
    # Rank 1 is told at once; rank 0, whose model counts, when it first needs rank 1.
    model = DistributedDataParallel(torch.nn.Linear(4, 4 + rank))
    model(torch.ones(1, 4)).sum().backward()


def disagree_about_the_number_of_parameters(rank: int) -> None:
    DistributedDataParallel(torch.nn.Linear(4, 4, bias=rank == 0))


def wait_longer_than_the_timeout(rank: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        dist.barrier(group)
    else:
        time.sleep(4)


def miss_a_monitored_barrier(rank: int) -> None:
    if rank == 0:
        dist.group.WORLD.monitored_barrier(1.0)
    else:
        time.sleep(3)


def have_an_old_pytorch() -> None:
    torch.__version__ = "2.3.1"
    dist.init_process_group("paceline")


def ask_for_two_backends_in_one_group() -> None:
    dist.init_process_group("cpu:gloo,cuda:paceline")
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    failure = globals()[sys.argv[1]]
    if failure in (have_an_old_pytorch, ask_for_two_backends_in_one_group):
        failure()
    else:
        dist.init_process_group("paceline")
        failure(dist.get_rank())
