"""A model that uses different parts of itself in different steps, with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/ddp_unused.py
    paceline run -n 2 -- python examples/ddp_unused.py

Only the name of the backend is Paceline's; `--backend gloo` runs the same on Gloo.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    """One of several experts answers; the parameters of the others get no gradient in that step."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.never = nn.Linear(width, width)

    def forward(self, values: torch.Tensor, expert: int) -> torch.Tensor:
        return self.experts[expert](torch.tanh(self.trunk(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="paceline")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(Experts(arguments.width, experts=3), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(arguments.steps):
        values = torch.randn(arguments.batch, arguments.width, generator=data)
        optimizer.zero_grad()
        # The ranks do not even agree on which expert is used.
        loss = (model(values, (step + rank) % 3) - values.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step:3d}  loss {mean.item() / dist.get_world_size():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
