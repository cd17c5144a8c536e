"""What a plan keeps in the memory of a device, and from when to when.

Times are those of `rhino.strategies.memory.op_order`: at one, an op's operands are brought to how it needs them, at the
next it computes. Arguments live throughout, but for those that wait in host memory until they are read; a result that
takes over an argument's buffer lives in it, or until it is read no more, and goes to host memory. Any other value
that has memory of its own (`rhino.ir.graph.graph.materialized`) lies as its op leaves it while that computes, and then
as it is stored, or as its one reader needs it, until it is read no more. What an op needs in another way is one more
tensor, from when it is brought until the op has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from rhino.ir.arrays import Floats
from rhino.ir.graph.graph import BARRIER, DEVICE, HOST, UPDATES, WHILE, Graph, MemoryKind, TensorType
from rhino.ir.graph.spec import Spec
from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.nodes import Node, Use
from rhino.strategies.cost.op_costs import OpCosts
from rhino.strategies.memory.buffers import MoveBuffers, reads_as_stored, rounded, selection_buffers
from rhino.strategies.memory.copies import scheduled_copies
from rhino.strategies.memory.op_order import schedule_of
from rhino.strategies.solver.problem import Residents

Row = tuple[int, int, int, int]
"""A resident: its owner, its table, and the times at which it is first and last alive."""


class Draft(Protocol):
    """The problem so far, with its nodes and edges: what `rhino.strategies.sharding.choice_problem` has made."""

    graph: Graph
    sizes: tuple[int, ...]
    nodes: list[Node]
    producer: list[int]
    offset: list[int]
    in_memory: list[bool]
    in_place: set[int]
    op_costs: OpCosts
    taken_over: dict[int, int]
    node_of_op: dict[int, int]
    edge_number: dict[tuple[int, int], int]
    copies: list[tuple[tuple[int, int], Use, int, int]]
    sinks: dict[int, int]

    def intern(self, table: Floats) -> int:
        """Returns the number of a table equal to `table`."""

    def remembered(self, key: object, make: Callable[[], Floats]) -> int:
        """Returns the number of the table that `make` makes for `key`."""

    def ends(self, u: int, v: int, use: Use) -> tuple[list[Spec], list[Spec]]:
        """Returns the specs given and needed, by state of the producer and of the reader."""


class Memory:
    """The residents of a choice problem whose nodes and edges are made."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.moves: dict[object, tuple[int | None, ...]] = {}
        self.graph = graph = draft.graph
        self.schedule = schedule_of(graph)
        self.num_times = self.schedule.num_times
        self.copies: list[int] = scheduled_copies(graph, self.schedule).tolist()
        self.kinds = [graph.types[number] for number in graph.value_type.tolist()]
        self.maker: list[int] = graph.value_op.tolist()
        self.operands = _rows(graph.uses.tolist(), graph.use_start.tolist())
        self.readers: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_values)]
        for op, values in enumerate(self.operands):
            for position, value in enumerate(values):
                self.readers[value].append((op, position))
        self.first_result: list[int] = graph.result_start.tolist()
        self.classes = [graph.classes[number] for number in graph.op_class.tolist()]
        self.on_host = draft.op_costs.on_host
        self.in_place = {graph.returns[result] for result in draft.taken_over} | draft.in_place
        self.results = frozenset(
            [value for number, value in enumerate(graph.returns) if number not in draft.taken_over]
        )
        self.moved_to: dict[int, tuple[int, Use]] = {}  # the one reader of a value that its op leaves for it
        for loop in graph.loops:  # what a loop keeps lies where it came from, if that is anywhere
            came = zip(graph.results(loop.op), self.operands[loop.op], strict=True)
            self.in_place -= {value for value, initial in came if draft.producer[initial] < 0}

    def residents(self) -> tuple[Residents, Residents]:
        """Returns the residents of nodes and of edges."""
        draft = self.draft
        for pair, use, value, _ in draft.copies:
            target = pair[0] if use.swapped else pair[1]
            if self.made(pair, use, value) and not self.is_stored_by(value, target) and value not in self.in_place:
                self.moved_to[value] = target, use
        nodes = [row for value, node in enumerate(draft.producer) if node >= 0 for row in self.kept(value)]
        nodes += [
            row
            for op, node in draft.node_of_op.items()
            for row in (*self.computed_here(op, node), *self.scratch(op, node))
        ]
        nodes += [*self.returned_copies(), *self.not_in_place()]
        edges: list[Row] = []
        for pair, use, value, reader in draft.copies:
            target = pair[0] if use.swapped else pair[1]
            made, stored = self.made(pair, use, value), self.is_stored_by(value, target)
            fused = draft.nodes[target].kind == "op" and self.classes[draft.nodes[target].number].fusible
            viewed = self.maker[value] >= 0 and self.classes[self.maker[value]].is_view
            in_memory = viewed or draft.in_memory[value]
            move = MoveBuffers(
                source_counted=in_memory and not made,
                target_counted=made,
                read_in_any_order=fused,
            )
            edges += self.moved(pair, use, self.time_of_move(value, reader, draft.nodes[target], made, stored), move)
        return _residents(nodes), _residents(edges)

    # Values

    def kept(self, value: int) -> Iterator[Row]:
        """Yields the residents that a value is: while its op computes as that leaves it, then as it is stored."""
        draft, plan, op = self.draft, self.schedule, self.maker[value]
        node, kind = draft.producer[value], self.kinds[value]
        is_kept = draft.in_memory[value] and value not in self.in_place and value not in self.on_host
        if not kind.num_bytes or not is_kept:
            return
        if op < 0:
            yield node, self.argument_bytes(node, value, DEVICE), 0, self.num_times - 1
            if HOST in self.graph.arguments[value].memories:
                yield from self.visits(node, value)
        elif op not in draft.node_of_op:  # passed on by a loop or a barrier
            yield node, self.stored_bytes(node, value), plan.start[op], plan.end[value]
        else:
            maker, made = draft.node_of_op[op], plan.stop[op]
            row = self.moved_or_stored(value)
            if value in self.results and made:  # its buffer is there from the start
                yield *row, 0, made - 1
            yield maker, self.kept_bytes(maker, value, "result", value - self.first_result[op]), made, made
            if plan.end[value] > made:
                yield *row, made + 1, plan.end[value]

    def visits(self, node: int, argument: int) -> Iterator[Row]:
        """Yields the residents that an argument is that waits in host memory: itself, and then its next value."""
        table, plan = self.argument_bytes(node, argument, HOST), self.schedule
        if plan.first[argument] <= plan.end[argument]:
            yield node, table, plan.first[argument], plan.end[argument]
        alias = self.graph.arguments[argument].alias
        if alias is not None and (op := self.maker[self.graph.returns[alias]]) >= 0:
            made = plan.stop[op]
            yield node, table, made, max([made, *(start + 1 for start in plan.uses[self.graph.returns[alias]])])

    def argument_bytes(self, node: int, argument: int, memory: MemoryKind) -> int:
        """Returns the table of bytes of an argument in those states of its node in which it lies in `memory`."""
        kind, copies = self.kinds[argument], self.copies[argument]

        def count(state: State) -> int:
            size = self.draft.op_costs.local_bytes(kind, state.result_specs[0])
            return copies * size if state.memory == memory else 0

        return self.table_of(node, ("argument", kind, copies, memory), count)

    def moved_or_stored(self, value: int) -> tuple[int, int]:
        """Returns the owner and the table of bytes of a value that its op has made.

        The value has been brought to where its one reader needs it, or stored.
        """
        if value in self.moved_to:
            reader, use = self.moved_to[value]
            return reader, self.kept_bytes(reader, value, "operand", use.operand)
        node = self.draft.producer[value]
        return node, self.stored_bytes(node, value)

    def made(self, pair: tuple[int, int], use: Use, value: int) -> bool:
        """Says whether a way is that of a value with memory of its own from its op to what it waits for."""
        source = pair[1] if use.swapped else pair[0]
        return self.draft.nodes[source].kind == "op" and self.draft.in_memory[value]

    def is_stored_by(self, value: int, node: int) -> bool:
        """Says whether `node` decides how a value is stored."""
        return self.draft.nodes[node].kind == "value" and self.draft.nodes[node].number == value

    def returned_copies(self) -> Iterator[Row]:
        """Yields the residents that results are beside their values.

        Such a result is an argument or a free value, or a value that is returned again.
        """
        draft, seen = self.draft, set()
        for number, value in enumerate(self.graph.returns):
            op, free = self.maker[value], draft.producer[value] < 0
            if number not in draft.taken_over and (value in seen or free or op < 0):
                yield (
                    draft.sinks[number],
                    self.bytes_table(draft.sinks[number], self.kinds[value], "result", 0),
                    0,
                    self.num_times - 1,
                )
            seen.add(value)

    def not_in_place(self) -> Iterator[Row]:
        """Yields the residents of results beside arguments whose buffers they take over, until these are read no more.

        An op that computes element by element may write over what
        it reads; another needs its operands to its end.
        """
        draft, plan = self.draft, self.schedule
        for result, argument in draft.taken_over.items():
            value = self.graph.returns[result]
            op, node = self.maker[value], draft.producer[value]
            if op < 0 or node < 0:
                continue
            last, made = plan.end[argument], plan.stop[op]
            if last > made or (last == made and not self.classes[op].fusible):
                yield node, self.stored_bytes(node, value), made, last

    # What ops need

    def computed_here(self, op: int, node: int) -> Iterator[Row]:
        """Yields the residents that free operands are.

        A free operand is computed for its reader, as that needs it, unless it is updated in place.
        """
        cls = self.classes[op]
        if cls.fusible or cls.name == "stablehlo.reduce":
            return
        for position, value in enumerate(self.operands[op]):
            if self.draft.producer[value] < 0 and not (position == 0 and cls.name in UPDATES):
                table = self.bytes_table(node, self.kinds[value], "operand", position)
                yield node, table, self.schedule.start[op], self.schedule.stop[op]

    def scratch(self, op: int, node: int) -> Iterator[Row]:
        """Yields the residents that an op's own temporaries are."""
        cls, start, stop = self.classes[op], self.schedule.start[op], self.schedule.stop[op]
        if cls.name == "stablehlo.select_and_scatter":
            for number in range(2 * len(cls.operands[0].shape) + 1):
                table = self.table_of(
                    node,
                    ("selection", cls, number),
                    lambda s: selection_buffers(cls, s, self.draft.sizes)[number],  # noqa: B023
                )
                yield node, table, start, stop
        else:  # a product copies what it does not read as it lies
            for position, value in enumerate(self.operands[op]):
                if (
                    self.draft.in_memory[value]
                    and self.draft.producer[value] >= 0
                    and not reads_as_stored(cls, position)
                ):
                    stays = self.schedule.end[value] > stop  # else its copy replaces it
                    yield (
                        node,
                        self.bytes_table(node, self.kinds[value], "operand", position),
                        start,
                        stop if stays else start,
                    )

    def time_of_move(self, value: int, reader: int, target: Node, made: bool, stored: bool) -> tuple[int, int]:
        """Returns when a value is moved, and until when what comes of it is one more tensor."""
        plan = self.schedule
        if made:
            moved = plan.stop[self.maker[value]] + 1
            return moved, moved
        if stored:  # by a collective, for it has no memory of its own
            return plan.first[value], plan.end[value]
        if reader == self.graph.num_ops:
            return self.num_times - 1, self.num_times - 1
        if self.classes[reader].name in (WHILE, BARRIER):  # each of their results is read for itself
            # a value's node, as all that they pass on has one
            return plan.first[target.number], plan.end[target.number]
        return plan.start[reader], plan.stop[reader]

    def moved(self, pair: tuple[int, int], use: Use, times: tuple[int, int], move: MoveBuffers) -> Iterator[Row]:
        """Yields the residents that moving a value is, if any states move it.

        These are the value before and while it is moved, and what comes of it.
        """
        draft, (u, v) = self.draft, pair
        edge = draft.edge_number.get(pair)
        if edge is None:
            return
        start, stop = times
        during, after = self.move_tables(u, v, use, move)
        if during is None:
            return
        assert after is not None, "what is moved is there afterwards"
        if during == after or stop == start:
            yield edge, during, start, stop
        else:
            yield edge, during, start, start
            yield edge, after, start + 1, stop

    # Tables

    def stored_bytes(self, node: int, value: int) -> int:
        """Returns the table of bytes of a value as its node stores it."""
        return self.kept_bytes(node, value, "result", self.draft.offset[value])

    def kept_bytes(self, node: int, value: int, side: str, place: int) -> int:
        """Returns the table of bytes of all that a value stands for; see `bytes_table`."""
        return self.bytes_table(node, self.kinds[value], side, place, self.copies[value])

    def bytes_table(self, node: int, kind: TensorType, side: str, place: int, copies: int = 1) -> int:
        """Returns the table of bytes of an "operand" or a "result" by states of a node, rounded up as buffers are."""

        def count(state: State) -> int:
            size = self.draft.op_costs.local_bytes(
                kind, (state.operand_specs if side == "operand" else state.result_specs)[place]
            )
            return copies * rounded(size)

        return self.table_of(node, (side, place, kind, copies), count)

    def table_of(self, node: int, key: object, count: Callable[[State], int]) -> int:
        """Returns the table of what `count` says of each state of a node."""
        states = self.draft.nodes[node].states
        return self.draft.remembered(
            ("bytes", id(states), key), lambda: np.array([count(s) for s in states], dtype=np.float64)
        )

    def move_tables(self, u: int, v: int, use: Use, move: MoveBuffers) -> tuple[int | None, ...]:
        """Returns the tables of `BufferCounts.num_bytes` of a value's move [states of u, states of v].

        A table is None where all its bytes are zero.
        """
        nodes = self.draft.nodes
        key = (id(nodes[u].states), id(nodes[v].states), use.swapped, use.result, use.operand, use.type, move)
        if key not in self.moves:
            self.moves[key] = self._make_move_tables(u, v, use, move)
        return self.moves[key]

    def _make_move_tables(self, u: int, v: int, use: Use, move: MoveBuffers) -> tuple[int | None, ...]:
        draft, kind = self.draft, self.graph.types[use.type]
        given, needed = draft.ends(u, v, use)
        rows, columns = (
            {g: i for i, g in enumerate(dict.fromkeys(given))},
            {n: i for i, n in enumerate(dict.fromkeys(needed))},
        )
        num_bytes, which = move.num_bytes(kind, tuple(rows), tuple(columns), draft.sizes)
        places = which[np.ix_([rows[g] for g in given], [columns[n] for n in needed])]
        places = places.T if use.swapped else places
        return tuple([draft.intern(sizes[places]) if sizes.any() else None for sizes in num_bytes.T.astype(np.float64)])


def written_in_place(graph: Graph) -> set[int]:
    """Returns the values that live in another's buffer.

    These are what a loop keeps as it came, and what a body writes into what it carries.
    """
    found = set()
    for loop in graph.loops:
        carried = graph.results(loop.op)
        found |= {value for value, kept in zip(carried, loop.kept, strict=True) if kept}
        first, last = (int(graph.use_start[op]) for op in (loop.op + 1, loop.end))
        readers = np.repeat(np.arange(loop.op + 1, loop.end), np.diff(graph.use_start[loop.op + 1 : loop.end + 1]))
        last_read = dict(zip(graph.uses[first:last].tolist(), readers.tolist(), strict=True))
        for value, into in zip(graph.operands(loop.end).tolist(), carried, strict=True):
            op = int(graph.value_op[value])
            writes = op > loop.op and graph.cls(op).name in UPDATES and graph.operands(op)[0] == into
            if writes and last_read.get(into, op) <= op:
                found.add(value)
    return found


def _residents(rows: list[Row]) -> Residents:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Residents(columns[0], columns[1], columns[2], columns[3])


def _rows(flat: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    return [list(flat[a:b]) for a, b in pairwise(starts)]
