"""What it costs to take another state somewhere: the choice problem with some nodes held, solved again, or with all others as they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rhino.ir.units import format_bytes
from rhino.strategies.answer import PROOF_TOLERANCE, Answer, Infeasible, Outcome, make_answer
from rhino.strategies.problem import Ints, Problem
from rhino.strategies.search import Limits, Search

MOST_STATES = 1_500_000
"""States of all problems that are solved again, each as often as the first search solved it: half a minute."""

MOST = 8
"""Alternatives to one choice that are looked at: those that add least where all else stays."""


@dataclass(frozen=True, slots=True)
class Parts:
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

    `parts` is of the best choice found, less that of the choice that was made; None where there is none. Every choice with that state takes
    `at_least_s` more. `is_searched` says that all else was chosen anew, and not left as it was. `why` says why none fits;
    `is_legal` is false where there is none at all.
    """

    state: int
    parts: Parts | None
    at_least_s: float
    is_searched: bool
    why: str = ""
    is_legal: bool = True


@dataclass(eq=False)
class Alternatives:
    """The alternatives to a choice under a budget. `num_solves` is how many solves it took to find: as many are counted for each."""

    problem: Problem
    limits: Limits
    answer: Answer
    budget_bytes: float
    num_solves: int
    left: int = MOST_STATES
    shared: Search = field(init=False)
    base: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.shared = Search(self.problem, self.limits)
        self.base = parts_of(self.problem, self.answer.states)

    def of(self, nodes: Sequence[int], most_searched: int = MOST) -> list[Alternative]:
        """Returns alternatives to the state that `nodes` have all taken, those that add least first; no more than `MOST`.

        The first `most_searched` are searched, in the order of what they add where all else stays, while there are steps left for it.
        """
        chosen = int(self.answer.states[nodes[0]])
        tables = [self.problem.tables[self.problem.node_table[node]] for node in nodes]
        others = [s for s in range(len(tables[0])) if s != chosen and all(np.isfinite(table[s]) for table in tables)]
        first = sorted(others, key=lambda state: (self.problem.cost(self.taking(nodes, state)), state))[:MOST]
        each = max(1, self.num_solves) * int(self.problem.num_states().sum())
        found = []
        for number, one in enumerate(self.left_as_it_is(nodes, state) for state in first):
            self.left -= each
            found.append(self.searched(nodes, one) if self.left >= 0 and number < most_searched else one)
        return sorted(found, key=_added)

    def taking(self, nodes: Sequence[int], state: int) -> Ints:
        """Returns the choice with another state of `nodes` [nodes]."""
        states = self.answer.states.copy()
        states[list(nodes)] = state
        return states

    def left_as_it_is(self, nodes: Sequence[int], state: int) -> Alternative:
        """Returns what changes where the other nodes stay as they are."""
        parts = self._beyond(self.taking(nodes, state))
        if not np.isfinite(parts.step_s):
            return Alternative(state, None, 0.0, False, "only together with others")
        if self.answer.peak_bytes + parts.peak_bytes > self.budget_bytes:
            return Alternative(state, None, 0.0, False, "does not fit, with all else as it is")
        return Alternative(state, parts, 0.0, False)

    def searched(self, nodes: Sequence[int], rough: Alternative) -> Alternative:
        """Returns what changes where the others are chosen anew; no worse than `rough`."""
        search = Search(hold(self.problem, nodes, rough.state), self.limits)
        search.solver.store = self.shared.solver.store
        outcome: Outcome = search.run(self.budget_bytes)
        if isinstance(outcome, Infeasible):
            needed = f"does not fit: at least {format_bytes(outcome.peak_bytes)}" if outcome.peak_bytes else "cannot be"
            return Alternative(rough.state, None, 0.0, True, needed, is_legal=outcome.peak_bytes is not None)
        if not isinstance(outcome, Answer):
            return rough
        bound_s = outcome.bound - self.answer.cost
        parts = self._beyond(outcome.states)
        if rough.parts and rough.parts.step_s < parts.step_s:
            parts = rough.parts
        exact = parts.step_s - bound_s <= PROOF_TOLERANCE * self.answer.cost
        return Alternative(rough.state, parts, parts.step_s if exact else max(bound_s, 0.0), True)

    def _beyond(self, states: Ints) -> Parts:
        one, base = parts_of(self.problem, states), self.base
        return Parts(one.compute_s - base.compute_s, one.collectives_s - base.collectives_s, one.peak_bytes - base.peak_bytes)


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


def parts_of(problem: Problem, states: Ints) -> Parts:
    """Returns what a choice `states` [nodes] comes to; infinite where a pair in it is not legal."""
    nodes = problem.node_entries(problem.node_table, np.arange(problem.num_nodes), states)
    edges = problem.edge_entries(problem.edge_table, np.arange(problem.num_edges), states, states)
    return Parts(float(nodes.sum()), float(edges.sum()), make_answer(problem, states, -np.inf, "").peak_bytes)


def _added(one: Alternative) -> tuple[bool, float, float, int]:
    return (one.parts is None, one.parts.step_s if one.parts else 0.0, one.parts.peak_bytes if one.parts else 0.0, one.state)
