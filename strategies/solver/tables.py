"""Tables, each once: equal ones have one number, by which whatever is computed of them can be remembered."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhino.ir.arrays import Floats


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
