"""Operations that are in flight when their group, their worker or the process ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from paceline import world

#: Elements of several chunks.
LONG = 3_000_000


def held(name: str) -> None:
    print(f"HELD {name}", flush=True)


def raises(text: str, action: Callable[[], object]) -> None:
    try:
        action()
    except RuntimeError as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
    else:
        raise AssertionError(f"nothing was raised about {text}")


def stay_until_rank_0_is_through() -> None:
    """By leaving earlier, others would end its operations."""
    store.wait(["through"], timedelta(seconds=60))


def abort_and_destroy(rank: int) -> None:
    group = dist.new_group()
    if rank != 0:
        return stay_until_rank_0_is_through()
    work = dist.all_reduce(torch.ones(LONG), group=group, async_op=True)
    future = work.get_future()
    group.abort()
    raises("aborted", future.wait)
    raises("aborted", work.wait)
    raises("destroyed", lambda: group.allreduce([torch.ones(1)]))
    held("abort")

    work = dist.all_reduce(torch.ones(LONG), async_op=True)
    future = work.get_future()
    waiting = threading.Thread(target=lambda: raises("left the job", work.wait) or held("wait in another thread"))
    waiting.start()
    try:
        raise ValueError("so that nothing in flight is worth waiting for")
    except ValueError:
        dist.destroy_process_group()
    waiting.join()
    raises("left the job", future.wait)
    raises("left the job", work.wait)
    assert work.is_completed() and not work.is_success()
    held("destroy")
    store.set("through", "")


def exit_with_something_in_flight(rank: int) -> None:
    if rank != 0:
        return stay_until_rank_0_is_through()
    world.DRAIN = 0.5
    future = dist.all_reduce(torch.ones(LONG), async_op=True).get_future()

    def end(ended: torch.futures.Future) -> None:
        raises("left the job", ended.value)
        held("exit")
        store.set("through", "")

    future.add_done_callback(end)


def leave_what_others_need(rank: int) -> None:
    tensors = [torch.full((LONG,), float(rank)) for _ in range(4)]
    if rank == 0:
        # The other rank ends meanwhile, with all of it in flight.
        time.sleep(1)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 0:
        for work, tensor in zip(works, tensors):
            work.wait()
            assert tensor[-1] == 1.0
        held("what others need")


if __name__ == "__main__":
    dist.init_process_group("paceline")
    store = dist.distributed_c10d._get_default_store()
    globals()[sys.argv[1]](dist.get_rank())
