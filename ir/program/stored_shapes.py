"""Arguments and results that are stored in another shape than callers know.

The attributes `rhino.view` and `rhino.padded` on them give the other shape.

With `rhino.view` the elements are the same, in the same order: a `[64, 192]` weight stored as `[64, 3, 64]` is a
reshape away on either side. With `rhino.blocks` beside it, those of some dims are in another order: for each dim that
is the number of parts, and the blocks that interleave in them (`rhino.ir.graph.blocks`); it is empty for a dim that is
in order. With `rhino.padded` zeros follow them along some dims: a `[509, 64]` weight stored as
`[512, 64]` is cut, and padded. Each holds the shape before; what has both was padded first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.blocks import Shape, are_interleaved
from rhino.ir.mlir.bindings import ir

VIEW: Final = "rhino.view"
BLOCKS: Final = "rhino.blocks"
INTERLEAVED: Final = "rhino.interleaved"
"""On a module in which blocks interleave: their parts are blocks, too, that are not to be seen as such again."""
PADDED: Final = "rhino.padded"


def logical_shape(attributes: Mapping[str, ir.Attribute], stored: tuple[int, ...], place: Place) -> tuple[int, ...]:
    """Returns the shape by which callers know an argument or result with these attributes and the shape `stored`.

    Raises:
        RhinoError: RHI-READ-002 where the attributes are no shapes that fit.
    """
    padded = padded_shape(attributes, stored, place)
    if PADDED not in attributes:
        return padded
    shape = _shape(attributes[PADDED])
    if (
        shape is None
        or len(shape) != len(padded)
        or any(not 0 <= own <= size for own, size in zip(shape, padded, strict=True))
    ):
        raise RhinoError(
            "RHI-READ-002",
            f"{PADDED} is {attributes[PADDED]}, and the tensor has shape {list(padded)}",
            place,
            fix="write the logical shape as array<i64: ...>, each dim of at most the size that is stored, "
            "or take the attribute away",
        )
    return shape


def padded_shape(attributes: Mapping[str, ir.Attribute], stored: tuple[int, ...], place: Place) -> tuple[int, ...]:
    """Returns the shape of an argument or result before it was seen as blocks, with its padding.

    Raises:
        RhinoError: RHI-READ-002 where the attribute is no shape of as many elements.
    """
    if VIEW not in attributes:
        return stored
    shape = _shape(attributes[VIEW])
    if shape is None or prod(shape) != prod(stored) or any(size < 0 for size in shape):
        raise RhinoError(
            "RHI-READ-002",
            f"{VIEW} is {attributes[VIEW]}, and the tensor has shape {list(stored)}",
            place,
            fix="write the logical shape as array<i64: ...>, of as many elements, or take the attribute away",
        )
    return shape


def interleaved_of(attributes: Mapping[str, ir.Attribute], padded: Shape, place: Place) -> tuple[Shape, ...]:
    """Returns the blocks that interleave in each dim of an argument or result of the shape `padded`.

    Raises:
        RhinoError: RHI-READ-002 where the attribute does not fit the shape.
    """
    if BLOCKS not in attributes:
        return ()
    given = attributes[BLOCKS]
    found = [_shape(one) for one in given] if isinstance(given, ir.ArrayAttr) else []
    dims = tuple(one for one in found if one is not None)
    if len(dims) != len(found) or VIEW not in attributes or not are_interleaved(dims, padded):
        raise RhinoError(
            "RHI-READ-002",
            f"{BLOCKS} is {given}, and the tensor has shape {list(padded)} without {VIEW}",
            place,
            fix="write an array<i64: parts, blocks...> for each dim, of blocks that the parts divide and that are the "
            "dim together, or an empty one; or take the attribute away",
        )
    return dims


def _shape(attribute: ir.Attribute) -> tuple[int, ...] | None:
    return tuple(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else None


def view_attribute(shape: tuple[int, ...]) -> ir.Attribute:
    """Returns the attribute that says a shape."""
    return ir.Attribute(ir.DenseI64ArrayAttr.get(shape))


def blocks_attribute(interleaved: Sequence[Shape]) -> ir.Attribute:
    """Returns the attribute that says which blocks interleave."""
    return ir.Attribute(ir.ArrayAttr.get([view_attribute(one) for one in interleaved]))
