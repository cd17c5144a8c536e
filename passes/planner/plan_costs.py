"""What a plan costs, op by op and tensor by tensor, in the words of the program's owner.

Rows that differ in numbers alone are one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import DEVICE, HOST, TensorType
from rhino.ir.graph.host_values import held_on_host
from rhino.ir.graph.spec import num_parts
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.plan.plan import (
    AS_BLOCKS,
    IN_HOST_MEMORY,
    PLAIN,
    Alternative,
    Annotations,
    Cost,
    Memory,
    PeakTensor,
    Sharding,
    Waiting,
    Work,
    common_name,
    folded,
    kind_of,
    layout_text,
)
from rhino.ir.program.program import Program
from rhino.ir.units import format_seconds
from rhino.passes.planner.choose_layouts import LayoutChoice
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import ShardingPlan, Transfer
from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.cost_model import step_seconds
from rhino.strategies.cost.nodes import Node
from rhino.strategies.solver.answer import Answer, Unsolved
from rhino.strategies.solver.problem import Problem

_Row = TypeVar("_Row", Cost, PeakTensor, Work)

MOST_POINTS: Final = 240
"""Points of a curve of memory: enough for a drawing as wide as a page."""

MOST_LISTED: Final = 60
"""Rows of what is alive at the peak; the others are one row."""


class Named(NamedTuple):
    """What an op is called: its scope (or its kind where it has none), and its line in the user's source."""

    name: str
    line: str


_MOVED: Final = {HOST: "move to host memory", DEVICE: "move from host memory"}
"""What ops are called that do nothing but that."""


@dataclass(frozen=True, eq=False)
class PlanCosts:
    """A plan whose costs are asked for. `states` [nodes] is the choice that it spells out."""

    choice: Choice
    states: Ints
    plan: ShardingPlan
    program: Program
    known: dict[int, Named] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the mesh axes."""
        return tuple(axis.name for axis in self.choice.model.axes)

    @cached_property
    def transfers(self) -> tuple[tuple[Transfer, float], ...]:
        """The collectives, with the seconds that a step waits for them."""
        model, known, windows, graph = self.choice.model, self.choice.narrow, self.choice.windows, self.plan.graph
        found: list[tuple[Transfer, float]] = []
        for path in filter(None, self.plan.paths()):
            if path[0].is_halo:  # which the seconds of its reader have as they are
                found += [(one, one.times * model.move_s(one.move)) for one in path]
                continue
            value, reader = path[0].value, path[0].reader
            moves = [one.move.narrowed() if known.is_moved(value, reader) else one.move for one in path]
            window = windows.window(value, reader) if windows else None
            seconds = step_seconds(model, graph.type_of(value), moves, window, path[-1].target)
            found += [(one, one.times * alone_s) for one, alone_s in zip(path, seconds, strict=True)]
        return tuple(found)

    @cached_property
    def kept(self) -> tuple[Problem, Ints]:
        """What the choice keeps in memory, as `Choice.kept` tells."""
        return self.choice.kept(self.states)

    def sharding(self, form: str, annotations: Annotations) -> Sharding:
        """Returns all that a plan says of one program."""
        sent_s, waiting = sum([seconds for _, seconds in self.transfers], 0.0), self.waiting()
        compute_s = sum(self.compute_s()) - (waiting.seconds if waiting else 0.0)
        memory = self.memory()
        return Sharding(form, compute_s, sent_s, self.works(), self.costs(), memory, annotations, waiting=waiting)

    def waiting(self) -> Waiting | None:
        """Returns what is saved for the backward pass in host memory, None where nothing is."""
        graph, costs = self.plan.graph, self.choice.op_costs
        held = held_on_host(graph, costs.on_host)
        if not held:
            return None
        compute_s = self.compute_s()
        seconds = sum(compute_s[op] for op in sorted(costs.transfers))
        return Waiting(len(held), sum(map(self.local_bytes, held)), seconds)

    def costs(self) -> tuple[Cost, ...]:
        """Returns the collectives, the costliest first."""
        found: dict[tuple[str, str, str, str, int], list[Cost]] = {}
        for one, seconds in self.transfers:
            cost = self._cost(one, seconds)
            key = (cost.kind, folded(cost.tensor), folded(cost.reader), cost.line, cost.num_bytes // cost.count)
            found.setdefault(key, []).append(cost)
        together = [
            _together(
                ones,
                ("count", "num_bytes", "seconds"),
                tensor=common_name([one.tensor for one in ones]),
                reader=common_name([one.reader for one in ones]),
            )
            for ones in found.values()
        ]
        return tuple(sorted(together, key=lambda one: (-one.seconds, one.tensor, one.reader, one.kind, one.line)))

    def works(self) -> tuple[Work, ...]:
        """Returns the ops that take time, with the collectives that they wait for, those that take most first."""
        compute_s, collectives_s = self.compute_s(), [0.0] * self.plan.graph.num_ops
        for one, seconds in self.transfers:
            op = int(self.plan.graph.value_op[one.value]) if one.reader is None else one.reader
            if op >= 0:  # what is made of an argument, and returned, is no op's
                collectives_s[op] += seconds
        found: dict[tuple[str, str, str, int, str], list[Work]] = {}
        times = self.plan.graph.times().tolist()
        for op, (alone_s, moved_s) in enumerate(zip(compute_s, collectives_s, strict=True)):
            if alone_s or moved_s:
                work = self._work(op, times[op], alone_s, moved_s)
                found.setdefault((work.kind, folded(work.name), work.line, work.shares, work.how), []).append(work)
        sums = ("count", "compute_s", "collectives_s", "num_bytes")
        together = [_together(ones, sums, name=common_name([one.name for one in ones])) for ones in found.values()]
        return tuple(
            sorted(
                together, key=lambda one: (-one.compute_s - one.collectives_s, one.name, one.kind, one.line, one.how)
            )
        )

    def compute_s(self) -> list[float]:
        """Returns the seconds in which each op computes, in a step [ops].

        What the search counts there of collectives is not included: a scalar's sum over devices, and what an op reads
        of others. A loop's start that depends on
        constants alone counts as written by the loop.
        """
        problem, graph, found = self.choice.problem, self.plan.graph, [0.0] * self.plan.graph.num_ops
        for number, (node, table) in enumerate(zip(self.choice.nodes, problem.node_table.tolist(), strict=True)):
            if node.kind in ("op", "value"):
                op = node.number if node.kind == "op" else int(graph.value_op[node.number])
                found[op] += float(problem.tables[table][self.states[number]])
        if self.choice.nodes and self.choice.nodes[0].kind == "op":  # the first node has what launching takes
            found[self.choice.nodes[0].number] -= self.choice.model.launch_s(len(graph.arguments) + len(graph.returns))
        for one, seconds in self.transfers:
            if one.is_halo and one.reader is not None:
                found[one.reader] -= seconds
            elif one.reader is None and not graph.type_of(one.value).shape:
                found[int(graph.value_op[one.value])] -= seconds
        for op, seconds in self._copied_s():
            found[op] += seconds
        return [max(0.0, seconds) for seconds in found]

    def _copied_s(self) -> Iterator[tuple[int, float]]:
        """Yields ops, and the seconds in which what they read or give is brought to a nearer memory or from there."""
        plan, graph, costs = self.plan, self.plan.graph, self.choice.op_costs
        if not costs.near_bytes:
            return
        for op, (state, times) in enumerate(zip(plan.ops, graph.times().tolist(), strict=True)):
            for value, needed in zip(graph.operands(op).tolist(), state.operand_specs, strict=True):
                if costs.is_fetched(value, op):
                    yield op, times * costs.fetch_s(graph.type_of(value), plan.specs[value], needed)
        for value, wanted in zip(graph.returns, plan.returned, strict=True):
            if (op := int(graph.value_op[value])) >= 0:
                yield op, costs.write_s(graph.type_of(value), plan.specs[value], wanted)

    def memory(self) -> Memory:
        """Returns the bytes alive over the schedule, and what they are at the peak."""
        problem, states = self.kept
        alive = problem.memory(states)
        peak = int(alive.argmax())
        rows: dict[tuple[str, str], list[PeakTensor]] = {}
        for one in self._alive(peak):
            rows.setdefault((folded(one.name), one.kind), []).append(one)
        together = [
            _together(ones, ("count", "num_bytes"), name=common_name([one.name for one in ones]))
            for ones in rows.values()
        ]
        listed = sorted(together, key=lambda one: (-one.num_bytes, one.name, one.kind))
        if len(listed) > MOST_LISTED:
            rest = replace(_together(listed[MOST_LISTED:], ("count", "num_bytes")), name="others", kind="")
            listed = [*listed[:MOST_LISTED], rest]
        starts = np.unique(
            np.linspace(0, len(alive), min(MOST_POINTS, len(alive)), endpoint=False, dtype=np.int64)
        ).tolist()
        points = [
            start + int(alive[start:end].argmax()) for start, end in zip(starts, [*starts[1:], len(alive)], strict=True)
        ]
        return Memory(
            len(alive), peak, self._running(peak), tuple((time, int(alive[time])) for time in points), tuple(listed)
        )

    def named(self, op: int) -> Named:
        """Returns what an op is called."""
        if op not in self.known:
            operation = self.program.ops[op]
            place = place_of(operation.location)
            line = f"{PurePath(place.file).name}:{place.line}" if place.line else ""
            self.known[op] = Named(name_of(operation.location) or _kind(operation.name), line)
        return self.known[op]

    def tensor(self, value: int) -> str:
        """Returns what a value is called: an argument's path, or its op's name."""
        op = int(self.plan.graph.value_op[value])
        return self.plan.graph.arguments[value].name if op < 0 else self.named(op).name

    def how(self, op: int, state: State) -> str:
        """Returns the shardings that an op needs its operands in, and those of its results.

        For a fusible op both are the same, and are given once.
        """
        cls = self.plan.graph.cls(op)
        results = self._layouts(state.result_specs, cls.results)
        return results if cls.fusible else f"{self._layouts(state.operand_specs, cls.operands)} -> {results}"

    def how_stored(self, node: Node, state: State) -> str:
        """Returns how an argument, a value or a result lies in a state of its node."""
        layout = layout_text(state.result_specs[0], self.axes, len(self._value_type(node).shape))
        return f"{layout}{IN_HOST_MEMORY}" if state.memory == HOST else layout

    def type_of(self, node: Node) -> str:
        """Returns the type of what a node stands for, of the first result of an op; empty where it has none."""
        return _type(self._value_type(node)) if node.kind != "op" or self.plan.graph.results(node.number) else ""

    def local_bytes(self, value: int) -> int:
        """Returns the bytes of a value on a device, as it is stored."""
        return self.plan.graph.type_of(value).num_bytes // num_parts(self.plan.specs[value], self.plan.sizes)

    def _value_type(self, node: Node) -> TensorType:
        graph = self.plan.graph
        match node.kind:
            case "op":
                return graph.type_of(graph.results(node.number).start)
            case "return":
                return graph.type_of(graph.returns[node.number])
            case _:
                return graph.type_of(node.number)

    def _layouts(self, specs: Iterable[int], kinds: Iterable[TensorType]) -> str:
        return ", ".join(layout_text(spec, self.axes, len(kind.shape)) for spec, kind in zip(specs, kinds, strict=True))

    def _cost(self, one: Transfer, seconds: float) -> Cost:
        op = int(self.plan.graph.value_op[one.value]) if one.reader is None else one.reader
        reader = self.named(one.reader).name if one.reader is not None else ""
        line = self.named(op).line if op >= 0 else ""
        return Cost(
            one.move.kind, one.times, one.times * one.move.num_bytes, seconds, self.tensor(one.value), reader, line
        )

    def _work(self, op: int, times: int, compute_s: float, collectives_s: float) -> Work:
        graph, state = self.plan.graph, self.plan.ops[op]
        name, line = self.named(op)
        local = sum(self.local_bytes(value) for value in graph.results(op))
        place = graph.cls(op).placed
        kind = _MOVED[place] if place else _kind(self.program.ops[op].name)
        shares = state.num_shares(self.plan.sizes) if state.strategy else 1
        return Work(kind, name, line, times, shares, self.how(op, state), compute_s, collectives_s, times * local)

    def _alive(self, time: int) -> Iterator[PeakTensor]:
        """Yields what is alive at a time."""
        problem, states = self.kept
        nodes, edges = problem.node_residents, problem.edge_residents
        for row in np.flatnonzero((nodes.start <= time) & (nodes.end >= time)).tolist():
            owner = int(nodes.owner[row])
            name, kind = self._node(self.choice.nodes[owner])
            if self.choice.nodes[owner].kind == "argument" and (nodes.start[row], nodes.end[row]) != (
                0,
                problem.num_times - 1,
            ):
                kind = f"{kind}, beside the old one"
            yield PeakTensor(name, kind, 1, int(problem.tables[nodes.table[row]][states[owner]]))
        for row in np.flatnonzero((edges.start <= time) & (edges.end >= time)).tolist():
            u, v = int(problem.edge_u[edges.owner[row]]), int(problem.edge_v[edges.owner[row]])
            name, kind = self._node(self.choice.nodes[u])
            num_bytes = int(problem.tables[edges.table[row]][states[u], states[v]])
            if num_bytes:
                yield PeakTensor(name, f"{kind}, moved", 1, num_bytes)

    def _node(self, node: Node) -> tuple[str, str]:
        graph = self.plan.graph
        if node.kind == "argument":
            return graph.arguments[node.number].name, f"argument {self.type_of(node)}"
        if node.kind == "return":
            return f"result {node.number}", self.type_of(node)
        op = node.number if node.kind == "op" else int(graph.value_op[node.number])
        return self.named(op).name, f"{_kind(self.program.ops[op].name)} {self.type_of(node)}".strip()

    def _running(self, time: int) -> str:
        """Returns the op that computes at a time, where the residents tell."""
        residents = self.kept[0].node_residents
        for row in np.flatnonzero(
            (residents.start <= time) & (residents.end >= time) & (residents.end <= time + 1)
        ).tolist():
            node = self.choice.nodes[int(residents.owner[row])]
            if node.kind == "op":
                return " at ".join(part for part in self.named(node.number) if part)
        return ""


def plan_costs(chosen: ShardingChoice) -> PlanCosts:
    """Returns the costs of what was chosen."""
    return PlanCosts(chosen.choice, chosen.answer.states, chosen.plan, chosen.program)


def alternatives(chosen: ShardingChoice, layout: LayoutChoice | None) -> tuple[Alternative, ...]:
    """Returns what was evaluated and not chosen, best first: other meshes, and the step stored in the other form."""
    found = []
    if layout is not None:
        other, own_s = layout.other, chosen.answer.cost + layout.moved_s
        what = AS_BLOCKS if other.is_viewed else PLAIN
        why = other.why_not or f"takes at least {format_seconds(other.at_least_s)}"
        if other.step_s is not None:
            why = f"{other.step_s / own_s - 1:.1%} slower"
        found.append(Alternative(what, other.step_s, other.at_least_s, is_exact=other.step_s is not None, why=why))
    for target, outcome in chosen.outcomes:
        what = f"mesh {target.mesh}"
        if isinstance(outcome, Answer) and outcome is not chosen.answer:
            slower = outcome.cost / chosen.answer.cost - 1
            found.append(Alternative(what, outcome.cost, outcome.bound, is_exact=True, why=f"{slower:.1%} slower"))
        elif isinstance(outcome, Unsolved):
            why = f"takes at least {format_seconds(outcome.bound)}"
            found.append(Alternative(what, None, outcome.bound, is_exact=False, why=why))
        elif isinstance(outcome, RhinoError):
            found.append(Alternative(what, None, 0.0, is_exact=False, why=outcome.what))
    return tuple(sorted(found, key=lambda one: (one.step_s is None, one.step_s or 0.0, one.what)))


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _type(kind: TensorType) -> str:
    return kind_of(kind.dtype, kind.shape)


def _together(rows: Sequence[_Row], sums: Sequence[str], **names: str) -> _Row:
    """Returns rows that are alike as one, with what they differ in left out of its names."""
    if len(rows) == 1:
        return rows[0]
    changed: dict[str, Any] = {**names, **{one: sum(getattr(row, one) for row in rows) for one in sums}}
    return replace(rows[0], **changed)
