"""Asynchronous training through servers: every worker keeps a share of the model for all, applies whatever gradient comes to it at
once, and answers with what the share is then. A worker that is further ahead of the slowest than allowed waits for its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from paceline._native import Handle, PacelineError, Worker
from paceline.torch import staging, state, tensors
from paceline.torch.modes.replica import Mode, Replica


class Asynchronous(Mode):
    """A parameter server in every worker. Between a worker and the slowest there are at most ``staleness`` steps."""

    name = "asynchronous"
    in_step = False
    in_elastic_jobs = False

    def __init__(self, staleness: int = 4) -> None:
        if staleness < 0:
            raise PacelineError(f"a worker is ahead of others by 0 steps or more, not by {staleness}")
        self.staleness = staleness
        self._shares: list[list[torch.nn.Parameter]] = []
        self._server: _Server | None = None
        self._steps = 0

    @property
    def lead(self) -> float:
        """By how many steps the first worker was ahead of the last at most, as this worker's server saw it."""
        return 0.0 if self._server is None else self._server.lead

    def meets(self) -> bool:
        """So seldom that nobody who is allowed to be ahead waits for it."""
        return self._steps % (self.staleness + 1) == 0

    def numbers(self) -> tuple[int]:
        return (self.staleness,)

    def __repr__(self) -> str:
        return f"Asynchronous(staleness={self.staleness})"

    def begin(self, replica: Replica) -> None:
        worker, self._steps = replica.worker, 0
        self._shares = _shares([parameter for _, parameter in replica.named], worker.size)
        self._server = _Server(replica, self._shares[worker.rank], self.staleness)

    @torch.no_grad()
    def step(self, replica: Replica, update: Callable[[], None]) -> None:
        """``update`` is not called: servers apply gradients."""
        self._exchange(replica.worker, going_on=True)
        self._steps += 1

    @torch.no_grad()
    def end(self, replica: Replica) -> None:
        """Take the shares as all gradients left them, with what servers' optimizers remember."""
        assert self._server is not None
        worker = replica.worker
        self._exchange(worker, going_on=False)
        self._server.finish()
        for rank, share in enumerate(self._shares):
            if share:
                values = self._server.values() if rank == worker.rank else _flat(share, gradients=False)
                remembered = self._server.remembered() if rank == worker.rank else None
                if worker.size > 1:
                    _post(worker, None, "share", "broadcast", values, f"of {rank}", root=rank).wait()
                    remembered = state.broadcast_object(remembered, rank)
                _take(share, values)
                _remember(replica.inner, share, remembered)
        self._server = None

    def gather(self, replica: Replica) -> None:
        # Servers have the model, and it is whole only when everybody's gradients are in it.
        steps = self._steps
        self.end(replica)
        self.begin(replica)
        self._steps = steps

    def _exchange(self, worker: Worker, going_on: bool) -> None:
        """Push gradients to every server, and pull what the shares are then."""
        assert self._server is not None
        pulls: list[tuple[list[torch.nn.Parameter], torch.Tensor, Handle, Handle]] = []
        for rank, share in enumerate(self._shares):
            if rank == worker.rank or not share:
                continue
            # One number more says whether there will be another.
            pushed = torch.cat([_flat(share, gradients=going_on), torch.tensor([float(going_on)])])
            pulled = torch.empty(pushed.numel() - 1)
            ranks = sorted((worker.rank, rank))
            way = f"{worker.rank} to {rank}"
            send = _post(worker, ranks, "push", "send", pushed, way, root=ranks.index(rank))
            answer = _post(worker, ranks, "pull", "recv", pulled, way, root=ranks.index(rank))
            pulls.append((share, pulled, send, answer))
        own = self._shares[worker.rank]
        if own:
            gradient = _flat(own, gradients=True) if going_on else None
            _take(own, self._server.serve(worker.rank, gradient))
        for share, pulled, send, answer in pulls:
            send.wait()
            answer.wait()
            _take(share, pulled)


class _Server:
    """Keeps one share: its parameters, an optimizer over them, and how far each worker is."""

    def __init__(self, replica: Replica, share: Sequence[torch.nn.Parameter], staleness: int) -> None:
        worker, inner = replica.worker, replica.inner
        self._replica, self._worker, self._staleness = replica, worker, staleness
        #: By how many steps the first was ahead of the last at most.
        self.lead = 0.0
        self._kept = {parameter: torch.nn.Parameter(parameter.detach().clone()) for parameter in share}
        self._optimizer = _like(inner, self._kept) if share else None
        self._changed = threading.Condition()
        #: Steps that each worker has pushed; one that ends is infinitely far.
        self._clocks = [0.0] * worker.size
        self._failure: BaseException | None = None
        clients = [rank for rank in range(worker.size) if rank != worker.rank] if share else []
        self._threads = [
            threading.Thread(target=self._attend, args=(rank,), name=f"paceline server for {rank}", daemon=True)
            for rank in clients
        ]
        for thread in self._threads:
            thread.start()

    def values(self) -> torch.Tensor:
        """What the share is now."""
        with self._changed:
            return torch.cat([value.detach().reshape(-1) for value in self._kept.values()])

    def remembered(self) -> list[dict[str, Any]]:
        """What the optimizer keeps for each parameter of the share, in CPU memory."""
        assert self._optimizer is not None
        return [
            {key: memory.cpu() if isinstance(memory, torch.Tensor) else memory for key, memory in self._optimizer.state[value].items()}
            for value in self._kept.values()
        ]

    def finish(self) -> None:
        """Wait until every worker has said that it pushes no more."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def serve(self, rank: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Apply a worker's gradient, or hear that there is no other; the share, when that worker may go on."""
        with self._changed:
            if gradient is None:
                self._clocks[rank] = float("inf")
            else:
                self._apply(gradient)
                self._clocks[rank] += 1
                self.lead = max(self.lead, self._clocks[rank] - min(self._clocks))
            self._changed.notify_all()
            # Bounded by the slowest worker, whose loss fails the operations that it is waited for in.
            while self._failure is None and self._clocks[rank] - min(self._clocks) > self._staleness:
                if self._clocks[rank] == float("inf"):
                    break
                self._changed.wait()
            if self._failure is not None:
                raise self._failure
            return torch.cat([value.detach().reshape(-1) for value in self._kept.values()])

    def _apply(self, gradient: torch.Tensor) -> None:
        assert self._optimizer is not None
        at = 0
        for value in self._kept.values():
            value.grad = gradient[at : at + value.numel()].view_as(value)
            at += value.numel()
        # Schedulers change the learning rate of the optimizer that the program has.
        for group, programs in zip(self._optimizer.param_groups, _groups(self._replica.inner, self._kept)):
            group.update({key: value for key, value in programs.items() if key != "params"})
            if "lr" in group:
                group["lr"] = group["lr"] * self._replica.learning_rate
        self._optimizer.step()

    def _attend(self, rank: int) -> None:
        """One worker's gradients, one after another."""
        worker, ranks = self._worker, sorted((self._worker.rank, rank))
        way, other = f"{rank} to {worker.rank}", ranks.index(rank)
        length = sum(value.numel() for value in self._kept.values())
        try:
            while True:
                pushed = torch.empty(length + 1)
                _post(worker, ranks, "push", "recv", pushed, way, root=other).wait()
                going_on = bool(pushed[-1])
                values = self.serve(rank, pushed[:-1] if going_on else None)
                _post(worker, ranks, "pull", "send", values, way, root=other).wait()
                if not going_on:
                    return
        except BaseException as failure:  # noqa: BLE001 - whoever steps next hears of it
            with self._changed:
                self._failure = self._failure or failure
                self._changed.notify_all()


def _shares(parameters: Sequence[torch.nn.Parameter], size: int) -> list[list[torch.nn.Parameter]]:
    """Each parameter to the worker that has the least so far, the same on all workers."""
    shares: list[list[torch.nn.Parameter]] = [[] for _ in range(size)]
    lengths = [0] * size
    for parameter in sorted(parameters, key=lambda it: -it.numel()):
        rank = lengths.index(min(lengths))
        shares[rank].append(parameter)
        lengths[rank] += parameter.numel()
    return shares


def _groups(inner: Optimizer, kept: dict[torch.nn.Parameter, torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [group for group in inner.param_groups if any(parameter in kept for parameter in group["params"])]


def _like(inner: Optimizer, kept: dict[torch.nn.Parameter, torch.nn.Parameter]) -> Optimizer:
    """An optimizer of the same kind for the share, which remembers what the program's does."""
    groups = [
        {**group, "params": [kept[parameter] for parameter in group["params"] if parameter in kept]}
        for group in _groups(inner, kept)
    ]
    made = type(inner)(groups)
    for parameter, value in kept.items():
        for key, memory in inner.state.get(parameter, {}).items():
            made.state[value][key] = memory.clone() if isinstance(memory, torch.Tensor) else memory
    return made


def _remember(inner: Optimizer, share: Sequence[torch.nn.Parameter], remembered: Any) -> None:
    """Let the program's optimizer have what a server's kept for it."""
    for parameter, kept in zip(share, remembered):
        for key, memory in kept.items():
            shaped = isinstance(memory, torch.Tensor) and memory.shape == parameter.shape
            inner.state[parameter][key] = memory.to(parameter.device, copy=True) if shaped else memory


def _flat(share: Sequence[torch.nn.Parameter], gradients: bool) -> torch.Tensor:
    """In CPU memory and single precision, as it travels; zeros where nothing is asked for or there."""

    def one(parameter: torch.nn.Parameter) -> torch.Tensor:
        if not gradients or parameter.grad is None:
            return torch.zeros(parameter.numel())
        return parameter.grad.detach().reshape(-1).float().cpu()

    return torch.cat([one(parameter) for parameter in share])


def _take(share: Sequence[torch.nn.Parameter], values: torch.Tensor) -> None:
    at = 0
    for parameter in share:
        parameter.data.copy_(values[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def _post(
    worker: Worker, ranks: Sequence[int] | None, what: str, kind: str, values: torch.Tensor, way: str, root: int
) -> Handle:
    flat, dtype = tensors.to_reduce(values, what, "sum")
    name = f"asynchronous {what} {way}"
    return staging.post(worker, ranks, name, kind, dtype, [flat.numel()], *_ends(kind, flat), {"root": root})


def _ends(kind: str, flat: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return {"send": (flat, None), "recv": (None, flat)}.get(kind, (flat, flat))
