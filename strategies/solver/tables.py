"""Tables, each once: equal ones have one number, by which whatever is computed of them can be remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints

WORTH: Final = 1 << 13
"""Entries of a table that must go for it to be worth to look up which rows are equal."""

_FACTOR: Final = 0x1E3779B97F4A7C15
"""An odd number whose multiples are spread over all integers of 64 bits."""


@dataclass(eq=False)
class Tables:
    """Tables in the order in which they came; an equal table takes no further memory."""

    tables: list[Floats] = field(default_factory=list)
    alike: dict[tuple[tuple[int, ...], int], list[int]] = field(default_factory=dict)
    """By shape and hash, the numbers of tables: their bytes would take as much memory again as keys."""
    own: dict[int, int] = field(default_factory=dict)
    """By identity, the numbers of the tables that are held here: of large ones, reading the bytes takes long."""

    def intern(self, table: Floats) -> int:
        """Returns the number of a table equal to `table`, bit by bit."""
        own = self.own.get(id(table))
        if own is not None:
            return own
        table = table if table.flags.c_contiguous else table.copy()
        alike = self.alike.setdefault((table.shape, hash(table.tobytes())), [])
        for number in alike:
            if np.array_equal(self.tables[number].view(np.int64), table.view(np.int64)):
                return number
        alike.append(len(self.tables))
        self.own[id(table)] = len(self.tables)
        self.tables.append(table)
        return alike[-1]


def distinct_rows(table: Floats) -> tuple[Ints, Ints] | None:
    """Returns the first of each kind of rows, and the kind of each row; None where few rows are equal.

    Equal are rows bit by bit. Their sums of integers, unlike sums of floats, do not hang on the order of adding.
    """
    count, columns = table.shape
    if table.size < WORTH:
        return None
    with np.errstate(over="ignore"):
        weights = (np.arange(1, columns + 1, dtype=np.int64) * np.int64(_FACTOR)) | np.int64(1)
    codes = np.einsum("st,t->s", np.ascontiguousarray(table).view(np.int64), weights)
    _, first, number = np.unique(codes, return_index=True, return_inverse=True)
    if (count - len(first)) * columns < WORTH or not np.array_equal(table[first][number], table):
        return None
    return first, number
