"""Every collective against its expectation: run by each rank, prints a JSON line with the outcome of each check."""

import json
import sys
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist

CHECKS: dict[str, Callable[[int, int], None]] = {}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
#: Long enough for several chunks.
LONG = 700_001


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CHECKS[function.__name__] = function
    return function


def equal(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.dtype == wanted.dtype, f"{found.dtype} instead of {wanted.dtype}"
    assert torch.equal(found, wanted), f"{found.flatten()[:8]} instead of {wanted.flatten()[:8]}"


def raises(text: str, function: Callable[[], object]) -> None:
    try:
        function()
    except Exception as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
        return
    raise AssertionError(f"nothing was raised, expected {text!r}")


@check
def all_reduce_sums_every_type(rank: int, size: int) -> None:
    for dtype in (*FLOATS, *INTEGERS):
        tensor = torch.full((5,), rank + 1).to(dtype)
        dist.all_reduce(tensor)
        equal(tensor, torch.full((5,), size * (size + 1) // 2).to(dtype))


@check
def all_reduce_knows_five_reductions(rank: int, size: int) -> None:
    contributions = torch.arange(1, size + 1, dtype=torch.float32)
    wanted = {
        dist.ReduceOp.SUM: contributions.sum(),
        dist.ReduceOp.AVG: contributions.mean(),
        dist.ReduceOp.MIN: contributions.min(),
        dist.ReduceOp.MAX: contributions.max(),
        dist.ReduceOp.PRODUCT: contributions.prod(),
    }
    for op, value in wanted.items():
        tensor = torch.full((3, 2), float(rank + 1))
        dist.all_reduce(tensor, op=op)
        equal(tensor, torch.full((3, 2), float(value)))


@check
def all_reduce_combines_bits(rank: int, size: int) -> None:
    for op, wanted in ((dist.ReduceOp.BOR, (1 << size) - 1), (dist.ReduceOp.BAND, 0)):
        tensor = torch.tensor([1 << rank], dtype=torch.int32)
        dist.all_reduce(tensor, op=op)
        equal(tensor, torch.tensor([wanted], dtype=torch.int32))
    tensor = torch.tensor([1 << rank, 3])
    dist.all_reduce(tensor, op=dist.ReduceOp.BXOR)
    equal(tensor, torch.tensor([(1 << size) - 1, 3 if size % 2 else 0]))
    raises("BXOR", lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BXOR))


@check
def premultiplied_sums_leave_inputs_alone(rank: int, size: int) -> None:
    double = dist._make_nccl_premul_sum(2.0)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, op=double)
    equal(tensor, torch.full((3,), float(size * (size - 1))))
    given, output = torch.ones(size * 2), torch.zeros(2)
    dist.reduce_scatter_tensor(output, given, op=double)
    equal(output, torch.full((2,), 2.0 * size))
    equal(given, torch.ones(size * 2))


@check
def all_reduce_is_asynchronous_and_has_a_future(rank: int, size: int) -> None:
    tensor = torch.ones(LONG)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    value = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    equal(value, torch.full((LONG,), 2.0 * size))
    assert work.is_completed() and work.is_success() and work.exception() is None
    work.wait()
    many = [torch.full((3,), float(index)) for index in range(50)]
    works = [dist.all_reduce(one, async_op=True) for one in many]
    for index in reversed(range(50)):
        works[index].wait()
        equal(many[index], torch.full((3,), float(index * size)))


@check
def an_operation_survives_its_forgotten_work(rank: int, size: int) -> None:
    for _ in range(20):
        dist.all_reduce(torch.ones(100_000), async_op=True)
    dist.barrier()


@check
def strided_and_empty_and_scalar_tensors_work(rank: int, size: int) -> None:
    base = torch.arange(24.0).view(4, 6)
    columns = base[:, ::2]
    wanted = columns * size
    dist.all_reduce(columns)
    equal(columns, wanted)
    equal(base[:, 1], torch.arange(24.0).view(4, 6)[:, 1])
    transposed = torch.arange(6.0).view(2, 3).t() if rank == 0 else torch.zeros(2, 3).t()
    dist.broadcast(transposed, 0)
    equal(transposed.contiguous(), torch.arange(6.0).view(2, 3).t().contiguous())
    empty = torch.empty(0, 3)
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    equal(scalar, torch.tensor(float(size * (size - 1) // 2)))


@check
def complex_numbers_are_summed_and_moved(rank: int, size: int) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    dist.all_reduce(tensor)
    equal(tensor, torch.tensor([1 + 2j, 3 - 1j]) * (size * (size + 1) // 2))
    raises("complex", lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX))
    blocks = [torch.zeros(2, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(blocks, torch.full((2,), complex(rank, 1)))
    for index, block in enumerate(blocks):
        equal(block, torch.full((2,), complex(index, 1)))


@check
def types_that_cannot_be_reduced_are_refused_but_moved(rank: int, size: int) -> None:
    for dtype in (torch.int16, torch.float8_e4m3fn):
        raises("cannot reduce torch.", lambda: dist.all_reduce(torch.ones(3).to(dtype)))
        tensor = torch.full((3,), rank + 1).to(torch.float32).to(dtype)
        dist.broadcast(tensor, size - 1)
        equal(tensor.float(), torch.full((3,), float(size)))
    indices = torch.tensor([[0], [1]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(1), (2, 2), check_invariants=True)
    raises("dense tensors", lambda: dist.broadcast(sparse, 0))
    raises("CPU and CUDA", lambda: dist.all_reduce(torch.ones(2, device="meta")))


@check
def tensors_on_several_devices_are_refused_before_anything_is_sent(rank: int, size: int) -> None:
    here, elsewhere = torch.ones(size), torch.ones(size, device="meta")
    mixed = [torch.ones(size) for _ in range(size - 1)] + [elsewhere]
    raises("several devices (cpu, meta)", lambda: dist.all_reduce_coalesced([here, elsewhere]))
    raises("several devices (cpu, meta)", lambda: dist.all_gather(mixed, here))
    raises("several devices (cpu, meta)", lambda: dist.all_gather_into_tensor(torch.ones(size * size), elsewhere))
    raises("several devices (cpu, meta)", lambda: dist.reduce_scatter(here, mixed))
    raises("several devices (cpu, meta)", lambda: dist.reduce_scatter_tensor(torch.ones(1), elsewhere))
    raises("several devices (cpu, meta)", lambda: dist.all_to_all([torch.ones(size)] * size, mixed))
    raises("several devices (cpu, meta)", lambda: dist.all_to_all_single(here, elsewhere))
    if rank == 0:
        raises("several devices (cpu, meta)", lambda: dist.gather(here, mixed, dst=0))
        raises("several devices (cpu, meta)", lambda: dist.scatter(here, mixed, src=0))
    dist.barrier()


@check
def sparse_tensors_are_summed(rank: int, size: int) -> None:
    indices = torch.tensor([[0, rank], [1, 2]])
    sparse = torch.sparse_coo_tensor(indices, torch.ones(2), (size, 3), check_invariants=True)
    dist.all_reduce(sparse)
    wanted = torch.zeros(size, 3)
    wanted[0, 1] = size
    wanted[:, 2] = 1
    equal(sparse.to_dense(), wanted)
    raises("summed and averaged", lambda: dist.all_reduce(sparse, op=dist.ReduceOp.MAX))


@check
def broadcast_reaches_everybody_from_any_root(rank: int, size: int) -> None:
    for root in range(size):
        tensor = torch.arange(LONG, dtype=torch.int64) * (1 if rank == root else 0)
        dist.broadcast(tensor, root)
        equal(tensor, torch.arange(LONG, dtype=torch.int64))


@check
def reduce_leaves_others_untouched(rank: int, size: int) -> None:
    for root in range(size):
        tensor = torch.full((1000,), float(rank + 1))
        dist.reduce(tensor, root)
        equal(tensor, torch.full((1000,), float(size * (size + 1) // 2 if rank == root else rank + 1)))


@check
def all_gather_keeps_the_order_even_with_uneven_blocks(rank: int, size: int) -> None:
    blocks = [torch.zeros(index + 1) for index in range(size)]
    dist.all_gather(blocks, torch.full((rank + 1,), float(rank)))
    for index, block in enumerate(blocks):
        equal(block, torch.full((index + 1,), float(index)))


@check
def all_gather_into_tensor_works_also_in_place(rank: int, size: int) -> None:
    output = torch.zeros(size * 4, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(output, torch.full((4,), rank, dtype=torch.bfloat16))
    wanted = torch.arange(size, dtype=torch.bfloat16).repeat_interleave(4)
    equal(output, wanted)
    output.zero_()
    output[rank * 4 : rank * 4 + 4] = rank
    dist.all_gather_into_tensor(output, output[rank * 4 : rank * 4 + 4])
    equal(output, wanted)
    raises("elements", lambda: dist.all_gather_into_tensor(torch.zeros(size * 4 + 1), torch.zeros(4)))


@check
def gather_and_scatter_are_each_others_inverse(rank: int, size: int) -> None:
    for root in range(size):
        blocks = [torch.zeros(2, 3) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2, 3), float(rank)), blocks, dst=root)
        for index, block in enumerate(blocks or []):
            equal(block, torch.full((2, 3), float(index)))
        output = torch.zeros(2, 3)
        dist.scatter(output, [block + 1 for block in blocks] if blocks else None, src=root)
        equal(output, torch.full((2, 3), float(rank + 1)))


@check
def reduce_scatter_gives_each_its_block(rank: int, size: int) -> None:
    blocks = [torch.full((index + 2,), float(index + rank)) for index in range(size)]
    output = torch.zeros(rank + 2)
    dist.reduce_scatter(output, blocks)
    equal(output, torch.full((rank + 2,), float(size * rank + size * (size - 1) // 2)))
    flat = torch.arange(size * 3.0)
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, flat, op=dist.ReduceOp.AVG)
    equal(output, flat[rank * 3 : rank * 3 + 3])
    dist.reduce_scatter_tensor(flat[rank * 3 : rank * 3 + 3], flat)
    equal(flat[rank * 3 : rank * 3 + 3], output * size)


@check
def all_to_all_exchanges_uneven_blocks(rank: int, size: int) -> None:
    inputs = [torch.full((other + 1,), rank * 10 + other) for other in range(size)]
    outputs = [torch.zeros(rank + 1, dtype=torch.int64) for _ in range(size)]
    dist.all_to_all(outputs, inputs)
    for other, output in enumerate(outputs):
        equal(output, torch.full((rank + 1,), other * 10 + rank))
    send = torch.cat([torch.full((other + 1, 2), float(rank)) for other in range(size)])
    receive = torch.zeros(size * (rank + 1), 2)
    dist.all_to_all_single(receive, send, [rank + 1] * size, [other + 1 for other in range(size)])
    equal(receive, torch.arange(float(size)).repeat_interleave(rank + 1)[:, None].expand(-1, 2).contiguous())
    receive = torch.zeros(size, dtype=torch.int16)
    dist.all_to_all_single(receive, torch.full((size,), rank, dtype=torch.int16))
    equal(receive, torch.arange(size, dtype=torch.int16))
    raises("split sizes", lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [5] * size, [1] * size))


@check
def coalesced_forms_work(rank: int, size: int) -> None:
    first, second = torch.ones(3), torch.ones(2, 2) * rank
    with dist._coalescing_manager() as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    equal(first, torch.full((3,), float(size)))
    equal(second, torch.full((2, 2), size * (size - 1) / 2))
    outputs = [torch.zeros(size * 2), torch.zeros(size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outputs[0], torch.full((2,), float(rank)))
        dist.all_gather_into_tensor(outputs[1], torch.full((1,), float(rank)))
    manager.wait()
    equal(outputs[1], torch.arange(float(size)))
    shares = [torch.zeros(2), torch.zeros(1)]
    with dist._coalescing_manager() as manager:
        dist.reduce_scatter_tensor(shares[0], torch.ones(2 * size))
        dist.reduce_scatter_tensor(shares[1], torch.ones(size))
    equal(shares[0], torch.full((2,), float(size)))
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(rank))])
    for index, (one, other) in enumerate(lists):
        equal(torch.cat([one, other]), torch.full((5,), float(index)))


@check
def objects_travel(rank: int, size: int) -> None:
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": index, "text": "x" * index} for index in range(size)], gathered
    listed = [[1, "two", 3.0]] if rank == 0 else [None]
    dist.broadcast_object_list(listed, src=0)
    assert listed == [[1, "two", 3.0]], listed


@check
def messages_keep_their_order_and_tags(rank: int, size: int) -> None:
    following, before = (rank + 1) % size, (rank - 1) % size
    sends = [dist.isend(torch.tensor([rank, index]), following, tag=index % 2) for index in range(6)]
    received = [torch.zeros(2, dtype=torch.int64) for _ in range(6)]
    for index in (1, 3, 5, 0, 2, 4):
        dist.recv(received[index], before, tag=index % 2)
        equal(received[index], torch.tensor([before, index]))
    for send in sends:
        send.wait()
    raises("", lambda: dist.send(torch.ones(1), rank))


@check
def a_receive_from_anybody_names_its_sender(rank: int, size: int) -> None:
    if rank == 0:
        seen = []
        for _ in range(2 * (size - 1)):
            tensor = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(tensor, tag=7)
            equal(tensor, torch.tensor([source]))
            seen.append(source)
        assert sorted(seen) == sorted([*range(1, size)] * 2), seen
    else:
        for _ in range(2):
            dist.send(torch.tensor([rank]), 0, tag=7)
    # Without it the last rank's next message could be heard by anybody's receive before a slower rank's.
    dist.barrier()
    # What stayed open is answered by a receive from a rank.
    if rank == 0:
        tensor = torch.zeros(1, dtype=torch.int64)
        dist.recv(tensor, size - 1, tag=7)
        equal(tensor, torch.tensor([99]))
    elif rank == size - 1:
        dist.send(torch.tensor([99]), 0, tag=7)


@check
def batched_messages_work(rank: int, size: int) -> None:
    received = torch.zeros(4)
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    equal(received, torch.full((4,), float((rank - 1) % size)))


@check
def groups_of_some_ranks_work_side_by_side(rank: int, size: int) -> None:
    all_again = dist.new_group()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=all_again)
    equal(tensor, torch.full((2,), float(size)))
    ends = dist.new_group([0, size - 1])
    others = dist.new_group([rank for rank in range(size) if rank != 0])
    if rank in (0, size - 1):
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=ends)
        equal(tensor, torch.full((3,), float(size - 1)))
        dist.broadcast(tensor, size - 1, group=ends)
        assert dist.get_rank(ends) == (0 if rank == 0 else 1)
    if rank != 0:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=others)
        equal(tensor, torch.full((3,), float(size - 1)))
    dist.barrier()
    if rank in (0, size - 1):
        dist.destroy_process_group(ends)


@check
def functional_collectives_work(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional

    summed = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    equal(summed + 0, torch.full((3,), float(size)))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    equal(gathered + 0, torch.arange(float(size)).repeat_interleave(2))
    shared = functional.reduce_scatter_tensor(torch.ones(size * 2), "sum", 0, dist.group.WORLD)
    equal(shared + 0, torch.full((2,), float(size)))
    swapped = functional.all_to_all_single(torch.full((size,), float(rank)), None, None, dist.group.WORLD)
    equal(swapped + 0, torch.arange(float(size)))


@check
def a_monitored_barrier_lets_everybody_through(rank: int, size: int) -> None:
    dist.group.WORLD.monitored_barrier(10.0)
    dist.group.WORLD.monitored_barrier(10.0, wait_all_ranks=True)


@check
def the_profiler_shows_collectives_from_start_to_end(rank: int, size: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(LONG))
        dist.broadcast(torch.ones(3), 0)
        dist.all_gather([torch.ones(2) for _ in range(size)], torch.ones(2), async_op=True).wait()
    seen = [(event.name, event.is_async) for event in profile.events() if event.name.startswith("paceline:")]
    wanted = [(f"paceline:{name}", True) for name in ("all_reduce", "broadcast", "all_gather")]
    assert seen == wanted, seen


@check
def ranks_that_disagree_are_told_so(rank: int, size: int) -> None:
    raises("worker", lambda: dist.all_reduce(torch.ones(4 if rank == 0 else 5)))
    dist.barrier()
    different = torch.ones(3, dtype=torch.float32 if rank == 0 else torch.float64)
    raises("worker", lambda: dist.all_reduce(different))
    dist.barrier()

    def different_collectives() -> None:
        if rank == 0:
            dist.all_reduce(torch.ones(3))
        else:
            dist.all_gather_into_tensor(torch.ones(3 * size), torch.ones(3))

    raises("posted", different_collectives)
    dist.barrier()


def main() -> None:
    dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "paceline")
    rank, size = dist.get_rank(), dist.get_world_size()
    outcomes = {}
    for name, function in CHECKS.items():
        try:
            function(rank, size)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
    print("OUTCOMES " + json.dumps(outcomes), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
