"""What a plan takes of a device, as XLA would assign it: the peak that is predicted, told of the budget and reported.

The rows of the search (`rhino.strategies.memory.resident_rows`) have to say what each choice keeps before any is made.
Once one is, the program of a device is known (`rhino.strategies.memory.device_graph`): what is computed inside what
(`rhino.strategies.memory.fusion`), in which order (`rhino.strategies.memory.op_order`), and where it lies
(`rhino.strategies.memory.buffer_assignment`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rhino.ir.graph.graph import BARRIER, REDUCE, UPDATES, WHILE, YIELD, Graph
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import ShardingPlan, make_plan
from rhino.strategies.memory.buffer_assignment import Buffer, packed
from rhino.strategies.memory.buffers import aligned, selection_sizes
from rhino.strategies.memory.carried import carried_on
from rhino.strategies.memory.copies import scheduled_copies
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.fusion import Fused, fuse
from rhino.strategies.memory.op_order import OpOrder, schedules_fused
from rhino.strategies.memory.resident_rows import written_in_place
from rhino.strategies.solver.problem import PeakOf

_HEAP_SHARE: Final = 2 / 3
_MARGINS: Final = (0.0725, 0.015)
"""What temporaries are told to take is so much of the heap in which they are packed and, for the rest, what of them is
there at most at a time, for how far apart XLA's two are is half an accident. To this is added, for what is not told as
XLA has it, the first of the margins in the order that is most often XLA's, the second in the other one. docs/memory.md
has the figures."""

_ADDRESS_BYTES: Final = 8


def predicted_peak(plan: ShardingPlan) -> float:
    """Returns the bytes that a plan takes of a device at most."""
    graph = device_graph(plan)
    fused = fuse(graph)
    return max(
        _peak(Lives(graph, fused, plan), margin)
        for plan, margin in zip(schedules_fused(graph, fused), _MARGINS, strict=False)
    )


def peak_of(choice: Choice) -> PeakOf:
    """Returns a function of the states of a choice [nodes]: the peak of the plan that they are."""
    return lambda states: predicted_peak(make_plan(choice, states))


def _peak(lives: Lives, margin: float) -> float:
    """Returns the bytes that a program takes in one order, with a margin, as a share of its temporaries."""
    found = packed([*lives.buffers()], [*lives.vacant()], lives.num_times)
    return found.kept_bytes + (_HEAP_SHARE * found.heap_bytes + (1 - _HEAP_SHARE) * found.live_bytes) * (1 + margin)


class Lives:
    """The buffers of a device's program, and when each holds something."""

    def __init__(self, graph: Graph, fused: Fused, plan: OpOrder) -> None:
        self.graph, self.fused, self.plan = graph, fused, plan
        self.num_times = plan.num_times
        self.classes = [graph.classes[number] for number in graph.op_class.tolist()]
        self.maker: list[int] = graph.value_op.tolist()
        self.num_bytes: list[int] = (graph.value_bytes() * scheduled_copies(graph, plan)).tolist()
        self.operands = [graph.operands(op).tolist() for op in range(graph.num_ops)]
        self.is_free = [op >= 0 and self.classes[op].free for op in self.maker]
        self.taken_over = {a.alias: number for number, a in enumerate(graph.arguments) if a.alias is not None}
        self.copied = {argument: (since, until) for argument, since, until in plan.copied}
        self.results = frozenset([value for number, value in enumerate(graph.returns) if number not in self.taken_over])
        self.in_place = {graph.returns[result] for result in self.taken_over} | written_in_place(graph)
        for loop in graph.loops:  # what a loop keeps lies where it came from, if that is anywhere
            came = zip(graph.results(loop.op), self.operands[loop.op], strict=True)
            self.in_place -= {value for value, initial in came if self.is_free[initial]}
        self.in_place |= carried_on(graph, fused.in_memory)
        self.over = {self.result_over(op, value): value for op, values in plan.over.items() for value in values}
        """What each result is written over that is written over something."""

    def buffers(self) -> Iterator[Buffer]:
        """Yields all buffers."""
        for value in range(self.graph.num_values):
            if self.fused.in_memory[value] and not self.is_free[value] and value not in self.in_place:
                yield self.buffer_of(value)
        for argument, (since, until) in self.copied.items():
            yield self.temporary(argument, since, until)
        yield from self.returned_copies()
        yield from self.not_in_place()
        for op, cls in enumerate(self.classes):
            if not cls.free:
                yield from self.beside(op)
        yield from self.repeated()
        yield from self.tables()

    def temporary(self, value: int, start: int, end: int) -> Buffer:
        """Returns a buffer of a value's size."""
        return Buffer(aligned(self.num_bytes[value]), start, end, self.plan.rank[value])

    def result_over(self, op: int, value: int) -> int:
        """Returns which result of an op is written over a value: of a loop what starts as that."""
        return self.graph.results(op)[self.operands[op].index(value) if self.classes[op].name == WHILE else 0]

    def buffer_of(self, value: int) -> Buffer:
        """Returns the buffer of a value that has one of its own."""
        op, plan = self.maker[value], self.plan
        if op < 0:
            return Buffer(self.num_bytes[value], 0, self.num_times - 1)
        if value in self.results:
            return self.temporary(value, 0, self.num_times - 1)
        found = self.temporary(value, self.time_made(op), max(plan.end[value], plan.stop[op]))
        return found._replace(value=value, over=self.over.get(value, -1))

    def time_made(self, op: int) -> int:
        """Returns when the results of an op are first there: what is handed on is there before."""
        return self.plan.start[op] if self.classes[op].name in (WHILE, BARRIER) else self.plan.stop[op]

    def returned_copies(self) -> Iterator[Buffer]:
        """Yields what results are beside their values: an argument or a free value returned, or one value again."""
        seen = set()
        for number, value in enumerate(self.graph.returns):
            if number not in self.taken_over and (value in seen or self.is_free[value] or self.maker[value] < 0):
                yield self.temporary(value, 0, self.num_times - 1)
            seen.add(value)

    def not_in_place(self) -> Iterator[Buffer]:
        """Yields what results are beside the arguments whose buffers they take over, until those are read no more."""
        plan = self.plan
        for result, argument in self.taken_over.items():
            value = self.graph.returns[result]
            op = self.maker[value]
            if op < 0 or self.is_free[value] or argument in self.copied:
                continue
            last, made = plan.end[argument], plan.stop[op]
            if last > made or (last == made and not self.classes[op].fusible):
                yield self.temporary(value, made, last)

    def beside(self, op: int) -> Iterator[Buffer]:
        """Yields what an op needs beside operands and results.

        That is constants in memory, copies behind barriers, and its own temporaries.
        """
        cls, (start, stop) = self.classes[op], (self.plan.start[op], self.plan.stop[op])
        if cls.name == BARRIER:
            copied = [value for value in self.graph.results(op) if not self.is_free[value]]
            first = min((self.plan.first[value] for value in copied), default=0)
            yield from (self.temporary(value, first, first) for value in copied if len(self.operands[op]) > 1)
        elif not cls.fusible and cls.name not in (REDUCE, WHILE, YIELD):
            for position, value in enumerate(self.operands[op]):
                if self.is_free[value] and not (position == 0 and cls.name in UPDATES):
                    yield self.temporary(value, start, stop)
        if cls.name == "stablehlo.select_and_scatter":
            (inputs, outputs), rank = selection_sizes(cls), self.plan.rank[self.graph.results(op).start]
            yield from (Buffer(size, start, start, rank) for size in inputs)
            yield from (Buffer(size, start, stop, rank) for size in outputs)

    def repeated(self) -> Iterator[Buffer]:
        """Yields the constants that libraries read from memory.

        There is one of each type, from the first such reader to the last.
        """
        times: dict[int, tuple[int, int]] = {}
        for op, position in sorted(self.fused.constants):
            kind, since, until = (
                int(self.graph.value_type[self.operands[op][position]]),
                self.plan.start[op],
                self.plan.stop[op],
            )
            start, end = times.get(kind, (since, until))
            times[kind] = min(start, since), max(end, until)
        for kind, (start, end) in times.items():
            yield Buffer(aligned(self.graph.types[kind].num_bytes), start, end)

    def tables(self) -> Iterator[Buffer]:
        """Yields what lists, for each loop, where that lies which it carries or reads from outside."""
        for loop in self.graph.loops:
            read = {value for op in range(loop.op + 1, loop.end + 1) for value in self.operands[op]}
            outside = [value for value in read if self.maker[value] < loop.op and not self.is_free[value]]
            size = aligned(_ADDRESS_BYTES * (len(self.graph.results(loop.op)) + len(outside)))
            yield Buffer(size, self.plan.start[loop.op], self.plan.stop[loop.end])

    def vacant(self) -> Iterator[Buffer]:
        """Yields the buffers of arguments and results while they hold nothing.

        An argument's is free from its last reader, or its copy, until the result that takes it over is made; another
        result's until then.
        """
        for result, argument in self.taken_over.items():
            op = self.maker[self.graph.returns[result]]
            if op >= 0:
                last = self.copied[argument][0] if argument in self.copied else self.plan.end[argument]
                yield self.temporary(argument, last + 1, self.time_made(op) - 1)
        for number, value in enumerate(self.graph.returns):
            op = self.maker[value]
            if number not in self.taken_over and op >= 0 and not self.is_free[value]:
                yield self.temporary(value, 0, self.time_made(op) - 1)
