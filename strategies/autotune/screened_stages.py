"""Aceso's moves on a step that is sharded on several meshes: a screen's line as the search stage by stage sees it.

A kind of rank is a division: its mesh's last axis counts as `tp` and the others as `dp`, though the search of shardings
says for each tensor what it does on which axis. What Aceso tunes op by op is in what it found. What a stage computes is
what it would if its devices shared it without loss, as on the kind of rank with the least device-seconds of each
stretch; the rest counts as collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, prod
from typing import Final

import numpy as np

from rhino.strategies.autotune.stage_configs import Division, StageEstimates, Stretches, balanced
from rhino.strategies.autotune.stage_search import alleviate
from rhino.strategies.pipeline.stages.shape_screen import ScreenedLine
from rhino.strategies.pipeline.stages.shapes import Shape

MOST: Final = 1000
"""Configurations that the moves may lead to, of each number of stages."""

KEPT: Final = 8
"""Of how many ranks the best are returned, of each number of stages: estimates stage by stage know no schedule."""


def moved_ranks(
    line: ScreenedLine, meshes: Sequence[tuple[int, ...]], stages: Iterable[int], *, recomputes: bool
) -> list[tuple[int, ...]]:
    """Returns the best ranks that moves lead to, of each of some numbers of `stages`: each one's kind [ranks].

    `meshes` are those of the kinds of ranks. With `recomputes` stages may recompute what their memory asks for.
    """
    model = ScreenedStages(line, meshes, recomputes=recomputes)
    estimates, found = StageEstimates(model), dict[tuple[int, ...], None]()
    for number in stages:
        if (start := balanced(model, number)) is not None:
            every = alleviate(estimates, [start], MOST)
            ranks = dict.fromkeys([tuple([model.kinds[own] for own in one.divisions]) for one in every])
            found.update(dict.fromkeys(list(ranks)[:KEPT]))
    return list(found)


class ScreenedStages:
    """The line of a screen as a `StageModel`; `kinds` are the numbers of kinds of ranks by division.

    Kinds of one mesh in several parts of a cluster are variants of a division.
    """

    def __init__(self, line: ScreenedLine, meshes: Sequence[tuple[int, ...]], *, recomputes: bool) -> None:
        self.line = line.recomputing if recomputes else line
        self.num_places, self.num_devices = line.num_places, line.num_devices
        self.per_node = line.nodes.devices
        self.micro_batches: tuple[int, ...] = (line.problem.num_micro_batches,)
        self.kinds: dict[Division, int] = {}
        for number, mesh in enumerate(meshes):
            dp, tp = prod(mesh[:-1]), mesh[-1]
            alike = sum((one.dp, one.tp) == (dp, tp) for one in self.kinds)
            self.kinds[Division(dp, tp, alike)] = number
        self.shapes = line.shaped(1, sends=True).shapes
        each = [np.diag(line.work(1, number), 1) * shape.devices for number, shape in enumerate(self.shapes)]
        self.busy_s = np.concatenate([[0.0], np.cumsum(np.min(each, axis=0))])

    def divisions(self, micro_batches: int) -> tuple[Division, ...]:
        """See `StageModel`."""
        return tuple(sorted(self.kinds))

    def placed(self, division: Division, first: int) -> Division | None:
        """See `StageModel`."""
        alike = [one for one in sorted(self.kinds) if (one.dp, one.tp) == (division.dp, division.tp)]
        return next((one for one in alike if first in (self.shapes[self.kinds[one]].starts or ())), None)

    def shape(self, micro_batches: int, division: Division) -> Shape:
        """See `StageModel`."""
        return self.shapes[self.kinds[division]]

    def stretches(self, micro_batches: int, division: Division, behind: int, start: int) -> Stretches:
        """See `StageModel`."""
        kind = self.kinds[division]
        work = self.line.work(behind, kind)[start]
        compute_s = (self.busy_s - self.busy_s[start]) / division.devices
        seconds = self.line.stage_s(behind, kind, inf)[start]
        again_s = np.full(len(work), inf)
        np.subtract(seconds, work, out=again_s, where=seconds < inf)
        return Stretches(compute_s, work - compute_s, again_s, self.line.over_bytes(behind, kind)[start])

    def least_over(self, micro_batches: int, division: Division, behind: int, start: int, end: int) -> float:
        """See `StageModel`."""
        return float(self.line.least_over(behind, self.kinds[division])[start, end])
