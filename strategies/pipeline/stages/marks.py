"""Stages that follow from marks in the model.

What is before a boundary belongs to stages before it, what is behind it to stages behind.

A mark is of level L where L - 1 others stand before it on the longest way to it, and parts stage L - 1 from stage L.
The gradient of a marked value crosses back there: its mark is of the level that as many marks behind it make. So an op
is on stage

- s or an earlier one, where it leads to the mark of level s + 1, or follows from that level's mark in the backward
  pass;
- s or a later one, where it follows from the mark of level s, and not from its gradient's.

What the two leave one stage is pinned to it. Anything else (what follows from no mark, or leads to none) is left to the
search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rhino.ir.arrays import Bools
from rhino.ir.graph.graph import Graph
from rhino.ir.plan.stages import VirtualStages
from rhino.strategies.pipeline.stages.units import units_of


@dataclass(frozen=True, slots=True)
class Marked:
    """The number of stages that marks make, and the virtual stage of each op that they leave one.

    `misplaced` are marks that part nothing: in a loop of the model, or in what runs again in the backward pass.
    """

    num_stages: int
    stages: dict[int, int]
    misplaced: tuple[int, ...]


def marked_stages(graph: Graph, body: Bools, forward: Sequence[int], back: Sequence[int]) -> Marked:
    """Returns what follows from marks on the ops `forward` and `back` of a micro-batch, whose ops are `body` [ops]."""
    return _Marks(graph, body, forward, back).found()


class _Marks:
    def __init__(self, graph: Graph, body: Bools, forward: Sequence[int], back: Sequence[int]) -> None:
        self.forward, self.back = frozenset(forward), frozenset(back)
        self.units = units_of(graph, body)

    def found(self) -> Marked:
        before, behind = self.units.before, self.units.behind
        ops = list(before)
        level, back_level = self.levels(ops, before, self.forward), self.levels(ops[::-1], behind, self.back)
        last = max((level[op] for op in self.forward & level.keys()), default=0)
        most: dict[int, int] = {}
        least: dict[int, int] = {}
        ahead: dict[int, int] = {}
        for op in ops:  # what follows from marks
            most[op] = min((back_level[one] - 1 if one in self.back else most[one] for one in before[op]), default=last)
            reached = max((level[one] if one in self.forward else least[one] for one in before[op]), default=0)
            least[op] = min(reached, most[op])
        for op in ops[::-1]:  # what leads to them
            ahead[op] = min(
                (min(level[one] - 1, ahead[one]) if one in self.forward else ahead[one] for one in behind[op]),
                default=last,
            )
        stages, virtual = {}, VirtualStages(last + 1)
        marks = self.forward | self.back
        for op in ops:
            if op in marks:
                continue
            if most[op] < last:
                stages[op] = virtual.opposite(most[op])
            elif least[op] == ahead[op]:
                stages[op] = least[op]
        inner = [op for op in sorted(marks) if self.units.of[op] != op]
        again = [op for op in sorted(self.forward & most.keys()) if most[op] < last]
        return Marked(last + 1, stages, tuple(inner + again))

    def levels(self, ops: Sequence[int], toward: dict[int, list[int]], marks: frozenset[int]) -> dict[int, int]:
        """Returns how many marks stand one after the other on the longest path to each op, itself included.

        `ops` are in the order of these paths.
        """
        level: dict[int, int] = {}
        for op in ops:
            level[op] = max((level[one] for one in toward[op]), default=0) + (op in marks)
        return level
