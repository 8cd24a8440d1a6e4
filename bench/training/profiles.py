"""How long each layer of a model computes and what it has to be synchronised: profiles, ours and foreign ones.

Ours are JSON with layers in the order of the forward pass, times in seconds, `tensors` the elements of each parameter
(`elements`, one number, where they are not told apart):

    {"name": "vgg16", "about": "where it was measured",
     "layers": [{"name": "features.0", "tensors": [1728, 64], "forward": 0.00083, "backward": 0.00075}, ...]}

A foreign one knows gradients only, in the order of the backward pass, with the time since the gradient before; it may
hold several models by name. Neighbours with the same module become one layer, and its forward pass is taken as a share
of its backward pass:

    {"vgg16": {"tensors": [{"name": "classifier.6.bias", "elements": 1000, "backward_gap_us": 0}, ...]}, ...}

How layers are played or synchronised is not known here, and neither is PyTorch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable
from typing import Any

#: Those that come with the benchmark.
SHIPPED = pathlib.Path(__file__).parent / "profiles"

#: The forward pass of a layer over its backward pass, where only the latter was measured: a backward pass computes two
#: products of matrices where the forward pass computes one.
FORWARD_SHARE = 0.5

BYTES_OF_ELEMENT = 4


class ProfileError(ValueError):
    """A file is no profile; the text says which and why."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """A piece of the computation, and the parameters it cannot begin without."""

    name: str
    #: Elements of each parameter that is synchronised for this layer. None, where it shares an earlier one's.
    tensors: tuple[int, ...]
    #: Seconds.
    forward: float
    backward: float

    @property
    def bytes(self) -> int:
        return BYTES_OF_ELEMENT * sum(self.tensors)

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


@dataclasses.dataclass(frozen=True)
class Profile:
    """Layers, in the order of the forward pass."""

    name: str
    about: str
    layers: tuple[Layer, ...]
    #: Whether forward times were taken as a share of backward times.
    forward_assumed: bool = False

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Computation of a step."""
        return sum(layer.seconds for layer in self.layers)

    def slowed(self, factor: float) -> Profile:
        """As a machine would take it that is slower by this factor."""
        layers = (
            dataclasses.replace(layer, forward=factor * layer.forward, backward=factor * layer.backward)
            for layer in self.layers
        )
        return dataclasses.replace(self, layers=tuple(layers))

    def shrunk(self, factor: float) -> Profile:
        """With so many times fewer bytes, so that slower links have the same part in a step and cost the processors less."""
        layers = (
            dataclasses.replace(layer, tensors=tuple(max(1, round(size / factor)) for size in layer.tensors))
            for layer in self.layers
        )
        return dataclasses.replace(self, layers=tuple(layers))

    def written(self) -> dict[str, Any]:
        """As a file of ours has it."""
        return dataclasses.asdict(self)


def find(name: str) -> pathlib.Path:
    """The file of this path, or the profile of this name that came with the benchmark."""
    path = pathlib.Path(name)
    shipped = SHIPPED / f"{name}.json"
    return shipped if not path.exists() and shipped.exists() else path


def read(place: str, forward_share: float = FORWARD_SHARE) -> list[Profile]:
    """The profiles that `place` names: FILE, FILE#MODEL, or the name of one that came with the benchmark."""
    name, _, model = place.partition("#")
    path = find(name)
    try:
        content = json.loads(path.read_text())
    except OSError as problem:
        known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.json")))
        raise ProfileError(f"{path}: {problem.strerror}; give a file, or one of {known}") from problem
    except ValueError as problem:
        raise ProfileError(f"{path} is not JSON: {problem}") from problem
    return parse(content, str(path), path.stem, model or None, forward_share)


def parse(content: Any, where: str, name: str, model: str | None, forward_share: float) -> list[Profile]:
    """All profiles of a file's content, or the one called `model`."""
    if not isinstance(content, dict):
        raise ProfileError(f"{where}: a profile is an object with `layers` or `tensors`, or several by name")
    if "layers" in content:
        found = {str(content.get("name", name)): content}
    elif "tensors" in content:
        found = {name: content}
    else:
        found = {key: value for key, value in content.items() if isinstance(value, dict) and "tensors" in value}
    if not found:
        raise ProfileError(f"{where}: neither `layers` nor `tensors` in it")
    if model is not None:
        if model not in found:
            raise ProfileError(f"{where} has no `{model}`, but {', '.join(found)}")
        found = {model: found[model]}
    return [_parse_one(value, f"{where}, {key}", key, forward_share) for key, value in found.items()]


def _parse_one(content: dict[str, Any], where: str, name: str, forward_share: float) -> Profile:
    try:
        if "layers" in content:
            about, layers = str(content.get("about", "")), [_layer(layer) for layer in content["layers"]]
            assumed = bool(content.get("forward_assumed", False))
        else:
            assumed = True
            about = f"only its backward pass was measured: forward taken as {forward_share:g} of it"
            layers = _layers_of_gradients(content["tensors"], forward_share)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ProfileError(f"{where}: {type(problem).__name__} {problem}; the format is in profiles.py") from problem
    if not any(layer.tensors for layer in layers):
        raise ProfileError(f"{where}: no layer has parameters")
    return Profile(name, about, tuple(layers), assumed)


def _layer(content: dict[str, Any]) -> Layer:
    elements = content["tensors"] if "tensors" in content else [content["elements"]]
    tensors = tuple(_counted(number) for number in elements)
    return Layer(str(content["name"]), tensors, _timed(content["forward"]), _timed(content["backward"]))


def _layers_of_gradients(gradients: Iterable[dict[str, Any]], forward_share: float) -> list[Layer]:
    """Turned around, and one layer for each module."""
    modules: list[tuple[str, list[int], list[float]]] = []
    for gradient in gradients:
        module = str(gradient["name"]).rpartition(".")[0] or str(gradient["name"])
        if not modules or modules[-1][0] != module:
            modules.append((module, [], []))
        modules[-1][1].append(_counted(gradient["elements"]))
        modules[-1][2].append(_timed(gradient["backward_gap_us"]) / 1e6)
    return [
        Layer(module, tuple(reversed(elements)), forward_share * sum(gaps), sum(gaps))
        for module, elements, gaps in reversed(modules)
    ]


def _counted(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"elements are a whole number from 1, not {number!r}")
    return number


def _timed(number: Any) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
        raise ValueError(f"a time is a number from 0, not {number!r}")
    return float(number)
