"""What a micro-batch takes more where its forward pass and its backward pass are separate programs.

All stages but the last have two such programs.

What is stashed is written, where in one program it would be computed inside who reads it; what is made again is made
twice, and written where several read it (strategies/pipeline/activation_stash.py). It is told of a micro-batch in two
programs, which part where most is held: of a stage's ops it is their share of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Floats
from rhino.ir.graph.graph import Graph, materialized
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.op_costs import OpCosts
from rhino.strategies.memory.kernel_reads import kernel_costs
from rhino.strategies.memory.resident_rows import written_in_place
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch


@dataclass(frozen=True, slots=True, eq=False)
class SplitBackwardCost:
    """Seconds per micro-batch [ops]: `more_s` where an op stands, `again_s` where it is done again.

    `more_s` is less than zero where the op writes less.
    """

    more_s: Floats
    again_s: Floats


def split_backward_cost(plan: ShardingPlan, model: CostModel, split: SplitMicroBatch) -> SplitBackwardCost:
    """Returns what the ops of a plan's micro-batch take more in two programs than in one."""
    graph, parts = plan.graph, split.parts
    in_place = written_in_place(graph)
    unsplit = kernel_costs(graph, model, materialized(graph).tolist(), in_place)
    times = graph.times() / (1 if parts.loop is None else max(1, parts.loop.trips or 1))
    late = np.arange(graph.num_ops) > split.turns[0]
    again = np.zeros(graph.num_ops, dtype=bool)
    again[graph.value_op[sorted(split.halves.again)]] = True
    left = graph.uses[np.repeat(~parts.body, np.diff(graph.use_start))].tolist()  # read after the micro-batch
    found = SplitBackwardCost(np.zeros(graph.num_ops), np.zeros(graph.num_ops))

    def program(ops: Bools, given: Iterable[int]) -> OpCosts:
        inside, returned = parts.body & (ops | parts.free), (*given, *left)
        alone = materialized(graph, inside, (*returned, *graph.returns)).tolist()
        return kernel_costs(graph, model, alone, in_place, returned, inside)

    back = program(late | again, ())
    for costs, ops in ((program(~late, split.halves.kept), ~late), (back, late)):
        for op in _changed(graph, unsplit, costs, parts.body & ops & ~parts.free):
            found.more_s[op] = times[op] * (costs.state_s(op, plan.ops[op]) - unsplit.state_s(op, plan.ops[op]))
    for op in np.flatnonzero(again).tolist():
        state = plan.ops[op]
        sums_s = [back.scalar_sum_s(*one, None) for one in zip(graph.results(op), state.result_specs, strict=True)]
        found.again_s[op] = times[op] * (back.state_s(op, state) + sum(sums_s))
    return found


def _changed(graph: Graph, one: OpCosts, other: OpCosts, ops: Bools) -> list[int]:
    """Returns those of `ops` that read or write other values of memory in two programs."""
    read = np.array(one.reads) != np.array(other.reads)
    made = np.array(one.in_memory) != np.array(other.in_memory)
    changed = np.zeros(graph.num_ops, dtype=bool)
    changed[np.repeat(np.arange(graph.num_ops), np.diff(graph.use_start))[read]] = True
    changed[graph.value_op[made & (graph.value_op >= 0)]] = True
    return np.flatnonzero(changed & ops).tolist()
