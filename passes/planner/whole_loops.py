"""About what a pipeline takes, told before its loops over layers are cut for its stages.

A step whose loops are whole has as many ops in any number of stages. Its best shardings on the mesh of a rank, without
regard to memory, are those of the pipeline but for what differs from piece to piece; shared by the ranks, and with what
these wait at both ends of a step, they are about what the pipeline takes. That is known in a second, of steps that take
minutes to plan in many stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from rhino.ir.program.program import Program
from rhino.passes.sharding.planning_pass import Target, begin_choice
from rhino.strategies.autotune.base import PlanConfig
from rhino.strategies.cost.time_ratios import least_time_ratio
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.strategies.solver.search import Limits, Search


@dataclass(eq=False)
class WholeLoops:
    """What is known of pipelines by the shardings of whole loops: `busy_s` of a rank, by configuration."""

    schedules: Sequence[str]
    limits: Limits
    busy_s: dict[PlanConfig, float] = field(default_factory=dict)

    def least_s(self, config: PlanConfig) -> float:
        """Returns about what a configuration takes at least, by those of its family that are known.

        More micro-batches, or more that is recomputed, take no less of a rank's time.
        """
        alike = [
            own_s
            for one, own_s in self.busy_s.items()
            if (one.stages, one.mesh) == (config.stages, config.mesh)
            and one.micro_batches <= config.micro_batches
            and one.remat <= config.remat
        ]
        return self.with_idle(config, max(alike, default=0.0))

    def with_idle(self, config: PlanConfig, busy_s: float) -> float:
        """Returns a step's seconds, with what ranks wait at both ends of it by the best schedule."""
        return busy_s * (
            1 + min(SCHEDULES[name].idle_share(config.stages, config.micro_batches) for name in self.schedules)
        )

    def about_s(self, config: PlanConfig, program: Program, ranks: Mapping[Target, float]) -> float:
        """Returns about what a configuration takes on any of some targets, as so many ranks [targets]."""
        if config not in self.busy_s:
            busy_s, tried = inf, list[Target]()
            for target, num in ranks.items():
                if any(least_time_ratio(target.model, one.model) >= 1 and ranks[one] >= num for one in tried):
                    continue  # nothing is faster there
                tried.append(target)
                search = Search(begin_choice(program, target).problem, self.limits)
                busy_s = min(busy_s, search.begin() / num)
            self.busy_s[config] = busy_s
        return self.with_idle(config, self.busy_s[config])
