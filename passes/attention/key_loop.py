"""One loop of attention: a block of keys for each block of queries at a time, until each has met each.

Queries and keys are in as many blocks, and all blocks of queries are worked on at once: in trip `r` block `j` of the
queries meets block `j + r` of the keys, round. For that the loop carries keys and values as [blocks, ...], and passes
them on by one block each trip. What is summed up for keys goes round with them, and is home after the last trip. So the
blocks are batching dims of every op in the loop, along which it can be split: then each device has a part of the
queries, and keys and values go from device to device in a ring.

Source    Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers for near-infinite context" (2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.graph.graph import REDUCE, WHILE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import captured_by, end_of, maker_of
from rhino.ir.program.identity import identity_of, make_constant
from rhino.ir.program.local_rules import shape_of
from rhino.passes.attention.block_views import Blocks, converted, reshaped, value_of
from rhino.passes.attention.online_form import Form, Loops
from rhino.passes.attention.row_factors import spread
from rhino.passes.attention.score_dims import NO_DIMS, At, OpDims
from rhino.passes.attention.score_region import Value
from rhino.passes.attention.trip_ops import TripOps, is_scalar_constant
from rhino.passes.pipeline.parted_ops import broadcast
from rhino.passes.pipeline.time_loop import corner

ADD: Final = "stablehlo.add"
_NARROW: Final = (ir.BF16Type, ir.F16Type)


@dataclass(eq=False)
class Carried:
    """What the loop carries: what it starts from, its argument in the body, what the next trip has, and the result.

    Until the loop is written all are the start.
    """

    start: Value
    argument: Value = field(init=False)
    next: Value = field(init=False)
    result: Value = field(init=False)

    def __post_init__(self) -> None:
        self.argument = self.next = self.result = self.start


@dataclass(eq=False)
class Sum:
    """What the loop sums up for an end of the region, by which op, and what is then to be done with it.

    What is given for each query and key is stored, trip by trip.
    """

    op: ir.Operation
    at: At
    by: str
    form: Form
    carried: Carried


@dataclass(eq=False)
class KeyLoop:
    """Writes loop `number` of `loops`, with queries and keys in so many blocks."""

    loops: Loops
    number: int
    blocks: Blocks
    carried: list[Carried] = field(default_factory=list)
    trips: Carried = field(init=False)

    def __post_init__(self) -> None:
        self.region = self.loops.region
        self.is_first = self.number == self.loops.first
        self.ends = [op for op in self.loops.ends[self.number] if list(op.results[0].uses)]
        self.trip = TripOps(self.loops, self.blocks, self.is_first)
        self.ops = self._needed()
        self.index_type = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))

    # What it reads

    def _needed(self) -> list[ir.Operation]:
        """Returns the ops that the ends of this loop depend on, and the ends, each behind what it reads."""
        found: dict[ir.Operation, None] = {}
        waiting = [(op, False) for op in reversed(self.ends)]
        while waiting:
            op, are_operands_in = waiting.pop()
            if are_operands_in:
                found[op] = None
            elif op not in found:
                waiting += [(op, True), *((made, False) for made in reversed(self._before(op)))]
        return list(found)

    def _before(self, op: ir.Operation) -> list[ir.Operation]:
        """Returns the ops inside that an op reads; what subtracts the largest numbers reads those of this trip."""
        found = [] if self.trip.is_one(op) else [maker_of(value) for value in op.operands if value in self.region.at]
        if any(map(self._is_largest, op.operands)):
            found.append(self.region.top)
        return [made for made in found if made is not None]

    def _is_largest(self, value: Value) -> bool:
        """Says whether a value is the largest numbers of the rows, which this loop keeps itself."""
        return self.is_first and self.loops.largest is not None and value == self.loops.largest

    def outside(self) -> list[tuple[Value, At]]:
        """Returns what the loop reads that is computed before it, with the dims of its queries and keys."""
        found: dict[tuple[Value, At], None] = {}
        for op in self.ops:
            if op.name == WHILE:
                body = op.regions[1].blocks[0]
                places = [self.region.at.get(argument, NO_DIMS) for argument in body.arguments]
                found.update(((value, at), None) for value, at in zip(op.operands, places, strict=True))
                found.update(((value, NO_DIMS), None) for value in captured_by(op))
                continue
            for value, at in zip(op.operands, self._operand_dims(op), strict=True):
                if not self.trip.is_one(op) and not self._is_largest(value):
                    found[value, at] = None
        if self.is_first:
            own = {result for op in self.loops.row_ops for result in op.results}
            for op in self.loops.row_ops:
                found.update(((value, self.loops.row_at[value]), None) for value in op.operands if value not in own)
            found.pop((self.region.top.results[0], self.region.dims[self.region.top].results[0]), None)
        return [(value, at) for value, at in found if value not in self.region.at and not is_scalar_constant(value)]

    def _operand_dims(self, op: ir.Operation) -> Sequence[At]:
        given = self.region.dims[op].operands
        return [*given, *[NO_DIMS] * (len(op.operands) - len(given))]

    # The loop

    def write(self) -> list[Sum]:
        """Writes the loop at the insertion point; returns what it sums up, with `carried.result`."""
        read = self.outside()
        self.trips = Carried(make_constant(self.index_type, 0))
        given = {key: Carried(self.blocks.in_blocks(*key)) for key in read}
        sums = [self._sum(op) for op in self.ends]
        self.carried = [self.trips, *given.values(), *(one.carried for one in sums)]
        types = [one.start.type for one in self.carried]
        loop = stablehlo.WhileOp(types, [one.start for one in self.carried])
        places = [loop.location] * len(types)
        condition, body = (ir.Block.create_at_start(region, types, places) for region in loop.regions)
        with ir.InsertionPoint(condition):
            less = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
            test = stablehlo.CompareOp(condition.arguments[0], make_constant(self.index_type, self.blocks.count), less)
            stablehlo.ReturnOp([test.result])
        with ir.InsertionPoint(body):
            for one, argument, result in zip(self.carried, body.arguments, loop.results, strict=True):
                one.argument, one.next, one.result = argument, argument, result
            self.trip.trip = self.trips.argument
            self._fill(given, {one.op: one for one in sums})
            stablehlo.ReturnOp([one.next for one in self.carried])
        return sums

    def _sum(self, op: ir.Operation) -> Sum:
        """Returns what is carried for an end of the region, as yet without a trip."""
        (at,) = self.region.dims[op].results
        result = op.results[0]
        joins = maker_of(end_of(op.regions[0].blocks[0]).operands[0]) if op.name == REDUCE else None
        by = ADD if joins is None else joins.name
        element = ir.RankedTensorType(result.type).element_type
        if by == ADD and not at.is_score and isinstance(element, _NARROW):
            element = ir.F32Type.get()
        lead = [self.blocks.count] * (2 if at.is_score else 1)
        kind = ir.RankedTensorType.get([*lead, *self.blocks.part_shape(result, at)], element)
        identity = identity_of(by, element)
        assert identity is not None, by
        return Sum(op, at, by, self.trip.form(op), Carried(make_constant(kind, identity)))

    def _fill(self, given: dict[tuple[Value, At], Carried], sums: dict[ir.Operation, Sum]) -> None:
        """Writes a trip."""
        for (value, at), one in given.items():
            self.trip.known[value, at] = self._row(one.argument) if at.is_score else one.argument
        for op in self.ops:
            with op.location:
                if op in sums:
                    self._add(op, sums[op])
                elif op.name == WHILE:
                    self.trip.rounds(op)
                else:
                    result = op.results[0]
                    self.trip.known[result, self.region.at[result]] = self.trip.written(op)
        for (_, at), one in given.items():
            if at.query is None and at.key is not None:
                one.next = self.blocks.passed_on(one.argument)
        for end in sums.values():
            if end.at.key is not None and not end.at.is_score:
                end.carried.next = self.blocks.passed_on(end.carried.next)
        self.trips.next = stablehlo.AddOp(self.trips.argument, make_constant(self.index_type, 1)).result

    def _row(self, value: Value) -> Value:
        """Returns the row of what is [trips, ...] that is of this trip."""
        _, *shape = shape_of(value)
        start = corner(self.trips.argument, len(shape) + 1)
        row = stablehlo.DynamicSliceOp(value, start, [1, *shape]).result
        return reshaped(row, shape)

    def _stored(self, value: Value, block: Value) -> Value:
        """Returns what is [trips, ...] with the row of this trip."""
        row = reshaped(block, [1, *shape_of(block)])
        return value_of(stablehlo.DynamicUpdateSliceOp(value, row, corner(self.trips.argument, len(shape_of(value)))))

    def _add(self, op: ir.Operation, one: Sum) -> None:
        """Adds what this trip gives to a sum; of the largest numbers of rows, what is subtracted follows."""
        before = one.carried.argument
        if one.at.is_score:
            one.carried.next = self._stored(before, self.trip.written(op))
            return
        with self._filled(op, one):
            block = self.trip.written(op, before.type)
        if one.form.largest is not None:
            before = self._rescaled(before, one.form.largest)
        one.carried.next = ir.Operation.create(one.by, [before.type], [before, block]).results[0]
        if self.is_first and op == self.region.top and self.loops.largest is not None:
            largest = one.carried.next
            old, new = self._largest(_where_none(before, largest, before)), self._largest(largest)
            subtracted = _where_none(new, make_constant(new.type, 0), new)  # of nothing but -inf that cannot be
            self.trip.known[self.loops.largest, self.loops.row_at[self.loops.largest]] = subtracted
            self.change = stablehlo.ExpOp(stablehlo.SubtractOp(old, subtracted).result).result

    @contextmanager
    def _filled(self, op: ir.Operation, one: Sum) -> Iterator[None]:
        """Lets an op that sums up see, behind the last of the queries and keys, nothing that changes the sum."""
        known = dict(self.trip.known)
        for value, at in zip(op.operands, self._operand_dims(op), strict=True):
            summed = [dim for dim, left in zip(at, one.at, strict=True) if dim is not None and left is None]
            for dim in summed if at.is_score else ():
                if self.blocks.padding(shape_of(value)[dim]):
                    self.trip.known[value, at] = self._where_there(value, at, dim, one.by)
        yield
        self.trip.known = known

    def _where_there(self, value: Value, at: At, dim: int, by: str) -> Value:
        """Returns a block of a value with what leaves a sum as it is behind the last of the queries, or the keys."""
        block = self.trip.value(value, at)
        kind = ir.RankedTensorType(block.type)
        positions = self.trip.positions(kind.shape[dim + 1], is_key=dim == at.key)
        less = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
        is_there = stablehlo.CompareOp(positions, make_constant(positions.type, shape_of(value)[dim]), less).result
        identity = identity_of(by, kind.element_type)
        assert identity is not None, by
        spread = broadcast(is_there, list(kind.shape), [0, dim + 1])
        return value_of(stablehlo.SelectOp(spread, block, make_constant(kind, identity)))

    def _largest(self, value: Value) -> Value:
        """Returns what is subtracted where these are the largest numbers of the rows."""
        known = dict(self.trip.known)
        self.trip.known[self.region.top.results[0], self.region.dims[self.region.top].results[0]] = value
        for op in self.loops.row_ops:
            result, at = op.results[0], self.loops.row_at
            dims = OpDims(tuple(at[operand] for operand in op.operands), (at[result],))
            self.trip.known[result, at[result]] = self.trip.parted(op, dims)
        assert self.loops.largest is not None
        found = self.trip.known[self.loops.largest, self.loops.row_at[self.loops.largest]]
        self.trip.known = known
        return found

    def _rescaled(self, value: Value, dims: Sequence[int | None]) -> Value:
        """Returns a sum with exponentials of what was subtracted before, for what is subtracted now."""
        shape = list(shape_of(value))
        change = spread(self.change, shape, [0, *(None if dim is None else dim + 1 for dim in dims)])
        return value_of(stablehlo.MulOp(value, converted(change, ir.RankedTensorType(value.type).element_type)))


def _where_none(value: Value, none: Value, other: Value) -> Value:
    """Returns `none` where a value is minus infinity, as the largest number of a row is before any, else `other`."""
    least = make_constant(value.type, float("-inf"))
    equal = ir.Attribute.parse("#stablehlo<comparison_direction EQ>")
    return value_of(stablehlo.SelectOp(stablehlo.CompareOp(value, least, equal).result, none, other))
