"""Ops that read blocks of other devices, in Shardy's conversion to local shapes.

The conversion (jaxlib 0.10.2) refuses such ops, or computes them as if blocks were wholes, and refuses every slice with
strides, whatever is split. So a call that says nothing of the op stands there meanwhile, and gets its local shapes.
Afterwards the op stands there again, between what brings each device the range that its block reads
(`rhino.strategies.cost.halo_exchange`) and, with the padding that its block has, its local result. Elements that are
outside of the dim read as what the op pads with.

A range of which every device has the same pieces is a concatenation of them. Otherwise each piece is shifted to where
it belongs and selected there: where it begins, and how much of it there is, each device looks up in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.channels import channel, last_channel
from rhino.ir.mlir.reader import walk
from rhino.ir.program.identity import is_constant, make_constant
from rhino.ir.program.local_rules import (
    CONCATENATE,
    CONVOLUTION,
    PAD,
    REDUCE_WINDOW,
    SLICE,
    numbers,
    paddings,
    rank_of,
    shape_of,
)
from rhino.strategies.cost.halo_exchange import Exchange, Permute

_CALL: Final = "rhino.halo"
_PADS: Final = ("edge_padding_low", "edge_padding_high")
Value = ir.Value[Any]


@dataclass(frozen=True, slots=True)
class HaloOp:
    """An op in a module of its own, the name of the call in its place, and the exchanges that it runs after."""

    call: str
    module: ir.Module
    exchanges: tuple[Exchange, ...]


def is_strided(op: ir.Operation) -> bool:
    """Says whether an op is a slice with strides."""
    return op.name == SLICE and any(stride != 1 for stride in numbers(op, "strides", 0, 1))


def set_halo_op_aside(op: ir.Operation, number: int, exchanges: tuple[Exchange, ...]) -> tuple[HaloOp, ir.Operation]:
    """Puts a call in the place of an op that reads blocks of other devices; returns the op, and the call."""
    aside = HaloOp(f"{_CALL}.{number}", ir.Module.create(op.location), exchanges)
    with ir.InsertionPoint(aside.module.body), op.location:
        function = func.FuncOp(aside.call, ([value.type for value in op.operands], []))
        block = function.add_entry_block()
    copy = op.clone(ip=ir.InsertionPoint(block))
    for position, argument in enumerate(block.arguments):
        copy.operands[position] = argument
    with ir.InsertionPoint(op), op.location:
        call: ir.Operation = stablehlo.CustomCallOp(
            [result.type for result in op.results], list(op.operands), call_target_name=aside.call
        ).operation
    for before, after in zip(op.results, call.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()
    return aside, call


def put_halo_ops_back(module: ir.Operation, asides: Sequence[HaloOp], sizes: tuple[int, ...]) -> None:
    """Puts ops on local shapes where their calls stand, on a mesh of `sizes`; what they read is brought before."""
    if not asides:
        return
    calls = {
        ir.StringAttr(op.attributes["call_target_name"]).value: op
        for op in walk(module)
        if op.name == "stablehlo.custom_call"
    }
    next_channel = last_channel(module) + 1
    for aside in asides:
        call = calls[aside.call]
        (op,) = (view.operation for view in aside.module.body.operations[0].regions[0].blocks[0].operations)
        with ir.InsertionPoint(call), call.location:
            writer = _Writer(call, op, sizes, next_channel)
            results = writer.run(aside.exchanges)
        next_channel = writer.next_channel
        for before, after in zip(call.results, results, strict=True):
            before.replace_all_uses_with(after)
        call.erase()


@dataclass(eq=False)
class _Writer:
    """Writes one op on local shapes, at the insertion point. `op` is the op as it was, `call` what stands for it."""

    call: ir.Operation
    op: ir.Operation
    sizes: tuple[int, ...]
    next_channel: int

    def run(self, exchanges: Sequence[Exchange]) -> list[Value]:
        operands = list(self.call.operands)
        for one in exchanges:
            operands[one.halo.operand] = self.exchanged(one, operands[one.halo.operand])
        if self.op.name == CONCATENATE:
            return [self.concatenated(exchanges, operands)]
        made = self.local_op(exchanges, operands)
        if _is_nothing(made):
            made.erase()
            return operands[:1]
        results: list[Value] = list(made.results)
        for one in exchanges:
            if one.halo.joins:
                results = [self.joined_before(one, result) for result in results]
        return results

    # The op

    def local_op(self, exchanges: Sequence[Exchange], operands: Sequence[Value]) -> ir.Operation:
        """Writes the op on what was exchanged."""
        made = self.op.clone(ip=ir.InsertionPoint.current)
        for position, value in enumerate(operands):
            made.operands[position] = value
        for result, local in zip(made.results, self.call.results, strict=True):
            result.set_type(local.type)
        by_dim = {one.halo.dim: one for one in exchanges}
        match made.name:
            case _ if made.name == PAD:
                for side, name in enumerate(_PADS):
                    edges = numbers(made, name, rank_of(operands[0]), 0)
                    new = [
                        (by_dim[dim].range.low, by_dim[dim].range.high)[side] if dim in by_dim else edge
                        for dim, edge in enumerate(edges)
                    ]
                    made.attributes[name] = ir.DenseI64ArrayAttr.get(new)
            case _ if made.name == SLICE:
                _set_slice(made, by_dim)
            case _ if made.name == REDUCE_WINDOW:
                _set_padding(made, range(rank_of(operands[0])), by_dim)
                windows = numbers(made, "window_dimensions", rank_of(operands[0]), 1)
                for dim, one in by_dim.items():
                    windows[dim] = one.block if one.halo.joins else windows[dim]
                made.attributes["window_dimensions"] = ir.DenseI64ArrayAttr.get(windows)
            case _ if made.name == CONVOLUTION:
                dims = stablehlo.ConvDimensionNumbers(made.attributes["dimension_numbers"])
                _set_padding(made, list(dims.input_spatial_dimensions), by_dim)
        return made

    def concatenated(self, exchanges: Sequence[Exchange], operands: Sequence[Value]) -> Value:
        """Returns a device's block of a concatenation: of each position, what the operand has that it lies in."""
        block, last = operands[0], exchanges[0].halo.size
        for one in exchanges[1:]:
            width = one.range.width
            own = self.looked_up(one, [last - part * width for part in range(one.parts)])
            block = self.select(one.halo.dim, [("GE", own)], operands[one.halo.operand], block)
            last += one.halo.size
        return block

    def joined_before(self, one: Exchange, value: Value) -> Value:
        """Returns what a device's block has joined, joined with what those of the parts before come to.

        That is passed on one part first, and then joined over twice as many parts each time.
        """
        dim = one.halo.dim
        before: Value | None = None
        for permute in one.permutes:
            start = permute.pieces[0].start
            given = _cut(value, dim, start, 1) if before is None else before
            brought = self.sent(one, permute, given)
            if not self.fills_zero(one):  # what no device sends is zero
                targets = {piece.target for piece in permute.pieces}
                begins = [0 if part in targets else 1 for part in range(one.parts)]
                brought = self.between(one, begins, [one.block] * one.parts, brought, self.fill(one, brought.type))
            before = brought if before is None else self.join(one, brought, before)
        assert before is not None, "there is a part before the last"
        spread = _result(stablehlo.BroadcastInDimOp(value.type, before, range(rank_of(value))))
        return self.join(one, spread, value)

    def join(self, one: Exchange, first: Value, second: Value) -> Value:
        """Returns two tensors joined, element by element."""
        value: Value = ir.Operation.create(one.halo.joins, [first.type], [first, second]).results[0]
        return value

    # What it reads

    def exchanged(self, one: Exchange, value: Value) -> Value:
        """Returns the range of a dim that a device's block reads; `value` is its block of the dim."""
        if one.halo.joins or (one.is_aligned and one.range.first == 0 and one.range.width == one.block):
            return value
        return self.aligned(one, value) if one.is_aligned else self.assembled(one, value)

    def aligned(self, one: Exchange, value: Value) -> Value:
        """Returns a range of which every device has the same pieces, but for those beyond the borders."""
        dim, read = one.halo.dim, one.range
        by_distance = {permute.pieces[0].source - permute.pieces[0].target: permute for permute in one.permutes}
        blocks = []
        for distance in range(read.first // one.block, (read.first + read.width - 1) // one.block + 1):
            start = max(read.first - distance * one.block, 0)
            length = min(read.first + read.width - distance * one.block, one.block) - start
            if distance in by_distance:
                blocks.append(self.sent(one, by_distance[distance], _cut(value, dim, start, length)))
            else:
                blocks.append(self.fill(one, _resized(value, dim, length)))
        found = blocks[0] if len(blocks) == 1 else _concatenated(blocks, dim)
        firsts = [read.first + part * read.step for part in range(one.parts)]
        if not one.is_sent or (min(firsts) >= 0 and max(firsts) + read.width <= one.halo.size) or self.fills_zero(one):
            return found  # what no device sends is zero
        return self.only_inside(one, firsts, found)

    def only_inside(self, one: Exchange, firsts: Sequence[int], value: Value) -> Value:
        """Returns a range with what it pads with in place of what lies outside the dim."""
        begins, ends = [-at for at in firsts], [one.halo.size - at for at in firsts]
        return self.between(one, begins, ends, value, self.fill(one, value.type))

    def assembled(self, one: Exchange, value: Value) -> Value:
        """Returns a range whose pieces differ from device to device."""
        parts, width = range(one.parts), one.range.width
        read = [
            sum(piece.length for permute in one.permutes for piece in permute.pieces if piece.target == part)
            for part in parts
        ]
        is_inside = min(read) == width
        found = None if is_inside else self.fill(one, _resized(value, one.halo.dim, width))
        for permute in one.permutes:
            placed = self.placed(one, permute, value)
            pieces = {piece.target: piece for piece in permute.pieces}
            begins = [pieces[part].at if part in pieces else width for part in parts]
            ends = [pieces[part].at + pieces[part].length if part in pieces else width for part in parts]
            found = placed if found is None else self.between(one, begins, ends, placed, found)
        assert found is not None, "what is inside has pieces"
        return found

    def between(self, one: Exchange, begins: Sequence[int], ends: Sequence[int], on: Value, off: Value) -> Value:
        """Returns `on` from where the device's part begins until it ends along the dim of an exchange, else `off`."""
        bounds = []
        if max(begins) > 0:
            bounds.append(("GE", self.looked_up(one, begins)))
        if min(ends) < one.range.width:
            bounds.append(("LT", self.looked_up(one, ends)))
        return self.select(one.halo.dim, bounds, on, off) if bounds else on

    def placed(self, one: Exchange, permute: Permute, value: Value) -> Value:
        """Returns the piece that a permute brings, at its place in a range; what is around it is anything."""
        dim, width, length = one.halo.dim, one.range.width, permute.length
        sent = {piece.source: min(piece.start, one.block - length) for piece in permute.pieces}
        cut = self.cut_at(one, [sent.get(part, 0) for part in range(one.parts)], value, length)
        brought = self.sent(one, permute, cut)
        places = {piece.target: piece.at - (piece.start - sent[piece.source]) for piece in permute.pieces}
        at = [places.get(part, 0) for part in range(one.parts)]
        if length == width and not any(at):
            return brought
        before, behind = max(0, *at), max(0, *(width - place - length for place in at))
        padded = _padded(brought, dim, before, behind)
        return self.cut_at(one, [before - place for place in at], padded, width)

    def sent(self, one: Exchange, permute: Permute, value: Value) -> Value:
        """Returns what a device gets of others if each sends `value` as a permute says; zeros if it gets nothing."""
        if not permute.is_sent:
            return value
        pairs = [
            [self.device(one, piece.source, rest), self.device(one, piece.target, rest)]
            for rest in self.others(one)
            for piece in permute.pieces
        ]
        text = f"dense<{pairs}> : tensor<{len(pairs)}x2xi64>"
        made = stablehlo.CollectivePermuteOp(value, ir.Attribute.parse(text), channel_handle=channel(self.next_channel))
        self.next_channel += 1
        return _result(made)

    def fill(self, one: Exchange, kind: ir.Type) -> Value:
        """Returns a tensor of what an op pads with."""
        scalar = self.padding(one)
        if scalar is None:
            return make_constant(kind, 0)
        return _result(stablehlo.BroadcastInDimOp(kind, scalar, []))

    def padding(self, one: Exchange) -> Value | None:
        """Returns the scalar that an op pads with; None for zero."""
        if self.op.name == PAD:
            scalar: Value = self.call.operands[1]
            return scalar
        if self.op.name == REDUCE_WINDOW:
            start: Value = self.call.operands[len(self.call.operands) // 2 + one.halo.operand]
            return start
        return None

    def fills_zero(self, one: Exchange) -> bool:
        """Says whether an op is known to pad with zeros."""
        scalar = self.padding(one)
        return scalar is None or is_constant(scalar, 0)

    # Devices

    def others(self, one: Exchange) -> list[tuple[int, ...]]:
        """Returns the coordinates along the axes that are not of an exchange: it is made in each such group alike."""
        return list(product(*(range(1 if axis in one.axes else size) for axis, size in enumerate(self.sizes))))

    def device(self, one: Exchange, part: int, rest: Sequence[int]) -> int:
        """Returns the device of a group that has a part: parts go along the axes of an exchange, inner ones first."""
        at = list(rest)
        for axis in reversed(one.axes):
            part, at[axis] = divmod(part, self.sizes[axis])
        number = 0
        for coordinate, size in zip(at, self.sizes, strict=True):
            number = number * size + coordinate
        return number

    def looked_up(self, one: Exchange, by_part: Sequence[int]) -> Value:
        """Returns the number in `by_part` of the part that a device has, as a scalar of i64."""
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
        if len(set(by_part)) == 1:
            return make_constant(kind, by_part[0])
        by_device = {
            self.device(one, part, rest): number for rest in self.others(one) for part, number in enumerate(by_part)
        }
        row = [by_device[device] for device in range(len(by_device))]
        table = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{row}> : tensor<{len(row)}xi64>")).result
        device = stablehlo.ConvertOp(kind, stablehlo.PartitionIdOp().result).result
        return _result(stablehlo.ReshapeOp(kind, stablehlo.DynamicSliceOp(table, [device], [1]).result))

    def cut_at(self, one: Exchange, by_part: Sequence[int], value: Value, length: int) -> Value:
        """Returns `length` elements along the dim of an exchange, from where the device's part has them."""
        dim = one.halo.dim
        if len(set(by_part)) == 1:
            return _cut(value, dim, by_part[0], length)
        at = self.looked_up(one, by_part)
        zero = make_constant(at.type, 0)
        shape = shape_of(value)
        starts = [at if number == dim else zero for number in range(len(shape))]
        window = [length if number == dim else size for number, size in enumerate(shape)]
        return _result(stablehlo.DynamicSliceOp(value, starts, window))

    def select(self, dim: int, bounds: Sequence[tuple[str, Value]], on: Value, off: Value) -> Value:
        """Returns `on` where the position along `dim` keeps to all bounds, `off` elsewhere."""
        shape = shape_of(on)
        row = ir.RankedTensorType.get([shape[dim]], ir.IntegerType.get_signless(64))
        at = _result(stablehlo.IotaOp(row, 0))
        kept = [_compare(direction, at, bound) for direction, bound in bounds]
        is_on = kept[0] if len(kept) == 1 else _result(stablehlo.AndOp(*kept))
        mask = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(1))
        return _result(stablehlo.SelectOp(_result(stablehlo.BroadcastInDimOp(mask, is_on, [dim])), on, off))


def _is_nothing(op: ir.Operation) -> bool:
    """Says whether an op is a slice or a pad that gives its operand: what was exchanged is the result."""
    if op.name not in (PAD, SLICE) or op.operands[0].type != op.results[0].type:
        return False
    return not any(edge for name in _PADS for edge in numbers(op, name, 0, 0))


def _set_padding(op: ir.Operation, dims: Sequence[int], by_dim: dict[int, Exchange]) -> None:
    """Sets how an op with windows pads its dims, in that order: what is exchanged as its range says."""
    edges = [
        (by_dim[dim].range.low, by_dim[dim].range.high) if dim in by_dim else given
        for dim, given in zip(dims, paddings(op, len(dims)), strict=True)
    ]
    text = f"dense<{[list(pair) for pair in edges]}> : tensor<{len(edges)}x2xi64>"
    op.attributes["padding"] = ir.Attribute.parse(text)


def _set_slice(op: ir.Operation, by_dim: dict[int, Exchange]) -> None:
    """Sets what a slice takes of local shapes: of a dim that is exchanged, from its first element on."""
    count = shape_of(op.results[0])
    starts, strides = (numbers(op, name, len(count), 0) for name in ("start_indices", "strides"))
    starts = [0 if dim in by_dim else start for dim, start in enumerate(starts)]
    limits = [
        start + max(size - 1, 0) * stride + min(size, 1)
        for start, size, stride in zip(starts, count, strides, strict=True)
    ]
    for name, new in (("start_indices", starts), ("limit_indices", limits)):
        op.attributes[name] = ir.DenseI64ArrayAttr.get(new)


def _compare(direction: str, row: Value, scalar: Value) -> Value:
    """Compares each number of a row with a scalar."""
    other = stablehlo.BroadcastInDimOp(row.type, scalar, []).result
    return _result(stablehlo.CompareOp(row, other, stablehlo.ComparisonDirectionAttr.get(direction)))


def _result(op: Any) -> Value:  # noqa: ANN401 - the bindings do not say what an op class gives
    value: Value = op.result
    return value


def _cut(value: Value, dim: int, start: int, length: int) -> Value:
    shape = shape_of(value)
    if length == shape[dim]:
        return value
    starts = [start if number == dim else 0 for number in range(len(shape))]
    limits = [start + length if number == dim else size for number, size in enumerate(shape)]
    return _result(stablehlo.SliceOp(value, starts, limits, [1] * len(shape)))


def _padded(value: Value, dim: int, before: int, behind: int) -> Value:
    rank = rank_of(value)
    low, high = ([edge if number == dim else 0 for number in range(rank)] for edge in (before, behind))
    zero = make_constant(ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type), 0)
    return _result(stablehlo.PadOp(value, zero, low, high, [0] * rank))


def _concatenated(blocks: Sequence[Value], dim: int) -> Value:
    return _result(stablehlo.ConcatenateOp(list(blocks), dim))


def _resized(value: Value, dim: int, length: int) -> ir.Type:
    """Returns the type of a value with `length` elements along a dim."""
    shape = [length if number == dim else size for number, size in enumerate(shape_of(value))]
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
