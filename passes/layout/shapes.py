"""Tensors in other shapes: what rewriting ops for views and for padding share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rhino.ir.graph.graph import OpClass
from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import ir
from rhino.ir.program.numerics import FUSIBLE

Shape = tuple[int, ...]

CONSTRAINT: Final = "sdy.sharding_constraint"
RESHAPE: Final = "stablehlo.reshape"
BARRIER: Final = "stablehlo.optimization_barrier"


def shape_of(value: ir.Value[Any]) -> Shape:
    """Returns the shape of a tensor."""
    return tuple(ir.RankedTensorType(value.type).shape)


def element_of(value: ir.Value[Any]) -> Any:  # noqa: ANN401 - some element type
    """Returns the element type of a tensor."""
    return ir.RankedTensorType(value.type).element_type


def with_shape(kind: ir.Type, shape: Shape) -> ir.Type:
    """Returns a tensor type with another shape."""
    ranked = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get(shape, ranked.element_type, ranked.encoding)


def retype(value: ir.Value[Any], shape: Shape) -> None:
    """Gives a value another shape; what defines it must have been rewritten for that."""
    if isinstance(value.type, ir.RankedTensorType):
        value.set_type(with_shape(value.type, shape))


def retype_loop(loop: ir.Operation, shapes: Sequence[Shape]) -> None:
    """Gives what a loop carries other shapes: as its results, and as arguments of its condition and its body."""
    for values in (loop.results, *(region.blocks[0].arguments for region in loop.regions)):
        for value, shape in zip(values, shapes, strict=True):
            retype(value, shape)


def ints(op: ir.Operation, name: str) -> Shape:
    """Returns an attribute of an op that is an array of numbers."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[name]))


def int_array(numbers: Sequence[int]) -> ir.Attribute:
    """Returns an attribute that is an array of numbers."""
    return ir.Attribute(ir.DenseI64ArrayAttr.get(list(numbers)))


def works_by_element(op: ir.Operation, cls: OpClass) -> bool:
    """Says whether an op works element by element, on tensors of one shape and scalars.

    None of its attributes may number dims.
    """
    assert cls.rule is not None
    numbers_dims = any(isinstance(op.attributes[name], ir.DenseI64ArrayAttr) for name in op.attributes)
    return (
        op.name in FUSIBLE and not numbers_dims and {*cls.rule.operands, *cls.rule.results} <= {cls.rule.results[0], ()}
    )


def make_in(op: ir.Operation, shape: Shape) -> ir.Value[Any]:
    """Returns the result of an op that `is_uniform`, or of an iota, made anew in another shape beside it."""
    kind = with_shape(op.results[0].type, shape)
    attributes = {name: op.attributes[name] for name in op.attributes if name != RULE}
    if "value" in attributes:
        splat = ir.DenseElementsAttr(attributes["value"]).get_splat_value()
        attributes["value"] = ir.DenseElementsAttr.get_splat(kind, splat)
    with ir.InsertionPoint.after(op), op.location:
        made = ir.Operation.create(op.name, [kind], list(op.operands), attributes)
    result: ir.Value[Any] = made.results[0]
    return result
