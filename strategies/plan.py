"""A choice spelled out: how every op runs, how every value lies, and every collective that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rhino.ir.graph import Graph, Loop, OpClass
from rhino.ir.spec import PARTIAL, REPLICATED, Spec, split_dim
from rhino.strategies.build import Choice
from rhino.strategies.candidates import REPLICATE, State, following, strategies
from rhino.strategies.cost import Move, reshard
from rhino.strategies.problem import Ints


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of a plan: which value, for which op (None: to store or return it), from and to which spec, how often in a step."""

    value: int
    reader: int | None
    source: Spec
    target: Spec
    move: Move
    times: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How one graph runs along one mesh axis.

    `ops[o]` is the state of op `o`, `specs[v]` how value `v` is stored, `returned[r]` how result `r` leaves the function.
    """

    graph: Graph
    axis_size: int
    ops: tuple[State, ...]
    specs: tuple[Spec, ...]
    returned: tuple[Spec, ...]

    def implied(self, op: int) -> State | None:
        """Returns how `op` would run if only the specs of its operands and results were known."""
        given = tuple(self.specs[value] for value in self.graph.operands(op).tolist())
        return implied_state(self.graph.cls(op), given, tuple(self.specs[value] for value in self.graph.results(op)), self.axis_size)

    def transfers(self) -> Iterator[Transfer]:
        """Yields every collective, in program order."""
        graph = self.graph
        for op, (state, times) in enumerate(zip(self.ops, graph.times().tolist(), strict=True)):
            for value, need in zip(graph.operands(op).tolist(), state.needs, strict=True):
                yield from self._between(value, op, self.specs[value], need, times)
            for value, comes in zip(graph.results(op), state.comes, strict=True):
                yield from self._between(value, None, comes, self.specs[value], times)
        for value, wanted in zip(graph.returns, self.returned, strict=True):
            yield from self._between(value, None, self.specs[value], wanted, 1)

    def _between(self, value: int, reader: int | None, source: Spec, target: Spec, times: int) -> Iterator[Transfer]:
        move = reshard(self.graph.type_of(value), source, target, self.axis_size)
        assert move is not None, (value, reader, source, target)
        if move.kind is not None:
            yield Transfer(value, reader, source, target, move, times)


@lru_cache(maxsize=65536)
def implied_state(cls: OpClass, given: tuple[Spec, ...], stored: tuple[Spec, ...], axis_size: int) -> State | None:
    """Returns how an op runs between operands that lie as `given` and results that are `stored`, if nothing else is said.

    It is the way that sends the fewest bytes; of those one that shares the work, and of those the first. None where there is no way.
    """
    dim = split_dim(stored[0]) if stored else None
    if dim is not None and cls.name == "stablehlo.iota":
        return following(cls, stored[0], axis_size)
    options = strategies(cls, axis_size)
    sent = [
        (num_bytes, s.strategy < 0, n)
        for n, s in enumerate(options)
        if (num_bytes := sent_bytes(cls, s, given, stored, axis_size)) is not None
    ]
    return options[min(sent)[2]] if sent else None


def sent_bytes(cls: OpClass, state: State, given: tuple[Spec, ...], stored: tuple[Spec, ...], axis_size: int) -> int | None:
    """Returns the bytes sent when an op runs in `state` between the given specs; None where there is no way."""
    pairs = [*zip(cls.operands, given, state.needs, strict=True), *zip(cls.results, state.comes, stored, strict=True)]
    moves = [reshard(kind, source, target, axis_size) for kind, source, target in pairs]
    return None if None in moves else sum(move.num_bytes for move in moves if move is not None)


def make_plan(choice: Choice, chosen: Sequence[int] | Ints) -> Plan:
    """Returns the plan of a choice: nodes as chosen, free ops as their users want them."""
    graph, size = choice.graph, choice.model.axis.size
    specs: list[Spec] = [REPLICATED] * graph.num_values
    ops: list[State | None] = [None] * graph.num_ops
    returned: list[Spec] = [REPLICATED] * len(graph.returns)
    for node, picked in zip(choice.nodes, chosen, strict=True):
        state = node.states[picked]
        match node.kind:
            case "op":
                ops[node.number] = state
                for value, spec in zip(graph.results(node.number), state.comes, strict=True):
                    specs[value] = spec if graph.type_of(value).shape else REPLICATED
            case "return":
                returned[node.number] = state.comes[0]
            case _:
                specs[node.number] = state.comes[0]
                alias = graph.arguments[node.number].alias if node.kind == "argument" else None
                if alias is not None:
                    returned[alias] = state.comes[0]
    for loop in graph.loops:
        ops[loop.op], ops[loop.end] = loop_states(graph, loop, specs)
    every = _with_free(graph, size, ops, specs, returned)
    return Plan(graph, size, every, tuple(specs), tuple(returned))


def loop_states(graph: Graph, loop: Loop, specs: Sequence[Spec]) -> tuple[State, State]:
    """Returns how a loop starts and how its body returns: both give what is carried as it is stored."""
    carried = tuple(specs[value] for value in graph.results(loop.op))
    return State(REPLICATE, carried, carried), State(REPLICATE, carried, ())


def _with_free(graph: Graph, size: int, ops: list[State | None], specs: list[Spec], returned: list[Spec]) -> tuple[State, ...]:
    """Decides free ops, users first: as all users want it, or whole (a slice of what is everywhere sends nothing).

    A partial sum that its readers all want in the same other spec is stored in that one: the same collective, and plainer to read.
    """
    wanted: list[dict[Spec, None]] = [{} for _ in range(graph.num_values)]
    for value, spec in zip(graph.returns, returned, strict=True):
        wanted[value][spec] = None
    result: list[State] = []
    for op in range(graph.num_ops - 1, -1, -1):
        state = ops[op]
        values = graph.results(op)
        if state is None:
            state = _free_state(graph, op, wanted[values.start], size)
            limit = graph.fixed.get(values.start)
            specs[values.start] = state.comes[0] if limit is None else min(limit, key=lambda spec: (spec != state.comes[0], spec))
        for value in values:
            if specs[value] == PARTIAL and len(wanted[value]) == 1 and value not in graph.fixed:
                specs[value] = next(iter(wanted[value]))
        for operand, need in zip(graph.operands(op).tolist(), state.needs, strict=True):
            wanted[operand][need] = None
        result.append(state)
    return tuple(reversed(result))


def _free_state(graph: Graph, op: int, wanted: dict[Spec, None], size: int) -> State:
    limit = graph.fixed.get(graph.results(op).start)
    one = next(iter(wanted)) if len(wanted) == 1 else REPLICATED
    if limit is not None and one not in limit:
        one = min(limit)
    return following(graph.cls(op), one, size)
