"""Alleviate the bottleneck of a configuration, stage by stage, again and again (Aceso).

From a configuration `_Search.hop` looks for a better one at most `HOPS` primitives away (Algorithm 2), and goes on from
there; where there is none from the longest stage, from the next longest one and so on; and where there is none at all,
from the best configuration that was estimated and not yet gone on from (Algorithm 1).

- *Heuristic 1*: the bottleneck is the stage with the most memory where it does not fit, and else the longest one.
- *Heuristic 2*: the resource comes first of which the stage has the largest share of what all stages take of it; of the
  primitives that relieve it, that one which comes to the best step. Memory that fits counts with the seconds that are
  recomputed for it.
- *Deduplication*: no configuration is estimated twice in a search.
- *Fine-tuning*, after each better configuration: each stage on as many devices shared otherwise (where a model has
  divisions that differ from op to op, this is what Aceso tunes op by op); then bounds, a few ops to and fro.

Each number of stages is a search of its own, as Aceso has it. They take turns: all get as many estimates, then the
better half of them, and so on. The budget is estimates, not seconds.

Source: Aceso sections 3.1, 3.2, 4 and appendix B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rhino.strategies.autotune.stage_configs import Rank, StageConfig, StageEstimates
from rhino.strategies.autotune.stage_moves import PRIMITIVES, Resource

HOPS: Final = 7
"""Primitives in a row of which only the last need pay: MaxHops."""

BRANCHES: Final = 2
"""From how many of the best configurations that the primitives of a resource lead to the search goes on."""

TRIES: Final = 100
"""Configurations that may be estimated from one bottleneck."""

NEAR: Final = 12
"""Ops by which a bound is moved at most in fine-tuning."""


def alleviate(estimates: StageEstimates, starts: Iterable[StageConfig], most: int) -> list[StageConfig]:
    """Returns the configurations that fit of about so many estimated from some starts, best first."""
    searches = [_Search(estimates, one) for one in starts]
    left = searches
    rounds = len(searches).bit_length()
    for _ in range(rounds):
        for one in left:
            one.run(most // (rounds * len(left)))
        left = sorted(left, key=lambda one: one.best_rank)[: max(1, len(left) // 2)]
    ranked = sorted((estimates.figures(one).rank, one) for search in searches for one in search.seen)
    return [one for (over_bytes, _), one in ranked if over_bytes == 0]


@dataclass(eq=False)
class _Search:
    """One search: the `best` so far, where it stands, and what was estimated but not gone on from."""

    estimates: StageEstimates
    now: StageConfig
    best: StageConfig = field(init=False)
    seen: set[StageConfig] = field(default_factory=set)
    unexplored: dict[StageConfig, Rank] = field(default_factory=dict)
    tried: int = 0
    until: int = 0
    is_done: bool = False

    def __post_init__(self) -> None:
        self.best = self.now
        self.noted([self.now])

    @property
    def best_rank(self) -> Rank:
        return self.rank(self.best)

    def rank(self, config: StageConfig) -> Rank:
        return self.estimates.figures(config).rank

    def run(self, most: int) -> None:
        """Searches on, for so many estimates more (Algorithm 1)."""
        end = self.tried + most
        while not self.is_done and self.tried < end:
            found = self.better()
            if found is not None:
                self.now = self.tuned(found)
            elif self.unexplored:
                self.now = min(self.unexplored, key=lambda one: (self.unexplored[one], one))
            else:
                self.is_done = True

    def better(self) -> StageConfig | None:
        """Returns a configuration better than the present one, from its bottleneck or from a secondary one."""
        start = self.now
        for place in range(len(start.stages)):
            self.until = self.tried + TRIES
            if (found := self.hop(start, 0, self.rank(start), place)) is not None:
                return found
        return None

    def hop(self, now: StageConfig, hops: int, start: Rank, place: int = 0) -> StageConfig | None:
        """Returns a configuration better than the start's rank, at most so many hops on (Algorithm 2)."""
        if hops == HOPS or self.tried >= self.until:
            return None
        self.unexplored.pop(now, None)
        number = self.bottlenecks(now)[place]
        for resource in self.resources(now, number):
            found = self.noted(
                to for one in PRIMITIVES if resource in one.relieves for to in one.apply(self.estimates, now, number)
            )
            if found and self.rank(found[0]) < start:
                return found[0]
            for one in found[:BRANCHES]:
                if (better := self.hop(one, hops + 1, start)) is not None:
                    return better
        return None

    def bottlenecks(self, now: StageConfig) -> list[int]:
        """Returns the stages by how much they are the bottleneck (heuristic 1)."""
        figures = self.estimates.figures(now)
        taken = [one.over_bytes if figures.over_bytes > 0 else one.seconds for one in figures.stages]
        return sorted(range(len(taken)), key=lambda number: (-taken[number], number))

    def resources(self, now: StageConfig, number: int) -> list[Resource]:
        """Returns the resources that a stage lacks, the one first of which it has the largest share (heuristic 2)."""
        figures = self.estimates.figures(now)
        if figures.over_bytes > 0:
            return ["memory"]
        taken: dict[Resource, list[float]] = {
            "compute": [one.compute_s for one in figures.stages],
            "collectives": [one.collectives_s for one in figures.stages],
            "memory": [one.again_s for one in figures.stages],
        }
        shares = {name: seconds[number] / sum(seconds) for name, seconds in taken.items() if seconds[number] > 0}
        return sorted(shares, key=lambda name: (-shares[name], name))

    def noted(self, configs: Iterable[StageConfig]) -> list[StageConfig]:
        """Returns those of the configurations that were not seen, best first."""
        every = list(configs)
        self.tried += len(every)
        new = [one for one in dict.fromkeys(every) if one not in self.seen]
        self.seen.update(new)
        for one in new:
            self.unexplored[one] = rank = self.rank(one)
            if rank < self.best_rank:
                self.best = one
        return sorted(new, key=lambda one: (self.rank(one), one))

    def tuned(self, config: StageConfig) -> StageConfig:
        """Returns a configuration with its ops fine-tuned."""
        if self.estimates.figures(config).over_bytes > 0:
            return config
        divisions = self.estimates.model.divisions(config.micro_batches)
        for number in self.bottlenecks(config):
            now = config.stages[number].division
            others = [one for one in divisions if one.devices == now.devices and one != now]
            tried = []
            for other in others:
                stages = list(config.stages)
                stages[number] = replace(stages[number], division=other)
                if (found := self.estimates.even(replace(config, stages=tuple(stages)))) is not None:
                    tried.append(found)
            config = self.least([config, *tried])
        return self.bounded(config)

    def bounded(self, config: StageConfig) -> StageConfig:
        """Returns a configuration with each bound where it is best beside the others."""
        while True:
            before = config
            for number in range(len(config.stages) - 1):
                config = self.least([config, *self.shifted(config, number)])
            if config == before:
                return config

    def shifted(self, config: StageConfig, number: int) -> Iterator[StageConfig]:
        """Yields the configurations with another bound behind a stage that may be better."""
        bounds, figures = list(config.bounds), self.estimates.figures(config)
        seconds = [one.seconds for one in figures.stages]
        rest = seconds[:number] + seconds[number + 2 :]
        ranks = self.estimates.ranks(config)
        low, now, high = bounds[number : number + 3]
        for bound in range(max(low + 1, now - NEAR), min(high, now + NEAR + 1)):
            every = [*rest, ranks[number].seconds(low, bound), ranks[number + 1].seconds(bound, high)]
            if (config.micro_batches - 1) * max(every) + sum(every) < figures.step_s:
                bounds[number + 1] = bound
                yield self.estimates.fitted(config, tuple(bounds))

    def least(self, configs: Sequence[StageConfig]) -> StageConfig:
        """Returns the best of some configurations, and notes those that are new."""
        self.noted(configs[1:])
        return min(configs, key=self.rank)
