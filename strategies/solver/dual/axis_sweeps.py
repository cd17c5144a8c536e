"""Improve a choice on several mesh axes.

One axis at a time is solved exactly, with what is chosen along the others fixed, until nothing improves.

Along one axis the states of a node are few, and elimination solves the whole graph. That is not the same as planning
each axis by itself: every solve sees the local shapes that the other axes leave, and pays for how the axes meet. Where
it stops, no change along a single axis helps. Starts that take the axes in opposite orders stop in different places;
what each does better is then mixed, exactly too: every node may take its state in any of them.

Source: Rhino 4.3.3, "outermost axis first"; the mixing is the fusion move of Lempitsky, Rother, Roth and Blake (2010).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhino.ir.arrays import Ints
from rhino.strategies.solver.dual.bounded_elimination import best_near, best_within, core_states, greedy, narrowed
from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.elimination.by_node import Mask, TableStore, TooWideError
from rhino.strategies.solver.elimination.in_batches import AnyElimination, elimination_of
from rhino.strategies.solver.problem import Problem

_ROUNDS = 8
"""Sweeps over all axes from one start, at most: two to three were seen to be enough."""

_ROUNDING = 1e-12

_REFINED, _PASSES, _LEGS = 3, 20, 2
"""Of the ascent that shows the way where even one axis is too wide for elimination.

They are rounds of refinement, passes between looks at what is left, and looks.
"""


class Sweep:
    """Sweeps on one problem, whose tables are those of `store`."""

    def __init__(self, problem: Problem, store: TableStore, max_entries: int) -> None:
        self.problem = problem
        self.store = store
        self.max_entries = max_entries
        base = [store.intern(table) for table in problem.tables]
        self.node_costs = [base[table] for table in problem.node_table.tolist()]
        self.edge_costs = [base[table] for table in problem.edge_table.tolist()]
        self.num_axes = problem.coordinates[0].shape[1] if problem.num_nodes else 0
        self.lines: dict[tuple[int, int, int], Mask] = {}

    def best(self, start: Ints | None = None) -> Ints:
        """Returns the best choice found [nodes].

        It is improved from where nothing is split, innermost axis first, and then outermost first, or from `start` if
        that is given and is the better one.
        """
        axes = list(range(self.num_axes))
        nothing = np.zeros(self.problem.num_nodes, dtype=np.int64)
        inward = self.descend(nothing, axes[::-1])
        if start is None:
            return self.fuse([inward, self.descend(nothing, axes)])
        is_better = self.problem.cost(start) < self.problem.cost(inward)
        return self.fuse([inward, self.descend(start, axes) if is_better else start])

    def fuse(self, found: Sequence[Ints]) -> Ints:
        """Returns the best mixture of some choices, improved axis by axis.

        Where mixing finds nothing better, it returns the best of them.
        """
        best = min(found, key=self.problem.cost)
        masks = [tuple(sorted(set(states))) for states in zip(*(choice.tolist() for choice in found), strict=True)]
        mixed = self.within(masks, best)
        if not self.is_less(self.problem.cost(mixed), self.problem.cost(best)):
            return best
        return self.descend(mixed, list(range(self.num_axes)))

    def descend(self, states: Ints, axes: Sequence[int]) -> Ints:
        """Returns a choice that no change along one axis improves, found from `states` by taking `axes` in turn."""
        cost, idle = self.problem.cost(states), 0
        for turn in range(_ROUNDS * len(axes)):
            better = self.within(self.line(states, axes[turn % len(axes)]), states)
            reached = self.problem.cost(better)
            idle = idle + 1
            if self.is_less(reached, cost):
                states, cost, idle = better, reached, 0
            if idle >= len(axes):
                break
        return states

    @staticmethod
    def is_less(cost: float, other: float) -> bool:
        """Says whether a choice costs less than another by more than rounding."""
        return cost < other - _ROUNDING * abs(other) if other < np.inf else cost < other

    def line(self, states: Ints, axis: int) -> list[Mask]:
        """Returns for every node the states that differ from its own along `axis` alone."""
        masks = []
        for coordinates, state in zip(self.problem.coordinates, states.tolist(), strict=True):
            key = (id(coordinates), state, axis)
            if key not in self.lines:
                others = np.delete(coordinates, axis, axis=1)
                self.lines[key] = tuple(np.flatnonzero((others == others[state]).all(axis=1)).tolist())
            masks.append(self.lines[key])
        return masks

    def within(self, masks: Sequence[Mask], known: Ints) -> Ints:
        """Returns the best choice of states in `masks`, or a good one where the tables for that would be too large.

        `known` is one of these choices.
        """
        elimination = narrowed(elimination_of(self.problem, self.store, self.node_costs, self.edge_costs, masks))
        original = elimination.copy()
        try:
            elimination.run(self.max_entries)
        except TooWideError:
            return self.guided(original, known)
        return elimination.read_back()

    def guided(self, elimination: AnyElimination, known: Ints) -> Ints:
        """Returns the best choice of what is left of an elimination, or a good one, by prices.

        States go that are in no better choice than the best so far; what is left may not be too wide.
        """
        nodes, core = elimination.core_problem()
        ascent = Ascent(lift(core, find_classes(core, _REFINED)))
        best = core_states(elimination, nodes, known)
        for _ in range(_LEGS):
            ascent.run(_PASSES)
            best = min(best, greedy(ascent), key=core.cost)
            exact = best_within(ascent, self.store, self.max_entries, best) if core.cost(best) < np.inf else None
            if exact is not None:
                best = exact
                break
        else:
            best = min(best, best_near(ascent, self.store, self.max_entries, -np.inf), key=core.cost)
        return elimination.read_back(dict(zip(nodes, best.tolist(), strict=True)))
