"""One loop of attention: a block of keys for each block of queries at a time, until each has met each.

Queries and keys are in as many blocks, and all blocks of queries are worked on at once: in trip `r` block `j` of the
queries meets block `j + r` of the keys, round. For that the loop carries keys and values as [blocks, ...], and passes
them on by one block each trip. What is summed up for keys goes round with them, and is home after the last trip. So the
blocks are batching dims of every op in the loop, along which it can be split: then each device has a part of the
queries, and keys and values go from device to device in a ring.

Source    Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers for near-infinite context" (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import captured_by, end_of, maker_of
from rhino.ir.program.identity import identity_of, make_constant
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import SOURCES
from rhino.passes.attention.online_form import Factor, Form, Loops
from rhino.passes.attention.score_dims import At, OpDims
from rhino.passes.attention.score_region import CONSTANT, DOT, Value
from rhino.passes.pipeline.parted_ops import Operand, broadcast, for_parts

ADD: Final = "stablehlo.add"
NO_DIMS: Final = At()
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
    """What the loop sums up for an end of the region, by which op, and what is then to be done with it."""

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
    blocks: int
    known: dict[tuple[Value, At], Value] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    trips: Carried = field(init=False)

    def __post_init__(self) -> None:
        self.region = self.loops.region
        self.is_first = self.number == self.loops.first
        self.ends = [op for op in self.loops.ends[self.number] if list(op.results[0].uses)]
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
        found = [] if self._is_one(op) else [maker_of(value) for value in op.operands if value in self.region.at]
        if self.is_first and self.loops.largest in list(op.operands):
            found.append(self.region.top)
        return [made for made in found if made is not None]

    def _is_one(self, op: ir.Operation) -> bool:
        form = self._form(op)
        return form.is_one and form.largest is None

    def _form(self, op: ir.Operation) -> Form:
        return self.loops.forms.get(op.results[0], Form()) if self.is_first else Form()

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
                if not self._is_one(op) and not (self.is_first and value == self.loops.largest):
                    found[value, at] = None
        if self.is_first:
            own = {result for op in self.loops.row_ops for result in op.results}
            for op in self.loops.row_ops:
                found.update(((value, self.loops.row_at[value]), None) for value in op.operands if value not in own)
            found.pop((self.region.top.results[0], self.region.dims[self.region.top].results[0]), None)
        return [(value, at) for value, at in found if value not in self.region.at and not _is_scalar_constant(value)]

    def _operand_dims(self, op: ir.Operation) -> Sequence[At]:
        given = self.region.dims[op].operands
        return [*given, *[NO_DIMS] * (len(op.operands) - len(given))]

    # Blocks

    def part_shape(self, value: Value, at: At) -> list[int]:
        """Returns the shape of one block of a value."""
        shape = list(shape_of(value))
        for dim in at:
            if dim is not None:
                shape[dim] //= self.blocks
        return shape

    def in_blocks(self, value: Value, at: At) -> Value:
        """Returns a value that has queries or keys as [blocks, ...]; with both, as [trips, blocks, ...]."""
        dims = sorted(dim for dim in at if dim is not None)
        if not dims:
            return value
        shape: list[int] = []
        places: dict[int, int] = {}
        for dim, size in enumerate(self.part_shape(value, at)):
            if dim in dims:
                places[dim] = len(shape)
                shape.append(self.blocks)
            shape.append(size)
        lead = [places[dim] for dim in (at.query, at.key) if dim is not None]
        order = [*lead, *(dim for dim in range(len(shape)) if dim not in lead)]
        turned = _transposed(_reshaped(value, shape), order)
        return self._by_trip(turned) if at.is_score else turned

    def _by_trip(self, value: Value) -> Value:
        """Returns what is [queries, keys, ...] in blocks as [trips, queries, ...]: for each trip what meets in it."""
        blocks, rest = self.blocks, list(shape_of(value))[2:]
        kind = ir.RankedTensorType.get([blocks, blocks], ir.IntegerType.get_signless(32))
        index = self._round(stablehlo.AddOp(stablehlo.IotaOp(kind, 0).result, stablehlo.IotaOp(kind, 1).result).result)
        index = _reshaped(index, [blocks, blocks, 1])
        numbers = stablehlo.GatherDimensionNumbers.get(
            offset_dims=list(range(2, 2 + len(rest))),
            collapsed_slice_dims=[1],
            operand_batching_dims=[0],
            start_indices_batching_dims=[0],
            start_index_map=[1],
            index_vector_dim=2,
        )
        sizes = ir.DenseI64ArrayAttr.get([1, 1, *rest])
        found = stablehlo.GatherOp(value, index, numbers, sizes).result
        return _transposed(found, [1, 0, *range(2, 2 + len(rest))])

    def whole(self, value: Value, one: Sum) -> Value:
        """Returns a sum, [blocks, ...], in the shape of the end that it is for."""
        dim = one.at.query if one.at.query is not None else one.at.key
        if dim is None:
            return _joined(value, one.by)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape_of(value)))]
        return _reshaped(_transposed(value, order), list(shape_of(one.op.results[0])))

    def _round(self, index: Value) -> Value:
        """Returns numbers of blocks modulo how many there are."""
        return _result(stablehlo.RemOp(index, make_constant(index.type, self.blocks)))

    def passed_on(self, value: Value) -> Value:
        """Returns [blocks, ...] passed on by one: two shifts, of which devices know what to send one another."""
        rank = len(shape_of(value))
        kind = ir.RankedTensorType(value.type)
        zero = make_constant(ir.RankedTensorType.get([], kind.element_type), 0)
        rest, last = [0] * (rank - 1), self.blocks - 1
        ahead, home = (
            stablehlo.PadOp(value, zero, [low, *rest], [-low, *rest], [0] * rank).result for low in (-1, last)
        )
        is_boolean = isinstance(kind.element_type, ir.IntegerType) and kind.element_type.width == 1
        return _result((stablehlo.OrOp if is_boolean else stablehlo.AddOp)(ahead, home))

    # The loop

    def write(self) -> list[Sum]:
        """Writes the loop at the insertion point; returns what it sums up, with `carried.result`."""
        read = self.outside()
        self.trips = Carried(make_constant(self.index_type, 0))
        given = {key: Carried(self.in_blocks(*key)) for key in read}
        sums = [self._sum(op) for op in self.ends]
        self.carried = [self.trips, *given.values(), *(one.carried for one in sums)]
        types = [one.start.type for one in self.carried]
        loop = stablehlo.WhileOp(types, [one.start for one in self.carried])
        places = [loop.location] * len(types)
        condition, body = (ir.Block.create_at_start(region, types, places) for region in loop.regions)
        with ir.InsertionPoint(condition):
            less = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
            test = stablehlo.CompareOp(condition.arguments[0], make_constant(self.index_type, self.blocks), less)
            stablehlo.ReturnOp([test.result])
        with ir.InsertionPoint(body):
            for one, argument, result in zip(self.carried, body.arguments, loop.results, strict=True):
                one.argument, one.next, one.result = argument, argument, result
            self._fill(given, {one.op: one for one in sums})
            stablehlo.ReturnOp([one.next for one in self.carried])
        return sums

    def _sum(self, op: ir.Operation) -> Sum:
        """Returns what is carried for an end of the region, as yet without a trip."""
        (at,) = self.region.dims[op].results
        result = op.results[0]
        joins = None if op.name == DOT else maker_of(end_of(op.regions[0].blocks[0]).operands[0])
        by = ADD if joins is None else joins.name
        element = ir.RankedTensorType(result.type).element_type
        if by == ADD and isinstance(element, _NARROW):
            element = ir.F32Type.get()
        kind = ir.RankedTensorType.get([self.blocks, *self.part_shape(result, at)], element)
        identity = identity_of(by, element)
        assert identity is not None, by
        return Sum(op, at, by, self._form(op), Carried(make_constant(kind, identity)))

    def _fill(self, given: dict[tuple[Value, At], Carried], sums: dict[ir.Operation, Sum]) -> None:
        """Writes a trip."""
        for (value, at), one in given.items():
            self.known[value, at] = self._row(one.argument) if at.is_score else one.argument
        for op in self.ops:
            with op.location:
                if op in sums:
                    self._add(op, sums[op])
                elif op.name == WHILE:
                    self._rounds(op)
                else:
                    result = op.results[0]
                    self.known[result, self.region.at[result]] = self._written(op)
        for (_, at), one in given.items():
            if at.query is None and at.key is not None:
                one.next = self.passed_on(one.argument)
        for end in sums.values():
            if end.at.key is not None:
                end.carried.next = self.passed_on(end.carried.next)
        self.trips.next = stablehlo.AddOp(self.trips.argument, make_constant(self.index_type, 1)).result

    def _row(self, value: Value) -> Value:
        """Returns the row of what is [trips, ...] that is of this trip."""
        _, *shape = shape_of(value)
        zero = make_constant(self.index_type, 0)
        row = stablehlo.DynamicSliceOp(value, [self.trips.argument, *[zero] * len(shape)], [1, *shape]).result
        return _reshaped(row, shape)

    def _add(self, op: ir.Operation, one: Sum) -> None:
        """Adds what this trip gives to a sum; of the largest numbers of rows, what is subtracted follows."""
        before = one.carried.argument
        block = self._written(op, before.type)
        if one.form.largest is not None:
            before = self._rescaled(before, one.form.largest)
        one.carried.next = ir.Operation.create(one.by, [before.type], [before, block]).results[0]
        if self.is_first and op == self.region.top and self.loops.largest is not None:
            largest = one.carried.next
            old, new = self._largest(_where_none(before, largest, before)), self._largest(largest)
            subtracted = _where_none(new, make_constant(new.type, 0), new)  # of nothing but -inf that cannot be
            self.known[self.loops.largest, self.loops.row_at[self.loops.largest]] = subtracted
            self.change = stablehlo.ExpOp(stablehlo.SubtractOp(old, subtracted).result).result

    def _largest(self, value: Value) -> Value:
        """Returns what is subtracted where these are the largest numbers of the rows."""
        known = dict(self.known)
        self.known[self.region.top.results[0], self.region.dims[self.region.top].results[0]] = value
        for op in self.loops.row_ops:
            result, at = op.results[0], self.loops.row_at
            dims = OpDims(tuple(at[operand] for operand in op.operands), (at[result],))
            self.known[result, at[result]] = self._parted(op, dims)
        assert self.loops.largest is not None
        found = self.known[self.loops.largest, self.loops.row_at[self.loops.largest]]
        self.known = known
        return found

    def _rescaled(self, value: Value, dims: Sequence[int | None]) -> Value:
        """Returns a sum with exponentials of what was subtracted before, for what is subtracted now."""
        shape = list(shape_of(value))
        change = _spread(self.change, shape, [0, *(None if dim is None else dim + 1 for dim in dims)])
        return _result(stablehlo.MulOp(value, converted(change, ir.RankedTensorType(value.type).element_type)))

    # Ops

    def _written(self, op: ir.Operation, wide: ir.Type | None = None) -> Value:
        """Writes an op for the blocks of this trip, with a result in the element type of `wide`."""
        result, dims = op.results[0], self.region.dims[op]
        kind = ir.RankedTensorType(result.type)
        own = ir.RankedTensorType.get([self.blocks, *self.part_shape(result, dims.results[0])], kind.element_type)
        if self._is_one(op):
            return make_constant(own, 1)
        if op.name in SOURCES:
            return self._source(op, own)
        made = self._parted(op, dims)
        if wide is not None and wide != made.type:
            if op.name == DOT:
                made.set_type(wide)
            else:
                made = stablehlo.ConvertOp(wide, made).result
        return made

    def _parted(self, op: ir.Operation, dims: OpDims) -> Value:
        places = [*dims.operands, *[NO_DIMS] * (len(op.operands) - len(dims.operands))]
        operands = [
            Operand(self._known(value, at), at != NO_DIMS) for value, at in zip(op.operands, places, strict=True)
        ]
        shapes = [self.part_shape(op.results[0], dims.results[0])]
        made = for_parts(op, operands, shapes, self.blocks)
        assert made is not None, op.name
        return made[0]

    def _known(self, value: Value, at: At) -> Value:
        return value if _is_scalar_constant(value) else self.known[value, at]

    def _source(self, op: ir.Operation, kind: ir.RankedTensorType) -> Value:
        """Returns the blocks of a constant or an iota."""
        if op.name == CONSTANT:
            splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
            return _result(stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, splat)))
        at, dim = self.region.at[op.results[0]], ir.IntegerAttr(op.attributes["iota_dimension"]).value
        inside = _result(stablehlo.IotaOp(kind, dim + 1))
        if dim not in at:
            return inside
        row = ir.RankedTensorType.get([self.blocks], self.index_type.element_type)
        block = stablehlo.IotaOp(row, 0).result
        if dim == at.key:
            block = self._round(stablehlo.AddOp(block, broadcast(self.trips.argument, [self.blocks], [])).result)
        first = stablehlo.MulOp(block, make_constant(row, kind.shape[dim + 1])).result
        return _result(stablehlo.AddOp(inside, broadcast(converted(first, kind.element_type), list(kind.shape), [0])))

    def _rounds(self, loop: ir.Operation) -> None:
        """Writes a loop in which each element is computed by itself, for the blocks of this trip."""
        condition, body = (region.blocks[0] for region in loop.regions)
        places = [self.region.at.get(argument, NO_DIMS) for argument in body.arguments]
        starts = [self._known(value, at) for value, at in zip(loop.operands, places, strict=True)]
        new = stablehlo.WhileOp([start.type for start in starts], starts)
        blocks = [
            ir.Block.create_at_start(region, [start.type for start in starts], [loop.location] * len(starts))
            for region in new.regions
        ]
        for old, block in zip((condition, body), blocks, strict=True):
            with ir.InsertionPoint(block):
                known = {*self.known}
                self.known.update(
                    ((argument, at), own)
                    for argument, at, own in zip(old.arguments, places, block.arguments, strict=True)
                )
                self._copy(old)
                self.known = {key: value for key, value in self.known.items() if key in known}
        for result, at, own in zip(loop.results, places, new.results, strict=True):
            self.known[result, at] = own

    def _copy(self, block: ir.Block) -> None:
        """Writes the ops of a block of such a loop."""
        for view in block.operations:
            op = view.operation
            if any(result in self.region.at for result in op.results):
                self.known[op.results[0], self.region.at[op.results[0]]] = self._written(op)
                continue
            copy = op.clone()
            for number, operand in enumerate(copy.operands):
                at = self.region.at.get(operand, NO_DIMS)
                copy.operands[number] = self.known.get((operand, at), operand)
            self.known.update(((old, NO_DIMS), new) for old, new in zip(op.results, copy.results, strict=True))


def _is_scalar_constant(value: Value) -> bool:
    """Says whether a value is a constant scalar, which a loop need not carry to read it."""
    made = maker_of(value)
    return made is not None and made.name == CONSTANT and not shape_of(value)


def with_factor(value: Value, factor: Factor) -> Value:
    """Returns a value with a factor of its rows."""
    kind = ir.RankedTensorType(value.type)
    row = _spread(converted(factor.row, kind.element_type), list(kind.shape), factor.dims)
    return _result((stablehlo.DivOp if factor.divides else stablehlo.MulOp)(value, row))


def _spread(row: Value, shape: list[int], dims: Sequence[int | None]) -> Value:
    """Returns a row repeated to a shape, its dims at `dims`; those of one element are at None."""
    kept = [dim for dim in dims if dim is not None]
    sizes = [size for size, dim in zip(shape_of(row), dims, strict=True) if dim is not None]
    return broadcast(_reshaped(row, sizes), shape, kept)


def _joined(value: Value, by: str) -> Value:
    """Returns the rows of a tensor joined by an op."""
    kind = ir.RankedTensorType(value.type)
    scalar = ir.RankedTensorType.get([], kind.element_type)
    identity = identity_of(by, kind.element_type)
    assert identity is not None, by
    row = ir.RankedTensorType.get(list(kind.shape)[1:], kind.element_type)
    made = stablehlo.ReduceOp([row], [value], [make_constant(scalar, identity)], [0])
    block = ir.Block.create_at_start(made.regions[0], [scalar, scalar], [made.location] * 2)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([ir.Operation.create(by, [scalar], list(block.arguments)).results[0]])
    result: Value = made.results[0]
    return result


def _where_none(value: Value, none: Value, other: Value) -> Value:
    """Returns `none` where a value is minus infinity, as the largest number of a row is before any, else `other`."""
    least = make_constant(value.type, float("-inf"))
    equal = ir.Attribute.parse("#stablehlo<comparison_direction EQ>")
    return _result(stablehlo.SelectOp(stablehlo.CompareOp(value, least, equal).result, none, other))


def converted(value: Value, element: ir.Type) -> Value:
    """Returns a tensor with elements of a type, itself where it has them."""
    kind = ir.RankedTensorType(value.type)
    wanted = ir.RankedTensorType.get(kind.shape, element)
    return value if wanted == kind else stablehlo.ConvertOp(wanted, value).result


def _reshaped(value: Value, shape: Sequence[int]) -> Value:
    kind = ir.RankedTensorType(value.type)
    wanted = ir.RankedTensorType.get(list(shape), kind.element_type)
    return value if wanted == kind else stablehlo.ReshapeOp(wanted, value).result


def _transposed(value: Value, order: Sequence[int]) -> Value:
    return value if list(order) == sorted(order) else stablehlo.TransposeOp(value, list(order)).result


def _result(op: Any) -> Value:  # noqa: ANN401 - the bindings do not say what an op class gives
    value: Value = op.result
    return value
