"""Draw plans as predicted against the same plans as compiled, from what `bench/aot.py` has measured.

    python bench/aot.py --json FILE
    python docs/aot_chart.py FILE ...

writes docs/aot.svg: steps on the left, peaks of a device on the right, a point for each localized plan. On the line
both are equal; above it a plan takes more than predicted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from math import log10
from pathlib import Path
from typing import Any, Final

from pictures import ROOT, svg, text

from rhino.ir.units import format_bytes, format_seconds

_SIDE: Final = 320
_LEFT, _TOP, _GAP = 80, 60, 120
COLOURS: Final = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")
"""Of clusters, in the order in which they come."""

Record = Mapping[str, Any]
Point = tuple[str, float, float]
"""A cluster, what is predicted and what is compiled."""


def points(records: Sequence[Record], name: str) -> list[Point]:
    """Returns the localized plans of records, by predicted_NAME and compiled_NAME."""
    return [
        (one["cluster"], one[f"predicted_{name}"], one[f"compiled_{name}"])
        for one in records
        if one["form"] == "localized" and one[f"compiled_{name}"]
    ]


def panel(title: str, found: Sequence[Point], left: float, unit: Callable[[float], str]) -> Iterator[str]:
    """Yields the shapes of predicted (right) against compiled (up), both on the same logarithmic scale."""
    sizes = [size for _, *both in found for size in both]
    low, high = min(sizes) / 1.2, max(sizes) * 1.2

    def at(size: float) -> float:
        return _SIDE * log10(size / low) / log10(high / low)

    bottom = _TOP + _SIDE
    yield text(left, _TOP - 12, title)
    yield f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#999999"/>'
    yield f'<line x1="{left}" y1="{bottom}" x2="{left + _SIDE}" y2="{_TOP}" stroke="#999999"/>'
    for size in (low * (high / low) ** share for share in (0.1, 0.5, 0.9)):
        yield text(left + at(size) - 20, bottom + 16, unit(size), "small")
        yield text(left - 6, bottom - at(size) + 4, unit(size), "small end")
    colours = dict(zip(dict.fromkeys(cluster for cluster, *_ in found), cycle(COLOURS), strict=False))
    for cluster, predicted, compiled in found:
        place = f'cx="{left + at(predicted):.1f}" cy="{bottom - at(compiled):.1f}"'
        yield f'<circle {place} r="3.5" fill="{colours[cluster]}" fill-opacity="0.7"/>'
    for number, (cluster, colour) in enumerate(colours.items()):
        yield f'<circle cx="{left + 12}" cy="{_TOP + 14 + 16 * number}" r="4" fill="{colour}"/>'
        yield text(left + 22, _TOP + 18 + 16 * number, cluster, "small")


def chart(records: Sequence[Record]) -> str:
    """Returns both panels."""
    steps, peaks = points(records, "s"), points(records, "bytes")
    shapes = [
        text(16, 26, "Plans as predicted (right) and as compiled (up), without a device", "head"),
        *panel("step", steps, _LEFT, format_seconds),
        *panel("peak of a device", peaks, _LEFT + _SIDE + _GAP, format_bytes),
    ]
    return svg(_TOP + _SIDE + 30, shapes)


def main(argv: Sequence[str]) -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="what `bench/aot.py --json` has written")
    records = [
        one
        for file in parser.parse_args(argv).files
        for one in json.loads(Path(file).read_text(encoding="utf-8"))["records"]
    ]
    (ROOT / "docs" / "aot.svg").write_text(chart(records), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
