"""Tables of edges, with states as one that cost the same whatever the other end takes.

How a tensor is brought to who reads it hangs on its two specs, and several states of an op leave, or need, one spec. So
a table repeats rows and columns: of a U-Net's tables on 4 x 4 x 4 half of all entries are others again (2026-11-27).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.tables import WORTH, distinct_rows


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
    found = distinct_rows(table)
    return (table, None) if found is None else (table[found[0]], found[1])


def _left(classes: Ints | None, kept: Ints, width: int) -> tuple[Ints, Ints | None]:
    """Returns the rows of which states are kept, and that of each kept state by its new number.

    A row has `width` entries. Where few rows go, each state has its own.
    """
    if classes is None:
        return kept, None
    first, number = np.unique(classes[kept], return_inverse=True)
    return (classes[kept], None) if (len(kept) - len(first)) * width < WORTH else (first, number)
