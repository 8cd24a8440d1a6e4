"""The engine under the Python package. Use :mod:`paceline` instead."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

__version__: str

class PacelineError(RuntimeError):
    """Something went wrong in the job; the text says where and what to do."""

    peer: int | None

class JoinError(PacelineError): ...
class PeerLostError(PacelineError): ...
class MismatchError(PacelineError): ...
class StalledError(PacelineError): ...
class AbortedError(PacelineError): ...

class Coordinator:
    def __init__(
        self,
        listen: str,
        size: int,
        secret: str | None = None,
        join_timeout: float | None = None,
        operation_timeout: float | None = None,
    ) -> None: ...
    @property
    def address(self) -> str: ...

class Handle:
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def when_done(self, listener: Callable[[], Any]) -> None: ...
    def give_up(self, reason: str) -> None: ...
    def precede(self, stream: int) -> None: ...

class Proposal:
    def done(self) -> bool: ...
    def wait(self, timeout: float = 0.0) -> tuple[int, int] | None: ...

class Recording:
    @staticmethod
    def now() -> int: ...
    def switch(self, on: bool) -> None: ...
    def span(
        self, activity: int, layer: int, begin: int, end: int | None = None, device: int | None = None
    ) -> None: ...
    def step(self, number: int, begin: int, end: int) -> None: ...
    @property
    def dropped(self) -> int: ...
    def finish(
        self,
        layers: Sequence[tuple[str, Sequence[tuple[str, int, str]], int]],
        crosses_step: bool,
        kernels: Sequence[tuple[str, int, int, int, int]],
    ) -> None: ...
    def wait(self) -> tuple[Path, int, int] | None: ...

class Worker:
    @staticmethod
    def from_environment(timeout: float | None = None) -> Worker: ...
    @staticmethod
    def join(
        coordinator: str,
        rank: int,
        size: int,
        secret: str | None = None,
        hosting: Coordinator | None = None,
        timeout: float | None = None,
    ) -> Worker: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def hosts(self) -> list[str]: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def fusion(self) -> list[list[str]]: ...
    @property
    def accumulate(self) -> int: ...
    def begin_step(self) -> int: ...
    def propose(
        self,
        *,
        strategy: str | None = None,
        partition: int | str | None = None,
        credit: int | str | None = None,
    ) -> Proposal: ...
    def post(
        self,
        kind: str,
        name: str,
        dtype: str,
        counts: Sequence[int],
        input: tuple[int, int],
        output: tuple[int, int],
        *,
        receives: Sequence[int] | None = None,
        root: int = 0,
        reduce: str = "sum",
        priority: int = 0,
        ranks: Sequence[int] | None = None,
        keep: Any = None,
    ) -> Handle: ...
    def stage(
        self,
        kind: str,
        name: str,
        dtype: str,
        counts: Sequence[int],
        input: tuple[int, int],
        output: tuple[int, int],
        host_input: tuple[int, int],
        host_output: tuple[int, int],
        streams: tuple[int, int, int],
        *,
        receives: Sequence[int] | None = None,
        root: int = 0,
        reduce: str = "sum",
        priority: int = 0,
        ranks: Sequence[int] | None = None,
        keep: Any = None,
    ) -> Handle: ...
    def trace(self, directory: str | PathLike[str]) -> Recording: ...
    def deliver(self) -> None: ...
    def close(self, patience: float = 60.0, drain: float = 0.0) -> None: ...

def fresh_secret() -> str: ...
def interface_address(name: str) -> str: ...
def wait_any(handles: Sequence[Handle], timeout: float | None = None) -> int | None: ...
