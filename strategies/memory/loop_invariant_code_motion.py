"""What XLA computes before a loop instead of in it, for it is the same each time round.

Such a value is then in memory as long as the loop runs.

XLA (`WhileLoopInvariantCodeMotion`; jaxlib 0.10.2 on a CPU, 2026-11-22) moves out of a loop's body what depends on
nothing that the loop changes: gathers of weights, above all, where a loop runs over micro-batches. Out of a loop within
a loop it may go on before the outer one. What takes no arithmetic (a view, a broadcast, a slice, a transpose) is
computed before the loop for what goes there, and again in the body for what stays. So are constants, and what is folded
into one; but what is computed from a counter, as a mask is, goes, and lies in memory then. A loop that runs once is
none to XLA. Of GPUs that is not so: there XLA leaves in a loop what it gathers (compiled for what describes a V100).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from rhino.ir.graph.graph import HANDS_ON, REPEATS, Graph, Loop, Repeats
from rhino.strategies.structure.loop_nesting import regions
from rhino.strategies.structure.regrouped import regrouped

_COUNTER: Final = "stablehlo.iota"
_STAYS: Final = REPEATS | {
    _COUNTER,
    *(f"stablehlo.{name}" for name in ("constant", "reshape", "reverse", "slice", "transpose")),
}
"""Ops that are moved for others alone (`NotWorthHoistingIndividually`)."""


def hoisted(graph: Graph, put_in_order: Collection[int]) -> Graph:
    """Returns the graph whose loops compute nothing that is the same each time round.

    `put_in_order` are the ops that put what a collective gave in the order of rows: they go where it goes.
    """
    loops = [loop for loop in graph.loops if loop.trips != 1]
    if not loops:
        return graph
    found = _Hoisting(graph, put_in_order)
    moved = [found.empty(loop) for loop in reversed(loops)]  # inner loops come after the outer one
    return found.written() if any(moved) else graph


class _Hoisting:
    def __init__(self, graph: Graph, put_in_order: Collection[int]) -> None:
        self.graph, self.put_in_order = graph, put_in_order
        self.classes = [graph.classes[number] for number in graph.op_class.tolist()]
        self.maker: list[int] = graph.value_op.tolist()
        uses: list[int] = graph.uses.tolist()
        self.operands = [uses[a:b] for a, b in pairwise(graph.use_start.tolist())]
        self.readers: dict[int, list[int]] = defaultdict(list)
        for op, values in enumerate(self.operands):
            for value in dict.fromkeys(values):
                self.readers[value].append(op)
        self.home, self.region = regions(graph), regions(graph)
        self.levels: dict[int, list[int]] = defaultdict(list)
        for op, region in enumerate(self.region):
            self.levels[region].append(op)
        self.counted = self.find_counted()
        self.again: list[int] = []
        """What is computed in bodies again.

        These ops, of one result each, and their results are numbered on behind those of the graph.
        """

    def find_counted(self) -> set[int]:
        """Returns the ops that depend on constants alone, and on a counter among these."""
        found: set[int] = set()
        for op, cls in enumerate(self.classes):
            if cls.free and (cls.name == _COUNTER or any(self.maker[value] in found for value in self.operands[op])):
                found.add(op)
        return found

    # What is moved

    def empty(self, loop: Loop) -> bool:
        """Moves what is the same each time round before a loop, and says whether there is anything."""
        level, home = self.levels[loop.op], self.region[loop.op]
        came = zip(self.graph.results(loop.op), self.operands[loop.op], loop.kept, strict=True)
        before = {value: initial for value, initial, kept in came if kept}
        alike, moved = set[int](), set[int]()
        for op in level:
            if self.classes[op].name not in HANDS_ON and all(
                self.is_alike(value, loop, before, alike) for value in self.operands[op]
            ):
                alike.add(op)
                if self.is_worth(op):
                    self.move(op, alike, moved)
        going = [op for op in level if op in moved]
        stay_too = self.compute_again(going, moved)
        for op in going:
            self.region[op] = home
            self.operands[op] = [before.get(value, value) for value in self.operands[op]]
        self.levels[loop.op] = [stay_too.get(op, op) for op in level if op not in moved or op in stay_too]
        place = self.levels[home].index(loop.op)
        self.levels[home][place:place] = going
        return bool(going)

    def is_alike(self, value: int, loop: Loop, before: Container[int], alike: Container[int]) -> bool:
        """Says whether a value is the same each time round.

        It comes from outside, is kept, or is computed from what is.
        """
        op = self.maker[value]
        return op in alike or value in before or op < 0 or (op != loop.op and self.region[op] != loop.op)

    def is_worth(self, op: int) -> bool:
        """Says whether an op that could be moved is, by itself."""
        cls = self.classes[op]
        return op in self.put_in_order or (cls.name not in _STAYS and (not cls.free or op in self.counted))

    def move(self, op: int, alike: Container[int], moved: set[int]) -> None:
        """Adds an op to those that are moved, and all that could be moved of what it needs."""
        waiting = [op]
        while waiting:
            op = waiting.pop()
            moved.add(op)
            waiting += [
                maker for value in self.operands[op] if (maker := self.maker[value]) in alike and maker not in moved
            ]

    def compute_again(self, going: list[int], moved: Container[int]) -> dict[int, int]:
        """Returns, by op that is moved for others alone, the op that computes it again in the body.

        The latter serves all that stays in the body and reads it.
        """
        found: dict[int, int] = {}
        for op in reversed(going):
            value = self.graph.results(op).start
            staying = [reader for reader in self.readers[value] if reader not in moved]
            if staying and self.operands[op] and not self.is_worth(op):
                found[op] = self.add_again(op)
                for reader in staying:
                    self.operands[reader] = [
                        len(self.maker) - 1 if one == value else one for one in self.operands[reader]
                    ]
        return found

    def add_again(self, op: int) -> int:
        """Adds an op that computes what another does, and returns it."""
        new = len(self.operands)
        self.again.append(op)
        self.operands.append(self.operands[op])
        self.maker.append(new)
        for value in self.operands[op]:
            self.readers[value].append(new)
        return new

    # The graph in which it is

    def written(self) -> Graph:
        """Returns the graph with all ops where they are now."""
        graph, order = self.extended(), [*self.in_order()]
        classes, op_class = [*graph.classes], graph.op_class.tolist()
        numbers, stored = dict[int, int](), set[int]()
        for op in order:
            number = op_class[op]
            if classes[number].free and (
                self.is_moved_by_itself(op) or any(self.maker[value] in stored for value in self.operands[op])
            ):
                stored.add(op)
                if number not in numbers:
                    numbers[number] = len(classes)
                    classes.append(replace(classes[number], free=False))
                op_class[op] = numbers[number]
        return regrouped(graph, [(op,) for op in order], classes, [op_class[op] for op in order], self.operands)

    def is_moved_by_itself(self, op: int) -> bool:
        """Says whether an op has been moved, and not for others alone."""
        return op < self.graph.num_ops and self.region[op] != self.home[op] and self.is_worth(op)

    def extended(self) -> Graph:
        """Returns the graph with what is recomputed behind all else."""
        graph, again = self.graph, self.again
        values = [graph.results(op).start for op in again]
        repeats = graph.repeats
        if repeats is not None:
            times, copies, run = repeats.times[again], repeats.copies[values], repeats.run[again]
            repeats = Repeats(
                np.append(repeats.times, times), np.append(repeats.copies, copies), np.append(repeats.run, run)
            )
        return replace(
            graph,
            op_class=np.append(graph.op_class, graph.op_class[again]),
            result_start=np.append(graph.result_start, graph.num_values + 1 + np.arange(len(again))),
            value_type=np.append(graph.value_type, graph.value_type[values]),
            value_op=np.array(self.maker),
            repeats=repeats,
        )

    def in_order(self) -> Iterator[int]:
        """Yields all ops, each loop's behind it."""
        waiting = self.levels[-1][::-1]
        while waiting:
            op = waiting.pop()
            yield op
            waiting += self.levels.get(op, [])[::-1]
