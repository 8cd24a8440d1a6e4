"""Makes the backend known to PyTorch, which calls :func:`register` while it is being imported.

This module must not import :mod:`paceline.torch`: that imports PyTorch, which may be what is being
imported right now. The backend itself is loaded when a process group is created.
"""

from __future__ import annotations

from typing import Any

BACKEND = "paceline"


def register() -> None:
    """Register the backend for CPU and CUDA tensors, once."""
    import torch.distributed as dist

    if not dist.is_available() or BACKEND.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> Any:
    from paceline.torch import backend

    return backend.create(options, backend_options)
