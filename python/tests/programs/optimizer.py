"""DistributedOptimizer against DDP, and what it must bear: one line of output for each case that held."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from ddp import models
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline as pl

STEPS = 20
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, fused=True),
}


class Tied(nn.Module):
    """The first and the last layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.middle = nn.Linear(16, 16)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.middle(self.embedding(tokens)).relu())


def all_models(rank: int):
    yield from models(rank)
    tokens = torch.randint(50, (4, 8), generator=torch.Generator().manual_seed(rank))
    yield "tied", Tied(), lambda model, step: model(tokens).square().mean(), {}


def train(model: nn.Module, optimizer, forward: Callable, *, set_to_none: bool, no_sync: Callable) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    for step in range(STEPS):
        if step % 5 == 4:
            with no_sync():
                forward(model, step + 1).backward()
        forward(model, step).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=set_to_none)


def equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def is_like_ddp(rank: int) -> None:
    for index, (name, model, forward, options) in enumerate(all_models(rank)):
        for number, (which, make) in enumerate(OPTIMIZERS.items()):
            # Gradients of a parameter that one pass left out are zeros with DDP, if another used it.
            set_to_none = (index + number) % 2 == 0
            plain, ours = copy.deepcopy(model), copy.deepcopy(model)
            replica = DistributedDataParallel(plain, **options)
            train(replica, make(plain.parameters()), forward, set_to_none=set_to_none, no_sync=replica.no_sync)
            optimizer = pl.DistributedOptimizer(make(ours.parameters()), ours)
            train(ours, optimizer, forward, set_to_none=set_to_none, no_sync=optimizer.no_sync)
            assert equal(plain, ours), f"{name} with {which} differs from DDP"
            optimizer.close()


def small(rank: int, optimizer: Callable = OPTIMIZERS["sgd"], **options):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    wrapped = pl.DistributedOptimizer(optimizer(model.parameters()), model, **options)
    torch.manual_seed(rank)
    return model, wrapped, lambda: model(torch.randn(5, 8)).square().mean()


def same_everywhere(model: nn.Module) -> bool:
    mine = torch.cat([value.flatten() for value in model.state_dict().values()])
    return torch.equal(pl.broadcast(mine), mine)


def state_travels(rank: int) -> None:
    model, optimizer, loss = small(rank, OPTIMIZERS["adamw"])
    for _ in range(3):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    loss().backward()
    optimizer.step()
    after = copy.deepcopy(model.state_dict())
    file.seek(0)
    saved = torch.load(file)
    other, resumed, again = small(rank, OPTIMIZERS["adamw"])
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    for _ in range(3):
        again()
    again().backward()
    resumed.step()
    resumed.drain()
    assert all(torch.equal(after[name], value) for name, value in other.state_dict().items())


class Backwards(nn.Module):
    """Uses its layers against the order in which it lists them; on other workers than the first, in that order."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.rank = rank

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.one(self.two(inputs)) if self.rank == 0 else self.two(self.one(inputs))


def the_order_of_the_first_worker_is_everybodys(rank: int) -> None:
    model = Backwards(rank)
    optimizer = pl.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    urgent = sorted(optimizer._gradients.values(), key=optimizer._priority)
    assert [one.name for one in urgent] == ["two.weight", "two.bias", "one.weight", "one.bias"], urgent
    optimizer.close()


def reading_drains(rank: int) -> None:
    model, optimizer, loss = small(rank)
    for read in (model.eval, model.state_dict, lambda: optimizer.state, lambda: optimizer.state_dict()):
        loss().backward()
        optimizer.step()
        read()
        assert optimizer._pending is None
        optimizer.zero_grad()
        model.train()


def copies_are_quiet(rank: int) -> None:
    model, optimizer, loss = small(rank)
    loss().backward()
    optimizer.step()
    twin = copy.deepcopy(model)
    assert twin.train(False) is twin and model.training
    twin(torch.randn(2, 8)).sum().backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded.eval()(torch.randn(2, 8)).sum().backward()
    optimizer.drain()


def clipping_is_of_averages(rank: int) -> None:
    model, optimizer, loss = small(rank)
    loss().backward()
    optimizer.synchronize()
    wanted = nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    norm = pl.clip_grad_norm_(optimizer, 0.01)
    assert torch.equal(pl.broadcast(norm), norm) and torch.equal(norm, wanted) and norm > 0.01
    total = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert torch.isclose(total, torch.tensor(0.01))
    optimizer.step()
    optimizer.zero_grad()
    assert same_everywhere(model)


class Either(nn.Module):
    """Uses one of its layers on even ranks and the other one on odd ranks."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.rank = rank

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers[self.rank % 2](inputs)


def clipping_waits_for_what_only_others_used(rank: int) -> None:
    model = Either(rank)
    optimizer = pl.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model)
    for _ in range(3):
        model(torch.randn(3, 4)).square().sum().backward()
        norm = pl.clip_grad_norm_(optimizer, 0.01)
        assert torch.equal(pl.broadcast(norm), norm)
        optimizer.step()
        optimizer.zero_grad()
    assert same_everywhere(model)
    optimizer.close()


def scalers_skip_together(rank: int) -> None:
    model, optimizer, loss = small(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copy.deepcopy(model.state_dict())
    for step in range(3):
        value = loss()
        # One worker's overflow is everybody's.
        scaled = scaler.scale(value * float("inf") if step == 1 and rank == 0 else value)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0
    assert same_everywhere(model) and not torch.equal(before["0.weight"], model[0].weight)
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def accumulation_counts_passes(rank: int) -> None:
    model, optimizer, loss = small(rank, accumulate=3)
    other, reference, _ = small(rank)
    inputs = [torch.randn(5, 8) for _ in range(3)]
    for values in inputs:
        model(values).square().mean().backward()
    optimizer.step()
    with reference.no_sync():
        for values in inputs[:2]:
            other(values).square().mean().backward()
    other(inputs[2]).square().mean().backward()
    reference.step()
    assert equal(model, other)


def compiling_the_model_changes_no_update(rank: int) -> None:
    trained = []
    for compiled in (False, True):
        model, optimizer, _ = small(rank)
        forward = torch.compile(model, backend="aot_eager") if compiled else model
        for _ in range(6):
            forward(torch.randn(5, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same_everywhere(model)
        trained.append(model)
        optimizer.close()
    assert equal(*trained)


def step_hooks_are_called_once_a_step(rank: int) -> None:
    model, optimizer, loss = small(rank)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(2):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert calls == ["before", "after"] * 2, calls
    assert same_everywhere(model)


def raises(text: str, action: Callable) -> None:
    try:
        action()
    except pl.PacelineError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised about {text}")


def misuse_is_named(rank: int) -> None:
    model, optimizer, loss = small(rank)
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    raises("called twice", optimizer.step)
    raises("closure", lambda: optimizer.step(lambda: 0.0))
    raises("already", lambda: pl.DistributedOptimizer(optimizer, model))
    raises("LBFGS", lambda: pl.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), model))
    raises("not one of the model's", lambda: pl.DistributedOptimizer(optimizer._inner, nn.Linear(1, 1)))
    raises("before wrapping", lambda: optimizer.add_param_group({"params": []}))
    raises("pickled", lambda: copy.deepcopy(optimizer))
    optimizer.close()

    model, optimizer, loss = small(rank)
    loss().backward()
    raises("no_sync", lambda: loss().backward())
    # Autograd adds before it calls anybody.
    raises("was written", optimizer.synchronize)
    optimizer.synchronize()
    optimizer.close()

    model, optimizer, loss = small(rank)
    loss().backward()
    with torch.no_grad():
        model[0].weight.grad.mul_(2)
    raises("`0.weight` was written", optimizer.synchronize)
    optimizer.synchronize()
    optimizer.close()

    model, optimizer, loss = small(rank)
    loss().backward()
    optimizer.synchronize()
    raises("no_sync", lambda: loss().backward())
    optimizer.zero_grad()
    optimizer.close()


def use_outside_forward_is_refused(rank: int) -> None:
    model, optimizer, loss = small(rank)
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    if optimizer._pending is not None:
        raises("outside the forward()", lambda: sum(p.sum() for p in model.parameters()).backward())


def different_models_are_refused_everywhere(rank: int) -> None:
    model = nn.Linear(4, 2 if rank == 0 else 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    raises("differ", lambda: pl.DistributedOptimizer(optimizer, model))


CASES = (
    is_like_ddp,
    state_travels,
    the_order_of_the_first_worker_is_everybodys,
    reading_drains,
    copies_are_quiet,
    clipping_is_of_averages,
    clipping_waits_for_what_only_others_used,
    scalers_skip_together,
    accumulation_counts_passes,
    compiling_the_model_changes_no_update,
    step_hooks_are_called_once_a_step,
    misuse_is_named,
    use_outside_forward_is_refused,
    different_models_are_refused_everywhere,
)


def names() -> list[str]:
    """Of all parameters of all models, each once, in the order in which backward passes make their gradients."""
    found: dict[str, None] = {}
    for _, model, _, _ in all_models(0):
        found.update(dict.fromkeys(reversed([name for name, _ in model.named_parameters()])))
    small = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    found.update(dict.fromkeys(reversed([name for name, _ in small.named_parameters()])))
    return list(found)


def main() -> None:
    if sys.argv[1] == "names":
        print("\n".join(names()))
        return
    dist.init_process_group(sys.argv[1])
    pl.init()
    for case in CASES:
        torch.manual_seed(0)
        case(pl.rank())
        print(f"HELD {case.__name__}", flush=True)
    dist.destroy_process_group()
    pl.shutdown()


if __name__ == "__main__":
    main()
