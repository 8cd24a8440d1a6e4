"""Imports PyTorch, and is imported before it by programs that tests start many times: they begin and end in half the time.

What is spared is what such a program does not need: collecting garbage among all that PyTorch has made when it is imported, once
more among the same when Python ends, and importing its compiler, which every optimizer does only to say that it is not to be compiled.
"""

import atexit
import gc
import importlib
import sys
import types
from collections.abc import Callable

NAME = "torch._dynamo"


class Compiler(types.ModuleType):
    """Becomes the real one when more is asked of it than to leave a function alone."""

    def disable(self, function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
        return function

    def __getattr__(self, name: str) -> object:
        # What Python asks of every module.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


def end_quickly() -> None:
    # Parts of the real one report what nobody collected.
    if isinstance(sys.modules[NAME], Compiler):
        gc.freeze()


sys.modules.setdefault(NAME, Compiler(NAME))
gc.disable()
import torch  # noqa: E402, F401

gc.freeze()
gc.enable()
atexit.register(end_quickly)
