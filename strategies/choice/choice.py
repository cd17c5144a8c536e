"""The choice problem of one graph: the problem that solvers see, and what its nodes stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import Graph
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.nodes import Node
from rhino.strategies.cost.op_costs import OpCosts
from rhino.strategies.cost.overlap import Windows
from rhino.strategies.cost.wire import Narrow
from rhino.strategies.solver.problem import Problem


class Maker(Protocol):
    """Who built a choice problem, and can tell what choices keep in memory, and what they cost elsewhere."""

    def with_memory(self, problem: Problem) -> Problem:
        """Returns the problem that was built, with the residents and tables of what each choice keeps in memory."""
        ...

    def narrowed(self, states: Ints) -> Maker:
        """Returns the same for the one choice `states` [nodes]."""
        ...

    def on_devices(self, model: CostModel, states: Ints) -> Choice:
        """Returns the choice problem of the one choice `states` [nodes] on devices of another model.

        Its axes have the same sizes.
        """
        ...


@dataclass(frozen=True, eq=False)
class Choice:
    """The choice problem of one graph on a mesh, with what each node stands for.

    `op_costs`, `narrow` and `windows` are what the problem's seconds were worked out with.

    What choices keep in memory is no part of it until it is asked for: tables of bytes are larger than those of seconds
    by far, and not needed where the best choice of all fits.
    """

    graph: Graph
    model: CostModel
    nodes: tuple[Node, ...]
    problem: Problem
    builder: Maker
    op_costs: OpCosts
    narrow: Narrow
    windows: Windows | None

    @property
    def has_memory(self) -> bool:
        """Returns whether the problem says what choices keep in memory."""
        return len(self.problem.node_residents) > 0

    def with_memory(self) -> Choice:
        """Returns the same choice problem with what each choice keeps in memory.

        Its tables come behind those that were there.
        """
        return self if self.has_memory else self._remembered

    @cached_property
    def _remembered(self) -> Choice:
        return replace(self, problem=self.builder.with_memory(self.problem))

    def is_same(self, other: Choice) -> bool:
        """Returns whether another graph on another mesh is the same choice problem, memory left out."""
        one, two = self.problem, other.problem
        count = [
            max(problem.node_table.max(initial=-1), problem.edge_table.max(initial=-1)) + 1 for problem in (one, two)
        ]
        return (
            self.model == other.model
            and count[0] == count[1]
            and np.array_equal(one.node_table, two.node_table)
            and np.array_equal(one.edge_table, two.edge_table)
            and np.array_equal(one.edge_u, two.edge_u)
            and np.array_equal(one.edge_v, two.edge_v)
            and all(map(np.array_equal, one.tables[: count[0]], two.tables[: count[0]]))
        )

    def kept(self, states: Ints) -> tuple[Problem, Ints]:
        """Returns the memory problem of the choice `states` [nodes], and that choice's states in it [nodes].

        The problem gives what the choice keeps in memory.

        It is for `Problem.memory` and residents: where it was made for this one choice, its nodes and edges have no
        costs.
        """
        if self.has_memory:
            return self.problem, states
        narrowed = self.builder.narrowed(states)
        return narrowed.with_memory(self.problem), np.zeros_like(states)
