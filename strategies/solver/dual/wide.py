"""The best choice of a problem on which elimination is too wide, with a bound: by prices, and by sweeps over mesh axes.

The prices of an ascent (`rhino.strategies.solver.dual.dual_ascent`) prove a bound and say which states can be in a good
choice; among those, elimination finds one (`rhino.strategies.solver.dual.bounded_elimination`). On most models both
meet. Where a gap is left: sweeps improve the choice, states are dropped that cost more than the gap allows, and if
elimination can do the rest, what it finds is the optimum. More rounds of refinement tell more places apart, which can
only raise the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rhino.ir.arrays import Ints
from rhino.strategies.solver.dual.axis_sweeps import Sweep
from rhino.strategies.solver.dual.bounded_elimination import best_near, best_within
from rhino.strategies.solver.dual.colour_refinement import Lifted, lift, refinements
from rhino.strategies.solver.dual.dual_ascent import Ascent, Stage
from rhino.strategies.solver.elimination.by_node import TableStore
from rhino.strategies.solver.problem import Problem

_LEG = 30
"""Passes of an ascent between looks at what they are worth, at most."""

_FIRST, _LONGER = 3, 3
"""Passes of the first leg of an ascent, and how much longer each leg is than the one before it.

Such an ascent begins with the prices of one on a problem nearly the same. For two of three such problems the first leg
is enough.
"""

_PROGRESS = 0.05
"""An ascent goes on while a leg closes this share of the gap."""

_FEW_MORE = 1.5
"""Rounds that make so many times as many classes of edges, or fewer, are made at once."""

_MOST_LEFT = 0.3
"""The share of states up to which it is worth a try to find the optimum among what is left of them."""

_FAR = 0.02
"""The gap from which on a choice may be one that another start would leave behind.

On 8 x 8 x 8 a U-Net's, found near its bound, was 19 % slower than what sweeps from nothing come to (2026-11-27)."""

_NEAR_ENTRIES = 1 << 20
"""The largest table in a search near the bound: such searches are many."""


@dataclass(eq=False)
class Wide:
    """The search on one problem.

    `bound` is proven for it; `states` is the best choice so far, and `cost` what it costs.

    It ends where the bound reaches `cutoff`.
    """

    problem: Problem
    store: TableStore
    max_entries: int
    gap: float
    states: Ints
    cutoff: float = np.inf
    bound: float = -np.inf
    cost: float = field(init=False)
    ascent: Ascent | None = None
    stages: Sequence[Stage] = ()
    """What an ascent on a problem nearly the same came to: this one begins with that."""
    left_out: float = np.inf
    """What choices cost at least that have a state which the ascent has left out."""

    def __post_init__(self) -> None:
        self.cost = self.problem.cost(self.states)

    @property
    def most(self) -> float:
        """What no choice is to cost that is still looked for."""
        return min(self.cost, self.cutoff)

    @property
    def is_over(self) -> bool:
        """Whether nothing is legal, or cheaper than what is asked for."""
        return self.bound == np.inf or self.bound >= self.cutoff

    @property
    def is_done(self) -> bool:
        """Whether the choice is near enough to the bound, or none is asked for."""
        return self.is_over or (self.cost < np.inf and self.cost - self.bound <= self.gap * abs(self.cost))

    def lifted(self, rounds: Sequence[int]) -> Iterator[Lifted]:
        """Yields the problem with alike places as one, after so many rounds each.

        A refinement is left out where the next one makes few more classes.
        """
        found = [lift(self.problem, classes) for classes in refinements(self.problem, rounds)]
        for one, finer in pairwise(found):
            if len(finer.edge) > _FEW_MORE * len(one.edge):
                yield one
        yield from found[-1:]

    def ascend(self, lifted: Lifted, passes: int) -> None:
        """Raises the bound, and looks near it for a better choice."""
        begun = self.ascent is None and len(self.stages) > 0
        last = self.ascent
        ascent = self.ascent = Ascent(lifted, last.stages if last else self.stages[:1])
        self.raise_to(ascent.bound)
        if begun:
            self.leave_out(ascent)
            for stage in self.stages[1:]:
                if not ascent.take(stage):
                    break
                self.raise_to(ascent.bound)
                self.leave_out(ascent)
            if self.is_over:
                return
        leg = _FIRST if begun else _LEG
        while passes > 0:
            before = self.bound
            self.raise_to(ascent.run(leg, self.cutoff))
            passes, leg = passes - leg, min(_LONGER * leg, _LEG)
            if self.is_over:
                return
            if not self.is_done:
                self.take(
                    best_near(
                        ascent,
                        self.store,
                        min(self.max_entries, _NEAR_ENTRIES),
                        self.bound + self.gap * abs(self.bound),
                    )
                )
            stalls = self.most < np.inf and self.bound - before < _PROGRESS * (self.most - self.bound)
            if self.is_done or stalls:
                return
            self.leave_out(ascent)

    def leave_out(self, ascent: Ascent) -> None:
        """Leaves out states that are in no choice which is asked for, or is better than the best so far."""
        self.left_out = self.most
        ascent.narrow(self.left_out - ascent.bound)

    def raise_to(self, bound: float) -> None:
        """Takes a bound on the choices that have no state which was left out."""
        self.bound = max(self.bound, min(bound, self.left_out))

    def take(self, states: Ints) -> None:
        """Takes a choice if it is the best so far."""
        cost = self.problem.cost(states)
        if cost < self.cost:
            self.states, self.cost = states, cost

    def sweep(self) -> None:
        """Improves the choice one axis at a time, and looks for another one where it is far from the bound."""
        sweep = Sweep(self.problem, self.store, self.max_entries)
        if self.cost == np.inf:
            self.take(sweep.best())
        elif self.cost - self.bound < _FAR * abs(self.cost):
            self.take(sweep.descend(self.states, range(sweep.num_axes)))
        else:
            self.take(sweep.best(self.states))

    def finish(self) -> None:
        """Finds the optimum, if that can be done without the states that cost more than the best choice so far."""
        if self.ascent is None or self.cost == np.inf:
            return
        best = best_within(self.ascent, self.store, self.max_entries, self.states, _MOST_LEFT)
        if best is not None:
            self.take(best)
            self.bound = self.cost
