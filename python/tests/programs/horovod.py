"""A script in Horovod's habit, without a process group."""

import torch

import paceline.torch as pl

pl.init()
pl.init()
rank, size = pl.rank(), pl.size()
assert size == 2 and pl.local_rank() == rank and pl.local_size() == 2
summed = pl.all_reduce(torch.full((3,), float(rank)), op=torch.distributed.ReduceOp.SUM)
assert summed.tolist() == [1.0] * 3
assert pl.all_reduce(torch.tensor([float(rank)]), name="named").item() == 0.5
assert pl.broadcast(torch.tensor([rank]), 1).item() == 1

torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
pl.broadcast_parameters(model.state_dict(), root_rank=0)
total = sum(value.double().sum() for value in model.state_dict().values())
assert torch.equal(pl.broadcast(total, 1), total)

optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
if rank == 0:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
pl.broadcast_optimizer_state(optimizer, root_rank=0)
assert optimizer.param_groups[0]["lr"] == 0.1
state = optimizer.state_dict()["state"]
assert len(state) == 4 and state[0]["step"] == 1
moment = state[0]["exp_avg"].sum()
assert torch.equal(pl.broadcast(moment, 1), moment)

try:
    pl.broadcast_parameters({"weight": torch.zeros(2 + rank)})
except pl.PacelineError as error:
    assert "differ" in str(error), error
else:
    raise AssertionError("different parameters were accepted")

# A process group uses the worker that is there.
torch.distributed.init_process_group("paceline")
tensor = torch.ones(2)
torch.distributed.all_reduce(tensor)
assert tensor.tolist() == [2.0, 2.0]
torch.distributed.destroy_process_group()
assert pl.all_reduce(torch.ones(1)).item() == 1.0
pl.shutdown()
assert not pl.is_initialized()
print("HOROVOD OK", flush=True)
