"""The predicted peak of a plan on a device: what is compared with the budget, and reported.

The rows of the search (`rhino.strategies.memory.resident_rows`) have to say what each choice keeps before any is made.
Once one is, the program of a device is known (`rhino.strategies.memory.device_graph`): which values lie in memory
(`rhino.strategies.memory.fusion`), and when (`rhino.strategies.memory.op_order`). The peak is the most bytes that are
alive at a time, and a margin for gaps between buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Final

import numpy as np

from rhino.ir.graph.graph import BARRIER, MOVES, REDUCE, UPDATES, WHILE, YIELD, Graph, TensorType
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import ShardingPlan, make_plan
from rhino.strategies.cost.target import Target
from rhino.strategies.memory.buffers import selection_sizes
from rhino.strategies.memory.copies import scheduled_copies
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.fusion import in_memory
from rhino.strategies.memory.layout_copies import copied_arguments
from rhino.strategies.memory.loop_invariants import loop_invariants
from rhino.strategies.memory.op_order import schedule
from rhino.strategies.memory.resident_rows import written_in_place
from rhino.strategies.solver.problem import PeakOf

_MARGIN: Final = 0.1
"""What is added to temporaries, as a share of them, for gaps between buffers (docs/memory.md)."""

_HALVES: Final = frozenset({"bf16", "f16"})
_MOVED: Final = MOVES | {"stablehlo.gather"}

Span = tuple[int, int, int]
"""Bytes, and the first and last time at which they are alive."""


def predicted_peak(plan: ShardingPlan) -> float:
    """Returns the bytes that a plan takes of a device's main memory at most.

    Compilers keep temporaries in the nearer memory as far as they fit (XLA:TPU's memory space assignment).
    """
    lives = Lives(device_graph(plan), plan.target)
    spans = np.array([one for one in lives.spans() if one[1] <= one[2]], dtype=np.int64).reshape(-1, 3)
    size, start, end = spans.T
    change = np.zeros(lives.num_times + 1)
    np.add.at(change, start, size)
    np.subtract.at(change, end + 1, size)
    throughout = float(size[(start == 0) & (end == lives.num_times - 1)].sum())
    temporary = max(float(np.cumsum(change).max()) - throughout - plan.near_bytes, 0.0)
    return throughout + temporary * (1 + _MARGIN)


def peak_of(choice: Choice) -> PeakOf:
    """Returns a function of the states of a choice [nodes]: the peak of the plan that they are."""
    return lambda states: predicted_peak(make_plan(choice, states))


class Lives:
    """What a device's program keeps in memory, and from when to when."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.hoisted = loop_invariants(graph) if target.hoists else {}
        self.in_memory = in_memory(graph, self.hoisted, target.fusion)
        self.order = schedule(graph, self.in_memory)
        self.num_times = self.order.num_times
        self.classes = [graph.cls(op) for op in range(graph.num_ops)]
        self.maker: list[int] = graph.value_op.tolist()
        copies: list[int] = scheduled_copies(graph, self.order).tolist()
        self.num_bytes = [self.bytes_of(value) * copies[value] for value in range(graph.num_values)]
        self.operands = [graph.operands(op).tolist() for op in range(graph.num_ops)]
        self.is_free = [op >= 0 and self.classes[op].free for op in self.maker]
        self.taken_over = {a.alias: number for number, a in enumerate(graph.arguments) if a.alias is not None}
        taken = {graph.returns[result] for result in self.taken_over}
        self.in_place = {value for value in taken if self.maker[value] >= 0} | written_in_place(graph)
        for loop in graph.loops:  # what a loop keeps lies where it came from, if that is anywhere
            came = zip(graph.results(loop.op), self.operands[loop.op], strict=True)
            self.in_place -= {value for value, initial in came if self.is_free[initial]}

    def bytes_of(self, value: int) -> int:
        """Returns the bytes of a value as the compiler keeps it; of halves, what is only moved stays as it is."""
        kind, op = self.graph.type_of(value), self.maker[value]
        if op < 0:
            return _padded(kind, self.target.tile)
        name = self.classes[op].name
        is_computed = name.startswith("stablehlo.") and name not in _MOVED and value not in self.graph.returns
        return kind.num_bytes * (2 if self.target.widens_halves and kind.dtype in _HALVES and is_computed else 1)

    def spans(self) -> Iterator[Span]:
        """Yields all that is alive."""
        for value in range(self.graph.num_values):
            if self.in_memory[value] and not self.is_free[value] and value not in self.in_place:
                yield self.value(value)
        yield from self.returned_copies()
        yield from self.not_in_place()
        yield from self.layout_copies()
        for op, cls in enumerate(self.classes):
            if not cls.free:
                yield from self.beside(op)

    def value(self, value: int) -> Span:
        """Returns the life of a value that has memory of its own."""
        op, order, size = self.maker[value], self.order, self.num_bytes[value]
        if op < 0:
            return size, 0, self.num_times - 1
        if value in self.hoisted:
            loop = self.hoisted[value]
            return size, order.start[loop.op], order.stop[loop.end]
        made = order.start[op] if self.classes[op].name == WHILE else order.stop[op]
        return size, made, max(order.end[value], order.stop[op])

    def returned_copies(self) -> Iterator[Span]:
        """Yields what results are beside their values: an argument or a free value returned, or one value again."""
        seen = set()
        for number, value in enumerate(self.graph.returns):
            if number not in self.taken_over and (value in seen or self.is_free[value] or self.maker[value] < 0):
                yield self.num_bytes[value], 0, self.num_times - 1
            seen.add(value)

    def not_in_place(self) -> Iterator[Span]:
        """Yields what results are beside the arguments whose buffers they take over, until those are read no more."""
        order = self.order
        for result, argument in self.taken_over.items():
            value = self.graph.returns[result]
            op = self.maker[value]
            if op < 0 or self.is_free[value]:
                continue
            last, made = order.end[argument], order.stop[op]
            if last > made or (last == made and not self.classes[op].fusible):
                yield self.num_bytes[value], made, last

    def layout_copies(self) -> Iterator[Span]:
        """Yields copies of arguments in the layouts of their updates, until these are computed."""
        for result in copied_arguments(self.graph, self.taken_over) if self.target.updates_in_layouts else ():
            value = self.graph.returns[result]
            yield self.num_bytes[value], 0, self.order.stop[self.maker[value]]

    def beside(self, op: int) -> Iterator[Span]:
        """Yields what an op needs beside operands and results: constants in memory, and its own temporaries."""
        cls, start, stop = self.classes[op], self.order.start[op], self.order.stop[op]
        if not cls.fusible and cls.name not in (REDUCE, WHILE, YIELD, BARRIER):
            for position, value in enumerate(self.operands[op]):
                if self.is_free[value] and not (position == 0 and cls.name in UPDATES):
                    yield self.num_bytes[value], start, stop
        if cls.name == "stablehlo.select_and_scatter":
            inputs, outputs = selection_sizes(cls)
            yield from ((size, start, start) for size in inputs)
            yield from ((size, start, stop) for size in outputs)


def _padded(kind: TensorType, tile: tuple[int, int]) -> int:
    """Returns the bytes of an argument whose last two dims lie in tiles, with its dims in the order that pads least.

    Of fewer rows than a tile has, tiles have as many as the next power of two.
    """
    most_rows, columns = tile
    if tile == (1, 1) or len(kind.shape) < len(tile) or not kind.num_bytes:
        return kind.num_bytes
    sizes = []
    for height, width in permutations(kind.shape, 2):
        rows = min(most_rows, 1 << (height - 1).bit_length())
        sizes.append(kind.num_bytes // (height * width) * -(-height // rows) * rows * -(-width // columns) * columns)
    return min(sizes)
