"""All-reduces that XLA sends as one: they are summed at one time, for which the first of them waits.

XLA (`AllReduceCombiner`; jaxlib 0.10.2 on a CPU, 2026-11-22) visits each op after its operands, from the results on,
and joins all-reduces of one kind, at most 256 and of any size, up to the first that depends on one of those. Then it
begins anew with what is left. A loop's body is gone through by itself. So in a data-parallel step the loss waits for
the last small gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from typing import Final

import numpy as np

from rhino.ir.graph.graph import Graph, OpClass
from rhino.strategies.structure.loop_nesting import level_reader, post_order, regions
from rhino.strategies.structure.regrouped import regrouped

_MOST_JOINED: Final = 256


def joined(graph: Graph, kinds: Mapping[int, Hashable]) -> Graph:
    """Returns the graph with its all-reduces joined; `kinds` are those of the classes that are all-reduces."""
    if np.isin(graph.op_class, list(kinds)).sum() <= 1:
        return graph
    found = _Joining(graph, kinds)
    groups = found.groups()
    return found.written(groups) if groups else graph


class _Joining:
    def __init__(self, graph: Graph, kinds: Mapping[int, Hashable]) -> None:
        self.graph = graph
        self.kind_of = [kinds.get(number) for number in graph.op_class.tolist()]
        self.region = regions(graph)
        uses: list[int] = graph.uses.tolist()
        self.operands = [uses[a:b] for a, b in pairwise(graph.use_start.tolist())]
        self.needs = self.find_needs()

    def find_needs(self) -> list[dict[int, None]]:
        """Returns which ops of its own level each op needs, and last the function's results [ops and the end].

        A loop also needs what its body needs.
        """
        maker: list[int] = self.graph.value_op.tolist()
        needs: list[dict[int, None]] = [{} for _ in self.operands]
        for op, values in enumerate(self.operands):
            for home in [maker[value] for value in values if maker[value] >= 0]:
                reader = level_reader(self.region, op, home)
                if reader >= 0:
                    needs[reader][home] = None
        return [*needs, {maker[value]: None for value in self.graph.returns if maker[value] >= 0}]

    # What is joined

    def groups(self) -> list[tuple[int, ...]]:
        """Returns the all-reduces that are joined, in the order in which XLA comes to them."""
        roots = [self.graph.num_ops, *(loop.end for loop in self.graph.loops)]
        return [group for root in roots for group in self.groups_below(root)]

    def groups_below(self, root: int) -> Iterator[tuple[int, ...]]:
        """Yields the all-reduces that are joined among those that `root` needs."""
        bit: dict[int, int] = {}
        below: dict[int, int] = {}  # by bits: the all-reduces that an op needs
        for op in post_order(root, lambda op: self.needs[op]):
            below[op] = 0
            for other in self.needs[op]:
                below[op] |= below[other] | bit.get(other, 0)
            if op != root and self.kind_of[op] is not None:
                bit[op] = 1 << len(bit)
        left = dict.fromkeys(bit)
        while left:
            group = self.first_group(left, bit, below)
            for op in group:
                del left[op]
            if len(group) > 1:
                yield group
                ours, needed = sum(bit[op] for op in group), 0
                for op in group:
                    needed |= below[op]
                below |= {op: below[op] | ours | needed for op in left if below[op] & ours}

    def first_group(
        self, left: Mapping[int, None], bit: Mapping[int, int], below: Mapping[int, int]
    ) -> tuple[int, ...]:
        """Returns the first all-reduce that is left, and those that are joined to it.

        Where others were joined before, an earlier one may have come to depend on a later one.
        """
        group: list[int] = []
        first, ours, needed = next(iter(left)), 0, 0
        for op in left:
            if self.kind_of[op] != self.kind_of[first]:
                continue
            if below[op] & ours or bit[op] & needed or len(group) == _MOST_JOINED:
                break
            group.append(op)
            ours |= bit[op]
            needed |= below[op]
        return tuple(group)

    # The graph in which it is

    def written(self, groups: Sequence[tuple[int, ...]]) -> Graph:
        """Returns the graph in which each group is one op, where the last of it was."""
        graph, parts = self.graph, {max(group): group for group in groups}
        order = self.in_order(parts)
        classes, op_class = [*graph.classes], list[int]()
        for op in order:
            op_class.append(len(classes) if op in parts else int(graph.op_class[op]))
            if op in parts:
                classes.append(_one_class([graph.cls(part) for part in parts[op]]))
        return regrouped(graph, [parts.get(op, (op,)) for op in order], classes, op_class, self.operands)

    def in_order(self, parts: Mapping[int, tuple[int, ...]]) -> list[int]:
        """Returns all ops in an order in which they can run, each group at its last op.

        Where there is a choice, the order is that of the graph.
        """
        one = {op: last for last, group in parts.items() for op in group}
        levels: dict[int, list[int]] = defaultdict(list)
        for op in range(self.graph.num_ops):
            if one.get(op, op) == op:
                levels[self.region[op]].append(op)
        result: list[int] = []
        waiting = self.level_in_order(levels[-1], one, parts)[::-1]
        while waiting:
            op = waiting.pop()
            result.append(op)
            waiting += self.level_in_order(levels.get(op, []), one, parts)[::-1]
        return result

    def level_in_order(
        self, ops: Sequence[int], one: Mapping[int, int], parts: Mapping[int, tuple[int, ...]]
    ) -> list[int]:
        """Returns the ops of one level in order; `one` is what stands for each op of a group."""
        missing: dict[int, int] = {}
        readers: dict[int, list[int]] = defaultdict(list)
        for op in ops:
            needed = dict.fromkeys(
                one.get(n, n) for n in chain.from_iterable(self.needs[part] for part in parts.get(op, (op,)))
            )
            missing[op] = len(needed)
            for other in needed:
                readers[other].append(op)
        ready = [op for op in ops if not missing[op]]
        heapify(ready)
        result: list[int] = []
        while ready:
            result.append(heappop(ready))
            for reader in readers[result[-1]]:
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(ready, reader)
        return result


def _one_class(classes: Sequence[OpClass]) -> OpClass:
    """Returns the class of an op that is several all-reduces."""
    operands, results = (
        tuple(chain.from_iterable(side)) for side in ([c.operands for c in classes], [c.results for c in classes])
    )
    return replace(classes[0], operands=operands, results=results)
