"""What is trained: real models on a GPU, or layers that only take as long as a profile says.

How a step is synchronised is not known here.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch
from profiles import Layer, Profile
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

    def slow(self, factor: float) -> None:
        """Compute so many times slower from now on."""
        raise NotImplementedError("a real model is as fast as it is: only links and layers that are played can be slowed")

    def bytes(self, model: nn.Module) -> int:
        """What is averaged in a step."""
        return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)


def load(name: str, batch: int, rank: int) -> Workload:
    """The real model of that name."""
    return Images(name, batch, rank) if name in ("resnet50", "vgg16") else Text(name, batch, rank)


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
    """Layers whose computation is a sleep, so that the processors carry communication only.

    All models that are made of it share their memory: one of them is trained at a time, nothing is written into
    parameters, and what gradients hold does not matter.
    """

    def __init__(self, profile: Profile) -> None:
        self._layers = profile.layers
        self._device = Device()
        self._weights = [[torch.zeros(elements) for elements in layer.tensors] for layer in self._layers]
        self._gradients = [[torch.zeros(elements) for elements in layer.tensors] for layer in self._layers]

    def model(self) -> nn.Module:
        layers = zip(self._layers, self._weights, self._gradients)
        return nn.Sequential(*(PlayedLayer(self._device, *layer) for layer in layers))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return NoUpdate(model.parameters())

    def loss(self, model: nn.Module) -> torch.Tensor:
        return model(torch.zeros(1, requires_grad=True))

    def slow(self, factor: float) -> None:
        """From now on computation takes so many times as long as the profile says."""
        self._device.slowness = factor


class Device:
    """Computes for as long as it is told, like a GPU that is given one kernel after another."""

    def __init__(self) -> None:
        # A thread may be woken up to 50 us late to save power; layers are often shorter than that.
        pr_set_timerslack, nanoseconds = 29, 1000
        ctypes.CDLL(None).prctl(pr_set_timerslack, nanoseconds, 0, 0, 0)
        self._woken = self._used = 0.0
        self._late = 0.0
        #: How many times as long everything takes as it is told.
        self.slowness = 1.0

    def compute(self, seconds: float) -> None:
        """Return when it is done.

        A thread that sleeps is woken late, the more so when the processors are busy with communication; a device
        would have gone on. So a layer begins when the last one ended, unless its thread has waited for something in
        between.
        """
        now = time.perf_counter()
        waited = (now - self._woken) - (time.thread_time() - self._used)
        end = now - max(self._late - max(waited, 0.0), 0.0) + self.slowness * seconds
        if end > now:
            time.sleep(end - now)
        self._woken, self._used = time.perf_counter(), time.thread_time()
        self._late = max(self._woken - end, 0.0)


class PlayedLayer(nn.Module):
    """Takes its time forward and backward, and has gradients of its size."""

    def __init__(
        self, device: Device, layer: Layer, weights: list[torch.Tensor], gradients: list[torch.Tensor]
    ) -> None:
        super().__init__()
        for place, weight in enumerate(weights):
            self.register_parameter(f"tensor{place}", nn.Parameter(weight.detach()))
        self._play = (device, layer, gradients)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Play.apply(values, self._play, *self.parameters())


class _Play(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, play: Any, *_: torch.Tensor) -> torch.Tensor:
        ctx.play = play
        device, layer, _ = play
        device.compute(layer.forward)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        device, layer, gradients = ctx.play
        device.compute(layer.backward)
        # A fresh name for the same memory each time: PyTorch takes it as the gradient, without a copy.
        return gradient, None, *(one.detach() for one in gradients)


class NoUpdate(torch.optim.Optimizer):
    """An optimizer that takes no time."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        """Nothing."""
