"""Softmaxes over scores and what stands beside them, as the sinks of attention: computed part by part.

Where scores are concatenated with other columns before the largest number of each row is taken, nothing behind has the
scores alone. Here each op that computes element by element is done for each part of the columns, what takes sums or the
largest number of rows joins those of the parts, and a slice of one part reads that. What reads all columns in another
way, as a stack for the backward pass, reads what the parts gave, concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from rhino.ir.graph.graph import REDUCE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import FUSIBLE, SOURCES, reduction_of
from rhino.passes.attention.block_views import value_of
from rhino.passes.attention.score_region import (
    BROADCAST,
    CONCATENATE,
    RESHAPE,
    SHIFTING,
    Value,
    concatenated_dim,
    is_row_maximum,
    softmaxes_of,
)
from rhino.passes.pipeline.parted_ops import broadcast

_PAD: Final = "stablehlo.pad"
_SLICE: Final = "stablehlo.slice"
_ELEMENTWISE: Final = FUSIBLE - SHIFTING - SOURCES - {BROADCAST, RESHAPE, "stablehlo.transpose", "stablehlo.broadcast"}


def split_columns(block: ir.Block) -> None:
    """Computes part by part what rows are concatenated of whose largest numbers are taken."""
    concatenates = [view.operation for view in block.operations if view.operation.name == CONCATENATE]
    for op in reversed(concatenates):  # found before, as what splits one erases ops behind it
        if _has_maximum(op):
            _Columns(op).split()


def split_concatenated(block: ir.Block) -> None:
    """Computes part by part what is computed of softmaxes that are concatenated with other columns."""
    for op in {op: None for region in softmaxes_of(block) for op in region.concatenations()}:
        _Columns(op).split()


def _has_maximum(joined: ir.Operation) -> bool:
    """Says whether the largest number of each row is taken of what is computed of joined columns element by element."""
    waiting, seen = [joined], set[ir.Operation]()
    while waiting:
        for use in _uses(waiting.pop()):
            op = use.owner.operation
            if _is_maximum_along(op, concatenated_dim(joined)):
                return True
            if op.block == joined.block and len(op.results) == 1 and op not in seen and _is_elementwise(op):
                seen.add(op)
                waiting.append(op)
    return False


def _is_maximum_along(op: ir.Operation, dim: int) -> bool:
    return is_row_maximum(op) and _numbers(op, "dimensions") == [dim]


@dataclass(eq=False)
class _Columns:
    """What is computed of the parts that `joined` concatenates along `dim`, by the value that has them all."""

    joined: ir.Operation
    parts: dict[Value, list[Value]] = field(default_factory=dict)
    old: dict[ir.Operation, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dim = concatenated_dim(self.joined)
        self.sizes = [shape_of(value)[self.dim] for value in self.joined.operands]
        self.starts = [0, *accumulate(self.sizes)]

    def split(self) -> None:
        """Writes what the parts give in the place of what all of them gave."""
        block = self.joined.block
        self.parts[self.joined.results[0]] = list(self.joined.operands)
        ops = [view.operation for view in block.operations]
        for op in ops[ops.index(self.joined) + 1 :]:
            if any(value in self.parts for value in op.operands):
                with ir.InsertionPoint(op), op.location:
                    self._read(op)
        for op in self.old:
            self._join(op)
        for op in reversed([self.joined, *self.old]):
            if not any(list(result.uses) for result in op.results):
                op.erase()

    def _join(self, op: ir.Operation) -> None:
        """Concatenates what an op gives of parts for what reads all columns in another way."""
        (result,) = op.results
        readers = [use for use in result.uses if use.owner.operation not in self.old]
        if readers:
            with ir.InsertionPoint.after(op), op.location:
                joined = value_of(stablehlo.ConcatenateOp(self.parts[result], self.dim))
            for use in readers:
                use.owner.operands[use.operand_number] = joined

    def _read(self, op: ir.Operation) -> None:
        """Notes what an op gives of parts, or puts it in the place of its result."""
        if len(op.results) != 1:
            return
        (result,) = op.results
        if _is_elementwise(op):
            self.parts[result] = self._parted(op)
        elif op.name == REDUCE and reduction_of(op) is not None and self.dim in _numbers(op, "dimensions"):
            result.replace_all_uses_with(self._reduced(op))
        elif op.name == _SLICE and (part := self._sliced(op)) is not None:
            result.replace_all_uses_with(part)
        else:
            return
        self.old[op] = None

    def _parted(self, op: ir.Operation) -> list[Value]:
        """Returns what an op element by element gives for each part."""
        columns = zip(*map(self._columns, op.operands), strict=True)
        shapes = [self._shape(op.results[0], size) for size in self.sizes]
        return [_like(op, part, shape) for part, shape in zip(columns, shapes, strict=True)]

    def _shape(self, value: Value, size: int) -> list[int]:
        shape = list(shape_of(value))
        shape[self.dim] = size
        return shape

    def _columns(self, value: Value) -> list[Value]:
        """Returns the parts of what an op reads; a scalar is the same for each."""
        waiting = [value]
        while waiting:  # many ops may compute it: no recursion
            one = waiting[-1]
            made = maker_of(one)
            if one in self.parts or not shape_of(one):
                waiting.pop()
            elif made is None or not _is_elementwise(made):
                self.parts[one] = [self._cut(one, number) for number in range(len(self.sizes))]
            elif missing := [read for read in made.operands if shape_of(read) and read not in self.parts]:
                waiting += missing
            else:
                self.parts[one] = self._parted(made)
        return self.parts[value] if shape_of(value) else [value] * len(self.sizes)

    def _cut(self, value: Value, number: int) -> Value:
        """Returns a part of what was computed of all columns at once."""
        made, shape = maker_of(value), self._shape(value, self.sizes[number])
        if made is not None and made.name == BROADCAST:
            dims = _numbers(made, "broadcast_dimensions")
            if self.dim not in dims or shape_of(made.operands[0])[dims.index(self.dim)] == 1:
                return broadcast(made.operands[0], shape, dims)
        if made is not None and made.name == _PAD and (inside := self._padded_part(made)) is not None:
            return made.operands[0] if inside == number else broadcast(made.operands[1], shape, [])
        first, rank = [0] * len(shape), len(shape)
        first[self.dim] = self.starts[number]
        return value_of(stablehlo.SliceOp(value, first, [a + b for a, b in zip(first, shape, strict=True)], [1] * rank))

    def _padded_part(self, pad: ir.Operation) -> int | None:
        """Returns the part that a pad has its operand in, if that is one of them and all others are filled up."""
        low, inside = _numbers(pad, "edge_padding_low"), shape_of(pad.operands[0])
        for number, size in enumerate(self.sizes):
            is_there = low[self.dim] == self.starts[number] and inside[self.dim] == size
            if is_there and list(inside) == self._shape(pad.results[0], size):
                return number
        return None

    def _reduced(self, op: ir.Operation) -> Value:
        """Returns what the parts of rows are reduced to, joined."""
        by = maker_of(end_of(op.regions[0].blocks[0]).operands[0])
        assert by is not None, "a reduction by a known monoid has an op in its body"
        found: list[Value] = []
        for part in self._columns(op.operands[0]):
            made = op.clone()
            made.operands[0] = part
            found.append(made.results[0])
        total = found[0]
        for one in found[1:]:
            total = ir.Operation.create(by.name, [total.type], [total, one]).results[0]
        return total

    def _sliced(self, op: ir.Operation) -> Value | None:
        """Returns a slice of one part; None where it is of several."""
        first, limit, strides = (_numbers(op, name) for name in ("start_indices", "limit_indices", "strides"))
        ends = list(zip(self.starts, self.starts[1:], strict=False))
        if strides[self.dim] != 1 or (first[self.dim], limit[self.dim]) not in ends:
            return None
        number = ends.index((first[self.dim], limit[self.dim]))
        part = self._columns(op.operands[0])[number]
        first[self.dim], limit[self.dim] = 0, self.sizes[number]
        is_all = shape_of(part) == shape_of(op.results[0])
        return part if is_all else value_of(stablehlo.SliceOp(part, first, limit, strides))


def _is_elementwise(op: ir.Operation) -> bool:
    shape = shape_of(op.results[0])
    return (
        op.name in _ELEMENTWISE
        and len(op.operands) > 0
        and all(shape_of(value) in (shape, ()) for value in op.operands)
    )


def _like(op: ir.Operation, operands: Sequence[Value], shape: Sequence[int]) -> Value:
    """Returns what an op gives for other operands, in this shape."""
    kind = ir.RankedTensorType.get(list(shape), ir.RankedTensorType(op.results[0].type).element_type)
    kept = {name: op.attributes[name] for name in op.attributes if not name.startswith("sdy.")}
    made: Value = ir.Operation.create(op.name, [kind], list(operands), kept).results[0]
    return made


def _uses(op: ir.Operation) -> list[ir.OpOperand]:
    return list(op.results[0].uses)


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))
