"""What is trained: real models on a GPU, or layers that only take as long as a profile says.

A profile is JSON: `{"name": ..., "layers": [{"name", "elements", "forward", "backward"}, ...]}`, times in
seconds, layers in the order of the forward pass. How a step is synchronised is not known here.
"""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import torch
from torch import nn


class Workload:
    """A model, its optimizer and its loss."""

    device = torch.device("cpu")

    def model(self) -> nn.Module:
        raise NotImplementedError

    def loss(self, model: nn.Module) -> torch.Tensor:
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def bytes(self, model: nn.Module) -> int:
        """What is averaged in a step."""
        return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def load(name: str, batch: int, slow: float, rank: int) -> Workload:
    """The workload of that name, or the profile in that file."""
    if name in ("resnet50", "vgg16"):
        return Images(name, batch, rank)
    if name in ("bert-base", "gpt2", "lstm"):
        return Text(name, batch, rank)
    return Played(json.loads(pathlib.Path(name).read_text()), slow)


class Images(Workload):
    """A network of torchvision's on random images."""

    def __init__(self, name: str, batch: int, rank: int) -> None:
        self.device = torch.device("cuda", 0)
        torch.manual_seed(rank)
        self._name = name
        self._images = torch.randn(batch, 3, 224, 224, device=self.device)
        self._labels = torch.randint(1000, (batch,), device=self.device)

    def model(self) -> nn.Module:
        import torchvision

        return getattr(torchvision.models, self._name)().to(self.device)

    def loss(self, model: nn.Module) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return nn.functional.cross_entropy(model(self._images), self._labels)


class Text(Workload):
    """A model of language on random tokens."""

    def __init__(self, name: str, batch: int, rank: int) -> None:
        self.device = torch.device("cuda", 0)
        torch.manual_seed(rank)
        self._name = name
        self._tokens = torch.randint(10000, (batch, 128), device=self.device)
        self._labels = torch.randint(2, (batch,), device=self.device) if name == "bert-base" else self._tokens

    def model(self) -> nn.Module:
        import transformers

        if self._name == "bert-base":
            model = transformers.BertForSequenceClassification(transformers.BertConfig())
        elif self._name == "gpt2":
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        else:
            model = Recurrent(10000, 1024)
        return model.to(self.device)

    def loss(self, model: nn.Module) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(input_ids=self._tokens, labels=self._labels)["loss"]


class Recurrent(nn.Module):
    """Two layers of LSTM between an embedding and its output."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.second = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        values = self.second(self.first(self.embedding(input_ids))[0])[0]
        return {"loss": nn.functional.cross_entropy(self.out(values).flatten(0, 1), labels.flatten())}


class Played(Workload):
    """Layers whose computation is a sleep, so that the processors carry communication only."""

    def __init__(self, profile: dict[str, Any], slow: float) -> None:
        self._layers = profile["layers"]
        self._slow = slow

    def model(self) -> nn.Module:
        return nn.Sequential(*(PlayedLayer(layer, self._slow) for layer in self._layers))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return NoUpdate(model.parameters())

    def loss(self, model: nn.Module) -> torch.Tensor:
        return model(torch.zeros(1, requires_grad=True))


class PlayedLayer(nn.Module):
    """Takes its time forward and backward, and has a gradient of its size."""

    def __init__(self, layer: dict[str, Any], slow: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(int(layer["elements"])))
        self._forward, self._backward = slow * layer["forward"], slow * layer["backward"]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Play.apply(values, self.weight, self._forward, self._backward)


class _Play(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.backward, ctx.elements = backward, weight.numel()
        time.sleep(forward)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        time.sleep(ctx.backward)
        return gradient, torch.zeros(ctx.elements), None, None


class NoUpdate(torch.optim.Optimizer):
    """An optimizer that takes no time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        """Nothing."""
