"""The state of a job, for workers that come to it while it runs.

Between two steps all workers stand still, and whoever came gets parameters, optimizer state, position in the data and whatever
else was named, in place and from all workers that have it at once. What is shared is whatever has ``state_dict`` and
``load_state_dict``.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from paceline import world
from paceline._native import PacelineError
from paceline.torch.checkpoints import Stateful
from paceline.torch.state import Hole, without_tensors

#: Tensors with fewer bytes travel together.
SMALL = 1 << 16


class Elastic:
    """What :func:`elastic` gives."""

    def __init__(self, parts: dict[str, Stateful]) -> None:
        self._parts = parts
        self._membership = world.membership()
        self._membership.sharer = self._give
        #: Whether this worker came to a running job.
        self.joined = self._membership.worker.outside
        if self.joined:
            self._membership.enter()
            self._take()

    def _give(self) -> None:
        states = self._states()
        tensors = list(_tensors(states))
        self._share(states, tensors)

    def _take(self) -> None:
        own = self._states()
        received = self._share(None, None, own)
        for name, part in self._parts.items():
            load = getattr(part, "load_elastic_state", part.load_state_dict)
            load(received[name])
        adaptation = self._membership.adaptation
        if adaptation is not None and _POLICIES in received:
            adaptation.load_elastic_state(received[_POLICIES])
            adaptation.before_step()

    def _states(self) -> dict[str, Any]:
        found = {name: getattr(part, "elastic_state", part.state_dict)() for name, part in self._parts.items()}
        adaptation = self._membership.adaptation
        # Optimizers list parameters in the order in which they were first updated, which every worker has its own of.
        return _in_order(found if adaptation is None else {**found, _POLICIES: adaptation.elastic_state()})

    def _share(self, states: Any, tensors: list[torch.Tensor] | None, own: Any = None) -> Any:
        """Lengths first, then everything but tensors, then those."""
        has_state = states is not None
        worker = self._membership.worker
        body = bytearray(pickle.dumps(without_tensors(states)) if has_state else b"")
        length = torch.tensor([len(body)], dtype=torch.int64)
        worker.share("state's length", [_region(length)], has_state)
        flat = torch.frombuffer(body, dtype=torch.uint8) if has_state else torch.empty(int(length), dtype=torch.uint8)
        worker.share("state's frame", [_region(flat)], has_state)
        frame = states
        if not has_state:
            frame = _filled(pickle.loads(flat.numpy().tobytes()), own)
            tensors = list(_tensors(frame))
        assert tensors is not None
        places = [_in_memory(tensor) for tensor in tensors]
        small = [place for place in places if place.numel() < SMALL]
        packed = torch.cat(small) if small else torch.empty(0, dtype=torch.uint8)
        regions = [_region(place) for place in [packed, *places] if place is packed or place.numel() >= SMALL]
        worker.share("state", [region for region in regions if region[1]], has_state)
        if not has_state:
            for place, part in zip(small, packed.split([place.numel() for place in small]) if small else ()):
                place.copy_(part)
            for tensor, place in zip(tensors, places):
                if not _is_plain(tensor):
                    tensor.copy_(place.view(tensor.dtype).view(tensor.shape))
        return frame


#: Under which policies' state travels.
_POLICIES = "paceline policies"


def elastic(**parts: Stateful) -> Elastic:
    """Say what a worker needs that comes to the job while it runs, and, as such a worker, take part from here on.

    All workers call it after everything is made, and before the first step. It returns at once, but on a worker that came to a
    running job: there it waits until the others have come to their next step, and gets what they have.

    >>> from paceline.torch import DistributedOptimizer
    >>> world.init()
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> elastic(model=model, optimizer=optimizer).joined
    False
    """
    if not parts:
        raise PacelineError("say what newcomers need: elastic(model=model, optimizer=optimizer, loader=loader)")
    return Elastic(parts)


def _in_order(state: Any) -> Any:
    """With dictionaries in one order on all workers."""
    if isinstance(state, dict):
        return {key: _in_order(state[key]) for key in sorted(state, key=lambda key: (str(type(key)), key))}
    if type(state) in (list, tuple):
        return type(state)(_in_order(value) for value in state)
    return state


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """In the order they stand in, which is the same on all workers."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _tensors(value)


def _filled(frame: Any, own: Any) -> Any:
    """With memory for each tensor: this worker's own, where that is as it should be."""
    if isinstance(frame, Hole):
        if isinstance(own, torch.Tensor) and (tuple(own.shape), own.dtype) == (frame.shape, frame.dtype):
            return own.detach()
        return torch.empty(frame.shape, dtype=frame.dtype, device="cpu")
    if isinstance(frame, dict):
        ours = own if isinstance(own, dict) else {}
        return {key: _filled(value, ours.get(key)) for key, value in frame.items()}
    if isinstance(frame, (list, tuple)):
        mine = own if isinstance(own, (list, tuple)) and len(own) == len(frame) else [None] * len(frame)
        return type(frame)(_filled(value, part) for value, part in zip(frame, mine))
    return frame


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, where they lie if that can be."""
    plain = tensor.detach() if _is_plain(tensor) else tensor.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _region(tensor: torch.Tensor) -> tuple[int, int]:
    return (tensor.data_ptr(), tensor.numel() * tensor.element_size())
