"""When each op runs, and from when to when values are in memory.

Only ops that write memory have a time, and barriers; what ops read through others that are computed inside them counts
as read by them. They run as they are written, or depth first from the results (XLA's `DFSMemoryScheduler`): an op's
operands one after the other, each with all that it needs, first those above which most values are read more than once,
and among these the larger. So weights' gradients come after the chain of the activations' gradients, where in a program
that JAX has written they stand between. A loop's body is ordered by itself.

Each op has three times: its operands are brought to where it needs them, it computes, and its results are sent to where
they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from rhino.ir.graph.graph import BARRIER, COPIED_UPDATE, HOST, MOVES, WHILE, YIELD, Graph, materialized
from rhino.ir.graph.host_values import values_on_host
from rhino.strategies.memory.host_memory import on_host
from rhino.strategies.structure.loop_nesting import level_reader, post_order, regions

ALL_REDUCE: Final = "all_reduce"

_Needs = dict[int, dict[int, None]]
"""What an op reads: other ops, and which of their values; each value is a path of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class OpOrder:
    """Times of ops and values.

    Shapes: `reads` [ops] are the values in memory that an op reads when it runs, through what is computed inside it;
    nothing of an op that is computed inside others. `start` and `stop` [ops] are when an op's operands are brought and
    when the last op that computes it does so (an op that is computed inside others has theirs). `uses` [values] are
    when ops that run read a value, in order, `first` and `end` [values] when it is first read, and the last time at
    which it must be in memory.
    """

    reads: list[tuple[int, ...]]
    start: list[int]
    stop: list[int]
    uses: list[list[int]]
    first: list[int]
    end: list[int]
    num_times: int


@lru_cache(maxsize=8)  # as many programs as autotuning goes back and forth between
def schedule_of(graph: Graph) -> OpOrder:
    """Returns the schedule of `graph` where in memory is what `materialized` says; for many meshes it is made once."""
    return schedule(graph, materialized(graph).tolist())


def schedule(
    graph: Graph, in_memory: Sequence[bool], *, is_depth_first: bool = True, scatters_in_place: bool = False
) -> OpOrder:
    """Returns the schedule of `graph`, whose values in memory are as given: depth first, or as it is written.

    All others are computed inside their readers. `scatters_in_place` says whether a scatter writes into what it reads.
    """
    return _Scheduler(graph, in_memory, is_depth_first=is_depth_first, scatters_in_place=scatters_in_place).run()


class _Scheduler:
    def __init__(
        self, graph: Graph, in_memory: Sequence[bool], *, is_depth_first: bool, scatters_in_place: bool
    ) -> None:
        self.graph = graph
        self.scatters_in_place = scatters_in_place
        self.is_depth_first = is_depth_first
        self.in_memory = in_memory
        self.on_host = sorted(set(on_host(graph)) - values_on_host(graph))
        self.classes = [graph.classes[c] for c in graph.op_class.tolist()]
        self.value_op: list[int] = graph.value_op.tolist()
        self.num_bytes: list[int] = graph.value_bytes().tolist()
        uses: list[int] = graph.uses.tolist()
        self.operands = [uses[a:b] for a, b in pairwise(graph.use_start.tolist())]
        self.results = [graph.results(op) for op in range(graph.num_ops)]
        self.runs = [
            cls.name in (WHILE, YIELD, BARRIER) or (any(in_memory[r.start : r.stop]) and not cls.free)
            for cls, r in zip(self.classes, self.results, strict=True)
        ]
        self.region = regions(graph)
        self.end_of = {loop.op: loop.end for loop in graph.loops}
        self.kept = {
            value for loop in graph.loops for value, kept in zip(graph.results(loop.op), loop.kept, strict=True) if kept
        }
        self.sources: list[dict[int, bool]] = [{} for _ in range(graph.num_values)]
        """Which values in memory a value that is not is computed from, and whether element by element."""
        self.behind: list[dict[int, None]] = [{} for _ in range(graph.num_values)]
        """Results of barriers behind which a value is that is computed inside its readers."""
        self.waits: list[dict[int, None]] = []
        self.reads = [self.read(op) for op in range(graph.num_ops)]

    def read(self, op: int) -> dict[int, bool]:
        """Returns which values in memory an op reads, and whether element by element: then it may write over one."""
        cls = self.classes[op]
        found: dict[int, bool] = {}
        behind: dict[int, None] = {}
        for kind, value in zip(cls.operands, self.operands[op], strict=True):
            alike = cls.fusible and cls.name not in MOVES and kind.num_bytes == cls.results[0].num_bytes
            for source, by_element in ({value: True} if self.stands(value) else self.sources[value]).items():
                found[source] = found.get(source, True) and by_element and alike
            behind |= self.behind[value]
        for value, operand in zip(self.results[op], self.operands[op], strict=False):
            if value in self.kept or (cls.is_view and not self.stands(value)):
                self.sources[value] = {operand: True} if self.stands(operand) else self.sources[operand]
            else:
                self.sources[value] = found
        for value in self.results[op]:
            self.behind[value] = {value: None} if cls.name == BARRIER else {} if self.runs[op] else behind
        self.waits.append(behind)
        return found

    def stands(self, value: int) -> bool:
        """Says whether a value is read from memory; what depends on constants alone is computed for each reader."""
        op = self.value_op[value]
        return self.in_memory[value] and value not in self.kept and (op < 0 or not self.classes[op].free)

    def run(self) -> OpOrder:
        """Returns the schedule."""
        graph = self.graph
        as_written = [op for op in range(graph.num_ops) if self.runs[op]]
        late = self.late()
        order = self.order(self.find_needs()) if self.is_depth_first or late else as_written
        if not self.is_depth_first and late:
            order = [op for op in as_written if op not in late] + [op for op in order if op in late]
        start, stop = [-1] * graph.num_ops, [-1] * graph.num_ops
        for number, op in enumerate(order):
            start[op], stop[op] = 3 * number, 3 * number + 1
        num_times = 3 * len(order) + 1
        first, end = [num_times - 1] * graph.num_values, [0] * graph.num_values
        for op in range(graph.num_ops - 1, -1, -1):
            if not self.runs[op]:  # its time is that of its readers
                start[op] = min((first[value] for value in self.results[op]), default=0)
                stop[op] = max((end[value] for value in self.results[op]), default=0)
            for position, value in enumerate(self.operands[op]):
                # who reads a view reads what it views
                seen = (
                    self.results[op][position]
                    if self.classes[op].is_view and not self.stands(self.results[op][position])
                    else -1
                )
                first[value] = min(first[value], first[seen] if seen >= 0 else start[op])
                end[value] = max(end[value], end[seen] if seen >= 0 else stop[op])
        ends = self.ends(start, stop, end, num_times)
        for value, op in enumerate(self.value_op):
            # nobody reads it, as of what a loop carries in vain: it is there once it is made
            if first[value] > ends[value] and op >= 0:
                first[value] = stop[op]
        reads = [tuple(values) if runs else () for values, runs in zip(self.reads, self.runs, strict=True)]
        uses: list[list[int]] = [[] for _ in range(graph.num_values)]
        for op in order:
            for value in reads[op]:
                uses[value].append(start[op])
        return OpOrder(reads, start, stop, uses, first, ends, num_times)

    # The order

    def late(self) -> set[int]:
        """Returns the ops for which something comes from host memory: they run last, one argument's after another's.

        As they are written, all moments of one kind may be updated before those of the next, and would be on the
        device together. Compilers do not do so where memory is short.
        """
        come, found = set(self.on_host), set[int]()
        for op in range(self.graph.num_ops) if come else ():
            is_behind = any(value in come or self.value_op[value] in found for value in self.operands[op])
            if is_behind or self.region[op] in found:
                found.add(op)
        return found

    def find_needs(self) -> list[_Needs]:
        """Returns what each op reads and waits for, at its own level, and last the results [ops and the end].

        A loop needs what its body reads from outside.
        """
        needs = [_Needs() for _ in range(self.graph.num_ops + 1)]
        for op in range(self.graph.num_ops):
            for value in [*self.reads[op], *self.waits[op]] if self.runs[op] else ():
                home = self.value_op[value]
                reader = level_reader(self.region, op, home) if home >= 0 else -1
                if reader >= 0:
                    needs[reader].setdefault(home, {})[value] = None
        self.join_all_reduces(needs)
        for value in self.graph.returns:
            for source in [value] if self.stands(value) else [*self.sources[value], *self.behind[value]]:
                if self.value_op[source] >= 0:
                    needs[-1].setdefault(self.value_op[source], {})[source] = None
        return needs

    def join_all_reduces(self, needs: list[_Needs]) -> None:
        """Makes the function's last all-reduces wait for each other, as they are sent together (`AllReduceCombiner`).

        In a data-parallel step the loss is one of them, so that logits stay through the backward pass.
        """
        leads, last = set[int](), list[int]()
        for op in range(self.graph.num_ops - 1, -1, -1):
            is_all_reduce = self.classes[op].name == ALL_REDUCE and self.region[op] < 0
            if is_all_reduce and op not in leads:
                last.append(op)
            if is_all_reduce or op in leads:  # to an all-reduce
                leads.update(needs[op])
        joined: _Needs = {}
        for op in last:
            for home, values in needs[op].items():
                joined[home] = {**joined.get(home, {}), **values}
        for op in last:
            needs[op] = joined

    def order(self, needs: list[_Needs]) -> list[int]:
        """Returns what results need, and then what nothing needs; the body of each loop comes behind the loop."""
        readers = [0] * self.graph.num_values
        for row in needs:
            for value in [value for values in row.values() for value in values]:
                readers[value] += 1
        bodies = {loop.op: self.depth_first(loop.end, needs, readers) for loop in self.graph.loops}
        waiting = self.depth_first(self.graph.num_ops, needs, readers)[-2::-1]
        result: list[int] = []
        while waiting:
            result.append(waiting.pop())
            waiting += reversed(bodies.get(result[-1], ()))
        done = set(result)
        return result + [op for op in range(self.graph.num_ops) if self.runs[op] and op not in done]

    def depth_first(self, root: int, needs: list[_Needs], readers: list[int]) -> list[int]:
        """Returns what `root` needs, and it, in the order of time."""
        plain = post_order(root, needs.__getitem__)
        most = len(plain) + len(self.graph.arguments)
        shared: dict[int, int] = {}
        """How many paths to what is read more than once are above each op."""
        sizes: dict[int, int] = {}
        """The bytes above each op, by all paths, no more than all that has been visited."""
        total = 0

        def on_path(op: int, value: int) -> int:
            return min(shared[op] + readers[value] - 1, most)

        for op in plain:
            made = [v for v in (self.results[op] if op < self.graph.num_ops else ()) if self.stands(v)]
            own = sum(self.num_bytes[value] for value in made)
            given = [(p, value) for p, values in needs[op].items() for value in values]
            extra = max(sum(readers[value] > 0 for value in made) - 1, 0)
            shared[op] = min(extra + sum(on_path(p, value) for p, value in given), most)
            total += own
            sizes[op] = min(own + sum(sizes[p] for p, _ in given), total)

        def first(op: int) -> list[int]:
            found = needs[op]
            return sorted(found, key=lambda p: (-max(on_path(p, value) for value in found[p]), -sizes[p], p))

        return post_order(root, {op: first(op) for op in plain}.__getitem__)

    # When a value is read no more

    def ends(self, start: list[int], stop: list[int], inside: list[int], num_times: int) -> list[int]:
        """Returns when values are read no more; `inside` are the last times of those without memory of their own."""
        end = [
            0 if op < 0 else stop[op] if self.in_memory[value] else inside[value]
            for value, op in enumerate(self.value_op)
        ]
        for op, cls in enumerate(self.classes):
            # What goes to host memory does so once it is made, not when its copy there is asked for.
            if self.runs[op] and cls.name != BARRIER and cls.placed != HOST:
                for source in self.reads[op]:
                    end[source] = max(end[source], self.seen_from(source, op, stop))
        for loop in self.graph.loops:
            for value in self.graph.results(loop.op):
                end[value] = max(end[value], stop[loop.end])
        gone = {self.graph.arguments[argument].alias for argument in self.on_host}
        for number, value in enumerate(self.graph.returns):
            if number not in gone:
                end[value] = num_times - 1
        for op in range(self.graph.num_ops):
            for value in self.written_over(op, end, stop)[:1]:
                end[value] = start[op]
        return end

    def written_over(self, op: int, end: list[int], stop: list[int]) -> list[int]:
        """Returns the values of an op's size that it reads last, and that it may write over."""
        cls = self.classes[op]
        if not self.runs[op]:
            return []
        if self.scatters_in_place:
            read = self.operands[op][:1] if cls.name == COPIED_UPDATE else []
        else:
            read = [value for value, alike in self.reads[op].items() if alike] if cls.fusible else []
        size = cls.results[0].num_bytes if read else 0
        return [v for v in read if self.value_op[v] >= 0 and end[v] == stop[op] and self.num_bytes[v] == size]

    def seen_from(self, value: int, op: int, stop: list[int]) -> int:
        """Returns when a value is read last by `op`: what comes into loops from outside is there until they end."""
        home = self.value_op[value]
        level = self.region[home] if home >= 0 else -1
        until, region = stop[op], self.region[op]
        while region not in (level, home, -1):
            until = stop[self.end_of[region]]
            region = self.region[region]
        return until
