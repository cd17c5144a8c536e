"""What a page of a plan shows, as data: the template only writes it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.planner.why import Why, added
from rhino.tools.drawing import Curve, Drawing

MOST_ROWS: Final = 120
"""Rows of a table, and a note on those left out."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, its sort key, a bar of a share, and a drawing.

    The key is a number; where it is None, the cell is sorted by its text.
    """

    text: str
    key: float | None = None
    share: float | None = None
    drawing: Drawing | None = None


Row = tuple[Cell, ...]
"""A row of a table."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, sorted when it is written; `note` says what it is of, `left_out` how many rows it lacks."""

    name: str
    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a whole: its name, its share, and what it is in words."""

    name: str
    share: float
    words: str


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """Memory over the schedule of a device: a curve and its caption."""

    title: str
    curve: Curve
    peak: str
    limit: str


@dataclass(frozen=True, slots=True)
class Page:
    """All that the template shows."""

    title: str
    subtitle: str
    tiles: tuple[tuple[str, str, str], ...]
    parts: tuple[PagePart, ...]
    mesh: Drawing
    timeline: Drawing | None
    phases: tuple[str, ...]
    memory: tuple[MemoryChart, ...]
    tables: tuple[Table, ...]
    facts: tuple[tuple[str, str], ...]
    cluster: str


def table(name: str, title: str, note: str, head: tuple[str, ...], rows: Sequence[Row]) -> Table:
    """Returns a table of the first rows; the longest bar of a column fills its cell."""
    shown = rows[:MOST_ROWS]
    most = [max((cell.share or 0.0 for cell in column), default=0.0) for column in zip(*shown, strict=True)]
    scaled = [
        tuple(
            replace(cell, share=cell.share / top) if cell.share and top else cell
            for cell, top in zip(row, most, strict=True)
        )
        for row in shown
    ]
    return Table(name, title, note, head, tuple(scaled), len(rows) - len(shown))


def reasons_table(reasons: Sequence[Why], note: str, head: tuple[str, ...]) -> Table:
    """Returns the table of what else was possible; `head` names the columns of what that adds."""
    rows: list[Row] = []
    for one in reasons:
        for option in one.options:
            parts = option.alternative.parts
            step, *others = added(option.alternative, one.step_s)
            key = parts.step_s if parts else float("inf")
            rows.append((subject_cell(one), Cell(one.chosen), Cell(option.how), Cell(step, key), *map(Cell, others)))
    return table("reasons", "Why not otherwise", note, ("what", "chosen", "instead", *head, "known"), rows)


def subject_cell(one: Why) -> Cell:
    """Returns a cell of what a reason is for."""
    return Cell(f"{one.subject.name}, {one.subject.what}")


def seconds_cell(seconds: float, of: float = 0.0) -> Cell:
    """Returns a cell of seconds, with a bar of what they are of."""
    return Cell(format_seconds(seconds) if seconds else "-", seconds, seconds / of if of else None)


def bytes_cell(num_bytes: float, of: float = 0.0) -> Cell:
    """Returns a cell of bytes, with a bar of what they are of."""
    return Cell(format_bytes(num_bytes), num_bytes, num_bytes / of if of else None)


def share_text(part: float, total: float) -> str:
    """Returns a share in per cent."""
    return f"{part / total:.0%}" if total else "-"
