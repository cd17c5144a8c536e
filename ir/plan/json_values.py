"""Values that JSON holds, each of the kind that it has to be: what is not is refused.

Errors    TypeError or ValueError that say what is not of its kind; whoever reads the file names it.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast, get_args

from rhino.ir.graph.graph import MemoryKind

_MOST: Final = 2**20
"""More stages, ranks, devices along an axis or micro-batches than any step has."""


def list_of(value: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """Returns a list."""
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def table_of(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns values by their names."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no table")
    return value


def text_of(value: Any) -> str:  # noqa: ANN401
    """Returns a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def memory_of(value: Any) -> MemoryKind:  # noqa: ANN401
    """Returns where an array lies."""
    for kind in get_args(MemoryKind):
        if value == kind:
            return cast(MemoryKind, kind)
    raise ValueError(f"{value!r} is no kind of memory")


def flag_of(value: Any) -> bool:  # noqa: ANN401
    """Returns true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def texts_of(value: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Returns several texts."""
    return tuple(map(text_of, list_of(value)))


def words_of(value: Any) -> dict[str, str]:  # noqa: ANN401
    """Returns texts by their names."""
    return {name: text_of(text) for name, text in table_of(value).items()}


def counts_of(value: Any) -> dict[str, int]:  # noqa: ANN401
    """Returns how many there are of several things, by their names."""
    return {name: number_of(count) for name, count in table_of(value).items()}


def number_of(value: Any) -> int:  # noqa: ANN401
    """Returns what numbers something, or is a size: zero or more."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number from 0")
    return value


def small_of(value: Any) -> int:  # noqa: ANN401
    """Returns the number of a micro-batch, as programs take it."""
    if number_of(value) >= 2**31:
        raise ValueError(f"{value} has more than 31 bits")
    return int(value)


def count_of(value: Any) -> int:  # noqa: ANN401
    """Returns how many there are of something: one or more."""
    if not 1 <= number_of(value) <= _MOST:
        raise ValueError(f"{value} is no number from 1 to {_MOST}")
    return int(value)


def numbers_of(value: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Returns what numbers several things."""
    return tuple(map(number_of, list_of(value)))


def amount_of(value: Any) -> float:  # noqa: ANN401
    """Returns seconds, bytes, or what else is measured."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def amounts_of(value: Any) -> tuple[float, ...]:  # noqa: ANN401
    """Returns several amounts."""
    return tuple(map(amount_of, list_of(value)))
