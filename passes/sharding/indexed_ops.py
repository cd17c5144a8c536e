"""Gathers, scatters and dynamic slices in Shardy's conversion to local shapes.

The conversion needs them changed before, and some of its results are put right after.

Shardy (jaxlib 0.10.2) addresses a tensor that is split along an indexed dim by `index - offset of the block`:

- for indices narrower than i64 it makes constants whose bytes do not match their type, and unsigned ones wrap where an
  index lies before the block. So the indices are converted to i64 before.
- a scatter's window may cover an indexed dim; the window's block then covers the block of the dim, and its index has to
  stay: XLA drops a window unless all of it lies inside. The offset that was subtracted is taken out after.

XLA folds `dynamic_slice(dynamic_slice(x, a), b)` to one slice at `a + b`, and forgets that each is clamped
(AlgebraicSimplifier; test/unit/passes/sharding/test_indexed_ops.py says when it no longer does). What cuts a block is
such a slice, and a gather or scatter of one window becomes one:

- slices, updates and gathers get indices that are in range: clamped as their ops would clamp them.
- what lies outside the block is out of range for a scatter, which drops it. So a barrier keeps it from being folded
  with what cuts its operand. Zeros need none: of one value everywhere, they are cut from nothing, and a scatter into
  zeros that is added to something is one kernel of XLA's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of
from rhino.ir.program.identity import is_constant, is_uniform, make_constant

Shape = tuple[int, ...]

INDEXED: Final = frozenset(
    f"stablehlo.{name}" for name in ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")
)
GATHER: Final = "stablehlo.gather"
SCATTER: Final = "stablehlo.scatter"
_SHIFTED: Final = "rhino.shifted"
"""On a scatter: the dims that its operand is split along, where the conversion subtracts the offset of a block from its
indices."""


def prepare(op: ir.Operation, split_dims: Sequence[int], annotate: Callable[[ir.Operation, int], None]) -> None:
    """Makes an op that indexes a tensor ready for the conversion; others are left alone.

    Its first operand is split along `split_dims`.

    `annotate` gives an op that makes another tensor for operand number n the sharding which that operand has.
    """
    match op.name:
        case "stablehlo.gather" | "stablehlo.scatter" if split_dims:
            _widen(op, annotate)
            if op.name == SCATTER and set(split_dims) & set(_scatter_numbers(op).scattered_dims_to_operand_dims):
                op.attributes[_SHIFTED] = ir.DenseI64ArrayAttr.get(split_dims)
        case "stablehlo.dynamic_slice":
            _clamp_starts(op, _shape(op.results[0]), 1)
        case "stablehlo.dynamic_update_slice":
            _clamp_starts(op, _shape(op.operands[1]), 2)


def put_right(op: ir.Operation) -> ir.Operation | None:
    """Puts right what the conversion has made of an op that indexes a tensor, in place; others are left alone.

    Returns an op that is not read any more: who holds other handles of it is to erase it.
    """
    unread = None
    match op.name:
        case "stablehlo.scatter" if _SHIFTED in op.attributes:
            split_dims = tuple(ir.DenseI64ArrayAttr(op.attributes[_SHIFTED]))
            del op.attributes[_SHIFTED]
            with ir.InsertionPoint(op), op.location:
                unread = _keep_covered(op, split_dims)
                _keep_apart(op)
        case "stablehlo.gather":
            _clamp_gather(op)
        case "stablehlo.dynamic_slice":  # the conversion changes its type alone
            op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(_shape(op.results[0]))
    return unread


def _widen(op: ir.Operation, annotate: Callable[[ir.Operation, int], None]) -> None:
    """Makes a gather or scatter read its indices as i64."""
    position = _indices_of(op)
    indices = op.operands[position]
    wide = ir.RankedTensorType.get(_shape(indices), ir.IntegerType.get_signless(64))
    if indices.type != wide:
        with ir.InsertionPoint(op), op.location:
            convert = stablehlo.ConvertOp(wide, indices)
        annotate(convert.operation, position)
        op.operands[position] = convert.result


def _keep_covered(op: ir.Operation, split_dims: Shape) -> ir.Operation | None:
    """Takes the offset out of the indices of dims that the window of a scatter covers.

    Returns the op that subtracted the offset, if there was one.
    """
    numbers, position = _scatter_numbers(op), _indices_of(op)
    addressed = list(numbers.scattered_dims_to_operand_dims)
    shifted = [int(dim in split_dims and dim in numbers.inserted_window_dims) for dim in addressed]
    if shifted == [int(dim in split_dims) for dim in addressed]:
        return None
    subtract = maker_of(op.operands[position])
    assert subtract is not None
    assert subtract.name == "stablehlo.subtract", "the conversion subtracts an offset"
    index, offset = subtract.operands
    op.operands[position] = index
    if any(shifted):
        kept = stablehlo.MulOp(offset, _by_component(index.type, numbers.index_vector_dim, shifted)).result
        op.operands[position] = stablehlo.SubtractOp(index, kept).result
    return subtract


def _keep_apart(op: ir.Operation) -> None:
    """Puts a barrier between what a scatter writes over and what makes it, unless that is one value everywhere."""
    written = [
        number
        for number, value in enumerate(list(op.operands)[: _indices_of(op)])
        if (made := maker_of(value)) is None or not is_uniform(made)
    ]
    if written:
        apart = stablehlo.OptimizationBarrierOp([op.operands[number] for number in written]).results
        for number, value in zip(written, apart, strict=True):
            op.operands[number] = value


def _clamp_gather(op: ir.Operation) -> None:
    """Clamps the indices of a gather whose windows are of more than one element."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    room = _room(op.operands[0], tuple(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"])))
    if any(room[dim] is not None for dim in numbers.start_index_map):
        shape, indices = _shape(op.operands[0]), op.operands[1]
        limits = [shape[dim] - 1 if (most := room[dim]) is None else most for dim in numbers.start_index_map]
        with ir.InsertionPoint(op), op.location:
            most = _by_component(indices.type, numbers.index_vector_dim, limits)
            op.operands[1] = stablehlo.ClampOp(make_constant(indices.type, 0), indices, most).result


def _clamp_starts(op: ir.Operation, window: Shape, first: int) -> None:
    """Clamps where a window of a slice or its update starts, unless it is of one element.

    Its start indices are the operands from number `first` on.
    """
    for dim, most in enumerate(_room(op.operands[0], window)):
        start = op.operands[first + dim]
        if most is None or is_constant(start, 0):
            continue
        with ir.InsertionPoint(op), op.location:
            zero = make_constant(start.type, 0)
            limit = make_constant(start.type, min(most, _largest(start.type)))
            op.operands[first + dim] = stablehlo.ClampOp(zero, start, limit).result if most else zero


def _room(value: ir.Value[Any], window: Shape) -> list[int | None]:
    """Returns the last index at which a window can start along each dim of a tensor.

    It is None where the window has one element, which nothing cuts.
    """
    return [size - part if part > 1 else None for size, part in zip(_shape(value), window, strict=True)]


def _by_component(kind: ir.Type, vector_dim: int, numbers: Sequence[int]) -> ir.Value[Any]:
    """Makes a tensor like indices of type `kind` that holds one number for each component."""
    numbers = [min(number, _largest(kind)) for number in numbers]
    if len(set(numbers)) == 1:
        return make_constant(kind, numbers[0])
    element = ir.RankedTensorType(kind).element_type
    row = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{list(numbers)}> : tensor<{len(numbers)}x{element}>")).result
    made: ir.Value[Any] = stablehlo.BroadcastInDimOp(kind, row, [vector_dim]).result
    return made


def _largest(kind: ir.Type) -> int:
    """Returns the largest number of an integer tensor type: no index goes beyond it."""
    element = ir.RankedTensorType(kind).element_type
    assert isinstance(element, ir.IntegerType)
    return int(2 ** (element.width - (0 if element.is_unsigned else 1)) - 1)


def _indices_of(op: ir.Operation) -> int:
    """Returns the number of the operand that holds the indices: behind all that a scatter writes over."""
    return len(op.operands) // 2


def _scatter_numbers(op: ir.Operation) -> Any:  # noqa: ANN401 - the bindings' own type
    return stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


def _shape(value: ir.Value[Any]) -> Shape:
    return tuple(ir.RankedTensorType(value.type).shape)
