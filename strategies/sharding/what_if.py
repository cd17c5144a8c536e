"""What it costs to take another state somewhere: the choice problem with some nodes held, for many such questions.

All questions share one preparation. Where elimination is narrow enough, it answers each of them exactly
(`rhino.strategies.solver.conditional_optimum`). Where it is not, the prices of an ascent say what a choice with a state
must cost at least, and elimination among the states near the bound what it costs at most. What then is open is searched
for, as long as there are steps left. The peak of a choice is that of its program, which takes steps too, where somebody
tells that; else rows say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.ir.units import format_bytes
from rhino.strategies.sharding.memory_fitting import fit
from rhino.strategies.solver.answer import PROOF_TOLERANCE, Answer, Infeasible, Outcome
from rhino.strategies.solver.conditional_optimum import HeldChoices
from rhino.strategies.solver.dual.bounded_elimination import states_within
from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.elimination.by_node import TooWideError
from rhino.strategies.solver.problem import PeakOf, Problem
from rhino.strategies.solver.search import Limits, Search
from rhino.strategies.solver.solver import Solver

MOST_STEPS: Final = 600_000
"""What searches with nodes held, and peaks, may take together: four seconds (AMD EPYC)."""
_STEPS_OF_NODE, _STEPS_OF_PEAK = 10, 15
"""The steps of a search by node, beside one by state, and those of a peak by node."""

MOST: Final = 8
"""Alternatives to one choice that are looked at: those that add least."""

_MOST_ENTRIES: Final = 1 << 18
"""Entries of the largest table with which questions are answered: it may be made again for each."""

_ROOMS: Final = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-6)
"""How far above the bound states are looked at, in shares of the cost: the first of which tables are narrow enough."""

_ROUNDS, _LEG, _LEGS = 4, 9, 12
"""Rounds of refinement of the ascent, its passes between looks at what they are worth, and how many such legs there are
at most."""


@dataclass(frozen=True, slots=True)
class CostDelta:
    """What a choice comes to, in seconds: nodes compute, edges send. `peak_bytes` is per device."""

    compute_s: float
    collectives_s: float
    peak_bytes: float

    @property
    def step_s(self) -> float:
        """The seconds of the step."""
        return self.compute_s + self.collectives_s


@dataclass(frozen=True, slots=True)
class Alternative:
    """What changes where some nodes take `state`.

    `parts` is of the best choice found, less that of the choice that was made; None where there is none, and then `why`
    says so. Every choice with that state takes `at_least_s` more. `is_legal` is false where there is none at all. Where
    `is_peak_exact` is false, the peak is what rows say, corrected by as much as they are wrong for the choice that was
    made.
    """

    state: int
    parts: CostDelta | None
    at_least_s: float
    why: str = ""
    is_legal: bool = True
    is_peak_exact: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Conditioned:
    """The best choice found with nodes at a state [nodes], its cost, and what every such choice costs at least.

    The cost is infinite where none was found.
    """

    state: int
    states: Ints
    cost: float
    bound: float


class Reach:
    """What holding nodes comes to, without a budget of memory: exactly, or between two figures."""

    def __init__(self, problem: Problem, answer: Answer) -> None:
        self.problem = problem
        self.bound, self.room = answer.cost, np.inf
        self.excess: list[Floats] = []
        self.classes: Ints = np.zeros(0, dtype=np.int64)
        self.stays = answer.states
        self.conditional: HeldChoices | None = None
        try:
            self.conditional = HeldChoices(problem, answer.states, _MOST_ENTRIES)
        except TooWideError:
            self._near(answer)

    def _near(self, answer: Answer) -> None:
        """Looks at states near the bound of an ascent alone."""
        ascent = Ascent(lift(self.problem, find_classes(self.problem, _ROUNDS)))
        for _ in range(_LEGS):
            before = ascent.bound
            if ascent.run(_LEG) - before <= PROOF_TOLERANCE * abs(answer.cost):
                break
        self.bound, self.excess, self.classes = ascent.bound, ascent.excess(), ascent.lifted.classes.node
        for share in _ROOMS:
            self.room = answer.cost - self.bound + share * abs(answer.cost)
            masks = states_within(ascent, self.excess, self.room, least=False)
            try:
                self.conditional = HeldChoices(self.problem, answer.states, _MOST_ENTRIES, masks)
            except TooWideError:
                continue
            return
        self.room = 0.0

    def of(self, nodes: Sequence[int], state: int) -> _Conditioned:
        """Returns what `nodes` at `state` come to."""
        cost, states = self.conditional.hold(nodes, state) if self.conditional else (np.inf, self.stays)
        bound = min(cost, self.bound + self.room)  # a choice below that has no state that was left out
        if self.excess:
            bound = max(bound, self.bound + max(float(self.excess[self.classes[node]][state]) for node in nodes))
        return _Conditioned(state, states, cost, bound)


@dataclass(eq=False)
class Alternatives:
    """The alternatives to a choice under a budget, which `solver` has found. Searches go on from what that one knows.

    `peak_of` tells the bytes that the program of a choice takes; without it the rows of the problem do.
    """

    problem: Problem
    limits: Limits
    answer: Answer
    budget_bytes: float
    solver: Solver
    peak_of: PeakOf | None = None
    left: int = MOST_STEPS
    reach: Reach = field(init=False)
    share: float = field(init=False)

    def __post_init__(self) -> None:
        self.reach = Reach(self.problem, self.answer)
        rows_bytes = self._rows_bytes(self.answer.states)
        self.share = self.answer.peak_bytes / rows_bytes if rows_bytes else 1.0  # of rows: what the program takes
        self.each = self.solves * (int(self.problem.num_states().sum()) + _STEPS_OF_NODE * self.problem.num_nodes)

    @property
    def solves(self) -> int:
        """How many solves a search takes: as many as the first one."""
        return max(1, self.solver.statistics.solves)

    def of(self, nodes: Sequence[int], num_questions: int = 1) -> list[Alternative]:
        """Returns alternatives to the state that `nodes` have all taken, those that add least first.

        There are no more than `MOST`. The steps that are left for searches are shared by so many questions, this one
        included.
        """
        chosen = int(self.answer.states[nodes[0]])
        tables = [self.problem.tables[self.problem.node_table[node]] for node in nodes]
        others = [s for s in range(len(tables[0])) if s != chosen and all(np.isfinite(table[s]) for table in tables)]
        every = sorted(
            (self.reach.of(nodes, state) for state in others), key=lambda one: (one.cost, one.bound, one.state)
        )
        after = self.left - self.left // num_questions
        found = [known for one in every[:MOST] if (known := self.known(nodes, one, after)).is_legal]
        return sorted(found, key=_added)

    def known(self, nodes: Sequence[int], one: _Conditioned, after: int) -> Alternative:
        """Returns what is known of an alternative, once it is searched for if there is more to know.

        At least `after` steps are left for later searches.
        """
        is_open = np.isfinite(one.bound) and one.cost - one.bound > PROOF_TOLERANCE * self.answer.cost
        if is_open and self._take(self.each, after):
            return self.searched(nodes, one, after)
        found = self.found(nodes, one, after)
        if found.parts is None and found.is_legal and not is_open and self._take(self.each, after):
            return self.searched(nodes, one, after)
        return found

    def _take(self, steps: int, after: int) -> bool:
        """Takes steps, and says whether they were there: so many are to be left `after`."""
        if self.left - steps < after:
            return False
        self.left -= steps
        return True

    def found(self, nodes: Sequence[int], one: _Conditioned, after: int) -> Alternative:
        """Returns what is known of an alternative without a search: the best choice that fits."""
        at_least = max(0.0, one.bound - self.answer.cost)
        if not np.isfinite(one.bound):
            return Alternative(one.state, None, at_least, "cannot be", is_legal=False)
        stays = self.answer.states.copy()
        stays[list(nodes)] = one.state
        choices = [
            states
            for states in (one.states if np.isfinite(one.cost) else stays, stays)
            if np.isfinite(self.problem.cost(states))
        ]
        for states in choices:
            is_exact = self.peak_of is None or self._take(_STEPS_OF_PEAK * self.problem.num_nodes, after)
            parts = self._beyond(
                states, self.peak_of(states) if self.peak_of and is_exact else self.share * self._rows_bytes(states)
            )
            if self.answer.peak_bytes + parts.peak_bytes <= self.budget_bytes:
                at_least = parts.step_s if parts.step_s - at_least <= PROOF_TOLERANCE * self.answer.cost else at_least
                return Alternative(one.state, parts, at_least, is_peak_exact=is_exact)
        return Alternative(
            one.state,
            None,
            at_least,
            "no choice with it that is predicted to fit was found" if choices else "only together with others",
        )

    def searched(self, nodes: Sequence[int], one: _Conditioned, after: int) -> Alternative:
        """Returns what changes where the others are chosen anew."""
        search = Search(hold(self.problem, nodes, one.state), self.limits)
        self._go_on(search.solver, one)
        outcome: Outcome
        if self.peak_of is None:
            outcome = search.run(self.budget_bytes)
        else:
            outcome = fit(search, self.budget_bytes, search.free(self.budget_bytes), self.peak_of)
        if isinstance(outcome, Infeasible):
            needed = (
                f"not predicted to fit: at least {format_bytes(outcome.peak_bytes)}"
                if outcome.peak_bytes
                else "cannot be"
            )
            return Alternative(one.state, None, 0.0, needed, is_legal=outcome.peak_bytes is not None)
        if not isinstance(outcome, Answer):
            return self.found(nodes, one, after)
        parts, at_least = (
            self._beyond(outcome.states, outcome.peak_bytes),
            max(0.0, max(outcome.bound, one.bound) - self.answer.cost),
        )
        exact = parts.step_s - at_least <= PROOF_TOLERANCE * self.answer.cost
        return Alternative(one.state, parts, parts.step_s if exact else at_least)

    def _go_on(self, solver: Solver, one: _Conditioned) -> None:
        """Lets a search begin with what the first one has come to."""
        first = self.solver
        solver.store, solver.is_wide, solver.order, solver.charged = (
            first.store,
            first.is_wide,
            first.order,
            first.charged,
        )
        solver.last = one.states if np.isfinite(one.cost) else first.last

    def _rows_bytes(self, states: Ints) -> float:
        return float(self.problem.memory(states).max(initial=0.0))

    def _beyond(self, states: Ints, peak_bytes: float) -> CostDelta:
        """Returns what a choice with this peak comes to, less what the one that was made does."""
        one, base = seconds_of(self.problem, states), seconds_of(self.problem, self.answer.states)
        return CostDelta(one[0] - base[0], one[1] - base[1], peak_bytes - self.answer.peak_bytes)


def hold(problem: Problem, nodes: Sequence[int], state: int) -> Problem:
    """Returns the problem in which `nodes` have no other state than `state`."""
    tables, node_table = list(problem.tables), problem.node_table.copy()
    known: dict[int, int] = {}
    for node in nodes:
        old = int(problem.node_table[node])
        if old not in known:
            known[old] = len(tables)
            tables.append(np.where(np.arange(len(tables[old])) == state, tables[old], np.inf))
        node_table[node] = known[old]
    return replace(problem, tables=tuple(tables), node_table=node_table)


def seconds_of(problem: Problem, states: Ints) -> tuple[float, float]:
    """Returns the seconds of nodes and of edges in a choice `states` [nodes].

    They are infinite where a pair in it is not legal.
    """
    nodes = problem.node_entries(problem.node_table, np.arange(problem.num_nodes), states)
    edges = problem.edge_entries(problem.edge_table, np.arange(problem.num_edges), states, states)
    return float(nodes.sum()), float(edges.sum())


def _added(one: Alternative) -> tuple[bool, float, float, int]:
    return (
        one.parts is None,
        one.parts.step_s if one.parts else 0.0,
        one.parts.peak_bytes if one.parts else 0.0,
        one.state,
    )
