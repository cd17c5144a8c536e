"""The ops of a micro-batch as stages see them: a loop of the model is one with all that is in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.graph.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """What is in one stage as a whole, by the number of its first op.

    `of` [ops] is the unit that each op is in. `before` has what each unit of the micro-batch reads from, and `behind`
    what reads from it, both in the order of the program.
    """

    of: Ints
    before: dict[int, list[int]]
    behind: dict[int, list[int]]


def units_of(graph: Graph, body: Bools) -> Units:
    """Returns the units of the ops `body` [ops] of a micro-batch."""
    unit: Ints = np.arange(graph.num_ops)
    for loop in graph.loops[::-1]:
        if body[loop.op]:
            unit[loop.op : loop.end + 1] = loop.op
    inside = np.flatnonzero(body).tolist()
    value_op = graph.value_op.tolist()
    edges = {
        (int(unit[made_by]), int(unit[op])): None
        for op in inside
        for value in graph.operands(op).tolist()
        if (made_by := value_op[value]) >= 0 and body[made_by] and unit[made_by] != unit[op]
    }
    before: dict[int, list[int]] = {int(unit[op]): [] for op in inside}
    behind: dict[int, list[int]] = {op: [] for op in before}
    for source, target in edges:
        before[target].append(source)
        behind[source].append(target)
    return Units(unit, before, behind)
