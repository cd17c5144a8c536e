"""Arguments and results that are stored in another shape than callers know: `rhino.view` on them holds the logical shape.

The elements are the same, in the same order: a `[64, 192]` weight stored as `[64, 3, 64]` is a reshape away on either side.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir import ir

VIEW: Final = "rhino.view"


def logical_shape(attributes: Mapping[str, ir.Attribute], stored: tuple[int, ...], place: Place) -> tuple[int, ...]:
    """Returns the shape by which callers know an argument or result with these attributes and the shape `stored`.

    Raises:
        RhinoError: RHI-READ-002 where the attribute is no shape of as many elements.
    """
    if VIEW not in attributes:
        return stored
    view = attributes[VIEW]
    shape = tuple(view) if isinstance(view, ir.DenseI64ArrayAttr) else ()
    if prod(shape) != prod(stored) or any(size < 0 for size in shape):
        raise RhinoError(
            "RHI-READ-002",
            f"{VIEW} is {view}, and the tensor has shape {list(stored)}",
            place,
            fix="write the logical shape as array<i64: ...>, of as many elements, or take the attribute away",
        )
    return shape


def view_attribute(shape: tuple[int, ...]) -> ir.Attribute:
    """Returns the attribute that says a logical shape."""
    return ir.Attribute(ir.DenseI64ArrayAttr.get(shape))
