"""What a solver of `strategies.problem.Problem` can say.

It gives an answer with a proven bound, a proof that there is none, or neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.ir.arrays import Ints
from rhino.strategies.solver.problem import Problem

# Relative. Solvers work to about 1e-7 per unit of cost: a gap below this is theirs, not the choice's.
PROOF_TOLERANCE = 1e-6


INTERRUPTED = "interrupted"
"""Part of the method of an answer, if it was interrupted.

The user stopped the search, which gave the best choice that it had, with the bound that it had.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A legal choice that fits, with how far from the best it can be.

    Shapes: `states` [nodes]. Units: `cost` and `bound` in seconds, `peak_bytes` in bytes per device.
    `bound` is a proven lower bound on the cost of every legal choice that fits; `method` says how the choice was found.
    """

    states: Ints
    cost: float
    bound: float
    peak_bytes: float
    method: str

    @property
    def gap(self) -> float:
        """Returns (cost - bound) / cost: the share of the cost that a better choice could save at most."""
        if self.cost <= self.bound:
            return 0.0
        return (self.cost - self.bound) / abs(self.cost) if self.cost else float("inf")

    @property
    def is_optimal(self) -> bool:
        """Returns whether the choice is proven to be the best, as far as floating-point numbers can tell."""
        return self.gap <= PROOF_TOLERANCE

    @property
    def is_interrupted(self) -> bool:
        """Returns whether the search was ended before it had come to its end."""
        return self.method.endswith(INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Proof that no legal choice fits.

    `peak_bytes`: every legal choice needs at least that much; None: there is no legal choice at all.

    `found_bytes`, where it is there: the least that a program takes of those that were found. Then the proof is one of
    rows, which count somewhat else than programs hold: that nothing fits, and `peak_bytes`, are likely and not proven.
    """

    peak_bytes: float | None
    found_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Unsolved:
    """The step budget was spent without an answer, and without a proof that there is none.

    `bound`: no choice that fits costs less (seconds). `peak_bytes`: the least peak of the choices that were found, if
    any was.
    """

    bound: float
    peak_bytes: float | None = None


Outcome = Answer | Infeasible | Unsolved


def fits(problem: Problem, states: Ints, budget_bytes: float | None) -> bool:
    """Returns whether the choice `states` [nodes] stays within the budget at every time; None is no budget."""
    return budget_bytes is None or bool((problem.memory(states) <= budget_bytes).all())


def make_answer(problem: Problem, states: Ints, bound: float, method: str) -> Answer:
    """Returns the answer for `states` [nodes], its cost and peak computed from the problem and not taken from a solver.

    A bound above the cost can only be the solver's rounding: it is lowered to the cost.
    """
    cost = problem.cost(states)
    return Answer(states, cost, min(bound, cost), float(problem.memory(states).max(initial=0.0)), method)
