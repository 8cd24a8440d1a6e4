"""What no synchronisation can beat, whatever its order: the bound on a training step.

A gradient is sent after its layer's backward pass, and the layer's next forward pass waits for it. So, whoever
schedules the rest perfectly,

- the first layer's tensors pass over the wire while nothing is computed: its backward pass is the last of the step,
  and its forward pass the first of the next;
- the last layer computes while nothing passes over the wire: its forward pass needs the last tensors of the step
  before, and its backward pass makes the first ones of the next.

A step takes at least the longer of (computation + wire time of the first layer's tensors) and (wire time + forward and
backward of the last layer). Both are ends of the same rule, which holds at every layer between: what it and the layers
before it need passes over the wire after its backward pass and before its next forward pass, and it and the layers
after it compute before that and after. Where a few layers are large, one in the middle binds.

This module only calculates; it measures nothing.
"""

from __future__ import annotations

import dataclasses
import math

from profiles import Profile

#: The share of a shaped wire's rate that is payload of TCP: 1448 bytes in a frame of 1514, as shapers count them.
PAYLOAD = 1448 / 1514

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    """A rate as people write it, such as 500mbit."""
    for unit, factor in _UNITS.items():
        number = rate.removesuffix(unit)
        if number != rate:
            try:
                found = factor * float(number)
            except ValueError:
                break
            if 0 < found < float("inf"):
                return found
    raise ValueError(f"a rate is a number and one of {', '.join(_UNITS)}, such as 500mbit, not `{rate}`")


def wire_seconds(size: int, workers: int, rate: float) -> float:
    """How long a worker's wire is busy with all-reducing `size` bytes, at `rate` bits of payload a second.

    Every worker sends and receives 2(n-1)/n of the bytes at least; a ring sends no more.
    """
    return 2 * (workers - 1) / workers * 8 * size / rate


@dataclasses.dataclass(frozen=True)
class Bound:
    """Seconds of a step, taken apart."""

    computation: float
    wire: float
    #: Of the wire, what cannot overlap computation.
    first: float
    #: Of the computation, what cannot overlap the wire.
    last: float
    #: The longest over all layers of (wire time up to it + computation from it on).
    at_any_layer: float

    @property
    def step(self) -> float:
        """The bound on a step, by its first and its last layer."""
        return max(self.computation + self.first, self.wire + self.last)

    @property
    def plain(self) -> float:
        """The bound if everything could overlap."""
        return max(self.computation, self.wire)

    @property
    def ratio(self) -> float:
        """Computation over wire time: near one, there is most to be gained."""
        return self.computation / self.wire if self.wire else math.inf

    def hidden(self, step: float, computation: float | None = None) -> float | None:
        """The share of the wire time that a step of this length hides behind its computation.

        Less than none, if the step takes longer than one after the other would. None with a worker alone.
        """
        if not self.wire:
            return None
        return 1 - (step - (self.computation if computation is None else computation)) / self.wire

    def distance(self, step: float) -> float:
        """How far above the bound a step is, as a share of the bound."""
        return step / self.step - 1


def bound(profile: Profile, workers: int, rate: float) -> Bound:
    """The bound on a step of `workers`, each with a wire of `rate` bits of payload a second."""
    layers = profile.layers
    having = [place for place, layer in enumerate(layers) if layer.tensors]
    begin, end = having[0], having[-1]
    # What computes before any tensor is needed may overlap the first layer's.
    free = sum(layer.seconds for layer in layers[:begin])
    at_any_layer, passed, left = profile.seconds, 0.0, profile.seconds
    for layer in layers:
        passed += wire_seconds(layer.bytes, workers, rate)
        at_any_layer = max(at_any_layer, passed + left) if layer.tensors else at_any_layer
        left -= layer.seconds
    return Bound(
        computation=profile.seconds,
        wire=wire_seconds(profile.bytes, workers, rate),
        first=max(wire_seconds(layers[begin].bytes, workers, rate) - free, 0.0),
        last=sum(layer.seconds for layer in layers[end:]),
        at_any_layer=at_any_layer,
    )
