"""Checkpoints of a running job: copied between two steps, written beside training, restored at any number of workers.

Worker 0 writes, alone: all workers hold the same parameters and optimizer state, so shares of several workers would save no
byte, and a file that one process renames into place is there whole or not at all. Where each worker trains a copy of its own, all
take the mean of their copies first, and go on with what they have. When a job begins, worker 0 reads and the others are told, so
that no file system need be shared. What is saved is whatever has ``state_dict`` and ``load_state_dict``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pathlib
import pickle
import re
import struct
import sys
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol

import torch

from paceline import world
from paceline._native import PacelineError
from paceline.torch import state as states
from paceline.torch.optimizer import DistributedOptimizer

#: Steps between two checkpoints, unless it is said otherwise.
EVERY = 1000
#: Files that are kept: the last one, and one to go back to if it is damaged.
KEEP = 2

_KIND = b"paceline state "
_MAGIC = _KIND + b"2"
#: The magic, the length of what follows and its SHA-256.
_HEADER = struct.Struct(f"<{len(_MAGIC)}sQ32s")
_NAME = re.compile(r"step-(\d{12})\.paceline")


class Stateful(Protocol):
    """What can be saved: models, optimizers, loaders, schedulers."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class Checkpoint:
    """What :func:`checkpoint` gives."""

    def __init__(self, parts: Mapping[str, Stateful], directory: pathlib.Path | None, every: int, keep: int) -> None:
        self._parts = dict(parts)
        self._directory = directory
        self._every = every
        self._keep = keep
        self._writing: threading.Thread | None = None
        self._due = False
        #: Whether somebody came to the job in the step that is being made, who will not save what comes of it.
        self.came = False
        #: Whether copies are to be saved in the next step, because of that. The same on all workers.
        self._postponed = False
        #: Who may train copies.
        self._optimizers = [part for part in parts.values() if isinstance(part, DistributedOptimizer)]
        #: Steps of the job, also of those before it was restored.
        self.steps = 0
        #: Whether the job goes on from a checkpoint.
        self.restored = False
        membership = world.membership()
        if directory is not None:
            # Better now than after a thousand steps.
            _check_readable({name: part.state_dict() for name, part in self._parts.items()})
        # A worker that comes to a running job gets its state from the others.
        if directory is not None and not membership.worker.outside:
            self._restore()
        membership.checkpoint = self

    def step(self) -> None:
        """A step is over, on every worker. Now and then its state is copied, and written while training goes on."""
        self.steps += 1
        is_turn = self.steps % self._every == 0
        copies_turn = is_turn or self._postponed
        self._postponed, self.came = copies_turn and self.came, False
        if self._directory is None:
            return
        if self._is_of_copies:
            # All take part, at a step that all know: a file that is still being written leaves this one out.
            if copies_turn and not self._postponed:
                self.save()
            return
        self._due = (self._due or is_turn) and world.rank() == 0
        if not self._due:
            return
        if self._writing is not None and self._writing.is_alive():
            # One at a time: the next step whose turn can come is as good.
            return
        self._due = False
        self.save()

    def save(self) -> None:
        """Copy the state now, and begin to write it. Worker 0 does, and the others need not call it, unless workers train copies
        of their own: then all call it after the same step."""
        if self._directory is None:
            return
        found = (pair for optimizer in self._optimizers for pair in optimizer.means())
        means = {place(value): mean for value, mean in found if value.numel()}
        if world.rank() != 0 or (means and self._writing is not None and self._writing.is_alive()):
            return
        self._finish_writing()
        self._due = False
        copied = _copied(self._state(), means)
        arguments = (self._directory, self.steps, copied, self._keep)
        self._writing = threading.Thread(target=_write_beside, args=arguments, name="paceline-checkpoint")
        self._writing.start()

    def state_dict(self) -> dict[str, Any]:
        """For workers that come to the job: which step it is, since they may have to save others."""
        steps = self.steps + world.membership().stepping
        return {"steps": steps, "postponed": self._postponed or (self.came and steps % self._every == 0)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Count on from there."""
        self.steps, self._postponed = state["steps"], state["postponed"]

    def wait(self) -> None:
        """Until what was begun is written, or failed, and what is due."""
        self._finish_writing()
        if self._due:
            self.save()
            self._finish_writing()

    def _finish_writing(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    @property
    def _is_of_copies(self) -> bool:
        return any(optimizer.copied for optimizer in self._optimizers)

    def _state(self) -> dict[str, Any]:
        parts = {name: getattr(part, "checkpoint_state", part.state_dict)() for name, part in self._parts.items()}
        adaptation = world.membership().adaptation
        return {"steps": self.steps, "parts": parts, "policies": None if adaptation is None else adaptation.state_dict()}

    def _restore(self) -> None:
        assert self._directory is not None
        folder = self._directory

        def read_by(root: int) -> tuple[int, Any]:
            found = _newest(folder) if world.rank() == root else None
            return root, found if world.size() == 1 else states.broadcast_object(found, root)

        reader, found = states.from_first(read_by)
        if found is None:
            return
        missing = sorted(set(self._parts) - set(found["parts"]))
        if missing:
            raise PacelineError(
                f"the checkpoint in {self._directory} has no `{missing[0]}`: it is of another program; choose another folder"
            )
        with contextlib.ExitStack() as restoring:
            for name, part in self._parts.items():
                if isinstance(part, DistributedOptimizer):
                    restoring.enter_context(part.while_restored(found["parts"][name]))
            for name, part in self._parts.items():
                try:
                    getattr(part, "load_checkpoint_state", part.load_state_dict)(found["parts"][name])
                except (RuntimeError, ValueError, KeyError, TypeError) as error:
                    raise PacelineError(
                        f"`{name}` cannot go on from the checkpoint in {self._directory}: {error}; build the same model as the program that "
                        "wrote it, or choose another folder"
                    ) from error
        adaptation = world.membership().adaptation
        if adaptation is not None and found["policies"] is not None:
            adaptation.load_state_dict(found["policies"])
        self.steps, self.restored = found["steps"], True
        if world.rank() == reader:
            _say(f"the job goes on after step {self.steps}, from {self._directory}, with {world.size()} workers")


def checkpoint(
    *,
    directory: str | os.PathLike[str] | None = None,
    every: int | None = None,
    keep: int = KEEP,
    **parts: Stateful,
) -> Checkpoint:
    """Restore these from the last checkpoint in ``directory``, if there is one, and save them every so many steps.

    Without ``directory`` and ``every``, those of ``paceline run --checkpoint DIR --every N`` hold; without either, nothing is
    saved. All workers call it, after their optimizer is made, and ``step()`` of what it gives after each step.

    >>> import tempfile
    >>> from paceline.torch import DistributedOptimizer
    >>> world.init()
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = checkpoint(model=model, optimizer=optimizer, directory=folder, every=1)
    ...     saved.step()
    ...     saved.wait()
    ...     checkpoint(model=model, optimizer=optimizer, directory=folder).steps
    1
    """
    if not parts:
        raise PacelineError("say what to save: checkpoint(model=model, optimizer=optimizer, loader=loader)")
    given = directory if directory is not None else os.environ.get("PACELINE_CHECKPOINT")
    steps = every if every is not None else int(os.environ.get("PACELINE_CHECKPOINT_EVERY", EVERY))
    if steps < 1 or keep < 1:
        raise PacelineError(f"cannot keep {keep} checkpoints, one every {steps} steps")
    if world.membership().sharer is not None:
        raise PacelineError("call pl.checkpoint before pl.elastic: workers that come later are in the job from there on, and would restore alone")
    return Checkpoint(parts, pathlib.Path(given) if given else None, steps, keep)


def place(tensor: torch.Tensor) -> tuple[int, int, torch.device]:
    """Where it lies; tensors without elements lie nowhere."""
    return (tensor.data_ptr(), tensor.nbytes, tensor.device)


def _copied(value: Any, means: Mapping[tuple[int, int, torch.device], torch.Tensor]) -> Any:
    """In host memory, and nobody else's; where there is a mean over workers, that."""
    if isinstance(value, torch.Tensor):
        return means.get(place(value), value).detach().reshape(value.shape).to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(item, means) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item, means) for item in value)
    return value


def _write_beside(directory: pathlib.Path, steps: int, state: Any, keep: int) -> None:
    """On a thread of its own. Whatever goes wrong, training goes on and the last good file stays."""
    try:
        _check_readable({**state["parts"], "policies": state["policies"]})
        write(directory, steps, state)
        # Of a later step there is only what could not be read when the job began.
        for _, old in [file for file in _files(directory) if file[0] <= steps][keep:]:
            old.unlink()
    except Exception as error:  # noqa: BLE001
        _say(f"the checkpoint of step {steps} was not written to {directory}: {error}; training goes on")


def _check_readable(parts: Mapping[str, Any]) -> None:
    """Not all that can be written can be read again: tensors and plain values can."""
    for name, state in parts.items():
        frame = io.BytesIO()
        torch.save(_without_tensors(state), frame)
        frame.seek(0)
        try:
            torch.load(frame, weights_only=True)
        except pickle.UnpicklingError as error:
            reason = str(error).partition("Unsupported")[2] or str(error)
            raise PacelineError(
                f"the state of `{name}` holds what is neither a tensor nor a plain value, and could not be read again: give numbers, texts, "
                f"lists and dictionaries ({reason.strip()[:200]})"
            ) from error


def _without_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, Mapping):
        return {key: _without_tensors(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(item) for item in value)
    return value


def write(directory: pathlib.Path, steps: int, state: Any) -> None:
    """Beside its place first, then onto the disk, then renamed: a reader sees all of it or nothing."""
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / f"step-{steps:012d}.paceline"
    beside = place.with_suffix(".partial")
    try:
        with beside.open("wb") as file:
            file.write(bytes(_HEADER.size))
            body = _Hashing(file)
            try:
                torch.save(state, body)
            except RuntimeError as error:
                # PyTorch says where its archive ended, not why.
                raise body.failure or error from error
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, body.length, body.hash.digest()))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)
        folder = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def read(path: pathlib.Path) -> Any:
    """What was written, if every byte is as it was."""
    content = path.read_bytes()
    if len(content) < _HEADER.size:
        raise PacelineError("it is cut short")
    magic, length, digest = _HEADER.unpack_from(content)
    body = memoryview(content)[_HEADER.size :]
    if magic != _MAGIC:
        ours = "it was written by another version" if magic.startswith(_KIND) else "it is no checkpoint of ours"
        raise PacelineError(ours)
    if len(body) != length or hashlib.sha256(body).digest() != digest:
        raise PacelineError("it is damaged")
    try:
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise PacelineError(f"it holds what is neither a tensor nor a plain value: {error}") from error


def _newest(directory: pathlib.Path) -> Any:
    """The last whole one. Those before it are there for when it is not."""
    for half in directory.glob("step-*.partial"):
        # Of a job that was ended while it wrote.
        with contextlib.suppress(OSError):
            half.unlink()
    for _, path in _files(directory):
        try:
            return read(path)
        except (OSError, PacelineError) as error:
            _say(f"{path} is passed over: {error}")
    return None


def _files(directory: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """By step, the last first."""
    if not directory.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


class _Hashing:
    """Writes on, and knows what passed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.length = 0
        self.hash = hashlib.sha256()
        #: Why the first write that failed did.
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.length += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _say(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)
