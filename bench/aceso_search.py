"""Searches in Aceso's model: stages on ranks of unlike shapes, how each op is split there, and what is recomputed.

- `best` cuts the line by dynamic programming over stages, devices and ops (`stages/shapes.py`), where each division of
  the line (`aceso_divisions.py`) is a shape of a rank.
- `aceso` alleviates bottlenecks by moves on single stages (`autotune/stage_search.py`), from balanced starts alone.
- `both` does so from the plan of `best`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

import numpy as np
from aceso_divisions import DividedLine, divisions, even_divisions
from aceso_model import AcesoModel, Figures, Plan

from rhino.ir.arrays import Floats
from rhino.strategies.autotune.stage_configs import (
    Division,
    Stage,
    StageConfig,
    StageEstimates,
    Stretches,
    balanced,
)
from rhino.strategies.autotune.stage_search import alleviate
from rhino.strategies.pipeline.stages.shapes import Shape, ShapedLine, best_cut, is_placed

MOST_STAGES: Final = 16
"""As in Aceso's search."""

MOST: Final = 4000
"""Configurations that the moves may lead to."""

MOST_FROM_BEST: Final = 1000
"""The same from a plan that is the best of its kind."""

TIMES_EVEN: Final = 1.5
"""Times what even stages would take, each device always busy: longer stages are none that the moves lead to."""


def search(model: AcesoModel, strategy: str) -> tuple[Plan, Figures] | None:
    """Returns the best plan that a strategy finds and what it comes to, None where there is none."""
    line = AcesoStages(model)
    if (found := STRATEGIES[strategy](line)) is None:
        return None
    plan = line.plan(found)
    return plan, model.evaluate(plan)


def _best(line: AcesoStages) -> StageConfig | None:
    best, least_s = None, inf
    for number in reversed(line.micro_batches):
        if (cut := best_cut(line.shaped(number), least_s)) is not None:
            every = line.divisions(number)
            best = StageConfig(number, tuple([Stage(one.end, every[one.shape]) for one in cut.stages]))
            least_s = cut.step_s
    return best


def _aceso(line: AcesoStages) -> StageConfig | None:
    return next(iter(alleviate(StageEstimates(line), list(_starts(line)), MOST)), None)


def _both(line: AcesoStages) -> StageConfig | None:
    estimates, best = StageEstimates(line), _best(line)
    return next(iter(alleviate(estimates, [estimates.fitted(best)], MOST_FROM_BEST)), None) if best else None


STRATEGIES: Final[Mapping[str, Callable[[AcesoStages], StageConfig | None]]] = {
    "best": _best,
    "aceso": _aceso,
    "both": _both,
}
"""Every search by its name."""


def _starts(line: AcesoStages) -> Iterator[StageConfig]:
    for stages in range(1, min(MOST_STAGES, line.num_devices) + 1):
        if (found := balanced(line, stages)) is not None:
            yield found


class AcesoStages:
    """The line of a model under all its divisions: a `StageModel`.

    What a stage computes is what it would if its devices shared it without loss: the least device-seconds of each op
    under any division. All else that a division takes, with reshards and transfers, counts as collectives.
    """

    def __init__(self, model: AcesoModel) -> None:
        setup = model.setup
        self.model = model
        self.num_places, self.num_devices = len(model.line), setup.num_devices
        self.per_node = setup.devices_per_node
        sizes = [examples for examples in setup.examples if even_divisions(model, examples)]
        self.micro_batches = tuple(sorted(setup.batch // examples for examples in sizes))
        self.lines: dict[int, dict[Division, DividedLine]] = {}
        self.busy_s: dict[int, Floats] = {}
        self.tables: dict[tuple[int, Division, int], Floats] = {}

    def divisions(self, micro_batches: int) -> tuple[Division, ...]:
        """See `StageModel`."""
        return tuple(sorted(self.divided(micro_batches)))

    def placed(self, division: Division, first: int) -> Division | None:
        """See `StageModel`."""
        return division if is_placed(first, first + division.devices, self.per_node) else None

    def divided(self, micro_batches: int) -> dict[Division, DividedLine]:
        """Returns the line in each of its divisions."""
        if micro_batches not in self.lines:
            found: dict[Division, DividedLine] = {}
            examples = self.model.setup.batch // micro_batches
            for ops in divisions(self.model, examples):
                copies, parts, is_even = ops[0].copies, ops[0].parts, len(set(ops)) == 1
                division = Division(copies, parts) if is_even else Division(copies * parts, 1, variant=len(found))
                found[division] = DividedLine(self.model, examples, ops)
            least = np.min([np.diag(one.seconds, 1) * one.shape.devices for one in found.values()], axis=0)
            self.busy_s[micro_batches] = np.concatenate([[0.0], np.cumsum(least)])
            self.lines[micro_batches] = found
        return self.lines[micro_batches]

    def shape(self, micro_batches: int, division: Division) -> Shape:
        """See `StageModel`."""
        return self.divided(micro_batches)[division].shape

    def stretches(self, micro_batches: int, division: Division, behind: int, start: int) -> Stretches:
        """See `StageModel`."""
        line, busy = self.divided(micro_batches)[division], self.busy_s[micro_batches]
        compute_s = (busy - busy[start]) / division.devices
        seconds = self.stage_s(micro_batches, division, behind)[start]
        again_s = np.full(len(busy), inf)
        np.subtract(seconds, line.seconds[start], out=again_s, where=seconds < inf)
        return Stretches(compute_s, line.seconds[start] - compute_s, again_s, line.over_bytes(behind, start))

    def least_over(self, micro_batches: int, division: Division, behind: int, start: int, end: int) -> float:
        """See `StageModel`."""
        return self.divided(micro_batches)[division].least_over(behind, start, end)

    def stage_s(self, micro_batches: int, division: Division, behind: int) -> Floats:
        """Returns the seconds of stretches as stages, infinite where they are so long that they are not looked at."""
        key = micro_batches, division, behind
        if key not in self.tables:
            even_s = float(self.busy_s[micro_batches][-1]) / self.num_devices
            self.tables[key] = self.divided(micro_batches)[division].stage_s(behind, TIMES_EVEN * even_s)
        return self.tables[key]

    def shaped(self, micro_batches: int) -> ShapedLine:
        """Returns the line as the dynamic program sees it, its shapes in the order of divisions."""
        lines = [one for _, one in sorted(self.divided(micro_batches).items())]
        return ShapedLine(
            tuple([one.shape for one in lines]),
            lambda behind, shape, limit_s: lines[shape].stage_s(behind, limit_s),
            lambda behind, shape, limit_s: lines[shape].bound_s(behind, limit_s),
            num_places=self.num_places,
            num_devices=self.num_devices,
            per_node=self.per_node,
            num_micro_batches=micro_batches,
            most_stages=MOST_STAGES,
            busy_s=float(self.busy_s[micro_batches][-1]),
        )

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
