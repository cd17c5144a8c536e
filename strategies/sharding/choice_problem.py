"""From a graph and a cost model to the choice problem.

Nodes. An argument's node chooses how it is stored, an op's how it runs. A value has a node of its own, choosing how it
is stored once for all, where that is more than how its op leaves it: where several ops read it (a reshard is then paid
once), where the user's sharding limits it, or where its parts are joined by something else than a sum (which cannot
wait). A returned value has a node unless it takes over an argument's buffer: then it must lie as the argument does, and
its edge leads to the argument. A value that depends on constants or scalars alone is free (it is computed wherever it
is needed), so its op is no node; scalars are replicated, so they make no edge. An argument that may lie in host memory
(`rhino.strategies.memory.host_memory`) has each of its states in either memory. What each choice keeps in memory is in
`rhino.strategies.memory.resident_rows`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.ir.graph.graph import BARRIER, DEVICE, FORWARDS_OPERANDS, HOST, WHILE, YIELD, Graph, MemoryKind, materialized
from rhino.ir.graph.spec import Spec, all_specs, partial_axes, unpack
from rhino.strategies.choice.choice import Choice
from rhino.strategies.cost.candidates import State, keeps, strategies
from rhino.strategies.cost.cost_model import CostModel, collective_s, reshard_seconds
from rhino.strategies.cost.nodes import Node, Use, Way
from rhino.strategies.cost.overlap import Order, Windows, windows
from rhino.strategies.cost.wire import narrow
from rhino.strategies.memory.kernel_reads import kernel_costs
from rhino.strategies.memory.resident_rows import Memory, written_in_place
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.tables import Tables
from rhino.strategies.structure.axis_roles import Roles


class ContradictionError(Exception):
    """The user's word leaves a node without a state.

    `value` is the value that it speaks of, `by_role` whether it takes an axis's role.
    """

    def __init__(self, value: int, *, by_role: bool) -> None:
        super().__init__(f"value {value}")
        self.value, self.by_role = value, by_role


class NoChoiceError(Exception):
    """The user's word leaves an op without a way to run. `op` is its number."""

    def __init__(self, op: int) -> None:
        super().__init__(f"op {op}")
        self.op = op


def build(graph: Graph, model: CostModel) -> Choice:
    """Returns the choice problem of `graph` on the axes of `model`.

    Raises:
        ContradictionError: where shardings given by the user leave nothing to choose from.
        NoChoiceError: where an op cannot run in any of the ways that are requested for it.
    """
    return Builder(graph=graph, model=model).costs().with_memory()


def _storage(spec: Spec, memory: MemoryKind = DEVICE) -> State:
    return State((), (spec,), (spec,), memory=memory)


@dataclass(eq=False)
class Builder(Tables):
    """Makes nodes, edges and tables; alike ops share theirs."""

    graph: Graph = field(kw_only=True)
    model: CostModel = field(kw_only=True)
    is_part: bool = field(default=False, kw_only=True)
    """Whether the graph is a part of a step: what it takes and gives may be partial sums."""

    nodes: list[Node] = field(default_factory=list)
    node_costs: list[int] = field(default_factory=list)
    memo: dict[object, int] = field(default_factory=dict)
    states_of: dict[object, tuple[State, ...]] = field(default_factory=dict)
    runs_of: dict[int, tuple[tuple[State, ...], bool]] = field(default_factory=dict)
    """By kind of op, how it may run, and whether parts of its results may be joined by else than sums."""

    costs_of: dict[tuple[int, int], Floats] = field(default_factory=dict)
    """By kind of op and identity of its states, what these cost."""

    filled: dict[int, int] = field(default_factory=dict)
    """By node, the value that it stores and that depends on constants alone."""

    sums_of: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    edges: dict[tuple[int, int], list[tuple[Use, int, int]]] = field(default_factory=dict)
    copies: list[tuple[tuple[int, int], Use, int, int]] = field(default_factory=list)
    node_of_op: dict[int, int] = field(default_factory=dict)
    sinks: dict[int, int] = field(default_factory=dict)
    windows: Windows | None = None
    longest: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.graph
        self.sizes, self.open = self.model.sizes, self.nodes
        self.num_uses = np.bincount(graph.uses, minlength=graph.num_values) + np.bincount(
            graph.returns, minlength=graph.num_values
        )
        self.producer = [-1] * graph.num_values  # the node that decides each value's spec, -1 where it is free
        self.offset = [0] * graph.num_values  # which of the producer's specs it is
        self.taken_over = {a.alias: number for number, a in enumerate(graph.arguments) if a.alias is not None}
        self.uses = graph.uses.tolist()
        self.use_start = graph.use_start.tolist()
        self.result_start = graph.result_start.tolist()
        self.value_type = graph.value_type.tolist()
        self.op_class = graph.op_class.tolist()
        self.in_memory: list[bool] = materialized(graph).tolist()
        self.times: list[int] = [*graph.times().tolist(), 1]
        self.in_place = written_in_place(graph)
        self.op_costs = kernel_costs(graph, self.model, self.in_memory, self.in_place)
        self.narrow, self.order = narrow(graph, self.model.target), Order(graph)
        self.roles = Roles(graph) if any(graph.roles) else None
        self.has_shape = [bool(graph.types[number].shape) for number in self.value_type]
        self.has_several = (self.num_uses > 1).tolist()
        self.kind_of = self.kinds()
        self.carried = {graph.loops[k].end: list(graph.results(graph.loops[k].op)) for k in range(len(graph.loops))}

    def costs(self) -> Choice:
        """Returns the choice problem without regard to memory."""
        graph = self.graph
        for number, argument in enumerate(graph.arguments):
            limit = graph.fixed.get(number)
            taken = graph.return_fixed[argument.alias] if argument.alias is not None else None
            # the result lies as the argument does
            both = taken if limit is None else limit if taken is None else limit & taken
            self.producer[number] = self.store("argument", number, number, both, memories=argument.memories)
        for op in range(graph.num_ops):
            cls = graph.classes[self.op_class[op]]
            if cls.name in (WHILE, BARRIER):
                self.passing(op)
            elif cls.name == YIELD:
                self.carry(op, self.carried[op])
            elif not cls.free:
                self.op(op)
        for number, value in enumerate(graph.returns):
            self.returned(number, value)
        return self.priced()

    def priced(self) -> Choice:
        """Returns the choice problem of the nodes and edges that there are, by the model."""
        graph = self.graph
        self.node_costs = [self.node_cost(number) for number in range(len(self.nodes))]
        launch_s = self.model.launch_s(len(graph.arguments) + len(graph.returns))
        if self.nodes and launch_s:  # whatever is chosen, so the first node takes it
            self.node_costs[0] = self.intern(self.tables[self.node_costs[0]] + launch_s)
        self.windows = windows(self.order, self.model, self.fastest_s())
        self.sum_scalars()
        u, v, table = self.edge_tables()
        tables, node_table = tuple(self.tables), np.array(self.node_costs, dtype=np.int64)
        problem = Problem(tables, node_table, u, v, table, coordinates=self.coordinates())
        return Choice(graph, self.model, tuple(self.nodes), problem, self, self.op_costs, self.narrow, self.windows)

    def fastest_s(self) -> list[float]:
        """Returns the seconds of each op in a step, where it runs in the fastest way [ops]."""
        found, fastest = [0.0] * self.graph.num_ops, dict[int, float]()
        for op, node in self.node_of_op.items():
            kind = self.kind_of[op]
            if kind not in fastest:
                fastest[kind] = float(self.cost_of(op, self.open[node].states).min())
            found[op] = fastest[kind]
        return found

    def sum_scalars(self) -> None:
        """Adds to ops what the sums over devices take of the scalars that they give; stored ones have an edge."""
        for op, node in self.node_of_op.items():
            given = [
                (offset, value)
                for offset, value in enumerate(range(self.result_start[op], self.result_start[op + 1]))
                if not self.has_shape[value] and self.producer[value] == node
            ]
            if not given:
                continue
            sums_s = [
                sum(
                    self.op_costs.scalar_sum_s(value, state.result_specs[offset], self.windows)
                    for offset, value in given
                )
                for state in self.nodes[node].states
            ]
            if any(sums_s):
                self.node_costs[node] = self.intern(
                    self.tables[self.node_costs[node]] + self.times[op] * np.array(sums_s)
                )

    def with_memory(self, problem: Problem) -> Problem:
        """Returns the problem that `costs` made, with the residents and tables of what each choice keeps in memory."""
        memory = Memory(self)
        node_residents, edge_residents = memory.residents()
        return replace(
            problem,
            tables=tuple(self.tables),
            num_times=memory.num_times,
            base_bytes=np.zeros(memory.num_times),
            node_residents=node_residents,
            edge_residents=edge_residents,
        )

    def narrowed(self, states: Ints) -> Builder:
        """Returns a builder after `costs` whose nodes have only their state in the choice `states` [nodes].

        It has no tables yet.
        """
        one: dict[tuple[int, int], tuple[State, ...]] = {}
        nodes = []
        for node, state in zip(self.nodes, states.tolist(), strict=True):
            alone = one.setdefault((id(node.states), state), (node.states[state],))
            nodes.append(node._replace(states=alone))
        narrow = copy.copy(self)
        narrow.nodes, narrow.tables, narrow.alike, narrow.own, narrow.memo = nodes, [], {}, {}, {}
        return narrow

    def on_devices(self, model: CostModel, states: Ints) -> Choice:
        """Returns the choice problem of the one choice `states` [nodes] on devices of another model.

        Its axes have the same sizes.
        """
        one = self.narrowed(states)
        one.model, one.narrow = model, narrow(self.graph, model.target)
        one.op_costs = kernel_costs(self.graph, model, self.in_memory, self.in_place)
        if bool(one.op_costs.near_bytes) != bool(self.op_costs.near_bytes):  # which ops are alike hangs on it
            one.kind_of = one.kinds()
        one.costs_of, one.longest = {}, {}
        return one.priced()

    def coordinates(self) -> tuple[Ints, ...]:
        """Returns what each state of each node chooses along each axis: how an op runs, or how a value is stored."""
        known: dict[int, Ints] = {}
        for node in self.nodes:
            if id(node.states) not in known:
                rows = [
                    s.strategy if node.kind == "op" else unpack(s.result_specs[0], len(self.sizes)) for s in node.states
                ]
                known[id(node.states)] = np.array(rows, dtype=np.int64).reshape(len(node.states), len(self.sizes))
        return tuple([known[id(node.states)] for node in self.nodes])

    def remembered(self, key: object, make: Callable[[], Floats]) -> int:
        """Returns the number of the table that `make` makes for `key`."""
        if key not in self.memo:
            self.memo[key] = self.intern(make())
        return self.memo[key]

    # Nodes

    def add(self, node: Node) -> int:
        """Adds a node; returns its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def store(
        self,
        kind: str,
        number: int,
        value: int,
        limit: frozenset[Spec] | None,
        partial: tuple[int, ...] = (),
        memories: tuple[MemoryKind, ...] = (DEVICE,),
    ) -> int:
        """Adds a node that chooses how a value is stored, and in which of `memories`.

        It may be a partial sum along the axes in `partial` alone.
        """
        if self.is_part:
            partial = tuple(sorted({*partial, *(axis for spec in limit or () for axis in partial_axes(spec))}))
        shape = self.graph.types[self.value_type[value]].shape
        batch = self.roles.batch_dims(value) if self.roles else frozenset()
        key = ("stored", shape, limit, partial, batch, memories)
        if key not in self.states_of:
            specs = [spec for spec in all_specs(shape, self.sizes, partial) if limit is None or spec in limit]
            left = [spec for spec in specs if self.roles is None or self.roles.allows_spec(spec, batch)]
            if not left:
                raise ContradictionError(value, by_role=bool(specs))
            self.states_of[key] = tuple([_storage(spec, memory) for memory in memories for spec in left])
        return self.add(Node(kind, number, self.states_of[key]))

    def node_cost(self, number: int) -> int:
        """Returns the table of what the states of a node cost, edges apart."""
        node, states = self.nodes[number], self.nodes[number].states
        if node.kind == "op":
            op = node.number
            return self.remembered(("op", self.kind_of[op], id(states)), lambda: self.cost_of(op, states))
        zero = self.remembered(("zero", len(states)), lambda: np.zeros(len(states)))
        if number in self.filled:
            return self.fill(number, self.filled[number])
        if node.kind == "argument" and node.number not in self.op_costs.on_host:
            return self.visit(number, node.number) if HOST in self.graph.arguments[node.number].memories else zero
        return zero

    def cost_of(self, op: int, states: tuple[State, ...]) -> Floats:
        """Returns the seconds of an op in some states [states], the same object for ops of a kind."""
        key = self.kind_of[op], id(states)
        if key not in self.costs_of:
            self.costs_of[key] = self.times[op] * np.array([self.op_costs.state_s(op, state) for state in states])
        return self.costs_of[key]

    def returned(self, number: int, value: int) -> None:
        """Adds the way of a value out of the function."""
        sink = self.taken_over.get(number)
        if sink is None:
            sink = self.sinks[number] = self.store("return", number, value, self.graph.return_fixed[number])
        if self.producer[value] >= 0 and self.graph.types[self.value_type[value]].shape:
            self.use(value, sink, 0, self.graph.num_ops)

    def passing(self, op: int) -> None:
        """Adds the nodes of what an op passes on, each stored in one way: what a loop carries, what passes a barrier.

        What a loop carries is stored in that way throughout. What it accumulates may stay a partial sum until after it.
        """
        carried = list(self.graph.results(op))
        for value, source in zip(carried, self.graph.operands(op).tolist(), strict=True):
            if self.graph.types[self.value_type[value]].shape:
                partial = tuple(range(len(self.sizes))) if self.starts_a_sum(op, source) else ()
                node = self.producer[value] = self.store("value", value, value, self.graph.fixed.get(value), partial)
                if self.producer[source] < 0 and value not in self.op_costs.on_host:
                    self.filled[node] = value
        self.carry(op, carried)

    def fill(self, node: int, value: int) -> int:
        """Returns the table of the seconds in which a value that depends on constants alone is written.

        Such a value has no maker with a node.
        """
        kind, states = self.graph.types[self.value_type[value]], self.nodes[node].states
        rate = self.model.device.memory_bytes_per_s
        return self.remembered(
            ("fill", kind, id(states)),
            lambda: np.array([self.op_costs.local_bytes(kind, s.result_specs[0]) / rate for s in states]),
        )

    def visit(self, node: int, argument: int) -> int:
        """Returns the table of the seconds that an argument takes from host memory to the device and back."""
        kind, states, copies = self.graph.type_of(argument), self.nodes[node].states, int(self.graph.copies()[argument])
        is_updated = self.graph.arguments[argument].alias is not None

        def seconds(state: State) -> float:
            size = self.op_costs.local_bytes(kind, state.result_specs[0])
            return copies * self.model.visit_s(size, is_updated=is_updated) if state.memory == HOST else 0.0

        key = ("visit", kind, id(states), copies, is_updated)
        return self.remembered(key, lambda: np.array([seconds(state) for state in states]))

    def starts_a_sum(self, op: int, value: int) -> bool:
        """Says whether `op` is a loop that reads a zero of its own as `value`.

        Each device may then add to it by itself.
        """
        return self.graph.cls(op).name == WHILE and value in self.graph.zeros and bool(self.num_uses[value] == 1)

    def carry(self, op: int, carried: list[int]) -> None:
        """Adds the edges from what a loop starts with, or its body returns, to what it carries."""
        for value, into in zip(self.uses[self.use_start[op] : self.use_start[op + 1]], carried, strict=True):
            if self.producer[value] >= 0 and self.producer[into] >= 0:
                self.use(value, self.producer[into], 0, op)

    def kinds(self) -> list[int]:
        """Returns numbers that are equal for ops that may run in the same ways at the same cost [ops]."""
        graph, numbers = self.graph, dict[object, int]()
        passes = np.array([cls.name in (WHILE, BARRIER) for cls in graph.classes], dtype=bool)[graph.op_class]
        free = np.array([cls.free for cls in graph.classes], dtype=bool)[graph.op_class]
        known = np.ones(graph.num_values, dtype=bool)  # whether a node decides a value's spec, as `producer` has it
        made = graph.value_op >= 0
        maker = graph.value_op[made]
        known[made] = np.where(passes[maker], np.array(self.has_shape, dtype=bool)[made], ~free[maker])
        costs = self.op_costs
        given, kept, stored = (np.array(one, dtype=bool) for one in (costs.is_given, costs.is_kept, costs.in_memory))
        reads = [*zip((known + 2 * given)[graph.uses].tolist(), costs.reads, strict=True)]
        gives = (stored + 2 * kept).astype(np.uint8).tobytes()
        found = []
        for op, number in enumerate(self.op_class):
            first, end = self.result_start[op], self.result_start[op + 1]
            key: tuple[object, ...] = (
                number,
                tuple(reads[self.use_start[op] : self.use_start[op + 1]]),
                gives[first:end],
                self.times[op],
                first < end and first in self.in_place,
            )
            if self.roles or graph.choices:
                key = (*key, self.batch_factors(op), graph.choices.get(op))
            found.append(numbers.setdefault(key, len(numbers)))
        return found

    def batch_factors(self, op: int) -> frozenset[int]:
        """Returns the factors of an op that are of the batch, if the roles of axes are given."""
        return self.roles.batch_factors(op) if self.roles else frozenset()

    def op(self, op: int) -> None:
        """Adds an op, its edges from what it reads, and nodes for its results that need one."""
        operands = self.uses[self.use_start[op] : self.use_start[op + 1]]
        kind = self.kind_of[op]
        if kind not in self.runs_of:
            self.runs_of[kind] = self.runs(op, operands)
        options, is_joined = self.runs_of[kind]
        node = self.node_of_op[op] = self.add(Node("op", op, options))
        for position, value in enumerate(operands):
            if self.has_shape[value] and self.producer[value] >= 0:
                self.use(value, node, position, op)
        for offset, value in enumerate(range(self.result_start[op], self.result_start[op + 1])):
            self.producer[value], self.offset[value] = node, offset
            if (self.has_shape[value] and (is_joined or self.has_several[value])) or value in self.graph.fixed:
                stored = self.store("value", value, value, self.graph.fixed.get(value), self.sums(options, offset))
                self.use(value, stored, 0, op)
                self.producer[value], self.offset[value] = stored, 0

    def runs(self, op: int, operands: Sequence[int]) -> tuple[tuple[State, ...], bool]:
        """Returns what `runs_of` has of an op."""
        options = self.op_states(op, tuple([self.producer[v] >= 0 for v in operands]), self.batch_factors(op))
        return options, any(state.monoid != "add" for state in options)

    def sums(self, options: tuple[State, ...], offset: int) -> tuple[int, ...]:
        """Returns the axes along which some state leaves a result as a partial sum."""
        key = (id(options), offset)  # which are kept as long as this is
        if key not in self.sums_of:
            given = [partial_axes(state.result_specs[offset]) for state in options if state.monoid == "add"]
            self.sums_of[key] = tuple(sorted({axis for axes in given for axis in axes}))
        return self.sums_of[key]

    def op_states(self, op: int, known: tuple[bool, ...], batch: frozenset[int]) -> tuple[State, ...]:
        """Returns the strategies of an op, whose factors `batch` are of the batch.

        A free operand is whole everywhere: no partial sum.
        """
        every = strategies(self.graph.cls(op), self.sizes)
        if self.roles:
            every = tuple(s for s in every if self.roles.allows_strategy(s.strategy, batch))
        if op in self.graph.choices:
            every = tuple(s for s in every if keeps(s.strategy, self.graph.choices[op]))
            if not every:
                raise NoChoiceError(op)
        return tuple(
            s for s in every if all(k or not partial_axes(need) for need, k in zip(s.operand_specs, known, strict=True))
        )

    # Edges

    def use(self, value: int, target: int, operand: int, time: int) -> None:
        """Adds the way of a value to the node that reads it."""
        source = self.producer[value]
        swapped = source > target
        pair = (target, source) if swapped else (source, target)
        times = self.times_moved(value, time)
        stays = value in self.op_costs.on_host  # no collective reads host memory
        use = Use(swapped, self.offset[value], operand, self.value_type[value], times, stays)
        self.edges.setdefault(pair, []).append((use, value, time))
        self.copies.append((pair, use, value, time))

    def times_moved(self, value: int, time: int) -> int:
        """Returns how often a value is brought to an op or the end in a step: once for each that it stands for."""
        repeats = self.graph.repeats
        if repeats is not None and (time == self.graph.num_ops or self.graph.cls(time).name in FORWARDS_OPERANDS):
            return self.times[time] * int(repeats.copies[value])
        return self.times[time]

    def edge_tables(self) -> tuple[Ints, Ints, Ints]:
        """Returns ends and tables of all edges that cost anything [edges]."""
        rows = []
        costs: dict[int, bool] = {}
        known: dict[object, int] = {}
        states = [id(node.states) for node in self.nodes]
        for (u, v), uses in self.edges.items():
            ways = [self.way(u if use.swapped else v, use, value, time) for use, value, time in uses]
            key = (states[u], states[v], *ways)
            if key not in known:
                known[key] = self.intern(sum((self.way_table(u, v, way) for way in ways), np.zeros(())))
            table = known[key]
            if u == v:
                self.node_costs[u] = self.intern(self.tables[self.node_costs[u]] + np.diagonal(self.tables[table]))
                continue
            if table not in costs:
                costs[table] = bool(self.tables[table].any())
            if costs[table]:
                rows.append((u, v, table))
        self.edge_number = {(u, v): number for number, (u, v, _) in enumerate(rows)}
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return columns[0], columns[1], columns[2]

    def ends(self, u: int, v: int, use: Use) -> tuple[list[Spec], list[Spec]]:
        """Returns the specs given and needed, by state of the producer and of the reader."""
        source, target = (v, u) if use.swapped else (u, v)
        return [s.result_specs[use.result] for s in self.nodes[source].states], [
            s.operand_specs[use.operand] for s in self.nodes[target].states
        ]

    def way(self, target: int, use: Use, value: int, time: int) -> Way:
        """Returns a use with what its time depends on; a window that hides all that it can is as good as any such."""
        is_op, is_end = self.nodes[target].kind == "op", time == self.graph.num_ops
        is_read = is_op or (not is_end and self.graph.cls(time).name in FORWARDS_OPERANDS)
        window = self.windows.window(value, time if is_read else None) if self.windows else None
        if window is not None and any(window.seconds):
            longest_s = self.longest_s(use)
            gather_s, scatter_s, reduce_s = (inf if s >= longest_s else s for s in window.seconds)
            later_s, same_s = (inf if s >= longest_s else s for s in window.carried)
            window = window._replace(seconds=(gather_s, scatter_s, reduce_s), carried=(later_s, same_s))
        is_narrow = self.narrow.is_moved(value, time if is_op else None)
        is_fetched = is_op and self.op_costs.is_fetched(value, time)
        return Way(use, window, is_narrow, is_fetched, is_end and self.op_costs.near_bytes > 0)

    def longest_s(self, use: Use) -> float:
        """Returns seconds that no way of a value of a use's type takes."""
        if use.type not in self.longest:
            num_bytes = self.graph.types[use.type].num_bytes
            self.longest[use.type] = 2 * sum(collective_s(axis, "all_reduce", num_bytes) for axis in self.model.axes)
        return self.longest[use.type]

    def way_table(self, u: int, v: int, way: Way) -> Floats:
        """Returns the seconds of the way of one value to one reader [states of u, states of v]."""
        use = way.use
        given, needed = self.ends(u, v, use)
        rows, columns = ({spec: place for place, spec in enumerate(dict.fromkeys(specs))} for specs in (given, needed))
        kind = self.graph.types[use.type]
        seconds = reshard_seconds(
            self.model, kind, list(rows), list(columns), is_narrow=way.is_narrow, window=way.window
        )
        for is_moved, moved_s in ((way.is_fetched, self.op_costs.fetch_s), (way.is_returned, self.op_costs.write_s)):
            if is_moved:
                seconds = seconds + np.array([[moved_s(kind, one, other) for other in columns] for one in rows])
        if use.stays:
            seconds = np.array([[0.0 if one == other else inf for other in columns] for one in rows])
        table = _times(seconds, use.times)[np.ix_([rows[spec] for spec in given], [columns[spec] for spec in needed])]
        return table.T if use.swapped else table


def _times(seconds: Floats, count: int) -> Floats:
    """Returns seconds as often as they are spent; what is illegal stays so even where it never happens."""
    return np.where(np.isinf(seconds), seconds, np.where(np.isinf(seconds), 0.0, seconds) * count)
