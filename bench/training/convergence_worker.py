"""One worker of `convergence.py`: models, data and training. It prints one line of JSON for each run, on worker 0.

On a host of a testbed it finds the others by itself: the first of them starts the job's coordinator.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import paceline.torch as pl

ROOT = pathlib.Path(__file__).parents[2]
#: Characters that the text model sees.
CONTEXT = 32
#: Of text that nobody trains on.
HELD_OUT = 0.1
#: Samples that a model is judged by: enough for a standard error of half a percent.
JUDGED = 10_000
#: The same while it is trained, where it is told how long that takes.
JUDGED_AT_TIMES = 2_000
#: Ways of workers that average their parameters in groups.
GROUPS = ("shuffle", "shuffle:16", "gossip")
#: Where the coordinator listens on a testbed.
PORT = 29400


class Convolutional(nn.Module):
    """Two convolutions; the wide one has a layer more, and 0.9 MB of parameters."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        width = 16 if wide else 8
        self.first = nn.Conv2d(1, width, 5, stride=2, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 5, stride=2, padding=2)
        pixels = 2 * width * 7 * 7
        self.third = nn.Linear(pixels, 128) if wide else None
        self.last = nn.Linear(128 if wide else pixels, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.second(functional.relu(self.first(images)))).flatten(1)
        return self.last(hidden if self.third is None else functional.relu(self.third(hidden)))


class Block(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.causal = causal

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        heads = self.all(self.before(hidden)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.narrow(functional.gelu(self.wide(self.between(hidden))))


class OverPatches(nn.Module):
    """49 patches of 4 by 4, two layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.places = nn.Embedding(49, width)
        self.blocks = nn.Sequential(Block(width, causal=False), Block(width, causal=False))
        self.last = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.patches(images).flatten(2).transpose(1, 2) + self.places(torch.arange(49))
        return self.last(self.blocks(hidden).mean(1))


class OverCharacters(nn.Module):
    """What comes next after each of the characters, two layers."""

    def __init__(self, characters: int, width: int = 48) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(Block(width, causal=True), Block(width, causal=True))
        self.last = nn.Linear(width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(text) + self.places(torch.arange(text.shape[1]))
        return self.last(self.blocks(hidden)).flatten(0, 1)


class Images:
    """Fashion-MNIST."""

    def __init__(self, folder: str) -> None:
        self.train, self.test = (self._read(pathlib.Path(folder), name) for name in ("train", "t10k"))

    def _read(self, folder: pathlib.Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        def content(kind: str, header: int) -> torch.Tensor:
            data = gzip.decompress((folder / f"{name}-{kind}-ubyte.gz").read_bytes())
            return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8)

        pixels = content("images-idx3", 16).view(-1, 1, 28, 28)
        return pixels.float().div_(255).sub_(0.286).div_(0.353), content("labels-idx1", 8).long()

    def batches(self, size: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of this worker's share, without end."""
        generator = torch.Generator().manual_seed(1000 * seed + pl.rank())
        inputs, labels = self.train
        while True:
            drawn = torch.randint(len(labels) // pl.size(), (size,), generator=generator) * pl.size() + pl.rank()
            yield inputs[drawn], labels[drawn]

    def judged(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.test[0][:JUDGED], self.test[1][:JUDGED]


class Text:
    """The documents of this project."""

    def __init__(self) -> None:
        files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
        text = "\n".join(file.read_text() for file in files)
        known = {character: number for number, character in enumerate(sorted(set(text)))}
        self.characters = len(known)
        numbers = torch.tensor([known[character] for character in text])
        cut = int(len(numbers) * (1 - HELD_OUT))
        self.train, self.test = numbers[:cut], numbers[cut:]

    def batches(self, size: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(1000 * seed + pl.rank())
        share = len(self.train) // pl.size()
        mine = self.train[pl.rank() * share : (pl.rank() + 1) * share]
        while True:
            drawn = torch.randint(share - CONTEXT - 1, (size, 1), generator=generator) + torch.arange(CONTEXT + 1)
            yield mine[drawn[:, :-1]], mine[drawn[:, 1:]].reshape(-1)

    def judged(self) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = min((len(self.test) - 1) // CONTEXT, JUDGED // CONTEXT)
        drawn = torch.arange(pieces)[:, None] * CONTEXT + torch.arange(CONTEXT + 1)
        return self.test[drawn[:, :-1]], self.test[drawn[:, 1:]].reshape(-1)


def main() -> None:
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if "TESTBED_HOST" in os.environ:
        meet(told)
    os.environ["PACELINE_HOST"] = f"host{os.environ['RANK']}"
    pl.init()
    images = Images(told["images"]) if {"cnn", "wide", "transformer"} & set(told["tasks"]) else None
    text = Text() if "text" in told["tasks"] else None
    for task in told["tasks"]:
        data = text if task == "text" else images
        for way in told["ways"]:
            factor = best_rate(task, way, told, data)
            for seed in range(told["seeds"]):
                run = train(task, way, seed, factor, told, data)
                if pl.rank() == 0:
                    print(json.dumps({"task": task, "way": way, "seed": seed, "rate": factor, **run}), flush=True)
    pl.shutdown()


def best_rate(task: str, way: str, told: dict[str, Any], data: Any) -> float:
    """Of those to choose from, as multiples of the usual learning rate: what does best with a seed that does not count."""
    rates: list[float] = told["rates"]
    if len(rates) == 1:
        return rates[0]
    accuracies = [train(task, way, told["seeds"], factor, told, data)["accuracy"] for factor in rates]
    # Only the first worker knows.
    best = torch.tensor([float(max(range(len(rates)), key=lambda place: accuracies[place]))])
    return rates[int(pl.broadcast(best, root_rank=0, name=f"{task} {way} rate"))]


def meet(told: dict[str, Any]) -> None:
    """Say where the others are. What brings them together runs beside the first, and ends when all have left."""
    address = f"{os.environ['TESTBED_ADDRESSES'].split(',')[0]}:{PORT}"
    rank, size = os.environ["TESTBED_HOST"], os.environ["TESTBED_HOSTS"]
    os.environ.update(RANK=rank, WORLD_SIZE=size, PACELINE_COORDINATOR=address, PACELINE_INSECURE="1")
    if rank == "0":
        command = [told["paceline"], "coordinator", "--listen", address, "--size", size, "--plan", told["plan"]]
        subprocess.Popen(command, stdout=subprocess.DEVNULL)


def train(task: str, way: str, seed: int, factor: float, told: dict[str, Any], data: Any) -> dict[str, Any]:
    torch.manual_seed(seed)
    model, inner = made(task, way, data)
    optimizer = pl.DistributedOptimizer(inner, model, mode=mode(way, told["steps"]))
    rates = [factor * group["lr"] for group in inner.param_groups]
    batches = data.batches(told["batch"], seed)
    reached: list[tuple[int, float, float]] = []
    seconds, since = 0.0, time.monotonic()
    for step in range(told["steps"]):
        # In the second half it falls to nothing, as in any training that is to come to an end.
        left = min(1.0, 2 * (1 - step / told["steps"]))
        for group, rate in zip(inner.param_groups, rates):
            group["lr"] = left * rate
        inputs, labels = next(batches)
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if told["judge"] and (step + 1) % told["judge"] == 0:
            # Of this worker's own copy, while nobody trains; that time does not count.
            optimizer.drain()
            pl.barrier()
            seconds += time.monotonic() - since
            if pl.rank() == 0:
                inputs, labels = data.judged()
                reached.append((step + 1, seconds, judge(model, inputs[:JUDGED_AT_TIMES], labels[:JUDGED_AT_TIMES])))
            pl.barrier()
            since = time.monotonic()
    optimizer.switch("synchronous")
    seconds += time.monotonic() - since
    optimizer.close()
    accuracy = judge(model, *data.judged()) if pl.rank() == 0 else 0.0
    pl.barrier()
    return {"accuracy": accuracy, "seconds": seconds, "reached": reached}


def made(task: str, way: str, data: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    # Servers apply the gradients of all workers one after another, which otherwise are averaged first.
    scale = 1.0 / pl.size() if way == "asynchronous" else 1.0
    if task in ("cnn", "wide"):
        model: nn.Module = Convolutional(task == "wide")
        return model, torch.optim.SGD(model.parameters(), lr=0.05 * scale, momentum=0.9)
    model = OverPatches() if task == "transformer" else OverCharacters(data.characters)
    return model, torch.optim.Adam(model.parameters(), lr=0.002 * scale)


def mode(way: str, steps: int) -> Any:
    if way == "ensemble":
        return pl.GroupAveraging(ensemble=4, after=steps * 3 // 4)
    if way == "local":
        return pl.LocalSGD(every=8)
    if way == "asynchronous":
        return pl.Asynchronous(staleness=4)
    return "groups" if way in GROUPS else "synchronous"


@torch.no_grad()
def judge(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    guesses = torch.cat([model(part).argmax(1) for part in inputs.split(500)])
    return (guesses == labels).float().mean().item()


if __name__ == "__main__":
    main()
