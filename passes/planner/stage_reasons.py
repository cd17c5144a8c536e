"""Where the tensors and ops of a plan in stages are, and what it takes to have them in another stage.

Stages are cut for the whole step, and so are shardings chosen: one problem has all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.plan.instructions import Run, rank_of
from rhino.ir.plan.plan import Plan
from rhino.ir.program.op_stages import stage_of, virtual_stage_of
from rhino.passes.planner.plan_costs import PlanCosts
from rhino.passes.planner.tables import signed_seconds
from rhino.strategies.pipeline.stages.stage_graph import NO_NODE, Staging
from rhino.strategies.pipeline.stages.stage_problem import OPEN
from rhino.strategies.solver.answer import Infeasible, Unsolved

if TYPE_CHECKING:
    from rhino.strategies.pipeline.stages.cut import StageAnswer

_MOST_CUT: Final = 20_000
"""Nodes, each as often as there are stages and as the stages are cut anew, to say what it costs to have something
elsewhere."""


@dataclass(eq=False)
class StagePlaces:
    """Where the nodes of a choice are, and what it takes to have them elsewhere."""

    plan: Plan
    costs: PlanCosts
    staging: Staging
    answer: StageAnswer
    left: int = _MOST_CUT

    def __post_init__(self) -> None:
        assert self.plan.execution is not None, "it is a plan in stages"
        step = self.plan.execution.step
        self.rank_of_stage = {one.task.stage: rank_of(step, one) for one in step.instructions if isinstance(one, Run)}

    def of(self, number: int) -> str:
        """Returns the rank that a node is on, empty where it is on each that reads it."""
        node = self.costs.choice.nodes[number]
        if node.kind in ("argument", "return"):
            side = self.plan.arguments if node.kind == "argument" else self.plan.results
            return f"rank {side[node.number].rank}"
        graph = self.costs.plan.graph
        op = self.costs.program.ops[node.number if node.kind == "op" else int(graph.value_op[node.number])]
        stage, virtual = stage_of(op), virtual_stage_of(op)
        if virtual is not None:
            stage = self.staging.problem.virtual.stage(virtual).device
        if stage is None:
            return ""
        return f"stage {stage}, rank {self.rank_of_stage.get(stage, stage)}"

    def notes(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Returns what it costs to put nodes of the choice in neighbouring stages, with everything else cut anew."""
        nodes = self._stage_nodes(numbers)
        problem = self.staging.problem
        stages = sorted(set(problem.device(self.answer.stage[nodes]).tolist())) if len(nodes) else []
        if len(stages) != 1:
            return (f"read in stages {', '.join(map(str, stages))}",) if stages else ()
        if (problem.pinned[nodes] != OPEN).any():
            return (f"in stage {stages[0]}: boundaries in the model say so",)
        others = [stage for stage in (stages[0] - 1, stages[0] + 1) if 0 <= stage < problem.num_stages]
        self.left -= len(others) * problem.num_nodes * problem.num_stages
        return (
            tuple(f"in stage {stage} instead of {stages[0]}: {self._moved(nodes, stage)}" for stage in others)
            if self.left >= 0
            else ()
        )

    def _stage_nodes(self, numbers: Sequence[int]) -> Ints:
        """Returns the nodes of the problem of stages for nodes of the choice: for arguments, those that read them."""
        graph, nodes = self.staging.graph, [self.costs.choice.nodes[number] for number in numbers]
        if nodes[0].kind == "argument":
            values = {node.number for node in nodes}
            for loop in graph.loops:
                inside = zip(graph.results(loop.op), graph.operands(loop.op).tolist(), strict=True)
                values |= {carried for carried, source in inside if source in values}
            ops = [op for op in range(graph.num_ops) if values & set(graph.operands(op).tolist())]
        elif nodes[0].kind == "op" and "remat" not in self.plan.options:
            # What is recomputed has changed the numbers of ops.
            ops = [node.number for node in nodes]
        else:
            return np.zeros(0, dtype=np.int64)
        found: Ints = np.unique(self.staging.node[ops])
        own: Ints = found[found != NO_NODE]
        return own

    def _moved(self, nodes: Ints, stage: int) -> str:
        from rhino.strategies.pipeline.stages.cut import solve_stages  # noqa: PLC0415 - loads LP solvers

        problem, answer = self.staging.problem, self.answer
        turn = problem.num_stages - 1
        is_back = (answer.stage[nodes] > turn) | ((answer.stage[nodes] == turn) & problem.late[nodes])
        pinned = problem.pinned.copy()
        pinned[nodes] = np.where(is_back, problem.virtual.opposite(stage), stage)
        found = solve_stages(
            replace(problem, pinned=pinned), answer.limit_s / answer.least_s - 1 if answer.least_s else 0.0
        )
        if isinstance(found, Infeasible | Unsolved):
            return "cannot be"
        return (
            f"transfers {signed_seconds(found.cost - answer.cost)} in a step, the stage with most work "
            f"{signed_seconds(found.work_s - answer.work_s)} in a micro-batch"
        )
