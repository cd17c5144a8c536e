"""The path from one spec of a tensor to another: which collectives, in which order.

The path depends on the two specs alone, so that planner, report and localized program agree on it without a word. What
makes it cheap: blocks shrink first (slices, reduce-scatters) and grow last (gathers); sums over several axes are taken
at once; among collectives of one kind, inner axes scatter first and outer axes gather first, so that slower links carry
smaller blocks.

A dim that several axes split lists them outermost first. A collective takes the last axis of a dim away, or adds one
behind; where that is not the axis in question, one collective-permute first brings the blocks into another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from rhino.ir.graph.collective_stats import payload_bytes
from rhino.ir.graph.spec import PARTIAL, REPLICATED, split_dim, unpack

_MOVES = frozenset({"all_gather", "all_to_all", "collective_permute"})
"""Collectives that do nothing to elements."""

Layout = tuple[tuple[int, ...], ...]
"""The axes that split each dim, outermost first [rank]."""


@dataclass(frozen=True, slots=True)
class LayoutStep:
    """One step of a path: an operation along `axes`, and the layout after it.

    `kind` is a collective's, or "slice": every device cuts its part out of what it has. `source` and `target` are dims
    where they matter: where an axis leaves, and where it arrives.
    """

    kind: str
    axes: tuple[int, ...]
    before: Layout
    after: Layout
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True, slots=True)
class ReshardStep:
    """One step, sized: its kind and axes, and its payload in bytes per device (of a slice: of the part cut out)."""

    kind: str
    axes: tuple[int, ...]
    num_bytes: int

    def narrowed(self) -> ReshardStep:
        """Returns the step for elements half as wide; what is summed on the way keeps its type."""
        return replace(self, num_bytes=self.num_bytes // 2) if self.kind in _MOVES else self


class PartedStep(NamedTuple):
    """What the cost of a step depends on.

    That is its kind and axes, and into how many parts the tensor is split before and after it.
    """

    kind: str
    axes: tuple[int, ...]
    before: int
    after: int

    def move(self, num_bytes: int) -> ReshardStep:
        """Returns the step of a tensor of `num_bytes`."""
        before, after = num_bytes // self.before, num_bytes // self.after
        return ReshardStep(
            self.kind, self.axes, after if self.kind == "slice" else payload_bytes(self.kind, before, after)
        )


def moves(
    num_bytes: int, rank: int, source: int, target: int, sizes: tuple[int, ...]
) -> tuple[ReshardStep, ...] | None:
    """Returns the steps that take a tensor of `num_bytes` from spec `source` to `target`.

    The result is None where there is no path.
    """
    steps = parted_path(rank, source, target, sizes)
    return None if steps is None else tuple([step.move(num_bytes) for step in steps])


@lru_cache(maxsize=1 << 16)
def parted_path(rank: int, source: int, target: int, sizes: tuple[int, ...]) -> tuple[PartedStep, ...] | None:
    """Returns the steps from spec `source` to spec `target` on axes of `sizes`; None where there is no path."""
    steps = reshard_path(rank, source, target, len(sizes))
    if steps is None:
        return None
    return tuple(
        [PartedStep(one.kind, one.axes, count_parts(one.before, sizes), count_parts(one.after, sizes)) for one in steps]
    )


def sent(steps: Sequence[ReshardStep]) -> int:
    """Returns the bytes that a device sends in these steps."""
    return sum(step.num_bytes for step in steps if step.kind != "slice")


def count_parts(layout: Layout, sizes: tuple[int, ...]) -> int:
    """Returns into how many parts a layout splits a tensor."""
    parts = 1
    for axes in layout:
        for axis in axes:
            parts *= sizes[axis]
    return parts


@lru_cache(maxsize=1 << 16)
def reshard_path(rank: int, source: int, target: int, num_axes: int) -> tuple[LayoutStep, ...] | None:
    """Returns the steps from spec `source` to spec `target`; None where a sum would have to be undone."""
    if source == target:
        return ()
    have, want = unpack(source, num_axes), unpack(target, num_axes)
    if any(w == PARTIAL and h != PARTIAL for h, w in zip(have, want, strict=True)):
        return None
    return _Path(rank, have, want).run()


class _Path:
    """The layout on its path, and what is still to be done."""

    def __init__(self, rank: int, have: tuple[int, ...], want: tuple[int, ...]) -> None:
        self.want = [split_dim(one) for one in want]
        self.dims: list[list[int]] = [[] for _ in range(rank)]
        for axis, one in enumerate(have):
            if one >= 2:
                self.dims[one - 2].append(axis)
        self.sums = [
            axis for axis, (h, w) in enumerate(zip(have, want, strict=True)) if h == PARTIAL and w == REPLICATED
        ]
        self.scatters = [axis for axis, (h, w) in enumerate(zip(have, want, strict=True)) if h == PARTIAL and w >= 2]
        self.slices = [axis for axis, (h, w) in enumerate(zip(have, want, strict=True)) if h == REPLICATED and w >= 2]
        self.leaving = {axis: h - 2 for axis, (h, w) in enumerate(zip(have, want, strict=True)) if h >= 2 and w != h}
        self.steps: list[LayoutStep] = []

    def run(self) -> tuple[LayoutStep, ...]:
        self.reorder(
            [[a for a in axes if a not in self.leaving] + [a for a in axes if a in self.leaving] for axes in self.dims]
        )
        while self.shrink() or self.exchange() or self.sum() or self.gather():
            pass
        self.reorder([sorted(axes) for axes in self.dims])
        return tuple(self.steps)

    def settled(self, dim: int | None) -> bool:
        """Says whether no axis has still to leave `dim`: what is put behind it now stays."""
        return dim is not None and not any(axis in self.leaving for axis in self.dims[dim])

    def shrink(self) -> bool:
        for kind, waiting in (("slice", self.slices), ("reduce_scatter", self.scatters)):
            ready = [axis for axis in waiting if self.settled(self.want[axis])]
            if ready:
                axis = ready[0] if kind == "slice" else ready[-1]
                waiting.remove(axis)
                self.note(kind, axis, None, self.want[axis])
                return True
        return False

    def exchange(self) -> bool:
        """Takes an axis from one dim to another."""
        for axis, dim in self.leaving.items():
            if self.dims[dim][-1] == axis and self.settled(self.want[axis]):
                del self.leaving[axis]
                self.note("all_to_all", axis, dim, self.want[axis])
                return True
        return False

    def sum(self) -> bool:
        if not self.sums:
            return False
        layout = tuple(map(tuple, self.dims))
        self.steps.append(LayoutStep("all_reduce", tuple(self.sums), layout, layout))
        self.sums = []
        return True

    def gather(self) -> bool:
        """Gathers along an axis that ends replicated.

        Where no such axis can be gathered, it takes one that waits for others to leave, which is cut again later.
        """
        last = [axis for axis, dim in self.leaving.items() if self.dims[dim][-1] == axis]
        if not last:
            return False
        axis = min(last, key=lambda a: (self.want[a] is not None, a))
        dim = self.leaving.pop(axis)
        if self.want[axis] is not None:
            self.slices.append(axis)
        self.note("all_gather", axis, dim, None)
        return True

    def note(self, kind: str, axis: int, source: int | None, target: int | None) -> None:
        before = tuple(map(tuple, self.dims))
        if source is not None:
            self.dims[source].pop()
        if target is not None:
            self.dims[target].append(axis)
        self.steps.append(LayoutStep(kind, (axis,), before, tuple(map(tuple, self.dims)), source, target))

    def reorder(self, dims: list[list[int]]) -> None:
        if dims == self.dims:
            return
        moved = sorted({axis for old, new in zip(self.dims, dims, strict=True) if old != new for axis in new})
        before = tuple(map(tuple, self.dims))
        self.dims = dims
        self.steps.append(LayoutStep("collective_permute", tuple(moved), before, tuple(map(tuple, dims))))
