"""Trains the models of the examples with DDP and prints a digest of all parameters and losses."""

import hashlib
import importlib.util
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def example(name: str):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def models(rank: int):
    images, text = torch.randn(4, 3, 20, 20), torch.randint(97, (2, 16))
    yield "resnet", example("ddp_resnet").resnet(8, 10), lambda model, step: model(images).square().mean(), {}
    yield "gpt", example("ddp_gpt").GPT(97, 16, 32, 2, 2), lambda model, step: model(text).square().mean(), {
        "gradient_as_bucket_view": True,
        "bucket_cap_mb": 0.05,
    }
    values = torch.randn(8, 16)
    yield (
        "unused",
        example("ddp_unused").Experts(16, 3),
        lambda model, step: model(values, (step + rank) % 3).square().mean(),
        {"find_unused_parameters": True},
    )
    yield "static", torch.nn.Linear(16, 4), lambda model, step: model(values).square().mean(), {"static_graph": True}


def main() -> None:
    dist.init_process_group(sys.argv[1])
    rank = dist.get_rank()
    torch.manual_seed(rank)
    for name, model, forward, options in models(rank):
        replica = DistributedDataParallel(model, **options)
        optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
        digest = hashlib.sha256()
        for step in range(6):
            if step == 3:
                with replica.no_sync():
                    forward(replica, step).backward()
            loss = forward(replica, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        for parameter in replica.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print(f"DIGEST {name} {digest.hexdigest()}", flush=True)
    with_uneven_inputs(rank)
    dist.destroy_process_group()


def with_uneven_inputs(rank: int) -> None:
    """The other ranks go on after rank 0 has no more, and divide by how many are left."""
    torch.manual_seed(0)
    replica = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    with replica.join(divide_by_initial_world_size=False):
        for _ in range(3 + 2 * (rank > 0)):
            replica(torch.ones(2, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    digest = hashlib.sha256(replica.module.weight.detach().numpy().tobytes())
    print(f"DIGEST uneven {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
