"""How often kernels read what lies in memory, by the ops in them.

A kernel is an op whose result lies in memory, with all that is computed inside it (strategies/memory/fusion.py). It
reads each value in memory once, however many of its ops do; an op that is computed in several kernels reads in each.
So each read is counted where an op is the first to do so in a kernel, and what a step moves is the sum over its ops.
What is cut out or looked up is read by each op for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.graph.graph import Graph
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.op_costs import READS_PART, OpCosts
from rhino.strategies.memory.fusion import in_memory


def kernel_costs(
    graph: Graph,
    model: CostModel,
    alone: Sequence[bool],
    in_place: Set[int],
    given: Collection[int] = (),
    inside: Bools | None = None,
) -> OpCosts:
    """Returns what ops take in a program, in which some values are written `in_place`.

    It is of `inside` [ops] alone, or of all, and returns the values `given` beside those that the graph returns.
    A target that fuses what is cheap has a kernel for each other op, which reads its operands; the values `alone`
    [values] lie in its memory. Kernels of others read as `kernel_reads` says.
    """
    fusion = model.target.fusion
    if fusion == "cheap":
        return OpCosts(graph, model, alone, in_place)
    stored = in_memory(graph, given, fusion, by_bytes=True, inside=inside)
    return OpCosts(graph, model, stored, in_place, kernel_reads(graph, stored, in_place, inside).tolist())


def kernel_reads(graph: Graph, stored: Sequence[bool], in_place: Set[int], inside: Bools | None = None) -> Ints:
    """Returns in how many kernels an op is the first to read each of its operands from memory [uses].

    `stored` [values] are the results of kernels, and `in_place` those that are written into a larger value, which is
    not read. With `inside` [ops], the program has these ops alone.
    """
    counts = np.zeros(len(graph.uses), dtype=np.int64)
    source = _sources(graph, stored)
    for op in range(graph.num_ops) if inside is None else np.flatnonzero(inside).tolist():
        results = graph.results(op)
        if not graph.cls(op).free and (not results or any(stored[value] for value in results)):
            _count(graph, stored, source, op, 1 if results and results[0] in in_place else 0, counts)
    return counts


def _sources(graph: Graph, stored: Sequence[bool]) -> list[int]:
    """Returns what is read where a value is: what a view without memory of its own is a view of [values]."""
    found = list(range(graph.num_values))
    for op in range(graph.num_ops):
        if graph.cls(op).is_view:
            for value, operand in zip(graph.results(op), graph.operands(op).tolist(), strict=True):
                found[value] = value if stored[value] else found[operand]
    return found


def _count(graph: Graph, stored: Sequence[bool], source: Sequence[int], root: int, first: int, counts: Ints) -> None:
    """Adds the reads of one kernel, whose last op is `root`; of that, operands from `first` on are read."""
    read, inside, waiting = set[int](), {root}, [root]
    while waiting:
        op = waiting.pop()
        start, partly = int(graph.use_start[op]), graph.cls(op).name in READS_PART
        for position, value in enumerate(graph.operands(op).tolist()):
            if op == root and position < first:
                continue
            value = source[value]
            maker = int(graph.value_op[value])
            if stored[value] and (value not in read or (partly and position == 0)):
                counts[start + position] += 1
                if not (partly and position == 0):
                    read.add(value)
            elif not stored[value] and maker >= 0 and maker not in inside:
                inside.add(maker)
                waiting.append(maker)
