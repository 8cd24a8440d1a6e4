"""Lets PyTorch's GPU tests run without GPUs: what they move to a GPU stays in host memory.

Most of the suite's tests of DDP, of its communication hooks and of its logging ask for GPUs, although what they
test is not about GPUs. A test that is fails here, on every backend alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed


class HostMemory(TorchFunctionMode):
    """Whoever names a GPU gets host memory. It holds for the thread that enters it."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_gpu(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to:
            args = (args[0], *("cpu" if _is_gpu(argument) else argument for argument in args[1:]))
        return function(*args, **kwargs)


def _is_gpu(given: Any) -> bool:
    if isinstance(given, torch.device):
        return given.type == "cuda"
    if isinstance(given, str):
        return given.startswith("cuda")
    return isinstance(given, int) and not isinstance(given, bool)


def install() -> None:
    """Before the suite is imported: its skips find what they ask for."""
    HostMemory().__enter__()
    common_distributed.skip_if_no_gpu = lambda test: test
    common_distributed.skip_if_lt_x_gpu = lambda count, **_: lambda test: test
    common_distributed.init_multigpu_helper = lambda size, backend: {rank: [rank] for rank in range(size)}
    # Two functions, not one twice: the compiler wants to tell them apart.
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_device = lambda: 0
    construct = DistributedDataParallel.__init__

    def without_devices(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **rest: Any
    ) -> None:
        construct(self, module, None, None, *args, **rest)

    DistributedDataParallel.__init__ = without_devices
