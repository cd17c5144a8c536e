"""Which whole plan to make: stages, the mesh of a rank, micro-batches, schedule and recomputation (Rhino 3).

A *shape* is one of each but the schedule, which is chosen with it. Evaluating one means planning its shardings, so the order matters, and
what need not be looked at:

- A *family* is all shapes that differ in micro-batches alone. More micro-batches leave a pipeline idle for less time and save less for the
  way back, and send what is sent per micro-batch more often: one number of them is best, and worse ones lie on both sides of it. A family
  starts with `SEED` micro-batches per stage, goes up while that pays or memory asks for it, and else down.
- No shape takes less than its family's bound: all arithmetic at the devices' full rate; once a member was planned without regard to memory,
  the bound of that, shared by the ranks. A family whose bound is not below the best shape found ends.
- Families that keep less for the way back than another are looked at where memory binds that one.

Shapes are evaluated in rounds of `ROUND`, those of the lowest bounds first, whatever the number of processes: same input, same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

ROUND: Final = 8
"""Shapes in a round: enough for the cores of a workstation, few enough that a round learns from the one before."""

SEED: Final = 4
"""Micro-batches per stage to begin with: 1F1B is then idle for less than a fifth of the step."""

PAYS: Final = 0.005
"""Relative: what more micro-batches must save to be worth another look."""

BINDS: Final = 0.005
"""Relative: by how much memory must slow a shape down for recomputation to be looked at."""

MOST: Final = 64
"""Shapes that are evaluated at most, if nothing else is said."""

KEEPS: Final = (1.0, 0.5, 0.0)
"""Shares of what is saved for the way back that may be kept; 1 is no recomputation."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A whole plan but for its schedule: `mesh` is that of one rank, `keep` the share of what the way back needs that is not recomputed."""

    stages: int
    mesh: tuple[int, ...]
    micro_batches: int
    keep: float = 1.0

    @property
    def family(self) -> Shape:
        """The shape that stands for all that differ from this one in micro-batches alone."""
        return Shape(self.stages, self.mesh, 0, self.keep)

    def __str__(self) -> str:
        mesh = "x".join(map(str, self.mesh))
        parts = [f"{self.stages} stages of {mesh}" if self.stages > 1 else f"mesh {mesh}"]
        if self.micro_batches > 1:
            parts.append(f"{self.micro_batches} micro-batches")
        if self.keep < 1:
            parts.append(f"{self.keep:.0%} of the activations kept")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a shape comes to.

    Units: seconds per step, bytes per device. `bound_s` is a proven lower bound of the shape's plans on what `step_s` counts without idle
    time; `free_bound_s` the same without regard to memory. `step_s` is `compute_s` + `collectives_s` + `idle_s`, each rank's mean.
    Shapes: `peak_bytes` [ranks].
    """

    shape: Shape
    schedule: str
    step_s: float
    bound_s: float
    free_bound_s: float
    compute_s: float
    collectives_s: float
    peak_bytes: tuple[float, ...]

    @property
    def idle_s(self) -> float:
        """The seconds in which a rank waits, in the mean."""
        return max(0.0, self.step_s - self.compute_s - self.collectives_s)

    @property
    def is_bound_by_memory(self) -> bool:
        """Says whether the shape would be faster with more memory."""
        return self.bound_s > self.free_bound_s * (1 + BINDS)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a shape is none: `by_memory`, or for another reason that holds for all shapes with as many micro-batches or more."""

    shape: Shape
    why: str
    by_memory: bool
    free_bound_s: float = 0.0


Outcome = Estimate | Refused


@dataclass(frozen=True, slots=True)
class Space:
    """What there is to choose from.

    `meshes` are the meshes of a rank by number of stages; `micro_batches` the numbers of them, ascending. `least_s` is the time of the
    step's arithmetic on all devices at their full rate; `most` how many shapes are evaluated at most.
    """

    meshes: dict[int, tuple[tuple[int, ...], ...]]
    micro_batches: tuple[int, ...]
    least_s: float
    keeps: tuple[float, ...] = KEEPS
    most: int = MOST


@dataclass(slots=True)
class Explored:
    """What was looked at. `passed_over` are families that ended with nothing evaluated or by their bound, with it."""

    outcomes: list[Outcome] = field(default_factory=list)
    passed_over: dict[Shape, float] = field(default_factory=dict)
    is_complete: bool = True

    @property
    def ranked(self) -> list[Estimate]:
        """The shapes that can be had, best first."""
        found = [one for one in self.outcomes if isinstance(one, Estimate)]
        return sorted(found, key=lambda one: (one.step_s, one.shape))

    @property
    def refused(self) -> list[Refused]:
        """The shapes that cannot be had."""
        return [one for one in self.outcomes if isinstance(one, Refused)]

    @property
    def bound_s(self) -> float:
        """Returns what no shape that was looked at or passed over falls below."""
        return min([one.bound_s for one in self.ranked] + list(self.passed_over.values()), default=0.0)


Evaluate = Callable[[Sequence[Shape]], Sequence[Outcome]]


def explore(space: Space, evaluate: Evaluate, told: Callable[[Explored], None] = lambda _: None) -> Explored:
    """Returns what became of the shapes of `space`; `evaluate` gives the outcomes of a round, and `told` hears of each round.

    An interruption ends the search with what is known.
    """
    search = _Search(space)
    try:
        while shapes := search.proposals():
            for outcome in evaluate(shapes):
                search.take(outcome)
            told(search.explored)
    except KeyboardInterrupt:
        search.explored.is_complete = False
        if not search.explored.ranked:
            raise
    return search.explored


@dataclass(slots=True)
class _Family:
    """Where the search of one family stands: what came of the numbers of micro-batches tried, by their place in the space's list."""

    shape: Shape
    bound_s: float
    seed: int
    is_open: bool
    tried: dict[int, Outcome] = field(default_factory=dict)

    @property
    def is_pipeline(self) -> bool:
        return self.shape.stages > 1

    def step_s(self, place: int) -> float:
        """Returns the step of a shape that was tried, infinite where it cannot be had."""
        outcome = self.tried[place]
        return outcome.step_s if isinstance(outcome, Estimate) else inf

    def following(self, num_places: int) -> int | None:
        """Returns the next place to try: up from the seed while that pays or memory asks for it, else down from it while that pays."""
        if not self.tried:
            return self.seed
        low, high = min(self.tried), max(self.tried)
        if self.wants_more(high) and high + 1 < num_places:
            return high + 1
        return low - 1 if self.wants_fewer(low) and low > 0 else None

    def wants_more(self, high: int) -> bool:
        """Says whether more micro-batches than any tried may be better."""
        binds = _binds(self.tried[high])
        if isinstance(self.tried[high], Refused):
            return bool(binds)
        before_s = min((self.step_s(place) for place in self.tried if place != high), default=inf)
        return (bool(binds) or self.is_pipeline) and self.step_s(high) < before_s * (1 - PAYS)

    def wants_fewer(self, low: int) -> bool:
        """Says whether fewer micro-batches than any tried may be better."""
        others_s = min((self.step_s(place) for place in self.tried if place != low), default=inf)
        is_best = self.step_s(low) < others_s or _binds(self.tried[low]) is None
        return self.is_pipeline and is_best and not _binds(self.tried[low])


def _binds(outcome: Outcome) -> bool | None:
    """Says whether more memory would make a shape faster or possible; None where it is impossible with any."""
    if isinstance(outcome, Refused):
        return True if outcome.by_memory else None
    return outcome.is_bound_by_memory


class _Search:
    def __init__(self, space: Space) -> None:
        self.space = space
        self.explored = Explored()
        self.families = {one.shape: one for one in self.every_family()}

    def every_family(self) -> Iterator[_Family]:
        for stages, meshes in sorted(self.space.meshes.items()):
            for mesh in meshes:
                for keep in self.space.keeps:
                    shape = Shape(stages, mesh, 0, keep)
                    yield _Family(shape, self.space.least_s, self.seed(stages), is_open=keep == max(self.space.keeps))

    def seed(self, stages: int) -> int:
        """Returns the place of the number of micro-batches that a family begins with."""
        wanted = SEED * stages if stages > 1 else 1
        numbers = self.space.micro_batches
        return next((place for place, number in enumerate(numbers) if number >= wanted), len(numbers) - 1)

    def proposals(self) -> list[Shape]:
        """Returns the shapes of the next round, none at the end."""
        best_s = self.explored.ranked[0].step_s if self.explored.ranked else inf
        waiting: list[tuple[float, bool, Shape, _Family]] = []
        for family in self.families.values():
            if not family.is_open or (shape := self.next_shape(family)) is None:
                continue
            if family.bound_s < best_s:
                waiting.append((family.bound_s, bool(family.tried), shape, family))
            else:
                self.explored.passed_over[family.shape] = family.bound_s
                family.is_open = False
        left = min(ROUND, self.space.most - len(self.explored.outcomes))
        if waiting and left <= 0:
            self.explored.is_complete = False
            self.explored.passed_over.update({one.shape: bound_s for bound_s, _, _, one in waiting})
        return [shape for _, _, shape, _ in sorted(waiting, key=lambda one: one[:3])[: max(0, left)]]

    def next_shape(self, family: _Family) -> Shape | None:
        """Returns the shape of a family to try next, None where there is none left that may pay."""
        place, one = family.following(len(self.space.micro_batches)), family.shape
        if place is None:
            return None
        number = self.space.micro_batches[place]
        is_legal = number > 1 or not family.is_pipeline  # a pipeline of one micro-batch is idle but for one rank at a time
        return Shape(one.stages, one.mesh, number, one.keep) if is_legal else None

    def take(self, outcome: Outcome) -> None:
        """Notes an outcome."""
        self.explored.outcomes.append(outcome)
        family = self.families[outcome.shape.family]
        family.tried[self.space.micro_batches.index(outcome.shape.micro_batches)] = outcome
        if len(family.tried) == 1:
            family.bound_s = max(family.bound_s, outcome.free_bound_s)
        if _binds(outcome):
            self.keep_less(family)

    def keep_less(self, family: _Family) -> None:
        """Opens the family that keeps the next smaller share."""
        smaller = [keep for keep in self.space.keeps if keep < family.shape.keep]
        if smaller:
            one = family.shape
            other = self.families[Shape(one.stages, one.mesh, 0, max(smaller))]
            if not other.tried and other.shape not in self.explored.passed_over:
                other.is_open, other.bound_s = True, max(other.bound_s, family.bound_s)
