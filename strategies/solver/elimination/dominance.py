"""States of a node that can never win.

State p loses to q if p costs more by itself than q could ever cost more on all edges together.

By how much q can cost more than p on an edge is the largest difference of two rows of its table. Comparing all pairs of
rows takes rows x rows x columns, which was most of a search on three axes. So pairs are first held against a lower
bound on that difference: the one in the column where row p is least. Where a table holds what it takes to bring a
tensor from spec to spec, that column is mostly the spec that p has already, and few pairs are left to compare. Rounding
is monotone, so the bound rules out no pair that the comparison would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints

_ENTRIES_AT_ONCE = 1 << 16
"""Differences of rows that are held at the same time: they then stay in a processor's cache."""

_ILLEGAL_Q, _ILLEGAL_P = 1e200, 1e250
"""What stands for an illegal entry of row q, and of row p: finite, so that no difference is undefined.

Where only q is illegal, the difference is above half of the first; where both are or only p is, it is below all that
can be paid.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound from below on how much more a row of a table can cost than row p.

    It is the difference in column `column[p]`, where p costs `least[p]`.
    """

    column: Ints
    least: Floats

    def add_to(self, total: Floats, table: Floats) -> None:
        """Adds to `total` [q, p] how much more row q costs than row p at least."""
        total += table.take(self.column, axis=1) - self.least


def bound_of(table: Floats) -> Bound:
    """Returns the bound for the rows of a table of an edge."""
    legal_first = np.where(np.isfinite(table), table, _ILLEGAL_P)
    column = legal_first.argmin(axis=1)
    least = legal_first[np.arange(len(table)), column]
    return Bound(column, np.where(least == _ILLEGAL_P, np.inf, least))


def undominated(cost: Floats, tables: Sequence[Floats], bounds: Sequence[Bound]) -> Ints:
    """Returns the states of a node that can win.

    Args:
        cost: what each state costs by itself [states].
        tables: of each edge [states, states of the other end].
        bounds: `bound_of` each of these tables.
    """
    at_least = np.zeros((len(cost), len(cost)))  # [q, p]
    with np.errstate(invalid="ignore"):
        for bound, table in zip(bounds, tables, strict=True):
            bound.add_to(at_least, table)
        # an illegal row makes the bound no number: the comparison below decides
        may_lose = ~(cost - cost[:, None] < at_least)
    may_lose &= np.isfinite(cost)[:, None]
    np.fill_diagonal(may_lose, False)
    p, q = may_lose.T.nonzero()
    if not len(p):
        return np.arange(len(cost))
    loses = _loses(cost[p] - cost[q], p, q, tables)
    p, q = p[loses], q[loses]
    alive = np.ones(len(cost), dtype=bool)
    dearest_first = np.argsort(cost, kind="stable")[::-1]
    first, end = (np.searchsorted(p, dearest_first, side=side).tolist() for side in ("left", "right"))
    for state, a, b in zip(dearest_first.tolist(), first, end, strict=True):
        if a < b:
            alive[state] = not alive[q[a:b]].any()
    return np.flatnonzero(alive)


def _loses(saved: Floats, p: Ints, q: Ints, tables: Sequence[Floats]) -> Bools:
    """Says of pairs of states whether p loses to q, where p costs `saved` more by itself [pairs]."""
    excess, legal = np.zeros(len(p)), np.ones(len(p), dtype=bool)
    for table in tables:
        worst = _most_excess(table, p, q)
        legal &= worst < _ILLEGAL_Q / 2
        excess += worst
    return legal & (saved >= excess)


def _most_excess(table: Floats, p: Ints, q: Ints) -> Floats:
    """Returns how much more row q costs than row p at most, for pairs of rows of a table [pairs]."""
    legal = np.isfinite(table)
    of_p, of_q = np.where(legal, table, _ILLEGAL_P), np.where(legal, table, _ILLEGAL_Q)
    few = max(1, _ENTRIES_AT_ONCE // max(table.shape[1], 1))
    blocks = [(of_q[q[at : at + few]] - of_p[p[at : at + few]]).max(axis=1) for at in range(0, len(p), few)]
    return np.concatenate(blocks) if blocks else np.zeros(0)
