"""Made-up models for autotuning: what a configuration comes to by a formula, and the best of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from random import Random

from hypothesis import strategies as st

from rhino.strategies.autotune.base import ROUND, CutOff, Estimate, Outcome, PlanConfig, Refused, Space

NUMBERS = (1, 2, 4, 8, 16, 32, 64)
MESHES = {
    4: {1: ((2, 2),), 2: ((2,),), 4: ((1,),)},
    8: {1: ((2, 4),), 2: ((2, 2),), 4: ((2,),), 8: ((1,),)},
    16: {1: ((2, 8), (4, 4), (8, 2)), 2: ((2, 4), (4, 2)), 4: ((2, 2),), 8: ((2,),), 16: ((1,),)},
    24: {
        1: ((2, 12), (3, 8), (4, 6), (6, 4), (8, 3), (12, 2)),
        2: ((2, 6), (3, 4), (4, 3), (6, 2)),
        3: ((2, 4), (4, 2)),
        4: ((2, 3), (3, 2)),
        6: ((2, 2),),
        8: ((3,),),
        12: ((2,),),
        24: ((1,),),
    },
}
"""The meshes of a rank by number of stages, by number of devices."""


@dataclass
class MadeUp:
    """A model on devices of two levels.

    Seconds of a step on all devices: `work_s`; `part_s` for each micro-batch; `outer_s` and `inner_s`, the collectives
    of an axis that is very long, the latter per micro-batch in part. Bytes in units of the memory of a device: `state`
    of the whole model, divided by the stages and in part by meshes; `saved` for the backward pass of the whole batch,
    on all devices. `again` is the share of work done again if all is recomputed.
    """

    work_s: float
    part_s: float
    outer_s: float
    inner_s: float
    state: float
    saved: float
    again: float
    asked: list[PlanConfig] = field(default_factory=list, init=False)

    def busy_s(self, config: PlanConfig) -> tuple[float, float]:
        """Returns the seconds of computing and of collectives."""
        outer, inner = prod(config.mesh[:-1]), config.mesh[-1]
        compute_s = (
            self.work_s * (1 + self.again * config.remat) + self.part_s * config.micro_batches * (outer * inner) ** 0.5
        )
        return compute_s, self.outer_s * (1 - 1 / outer) + self.inner_s * (1 - 1 / inner) * (
            1 + config.micro_batches / 64
        )

    def step_s(self, config: PlanConfig) -> float:
        """Returns the seconds of a step, whatever it needs."""
        return sum(self.busy_s(config)) * (1 + (config.stages - 1) / config.micro_batches)

    def outcome(self, config: PlanConfig) -> Outcome:
        """Returns what a configuration comes to."""
        inner = config.mesh[-1]
        compute_s, collectives_s = self.busy_s(config)
        busy_s, step_s = compute_s + collectives_s, self.step_s(config)
        in_flight = min(config.stages, config.micro_batches) / config.micro_batches
        need = self.state / config.stages / inner**0.5 + self.saved * (0.1 + 0.9 * (1 - config.remat)) * in_flight
        if need > 1:
            return Refused(config, "too large", by_memory=True, free_bound_s=busy_s, needs_bytes=need)
        schedule = "1f1b" if config.stages > 1 else ""
        return Estimate(config, schedule, step_s, busy_s, busy_s, compute_s, collectives_s, (need,) * config.stages)

    def evaluate(self, configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        """Returns the outcomes of a round."""
        assert 0 < len(configs) <= ROUND
        self.asked += configs
        return [cut_off(self.outcome(config), cutoff_s, self.step_s(config)) for config in configs]

    def best_s(self, space: Space) -> float | None:
        """Returns the best step of all configurations of a space, None where nothing fits."""
        found = [one.step_s for config in every_config(space) if isinstance(one := self.outcome(config), Estimate)]
        return min(found, default=None)


def cut_off(outcome: Outcome, cutoff_s: float, estimated_s: float = 0.0) -> Outcome:
    """Returns the outcome of a configuration whose planning ends where its bound says that it takes `cutoff_s` or more.

    A pipeline's estimate ends it likewise, before memory rules anything out.
    """
    config = outcome.config
    if not isinstance(outcome, CutOff) and config.stages > 1 and outcome.free_bound_s < cutoff_s <= estimated_s:
        return CutOff(config, outcome.free_bound_s, outcome.free_bound_s, by_memory=False, estimated_s=estimated_s)
    if not isinstance(outcome, Estimate) or outcome.bound_s < cutoff_s:
        return outcome
    return CutOff(outcome.config, outcome.bound_s, outcome.free_bound_s, by_memory=outcome.free_bound_s < cutoff_s)


def every_config(space: Space) -> list[PlanConfig]:
    """Returns all configurations of a space that make sense: no pipeline of one micro-batch."""
    pairs = [(stages, mesh) for stages, meshes in space.meshes.items() for mesh in meshes]
    configs = [
        PlanConfig(*pair, number, remat) for pair, number, remat in product(pairs, space.micro_batches, space.remats)
    ]
    return [one for one in configs if one.stages == 1 or one.micro_batches > 1]


def models() -> st.SearchStrategy[MadeUp]:
    """Returns models whose parts are of sizes that real ones have, relatively."""
    return st.builds(
        MadeUp,
        work_s=st.just(1.0),
        part_s=st.floats(1e-4, 1e-2),
        outer_s=st.floats(0.01, 1.0),
        inner_s=st.floats(0.01, 1.0),
        state=st.floats(0.05, 3.0),
        saved=st.floats(0.05, 8.0),
        again=st.floats(0.1, 0.35),
    )


def drawn(count: int) -> Iterator[MadeUp]:
    """Draws so many of them, the same ones every time, with sizes even in their logarithms."""
    rng = Random(1)

    def between(low: float, high: float) -> float:
        return float(low * (high / low) ** rng.random())

    for _ in range(count):
        sizes = [
            between(*ends) for ends in ((1e-4, 1e-2), (0.01, 1.0), (0.01, 1.0), (0.05, 3.0), (0.05, 8.0), (0.1, 0.35))
        ]
        yield MadeUp(1.0, *sizes)
