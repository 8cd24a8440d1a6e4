"""The process group that PyTorch's collectives run on: what PyTorch asks about it, how it begins and ends,
and the collectives of whole tensors. Those of one block for each rank are in :mod:`paceline.torch.blocks`.

Collectives are matched by their number within the group, so ranks that call different collectives, or the
same one with different shapes, are told so instead of hanging.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline import world
from paceline._native import Handle, PacelineError, Worker
from paceline.torch import arguments, profiling, rendezvous, sparse, staging, steps, tensors, versions
from paceline.torch.blocks import BlockCollectives
from paceline.torch.matching import Matching
from paceline.torch.point_to_point import PointToPoint
from paceline.torch.profiling import Recording
from paceline.torch.work import Work

#: Works that are kept for C++: so many of each group, of so many bytes at most.
RECENT = 256
SMALL = 4096


#: What goes on where workers come and go.
REMEDY = (
    "PyTorch's process groups, DDP's among them, keep the workers they began with. Train with "
    "paceline.DistributedOptimizer, which follows, and pl.elastic(model=model, optimizer=optimizer, loader=loader); or start the "
    "job again, at its new size, from a checkpoint (paceline run --checkpoint)"
)
#: Why a group cannot go on.
RESIZED = f"workers came to the job or left it, and {REMEDY}"


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Make the group that PyTorch asks for: ``options`` say who is in it and how to meet."""
    versions.check(torch.__version__)
    if backend_options is not None:
        raise PacelineError("the paceline backend has no backend options; leave `pg_options` out")
    return ProcessGroup(options)


class ProcessGroup(BlockCollectives, dist.ProcessGroup):
    """A group of ranks on this process's worker."""

    def __init__(self, options: Any) -> None:
        rank, size, timeout = options.group_rank, options.group_size, options.timeout
        super().__init__(rank, size)
        self._rank, self._size, self._timeout = rank, size, timeout
        self._group_name, self._group_description = str(options.group_id), "undefined"
        globally = list(options.global_ranks_in_group) or list(range(size))
        whole_job = globally == list(range(size)) and _world_size() == size

        def join() -> Worker:
            if world.joins_by_environment() and whole_job:
                return Worker.from_environment(timeout=rendezvous.join_seconds(timeout))
            return rendezvous.join_store(options.store, rank, size, timeout, str(options.group_id))

        lasting = world.joins_by_environment() and whole_job
        self._membership: world.Membership | None = world.acquire(globally, join, lasting)
        self._worker = self._membership.worker
        if self._worker.outside:
            raise PacelineError(f"this worker came to a running job, and {REMEDY}")
        self._ranks = self._membership.places(globally)
        self._changes = self._membership.changes
        if whole_job:
            steps.count(self._worker)
        self._matching = Matching(self._membership, str(options.group_id))
        self._mail = PointToPoint(self)
        self._checked = False
        # PyTorch may hold a work in C++ alone and ask for its end later, as DDP does in `join()`. It would wait for
        # ever if the Python part, which knows the end, were gone with the last reference to it.
        self._recent: deque[Work] = deque(maxlen=RECENT)
        #: What was started and is still held by somebody: to be failed by :meth:`abort`.
        self._works: weakref.WeakSet[Work] = weakref.WeakSet()

    # What PyTorch asks about a group.

    def getBackendName(self) -> str:
        return "paceline"

    def name(self) -> str:
        return "paceline"

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_description = description

    def getGroupDesc(self) -> str:
        return self._group_description

    @property
    def _device_types(self) -> list[torch.device]:
        # While PyTorch is still making the group, devices would tell it that backends of its own serve
        # them, whose operations it can record.
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        cpu = [torch.device("cpu")]
        return [*cpu, torch.device("cuda")] if torch.cuda.is_available() else cpu

    def _get_backend(self, device: torch.device) -> _Face:
        return _Face(self)

    def set_timeout(self, timeout: timedelta) -> None:
        """From now on, waits are bounded by this."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        return None

    def shutdown(self) -> None:
        """Give the worker back; the last group leaves the job."""
        if self._membership is not None:
            membership, self._membership = self._membership, None
            world.release(membership)

    def abort(self) -> None:
        """Fail what is in flight on this rank, at once, and give the worker back."""
        for work in list(self._works):
            work.give_up("this process group was aborted")
        self.shutdown()

    # Collectives of whole tensors.

    def allreduce(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> Work:
        batch = arguments.listed(tensor_list)
        op = arguments.reduce_op(opts)
        if len(batch) == 1 and batch[0].is_sparse:
            return sparse.all_reduce(self, batch[0], op, opts)
        device = tensors.device_of(batch, "all_reduce")
        if tensors.is_bitwise(op):
            return self._all_reduce_bitwise(batch, op, opts)
        started, copies = [], []
        for tensor in batch:
            flat, dtype, reduce = tensors.contribution(tensor, "all_reduce", op)
            started += self._start("all_reduce", dtype, [flat.numel()], flat, flat, reduce=reduce)
            tensors.copy_back(tensor, flat, copies)
        return self._work(started, batch, "all_reduce", opts, copies, device, timeout)

    def allreduce_coalesced(self, tensor_list: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensor_list, opts)

    def broadcast(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> Work:
        batch = arguments.listed(tensor_list)
        root = arguments.root(opts)
        device = tensors.device_of(batch, "broadcast")
        started, copies = [], []
        for tensor in batch:
            flat, dtype = tensors.to_move(tensor)
            started += self._start("broadcast", dtype, [flat.numel()], flat, flat, root=root)
            if self._rank != root:
                tensors.copy_back(tensor, flat, copies)
        return self._work(started, batch, "broadcast", opts, copies, device, timeout)

    def reduce(self, tensor_list: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        batch = arguments.listed(tensor_list)
        root, op = arguments.root(opts), arguments.reduce_op(opts) if op is None else op
        device = tensors.device_of(batch, "reduce")
        if tensors.is_bitwise(op):
            return self._all_reduce_bitwise(batch, op, opts, root)
        started, copies = [], []
        for tensor in batch:
            flat, dtype, reduce = tensors.contribution(tensor, "reduce", op)
            into = flat if self._rank == root else None
            started += self._start("reduce", dtype, [flat.numel()], flat, into, root=root, reduce=reduce)
            if into is not None:
                tensors.copy_back(tensor, flat, copies)
        return self._work(started, batch, "reduce", opts, copies, device, timeout)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        token = torch.zeros(1, dtype=torch.uint8, device="cpu")
        started = self._start("barrier", "u8", [], token, token, reduce="max")
        return self._work(started, [], "barrier", opts, [], token.device, timeout)

    # From one rank to another.

    def send(self, tensor_list: Any, dst: int, tag: int = 0) -> Work:
        return self._mail.send(arguments.listed(tensor_list), dst, tag)

    def recv(self, tensor_list: Any, src: int, tag: int = 0) -> Work:
        return self._mail.receive(arguments.listed(tensor_list), src, tag)

    def recv_anysource(self, tensor_list: Any, tag: int = 0) -> Work:
        return self._mail.receive_from_any(arguments.listed(tensor_list), tag)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come."""
        given = self._timeout if timeout is None else timeout
        seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)
        self._mail.monitored_barrier(seconds, wait_all_ranks)

    # How collectives reach the engine.

    def _start(
        self,
        kind: str,
        dtype: str,
        counts: Sequence[int],
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        **rest: Any,
    ) -> list[Handle]:
        """Start one collective of flat tensors."""
        if self._membership is None:
            raise PacelineError(f"{kind}: this process group was destroyed")
        if not self._checked:
            self._check_alone()
        if self._membership.changes != self._changes:
            raise PacelineError(RESIZED)
        name = self._matching.next()
        return [staging.start(self._worker, self._ranks, name, kind, dtype, counts, send, receive, rest)]

    def _work(
        self,
        started: list[Handle],
        result: Any,
        name: str,
        opts: Any,
        copies: list[Callable[[], None]],
        device: torch.device,
        timeout: Any = None,
        inputs: Sequence[torch.Tensor] | None = None,
    ) -> Work:
        def finish() -> None:
            for copy in copies:
                copy()

        seconds = arguments.seconds(timeout or getattr(opts, "timeout", None), self._timeout)
        stream = staging.return_stream(device) if device.type == "cuda" else None
        recording = Recording(name, result if inputs is None else inputs) if profiling.enabled() else None
        work = Work(started, result, name, seconds, finish if copies else None, stream, recording=recording)
        self._works.add(work)
        if started and len(result) == 1 and _is_small(result[0]):
            self._recent.append(work)
        return work

    def _check_alone(self) -> None:
        """PyTorch lets one of our groups take the place of all backends that were asked for: say so."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        served = {part.split(":")[-1] for part in str(config).split(",") if part}
        if served - {"paceline", "undefined"}:
            raise PacelineError(
                f"the paceline backend serves all devices of a group; it cannot share one with others ({config}). "
                'Use "paceline" alone, or make a second group with `new_group(backend=...)`'
            )
        self._checked = True

    def _all_reduce_bitwise(self, batch: Any, op: Any, opts: Any, root: int | None = None) -> Work:
        """The engine has no bitwise reductions: gather everybody's tensor and combine here."""
        started, copies = [], []
        for tensor in batch:
            send, dtype = tensors.to_move(tensor)
            tensors.bitwise(op, tensor.detach().view(1, -1), "all_reduce")
            gathered = send.new_empty(send.numel() * self._size)
            started += self._start("all_gather", dtype, [send.numel()] * self._size, send, gathered)

            def combine(tensor: Any = tensor, gathered: Any = gathered) -> None:
                blocks = gathered.view(tensor.dtype).view(self._size, -1)
                tensor.copy_(tensors.bitwise(op, blocks, "all_reduce").view(tensor.shape))

            if root is None or root == self._rank:
                copies.append(combine)
        return self._work(started, batch, "all_reduce", opts, copies, batch[0].device)


class _Face:
    """What PyTorch looks for when it asks a group for its backend on a device."""

    supports_splitting = False
    supports_coalescing = False
    supports_tensor_alloc = False
    supports_time_estimate = False

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self.options = self

    @property
    def _timeout(self) -> timedelta:
        return self._group._timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    def name(self) -> str:
        return "paceline"


def _is_small(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.untyped_storage().nbytes() <= SMALL


def _world_size() -> int | None:
    return world._number("WORLD_SIZE")
