"""What a compiler made of a module: its memory and its schedule, and who says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SPACE: Final = "Memory Space: "
_ALLOCATION: Final = re.compile(r"^allocation \d+: size (\d+)(.*)$", re.MULTILINE)
_ELSEWHERE: Final = re.compile(r", color [1-9]|, thread-local")
_BUFFER: Final = re.compile(r"^\s*[\d.]+\w+\(\s*\d+%\);\s*([\d.]+)(\w+);\s*\d+;\s*\d+; (.*)$")
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled module: bytes are those of one device.

    `peak_bytes` are arguments, results and temporaries as the compiler assigned them; `buffers` are the largest of the
    temporaries with the shapes that lie in them, largest first. `hlo` is the scheduled program. `compiler` names who
    compiled and its version, `is_finished` says whether it came to its end: all of this is known before code is made.
    `unseen` are the bytes of each transfer from host memory and to it that is no part of `hlo`, as a device has them;
    what lies there is no part of `peak_bytes`.
    """

    peak_bytes: int
    buffers: tuple[tuple[int, str], ...]
    hlo: str
    compiler: str
    is_finished: bool
    processor_s: float
    unseen: tuple[int, ...] = ()


def assigned_bytes(assignment: str) -> int | None:
    """Returns the bytes that a program takes of the device's memory, from XLA's buffer assignment; None without one.

    A color names another memory. What is local to a thread is an operand of a computation that is called, as XLA:TPU
    calls those of the SparseCore: it lies in the caller's buffer, and XLA's totals count it once more.
    """
    found = [(int(one[1]), one[2]) for one in _ALLOCATION.finditer(assignment)]
    return sum(size for size, what in found if not _ELSEWHERE.search(what)) if found else None


def largest_buffers(report: str) -> tuple[tuple[int, str], ...]:
    """Returns the largest buffers of the device's memory, from XLA's memory usage report.

    The report has a part for each memory space, the device's first.
    """
    rows = [_BUFFER.match(line) for line in "".join(report.split(_SPACE)[1:2]).splitlines()]
    return tuple((int(float(row[1]) * _UNITS[row[2]]), row[3].strip()) for row in rows if row and row[2] in _UNITS)
