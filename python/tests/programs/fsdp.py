"""FSDP2 on our backend against FSDP2 on Gloo, in one job: one line of output for each case that held."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import paceline.torch as pl
from paceline.torch import versions

STEPS = 4
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def mesh(backend: str) -> DeviceMesh:
    """All ranks in one dimension."""
    return DeviceMesh.from_group(dist.new_group(backend=backend), "cpu")


def grid(backend: str) -> DeviceMesh:
    """Replicas of shards: half of the ranks shard a model, and the halves are averaged."""
    ranks = torch.arange(dist.get_world_size()).view(2, -1)
    groups = []
    for lines in (ranks.t(), ranks):
        made = [dist.new_group(line, backend=backend) for line in lines.tolist()]
        groups.append(next(group for group, line in zip(made, lines.tolist()) if dist.get_rank() in line))
    return DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard"))


def sharded(on: DeviceMesh, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    # Sizes that no number of ranks divides: shards are padded.
    blocks = (nn.Sequential(nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 33)) for _ in range(3))
    model = nn.Sequential(*blocks, nn.LayerNorm(33), nn.Linear(33, 7, bias=False))
    for block in model[:3]:
        fully_shard(block, mesh=on, **options)
    fully_shard(model, mesh=on, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, passes: int = 1) -> None:
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(STEPS):
        for number in range(passes):
            model.set_requires_gradient_sync(number == passes - 1)
            model(torch.randn(4, 33)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def same(ours: Any, theirs: Any) -> None:
    """Bit-equal between two ranks; between more, sums are made in another order.

    Before 2.9, PyTorch divides in another place on Gloo.
    """
    exact = dist.get_world_size() == 2 and versions.number(torch.__version__) >= (2, 9)
    bounds = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(ours, theirs, **bounds)


def agrees_with_gloo(on: Callable[[str], DeviceMesh] = mesh, passes: int = 1, **options: Any) -> None:
    states = []
    for backend in ("paceline", "gloo"):
        model, optimizer = sharded(on(backend), **options)
        train(model, optimizer, passes)
        states.append(get_model_state_dict(model, options=FULL))
    assert len(states[1]) == (15 if dist.get_rank() == 0 else 0), list(states[1])
    same(*states)


def shards_after_forward() -> None:
    agrees_with_gloo()


def keeps_whole_parameters_after_forward() -> None:
    agrees_with_gloo(reshard_after_forward=False)


def reduces_in_half_precision() -> None:
    # With oneDNN, PyTorch 2.15 fails to multiply matrices of such sizes on some processors, whoever communicates.
    with torch.backends.mkldnn.flags(enabled=False):
        agrees_with_gloo(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def accumulates_gradients() -> None:
    agrees_with_gloo(passes=2)


def replicates_shards() -> None:
    agrees_with_gloo(on=grid)


def divides_by_what_it_is_told() -> None:
    # Gloo cannot: our own average, divided afterwards, is what to compare with.
    states = []
    size = dist.get_world_size()
    for factor in (2.0 * size, None):
        model, _ = sharded(mesh("paceline"))
        if factor is not None:
            model.set_gradient_divide_factor(factor)
        torch.manual_seed(dist.get_rank())
        model(torch.randn(4, 33)).square().mean().backward()
        gradients = [parameter.grad.full_tensor() for parameter in model[4].parameters()]
        states.append([gradient * (1 if factor else 0.5) for gradient in gradients])
    torch.testing.assert_close(*states)


def states_travel() -> None:
    model, optimizer = sharded(mesh("paceline"))
    train(model, optimizer)
    weights = get_model_state_dict(model, options=FULL)
    # Counts of steps are the optimizer's own tensors, not copies.
    moments = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=FULL))
    other, resumed = sharded(mesh("paceline"))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, weights, options=options)
    set_optimizer_state_dict(other, resumed, moments, options=options)
    for trained in ((model, optimizer), (other, resumed)):
        train(*trained)
    ours, theirs = (get_model_state_dict(one, options=FULL) for one in (model, other))
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)


def shards_are_not_mixed_up_with_replicas() -> None:
    model, optimizer = sharded(mesh("paceline"))
    for use in (
        lambda: pl.DistributedOptimizer(optimizer, model),
        lambda: pl.broadcast_parameters(model.state_dict()),
        lambda: dist.all_reduce(model[4].weight.detach()),
    ):
        try:
            use()
        except pl.PacelineError as error:
            assert "not a DTensor" in str(error), error
        else:
            raise AssertionError("a shard was taken for a whole tensor")


CASES = (
    shards_after_forward,
    keeps_whole_parameters_after_forward,
    reduces_in_half_precision,
    accumulates_gradients,
    replicates_shards,
    divides_by_what_it_is_told,
    states_travel,
    shards_are_not_mixed_up_with_replicas,
)


def main() -> None:
    dist.init_process_group("paceline")
    for case in CASES:
        case()
        print(f"HELD {case.__name__}", flush=True)
    dist.destroy_process_group()
    pl.shutdown()


if __name__ == "__main__":
    main()
