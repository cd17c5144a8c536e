"""What each op and each value of a sharded step comes to on one device: a plan's cost, op by op.

The cost of a choice stands on nodes and edges. A node's is that of its op. An edge is the way of a value from one node
to another: it is paid where the value is read if an op reads it, and where it is made if it is only stored or returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.ir.graph.graph import DEVICE, HOST, Loop
from rhino.ir.graph.host_values import values_on_host
from rhino.ir.graph.spec import num_parts
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.nodes import Node

_NO_OP: Final = -1


@dataclass(frozen=True, eq=False)
class Sharded:
    """A step that is sharded by the `states` [nodes] of a choice, which are `plan`, and its loop over micro-batches."""

    choice: Choice
    states: Ints
    plan: ShardingPlan
    loop: Loop | None
    _elsewhere: dict[CostModel, Floats] = field(default_factory=dict, repr=False)

    @property
    def model(self) -> CostModel:
        """The cost model that shardings were chosen by."""
        return self.choice.model

    @cached_property
    def seconds(self) -> Floats:
        """The seconds of each op in a step, with the collectives that it waits for [ops]."""
        return op_seconds(self.choice, self.states)

    @cached_property
    def total_s(self) -> float:
        """The cost of the whole step."""
        return self.choice.problem.cost(self.states)

    def seconds_on(self, model: CostModel) -> Floats:
        """Returns the seconds of each op on devices of a model whose axes have the same sizes [ops]."""
        if model == self.model:
            return self.seconds
        if model not in self._elsewhere:
            alone = self.choice.builder.on_devices(model, self.states)
            self._elsewhere[model] = op_seconds(alone, np.zeros_like(self.states))
        return self._elsewhere[model]

    @cached_property
    def value_bytes(self) -> Floats:
        """The bytes of each value on one device, as it is stored [values]."""
        return local_bytes(self.plan)

    @cached_property
    def is_alone(self) -> Bools:
        """Which ops wait for no other device [ops]."""
        return runs_alone(self.plan)


def op_seconds(choice: Choice, states: Ints) -> Floats:
    """Returns the seconds of each op in a step, with the collectives that it waits for [ops].

    Their sum is the cost of `states` [nodes].
    """
    graph, problem = choice.graph, choice.problem
    seconds = np.zeros(graph.num_ops + 1)
    ops = np.array([_op_of(choice, node) for node in choice.nodes], dtype=np.int64)
    is_op = np.array([node.kind == "op" for node in choice.nodes], dtype=bool)
    for node, table in enumerate(problem.node_table.tolist()):
        seconds[ops[node]] += problem.tables[table][states[node]]
    for u, v, table in zip(problem.edge_u.tolist(), problem.edge_v.tolist(), problem.edge_table.tolist(), strict=True):
        cost = problem.tables[table][states[u], states[v]]
        if cost:
            ends = [end for end in (u, v) if is_op[end]] or [u, v]
            seconds[max(ops[end] for end in ends)] += cost
    found: Floats = seconds[:-1]
    return found


def states_of(choice: Choice, plan: ShardingPlan) -> Ints:
    """Returns the state of each node of a choice that a plan is [nodes]; where it has none, the first that is there."""
    found = [_place(node.states, _state_of(plan, node)) for node in choice.nodes]
    return np.array(found, dtype=np.int64)


def _state_of(plan: ShardingPlan, node: Node) -> State:
    match node.kind:
        case "op":
            return plan.ops[node.number]
        case "return":
            spec = plan.returned[node.number]
        case _:
            spec = plan.specs[node.number]
    is_on_host = node.kind == "argument" and node.number in plan.on_host
    return State((), (spec,), (spec,), memory=HOST if is_on_host else DEVICE)


def _place(states: Sequence[State], state: State) -> int:
    return states.index(state) if state in states else 0


def _op_of(choice: Choice, node: Node) -> int:
    """Returns the op of a node: its own, or the one that makes the value that it stores.

    The result is -1, the place behind the last op, where there is none.
    """
    match node.kind:
        case "op":
            return node.number
        case "value":
            return int(choice.graph.value_op[node.number])
        case "return":
            return int(choice.graph.value_op[choice.graph.returns[node.number]])
        case _:
            return _NO_OP


def local_bytes(plan: ShardingPlan) -> Floats:
    """Returns the bytes of each value on one device, as it is stored; none of what lies in host memory [values]."""
    graph = plan.graph
    parts = np.array([num_parts(spec, plan.sizes) for spec in plan.specs], dtype=np.float64)
    found: Floats = graph.value_bytes() / parts
    found[sorted(plan.on_host | values_on_host(graph))] = 0.0
    return found


def runs_alone(plan: ShardingPlan) -> Bools:
    """Returns which ops wait for no other device [ops].

    Their operands already have the layout that they need, and their results are stored as they come.
    """
    found = np.ones(plan.graph.num_ops, dtype=bool)
    for one in plan.transfers():
        op = int(plan.graph.value_op[one.value]) if one.reader is None else one.reader
        if op >= 0 and any(plan.sizes[axis] > 1 for axis in one.move.axes):
            found[op] = False
    return found
