"""The search over meshes: which are planned, in which order, and when one is given up.

A mesh is looked at first: its best choice of all, whatever that keeps in memory, is a bound on the step, and its plan
if it fits. Where it does not, a plan that fits takes many times as long to find. So meshes whose choice does not fit
wait until all have been looked at, and those next to the one that promises most; then they are planned, the lowest
bound first, and given up once their bound reaches the best step so far.

Source    best-first branch and bound; meshes next to one are those of `rhino.ir.cluster.mesh.finer_shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, Protocol, TypeVar

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError
from rhino.passes.sharding.planning_pass import Target
from rhino.strategies.solver.answer import Answer, Unsolved

MeshOutcome = tuple[Target, Answer | Unsolved | RhinoError]
"""A mesh, and what it came to."""


class Planned(Protocol):
    """A plan for a mesh."""

    @property
    def answer(self) -> Answer:
        """The choice that it is."""


P = TypeVar("P", bound=Planned)


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Generic[P]):
    """A mesh whose best choice of all does not fit: a step takes `bound_s` at least.

    `plan` goes on with its search, and returns the plan, or why there is none: a bound of the seconds that it is given
    or more, or an error. It is given the best plan so far, too, for prices to begin with.
    """

    bound_s: float
    plan: Callable[[float, P | None], P | Unsolved | RhinoError]


@dataclass(eq=False)
class MeshSearch(Generic[P]):
    """One search: the best plan so far of less than `cutoff_s`, and what each mesh came to.

    `look` returns the plan of a mesh, or that it waits, or why it has none, as `Waiting.plan` does; `next_to` the
    meshes next to one.
    """

    look: Callable[[Target, float], P | Waiting[P] | Unsolved | RhinoError]
    next_to: Callable[[Target], Sequence[Target]]
    cutoff_s: float
    best: P | None = field(default=None, init=False)
    outcomes: dict[Mesh, MeshOutcome | None] = field(default_factory=dict, init=False)
    """None where a mesh waits."""
    waiting: list[tuple[Target, Waiting[P]]] = field(default_factory=list, init=False)
    leader: Target | None = field(default=None, init=False)
    """The mesh of the best plan so far."""

    def run(self, targets: Sequence[Target]) -> None:
        """Plans meshes, and those next to the best until none of them is better."""
        while fresh := self.unknown(targets):
            while fresh:
                for target in fresh:
                    self.begin(target)
                promising = self.promising()
                fresh = self.unknown(self.next_to(promising)) if promising else []
            for target, one in sorted(self.waiting, key=lambda each: each[1].bound_s):
                self.note(
                    target, one.plan(self.most_s, self.best) if one.bound_s < self.most_s else Unsolved(one.bound_s)
                )
            self.waiting.clear()
            targets = self.next_to(self.leader) if self.leader else ()

    @property
    def most_s(self) -> float:
        """The seconds that a step must stay below."""
        return self.best.answer.cost if self.best else self.cutoff_s

    def unknown(self, targets: Sequence[Target]) -> list[Target]:
        """Returns the meshes that have not been looked at."""
        return [one for one in targets if one.mesh not in self.outcomes]

    def begin(self, target: Target) -> None:
        """Looks at a mesh, and lets it wait if its best choice does not fit."""
        found = self.look(target, self.most_s)
        if isinstance(found, Waiting):
            self.outcomes[target.mesh] = None  # its place among the outcomes
            self.waiting.append((target, found))
        else:
            self.note(target, found)

    def note(self, target: Target, found: P | Unsolved | RhinoError) -> None:
        """Notes what a mesh came to."""
        if isinstance(found, Unsolved | RhinoError):
            self.outcomes[target.mesh] = (target, found)
            return
        self.outcomes[target.mesh] = (target, found.answer)
        if self.best is None or found.answer.cost < self.best.answer.cost:
            self.best, self.leader = found, target

    def promising(self) -> Target | None:
        """Returns the mesh of the lowest bound among those that wait, if that is less than the best step so far."""
        least = min(self.waiting, key=lambda each: each[1].bound_s, default=None)
        return least[0] if least and least[1].bound_s < self.most_s else self.leader

    def all_outcomes(self) -> tuple[MeshOutcome, ...]:
        """Returns what each mesh came to, in the order in which they were looked at."""
        return tuple([one for one in self.outcomes.values() if one is not None])

    def bound_s(self) -> float:
        """Returns what a step takes at least on any of the meshes that were given up."""
        return min([one.bound for _, one in self.all_outcomes() if isinstance(one, Unsolved)], default=inf)
