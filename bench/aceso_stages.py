"""Aceso's moves in Aceso's model: what stretches of the line take as stages, for the search stage by stage.

What a stage computes is what it would if its devices shared it without loss: the least device-seconds of each op under
any division. All else that a division takes, with reshards and transfers, counts as collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Final

import numpy as np
from aceso_model import AcesoModel, Figures, Plan
from aceso_search import DividedLine, divisions, even_divisions

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.autotune.stage_configs import Division, StageConfig, StageEstimates, Stretches, balanced
from rhino.strategies.autotune.stage_search import alleviate
from rhino.strategies.pipeline.stages.shapes import Shape

MOST: Final = 20000
"""Configurations that are estimated at most."""

TIMES_EVEN: Final = 2.0
"""Times what even stages would take, each device always busy: stages that take longer are not looked at."""


def search(model: AcesoModel, most_stages: int, most: int = MOST) -> tuple[Plan, Figures] | None:
    """Returns the best plan found from balanced starts and what it comes to, None where there is none."""
    line = AcesoStages(model)
    every = [balanced(line, stages) for stages in range(1, min(most_stages, line.num_devices) + 1)]
    best = alleviate(StageEstimates(line), [one for one in every if one is not None], most)
    if best is None:
        return None
    plan = line.plan(best)
    return plan, model.evaluate(plan)


@dataclass(eq=False)
class AcesoStages:
    """The line of a model as a search stage by stage sees it."""

    model: AcesoModel
    lines: dict[int, dict[Division, DividedLine]] = field(default_factory=dict)
    busy_s: dict[int, Floats] = field(default_factory=dict)
    tables: dict[tuple[int, Division, int], Floats] = field(default_factory=dict)

    @property
    def num_places(self) -> int:
        return len(self.model.line)

    @property
    def num_devices(self) -> int:
        return self.model.setup.num_devices

    @property
    def per_node(self) -> int:
        return self.model.setup.devices_per_node

    @property
    def budget_bytes(self) -> float:
        return self.model.setup.memory_bytes

    @cached_property
    def micro_batches(self) -> tuple[int, ...]:
        numbers = [self.model.setup.batch // examples for examples in self.model.setup.examples]
        return tuple(sorted(number for number in numbers if even_divisions(self.model, self.model.setup.batch // number)))

    def divisions(self, micro_batches: int) -> tuple[Division, ...]:
        return tuple(sorted(self.divided(micro_batches)))

    def divided(self, micro_batches: int) -> dict[Division, DividedLine]:
        """Returns the line in each of its divisions."""
        if micro_batches not in self.lines:
            found: dict[Division, DividedLine] = {}
            examples = self.model.setup.batch // micro_batches
            for ops in divisions(self.model, examples):
                one = ops[0]
                is_even = len(set(ops)) == 1
                division = Division(one.copies, one.parts) if is_even else Division(one.copies * one.parts, 1, len(found))
                found[division] = DividedLine(self.model, examples, ops)
            least = [np.diag(one.seconds, 1) * one.shape.devices for one in found.values()]
            self.busy_s[micro_batches] = np.cumsum(np.concatenate([[0.0], np.min(least, axis=0)])) if found else np.zeros(1)
            self.lines[micro_batches] = found
        return self.lines[micro_batches]

    def shape(self, micro_batches: int, division: Division) -> Shape:
        return self.divided(micro_batches)[division].shape

    def stretches(self, micro_batches: int, division: Division, behind: int, start: int) -> Stretches:
        line, busy = self.divided(micro_batches)[division], self.busy_s[micro_batches]
        compute_s = (busy - busy[start]) / division.devices
        needs = line.over_bytes(behind, start) + self.budget_bytes
        seconds = self.stage_s(micro_batches, division, behind)[start]
        again_s = np.full(len(busy), inf)
        np.subtract(seconds, line.seconds[start], out=again_s, where=seconds < inf)
        least = np.minimum(needs, self.budget_bytes)
        short = np.flatnonzero((needs > self.budget_bytes) & (again_s == inf) & (line.seconds[start] < inf))
        least[short] = line.least_bytes(behind, np.full(len(short), start), short)
        return Stretches(compute_s, line.seconds[start] - compute_s, again_s, needs, least)

    def stage_s(self, micro_batches: int, division: Division, behind: int) -> Floats:
        """Returns the seconds of stretches as stages, infinite where they are so long that they are not looked at."""
        key = micro_batches, division, behind
        if key not in self.tables:
            even_s = float(self.busy_s[micro_batches][-1]) / self.num_devices
            self.tables[key] = self.divided(micro_batches)[division].stage_s(behind, TIMES_EVEN * even_s)
        return self.tables[key]

    def plan(self, config: StageConfig) -> Plan:
        """Returns the plan of a configuration."""
        examples, behind = self.model.setup.batch // config.micro_batches, range(len(config.stages) - 1, -1, -1)
        lines = self.divided(config.micro_batches)
        return Plan(
            examples,
            tuple(
                lines[one.division].plan(start, one.end, b)
                for start, one, b in zip(config.bounds, config.stages, behind, strict=False)
            ),
        )
