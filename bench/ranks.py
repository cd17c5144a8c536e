"""What ranks of unlike meshes gain that nobody asked for: the best plan with equal ranks alone, and with both.

Cases are models of `examples/export.py` on a cluster (`CASES` in this file). Both searches take outcomes from one
planner, which plans each configuration once; seconds are the processor's. Exit code: 1 if a plan is worse where unlike
ranks are looked at too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from models import sized, step_of
from report import Options, Question, key, option

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.groups import largest_memory
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator, make_space
from rhino.passes.planner.setup import Setup, folded, in_own_types
from rhino.strategies.autotune import explore
from rhino.strategies.autotune.base import CutOff, Estimate, Found, Outcome, PlanConfig, Screening

CASES: Final = {
    "vgg": ("vgg", {}, "v100x8"),
    "vgg-slow": ("vgg", {}, "s1x8"),
    "mlp-100k": ("mlp-100k-classes", {}, "s1x8"),
    "bert-mixed": ("bert", {"batch": 64}, "v100x8+p100x8"),
}
"""Presets, what is other than in them, and the clusters that they are planned for."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The best plan of a case with equal ranks, and where they may be unlike; seconds of processor for both."""

    case: str
    equal: Estimate
    both: Estimate
    equal_s: float
    added_s: float

    @property
    def gain(self) -> float:
        """By what share the step is shorter."""
        return 1 - self.both.step_s / self.equal.step_s


class Planner:
    """Plans each configuration once."""

    def __init__(self, preset: str, sizes: dict[str, int], cluster: str) -> None:
        module = read_module(step_of(sized(preset, **sizes)), preset, make_context())
        with module.context, ir.Location.unknown():
            Normalize(boundaries=True).run(module.operation, Remarks(preset))
        budget = float(largest_memory(load_cluster(cluster)))
        setup = replace(in_own_types(Setup(bytecode(module), preset, cluster, budget, {})), recomputes=True)
        self.evaluator = Evaluator(folded(setup))
        self.space = replace(make_space(self.evaluator.setup), remats=(0.0,))
        self.known: dict[PlanConfig, Outcome] = {}

    def evaluate(self, configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        """Returns the outcomes of configurations."""
        for config in configs:
            known = self.known.get(config)
            if known is None or (isinstance(known, CutOff) and known.step_s < cutoff_s):
                self.known[config] = self.evaluator.outcome(config, cutoff_s)
        return [self.known[config] for config in configs]

    def screen(self, requests: Sequence[Screening], below_s: float) -> list[Found]:
        """Returns what screenings find."""
        return [self.evaluator.screened(one, below_s) for one in requests]

    def compared(self, case: str) -> Compared:
        """Returns the best plans, and what finding them took."""
        begun = time.process_time()
        equal = explore(self.space, self.evaluate).quickest
        between = time.process_time()
        both = explore(self.space, self.evaluate, screen=self.screen).quickest
        assert equal is not None, "each case has a plan that fits"
        assert both is not None, "equal ranks are among both"
        return Compared(case, equal, both, between - begun, time.process_time() - between)


def records(options: Options) -> Iterator[Compared]:
    """Yields the best plans of each case."""
    for case in options.cases:
        yield Planner(*CASES[case]).compared(case)


def faults(results: Sequence[Compared]) -> Iterator[str]:
    """Yields where a plan is worse for what was looked at more."""
    for one in results:
        if one.gain < 0:
            yield f"{one.case}: the plan is worse where unlike ranks are looked at"


QUESTION: Final = Question(
    __doc__ or "",
    records,
    {
        "case": key("case"),
        "equal ranks": lambda one: str(one.equal.config),
        "step": lambda one: f"{one.equal.step_s * 1e3:.2f} ms",
        "with unlike ones": lambda one: str(one.both.config),
        "then": lambda one: f"{one.both.step_s * 1e3:.2f} ms",
        "shorter by": key("gain", ".1%"),
        "processor, s": key("equal_s", ".1f"),
        "more, s": key("added_s", ".1f"),
    },
    (option("--cases", list(CASES), "which, by name"),),
    ("equal ranks", "with unlike ones"),
    faults,
)
