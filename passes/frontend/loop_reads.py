"""What a loop carries only to read it: values that stay, and stacks of which each round reads its row.

Another loop can carry the same, and so compute what follows from it. And where such a value is spread from smaller
ones, as a mask from the positions of padding, the loop can carry those and spread them itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import SOURCES
from rhino.ir.program.trip_count import constant_of, step_of
from rhino.passes.frontend.loop_values import Value, copied, extended, fusible_chain, without

SLICE: Final = "stablehlo.dynamic_slice"


@dataclass(frozen=True, slots=True, eq=False)
class ReadOnly:
    """What a loop reads of a value from `start` on, which stays: all of it, or with `is_row` the row of each round."""

    start: Value
    is_row: bool

    def part(self, loop: ir.Operation, place: ir.Operation, zero: Value) -> Value:
        """Returns what another loop reads of it that carries it too, in the round of which `place` gives the number."""
        value = carried_as(loop, self.start)
        assert value is not None
        if not self.is_row:
            return value
        shape = [1, *shape_of(value)[1:]]
        with ir.InsertionPoint.after(place), loop.location:
            indices = [place.results[0], *[zero] * (len(shape) - 1)]
            row: Value = stablehlo.DynamicSliceOp(value, indices, ir.DenseI64ArrayAttr.get(shape)).result
        return row


def read_only_values(loop: ir.Operation) -> dict[Value, ReadOnly]:
    """Returns what a loop reads of values that stay, by the value that is read."""
    found = dict[Value, ReadOnly]()
    body = loop.regions[1].blocks[0]
    for start, argument, passed in zip(loop.operands, body.arguments, end_of(body).operands, strict=True):
        if passed != argument or not isinstance(argument.type, ir.RankedTensorType):
            continue
        found[argument] = ReadOnly(start, is_row=False)
        for use in argument.uses:
            op = use.owner.operation
            if op.name == SLICE and op.block == body and op.operands[0] == argument and _is_row(loop, op):
                found[op.results[0]] = ReadOnly(start, is_row=True)
    return found


def _is_row(loop: ir.Operation, op: ir.Operation) -> bool:
    shape, part = shape_of(op.operands[0]), shape_of(op.results[0])
    return list(part) == [1, *shape[1:]] and counts(loop, list(op.operands[1:]))


def carried_as(loop: ir.Operation, start: Value) -> Value | None:
    """Returns the argument of a loop's body that is a value from its start on and stays so; None if there is none."""
    body = loop.regions[1].blocks[0]
    carried = zip(loop.operands, body.arguments, end_of(body).operands, strict=True)
    return next((argument for one, argument, passed in carried if one == start and passed == argument), None)


def spread_in_loops(entry: func.FuncOp) -> None:
    """Makes loops compute in their bodies what they carry only to read, and cheap ops make of smaller values."""
    for loop in [op for op in walk(entry.operation) if op.name == WHILE]:
        given = {value: _spread(one.start) for value, one in read_only_values(loop).items() if not one.is_row}
        found = {ir.BlockArgument(value).arg_number: chain for value, chain in given.items() if chain}
        tested = loop.regions[0].blocks[0].arguments
        found = {number: chain for number, chain in found.items() if not list(tested[number].uses)}
        if found:
            _spread_in(loop, found)


def _spread_in(loop: ir.Operation, found: Mapping[int, Sequence[ir.Operation]]) -> None:
    """Computes in a loop by chains of ops what it carries as these numbers."""
    made = {result for chain in found.values() for op in chain for result in op.results}
    read = dict.fromkeys(value for chain in found.values() for op in chain for value in op.operands)
    smaller = [value for value in read if value not in made and not _is_constant(value)]
    num_carried = len(loop.operands)
    for number in found:
        loop.results[number].replace_all_uses_with(loop.operands[number])
    loop = extended(loop, smaller)
    body = loop.regions[1].blocks[0]
    known = dict(zip(smaller, list(body.arguments)[num_carried:], strict=True))
    start = ir.InsertionPoint.at_block_begin(body)
    for number, chain in found.items():
        value = body.arguments[number]
        value.replace_all_uses_with(copied(chain, start, known)[chain[-1].results[0]])
        end_of(body).operands[number] = value
    without(loop, found)


def _is_constant(value: Value) -> bool:
    made = maker_of(value)
    return made is not None and made.name in SOURCES


def _spread(value: Value) -> list[ir.Operation]:
    """Returns the ops, each before its readers, that make a value of smaller ones; none if it is not made so."""
    size = prod(shape_of(value))
    chain = fusible_chain(value, lambda one: prod(shape_of(one)) < size)
    smaller = dict.fromkeys(one for op in chain for one in op.operands if prod(shape_of(one)) < size)
    return chain if sum(map(num_bytes, smaller)) < num_bytes(value) else []


def counts(loop: ir.Operation, indices: list[Value]) -> bool:
    """Says whether the first index is a counter from 0 by steps of 1, and the others are 0."""
    first, *others = indices
    body = loop.regions[1].blocks[0]
    if not isinstance(first, ir.BlockArgument) or first.owner != body or any(constant_of(one) != 0 for one in others):
        return False
    return constant_of(loop.operands[first.arg_number]) == 0 and step_of(body, first.arg_number) == 1


def num_bytes(value: Value) -> int:
    """Returns the bytes of a value."""
    kind = ir.RankedTensorType(value.type)
    return prod(kind.shape) * element_bytes(str(kind.element_type))
