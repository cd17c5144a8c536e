"""Keep the inputs of a scatter apart, for XLA's CPU backend (jaxlib 0.10.2) takes them for one where they are equal.

A scatter of several tensors becomes one kernel, which gets a value that is several of the inputs once, and copies it
once: one result is written over that copy, and every other over what its memory holds, or over that of another value.
With three such inputs compilation may end the process. XLA finds equal what is: a value read twice, zeros made in two
places, what it simplifies. A barrier is no help, for it is taken out before. So each input gets slabs behind it, in a
dim of its own, that hold another number for each input and that no index reaches; the results lose theirs.
`test/unit/runtime/executor/test_scatters.py` says when XLA no longer needs that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.identity import make_constant

_SCATTER: Final = "stablehlo.scatter"
_NUMBERS: Final = "scatter_dimension_numbers"


def separate_inputs(module: ir.Module) -> ir.Module:
    """Returns a copy of `module` in which no scatter has two equal inputs, or `module` where none can have."""
    if not any(map(_may_be_equal, walk(module.operation))):
        return module
    copy = copy_module(module)
    with copy.context:
        for scatter in [op for op in walk(copy.operation) if _may_be_equal(op)]:
            with ir.InsertionPoint(scatter), scatter.location:
                _separate(scatter)
    return copy


def _may_be_equal(op: ir.Operation) -> bool:
    """Says whether an op is a scatter with inputs of one type: what else they are, XLA may simplify away."""
    return op.name == _SCATTER and len({value.type for value in op.results}) < len(op.results)


def _separate(scatter: ir.Operation) -> None:
    inputs, read = list(scatter.operands)[: len(scatter.results)], list(scatter.operands)[len(scatter.results) :]
    num_slabs = (len(inputs) - 1).bit_length()
    apart = [_with_slabs(value, number, num_slabs) for number, value in enumerate(inputs)]
    # a sharding is of results without the dim; XLA finds one from what is read
    attributes = {name: scatter.attributes[name] for name in scatter.attributes if name != SHARDING}
    attributes[_NUMBERS] = _behind_a_dim(stablehlo.ScatterDimensionNumbers(attributes[_NUMBERS]))
    made = ir.Operation.create(_SCATTER, [value.type for value in apart], [*apart, *read], attributes, regions=1)
    scatter.regions[0].blocks[0].append_to(made.regions[0])
    for result, stacked in zip(scatter.results, made.results, strict=True):
        shape = ir.RankedTensorType(result.type).shape
        first = stablehlo.SliceOp(stacked, [0] * (len(shape) + 1), [1, *shape], [1] * (len(shape) + 1)).result
        result.replace_all_uses_with(stablehlo.ReshapeOp(result.type, first).result)
    scatter.erase()


def _with_slabs(value: ir.Value[Any], number: int, num_slabs: int) -> ir.Value[Any]:
    """Returns a tensor with slabs behind it in a dim before the others: the bits of a number, a slab full of each."""
    kind = ir.RankedTensorType(value.type)
    shape, scalar = kind.shape, ir.RankedTensorType.get([], kind.element_type)
    stacked: ir.Value[Any] = stablehlo.ReshapeOp(ir.RankedTensorType.get([1, *shape], kind.element_type), value).result
    none = [0] * len(shape)
    for slab in range(num_slabs):
        bit = make_constant(scalar, number >> slab & 1)
        stacked = stablehlo.PadOp(stacked, bit, [0, *none], [1, *none], [0, *none]).result
    return stacked


def _behind_a_dim(numbers: Any) -> ir.Attribute:  # noqa: ANN401 - the bindings' own type
    """Returns the dimension numbers of a scatter whose inputs have a dim more, before the others: index 0 there."""

    def moved(dims: Sequence[int]) -> list[int]:
        return [dim + 1 for dim in dims]

    attribute: ir.Attribute = stablehlo.ScatterDimensionNumbers.get(
        list(numbers.update_window_dims),
        [0, *moved(numbers.inserted_window_dims)],
        moved(numbers.input_batching_dims),
        list(numbers.scatter_indices_batching_dims),
        moved(numbers.scattered_dims_to_operand_dims),
        numbers.index_vector_dim,
    )
    return attribute
