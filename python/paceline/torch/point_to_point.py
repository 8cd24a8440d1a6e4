"""Messages from one rank of a group to another, matched by sender, receiver and tag.

A receive from anybody is a receive from everybody: the first that ends counts, and the others stay open
for the receives that come later. This file knows nothing of collectives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from paceline._native import Handle, PacelineError, wait_any
from paceline.torch import staging, tensors
from paceline.torch.work import Work

if TYPE_CHECKING:
    from paceline.torch.backend import ProcessGroup


class PointToPoint:
    """Sends and receives of one group."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        #: Receives from anybody that are open still, by (sender, tag): at most one for each.
        self._open: dict[tuple[int, int], tuple[Handle, torch.Tensor]] = {}
        self._barriers = 0

    def send(self, batch: list[torch.Tensor], to: int, tag: int) -> Work:
        tensor = self._only(batch, to, "send")
        flat, dtype = tensors.to_move(tensor)
        handle = self._post("send", to, tag, flat, dtype)
        return self._group._work([handle], batch, "send", None, [], torch.device("cpu"))

    def receive(self, batch: list[torch.Tensor], source: int, tag: int) -> Work:
        tensor = self._only(batch, source, "recv")
        handle, flat = self._open.pop((source, tag), (None, None))
        if handle is None or flat is None:
            return self._received(self._receive(tensor, source, tag), tensor, source)
        _check_length(flat, tensor, source, tag)
        return self._received((handle, flat), tensor, source)

    def receive_from_any(self, batch: list[torch.Tensor], tag: int) -> Work:
        """Blocks until a message is there: only then is it known who sent it."""
        tensor = self._only(batch, None, "recv from any source")
        others = [rank for rank in range(self._group.size()) if rank != self._group.rank()]
        for source in others:
            if (source, tag) not in self._open:
                self._open[source, tag] = self._receive(torch.empty_like(tensor), source, tag)
        handles = [self._open[source, tag][0] for source in others]
        ended = wait_any(handles, self._group._timeout.total_seconds())
        if ended is None:
            raise PacelineError(f"recv from any source: nothing came with tag {tag} within the timeout")
        source = others[ended]
        handle, flat = self._open.pop((source, tag))
        _check_length(flat, tensor, source, tag)
        return self._received((handle, flat), tensor, source, "recvAnySource")

    def monitored_barrier(self, seconds: float, wait_all_ranks: bool) -> None:
        """Rank 0 hears from everybody, and then lets everybody go."""
        group, token = self._group, torch.zeros(1, dtype=torch.uint8, device="cpu")
        tag = -2 - self._barriers % 1024
        self._barriers += 1
        deadline = time.monotonic() + seconds
        if group.rank() != 0:
            self._post("send", 0, tag, token, "u8").wait(seconds)
            answer = torch.zeros(1, dtype=torch.uint8, device="cpu")
            if not self._post("recv", 0, tag, answer, "u8").wait(max(deadline - time.monotonic(), 0.0)):
                raise PacelineError(
                    f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors while "
                    f"waiting for send/recv from rank 0: no word within {seconds:g} s. Please check rank 0 "
                    "logs for faulty rank."
                )
            if answer.item() == 0:
                raise PacelineError(
                    f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors while "
                    "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
                )
            return
        missing: list[int] = []
        for rank in range(1, group.size()):
            if time.monotonic() >= deadline and not missing:
                raise PacelineError(
                    f"Rank 0 timed out in monitoredBarrier after {int(seconds * 1000)} ms, before it heard "
                    f"from rank {rank}"
                )
            try:
                came = self._post("recv", rank, tag, torch.zeros_like(token), "u8").wait(
                    max(deadline - time.monotonic(), 0.0)
                )
            except PacelineError:
                came = False
            if not came:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        verdict = torch.full_like(token, 0 if missing else 1)
        for rank in range(1, group.size()):
            self._post("send", rank, tag, verdict, "u8")
        if missing:
            named = ", ".join(map(str, missing))
            word = "Ranks" if len(missing) > 1 or wait_all_ranks else "Rank"
            raise PacelineError(
                f"{word} {named} failed to pass monitoredBarrier in {int(seconds * 1000)} ms"
            )

    def _only(self, batch: list[torch.Tensor], other: int | None, operation: str) -> torch.Tensor:
        if len(batch) != 1:
            raise PacelineError(f"{operation} takes one tensor, not {len(batch)}")
        tensors.check(batch[0], operation)
        if other is not None and not 0 <= other < self._group.size():
            raise PacelineError(f"{operation}: rank {other} is not in this group of {self._group.size()}")
        if other == self._group.rank():
            raise PacelineError(f"{operation}: a rank cannot send to itself; copy the tensor instead")
        return batch[0]

    def _receive(self, tensor: torch.Tensor, source: int, tag: int) -> tuple[Handle, torch.Tensor]:
        target = tensor if tensor.is_cpu else torch.empty_like(tensor, device="cpu")
        flat, dtype = tensors.to_move(target)
        return self._post("recv", source, tag, flat, dtype), flat

    def _received(
        self, opened: tuple[Handle, torch.Tensor], tensor: torch.Tensor, source: int, name: str = "recv"
    ) -> Work:
        handle, flat = opened

        copies: list[Callable[[], None]] = []
        tensors.copy_back(tensor, flat, copies)
        work = self._group._work([handle], [tensor], name, None, copies, tensor.device)
        work._source = source
        return work

    def _post(self, kind: str, other: int, tag: int, flat: torch.Tensor, dtype: str) -> Handle:
        group = self._group
        places = range(group._worker.size) if group._ranks is None else group._ranks
        pair = (places[group.rank()], places[other])
        ranks, root = (pair, 1) if kind == "send" else (pair[::-1], 0)
        if flat.is_cuda:
            flat = flat.cpu()
        send, receive = (flat, None) if kind == "send" else (None, flat)
        name = f"{group._matching.prefix}, tag {tag}"
        return staging.post(
            group._worker, ranks, name, kind, dtype, [flat.numel()], send, receive, {"root": root}
        )


def _check_length(flat: torch.Tensor, tensor: torch.Tensor, source: int, tag: int) -> Any:
    if flat.nbytes != tensor.nbytes:
        raise PacelineError(
            f"recv: an earlier receive from any source already waits for {flat.nbytes} bytes from rank "
            f"{source} with tag {tag}, this one for {tensor.nbytes}; use another tag for another size"
        )
