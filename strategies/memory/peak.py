"""The predicted peak of a plan on a device: what is compared with the budget, and reported.

The rows of the search (`rhino.strategies.memory.resident_rows`) have to say what each choice keeps before any is made.
Once one is, the program of a device is known (`rhino.strategies.memory.device_graph`): which values lie in memory
(`rhino.strategies.memory.fusion`), and when (`rhino.strategies.memory.op_order`). The peak is the most bytes that are
alive at a time, and a margin for gaps between buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats
from rhino.ir.graph.graph import BARRIER, COPIED_UPDATE, MOVES, REDUCE, UPDATES, WHILE, YIELD, Graph
from rhino.ir.graph.host_values import values_on_host
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import ShardingPlan, make_plan
from rhino.strategies.cost.cost_model import PRODUCTS, CostModel
from rhino.strategies.cost.target import Target
from rhino.strategies.cost.wire import narrow
from rhino.strategies.memory.buffers import selection_sizes
from rhino.strategies.memory.copies import scheduled_copies
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.duplicates import with_duplicates
from rhino.strategies.memory.fusion import in_memory
from rhino.strategies.memory.host_memory import on_host
from rhino.strategies.memory.layout_copies import copied_arguments
from rhino.strategies.memory.loop_invariants import loop_invariants
from rhino.strategies.memory.near_memory import Span, near_spans, seconds_until
from rhino.strategies.memory.op_order import schedule
from rhino.strategies.memory.resident_rows import written_in_place
from rhino.strategies.memory.tiles import compact_bytes, copied_to_rows, ends_for_convolutions, row_bytes
from rhino.strategies.solver.problem import PeakOf

_HALVES: Final = frozenset({"bf16", "f16"})
_MOVED: Final = MOVES | {"stablehlo.gather"}


def predicted_peak(plan: ShardingPlan) -> float:
    """Returns the bytes that a plan takes of a device's main memory at most.

    Compilers keep temporaries in the nearer memory as far as they fit (strategies/memory/near_memory.py).
    """
    graph = with_duplicates(device_graph(plan), plan.target.fusion)
    lives = Lives(graph, plan.target, (plan.model.device.workspace_bytes or 0) if plan.model else 0)
    last = lives.num_times - 1
    spans = [(span, uses) for span, uses in lives.spans() if span[1] <= span[2]]
    temporary = [one for one in spans if one[0][1:] != (0, last)]
    throughout = sum(span[0] for span, _ in spans) - sum(span[0] for span, _ in temporary)
    alive = _alive([span for span, _ in temporary], lives.num_times)
    if plan.model and plan.model.device.near_bytes:
        near = near_spans(temporary, lives.clock(plan.model), plan.model)
        alive = alive - np.minimum(_alive(list(near), lives.num_times), plan.model.device.near_bytes)
    return throughout + float(alive.max(initial=0.0)) * (1 + plan.target.slack)


def _alive(spans: Sequence[Span], num_times: int) -> Floats:
    """Returns the bytes that are alive at each time [times]."""
    size, start, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    change = np.zeros(num_times + 1)
    np.add.at(change, start, size)
    np.subtract.at(change, end + 1, size)
    return np.cumsum(change)


def peak_of(choice: Choice) -> PeakOf:
    """Returns a function of the states of a choice [nodes]: the peak of the plan that they are."""
    return lambda states: predicted_peak(make_plan(choice, states))


class Lives:
    """What a device's program keeps in memory, and from when to when; each product takes `workspace_bytes`, too."""

    def __init__(self, graph: Graph, target: Target, workspace_bytes: int = 0) -> None:
        self.graph, self.target, self.workspace_bytes = graph, target, workspace_bytes
        self.hoisted = loop_invariants(graph) if target.hoists else {}
        self.in_memory = in_memory(graph, self.hoisted, target.fusion, by_bytes=target.fusion == "all")
        self.order = schedule(
            graph,
            self.in_memory,
            is_depth_first=target.is_depth_first,
            scatters_in_place=target.scatters_in_place,
        )
        self.num_times = self.order.num_times
        self.classes = [graph.cls(op) for op in range(graph.num_ops)]
        self.maker: list[int] = graph.value_op.tolist()
        self.narrow = narrow(graph, target).stored
        self.ends = ends_for_convolutions(graph)
        copies: list[int] = scheduled_copies(graph, self.order).tolist()
        self.num_bytes = [self.bytes_of(value) * copies[value] for value in range(graph.num_values)]
        self.operands = [graph.operands(op).tolist() for op in range(graph.num_ops)]
        self.is_free = [op >= 0 and self.classes[op].free for op in self.maker]
        moved = values_on_host(graph)
        for value in moved:
            self.num_bytes[value] = 0
        self.on_host = frozenset(on_host(graph)) - moved
        self.taken_over = {
            a.alias: number
            for number, a in enumerate(graph.arguments)
            if a.alias is not None and number not in self.on_host
        }
        taken = {graph.returns[result] for result in self.taken_over}
        self.in_place = {value for value in taken if self.maker[value] >= 0} | written_in_place(graph)
        for loop in graph.loops:  # what a loop keeps lies where it came from, if that is anywhere
            came = zip(graph.results(loop.op), self.operands[loop.op], strict=True)
            self.in_place -= {value for value, initial in came if self.is_free[initial]}

    def bytes_of(self, value: int) -> int:
        """Returns the bytes of a value as the compiler keeps it; of halves, what is only moved stays as it is."""
        kind, op = self.graph.type_of(value), self.maker[value]
        if op < 0:
            return compact_bytes(kind, self.target.tile)
        name = self.classes[op].name
        is_computed = name.startswith("stablehlo.") and name not in _MOVED and value not in self.graph.returns
        if name == COPIED_UPDATE:
            return row_bytes(kind, self.target.tile)
        size = compact_bytes(kind, self.target.tile, self.ends[value]) if value in self.ends else kind.num_bytes
        if self.narrow[value]:
            return size // 2
        return size * (2 if self.target.widens_halves and kind.dtype in _HALVES and is_computed else 1)

    def clock(self, model: CostModel) -> Floats:
        """Returns when times begin, in seconds of a step [times]."""
        return seconds_until(self.graph, self.order, self.num_bytes, model)

    def spans(self) -> Iterator[tuple[Span, Sequence[int] | None]]:
        """Yields all that is alive, with the times at which it is read meanwhile; None for what is given to the caller.

        Those times are left out where they are not known.
        """
        returned = set(self.graph.returns)
        for value in range(self.graph.num_values):
            if self.in_memory[value] and not self.is_free[value] and value not in self.in_place:
                yield self.value(value), None if value in returned else self.order.uses[value]
        yield from ((span, None) for span in chain(self.returned_copies(), self.not_in_place()))
        yield from ((span, ()) for span in self.layout_copies())
        for op, cls in enumerate(self.classes):
            if not cls.free:
                yield from ((span, ()) for span in self.beside(op))

    def value(self, value: int) -> Span:
        """Returns the life of a value that has memory of its own."""
        op, order, size = self.maker[value], self.order, self.num_bytes[value]
        if value in self.on_host:
            return size, order.first[value], order.end[value]
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
        if not self.target.updates_in_layouts:
            return
        for result, size in copied_arguments(self.graph, self.taken_over, self.target.tile):
            yield size, 0, self.order.stop[self.maker[self.graph.returns[result]]]
        for op in range(self.graph.num_ops):
            for value in copied_to_rows(self.graph, op):
                kind = self.graph.type_of(value)
                if (size := row_bytes(kind, self.target.tile)) > compact_bytes(kind, self.target.tile):
                    yield size, self.order.start[op], self.order.stop[op]

    def beside(self, op: int) -> Iterator[Span]:
        """Yields what an op needs beside operands and results: constants in memory, and its own temporaries."""
        cls, start, stop = self.classes[op], self.order.start[op], self.order.stop[op]
        if not cls.fusible and cls.name not in (REDUCE, WHILE, YIELD, BARRIER):
            for position, value in enumerate(self.operands[op]):
                if self.is_free[value] and not (position == 0 and cls.name in UPDATES):
                    yield self.num_bytes[value], start, stop
        if self.workspace_bytes and cls.name in PRODUCTS:
            yield self.workspace_bytes, start, stop
        if cls.name == "stablehlo.select_and_scatter" and self.target.expands_selections:
            inputs, outputs = selection_sizes(cls)
            yield from ((size, start, start) for size in inputs)
            yield from ((size, start, stop) for size in outputs)
