"""A part of a plan as a plan of its own: some ops, which read the rest as arguments and return what the rest reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.graph.graph import DEVICE, HOST, Argument, Graph, Repeats
from rhino.ir.graph.host_values import values_on_host
from rhino.ir.graph.spec import Spec, num_parts
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.memory.peak import predicted_peak


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Some ops of a plan, ascending, with the values that they return and in which specs.

    `into` says whose buffers some of these take.
    """

    ops: Sequence[int]
    returns: Mapping[int, Spec]
    into: Mapping[int, int]

    def arguments(self, graph: Graph) -> tuple[int, ...]:
        """Returns the values that the part reads of the rest, and those whose buffers it takes over."""
        made = {value for op in self.ops for value in graph.results(op)}
        read = (value for op in self.ops for value in graph.operands(op).tolist())
        return tuple(dict.fromkeys(value for value in (*read, *self.into.values()) if value not in made))


def plan_of(plan: ShardingPlan, part: PlanPart) -> ShardingPlan:
    """Returns a part of a plan, whose values lie as they do in the whole."""
    graph, arguments = plan.graph, part.arguments(plan.graph)
    values = [*arguments, *(value for op in part.ops for value in graph.results(op))]
    number = {value: k for k, value in enumerate(values)}
    place = {op: k for k, op in enumerate(part.ops)}
    there = plan.on_host | values_on_host(graph)
    alias = {into: k for k, value in enumerate(part.returns) if (into := part.into.get(value)) is not None}
    found = Graph(
        classes=graph.classes,
        types=graph.types,
        op_class=graph.op_class[list(part.ops)],
        use_start=_starts(0, (len(graph.operands(op)) for op in part.ops)),
        uses=np.array([number[value] for op in part.ops for value in graph.operands(op).tolist()], dtype=np.int64),
        result_start=_starts(len(arguments), (len(graph.results(op)) for op in part.ops)),
        value_type=graph.value_type[values],
        value_op=np.array(
            [-1] * len(arguments) + [place[op] for op in part.ops for _ in graph.results(op)], dtype=np.int64
        ),
        arguments=tuple(
            [Argument("", alias.get(value), (HOST,) if value in there else (DEVICE,)) for value in arguments]
        ),
        returns=tuple([number[value] for value in part.returns]),
        return_fixed=(None,) * len(part.returns),
        fixed={},
        loops=tuple(
            [replace(loop, op=place[loop.op], end=place[loop.end]) for loop in graph.loops if loop.op in place]
        ),
        zeros=frozenset([number[value] for value in sorted(graph.zeros) if value in number]),
    )
    if (repeats := graph.repeats) is not None:
        ops = list(part.ops)
        found = replace(found, repeats=Repeats(repeats.times[ops], repeats.copies[values], repeats.run[ops]))
    states, specs = [plan.ops[op] for op in part.ops], [plan.specs[value] for value in values]
    returned = tuple(part.returns.values())
    on_host = frozenset([number[value] for value in arguments if value in there])
    return ShardingPlan(found, plan.sizes, tuple(states), tuple(specs), returned, plan.target, plan.model, on_host)


def temporary_bytes(plan: ShardingPlan) -> float:
    """Returns what a device needs to run a plan as a program of its own, beside its arguments and results."""
    graph = plan.graph
    results = [bytes_of(plan, value, spec) for value, spec in zip(graph.returns, plan.returned, strict=True)]
    moved = values_on_host(graph)
    for number, value in enumerate(graph.returns):
        if number in plan.results_on_host or value in moved:
            results[number] = 0.0
    taken_over = sum(results[one.alias] for one in graph.arguments if one.alias is not None)
    arguments = [value for value in range(len(graph.arguments)) if value not in plan.on_host]
    outside = sum(results) + sum(bytes_of(plan, value, plan.specs[value]) for value in arguments)
    return max(0.0, predicted_peak(plan) - (outside - taken_over))


def structure(plan: ShardingPlan) -> object:
    """Returns what is equal for parts of one plan that are alike, op by op."""
    graph = plan.graph
    arrays = (graph.op_class, graph.use_start, graph.uses, graph.result_start, graph.value_type)
    aliases = tuple([one.alias for one in graph.arguments])
    return (
        *(array.tobytes() for array in arrays),
        (aliases, graph.returns, graph.loops, graph.zeros),
        (plan.ops, plan.specs, plan.returned, plan.on_host),
    )


def bytes_of(plan: ShardingPlan, value: int, spec: Spec) -> float:
    """Returns the bytes of all that a value stands for, on one device, where it lies so."""
    repeats = plan.graph.repeats
    return (
        (1 if repeats is None else int(repeats.copies[value]))
        * plan.graph.type_of(value).num_bytes
        / num_parts(spec, plan.sizes)
    )


def _starts(first: int, counts: Iterator[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.cumsum([first, *counts], dtype=np.int64)
