"""The process group that PyTorch's collectives run on.

Each collective becomes operations of the engine on flat memory: this file says which, and what is done
with their results. Collectives are matched by their number within the group, so ranks that call different
collectives, or the same one with different shapes, are told so instead of hanging.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline import world
from paceline._native import PacelineError, Worker
from paceline.torch import rendezvous, sparse, staging, tensors
from paceline.torch.matching import Matching
from paceline.torch.point_to_point import PointToPoint
from paceline.torch.work import InFlight, Work

#: The oldest PyTorch whose process groups have the shape this file relies on, and the newest tried.
OLDEST = (2, 6)
NEWEST_TRIED = (2, 15)


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Make the group that PyTorch asks for: ``options`` say who is in it and how to meet."""
    check_version(torch.__version__)
    if backend_options is not None:
        raise PacelineError("the paceline backend has no backend options; leave `pg_options` out")
    return ProcessGroup(options)


def check_version(version: str) -> None:
    """Refuse a PyTorch that is too old, and warn of one that nobody has tried.

    >>> check_version("1.13.1")
    Traceback (most recent call last):
    paceline.PacelineError: PyTorch 1.13.1 is too old for the paceline backend; install 2.6 or newer
    """
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
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


class ProcessGroup(dist.ProcessGroup):
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
        self._ranks = self._membership.places(globally)
        self._matching = Matching(self._membership, str(options.group_id))
        self._mail = PointToPoint(self)
        self._checked = False
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

    # Collectives on one tensor each.

    def allreduce(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> Work:
        batch = _listed(tensor_list)
        op = _op(opts)
        if len(batch) == 1 and batch[0].is_sparse:
            return sparse.all_reduce(self, batch[0], op, opts)
        for tensor in batch:
            tensors.check(tensor, "all_reduce")
        device = tensors.same_device(batch, "all_reduce")
        if tensors.is_bitwise(op):
            return self._all_reduce_bitwise(batch, op, opts)
        started, copies = [], []
        for tensor in batch:
            flat, dtype, reduce = tensors.contribution(tensor, "all_reduce", op)
            started += self._start("all_reduce", dtype, [flat.numel()], flat, flat, reduce=reduce)
            _copy_back(tensor, flat, copies)
        return self._work(started, batch, "all_reduce", opts, copies, device, timeout)

    def allreduce_coalesced(self, tensor_list: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensor_list, opts)

    def broadcast(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> Work:
        batch = _listed(tensor_list)
        root = _root(opts)
        for tensor in batch:
            tensors.check(tensor, "broadcast")
        device = tensors.same_device(batch, "broadcast")
        started, copies = [], []
        for tensor in batch:
            flat, dtype = tensors.to_move(tensor)
            started += self._start("broadcast", dtype, [flat.numel()], flat, flat, root=root)
            if self._rank != root:
                _copy_back(tensor, flat, copies)
        return self._work(started, batch, "broadcast", opts, copies, device, timeout)

    def reduce(self, tensor_list: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        batch = _listed(tensor_list)
        root, op = _root(opts), _op(opts) if op is None else op
        for tensor in batch:
            tensors.check(tensor, "reduce")
        device = tensors.same_device(batch, "reduce")
        if tensors.is_bitwise(op):
            return self._all_reduce_bitwise(batch, op, opts, root)
        started, copies = [], []
        for tensor in batch:
            flat, dtype, reduce = tensors.contribution(tensor, "reduce", op)
            into = flat if self._rank == root else None
            started += self._start("reduce", dtype, [flat.numel()], flat, into, root=root, reduce=reduce)
            if into is not None:
                _copy_back(tensor, flat, copies)
        return self._work(started, batch, "reduce", opts, copies, device, timeout)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        token = torch.zeros(1, dtype=torch.uint8)
        started = self._start("barrier", "u8", [], token, token, reduce="max")
        return self._work(started, [], "barrier", opts, [], token.device, timeout)

    # Collectives of one block for each rank.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        inputs = _listed(inputs)
        nested = [outputs] if outputs and isinstance(outputs[0], torch.Tensor) else outputs
        started, copies, every = [], [], []
        for blocks, own in zip(_paired(nested, inputs, "all_gather"), inputs):
            self._check_blocks(blocks, own, "all_gather")
            send, dtype = tensors.to_move(own)
            gathered = _like(send, sum(block.numel() for block in blocks), blocks[0])
            counts = [_units(block, send) for block in blocks]
            started += self._start("all_gather", dtype, counts, send, gathered)
            _scatter_back(blocks, gathered, copies)
            every += [own, *blocks]
        device = tensors.same_device(every, "all_gather")
        return self._work(started, outputs, "all_gather", opts, copies, device, timeout)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        # PyTorch's own order here is one list for each rank.
        by_tensor = [list(blocks) for blocks in zip(*outputs)]
        work = self.allgather(by_tensor, list(inputs), opts)
        work._result = outputs
        return work

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        started, copies = [], []
        device = tensors.same_device([*outputs, *inputs], "all_gather_into_tensor")
        for output, own in zip(_paired(outputs, inputs, "all_gather_into_tensor"), inputs):
            for tensor in (output, own):
                tensors.check(tensor, "all_gather_into_tensor")
            tensors.same_type([output, own], "all_gather_into_tensor")
            if output.numel() != own.numel() * self._size:
                raise PacelineError(
                    f"all_gather_into_tensor: the output has {output.numel()} elements; {self._size} ranks "
                    f"of {own.numel()} give {own.numel() * self._size}"
                )
            send, dtype = tensors.to_move(own)
            into, _ = tensors.to_move(output)
            if tensors.overlaps(send, into):
                send = send.clone()
            started += self._start("all_gather", dtype, [send.numel()] * self._size, send, into)
            _copy_back(output, into, copies)
        return self._work(started, list(outputs), "all_gather_into_tensor", opts, copies, device)

    all_gather_single = _allgather_base
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        inputs, root = _listed(inputs), _root(opts)
        nested = [outputs] if outputs and isinstance(outputs[0], torch.Tensor) else outputs
        own = inputs[0]
        tensors.check(own, "gather")
        send, dtype = tensors.to_move(own)
        counts = [send.numel()] * self._size
        if self._rank != root:
            started = self._start("gather", dtype, counts, send, None, root=root)
            return self._work(started, [], "gather", opts, [], own.device, timeout)
        blocks = nested[0]
        self._check_blocks(blocks, own, "gather", equal=True)
        device = tensors.same_device([own, *blocks], "gather")
        gathered = send.new_empty(sum(counts))
        started = self._start("gather", dtype, counts, send, gathered, root=root)
        copies: list[Callable[[], None]] = []
        _scatter_back(blocks, gathered, copies)
        return self._work(started, outputs, "gather", opts, copies, device, timeout)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        outputs, root = _listed(outputs), _root(opts)
        nested = [inputs] if inputs and isinstance(inputs[0], torch.Tensor) else inputs
        output = outputs[0]
        tensors.check(output, "scatter")
        into, dtype = tensors.to_move(output)
        device, send = output.device, None
        if self._rank == root:
            self._check_blocks(nested[0], output, "scatter", equal=True)
            device = tensors.same_device([output, *nested[0]], "scatter")
            send = torch.cat([tensors.to_move(block)[0] for block in nested[0]])
        started = self._start("scatter", dtype, [into.numel()] * self._size, send, into, root=root)
        copies: list[Callable[[], None]] = []
        _copy_back(output, into, copies)
        return self._work(started, outputs, "scatter", opts, copies, device, timeout)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None, timeout: Any = None
    ) -> Work:
        outputs = _listed(outputs)
        nested = [inputs] if inputs and isinstance(inputs[0], torch.Tensor) else inputs
        op = _op(opts) if op is None else op
        reduce = tensors.reduction(op, "reduce_scatter")
        started, copies, every = [], [], []
        for output, blocks in zip(outputs, _paired(nested, outputs, "reduce_scatter")):
            self._check_blocks(blocks, output, "reduce_scatter")
            flat = [tensors.contribution(block, "reduce_scatter", op)[0] for block in blocks]
            into, dtype = tensors.to_reduce(output, "reduce_scatter", reduce)
            send, counts = torch.cat(flat), [block.numel() for block in flat]
            started += self._start("reduce_scatter", dtype, counts, send, into, reduce=reduce)
            _copy_back(output, into, copies)
            every += [output, *blocks]
        device = tensors.same_device(every, "reduce_scatter")
        return self._work(started, outputs, "reduce_scatter", opts, copies, device, timeout)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        operation = "reduce_scatter_tensor"
        op = _op(opts)
        device = tensors.same_device([*outputs, *inputs], operation)
        started, copies = [], []
        for output, own in zip(_paired(outputs, inputs, operation), inputs):
            for tensor in (output, own):
                tensors.check(tensor, operation)
            tensors.same_type([output, own], operation)
            if own.numel() != output.numel() * self._size:
                raise PacelineError(
                    f"{operation}: the input has {own.numel()} elements; {self._size} ranks of "
                    f"{output.numel()} take {output.numel() * self._size}"
                )
            send, dtype, reduce = tensors.contribution(own, operation, op)
            into, _ = tensors.to_reduce(output, operation, reduce)
            if tensors.overlaps(send, into):
                send = send.clone()
            counts = [into.numel()] * self._size
            started += self._start("reduce_scatter", dtype, counts, send, into, reduce=reduce)
            _copy_back(output, into, copies)
        return self._work(started, list(outputs), operation, opts, copies, device)

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        for tensor in (*outputs, *inputs):
            tensors.check(tensor, "all_to_all")
        device = tensors.same_device([*outputs, *inputs], "all_to_all")
        tensors.same_type([*outputs, *inputs], "all_to_all")
        send_blocks = [tensors.to_move(block)[0] for block in inputs]
        send, dtype = torch.cat(send_blocks), tensors.to_move(inputs[0])[1]
        receives = [_units(block, send) for block in outputs]
        into = send.new_empty(sum(receives))
        started = self._start(
            "all_to_all", dtype, [len(block) for block in send_blocks], send, into, receives=receives
        )
        copies: list[Callable[[], None]] = []
        _scatter_back(outputs, into, copies)
        return self._work(started, outputs, "all_to_all", opts, copies, device, timeout)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        for tensor in (output, input):
            tensors.check(tensor, "all_to_all_single")
        device = tensors.same_device([output, input], "all_to_all_single")
        tensors.same_type([output, input], "all_to_all_single")
        send, dtype = tensors.to_move(input)
        into, _ = tensors.to_move(output)
        if tensors.overlaps(send, into):
            send = send.clone()
        sends = self._split(input, send, input_split_sizes, "input")
        receives = self._split(output, into, output_split_sizes, "output")
        started = self._start("all_to_all", dtype, sends, send, into, receives=receives)
        copies: list[Callable[[], None]] = []
        _copy_back(output, into, copies)
        return self._work(started, [output], "all_to_all_single", opts, copies, device, timeout)

    all_to_all_single = alltoall_base

    # From one rank to another.

    def send(self, tensor_list: Any, dst: int, tag: int = 0) -> Work:
        return self._mail.send(_listed(tensor_list), dst, tag)

    def recv(self, tensor_list: Any, src: int, tag: int = 0) -> Work:
        return self._mail.receive(_listed(tensor_list), src, tag)

    def recv_anysource(self, tensor_list: Any, tag: int = 0) -> Work:
        return self._mail.receive_from_any(_listed(tensor_list), tag)

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
    ) -> list[InFlight]:
        """Post one collective of flat tensors. CUDA tensors are staged."""
        if self._membership is None:
            raise PacelineError(f"{kind}: this process group was destroyed")
        if not self._checked:
            self._check_alone()
        memory = send if send is not None else receive
        if memory is not None and memory.is_cuda:
            return staging.start(self._matching, self._ranks, kind, dtype, counts, send, receive, rest)
        name = self._matching.next()
        return [staging.post(self._worker, self._ranks, name, kind, dtype, counts, send, receive, rest)]

    def _work(
        self,
        started: list[InFlight],
        result: Any,
        name: str,
        opts: Any,
        copies: list[Callable[[], None]],
        device: torch.device,
        timeout: Any = None,
    ) -> Work:
        def finish() -> None:
            for copy in copies:
                copy()

        seconds = _seconds(timeout or getattr(opts, "timeout", None), self._timeout)
        stream = staging.return_stream(device) if device.type == "cuda" else None
        work = Work(started, result, name, seconds, finish if copies else None, stream)
        self._works.add(work)
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

    def _check_blocks(
        self, blocks: Sequence[torch.Tensor], own: torch.Tensor, operation: str, equal: bool = False
    ) -> None:
        if len(blocks) != self._size:
            raise PacelineError(f"{operation}: {len(blocks)} tensors for {self._size} ranks; give one for each")
        for tensor in (own, *blocks):
            tensors.check(tensor, operation)
        tensors.same_type([own, *blocks], operation)
        wrong = [block for block in blocks if equal and block.numel() != own.numel()]
        if wrong or blocks[self._rank].numel() != own.numel():
            found = (wrong or [blocks[self._rank]])[0].numel()
            raise PacelineError(
                f"{operation}: a tensor of the list has {found} elements, this rank's own {own.numel()}; "
                "they need the same size"
            )

    def _split(
        self, tensor: torch.Tensor, flat: torch.Tensor, sizes: Sequence[int], what: str
    ) -> list[int]:
        """The parts of a tensor along its first dimension, in units of ``flat``."""
        rows = tensor.shape[0] if tensor.dim() else 1
        sizes = list(sizes)
        if not sizes:
            if rows % self._size:
                raise PacelineError(
                    f"all_to_all_single: the {what} has {rows} rows, which {self._size} ranks cannot share "
                    "equally; give split sizes"
                )
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0:
            raise PacelineError(
                f"all_to_all_single: split sizes {sizes} do not fit the {what}: {rows} rows for {self._size} ranks"
            )
        width = flat.numel() // rows if rows else 0
        return [size * width for size in sizes]


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


def _listed(given: Any) -> list[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _paired(first: Sequence[Any], second: Sequence[Any], operation: str) -> Sequence[Any]:
    if len(first) != len(second):
        raise PacelineError(f"{operation}: {len(first)} lists for {len(second)} tensors; give as many of each")
    return first


def _op(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _root(opts: Any) -> int:
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def _seconds(given: Any, otherwise: timedelta) -> float:
    if isinstance(given, (int, float)) and given > 0:
        return float(given)
    if isinstance(given, timedelta) and given.total_seconds() > 0:
        return given.total_seconds()
    return otherwise.total_seconds()


def _units(block: torch.Tensor, unit: torch.Tensor) -> int:
    """Elements of ``block`` counted in elements of ``unit``, which may be its bytes."""
    return block.numel() * block.element_size() // unit.element_size()


def _like(unit: torch.Tensor, elements: int, block: torch.Tensor) -> torch.Tensor:
    return unit.new_empty(elements * block.element_size() // unit.element_size())


def _copy_back(tensor: torch.Tensor, flat: torch.Tensor, copies: list[Callable[[], None]]) -> None:
    """If ``flat`` is not the tensor's own memory, its contents must get there."""
    if tensor.numel() and flat.data_ptr() != tensor.data_ptr():
        copies.append(lambda: _assign(tensor, flat))


def _scatter_back(
    blocks: Sequence[torch.Tensor], gathered: torch.Tensor, copies: list[Callable[[], None]]
) -> None:
    start = 0
    for block in blocks:
        end = start + _units(block, gathered)
        part = gathered[start:end]
        if block.numel():
            copies.append(lambda block=block, part=part: _assign(block, part))
        start = end


def _assign(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))


def _world_size() -> int | None:
    return world._number("WORLD_SIZE")
