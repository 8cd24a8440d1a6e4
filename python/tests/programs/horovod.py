"""A script in Horovod's habit, without a process group."""

import copy

import torch
from torch import nn

import paceline.torch as hvd


def raises(text, action):
    try:
        action()
    except hvd.PacelineError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised about {text}")


hvd.init()
hvd.init()
rank, size = hvd.rank(), hvd.size()
assert size == 2 and hvd.local_rank() == rank and hvd.local_size() == 2
assert hvd.cross_size() == 1 and hvd.cross_rank() == 0

# Reductions, in all of their forms.
ours = torch.full((3,), float(rank + 1))
assert hvd.allreduce(ours).tolist() == [1.5] * 3 and ours.tolist() == [float(rank + 1)] * 3
assert hvd.allreduce(ours, False).tolist() == [3.0] * 3
assert hvd.allreduce(ours, name="named", op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist() == [3.0] * 3
assert hvd.allreduce(ours, compression=hvd.Compression.fp16).dtype == torch.float32
results = [hvd.allreduce(ours, op=op)[0].item() for op in (hvd.Min, hvd.Max, hvd.Product)]
assert results == [1.0, 2.0, 2.0], results
assert hvd.all_reduce(ours, op=torch.distributed.ReduceOp.SUM).tolist() == [3.0] * 3
hvd.allreduce_(ours, op=hvd.Sum)
assert ours.tolist() == [3.0] * 3
handles = [hvd.allreduce_async(torch.full((100_000,), float(index)), name=f"t{index}") for index in range(5)]
for index, handle in reversed(list(enumerate(handles))):
    assert hvd.synchronize(handle)[0] == index and hvd.poll(handle)
handle = hvd.allreduce_async_(ours, average=True)
assert hvd.synchronize(handle) is ours
assert [one.item() for one in hvd.grouped_allreduce([torch.ones(1), torch.zeros(1)], op=hvd.Sum)] == [2.0, 0.0]
assert hvd.reducescatter(torch.arange(3.0), op=hvd.Sum).tolist() == ([0.0, 2.0] if rank == 0 else [4.0])

# What moves.
assert hvd.broadcast(torch.tensor([rank]), 1).item() == 1
assert hvd.synchronize(hvd.broadcast_async(torch.tensor([rank]), root_rank=1, name="moved")).item() == 1
gathered = hvd.allgather(torch.full((rank + 1, 2), rank))
assert gathered.tolist() == [[0, 0], [1, 1], [1, 1]]
assert hvd.allgather(torch.empty(rank, 3, dtype=torch.int16)).shape == (1, 3)
assert hvd.allgather(torch.tensor(complex(rank, 1))).tolist() == [1j, 1 + 1j]
assert hvd.synchronize(hvd.allgather_async(torch.tensor(rank))).tolist() == [0, 1]
assert hvd.alltoall(torch.tensor([10 * rank, 10 * rank + 1])).tolist() == [rank, 10 + rank]
moved, counts = hvd.alltoall(torch.arange(3) + 10 * rank, splits=torch.tensor([1, 2]))
assert moved.tolist() == ([0, 10] if rank == 0 else [1, 2, 11, 12]) and counts.tolist() == [rank + 1] * 2
assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
assert hvd.allgather_object("x" * (rank + 1)) == ["x", "xx"]
hvd.barrier()

# Parameters and states.
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
total = sum(value.double().sum() for value in model.state_dict().values())
assert torch.equal(hvd.broadcast(total, 1), total)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
if rank == 0:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
assert optimizer.param_groups[0]["lr"] == 0.1
state = optimizer.state_dict()["state"]
assert len(state) == 4 and state[0]["step"] == 1
moment = state[0]["exp_avg"].sum()
assert torch.equal(hvd.broadcast(moment, 1), moment)
raises("differ", lambda: hvd.broadcast_parameters({"weight": torch.zeros(2 + rank)}))

# The optimizer, with names instead of the model, is the optimizer with the model (which makes workers begin alike).
hvd.broadcast_parameters(model.state_dict())
inputs = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(rank))
trained = []
for with_model in (True, False):
    replica = copy.deepcopy(model)
    inner = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
    if with_model:
        optimizer = hvd.DistributedOptimizer(inner, replica, accumulate=2)
    else:
        named = replica.named_parameters()
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=named, backward_passes_per_step=2)
    for first, second in inputs.view(2, 2, 5, 3):
        optimizer.zero_grad()
        replica(first).square().mean().backward()
        replica(second).square().mean().backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(replica.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.close()
    trained.append([parameter.detach() for parameter in replica.parameters()])
assert all(torch.equal(one, other) for one, other in zip(*trained, strict=True))

# What is refused, by name.
inner, named = torch.optim.SGD(model.parameters(), lr=0.1), list(model.named_parameters())
raises("Adasum", lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum))
raises("`op`", lambda: hvd.DistributedOptimizer(inner, named_parameters=named, op=hvd.Adasum))
raises("`compression`", lambda: hvd.DistributedOptimizer(inner, named, compression=hvd.Compression.fp16))
raises("twice", lambda: hvd.DistributedOptimizer(inner, named_parameters=[("one", one) for _, one in named]))
raises("not one of the model's", lambda: hvd.DistributedOptimizer(inner, named_parameters=named[:1]))
raises("same number of steps", hvd.join)
raises("do not fit", lambda: hvd.alltoall(torch.ones(3), splits=[5, 5]))

# A process group uses the worker that is there.
torch.distributed.init_process_group("paceline")
tensor = torch.ones(2)
torch.distributed.all_reduce(tensor)
assert tensor.tolist() == [2.0, 2.0]
torch.distributed.destroy_process_group()
assert hvd.allreduce(torch.ones(1)).item() == 1.0
hvd.shutdown()
assert not hvd.is_initialized()
print("HOROVOD OK", flush=True)
