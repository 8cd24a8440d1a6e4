"""Collectives of one block for each rank: gathers, scatters, all-to-alls.

The engine takes blocks side by side in flat memory. PyTorch gives them as lists of tensors or in one tensor:
this file joins and splits them, and says which operation of the engine each collective becomes. How operations
are posted and what PyTorch holds of them is the group's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from paceline._native import Handle, PacelineError
from paceline.torch import arguments, tensors
from paceline.torch.work import Work


class BlockCollectives:
    """The part of a process group that this file is about."""

    _rank: int
    _size: int
    #: Posts one collective of flat tensors.
    _start: Callable[..., list[Handle]]
    #: What PyTorch holds of collectives that were started.
    _work: Callable[..., Work]

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        inputs = arguments.listed(inputs)
        nested = arguments.nested(outputs)
        device = tensors.device_of([*inputs, *chain(*nested)], "all_gather")
        started, copies = [], []
        for blocks, own in zip(arguments.paired(nested, inputs, "all_gather"), inputs):
            self._check_blocks(blocks, own, "all_gather")
            send, dtype = tensors.to_move(own)
            gathered = _like(send, sum(block.numel() for block in blocks), blocks[0])
            counts = [_units(block, send) for block in blocks]
            started += self._start("all_gather", dtype, counts, send, gathered)
            _scatter_back(blocks, gathered, copies)
        return self._work(started, outputs, "all_gather", opts, copies, device, timeout, inputs)

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
        device = tensors.device_of([*outputs, *inputs], "all_gather_into_tensor")
        for output, own in zip(arguments.paired(outputs, inputs, "all_gather_into_tensor"), inputs):
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
            tensors.copy_back(output, into, copies)
        return self._work(started, list(outputs), "all_gather_into_tensor", opts, copies, device, None, inputs)

    all_gather_single = _allgather_base
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        inputs, root = arguments.listed(inputs), arguments.root(opts)
        nested = arguments.nested(outputs)
        own = inputs[0]
        tensors.check(own, "gather")
        send, dtype = tensors.to_move(own)
        counts = [send.numel()] * self._size
        if self._rank != root:
            started = self._start("gather", dtype, counts, send, None, root=root)
            return self._work(started, [], "gather", opts, [], own.device, timeout, inputs)
        blocks = nested[0]
        self._check_blocks(blocks, own, "gather", equal=True)
        gathered = send.new_empty(sum(counts))
        started = self._start("gather", dtype, counts, send, gathered, root=root)
        copies: list[Callable[[], None]] = []
        _scatter_back(blocks, gathered, copies)
        return self._work(started, outputs, "gather", opts, copies, own.device, timeout, inputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        outputs, root = arguments.listed(outputs), arguments.root(opts)
        nested = arguments.nested(inputs)
        output = outputs[0]
        tensors.check(output, "scatter")
        into, dtype = tensors.to_move(output)
        send = None
        if self._rank == root:
            self._check_blocks(nested[0], output, "scatter", equal=True)
            send = torch.cat([tensors.to_move(block)[0] for block in nested[0]])
        started = self._start("scatter", dtype, [into.numel()] * self._size, send, into, root=root)
        copies: list[Callable[[], None]] = []
        tensors.copy_back(output, into, copies)
        return self._work(started, outputs, "scatter", opts, copies, output.device, timeout, [*chain(*nested)])

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, op: Any = None, timeout: Any = None
    ) -> Work:
        outputs = arguments.listed(outputs)
        nested = arguments.nested(inputs)
        op = arguments.reduce_op(opts) if op is None else op
        reduce = tensors.reduction(op, "reduce_scatter")
        device = tensors.device_of([*outputs, *chain(*nested)], "reduce_scatter")
        started, copies = [], []
        for output, blocks in zip(outputs, arguments.paired(nested, outputs, "reduce_scatter")):
            self._check_blocks(blocks, output, "reduce_scatter")
            flat = [tensors.contribution(block, "reduce_scatter", op)[0] for block in blocks]
            into, dtype = tensors.to_reduce(output, "reduce_scatter", reduce)
            send, counts = torch.cat(flat), [block.numel() for block in flat]
            started += self._start("reduce_scatter", dtype, counts, send, into, reduce=reduce)
            tensors.copy_back(output, into, copies)
        return self._work(started, outputs, "reduce_scatter", opts, copies, device, timeout, [*chain(*nested)])

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        operation = "reduce_scatter_tensor"
        op = arguments.reduce_op(opts)
        device = tensors.device_of([*outputs, *inputs], operation)
        started, copies = [], []
        for output, own in zip(arguments.paired(outputs, inputs, operation), inputs):
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
            tensors.copy_back(output, into, copies)
        return self._work(started, list(outputs), operation, opts, copies, device, None, inputs)

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        device = tensors.device_of([*outputs, *inputs], "all_to_all")
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
        return self._work(started, outputs, "all_to_all", opts, copies, device, timeout, inputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        device = tensors.device_of([output, input], "all_to_all_single")
        tensors.same_type([output, input], "all_to_all_single")
        send, dtype = tensors.to_move(input)
        into, _ = tensors.to_move(output)
        if tensors.overlaps(send, into):
            send = send.clone()
        sends = self._split(input, send, input_split_sizes, "input")
        receives = self._split(output, into, output_split_sizes, "output")
        started = self._start("all_to_all", dtype, sends, send, into, receives=receives)
        copies: list[Callable[[], None]] = []
        tensors.copy_back(output, into, copies)
        return self._work(started, [output], "all_to_all_single", opts, copies, device, timeout, [input])

    all_to_all_single = alltoall_base

    def _check_blocks(
        self, blocks: Sequence[torch.Tensor], own: torch.Tensor, operation: str, equal: bool = False
    ) -> None:
        if len(blocks) != self._size:
            raise PacelineError(f"{operation}: {len(blocks)} tensors for {self._size} ranks; give one for each")
        tensors.device_of([own, *blocks], operation)
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


def _units(block: torch.Tensor, unit: torch.Tensor) -> int:
    """Elements of ``block`` counted in elements of ``unit``, which may be its bytes."""
    return block.numel() * block.element_size() // unit.element_size()


def _like(unit: torch.Tensor, elements: int, block: torch.Tensor) -> torch.Tensor:
    return unit.new_empty(elements * block.element_size() // unit.element_size())


def _scatter_back(
    blocks: Sequence[torch.Tensor], gathered: torch.Tensor, copies: list[Callable[[], None]]
) -> None:
    start = 0
    for block in blocks:
        end = start + _units(block, gathered)
        part = gathered[start:end]
        if block.numel():
            copies.append(lambda block=block, part=part: tensors.assign(block, part))
        start = end
