"""Ops on what parts of a batch have of their own: arrays with a leading dim, the number of the part.

An op runs for all parts at once, as it would for each of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.numerics import FUSIBLE

Value = ir.Value[Any]
Shape = list[int]


@dataclass(frozen=True, slots=True)
class Operand:
    """What an op reads: of each part its own, as [parts, ...], or the same for all of them."""

    value: Value
    is_parted: bool


def for_parts(op: ir.Operation, operands: Sequence[Operand], shapes: Sequence[Shape], parts: int) -> list[Value] | None:
    """Writes an op that does for each of `parts` what `op` does, and returns its results, as [parts, ...].

    `shapes` are those of a part's results. The result is None where it is not known how such an op runs for parts.
    """
    rule = _RULES.get(op.name, _elementwise if op.name in FUSIBLE else None)
    attributes = rule(op, operands, parts) if rule else None
    if attributes is None:
        return None
    types = [
        ir.RankedTensorType.get([parts, *shape], ir.RankedTensorType(result.type).element_type)
        for shape, result in zip(shapes, op.results, strict=True)
    ]
    kept = {one: op.attributes[one] for one in op.attributes if not one.startswith(("sdy.", "rhino."))}
    values = _values(op, operands, shapes, parts)
    made = ir.Operation.create(op.name, types, values, {**kept, **attributes}, regions=len(op.regions))
    copy = op.clone() if op.regions else None
    for old, new in zip(copy.regions if copy else (), made.regions, strict=True):
        old.blocks[0].append_to(new)
    if copy:
        copy.erase()
    return list(made.results)


def _values(op: ir.Operation, operands: Sequence[Operand], shapes: Sequence[Shape], parts: int) -> list[Value]:
    """Returns what an op for parts reads: of all that may be of parts a row for each, but for what must be a scalar."""
    if op.name in _SCALARS:
        first = len(operands) // 2
        return [_parted(one, parts) for one in operands[:first]] + [one.value for one in operands[first:]]
    if op.name in _RULES:
        return [_parted(one, parts) for one in operands]
    return [_parted(one, parts, shapes[0]) for one in operands]


def _parted(operand: Operand, parts: int, shape: Shape | None = None) -> Value:
    """Returns an operand as [parts, ...], of a scalar as [parts, *shape] where a shape is given."""
    kind = ir.RankedTensorType(operand.value.type)
    own = list(kind.shape)[1 if operand.is_parted else 0 :]
    wanted = own if shape is None or own else shape
    if operand.is_parted and own == wanted:
        return operand.value
    dims = [0, *range(1, len(own) + 1)] if operand.is_parted else list(range(1, len(own) + 1))
    return broadcast(operand.value, [parts, *wanted], dims)


def broadcast(value: Value, shape: Shape, dims: Sequence[int]) -> Value:
    """Returns a tensor repeated to a shape, its dims at `dims`."""
    kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    made: Value = stablehlo.BroadcastInDimOp(kind, value, list(dims)).result
    return made


Attributes = Mapping[str, ir.Attribute]
_Rule = Callable[[ir.Operation, Sequence[Operand], int], Attributes | None]


def _numbers(numbers: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(numbers))


def _read(op: ir.Operation, name: str) -> Shape:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _elementwise(_op: ir.Operation, _operands: Sequence[Operand], _parts: int) -> Attributes:
    return {}


def _behind(name: str) -> _Rule:
    """Returns the rule of ops one of whose attributes lists dims."""
    return lambda op, _operands, _parts: {name: _numbers([dim + 1 for dim in _read(op, name)])}


def _led(name: str) -> _Rule:
    """Returns the rule of ops one of whose attributes lists, for each dim, a dim."""
    return lambda op, _operands, _parts: {name: _numbers([0, *(dim + 1 for dim in _read(op, name))])}


def _reduce(op: ir.Operation, operands: Sequence[Operand], parts: int) -> Attributes | None:
    return _behind("dimensions")(op, operands, parts) if _has_scalars(operands) else None


def _has_scalars(operands: Sequence[Operand]) -> bool:
    """Says whether the second half of the operands is the same for all parts."""
    return not any(one.is_parted for one in operands[len(operands) // 2 :])


def _pad(op: ir.Operation, operands: Sequence[Operand], _parts: int) -> Attributes | None:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return {name: _numbers([0, *_read(op, name)]) for name in names} if _has_scalars(operands) else None


def _slice(op: ir.Operation, _operands: Sequence[Operand], parts: int) -> Attributes:
    whole = {"start_indices": 0, "limit_indices": parts, "strides": 1}
    return {name: _numbers([first, *_read(op, name)]) for name, first in whole.items()}


def _concatenate(op: ir.Operation, _operands: Sequence[Operand], _parts: int) -> Attributes:
    kind = ir.IntegerType.get_signless(64)
    return {"dimension": ir.IntegerAttr.get(kind, ir.IntegerAttr(op.attributes["dimension"]).value + 1)}


def _dot_general(op: ir.Operation, _operands: Sequence[Operand], _parts: int) -> Attributes:
    old = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    dims = {
        name: [*lead, *(dim + 1 for dim in getattr(old, name))]
        for side in ("lhs", "rhs")
        for name, lead in ((f"{side}_batching_dimensions", [0]), (f"{side}_contracting_dimensions", []))
    }
    return {"dot_dimension_numbers": stablehlo.DotDimensionNumbers.get(**dims)}


_SCALARS: Final = frozenset({"stablehlo.reduce", "stablehlo.pad"})
"""Ops the second half of whose operands are scalars."""

_RULES: Final[Mapping[str, _Rule | None]] = {
    "stablehlo.broadcast_in_dim": _led("broadcast_dimensions"),
    "stablehlo.concatenate": _concatenate,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_slice": None,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reshape": _elementwise,
    "stablehlo.reverse": _behind("dimensions"),
    "stablehlo.slice": _slice,
    "stablehlo.transpose": _led("permutation"),
}
"""How attributes change, by op; of others all tensors have one shape, or are scalars."""
