"""The optimizer as Horovod's scripts wrap it: with names of parameters instead of the model.

How gradients are averaged and parameters updated is in :mod:`paceline.torch.optimizer`. What Horovod has and we have
not is refused by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from paceline._native import PacelineError
from paceline.torch import optimizer
from paceline.torch.horovod import Average, Compression


class DistributedOptimizer(optimizer.DistributedOptimizer):
    """:class:`paceline.torch.optimizer.DistributedOptimizer`, which takes Horovod's arguments too.

    With ``named_parameters`` in place of the model nobody knows when the forward pass needs which parameter, so
    ``step()`` waits for all of them, as Horovod's does, and parameters begin as they are.

    >>> import torch
    >>> import paceline.torch as hvd
    >>> hvd.init()
    >>> model = nn.Linear(2, 1)
    >>> inner = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module | Iterable[tuple[str, nn.Parameter]] | None = None,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1,
        op: Any = Average,
        gradient_predivide_factor: float = 1.0,
        *,
        named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
        process_set: Any = None,
        **ours: Any,
    ) -> None:
        _refuse("compression", compression is not Compression.none, "send gradients as they are")
        _refuse("op", op != Average, "gradients are averaged; for a sum, multiply the learning rate by size()")
        _refuse("gradient_predivide_factor", gradient_predivide_factor != 1.0, "gradients are averaged at once")
        _refuse("sparse_as_dense", sparse_as_dense, "make embeddings with sparse=False")
        _refuse("process_set", process_set is not None, "use DDP with a process group of these ranks")
        self._whole_steps = not isinstance(model, nn.Module)
        if backward_passes_per_step != 1:
            ours.setdefault("accumulate", backward_passes_per_step)
        if not isinstance(model, nn.Module):
            model = _holder(optimizer, named_parameters if model is None else model)
            ours = {"scheduled": False, "broadcast": False, **ours}
        super().__init__(optimizer, model, **ours)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Around a ``step()`` after ``synchronize()``, which needs no such permission here."""
        yield


def _holder(inner: Optimizer, named: Iterable[tuple[str, nn.Parameter]] | None) -> nn.Module:
    """A module that has these parameters, under their names, and is never called."""
    listed = (parameter for group in inner.param_groups for parameter in group["params"])
    pairs = list(named) if named is not None else [(f"parameter{place}", one) for place, one in enumerate(listed)]
    names = [name for name, _ in pairs]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise PacelineError(f"named_parameters has `{twice}` twice; give every parameter a name of its own")
    holder = nn.Module()
    for name, parameter in pairs:
        *path, last = name.split(".")
        module = holder
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.register_parameter(last, parameter)
    return holder


def _refuse(argument: str, given: bool, instead: str) -> None:
    if given:
        raise PacelineError(f"DistributedOptimizer has no such `{argument}`: {instead}")
