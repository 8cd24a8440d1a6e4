"""Hooks on a model that do not own their optimizer, and stay behind when the model is copied or saved.

A copy of a model (for an average of its weights, say) must neither copy the optimizer nor talk to other
workers. This module knows nothing of what the hooks do.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn


class Weak:
    """Calls ``method`` of ``owner``, while it lives, with ``first`` before what the hook is given."""

    def __init__(self, owner: Any, method: Callable[..., Any], *first: Any) -> None:
        self._owner = weakref.ref(owner)
        self._method = method
        self._first = first

    def __call__(self, *arguments: Any) -> Any:
        owner = self._owner()
        return None if owner is None else self._method(owner, *self._first, *arguments)

    def __deepcopy__(self, _: Any) -> Callable[..., None]:
        return nothing

    def __reduce__(self) -> Any:
        return (_nothing, ())


def nothing(*_: Any) -> None:
    """What a hook does in a copy."""


def _nothing() -> Callable[..., None]:
    return nothing


class before_train:
    """Calls ``hook`` before ``model.train()`` and ``model.eval()``, until it is removed."""

    def __init__(self, model: nn.Module, hook: Callable[..., Any]) -> None:
        self._model = weakref.ref(model)
        self._hook = hook
        # An attribute of the object hides the method of its class.
        object.__setattr__(model, "train", self)

    def __call__(self, mode: bool = True) -> nn.Module:
        model = self._alive()
        self._hook()
        return type(model).train(model, mode)

    def remove(self) -> None:
        """Let the class's method be seen again."""
        model = self._model()
        if model is not None:
            model.__dict__.pop("train", None)

    def _alive(self) -> nn.Module:
        model = self._model()
        assert model is not None, "called through the model"
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # The copy of the model is under way, and already known.
        return _plain_train(copy.deepcopy(self._alive(), memo))

    def __reduce__(self) -> Any:
        return (_plain_train, (self._alive(),))


def _plain_train(model: nn.Module) -> Callable[..., nn.Module]:
    return type(model).train.__get__(model)
