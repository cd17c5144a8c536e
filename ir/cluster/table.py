"""One table of a file that describes hardware: getters that check what they return, and errors that name the key."""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections.abc import Collection, Mapping
from typing import NoReturn, TypeGuard

from rhino.ir.diagnostics import Place, RhinoError


class Table:
    """One table of a file, with the path of its keys for errors.

    The errors have the id `id` and call the keys a `what` key.
    """

    def __init__(
        self, data: Mapping[str, object], path: str, file: str, id: str = "RHI-CLUSTER-002", what: str = "cluster"
    ) -> None:
        self.data, self._path, self._file, self._id, self._what = data, path, file, id, what

    def _inner(self, data: Mapping[str, object], path: str) -> Table:
        return Table(data, path, self._file, self._id, self._what)

    def _key(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def fail(self, key: str, expected: str, fix: str = "") -> NoReturn:
        """Raises the table's error for `key`, with what it holds and what was expected."""
        got = reprlib.repr(self.data[key]) if key in self.data else "nothing"
        what = f"{self._what} key {self._key(key)!r}: got {got}, expected {expected}"
        raise RhinoError(
            self._id, what, Place(self._file), fix=fix or f"correct {self._key(key)!r}; see docs/cluster.md"
        )

    def keys(self, *known: str, required: bool = True, optional: Collection[str] = ()) -> None:
        """Checks that no key is unknown and, with `required`, that each of `known` is there."""
        allowed = (*known, *optional)
        for key in self.data:
            if key not in allowed:
                close = difflib.get_close_matches(key, allowed, n=1)
                fix = f"did you mean {close[0]!r}?" if close else f"remove {self._key(key)!r}"
                self.fail(key, f"no such key; known keys are {', '.join(allowed)}", fix)
        missing = [key for key in known if key not in self.data]
        if required and missing:
            self.fail(missing[0], "a value", f"add {self._key(missing[0])!r}; see docs/cluster.md")

    def text(self, key: str) -> str:
        """Returns a text that is not empty."""
        value = self.data[key]
        return value if isinstance(value, str) and value else self.fail(key, "a text that is not empty")

    def count(self, key: str) -> int:
        """Returns a whole number of at least 1."""
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(key, "a whole number of at least 1")
        return value

    def option(self, key: str) -> bool | int | str:
        """Returns what a compiler takes for an option."""
        value = self.data[key]
        return value if isinstance(value, bool | int | str) else self.fail(key, "true, false, a whole number or a text")

    def table(self, key: str) -> Table:
        """Returns an inner table."""
        value = self.data[key]
        return self._inner(value, self._key(key)) if isinstance(value, dict) else self.fail(key, "a table")

    def tables(self, key: str, expected: str) -> list[Table]:
        """Returns the tables of a list that is not empty; `expected` says in words what they are."""
        value = self.data[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            self.fail(key, expected)
        return [self._inner(item, f"{self._key(key)}[{i}]") for i, item in enumerate(value)]

    def figure_table(self, key: str) -> Table:
        """Returns the `{ value = ..., source = "..." }` table of a number."""
        if not isinstance(self.data[key], dict):
            self.fail(key, 'a number with its source: { value = ..., source = "..." }')
        figure = self.table(key)
        figure.keys("value", "source")
        return figure

    def source(self, key: str) -> str:
        """Returns where a number came from."""
        return self.figure_table(key).text("source")

    def number(self, key: str) -> float:
        """Returns a positive, finite number that comes with its source."""
        return self.figure_table(key).plain_number("value")

    def plain_number(self, key: str) -> float:
        """Returns a positive, finite number."""
        value = self.data[key]
        return float(value) if is_positive(value) else self.fail(key, "a positive, finite number")

    def fraction(self, key: str) -> float:
        """Returns a number above 0 and at most 1 that comes with its source."""
        value = self.number(key)
        return value if value <= 1 else self.figure_table(key).fail("value", "a fraction above 0 and at most 1")


def is_positive(value: object) -> TypeGuard[float]:
    """Says whether a value is a positive, finite number."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= sys.float_info.max
