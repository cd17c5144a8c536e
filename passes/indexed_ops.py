"""Gathers, scatters and dynamic slices by Shardy's conversion to local shapes: what it needs before, and what is put right after it.

Shardy (jaxlib 0.10.2) addresses a tensor that is split along an indexed dim by `index - offset of the block`. Three things are wrong then:

- for indices narrower than i64 it makes constants whose bytes do not match their type, and unsigned ones wrap where an index lies before
  the block. So the indices are converted to i64 before.
- a scatter's window may cover an indexed dim; the window's block then covers the block of the dim, and its index has to stay: XLA drops a
  window unless all of it lies inside. The offset that was subtracted is taken out after.
- what lies outside the block is out of range for a scatter, which drops it. XLA writes a scatter of one window as a slice, an update and a
  check, and folds `dynamic_slice(dynamic_slice(x, offset), index)` to one slice at `offset + index`, forgetting that the inner index is
  clamped (AlgebraicSimplifier; test/unit/test_indexed_ops.py says when it no longer does). So a barrier keeps the scatter's operand from
  being folded with what cuts it.

For the same reason a slice, update or gather that takes a dim whole starts at 0 there, where clamping puts it in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rhino.ir.identity import is_constant, make_constant
from rhino.ir.mlir import ir, stablehlo
from rhino.ir.reader import maker_of

Shape = tuple[int, ...]

GATHER: Final = "stablehlo.gather"
SCATTER: Final = "stablehlo.scatter"
_SLICE: Final = "stablehlo.dynamic_slice"
_UPDATE: Final = "stablehlo.dynamic_update_slice"
_SHIFTED: Final = "rhino.shifted"
"""On a scatter: the conversion subtracts the offset of a block from its indices."""


def prepare(op: ir.Operation, split_dims: Sequence[int], annotate: Callable[[ir.Operation, int], None]) -> None:
    """Makes a gather or scatter ready for the conversion; its operands are split along `split_dims`.

    `annotate` gives an op that makes another tensor for operand number n the sharding which that operand has.
    """
    if not split_dims:
        return
    position = _indices_of(op)
    indices = op.operands[position]
    wide = ir.RankedTensorType.get(_shape(indices), ir.IntegerType.get_signless(64))
    if indices.type != wide:
        with ir.InsertionPoint(op), op.location:
            convert = stablehlo.ConvertOp(wide, indices)
        annotate(convert.operation, position)
        op.operands[position] = convert.result
    if op.name == SCATTER and set(split_dims) & set(_scatter_numbers(op).scattered_dims_to_operand_dims):
        op.attributes[_SHIFTED] = ir.UnitAttr.get()


def put_right(op: ir.Operation) -> None:
    """Puts right what the conversion has made of an op that indexes a tensor, in place; others are left alone."""
    match op.name:
        case "stablehlo.scatter" if _SHIFTED in op.attributes:
            del op.attributes[_SHIFTED]
            with ir.InsertionPoint(op), op.location:
                _keep_covered(op)
                _keep_apart(op)
        case "stablehlo.gather":
            _start_gather(op)
        case "stablehlo.dynamic_slice":  # the conversion changes its type alone
            op.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(_shape(op.results[0]))
            _start_slice(op, _shape(op.results[0]), 1)
        case "stablehlo.dynamic_update_slice":
            _start_slice(op, _shape(op.operands[1]), 2)


def _keep_covered(op: ir.Operation) -> None:
    """Takes the offset out of the indices of dims that the window of a scatter covers."""
    numbers, position = _scatter_numbers(op), _indices_of(op)
    shifted = [int(dim in numbers.inserted_window_dims) for dim in numbers.scattered_dims_to_operand_dims]
    subtract = maker_of(op.operands[position])
    assert subtract is not None
    assert subtract.name == "stablehlo.subtract", "the conversion subtracts an offset"
    index, offset = subtract.operands
    if any(shifted) and not all(shifted):
        times = stablehlo.MulOp(offset, _by_component(index.type, numbers.index_vector_dim, shifted)).result
        op.operands[position] = stablehlo.SubtractOp(index, times).result
    elif not any(shifted):
        op.operands[position] = index


def _keep_apart(op: ir.Operation) -> None:
    """Puts a barrier between what a scatter writes over and what makes it."""
    written = list(op.operands)[: _indices_of(op)]
    for number, value in enumerate(stablehlo.OptimizationBarrierOp(written).results):
        op.operands[number] = value


def _start_gather(op: ir.Operation) -> None:
    """Makes the windows of a gather start at 0 along the indexed dims that they cover."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    covered = _covered(op.operands[0], tuple(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"])))
    kept = [int(dim not in covered) for dim in numbers.start_index_map]
    if not all(kept):
        with ir.InsertionPoint(op), op.location:
            indices = op.operands[1]
            op.operands[1] = stablehlo.MulOp(indices, _by_component(indices.type, numbers.index_vector_dim, kept)).result


def _start_slice(op: ir.Operation, taken: Shape, first: int) -> None:
    """Makes a slice or its update, of a window of shape `taken`, start at 0 along what it covers; its indices begin at operand `first`."""
    for dim in _covered(op.operands[0], taken):
        start = op.operands[first + dim]
        if not is_constant(start, 0):
            with ir.InsertionPoint(op), op.location:
                op.operands[first + dim] = make_constant(start.type, 0)


def _covered(value: ir.Value[Any], taken: Shape) -> list[int]:
    """Returns the dims, of more than one element, that a window of shape `taken` covers."""
    return [dim for dim, (size, part) in enumerate(zip(_shape(value), taken, strict=True)) if size == part > 1]


def _by_component(kind: ir.Type, vector_dim: int, numbers: Sequence[int]) -> ir.Value[Any]:
    """Makes a tensor like indices of type `kind` that holds one number for each component."""
    if len(set(numbers)) == 1:
        return make_constant(kind, numbers[0])
    element = ir.RankedTensorType(kind).element_type
    row = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{list(numbers)}> : tensor<{len(numbers)}x{element}>")).result
    made: ir.Value[Any] = stablehlo.BroadcastInDimOp(kind, row, [vector_dim]).result
    return made


def _indices_of(op: ir.Operation) -> int:
    """Returns the number of the operand that holds the indices: behind all that a scatter writes over."""
    return len(op.operands) // 2


def _scatter_numbers(op: ir.Operation) -> Any:  # noqa: ANN401 - the bindings' own type
    return stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


def _shape(value: ir.Value[Any]) -> Shape:
    return tuple(ir.RankedTensorType(value.type).shape)
