"""Kernels for GPUs changed for parts of their tensors: other strides in addresses, other numbers of programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rhino.ir.calls.index_forms import Form, Ints, strides_of
from rhino.ir.calls.known_values import Known
from rhino.ir.calls.machine import Access, Reading, UnreadableError
from rhino.ir.calls.mosaic_accesses import LOAD, STORE, descriptor_of
from rhino.ir.calls.triton_accesses import lanes_after
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.mosaic_kernels import Descriptor, MosaicKernel
from rhino.ir.mlir.reader import maker_of

_SAME: Final = (
    *(f"tt.{name}" for name in ("splat", "broadcast", "expand_dims", "trans", "reshape")),
    *(f"arith.{name}" for name in ("extsi", "extui", "index_cast", "index_castui")),
)
"""Ops whose result is their operand, in another form."""
Shapes = Sequence[tuple[int, ...]]
Strides = Sequence[tuple[int, int]]
"""How far neighbours lie apart in each dim of a tensor, before and after, the most first."""


def set_strides(reading: Reading, shapes: Shapes, made: Shapes) -> None:
    """Makes a Triton kernel address tensors that are `made` instead of those of `shapes`, elements by their indices.

    Raises UnreadableError where the addresses are not sums of indices times constants.
    """
    done = set[ir.Operation]()
    for access in reading.accesses:
        strides = _strides(shapes[access.root], made[access.root])
        pointer = maker_of(access.op.operands[0])
        if all(old == new for old, new in strides):
            continue
        if access.offset is None or pointer is None or pointer.name != "tt.addptr":
            raise UnreadableError
        if pointer not in done:
            pointer.operands[1] = _restrided(pointer.operands[1], strides, access.asked, reading.known)
            done.add(pointer)


def set_block_strides(kernel: MosaicKernel, reading: Reading, shapes: Shapes, made: Shapes) -> None:
    """Makes a Mosaic kernel copy blocks of tensors that are `made` instead of those of `shapes`, by their indices.

    Raises UnreadableError where the places of blocks are not sums of indices times constants.
    """
    for access in reading.accesses:
        strides = _strides(shapes[access.root], made[access.root])
        if all(old == new for old, new in strides):
            continue
        if access.op.name in (LOAD, STORE):
            _set_coordinates(access, kernel.descriptors[descriptor_of(access.op)], strides, reading)
        else:
            _set_row(access.op, strides)
    for descriptor in kernel.descriptors.values():
        shape, part = shapes[descriptor.root], made[descriptor.root]
        strides = _strides(shape, part)
        for number, (size, stride) in enumerate(zip(descriptor.sizes, descriptor.strides, strict=True)):
            _store(descriptor.stride_stores[number], _moved_one(stride, strides))
            _store(descriptor.size_stores[number], _part_size(size, stride, shape, part))


def _strides(shape: Sequence[int], made: Sequence[int]) -> Strides:
    both = zip(shape, strides_of(shape), strides_of(made), strict=True)
    return tuple((old, new) for size, old, new in both if size > 1)


def _set_coordinates(access: Access, descriptor: Descriptor, strides: Strides, reading: Reading) -> None:
    """Gives a copy of a block other coordinates: each counts what its dim of the descriptor is a stride of."""
    for number, (size, unit) in enumerate(zip(reversed(descriptor.sizes), reversed(descriptor.strides), strict=True)):
        value, part = access.op.operands[2 + number], _moved_one(unit, strides)
        inner = [(old // unit, new // part) for old, new in strides if old % unit == 0 and new % part == 0]
        inner = [both for both in inner if both[0] > 1] + [(1, 1)]
        form = reading.known[value].form
        if form is not None:
            access.op.operands[2 + number] = _restrided(value, inner, access.asked, reading.known)
        elif (_moved(np.arange(size), inner) != np.arange(size)).any():
            raise UnreadableError


def _set_row(op: ir.Operation, strides: Strides) -> None:
    """Gives a copy of neighbouring elements another place."""
    pointers = [value for value in op.operands if str(value.type) == "!llvm.ptr"]
    scaled = maker_of(_operand_of(_operand_of(pointers[0], "llvm.inttoptr", 0), "llvm.add", 1)) if pointers else None
    if scaled is None or scaled.name != "llvm.mul":
        raise UnreadableError
    memory = _operand_of(
        _operand_of(scaled.operands[0], "llvm.extractvalue", 0), "builtin.unrealized_conversion_cast", 0
    )
    view = maker_of(memory)
    if view is None or view.name != "memref.subview":
        raise UnreadableError
    units, _ = ir.MemRefType(view.operands[0].type).get_strides_and_offset()
    fixed, moving = list(ir.DenseI64ArrayAttr(view.attributes["static_offsets"])), iter(list(view.operands)[1:])
    write = _Writer(ir.InsertionPoint(scaled), scaled.operands[0].type)
    total = write.constant(0)
    for offset, unit in zip(fixed, units, strict=True):
        is_fixed = offset != ir.ShapedType.get_dynamic_stride_or_offset()
        index = write.constant(offset) if is_fixed else write.op("arith.index_cast", next(moving))
        total = write.op("arith.addi", total, write.op("arith.muli", index, write.constant(_moved_one(unit, strides))))
    scaled.operands[0] = total


def _operand_of(value: ir.Value[Any], name: str, number: int) -> ir.Value[Any]:
    op = maker_of(value)
    if op is None or op.name != name:
        raise UnreadableError
    found: ir.Value[Any] = op.operands[number]
    return found


def _part_size(size: int, stride: int, shape: Sequence[int], part: Sequence[int]) -> int:
    """Returns the size of a dim of a descriptor for a part of a tensor: where it reached the end, it does so there."""
    rest, last = (size - 1) * stride, 0
    for extent, made, old, new in zip(shape, part, strides_of(shape), strides_of(part), strict=True):
        index = rest // old if extent > 1 else 0
        rest -= index * old
        reaches = stride < old * extent and index + max(1, stride // old) == extent
        last += (index - (extent - made) * reaches) * new
    return last // _moved_one(stride, _strides(shape, part)) + 1


def _moved_one(number: int, strides: Strides) -> int:
    return int(_moved(np.array(number), strides))


def _store(op: ir.Operation, number: int) -> None:
    """Makes a store write a number."""
    op.operands[0] = _Writer(ir.InsertionPoint(op), op.operands[0].type).constant(number)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes arithmetic on integers of one type at one place."""

    here: ir.InsertionPoint
    kind: ir.Type

    def constant(self, number: int) -> ir.Value[Any]:
        """Returns a constant."""
        return self._written("arith.constant", [], {"value": ir.IntegerAttr.get(self.kind, number)})

    def op(self, name: str, *operands: ir.Value[Any]) -> ir.Value[Any]:
        """Returns the result of an op."""
        return self._written(name, list(operands), {})

    def _written(self, name: str, operands: list[ir.Value[Any]], attributes: dict[str, ir.Attribute]) -> ir.Value[Any]:
        location = ir.Location.unknown(self.kind.context)
        made = ir.Operation.create(name, [self.kind], operands, attributes, loc=location, ip=self.here)
        found: ir.Value[Any] = made.results[0]
        return found


def _restrided(
    value: ir.Value[Any], strides: Strides, facts: Sequence[Form], known: Mapping[ir.Value[Any], Known]
) -> ir.Value[Any]:
    """Returns the value that is the sum of the same indices times their new strides, where `facts` are at most 0."""
    form, op = known[value].form, maker_of(value)
    form = form.within(facts) if form is not None else None
    if form is None or op is None:
        raise UnreadableError
    wanted = _wanted(form, strides)
    if wanted.is_same(form):
        return value
    if op.name in _SAME:
        lanes = lanes_after(op)
        if lanes is None:
            raise UnreadableError
        back = {after: before for before, after in lanes.items()}
        return _with_operands(op, {0: _restrided(op.operands[0], strides, [one.renamed(back) for one in facts], known)})
    if op.name == "arith.addi":
        return _with_operands(op, {at: _restrided(one, strides, facts, known) for at, one in enumerate(op.operands)})
    if op.name != "arith.muli":
        raise UnreadableError
    number = next((n for n in (1, 0) if _constant_in(known[op.operands[n]])), None)
    factor = _constant_in(known[op.operands[number]]) if number is not None else 0
    if number is None or factor < 0:
        raise UnreadableError
    for old, new in strides:
        if factor * new % old == 0 and form.times(new).is_same(wanted.times(old)):
            return _with_operands(op, {number: _scaled(op.operands[number], factor * new // old)})
    inner = [(old // factor, new // factor) for old, new in strides if old % factor == 0 and new % factor == 0]
    return _with_operands(op, {1 - number: _restrided(op.operands[1 - number], inner, facts, known)})


def _wanted(form: Form, strides: Strides) -> Form:
    """Returns the sum of the indices times their new strides, of a form that is one with the old ones."""
    if form.low < 0:
        raise UnreadableError
    low = int(_moved(np.array(form.low), strides))
    return Form.of(low, {variable: _moved(table, strides) for variable, table in form.tables.items()})


def _moved(values: Ints, strides: Strides) -> Ints:
    made = np.zeros_like(values)
    for old, new in strides:
        made, values = made + values // old * new, values % old
    if values.any():
        raise UnreadableError
    return made


def _constant_in(known: Known) -> int:
    """Returns the constant that a value is, 0 where it is none."""
    return known.form.low if known.form is not None and not known.form.tables else 0


def _with_operands(op: ir.Operation, values: Mapping[int, ir.Value[Any]]) -> ir.Value[Any]:
    """Returns the result of an op that has other operands: of the op itself where nobody else reads it."""
    changed = {number: value for number, value in values.items() if op.operands[number] != value}
    if changed:
        op = _own(op)
    for number, value in changed.items():
        op.operands[number] = value
    found: ir.Value[Any] = op.results[0]
    return found


def _own(op: ir.Operation) -> ir.Operation:
    """Returns an op, a copy where its result is read more than once."""
    return op.clone(ip=ir.InsertionPoint(op)).operation if len(list(op.results[0].uses)) > 1 else op


def _scaled(value: ir.Value[Any], constant: int) -> ir.Value[Any]:
    """Returns a value like this one, a constant, that is another constant everywhere."""
    op = maker_of(value)
    if op is not None and op.name in _SAME:
        return _with_operands(op, {0: _scaled(op.operands[0], constant)})
    if op is None or op.name != "arith.constant":
        raise UnreadableError
    op = _own(op)
    with op.context:
        if isinstance(value.type, ir.RankedTensorType):
            element = ir.IntegerAttr.get(ir.RankedTensorType(value.type).element_type, constant)
            op.attributes["value"] = ir.DenseElementsAttr.get_splat(value.type, element)
        else:
            op.attributes["value"] = ir.IntegerAttr.get(value.type, constant)
    found: ir.Value[Any] = op.results[0]
    return found


def renumber_programs(ops: Iterable[ir.Operation], split: Sequence[tuple[int, int, int]], bound: int) -> None:
    """Gives the `bound` programs of a part of the grid the numbers that they have in the whole, which `ops` ask for.

    `split` has each digit of the numbers that is split, the lowest first: what the number is divided by for it, how
    many values it has, and in how many parts. Up to the first of these the numbers are the same; whenever a digit above
    a split one goes on, the values are left out that are of other parts.
    """
    steps, shrunk = list[tuple[int, int]](), 1
    for unit, count, parts in split:
        shrunk *= parts
        above = unit * count // shrunk  # after so many programs of the part
        if above < bound:
            steps.append((above, unit * (count - count // parts)))
    for op in ops if steps else ():
        number: ir.Value[Any] = op.results[0]
        uses = [(use.owner.operation, use.operand_number) for use in number.uses]
        write, made = _Writer(ir.InsertionPoint.after(op), number.type), number
        for divisor, gap in steps:
            times = write.op("arith.divui", number, write.constant(divisor))
            made = write.op("arith.addi", made, write.op("arith.muli", times, write.constant(gap)))
        for user, operand in uses:
            user.operands[operand] = made
