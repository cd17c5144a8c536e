"""Drawings on the page of a plan, as rectangles and lines: shapes alone.

The template makes them SVG and escapes their texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2, prod
from typing import Final

from rhino.ir.plan.timeline import Timeline

MOST_BLOCKS: Final = 256
"""Blocks of a tensor, or devices of a mesh, that are drawn; more than these are a number."""

MOST_SPANS: Final = 8000
"""Tasks of a timeline that are drawn; the rest of a longer step is left out."""

_HUES: Final = 300
"""Degrees of the colour wheel that blocks share: the last is not the first again."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: its position and size, its colour, a label and a title.

    The colour is a hue in degrees (None: neutral), or that of the class `name`.
    """

    x: float
    y: float
    width: float
    height: float
    hue: int | None = None
    name: str = ""
    label: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes on a canvas, with what they show in words."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line over time on a canvas, as SVG's `points`.

    `limit_y` is the height of the line for a limit, None where it is off the canvas.
    """

    width: float
    height: float
    points: str
    peak: tuple[float, float]
    limit_y: float | None


def tensor_drawing(shape: Sequence[int], dims: Sequence[Sequence[str]], mesh: Mapping[str, int]) -> Drawing:
    """Returns a tensor as its blocks over the devices of a mesh, each labelled with the devices that hold it.

    Two dims are drawn: those that are split, or else the last ones. Where more are split, blocks of the others are one
    box.
    """
    devices = _devices_of_blocks(dims[: len(shape)], mesh)
    cut = [d for d in range(len(shape)) if dims[d]]
    drawn = sorted((cut + [d for d in reversed(range(len(shape))) if d not in cut])[:2])
    rows, columns = (drawn[0], drawn[1]) if len(drawn) == 2 else (None, drawn[0] if drawn else None)
    parts = [prod(mesh[axis] for axis in dims[d]) if d is not None else 1 for d in (rows, columns)]
    height, width = (_length(shape[d]) if d is not None else 18.0 for d in (rows, columns))
    words = (
        "; ".join(f"dim {d} in {prod(mesh[axis] for axis in dims[d])} parts" for d in cut) or "whole on every device"
    )
    if prod(parts) > MOST_BLOCKS:
        return Drawing(width, height, (Box(0, 0, width, height, None, "", str(prod(parts)), words),), words)
    holders: dict[tuple[int, int], list[int]] = {}
    for block, numbers in devices.items():
        key = tuple(block[d] if d is not None else 0 for d in (rows, columns))
        holders.setdefault((key[0], key[1]), []).extend(numbers)
    boxes = []
    for number, (row, column) in enumerate(product(range(parts[0]), range(parts[1]))):
        whose = ranges(holders[row, column])
        hue = None if not cut else number * _HUES // max(1, prod(parts))
        w, h = width / parts[1], height / parts[0]
        label = whose if w >= 5.5 * len(whose) and h >= 9 else ""
        boxes.append(Box(column * w, row * h, w, h, hue, "", label, f"block {row}, {column}: devices {whose}"))
    return Drawing(width, height, tuple(boxes), words)


def mesh_drawing(mesh: Sequence[tuple[str, int]]) -> Drawing:
    """Returns the devices of a mesh: the last axis across, the others down."""
    sizes = [size for _, size in mesh] or [1]
    columns, rows = sizes[-1], prod(sizes[:-1])
    words = ", ".join(f"{name}: {size}" for name, size in mesh)
    if rows * columns > MOST_BLOCKS:
        return Drawing(160, 24, (Box(0, 0, 160, 24, None, "", f"{rows * columns} devices"),), words)
    side = 34.0
    boxes = []
    for number, place in enumerate(product(*map(range, sizes))):
        row, column = divmod(number, columns)
        title = ", ".join(f"{name}={one}" for (name, _), one in zip(mesh, place, strict=True))
        boxes.append(Box(column * side, row * side, side - 3, side - 3, None, "", str(number), title))
    return Drawing(columns * side, rows * side, tuple(boxes), words)


def memory_curve(
    points: Sequence[tuple[float, float]], length: float, most: float, limit: float | None = None
) -> Curve:
    """Returns the curve of bytes over times from 0 to `length`, in steps, on a scale that fits `most` and all points.

    `limit` is drawn if it is not far above.
    """
    width, height = 720.0, 150.0
    most = max([most, *(num_bytes for _, num_bytes in points)])
    top = limit if limit is not None and most < limit < 3 * most else most
    scale_x, scale_y = width / (length or 1.0), (height - 8) / (top or 1.0)
    places = [(time * scale_x, height - num_bytes * scale_y) for time, num_bytes in points]
    ends = [x for x, _ in places[1:]] + [width]
    line = " ".join(f"{x:.1f},{y:.1f} {end:.1f},{y:.1f}" for (x, y), end in zip(places, ends, strict=True))
    highest = min(places, key=lambda one: one[1], default=(0.0, height))
    return Curve(width, height, line, highest, height - limit * scale_y if limit is not None and limit <= top else None)


def timeline_drawing(timeline: Timeline, width: float = 1000.0) -> Drawing:
    """Returns what each rank runs when: a row for each rank, time to the right."""
    row, end_s = 26.0, timeline.end_s or 1.0
    boxes = []
    for span in sorted(timeline.spans, key=lambda one: (one.start_s, one.rank))[:MOST_SPANS]:
        length = (span.end_s - span.start_s) / end_s * width
        number = "" if span.task.micro_batch is None else str(span.task.micro_batch)
        label = number if length >= 7 * len(number) else ""
        title = f"rank {span.rank}: {span.task}, {span.start_s:.3e} s to {span.end_s:.3e} s"
        drawn = max(length, 0.3)
        x = min(span.start_s / end_s * width, width - drawn)
        boxes.append(Box(x, span.rank * row, drawn, row - 4, None, span.task.phase, label, title))
    left_out = len(timeline.spans) - len(boxes)
    words = f"the last {left_out} tasks are not drawn" if left_out else ""
    return Drawing(width, timeline.num_ranks * row, tuple(boxes), words)


def ranges(numbers: Sequence[int]) -> str:
    """Returns numbers as people list them: `0-3, 8`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _devices_of_blocks(dims: Sequence[Sequence[str]], mesh: Mapping[str, int]) -> dict[tuple[int, ...], list[int]]:
    """Returns the devices, numbered as the mesh lists them, that hold each block of a tensor."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(product(*map(range, mesh.values()))):
        at = dict(zip(mesh, place, strict=True))
        block = []
        for axes in dims:
            index = 0
            for axis in axes:
                index = index * mesh[axis] + at[axis]
            block.append(index)
        found.setdefault(tuple(block), []).append(number)
    return found


def _length(extent: int) -> float:
    """Returns how long a dim is drawn: it doubles with its logarithm, or a bias would be a thread beside a weight."""
    return 14.0 + 3.5 * min(log2(max(extent, 1)), 14.0)
