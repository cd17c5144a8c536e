"""Alleviate the bottleneck of a plan, again and again (Aceso).

From a start `hop` looks for a better configuration at most `HOPS` primitives away (Aceso's Algorithm 2), and the search
goes on from there; where there is none, from the best configuration that was evaluated and not yet gone on from
(Algorithm 1).

- *Heuristic 1*, where the bottleneck is: memory first, if the plan does not fit. Otherwise the longest stage; as these
  stages are even and have one mesh, it stands for all, and what is left to find is the resource.
- *Heuristic 2*, which primitives first: those that relieve the resource that takes the largest share of the step,
  beyond the least that any configuration so far takes of it (the share in all stages, for Aceso, which here says
  nothing); and of these the one that comes to the best step. Memory counts with the seconds that it costs: shardings
  are slower where they must be small.
- *Combined primitives*: each goes with inc-rc where memory then binds, and with dec-rc where it does not.
- *Deduplication*: a configuration is known by what it means; meshes that are one mesh have one name. Nor is asked for
  what cannot fit or cannot be better: by a bound, or because a number of micro-batches nearer to the best of its family
  is worse already.
- *Fine-tuning*, at the end: a rank's devices in one row, or its axes the other way round; numbers of micro-batches in
  between those stepped in, and shares recomputed in between. What Aceso tunes op by op (dp and tp within a stage, the
  dimension of each split) is what the search of shardings finds for each configuration in the first place.

That is for ranks of one mesh. Then single stages are moved, up to seven hops far, on the meshes about as large as those
of the best pipeline (`screened_stages.py`), and the best ranks of unlike meshes are planned as any configuration.

The budget is configurations, not seconds: the search ends `FAILS` after the last that was better than all before. An
estimate takes a search of shardings here, seconds and not microseconds, and one primitive takes all stages along: hops
are fewer than the paper's seven. As with Aceso, which searches each number of stages by itself, there is one start for
each number of them.

Source: Aceso sections 3.1, 3.2, 4 and appendix B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from rhino.strategies.autotune import unlike
from rhino.strategies.autotune.base import (
    CutOff,
    Estimate,
    Evaluations,
    Outcome,
    PlanConfig,
    Refused,
    Strategy,
    bound_by_memory,
)
from rhino.strategies.autotune.moves import (
    RESOURCES,
    Resource,
    balanced,
    is_legal,
    moves,
    recompute_less,
    recompute_more,
)

HOPS: Final = 2
"""Primitives in a row of which only the last need pay: MaxHops."""

FAILS: Final = 24
"""Configurations that may be evaluated in a row without a better one."""

BISECTIONS: Final = 2
"""How often the share that is recomputed is refined."""

Rank = tuple[int, float]
"""Orders outcomes, best first: by step, then by how far they are from fitting."""


def search(trials: Evaluations) -> None:
    """Alleviates from balanced plans, one of each number of stages, and then stage by stage."""
    alleviate(trials, trials.promising_first(balanced(trials.space)))
    unlike.on_unlike_ranks(trials, by_moves=True)


STRATEGY: Final = Strategy("aceso", "bottlenecks alleviated one by one, from balanced plans", search)


def alleviate(trials: Evaluations, starts: list[PlanConfig], fails: int = FAILS) -> None:
    """Searches from the best of `starts`, until `fails` configurations in a row were no better than the best before."""
    _Alleviation(trials, fails).run(starts)


def rank_of(outcome: Outcome) -> Rank:
    """Returns where an outcome stands among others."""
    match outcome:
        case Estimate() | CutOff():
            return 0, outcome.step_s
        case Refused():
            return (1, outcome.least_bytes) if outcome.by_memory else (2, 0.0)


@dataclass(eq=False)
class _Alleviation:
    """One search: `best` so far, the number of configurations `failed` since, and the `unexplored` ones.

    Configurations in `unexplored` were evaluated, but the search has not gone on from them.
    """

    trials: Evaluations
    fails: int
    best: Outcome | None = None
    failed: int = 0
    seen: dict[PlanConfig, Outcome] = field(default_factory=dict)
    unexplored: dict[PlanConfig, Outcome] = field(default_factory=dict)

    def run(self, starts: list[PlanConfig]) -> None:
        """Searches from the best of `starts`, the others being unexplored (Algorithm 1)."""
        now = min(self.evaluated(starts), key=_order)
        while not self.is_over:
            found = self.hop(now, 0, rank_of(now))
            if found is None and not self.unexplored:
                break
            now = found or min(self.unexplored.values(), key=_order)
        if isinstance(self.best, Estimate):
            self.tune(self.best)

    @property
    def is_over(self) -> bool:
        """Says whether enough was tried in vain."""
        return self.failed >= self.fails

    def hop(self, now: Outcome, hops: int, start: Rank) -> Outcome | None:
        """Returns a configuration better than the start's rank, at most so many hops on (Algorithm 2)."""
        if hops == HOPS:
            return None
        self.unexplored.pop(now.config, None)
        for lacking in self.bottlenecks(now):
            found = self.relieved(now.config, lacking)
            if found and rank_of(found[0]) < start:
                return found[0]
            for one in found:
                if self.is_over:
                    return None
                if better := self.hop(one, hops + 1, start):
                    return better
        return None

    def bottlenecks(self, now: Outcome) -> list[tuple[Resource, ...]]:
        """Returns the resources that a configuration lacks (heuristics 1 and 2), one after the other.

        The resource comes first that takes most beyond what it need take. Of what was cut off that is not known, but
        for memory: where that does not bind, to relieve it is of no use.
        """
        if not isinstance(now, Estimate):
            return [("memory",) if now.by_memory else tuple([one for one in RESOURCES if one != "memory"])]
        uses = _uses(now)
        known = [_uses(one) for one in self.seen.values() if isinstance(one, Estimate)]
        excess = {name: seconds - min(one[name] for one in known) for name, seconds in uses.items()}
        order = sorted(
            (name for name, seconds in uses.items() if seconds > 0), key=lambda name: (-excess[name], -uses[name])
        )
        return [(name,) for name in order]

    def relieved(self, config: PlanConfig, lacking: tuple[Resource, ...]) -> list[Outcome]:
        """Returns what the primitives that relieve some resources lead to, best first."""
        space = self.trials.space
        found = self.evaluated(self.enlarged(moves(space, config, lacking)))
        fitted = [
            to
            for one in found
            if (binds := bound_by_memory(one)) is not None
            for to in (recompute_more if binds else recompute_less)(space, one.config)
            if to != config
        ]
        return sorted(found + self.evaluated(self.enlarged(fitted)), key=_order)

    def evaluated(self, configs: Iterable[PlanConfig]) -> list[Outcome]:
        """Returns what those of the configurations come to that were not seen here and may be better than the best."""
        new = [one for one in dict.fromkeys(configs) if one not in self.seen and self.may_pay(one)]
        found = self.trials.outcomes(new)
        for one in found:
            self.seen[one.config] = self.unexplored[one.config] = one
            if self.best is None or rank_of(one) < rank_of(self.best):
                self.best, self.failed = one, 0
            else:
                self.failed += 1
        return found

    def enlarged(self, configs: Iterable[PlanConfig]) -> Iterator[PlanConfig]:
        """Returns the configurations in as many micro-batches as they need to fit.

        Configurations for which there are not so many micro-batches are left out.
        """
        for config in configs:
            least = max((self.trials.space.may_fit_from(one) for one in self.family(config)), default=0.0)
            numbers = [
                number for number in self.trials.space.micro_batches if number >= max(least, config.micro_batches)
            ]
            if numbers:
                yield replace(config, micro_batches=numbers[0])

    def may_pay(self, config: PlanConfig) -> bool:
        """Returns whether a configuration may be better than the best, by its bound and by its family.

        Within a family one number of micro-batches is best.
        """
        if isinstance(self.best, Estimate) and self.bound_s(config) >= self.best.step_s:
            return False
        number, family = config.micro_batches, self.family(config)
        best = min(family, key=_order).config.micro_batches if family else number
        worse = [one.config.micro_batches for one in family if one.config.micro_batches != best]
        return not any(number < other < best or best < other < number for other in worse)

    def bound_s(self, config: PlanConfig) -> float:
        """Returns what a configuration is taken not to fall below.

        A bound without regard to memory holds with more micro-batches and with more recomputed, too. Where only
        pipelines of more micro-batches were seen, that of the fewest is taken, as `rhino` does for a family: with fewer
        ranks wait longer. In one stage nobody waits, and fewer send less.
        """
        alike = [one for other, one in self.seen.items() if (other.stages, other.mesh) == (config.stages, config.mesh)]
        known = sorted(
            (one.config.micro_batches, one.free_bound_s) for one in alike if one.config.remat <= config.remat
        )
        fewer = [bound_s for number, bound_s in known if number <= config.micro_batches]
        more = [bound_s for _, bound_s in known[:1]] if config.stages > 1 else []
        return max(fewer or more, default=self.trials.space.least_s)

    def family(self, config: PlanConfig) -> list[Outcome]:
        """Returns what was seen that differs in micro-batches alone."""
        return [one for other, one in self.seen.items() if other.family == config.family]

    def tune(self, best: Estimate) -> None:
        """Tries the best configuration's kin, and what lies between the steps that primitives take."""
        for kin in self.trials.promising(self.trials.space.kin(best.config)):
            best = self.better(best, kin) or best
        numbers = sorted({*self.trials.space.micro_batches, *self.trials.space.finer})
        for step in (1, -1):
            place = numbers.index(best.config.micro_batches) + step
            while 0 <= place < len(numbers) and is_legal(best.config.stages, numbers[place]):
                tried = self.better(best, replace(best.config, micro_batches=numbers[place]))
                if tried is None:
                    break
                best, place = tried, place + step
        for edge in _neighbours(best, self.trials.space.remats_of(best.config.stages)):
            for _ in range(BISECTIONS):
                remat = (best.config.remat + edge) / 2
                tried = self.better(best, replace(best.config, remat=remat))
                best, edge = (tried, edge) if tried else (best, remat)

    def better(self, best: Estimate, config: PlanConfig) -> Estimate | None:
        """Returns what a configuration comes to, if that is better than the best."""
        found = self.evaluated([config])
        return next((one for one in found if isinstance(one, Estimate) and one.step_s < best.step_s), None)


def _uses(one: Estimate) -> dict[Resource, float]:
    """Returns the seconds of a step that each resource takes; memory, what it makes shardings slower by."""
    return {
        "memory": one.bound_s - one.free_bound_s if one.is_bound_by_memory else 0.0,
        "compute": one.compute_s,
        "collectives": one.collectives_s,
        "idle": one.idle_s,
    }


def _order(one: Outcome) -> tuple[Rank, PlanConfig]:
    return rank_of(one), one.config


def _neighbours(best: Estimate, remats: tuple[float, ...]) -> list[float]:
    """Returns the next smaller share, and where memory binds the next larger one."""
    smaller = sorted(one for one in remats if one < best.config.remat)
    larger = sorted(one for one in remats if one > best.config.remat and best.is_bound_by_memory)
    return smaller[-1:] + larger[:1]
