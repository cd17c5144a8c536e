"""A choice spelled out: how every op runs, how every value lies, and every collective that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import BARRIER, FORWARDS_OPERANDS, HOST, Graph, Loop, OpClass
from rhino.ir.graph.spec import REPLICATED, Spec, partial_axes, split_axes
from rhino.strategies.choice.choice import Choice
from rhino.strategies.cost.candidates import State, following, strategies
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.halo_exchange import halo_moves
from rhino.strategies.cost.reshard import ReshardStep, moves, sent
from rhino.strategies.cost.target import TARGETS, Target


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of a plan: which value, for which op (None: to store or return it), how often in a step.

    It is a step of the path from spec `source` to spec `target`; where both are the same, it brings parts of the value
    that an op reads beside its own.
    """

    value: int
    reader: int | None
    source: Spec
    target: Spec
    move: ReshardStep
    times: int

    @property
    def is_halo(self) -> bool:
        """Whether it brings what an op reads of other devices beside its own part of the value."""
        return self.source == self.target


Path = tuple[Transfer, ...]
"""The collectives of the way of a value from one spec to another, one after the other."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardingPlan:
    """How one graph runs on a mesh with axes of `sizes`.

    `ops[o]` is the state of op `o`, `specs[v]` how value `v` is stored, `returned[r]` how result `r` leaves the
    function. `target` is the platform whose compiler makes the program, `model` prices ops on one device of it, where
    that is known. The arguments `on_host` lie in host memory between steps, and so do the results that take over their
    buffers.
    """

    graph: Graph
    sizes: tuple[int, ...]
    ops: tuple[State, ...]
    specs: tuple[Spec, ...]
    returned: tuple[Spec, ...]
    target: Target = TARGETS["gpu"]
    model: CostModel | None = None
    on_host: frozenset[int] = frozenset()

    @property
    def results_on_host(self) -> frozenset[int]:
        """The results that take over the buffers of arguments in host memory."""
        aliases = [self.graph.arguments[argument].alias for argument in self.on_host]
        return frozenset([alias for alias in aliases if alias is not None])

    def transfers(self) -> Iterator[Transfer]:
        """Yields every collective, in program order."""
        for path in self.paths():
            yield from path

    def paths(self) -> Iterator[Path]:
        """Yields the collectives of each way of a value from spec to spec, in program order.

        What an op reads of other devices is a way of each value too.
        """
        for _, operands, halos, results in self.paths_of_ops():
            yield from (*operands, *halos, *results)
        yield from self.paths_of_returns()

    def paths_of_ops(self) -> Iterator[tuple[int, list[Path], list[Path], list[Path]]]:
        """Yields each op with the ways of its operands to it, of what it reads of other devices, and of its results."""
        graph = self.graph
        for op, (state, times) in enumerate(zip(self.ops, graph.times().tolist(), strict=True)):
            read = zip(graph.operands(op).tolist(), state.operand_specs, strict=True)
            given = zip(graph.results(op), state.result_specs, strict=True)
            operands = [self._between(value, op, self.specs[value], need, times) for value, need in read]
            results = [self._between(value, None, comes, self.specs[value], times) for value, comes in given]
            yield op, operands, list(self._halos(op, state, times)), results

    def paths_of_returns(self) -> Iterator[Path]:
        """Yields the ways of what is returned."""
        for value, wanted in zip(self.graph.returns, self.returned, strict=True):
            yield self._between(value, None, self.specs[value], wanted, 1)

    def _halos(self, op: int, state: State, times: int) -> Iterator[Path]:
        moved = halo_moves(self.graph.cls(op), state, self.sizes)
        values = self.graph.operands(op).tolist() if moved else []
        for operand, move in moved:
            spec = state.operand_specs[operand]
            yield (Transfer(values[operand], op, spec, spec, move, times),)

    def _between(self, value: int, reader: int | None, source: Spec, target: Spec, times: int) -> Path:
        kind = self.graph.type_of(value)
        steps = moves(kind.num_bytes, len(kind.shape), source, target, self.sizes)
        assert steps is not None, (value, reader, source, target)
        return tuple([Transfer(value, reader, source, target, move, times) for move in steps if move.kind != "slice"])


def implied(graph: Graph, op: int, specs: Sequence[Spec], sizes: tuple[int, ...]) -> State | None:
    """Returns how `op` runs if only the specs of its operands and results are known; None where there is no path."""
    results = graph.results(op)
    if results and partial_axes(specs[results.start]) and results.start in graph.zeros:
        return following(graph.cls(op), specs[results.start], sizes)
    given = tuple(specs[value] for value in graph.operands(op).tolist())
    return implied_state(graph.cls(op), given, tuple(specs[value] for value in results), sizes)


@lru_cache(maxsize=65536)
def implied_state(
    cls: OpClass, given: tuple[Spec, ...], stored: tuple[Spec, ...], sizes: tuple[int, ...]
) -> State | None:
    """Returns how an op runs by default between operands with `given` specs and results with `stored` specs.

    It is the state that sends the fewest bytes; of those one that shares the work among most devices, and of those the
    first. None where there is no path.
    """
    if stored and split_axes(stored[0]) and cls.name == "stablehlo.iota":
        return following(cls, stored[0], sizes)
    options = strategies(cls, sizes)
    best: tuple[int, int, int] | None = None
    for number, state in enumerate(options):
        num_bytes = sent_bytes(cls, state, given, stored, sizes, best[0] if best else None)
        if num_bytes is not None and (best is None or (num_bytes, -state.num_shares(sizes)) < best[:2]):
            best = num_bytes, -state.num_shares(sizes), number
    return options[best[2]] if best else None


def sent_bytes(
    cls: OpClass,
    state: State,
    given: tuple[Spec, ...],
    stored: tuple[Spec, ...],
    sizes: tuple[int, ...],
    most: int | None = None,
) -> int | None:
    """Returns the bytes sent when an op runs in `state` between the given specs.

    The result is None where there is no path, or where the bytes exceed `most`.
    """
    pairs = [
        *zip(cls.operands, given, state.operand_specs, strict=True),
        *zip(cls.results, state.result_specs, stored, strict=True),
    ]
    total = sent([move for _, move in halo_moves(cls, state, sizes)])
    for kind, source, target in pairs:
        num_bytes = _sent_between(kind.num_bytes, len(kind.shape), source, target, sizes)
        if num_bytes is None:
            return None
        total += num_bytes
        if most is not None and total > most:
            return None
    return total


@lru_cache(maxsize=1 << 16)
def _sent_between(num_bytes: int, rank: int, source: Spec, target: Spec, sizes: tuple[int, ...]) -> int | None:
    """Returns the bytes sent to bring a tensor of `num_bytes` from one spec to another; None where there is no path."""
    steps = moves(num_bytes, rank, source, target, sizes)
    return None if steps is None else sent(steps)


def make_plan(choice: Choice, chosen: Sequence[int] | Ints) -> ShardingPlan:
    """Returns the plan of a choice: nodes as chosen, free ops as their users want them."""
    graph, sizes = choice.graph, choice.model.sizes
    specs: list[Spec] = [REPLICATED] * graph.num_values
    ops: list[State | None] = [None] * graph.num_ops
    returned: list[Spec] = [REPLICATED] * len(graph.returns)
    hosted: list[int] = []
    for node, picked in zip(choice.nodes, chosen, strict=True):
        state = node.states[picked]
        match node.kind:
            case "op":
                ops[node.number] = state
                for value, spec in zip(graph.results(node.number), state.result_specs, strict=True):
                    specs[value] = spec if graph.type_of(value).shape else REPLICATED
            case "return":
                returned[node.number] = state.result_specs[0]
            case _:
                specs[node.number] = state.result_specs[0]
                alias = graph.arguments[node.number].alias if node.kind == "argument" else None
                hosted += [node.number] if state.memory == HOST else []
                if alias is not None:
                    returned[alias] = state.result_specs[0]
    for loop in graph.loops:
        ops[loop.op], ops[loop.end] = loop_states(graph, loop, specs)
    for op in range(graph.num_ops):
        if graph.cls(op).name == BARRIER:
            ops[op] = forwarding_state(graph, op, specs)
    every = _with_free(graph, sizes, ops, specs, returned)
    target, model = choice.model.target, choice.model
    return ShardingPlan(graph, sizes, every, tuple(specs), tuple(returned), target, model, frozenset(hosted))


def loop_states(graph: Graph, loop: Loop, specs: Sequence[Spec]) -> tuple[State, State]:
    """Returns how a loop starts and how its body returns: both give what is carried as it is stored."""
    start = forwarding_state(graph, loop.op, specs)
    return start, State((), start.result_specs, ())


def forwarding_state(graph: Graph, op: int, specs: Sequence[Spec]) -> State:
    """Returns how an op runs that hands its operands on: it reads each as its result is stored."""
    stored = tuple(specs[value] for value in graph.results(op))
    return State((), stored, stored)


def _with_free(
    graph: Graph, sizes: tuple[int, ...], ops: list[State | None], specs: list[Spec], returned: list[Spec]
) -> tuple[State, ...]:
    """Decides free ops, users first: as all users want it, or whole (a slice of what is everywhere sends nothing).

    A partial sum that its readers all want in the same other spec is stored in that one: the same collective, and
    plainer to read. But not what a loop carries, which lies in one way in all rounds: it would be brought to that spec
    in each.
    """
    wanted: list[dict[Spec, None]] = [{} for _ in range(graph.num_values)]
    for value, spec in zip(graph.returns, returned, strict=True):
        wanted[value][spec] = None
    result: list[State] = []
    for op in range(graph.num_ops - 1, -1, -1):
        state = ops[op]
        values = graph.results(op)
        if state is None:
            state = _free_state(graph, op, wanted[values.start], sizes)
            limit = graph.fixed.get(values.start)
            specs[values.start] = (
                state.result_specs[0]
                if limit is None
                else min(limit, key=lambda spec: (spec != state.result_specs[0], spec))
            )
        for value in values:
            is_free = value not in graph.fixed and graph.cls(op).name not in FORWARDS_OPERANDS
            if is_free and partial_axes(specs[value]) and len(wanted[value]) == 1:
                specs[value] = next(iter(wanted[value]))
        for operand, need in zip(graph.operands(op).tolist(), state.operand_specs, strict=True):
            wanted[operand][need] = None
        result.append(state)
    return tuple(reversed(result))


def _free_state(graph: Graph, op: int, wanted: dict[Spec, None], sizes: tuple[int, ...]) -> State:
    limit = graph.fixed.get(graph.results(op).start)
    one = next(iter(wanted)) if len(wanted) == 1 else REPLICATED
    if limit is not None and one not in limit:
        one = min(limit)
    return following(graph.cls(op), one, sizes)
