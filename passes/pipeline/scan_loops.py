"""Loops over the rows of stacks, as JAX's `scan` writes them: what of a loop's values is a stack, and how it is used.

Iteration i of such a loop reads row i of some stacks, and writes row i of others; or row L-1-i, in a backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.program import CARRIED
from rhino.ir.program.trip_count import constant_of, counter_of, step_of, trip_count

Value = ir.Value[Any]

SLICE: Final = "stablehlo.dynamic_slice"
UPDATE: Final = "stablehlo.dynamic_update_slice"


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """A loop that runs `trips` times, once for each row of its stacks.

    `counter` is the number of the carried value that counts how often. `counters` has the start and the step of each
    carried number that goes from a constant by a constant, that one by 1. Of the stacks, by their numbers among
    the carried values, those in `read` are only read, and those in `written` get each of their rows once; before that
    a row may be read. `uses` are the places in the body of the ops that take or put rows. Rows go from the last to the
    first where the loop `is_reversed`.
    """

    loop: ir.Operation
    trips: int
    counter: int
    counters: Mapping[int, tuple[int, int]]
    read: tuple[int, ...]
    written: tuple[int, ...]
    uses: tuple[int, ...]
    is_reversed: bool


def is_annotated(loop: ir.Operation) -> bool:
    """Says whether a loop says how its values lie, which pieces of it would not."""
    return any(name in loop.attributes for name in (CARRIED, SHARDING))


def read_scan(loop: ir.Operation) -> Scan | None:
    """Returns the loop over rows that an op is, or None."""
    if loop.name != WHILE or MICRO_BATCHES in loop.attributes:
        return None
    trips, counter = trip_count(loop.opview), counter_of(loop.opview)
    if trips is None or counter is None or trips < 2:
        return None
    body = loop.regions[1].blocks[0]
    counters = {
        number: (start, step)
        for number, operand in enumerate(loop.operands)
        if (start := constant_of(operand)) is not None and (step := step_of(body, number)) is not None
    }
    if counters.get(counter, (0, 0))[1] != 1:
        return None
    rows = _Rows(body, trips, counters)
    places = {view.operation: place for place, view in enumerate(body.operations)}
    read, written, uses = list[int](), list[int](), list[ir.Operation]()
    for number in range(len(loop.operands)):
        found = None if number in counters else rows.uses(loop, number)
        if found:
            (written if found[-1].name == UPDATE else read).append(number)
            uses += found
    if len(rows.directions) != 1:
        return None
    return Scan(
        loop,
        trips,
        counter,
        counters,
        tuple(read),
        tuple(written),
        tuple(sorted(places[op] for op in uses)),
        rows.directions == {True: None},
    )


@dataclass(eq=False)
class _Rows:
    """The rows that a loop's body takes and puts in each of its `trips` iterations.

    `directions` says of the stacks that were found whether their rows go from the last to the first.
    """

    body: ir.Block
    trips: int
    counters: Mapping[int, tuple[int, int]]

    def __post_init__(self) -> None:
        self.directions: dict[bool, None] = {}
        self.known: dict[Value, Ints | None] = {}

    def uses(self, loop: ir.Operation, number: int) -> list[ir.Operation] | None:
        """Returns the ops that use a carried value as a stack, the one that writes it last; None if it is no stack."""
        value = self.body.arguments[number]
        kind = value.type
        if not isinstance(kind, ir.RankedTensorType) or not kind.shape or kind.shape[0] != self.trips:
            return None
        if list(loop.regions[0].blocks[0].arguments[number].uses):
            return None
        end = end_of(self.body)
        returned = end.operands[number]
        update = maker_of(returned)
        is_read = returned == value
        if not is_read and (
            update is None
            or update.name != UPDATE
            or update.operands[0] != value
            or not self.is_row(update, update.operands[1], 2)
            or [use.owner.operation for use in returned.uses] != [end]
        ):
            return None
        users = [use.owner.operation for use in value.uses]
        last = end if is_read or update is None else update
        slices = [op for op in users if op != last]
        if len(users) != len(slices) + 1 or not all(
            op.name == SLICE and op.operands[0] == value and self.is_row(op, op.results[0], 1) for op in slices
        ):
            return None
        found = slices if last == end else [*slices, last]
        for op in found:
            way = self.way(op.operands[2 if op.name == UPDATE else 1])
            assert way is not None, "what is a row has one"
            self.directions[way] = None
        return found

    def is_row(self, op: ir.Operation, part: Value, first: int) -> bool:
        """Says whether an op of the body itself takes or puts one row; its indices begin with operand `first`."""
        whole, row = (list(ir.RankedTensorType(value.type).shape) for value in (op.operands[0], part))
        return (
            op.block == self.body
            and row == [1, *whole[1:]]
            and all(self.is_zero(op.operands[place]) for place in range(first + 1, len(op.operands)))
            and self.way(op.operands[first]) is not None
        )

    def is_zero(self, value: Value) -> bool:
        """Says whether a whole number of the body is always 0."""
        found = self.values(value)
        return found is not None and not found.any()

    def way(self, index: Value) -> bool | None:
        """Says whether an index goes through all rows from the last to the first; None where it does neither."""
        found = self.values(index)
        if found is None:
            return None
        order = np.arange(self.trips)
        return False if np.array_equal(found, order) else True if np.array_equal(found, order[::-1]) else None

    def values(self, value: Value) -> Ints | None:
        """Returns what a whole number of the body is in each iteration, None where that is not known."""
        if value not in self.known:
            self.known[value] = None  # a body has no cycles: this is for what is not recognised
            self.known[value] = self.computed(value)
        return self.known[value]

    def computed(self, value: Value) -> Ints | None:
        if isinstance(value, ir.BlockArgument):
            if value.owner != self.body or value.arg_number not in self.counters:
                return None
            start, step = self.counters[value.arg_number]
            return start + step * np.arange(self.trips)
        if (constant := constant_of(value)) is not None:
            return np.full(self.trips, constant)
        op = maker_of(value)
        assert op is not None, "no argument"
        if op.name not in _INTEGER_OPS or not _is_small(value.type):
            return None
        operands = [self.values(one) for one in op.operands]
        known = [one for one in operands if one is not None]
        return _evaluated(op, known) if len(known) == len(operands) else None


_ARITHMETIC: Final = "add subtract multiply convert reshape compare select maximum minimum"
_INTEGER_OPS: Final = frozenset([f"stablehlo.{name}" for name in _ARITHMETIC.split()])


def _is_small(kind: ir.Type) -> bool:
    """Says whether a type is that of one whole number or boolean."""
    return (
        isinstance(kind, ir.RankedTensorType)
        and all(size == 1 for size in kind.shape)
        and isinstance(kind.element_type, ir.IntegerType)
    )


def _evaluated(op: ir.Operation, operands: Sequence[Ints]) -> Ints | None:
    match op.name.removeprefix("stablehlo."):
        case "add":
            return operands[0] + operands[1]
        case "subtract":
            return operands[0] - operands[1]
        case "multiply":
            return operands[0] * operands[1]
        case "maximum":
            return np.maximum(*operands)
        case "minimum":
            return np.minimum(*operands)
        case "select":
            return np.where(operands[0] != 0, operands[1], operands[2])
        case "compare":
            return _compared(op, *operands)
    return operands[0]


def _compared(op: ir.Operation, left: Ints, right: Ints) -> Ints | None:
    text = str(op.attributes["comparison_direction"])
    for name, found in (
        ("EQ", left == right),
        ("NE", left != right),
        ("LT", left < right),
        ("LE", left <= right),
        ("GT", left > right),
        ("GE", left >= right),
    ):
        if f" {name}>" in text:
            return found.astype(np.int64)
    return None
