"""What a plan keeps in the memory of a device, and from when to when.

The schedule is the order of the ops. Arguments live throughout; a result that takes over an argument's buffer lives in it. Any
other value that has memory of its own (`rhino.ir.graph.materialized`) lives from its op to its last reader, at the size of the spec it is
stored in; who reads a view reads its source. A resharded copy is one more tensor, for the time of the op that needs or makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rhino.ir.graph import COPY_FREE, Graph, TensorType
from rhino.ir.spec import Spec
from rhino.strategies.problem import Floats, Ints, Residents
from rhino.strategies.reshard import count_parts, way

if TYPE_CHECKING:
    from rhino.strategies.build import Builder, Use

_UPDATES = frozenset({"stablehlo.scatter", "stablehlo.dynamic_update_slice"})
"""Ops that write into their first operand's buffer where nothing else reads it."""


class Memory:
    """The residents of a choice problem, from the builder that has made its nodes and edges."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def residents(self) -> tuple[Residents, Residents]:
        """Returns the residents of nodes and of edges."""
        b = self.builder
        graph = b.graph
        end = last_times(b.graph, b.in_memory)
        rows: list[tuple[int, int, int, int]] = []
        in_place = {graph.returns[result] for result in b.taken_over} | b.in_place
        for value in range(graph.num_values):
            op, kind = int(graph.value_op[value]), graph.types[b.value_type[value]]
            if not kind.num_bytes or not b.in_memory[value] or value in in_place:
                continue
            start, stop = (0, graph.num_ops) if op < 0 else (op, int(end[value]))
            node = b.giver[value]
            if node >= 0:
                rows.append((node, self.stored_bytes(node, value), start, stop))
        for op, node in b.node_of_op.items():
            rows += self.computed_here(op, node)
        rows += self.returned_copies()
        rows += self.not_in_place(end)
        copies = [
            row
            for pair, use, time, stays in b.copies
            if (row := self.copy_bytes(pair, use, time, time if stays < 0 else int(end[stays]))) is not None
        ]
        return _residents(rows), _residents(copies)

    def returned_copies(self) -> list[tuple[int, int, int, int]]:
        """Returns the residents that results are beside their values: an argument or a free value returned, or one value again."""
        b = self.builder
        graph, seen, found = b.graph, set(), []
        for number, value in enumerate(graph.returns):
            if number not in b.taken_over and (value in seen or b.giver[value] < 0 or graph.value_op[value] < 0):
                node = b.sinks[number]
                kind, states = graph.types[b.value_type[value]], b.nodes[node].states
                sizes = np.array([float(b.local_bytes(kind, s.comes[0])) for s in states])
                found.append((node, b.intern(sizes), max(int(graph.value_op[value]), 0), graph.num_ops))
            seen.add(value)
        return found

    def not_in_place(self, end: Ints) -> list[tuple[int, int, int, int]]:
        """Returns the residents that results are beside the arguments whose buffers they take over, until those are read no more.

        An op that computes element by element may write over what it reads; another needs its operands to its end.
        """
        b = self.builder
        graph, found = b.graph, []
        for result, argument in b.taken_over.items():
            value = graph.returns[result]
            op, last = int(graph.value_op[value]), int(end[argument])
            if op >= 0 and b.giver[value] >= 0 and (last > op or (last == op and not graph.cls(op).fusible)):
                found.append((b.giver[value], self.stored_bytes(b.giver[value], value), op, last))
        return found

    def computed_here(self, op: int, node: int) -> list[tuple[int, int, int, int]]:
        """Returns the residents that free operands are: computed for their reader, as it needs them, unless updated in place."""
        b = self.builder
        cls = b.graph.classes[b.op_class[op]]
        if cls.fusible or cls.name == "stablehlo.reduce":
            return []
        found = []
        for position, value in enumerate(b.uses[b.use_start[op] : b.use_start[op + 1]]):
            if b.giver[value] < 0 and not (position == 0 and cls.name in _UPDATES):
                states, kind = b.nodes[node].states, b.graph.types[b.value_type[value]]
                sizes = np.array([float(b.local_bytes(kind, s.needs[position])) for s in states])
                found.append((node, b.intern(sizes), op, op))
        return found

    def stored_bytes(self, node: int, value: int) -> int:
        """Returns the table of bytes of a value as its node stores it."""
        b = self.builder
        states, offset, kind = b.nodes[node].states, b.offset[value], b.graph.types[b.value_type[value]]
        sizes = lambda: np.array([b.local_bytes(kind, s.comes[offset]) for s in states], dtype=np.float64)  # noqa: E731
        return b.remembered(("bytes", id(states), offset, kind), sizes)

    def copy_bytes(self, pair: tuple[int, int], use: Use, time: int, until: int) -> tuple[int, int, int, int] | None:
        """Returns the resident that the second copy of a resharded value is, or None where no states reshard it.

        It is there for the time of its reader; but a collective writes to memory, so the stored copy of a fused value stays.
        """
        b = self.builder
        edge = b.edge_number.get(pair)
        if edge is None:
            return None
        u, v = pair
        key = ("copy", id(b.nodes[u].states), id(b.nodes[v].states), use)
        table = b.remembered(key, lambda: self.copy_table(u, v, use))
        return (edge, table, time, until) if b.tables[table].any() else None

    def copy_table(self, u: int, v: int, use: Use) -> Floats:
        """Returns the bytes that a reshard adds [states of u, states of v]."""
        b = self.builder
        given, needed = b.ends(u, v, use)
        kind = b.graph.types[use.type]
        rows = [[self.largest_on_way(kind, g, n) for n in needed] for g in given]
        table = np.array(rows, dtype=np.float64)
        return table.T.copy() if use.swapped else table

    def largest_on_way(self, kind: TensorType, source: Spec, target: Spec) -> int:
        """Returns the bytes of the largest tensor that a reshard makes, the last one included; none where nothing is to be done."""
        sizes = self.builder.sizes
        steps = way(len(kind.shape), source, target, len(sizes)) or ()
        return max((kind.num_bytes // count_parts(step.after, sizes) for step in steps), default=0)


def written_in_place(graph: Graph) -> set[int]:
    """Returns the values that live in another's buffer: what a loop keeps as it came, and what a body writes into what it carries."""
    found = set()
    for loop in graph.loops:
        carried = graph.results(loop.op)
        found |= {value for value, kept in zip(carried, loop.kept, strict=True) if kept}
        for value, into in zip(graph.operands(loop.end).tolist(), carried, strict=True):
            op = int(graph.value_op[value])
            last_read = max((o for o in range(op, loop.end) if o > op and into in graph.operands(o)), default=op)
            if op > loop.op and graph.cls(op).name in _UPDATES and graph.operands(op)[0] == into and last_read == op:
                found.add(value)
    return found


def last_times(graph: Graph, in_memory: Sequence[bool]) -> Ints:
    """Returns the time of each value's last reader [values]; readers of a value without memory read its operands.

    What a loop's body reads from outside, and what the loop carries, is there until the loop ends.
    """
    uses, use_start, op_class, result_start = (a.tolist() for a in (graph.uses, graph.use_start, graph.op_class, graph.result_start))
    read = np.repeat(np.arange(graph.num_ops), np.diff(graph.use_start))
    defined = graph.value_op[graph.uses]
    for loop in reversed(graph.loops):  # inner loops first
        read = np.where((read > loop.op) & (read <= loop.end) & (defined <= loop.op), loop.end, read)
    end = np.maximum(graph.value_op, 0).copy()
    np.maximum.at(end, graph.uses, read)
    end[list(graph.returns)] = graph.num_ops
    view = [c.name in COPY_FREE and len(c.operands) == 1 for c in graph.classes]
    last = end.tolist()
    for op in range(graph.num_ops - 1, -1, -1):
        result = result_start[op]
        if result_start[op + 1] == result + 1 and (view[op_class[op]] or not in_memory[result]):
            for operand in uses[use_start[op] : use_start[op + 1]]:
                last[operand] = max(last[operand], last[result])
    for loop in graph.loops:
        for value in graph.results(loop.op):
            last[value] = max(last[value], loop.end)
    return np.array(last, dtype=np.int64)


def _residents(rows: list[tuple[int, int, int, int]]) -> Residents:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Residents(columns[0], columns[1], columns[2], columns[3])
