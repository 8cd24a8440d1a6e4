"""A small GPT on synthetic text with DistributedDataParallel: a plain PyTorch script.

    torchrun --nproc-per-node 2 examples/ddp_gpt.py
    paceline run -n 2 -- python examples/ddp_gpt.py

Only the name of the backend is Paceline's; `--backend gloo` runs the same on Gloo.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class GPT(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        hidden = self.tokens(text) + self.positions(torch.arange(length, device=text.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        return self.head(self.norm(self.blocks(hidden, mask=mask, is_causal=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="paceline")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(GPT(vocabulary=97, length=32, width=arguments.width, heads=4, layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Each letter follows from the one before it: something that can be learnt.
    data = torch.Generator().manual_seed(1000 + rank)
    for step in range(arguments.steps):
        start = torch.randint(97, (arguments.batch, 1), generator=data)
        text = (start + 5 * torch.arange(33)) % 97
        optimizer.zero_grad()
        letters = model(text[:, :-1])
        loss = nn.functional.cross_entropy(letters.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step:3d}  loss {mean.item() / dist.get_world_size():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
