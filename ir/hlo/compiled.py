"""What a compiler made of a module: its memory and its schedule, and who says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SPACE: Final = "Memory Space: "
_TOTAL: Final = re.compile(r"Total bytes: (\d+)")
_BUFFER: Final = re.compile(r"^\s*[\d.]+\w+\(\s*\d+%\);\s*([\d.]+)(\w+);\s*\d+;\s*\d+; (.*)$")
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled module: bytes are those of one device.

    `peak_bytes` are arguments, results and temporaries as the compiler assigned them; `buffers` are the largest of the
    temporaries with the shapes that lie in them, largest first. `hlo` is the scheduled program. `compiler` names who
    compiled and its version, `is_finished` says whether it came to its end: all of this is known before code is made.
    """

    peak_bytes: int
    buffers: tuple[tuple[int, str], ...]
    hlo: str
    compiler: str
    is_finished: bool
    processor_s: float


def read_memory_report(text: str) -> tuple[int, tuple[tuple[int, str], ...]] | None:
    """Returns the bytes of the device's memory and its largest buffers, from XLA's memory usage report.

    The report has a part for each memory space, the device's first. Returns None where it reads otherwise.
    """
    parts = text.split(_SPACE)
    if len(parts) < 2 or (total := _TOTAL.search(parts[1])) is None:
        return None
    rows = [found for line in parts[1].splitlines() if (found := _BUFFER.match(line)) and found[2] in _UNITS]
    return int(total[1]), tuple((int(float(row[1]) * _UNITS[row[2]]), row[3].strip()) for row in rows)
