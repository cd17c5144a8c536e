"""Expected diagnostics, with MLIR's meaning.

Each `expected-error {{text}}` must come at its line, and nothing else may.

    // expected-error@+1 {{[RHI-READ-004]}}

The kinds are error, warning, remark and note; the place is the comment's own line, `@+N`, `@-N`, `@N` (of the file),
`@above` and `@below` (the nearest line that has no expectation itself), or `@unknown` for a diagnostic that has no
place in the file. The text in braces has to be a part of the message. Notes are diagnostics too: each has to be
expected, at the place of what it is a note of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rhino.ir.diagnostics import Place, RhinoError

_EXPECTED: Final = re.compile(
    r"expected-(error|warning|remark|note)\s*(?:@([+-]?\d+|above|below|unknown))?\s*\{\{(.*)\}\}\s*$"
)
_MENTIONED: Final = re.compile(r"(?://|#).*expected-(?:error|warning|remark|note)")

UNKNOWN: Final = 0
"""The line of a diagnostic that has none."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What a run said: its kind ("error", "warning", "remark", "note"), where, and the message."""

    kind: str
    place: Place
    message: str

    def __str__(self) -> str:
        head = f"{self.place}: " if str(self.place) else ""
        return f"{head}{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A diagnostic that has to come: its kind, its line, a part of its message, and where it is expected.

    Lines count from 1; UNKNOWN stands for no place.
    """

    kind: str
    line: int
    part: str
    written_at: int


def diagnostics_of(error: RhinoError) -> tuple[Diagnostic, ...]:
    """Returns an error and its notes as diagnostics, all at the error's place."""
    notes = (*error.notes, *((f"to fix: {error.fix}",) if error.fix else ()))
    return (
        Diagnostic("error", error.place, f"[{error.id}] {error.what}"),
        *(Diagnostic("note", error.place, note) for note in notes),
    )


def read_expectations(text: str, file: str) -> tuple[Expectation, ...]:
    """Returns the expectations in the comments of `text`. Raises RHI-CLI-004 for one that cannot be read."""
    lines = text.splitlines()
    bare = [number for number, line in enumerate(lines, 1) if not _MENTIONED.search(line)]
    return tuple(
        _expectation(line, number, bare, file) for number, line in enumerate(lines, 1) if _MENTIONED.search(line)
    )


def _expectation(line: str, number: int, bare: Sequence[int], file: str) -> Expectation:
    match = _EXPECTED.search(line)
    if match is None:
        form = "// expected-error@+1 {{part of the message}}"
        raise RhinoError(
            "RHI-CLI-004", "an expected diagnostic cannot be read", Place(file, number), fix=f"write it as {form}"
        )
    kind, where, part = match.groups()
    match where:
        case None:
            at = number
        case "unknown":
            at = UNKNOWN
        case "above":
            at = max((n for n in bare if n < number), default=UNKNOWN)
        case "below":
            at = min((n for n in bare if n > number), default=UNKNOWN)
        case _:
            at = number + int(where) if where[0] in "+-" else int(where)
    return Expectation(kind, at, part, number)


def compare(
    expectations: Sequence[Expectation], diagnostics: Iterable[Diagnostic], file: str
) -> tuple[RhinoError, ...]:
    """Returns an error for each unexpected diagnostic, then for each expectation that was not met.

    There are none if all is as expected.
    """
    met = [False] * len(expectations)
    wrong = []
    for one in diagnostics:
        line = one.place.line if one.place.file == file else UNKNOWN
        fitting = [
            n for n, e in enumerate(expectations) if (e.kind, e.line) == (one.kind, line) and e.part in one.message
        ]
        if fitting:
            met[min(fitting, key=lambda n: met[n])] = True
        else:
            what = f"unexpected {one.kind}: {one.message}"
            fix = f"write expected-{one.kind} for it, or correct the input"
            wrong.append(RhinoError("RHI-CLI-004", what, one.place, fix=fix))
    for number, expectation in enumerate(expectations):
        if not met[number]:
            where = f"at line {expectation.line}" if expectation.line != UNKNOWN else "without a place"
            what = f"expected {expectation.kind} {where} was not produced: {expectation.part}"
            fix = "remove it, or correct its line and text"
            wrong.append(RhinoError("RHI-CLI-004", what, Place(file, expectation.written_at), fix=fix))
    return tuple(wrong)
