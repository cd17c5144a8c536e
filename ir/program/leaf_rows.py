"""Arguments and results that are some rows of a leaf of the user's: `rhino.rows = array<i64: start, stop>`.

The pieces of a leaf stand one after the other, and have its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Attributes

ROWS: Final = "rhino.rows"


def rows_attribute(start: int, stop: int) -> ir.Attribute:
    """Returns the attribute of what is rows `start` to `stop` of a leaf."""
    return ir.DenseI64ArrayAttr.get([start, stop])


def rows_in(attributes: Attributes) -> tuple[int, int] | None:
    """Returns which rows of its leaf an argument or result is, None if it is all of it."""
    if ROWS not in attributes:
        return None
    start, stop = list(ir.DenseI64ArrayAttr(attributes[ROWS]))
    return start, stop


def leaf_numbers(rows: Sequence[tuple[int, int] | None]) -> list[int]:
    """Returns the number of the leaf that each argument or result is, or is some rows of."""
    return [number - 1 for number in accumulate(int(not (one and one[0])) for one in rows)]
