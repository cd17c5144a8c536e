"""Tables of edges, with states as one that cost the same whatever the other end takes.

How a tensor is brought to who reads it hangs on its two specs, and several states of an op leave, or need, one spec. So
a table repeats rows and columns: of a U-Net's tables on 4 x 4 x 4 half of all entries are others again (2026-11-27).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints

_WORTH: Final = 1 << 13
"""Entries that must go for it to be worth to look classes up."""

_FACTOR: Final = 0x1E3779B97F4A7C15
"""An odd number whose multiples are spread over all integers of 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedTable:
    """A table of costs by classes of states; those of an end that has none are by its states.

    Shapes: `costs` [classes of u, classes of v], `u` [states of u], `v` [states of v].
    """

    costs: Floats
    u: Ints | None = None
    v: Ints | None = None

    @staticmethod
    def of(table: Floats) -> MergedTable:
        """Returns a table [states of u, states of v] with equal rows, and then equal columns, as one."""
        costs, u = _merged(table)
        turned, v = _merged(np.ascontiguousarray(costs.T))
        return MergedTable(costs if v is None else np.ascontiguousarray(turned.T), u, v)

    def part(self, rows: Ints, columns: Ints) -> MergedTable:
        """Returns the table with some states of each end."""
        first, u = _left(self.u, rows, len(columns))
        second, v = _left(self.v, columns, len(first))
        return MergedTable(self.costs[np.ix_(first, second)], u, v)

    def turned(self) -> MergedTable:
        """Returns the table as the other end sees it."""
        return MergedTable(self.costs.T, self.v, self.u)

    def contiguous(self) -> MergedTable:
        """Returns the table with its rows in order in memory."""
        return replace(self, costs=np.ascontiguousarray(self.costs))

    def single(self) -> MergedTable:
        """Returns the table in single precision."""
        return replace(self, costs=self.costs.astype(np.float32))

    def row(self, state: int) -> Floats:
        """Returns the costs with u in `state` [states of v]."""
        found: Floats = self.costs[state if self.u is None else self.u[state]]
        return found if self.v is None else found[self.v]


def _merged(table: Floats) -> tuple[Floats, Ints | None]:
    """Returns a table with equal rows as one, and the row of each [rows]; the table itself where few are equal."""
    count, columns = table.shape
    if table.size < _WORTH:
        return table, None
    with np.errstate(over="ignore"):
        weights = (np.arange(1, columns + 1, dtype=np.int64) * np.int64(_FACTOR)) | np.int64(1)
    codes = np.einsum("st,t->s", table.view(np.int64), weights)
    _, first, number = np.unique(codes, return_index=True, return_inverse=True)
    if (count - len(first)) * columns < _WORTH or not np.array_equal(table[first][number], table):
        return table, None
    return table[first], number


def _left(classes: Ints | None, kept: Ints, width: int) -> tuple[Ints, Ints | None]:
    """Returns the rows of which states are kept, and that of each kept state by its new number.

    A row has `width` entries. Where few rows go, each state has its own.
    """
    if classes is None:
        return kept, None
    first, number = np.unique(classes[kept], return_inverse=True)
    return (classes[kept], None) if (len(kept) - len(first)) * width < _WORTH else (first, number)
