"""Walk the families of configurations, those of the lowest bounds first (Rhino 3).

Evaluating a configuration means planning its shardings, so the order matters, and what need not be looked at:

- A *family* is all configurations that differ in micro-batches alone. More micro-batches leave a pipeline idle for less
  time and save less for the backward pass, and send what is sent per micro-batch more often: one number of them is
  best, and worse ones lie on both sides of it. A family starts with `SEED` micro-batches per stage, or with as many as
  the memory of all devices asks for if everything is divided among them, goes up while that pays or memory asks for it,
  and else down.
- No configuration takes less than its bound: all arithmetic at the devices' full rate; once a member of its family with
  as many micro-batches or fewer was planned without regard to memory, the bound of that, shared by the ranks. A family
  ends where the bound of the configuration that it would go on to is not below the best configuration found.
- Families that recompute more than another are looked at where memory binds that one.

Configurations are evaluated in rounds of `ROUND`, those of the lowest bounds first, whatever the number of processes:
same input, same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, TypeGuard

from rhino.strategies.autotune.base import (
    PAYS,
    ROUND,
    CutOff,
    Estimate,
    Evaluations,
    Outcome,
    PlanConfig,
    Refused,
    Space,
    Strategy,
    bound_by_memory,
    on_meshes,
)

NEAR: Final = 1.05
"""Times the best step up to which families beside those of the space are walked: those of kin, and of unlike ranks.

On four devices of a machine of eight V100s, one row was up to 2.1 % faster than 2x2.
"""


def search(trials: Evaluations) -> None:
    """Walks every family of the space."""
    walk(trials, of_meshes(trials.space.meshes))


def of_meshes(meshes: Mapping[int, Sequence[tuple[int, ...]]]) -> list[PlanConfig]:
    """Returns a configuration of each mesh of a rank, given by number of stages, without micro-batches."""
    return [PlanConfig(stages, mesh, 0) for stages, some in sorted(meshes.items()) for mesh in some]


def walk(trials: Evaluations, ranks: Sequence[PlanConfig]) -> None:
    """Walks every family on such ranks, which need not be of the space; `ranks` are without micro-batches."""
    walking = _Walk(trials, ranks)
    while configs := walking.proposals():
        for outcome in trials.outcomes(configs):
            walking.take(outcome)


def walk_replicas(trials: Evaluations) -> None:
    """Walks every family of the replicas of a space."""
    for replicas, meshes in sorted(trials.space.replicas.items()):
        walk(trials, [PlanConfig(1, mesh, 0, replicas=replicas) for mesh in meshes])


def walk_unlike(trials: Evaluations) -> None:
    """Walks every family of the ranks of unlike meshes that were asked for."""
    walk(trials, [on_meshes(meshes, 0) for meshes in trials.space.unlike])


STRATEGY: Final = Strategy("rhino", "every family of configurations that its bound does not rule out", search)


@dataclass(slots=True)
class _Family:
    """Where the search of one family stands.

    It keeps what came of the numbers of micro-batches tried, by their place in the space's list.
    """

    config: PlanConfig
    least_s: float
    seed: int
    is_open: bool
    tried: dict[int, Outcome] = field(default_factory=dict)
    bounds: dict[int, float] = field(default_factory=dict)

    def bound_s(self, place: int) -> float:
        """Returns a bound on the configurations of the family with so many micro-batches or more."""
        return max([self.least_s, *(bound_s for known, bound_s in self.bounds.items() if known <= place)])

    @property
    def has_ranks(self) -> bool:
        """Says whether more micro-batches let ranks wait less for each other."""
        return self.config.num_ranks > 1

    def step_s(self, place: int) -> float:
        """Returns the step of a configuration that was tried, infinite without an estimate or where it was refused."""
        outcome = self.tried[place]
        return outcome.step_s if _is_estimated(outcome) else inf

    def following(self, space: Space) -> tuple[int, ...]:
        """Returns the next places to try, the first of them first.

        That is up from the seed while that pays or memory asks for it, else down from it while that pays.
        """
        if not self.tried:
            return (self.seed,)
        low, high = min(self.tried), max(self.tried)
        more = self.large_enough(space, high) if self.wants_more(high) else None
        one = self.config
        may_fit = low > 0 and space.may_hold(one.stages, space.micro_batches[low - 1], one.remat)
        fewer = (low - 1,) if may_fit and self.wants_fewer(low) else ()
        return fewer if more is None else (more, *fewer)

    def large_enough(self, space: Space, high: int) -> int | None:
        """Returns the next place at which a step may fit."""
        numbers, least = space.micro_batches, space.may_fit_from(self.tried[high])
        return next((place for place in range(high + 1, len(numbers)) if numbers[place] >= least), None)

    def wants_more(self, high: int) -> bool:
        """Says whether more micro-batches than any tried may be better."""
        binds = bound_by_memory(self.tried[high])
        if not _is_estimated(self.tried[high]):
            return bool(binds)
        before_s = min((self.step_s(place) for place in self.tried if place != high), default=inf)
        return (bool(binds) or self.has_ranks) and self.step_s(high) < before_s * (1 - PAYS)

    def wants_fewer(self, low: int) -> bool:
        """Says whether fewer micro-batches than any tried may be better."""
        others = [one for place, one in self.tried.items() if place != low]
        match self.tried[low]:
            case Estimate(step_s=step_s) as lowest:
                return not lowest.is_bound_by_memory and all(
                    step_s < one.step_s for one in others if isinstance(one, Estimate)
                )
            case CutOff(estimated_s=0.0, bound_s=bound_s) as lowest:
                falls = not lowest.arithmetic_s and all(
                    bound_s < one.bound_s * (1 - PAYS) for one in others if not isinstance(one, Refused)
                )
                return not lowest.by_memory and falls
            case CutOff(step_s=step_s) as lowest:
                return not lowest.by_memory and all(
                    step_s < one.step_s for one in others if not isinstance(one, Refused)
                )
            case Refused() as lowest:
                return not lowest.by_memory


def _is_estimated(outcome: Outcome) -> TypeGuard[Estimate | CutOff]:
    """Says whether it is known what a configuration is estimated to take, whether it is of use or not."""
    return isinstance(outcome, Estimate) or (isinstance(outcome, CutOff) and outcome.estimated_s > 0)


class _Walk:
    def __init__(self, trials: Evaluations, ranks: Sequence[PlanConfig]) -> None:
        self.trials = trials
        self.ranks = ranks
        self.space = trials.space
        self.explored = trials.explored
        self.families = {one.config: one for one in self.every_family()}

    def every_family(self) -> Iterator[_Family]:
        for ranks in self.ranks:
            for remat in self.space.remats_of(ranks.stages):
                seed = self.space.seed(ranks.num_ranks, remat)
                config = replace(ranks, remat=remat)
                yield _Family(config, self.space.least_s, seed, is_open=remat == min(self.space.remats))

    def proposals(self) -> list[PlanConfig]:
        """Returns the configurations of the next round, none at the end."""
        best_s = self.explored.best_s
        waiting: list[tuple[float, bool, int, PlanConfig, _Family]] = []
        for family in self.families.values():
            if not family.is_open:
                continue
            places = [place for place in family.following(self.space) if self.is_legal(family, place)]
            bounds = [family.bound_s(place) for place in places]
            place, bound_s = next(((p, b) for p, b in zip(places, bounds, strict=True) if b < best_s), (None, inf))
            if place is not None:
                config = replace(family.config, micro_batches=self.space.micro_batches[place])
                waiting.append((bound_s, bool(family.tried), self.turn(config), config, family))
            elif bounds:
                self.explored.passed_over[family.config] = min(bounds)
                family.is_open = False
        left = min(ROUND, self.trials.left)
        if waiting and not left:
            self.explored.is_complete = False
            self.explored.passed_over.update({one.config: bound_s for bound_s, *_, one in waiting})
        return [config for *_, config, _ in sorted(waiting, key=lambda one: one[:4])[:left]]

    def turn(self, config: PlanConfig) -> int:
        """Returns how many meshes of as many stages come before that of a configuration.

        Square ones come first, so that a round looks at all kinds.
        """
        alike = [one.rank_meshes for one in self.ranks if one.stages == config.stages]
        return sorted(alike, key=lambda meshes: (max(meshes[0]), meshes)).index(config.rank_meshes)

    def is_legal(self, family: _Family, place: int) -> bool:
        """Says whether there is a configuration of a family with the micro-batches of a place."""
        number = self.space.micro_batches[place]
        # A pipeline would be idle but for one rank at a time, and replicas have a micro-batch each.
        return not family.has_ranks or (number > 1 and number >= family.config.replicas)

    def take(self, outcome: Outcome) -> None:
        """Notes an outcome."""
        family = self.families[outcome.config.family]
        place = self.space.micro_batches.index(outcome.config.micro_batches)
        family.tried[place] = outcome
        family.bounds[place] = outcome.free_bound_s
        if bound_by_memory(outcome):
            self.recompute_more(family)

    def recompute_more(self, family: _Family) -> None:
        """Opens the family that recomputes the next larger share."""
        larger = [remat for remat in self.space.remats_of(family.config.stages) if remat > family.config.remat]
        if larger:
            one = family.config
            other = self.families[replace(one, micro_batches=0, remat=min(larger))]
            if not other.tried and other.config not in self.explored.passed_over:
                other.is_open = True
                other.bounds |= family.bounds  # to compute again takes no less
