"""Tables and differences as plain text, as explanations of plans write them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from rhino.ir.units import format_bytes, format_seconds


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows of cells as indented lines whose columns stand below one another; none for no rows."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def section(title: str, rows: Sequence[Sequence[str]], num_rows: int, head: Sequence[str] = ()) -> list[str]:
    """Returns a title, the first rows of a table, and how many more rows there are; nothing if there are no rows."""
    if not rows:
        return []
    return [title, *table([*([head] if head else []), *rows[:num_rows]]), *more(len(rows), num_rows)]


def more(count: int, shown: int) -> list[str]:
    """Returns a line that says how many of `count` rows are not shown, if any."""
    return [f"  and {count - shown} more"] if count > shown else []


def differ(then: float, now: float) -> bool:
    """Says whether two figures differ by more than the rounding of sums."""
    return not isclose(then, now, rel_tol=1e-9)


def signed_seconds(seconds: float) -> str:
    """Returns a difference in seconds with its sign."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def signed_bytes(num_bytes: float) -> str:
    """Returns a difference in bytes with its sign."""
    return f"{'-' if num_bytes < 0 else '+'}{format_bytes(abs(num_bytes))}"
