"""When each op runs, from where it reads, and in whose buffer it writes: what a compiler makes of the graph, in time.

Only ops that write memory have a time; what they read through ops that are computed inside them counts as read by them.
They run in XLA's depth-first order for memory (`DFSMemoryScheduler`: the CPU backend's for memory, one of three from
which others take the best): an op's operands one after the other, each with all that it needs, first those above which
most values are read more than once, and among these the larger; arguments and constants are none of these values,
copies of arguments are. So weights' gradients come after the chain of the activations' gradients, unlike in the
program. A loop's body is ordered by itself.

Each op has three times: its operands are brought to where it needs them, it computes, and its results are sent to where
they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

from rhino.ir.graph.graph import (
    BARRIER,
    COPIED_UPDATE,
    COSTLY,
    MOVES,
    REDUCE,
    UPDATES,
    WHILE,
    YIELD,
    Graph,
    materialized,
)
from rhino.strategies.memory.buffers import PRODUCT, is_matrix, reads_as_stored
from rhino.strategies.memory.fusion import Fused
from rhino.strategies.structure.loop_nesting import level_reader, post_order, regions

ADD = "stablehlo.add"

_CERTAIN = 1.05
"""A result that needs so many times its cap comes to it in XLA as well.

Here it is up to 4 % more than there (docs/memory.md).
"""


_Needs = dict[int, dict[int, None]]
"""What an op reads: other ops, and which of their values.

Each value counts as a path of its own to an op that makes several, as a loop does.
"""


_Rank = tuple[int, int, int]
"""Orders what an op needs: what comes first is least."""


@dataclass(slots=True, eq=False)
class _Common:
    """What all ops of one region behind the same barriers need, and how many they are.

    `totals` are how many paths and bytes that adds to an op; `ranked` is in which order. Both are found when the first
    op is come to.
    """

    needs: _Needs
    num_ops: int = 0
    totals: tuple[int, int] | None = None
    ranked: list[_Rank] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OpOrder:
    """Times of ops and values.

    Shapes: `start` and `stop` [ops] are when an op's operands are brought and when the last op that computes it does so
    (an op that is computed inside others has theirs). `first` and `end` [values] are when a value is first read, and
    the last time at which it must be in memory. `copied` are arguments that must be copied, each with the times of its
    first and last reader. `again` are values that are computed anew for later readers if a reduction reads them from
    elsewhere, each with how many tensors of its size must then stay, and when the last other reader has computed.
    `over` are the ops that write over what they read, with what that is. `rank` [values] is when a walk comes to what
    makes a value, or copies an argument, that goes from the results through all that is read, operands in their order.
    """

    start: list[int]
    stop: list[int]
    first: list[int]
    end: list[int]
    copied: tuple[tuple[int, int, int], ...]
    again: dict[int, tuple[int, int]]
    over: dict[int, list[int]]
    rank: list[int]
    num_times: int


@lru_cache(maxsize=8)  # as many programs as autotuning goes back and forth between
def schedule_of(graph: Graph) -> OpOrder:
    """Returns the schedule of `graph` where in memory is what `materialized` says; for many meshes it is made once."""
    return schedule(graph, materialized(graph).tolist())


def schedule(graph: Graph, in_memory: Sequence[bool]) -> OpOrder:
    """Returns the schedule of `graph`, whose values in memory are as given.

    All others are computed inside their readers.
    """
    return next(_Scheduler(graph, in_memory).schedules())


def schedules_fused(graph: Graph, fused: Fused) -> tuple[OpOrder, ...]:
    """Returns the schedule of the program of one device, of which it is known what is computed inside what.

    Where it hangs on little which of two results comes first, there is a second schedule, in which the other does.
    """
    return tuple(_Scheduler(graph, fused.in_memory, fused).schedules())


class _Scheduler:
    def __init__(self, graph: Graph, in_memory: Sequence[bool], fused: Fused | None = None) -> None:
        self.graph = graph
        self.in_memory = in_memory
        self.fused = None if fused is None else fused.uses
        self.classes = [graph.classes[c] for c in graph.op_class.tolist()]
        self.value_op: list[int] = graph.value_op.tolist()
        self.num_bytes: list[int] = graph.value_bytes().tolist()
        uses, starts = graph.uses.tolist(), graph.use_start.tolist()
        self.operands = [uses[a:b] for a, b in pairwise(starts)]
        first = graph.result_start.tolist()
        self.results = [range(a, b) for a, b in pairwise(first)]
        # computed there too, if it is computed anywhere
        returned = frozenset[int]() if fused is None else frozenset(graph.returns)
        self.runs = [
            cls.name in (WHILE, YIELD)
            or (any(in_memory[r.start : r.stop]) and not (cls.free and returned.isdisjoint(r)))
            for cls, r in zip(self.classes, self.results, strict=True)
        ]
        self.region = regions(graph)
        self.end_of = {loop.op: loop.end for loop in graph.loops}
        self.kept = {
            value for loop in graph.loops for value, kept in zip(graph.results(loop.op), loop.kept, strict=True) if kept
        }
        self.sources: list[dict[int, bool]] = [{} for _ in range(graph.num_values)]
        self.behind: list[dict[int, None]] = [{} for _ in range(graph.num_values)]
        self.waits: dict[int, dict[int, None]] = {}
        self.reads = [self.read(op) for op in range(graph.num_ops)]

    def read(self, op: int) -> dict[int, bool]:
        """Returns which values in memory an op reads, and whether element by element.

        An op that reads a value element by element may write over it.
        """
        cls = self.classes[op]
        found: dict[int, bool] = {}
        for position, value in enumerate(self.operands[op]):
            alike = (
                cls.fusible and cls.name not in MOVES and cls.operands[position].num_bytes == cls.results[0].num_bytes
            )
            inside = self.sources[value] if self.is_inside(op, position, value) else {value: True}
            alike &= not self.is_view_inside(op, position, value)
            for source, elementwise in inside.items():
                found[source] = found.get(source, True) and elementwise and alike
        found = self.in_order_of_fusing(op, found)
        self.wait(op)
        for position, value in enumerate(self.results[op]):
            if value in self.kept or (cls.is_view and (self.fused is None or (op, position) not in self.fused)):
                operand = self.operands[op][position]
                self.sources[value] = {operand: True} if self.stands(operand) else self.sources[operand]
            elif self.fused is not None or not self.runs[op]:
                self.sources[value] = found
        return found

    def in_order_of_fusing(self, op: int, found: Mapping[int, bool]) -> dict[int, bool]:
        """Returns what an op of a device's program reads, in the order of a fusion's operands.

        XLA comes to them in that order. What is computed inside is taken in one by one, the latest first
        (`InstructionFusion`); what it reads goes behind the rest.
        """
        if self.fused is None or len(found) < 2 or not self.runs[op]:
            return dict(found)
        rest: dict[int, None] = {}
        inside: list[tuple[int, int]] = []
        self.put(op, rest, inside)
        while inside:
            value = heappop(inside)[1]
            if value in rest:
                del rest[value]
                self.put(self.value_op[value], rest, inside)
        sources = [source for value in rest for source in ([value] if self.stands(value) else self.sources[value])]
        return {source: found[source] for source in (*sources, *found) if source in found}

    def put(self, op: int, rest: dict[int, None], inside: list[tuple[int, int]]) -> None:
        """Puts what an op reads behind the operands that there are.

        What of it is computed inside also goes `inside`, the latest first.
        """
        assert self.fused is not None
        for position, value in enumerate(self.operands[op]):
            if value not in rest:
                rest[value] = None
                if (op, position) in self.fused:
                    heappush(inside, (-self.value_op[value], value))

    def is_inside(self, op: int, position: int, value: int) -> bool:
        """Says whether an operand is computed inside an op, or seen by it through a view."""
        return not self.stands(value) or (self.fused is not None and (op, position) in self.fused)

    def is_view_inside(self, op: int, position: int, value: int) -> bool:
        """Says whether an operand is a view within an op of a device's program.

        Such an op writes over nothing of another shape.
        """
        maker = self.value_op[value]
        return self.fused is not None and (op, position) in self.fused and maker >= 0 and self.classes[maker].is_view

    def wait(self, op: int) -> None:
        """Notes which values behind barriers must be there before an op runs: all that each of these barriers takes."""
        waits: dict[int, None] = {}
        for value in self.operands[op]:
            behind = self.behind[value]
            if behind is not waits:
                waits = {**waits, **behind} if waits and behind else waits or behind
        if self.classes[op].name == BARRIER:
            waits = dict(waits)
            for value in self.operands[op]:
                waits |= dict.fromkeys([value] if self.stands(value) else self.sources[value])
        if self.runs[op]:
            self.waits[op] = waits
        else:
            for value in self.results[op]:
                self.behind[value] = waits

    def stands(self, value: int) -> bool:
        """Says whether a value is read from memory; what depends on constants alone is computed for each reader."""
        op = self.value_op[value]
        return self.in_memory[value] and value not in self.kept and (op < 0 or not self.classes[op].free)

    def schedules(self) -> Iterator[OpOrder]:
        """Yields the schedules of the orders that there may be."""
        return map(self.timed, self.orders())

    def timed(self, order: list[int]) -> OpOrder:
        """Returns the schedule of the ops in an order."""
        graph, self.over = self.graph, dict[int, list[int]]()
        start, stop = [-1] * graph.num_ops, [-1] * graph.num_ops
        for number, op in enumerate(order):
            start[op], stop[op] = 3 * number, 3 * number + 1
        num_times = 3 * len(order) + 1
        first = [num_times - 1] * graph.num_values
        end = [0] * graph.num_values
        for op in range(graph.num_ops - 1, -1, -1):
            if not self.runs[op]:  # its time is that of its readers
                start[op] = min((first[value] for value in self.results[op]), default=0)
                stop[op] = max((end[value] for value in self.results[op]), default=0)
            for position, value in enumerate(self.operands[op]):
                # A view that is returned is made at a time of its own, and reads then.
                seen = self.results[op][position] if self.classes[op].is_view and not self.runs[op] else -1
                first[value] = min(first[value], first[seen] if seen >= 0 else start[op])
                end[value] = max(end[value], end[seen] if seen >= 0 else stop[op])
        ends = self.ends(start, stop, end, num_times)
        for value, op in enumerate(self.value_op):
            # nobody reads it, as of what a loop carries in vain: it is there once it is made
            if first[value] > ends[value] and op >= 0:
                first[value] = stop[op]
        return OpOrder(
            start,
            stop,
            first,
            ends,
            self.copied(start, stop),
            self.again(stop, ends),
            self.over,
            self.ranks(),
            num_times,
        )

    def again(self, stop: list[int], end: list[int]) -> dict[int, tuple[int, int]]:
        """Returns, by value, how many tensors of its size must stay to recompute it, and its last direct read.

        XLA fuses a cheap op into all of its readers where it can, and then computes it in each of them: a reshape, a
        copy to another layout, what cuts a tensor up to be sent. A reduction that nothing is sent for reads it from
        memory, and then all do.
        """
        found: dict[int, tuple[int, int]] = {}
        if self.fused is not None:
            return {}
        values = _summed_and_copied(self.graph, self.in_memory)
        until = dict.fromkeys(values, 0)
        for op, cls in enumerate(self.classes):
            if self.runs[op] and cls.name != REDUCE:
                until |= {value: max(until[value], stop[op]) for value in self.reads[op] if value in until}
        for value in values:
            op, size = self.value_op[value], self.num_bytes[value]
            gone = [
                source
                for source in self.reads[op]
                if self.num_bytes[source] == size and end[source] <= stop[op] < end[value]
            ]
            if gone:
                found[value] = len(gone), min(until[value], end[value])
        return found

    def ranks(self) -> list[int]:
        """Returns when a walk through all that is read comes to what makes each value, or copies it.

        What the walk does not come to is last.
        """
        last = len(self.walk)
        found = [2 * self.walk.get(op, last) + 1 for op in self.value_op]
        for argument, ops in self.copies.items():
            found[argument] = 2 * min(self.walk.get(op, last) for op in ops)
        return found

    def copied(self, start: list[int], stop: list[int]) -> tuple[tuple[int, int, int], ...]:
        """Returns the arguments that are copied, with the times of their first and last readers."""
        found = self.copies.items()
        return tuple([(argument, min(start[op] for op in ops), max(stop[op] for op in ops)) for argument, ops in found])

    def copied_arguments(self) -> dict[int, list[int]]:
        """Returns the readers of each argument that XLA copies before it schedules (`CopyInsertion`).

        These are the arguments of which an op reads that the result in their buffer does not need, so that it might
        come first.
        """
        graph = self.graph
        overwriter = {
            n: self.value_op[graph.returns[a.alias]] for n, a in enumerate(graph.arguments) if a.alias is not None
        }
        waited: list[int] = [0] * (graph.num_ops + 1)  # by bits: the arguments whose overwriters need an op
        for argument, op in overwriter.items():
            waited[op] |= 1 << argument
        for op in range(graph.num_ops - 1, -1, -1):
            for other in self.needs[op]:
                waited[other] |= waited[op]
        readers: dict[int, list[int]] = {argument: [] for argument in overwriter}
        for op in range(graph.num_ops):
            for value in self.reads[op] if self.runs[op] else ():
                if value in readers:
                    readers[value].append(self.outermost(op))
        return {argument: ops for argument, ops in readers.items() if any(not waited[op] >> argument & 1 for op in ops)}

    def outermost(self, op: int) -> int:
        """Returns the outermost loop around `op`, or `op`."""
        while self.region[op] >= 0:
            op = self.region[op]
        return op

    # When a value is read no more

    def ends(self, start: list[int], stop: list[int], inside: list[int], num_times: int) -> list[int]:
        """Returns when values are read no more; `inside` are the last times of those without memory of their own."""
        graph = self.graph
        end = [
            0 if op < 0 else stop[op] if self.in_memory[value] else inside[value]
            for value, op in enumerate(self.value_op)
        ]
        last: dict[int, int] = {}
        for op in range(graph.num_ops):
            for source in self.reads[op] if self.runs[op] else ():
                until = self.seen_from(source, op, stop)
                if until >= end[source]:
                    end[source], last[source] = until, op
        for loop in graph.loops:
            for value in graph.results(loop.op):
                end[value] = max(end[value], stop[loop.end])
                last.pop(value, None)
        for value in graph.returns:
            end[value] = num_times - 1
            last.pop(value, None)
        for op, value in self.written_over(
            {v: op for v, op in last.items() if self.value_op[v] >= 0 and end[v] == stop[op]}
        ):
            end[value] = start[op] - (self.classes[op].name == WHILE)
            self.over.setdefault(op, []).append(value)
        return end

    def seen_from(self, value: int, op: int, stop: list[int]) -> int:
        """Returns when a value is read last by `op`: what comes into loops from outside is there until they end."""
        home = self.value_op[value]
        level = self.region[home] if home >= 0 else -1
        until, region = stop[op], self.region[op]
        while region not in (level, home, -1):
            until = stop[self.end_of[region]]
            region = self.region[region]
        return until

    def written_over(self, dying: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Yields an op and the value in whose buffer it writes, one that it is the last to read (`dying`)."""
        updated = self.updated()
        for op, cls in enumerate(self.classes):
            if not self.runs[op] or cls.name == YIELD or not updated.isdisjoint(self.results[op]):
                continue
            if cls.name == WHILE:
                yield from ((op, value) for value in dict.fromkeys(self.operands[op]) if dying.get(value) == op)
                continue
            found = [value for value, elementwise in self.reads[op].items() if elementwise]
            if cls.name in UPDATES:
                found = self.operands[op][: self.fused is not None or cls.name != COPIED_UPDATE]
            size = cls.results[0].num_bytes
            yield from [(op, v) for v in found if dying.get(v) == op and self.num_bytes[v] == size][:1]

    def updated(self) -> set[int]:
        """Returns what scatters write over in a device's program.

        The op that makes it writes over nothing, for its buffer is theirs already.
        """
        if self.fused is None:
            return set()
        return {self.operands[op][0] for op, cls in enumerate(self.classes) if cls.name == COPIED_UPDATE}

    # The order

    def orders(self) -> Iterator[list[int]]:
        """Yields the order of the ops, and behind it another that XLA may take as well, if there is one."""
        graph = self.graph
        needs = self.needs = [_Needs() for _ in range(graph.num_ops + 1)]
        self.own = [*needs]
        """What ops need beside what they do in common with all behind the same barriers [ops and the end]."""
        self.in_common: dict[tuple[int, int], _Common] = {}
        self.common_of: dict[int, _Common] = {}
        for op in range(graph.num_ops):
            if self.runs[op]:
                for value in self.reads[op]:
                    self.need(op, value, needs)
                self.need_behind_barriers(op, needs)
        root = graph.num_ops
        for value in graph.returns:
            op = self.value_op[value]
            is_made = self.stands(value) or (self.classes[op].free and self.runs[op])
            for source in [value] if is_made else self.sources[value]:
                if self.value_op[source] >= 0:
                    needs[root].setdefault(self.value_op[source], {})[source] = None
        readers = [0] * graph.num_values
        for row, count in [
            *((row, 1) for row in self.own),
            *((one.needs, one.num_ops) for one in self.in_common.values()),
        ]:
            for values in row.values():
                for value in values:
                    readers[value] += count
        self.copies = self.copied_arguments()
        self.num_copying = {argument: len(set(ops)) for argument, ops in self.copies.items()}
        """How many ops each argument that is copied is copied for."""
        self.copied_for = self.copies_read()
        self.walk: dict[int, int] = {}
        bodies = {loop.op: next(self.depth_first(loop.end, needs, readers)) for loop in graph.loops}
        yield from (self.with_bodies(order, bodies) for order in self.depth_first(root, needs, readers))

    def with_bodies(self, order: Sequence[int], bodies: Mapping[int, Sequence[int]]) -> list[int]:
        """Returns an order of what results need, the end last, and then of what nothing needs.

        The body of each loop comes behind the loop.
        """
        result: list[int] = []
        waiting = [*order[-2::-1]]
        while waiting:
            op = waiting.pop()
            result.append(op)
            waiting += reversed(bodies.get(op, ()))
        done = set(result)
        return result + [op for op in range(self.graph.num_ops) if self.runs[op] and op not in done]

    def need(self, op: int, value: int, needs: list[_Needs]) -> None:
        """Notes that `op` reads `value`, at the level where that is made.

        A loop needs what its body reads from outside.
        """
        home = self.value_op[value]
        if home < 0:
            return
        reader = level_reader(self.region, op, home)
        if reader >= 0:
            needs[reader].setdefault(home, {})[value] = None

    def need_behind_barriers(self, op: int, needs: list[_Needs]) -> None:
        """Notes that `op` waits for what barriers take.

        What barriers take times the ops that wait for it is a large number, so these share one list.
        """
        waits = self.waits[op]
        if not waits or op in self.end_of:  # a loop needs more, which is found in its body
            for value in waits:
                self.need(op, value, needs)
            return
        key = id(waits), self.region[op]
        if key not in self.in_common:
            rows = {op: _Needs()}
            for value in waits:
                home = self.value_op[value]
                reader = level_reader(self.region, op, home) if home >= 0 else -1
                if reader >= 0:
                    (rows if reader == op else needs)[reader].setdefault(home, {})[value] = None
            self.in_common[key] = _Common(rows[op])
        common, own = self.in_common[key], needs[op]
        common.num_ops += 1
        self.common_of[op] = common
        needs[op] = {**own, **common.needs}
        for home in own.keys() & common.needs.keys():
            needs[op][home] = {**own[home], **common.needs[home]}
            own[home] = {value: None for value in own[home] if value not in common.needs[home]}
        self.own[op] = {home: values for home, values in own.items() if values}

    def copies_read(self) -> list[list[int]]:
        """Returns the arguments of which each op reads a copy [ops and the end]."""
        found: list[list[int]] = [[] for _ in range(self.graph.num_ops + 1)]
        for argument, ops in self.copies.items():
            for op in dict.fromkeys(ops):
                found[op].append(argument)
        return found

    def depth_first(self, root: int, needs: list[_Needs], readers: list[int]) -> Iterator[list[int]]:
        """Yields what `root` needs, and it, in the order of time.

        Where the choice is close, a second order has the first two ops that it reads swapped.
        """
        plain = post_order(root, needs.__getitem__)
        self.walk |= {op: len(self.walk) + number for number, op in enumerate(plain)}
        most = len(plain) + len(self.graph.arguments)
        shared: dict[int, int] = {}
        sizes: dict[int, int] = {}
        sums: dict[int, tuple[int, int]] = {}  # what is needed in all, uncapped, and the cap
        total = 0
        seen: set[int] = set()

        def num_on_path(op: int, value: int) -> int:
            return min(shared[op] + readers[value] - 1, most)

        def behind_barriers(common: _Common | None) -> tuple[int, int]:
            if common is None:
                return 0, 0
            if common.totals is None:
                every = [(p, value) for p, values in common.needs.items() for value in values]
                common.totals = sum(num_on_path(p, value) for p, value in every), sum(sizes[p] for p, _ in every)
            return common.totals

        for op in plain:
            copies = self.copied_for[op]
            total += sum(self.num_bytes[argument] for argument in copies if argument not in seen)
            seen.update(copies)
            made = self.results[op] if op < self.graph.num_ops else ()
            own = sum(self.num_bytes[v] for v in made if self.in_memory[v] and v not in self.kept)
            total += own
            own += sum(self.num_bytes[argument] for argument in copies)
            extra = max(sum(readers[value] > 0 for value in made) - 1, 0)
            extra += sum(self.num_copying[argument] - 1 for argument in copies)
            given = [(p, value) for p, values in self.own[op].items() for value in values]
            num_waiting, size = behind_barriers(self.common_of.get(op))
            shared[op] = min(extra + num_waiting + sum(num_on_path(p, value) for p, value in given), most)
            sums[op] = own + size + sum(sizes[p] for p, _ in given), total
            sizes[op] = min(sums[op])

        def rank(op: int, values: Iterable[int]) -> _Rank:
            return -max([num_on_path(op, value) for value in values]), -sizes[op], op

        def first(op: int) -> list[int]:
            found, own, common = needs[op], self.own[op], self.common_of.get(op)
            if len(found) < 2:
                return [*found]
            ranked = [rank(p, found[p]) for p in own]
            if common:
                common.ranked = common.ranked or sorted([rank(p, values) for p, values in common.needs.items()])
                ranked = [one for one in common.ranked if one[-1] not in own] + ranked
            return [p for *_, p in sorted(ranked)]

        below = {op: first(op) for op in plain}
        yield post_order(root, below.__getitem__)
        several = below[root] if root == self.graph.num_ops else []
        if len(several) > 1 and _times_cap(several[0], needs, sizes, sums) < _CERTAIN:
            below[root] = [several[1], several[0], *several[2:]]
            yield post_order(root, below.__getitem__)


def _times_cap(
    op: int, needs: Sequence[_Needs], sizes: Mapping[int, int], sums: Mapping[int, tuple[int, int]]
) -> float:
    """Returns how many times its cap is what an op needs.

    Where the largest part comes to its cap alone, it returns how many times that is there.
    """
    while True:
        needed, cap = sums[op]
        parts = [sizes[other] for other, values in needs[op].items() for _ in values]
        if needed - sum(parts) + max(parts, default=0) < cap:
            return needed / cap
        if not parts:
            return inf
        op = max(needs[op], key=sizes.__getitem__)


def _summed_and_copied(graph: Graph, in_memory: Sequence[bool]) -> list[int]:
    """Returns the cheap values that reductions read, and those that products read after a copy or reshape.

    Such a copy is to another layout.
    """
    direct, summed, copied = set(graph.returns), set[int](), set[int]()
    for op, cls in enumerate(graph.classes[c] for c in graph.op_class.tolist()):
        values = graph.operands(op).tolist()
        if cls.name == REDUCE:
            summed |= set(values)
        elif cls.name == PRODUCT:
            copied |= {value for position, value in enumerate(values) if not reads_as_stored(cls, position)}
            direct |= {
                value
                for position, value in enumerate(values)
                if reads_as_stored(cls, position) and is_matrix(cls, position)
            }
        elif not cls.fusible and not cls.is_view:
            direct |= set(values)
    made = graph.value_op.tolist()
    found = {
        value: graph.cls(made[value])
        for value in sorted(summed & copied - direct)
        if made[value] >= 0 and in_memory[value]
    }
    return [
        v
        for v, cls in found.items()
        if cls.fusible and not cls.free and cls.name not in COSTLY and not is_scattered(graph, made[v])
    ]


def is_scattered(graph: Graph, op: int) -> bool:
    """Says whether an op adds what another scatters over zeros.

    XLA (`AlgebraicSimplifier`) scatters it over the other term at once.
    """
    makers = [int(graph.value_op[value]) for value in graph.operands(op).tolist()] if graph.cls(op).name == ADD else []
    return any(
        maker >= 0 and graph.cls(maker).name == COPIED_UPDATE and int(graph.operands(maker)[0]) in graph.zeros
        for maker in makers
    )
