"""Which versions of PyTorch the backend can work with: it relies on the shape of PyTorch's process groups."""

from __future__ import annotations

import warnings

import torch.distributed as dist

from paceline._native import PacelineError

#: The oldest PyTorch that the tests pass with, and the newest tried. In 2.6, functional collectives (and so
#: DTensor) wait for ever on process groups that are written in Python.
OLDEST = (2, 7)
NEWEST_TRIED = (2, 15)


def check(version: str) -> None:
    """Refuse a PyTorch that is too old, and warn of one that nobody has tried.

    >>> check("1.13.1")
    Traceback (most recent call last):
    paceline.PacelineError: PyTorch 1.13.1 is too old for the paceline backend; install 2.7 or newer
    """
    found = number(version)
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise PacelineError(
            f"PyTorch {version} is too old for the paceline backend; install {oldest} or newer"
        )
    if not hasattr(dist.ProcessGroup, "allreduce") or not hasattr(dist, "Work"):
        raise PacelineError(
            f"PyTorch {version} is too new for this version of the paceline backend; update paceline"
        )
    if found > NEWEST_TRIED:
        warnings.warn(f"PyTorch {version} is newer than any this paceline was tested with", stacklevel=3)


def number(version: str) -> tuple[int, ...]:
    """Major and minor of a version, to compare.

    >>> number("2.11.0+cu130")
    (2, 11)
    """
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
