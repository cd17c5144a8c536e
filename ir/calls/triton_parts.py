"""A Triton kernel changed for parts of its tensors: other strides in its addresses, other numbers of its programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rhino.ir.calls.index_forms import Form, Ints, strides_of
from rhino.ir.calls.known_values import Known
from rhino.ir.calls.machine import Reading, UnreadableError
from rhino.ir.calls.triton_accesses import lanes_after
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import maker_of, walk
from rhino.ir.mlir.triton_kernels import TritonKernel

_SAME: Final = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "arith.extsi", "arith.extui")
"""Ops whose result is their operand, in another form."""
Strides = Sequence[tuple[int, int]]
"""How far neighbours lie apart in each dim of a tensor, before and after, the most first."""


def set_strides(reading: Reading, shapes: Sequence[tuple[int, ...]], made: Sequence[tuple[int, ...]]) -> None:
    """Makes a kernel address tensors that are `made` instead of those of `shapes`, each element at the same indices.

    Raises UnreadableError where the addresses are not sums of indices times constants.
    """
    done = set[ir.Operation]()
    for access in reading.accesses:
        shape = shapes[access.root]
        both = zip(shape, strides_of(shape), strides_of(made[access.root]), strict=True)
        strides = tuple((old, new) for size, old, new in both if size > 1)
        pointer = maker_of(access.op.operands[0])
        if all(old == new for old, new in strides):
            continue
        if access.offset is None or pointer is None or pointer.name != "tt.addptr":
            raise UnreadableError
        if pointer not in done:
            pointer.operands[1] = _restrided(pointer.operands[1], strides, access.asked, reading.known)
            done.add(pointer)


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


def renumber_programs(kernel: TritonKernel, axis: int, split: Sequence[tuple[int, int, int]], bound: int) -> None:
    """Gives the `bound` programs of a part of the grid along `axis` the numbers that they have in the whole.

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
    for op in [one for one in walk(kernel.body) if one.name == "tt.get_program_id"]:
        if steps and ir.IntegerAttr(op.attributes["axis"]).value == axis:
            _renumber(op, steps)


def _renumber(op: ir.Operation, steps: Sequence[tuple[int, int]]) -> None:
    number: ir.Value[Any] = op.results[0]
    uses = [(use.owner.operation, use.operand_number) for use in number.uses]
    made, here = number, ir.InsertionPoint.after(op)

    def add(name: str, *operands: ir.Value[Any], constant: int = 0) -> ir.Value[Any]:
        attributes: dict[str, ir.Attribute] = {} if operands else {"value": ir.IntegerAttr.get(number.type, constant)}
        found: ir.Value[Any] = ir.Operation.create(
            name, [number.type], list(operands), attributes, loc=op.location, ip=here
        ).results[0]
        return found

    for divisor, gap in steps:
        times = add("arith.divui", number, add("arith.constant", constant=divisor))
        made = add("arith.addi", made, add("arith.muli", times, add("arith.constant", constant=gap)))
    for user, operand in uses:
        user.operands[operand] = made
