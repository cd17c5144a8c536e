"""What ranks of unlike meshes gain that nobody asked for, and ranks on devices that are not neighbours.

Cases are models of `examples/export.py` on a cluster (`CASES` and `PLACED` in this file). Searches of a case take
outcomes from one planner, which plans each configuration once; seconds are the processor's. Exit code: 1 if a plan is
worse where more is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Final

from models import sized, step_of
from papers import TOLERANCE, made
from report import Options, Question, key, option

from rhino.ir.cluster.cluster import Cluster, load_cluster
from rhino.ir.cluster.groups import largest_memory
from rhino.ir.cluster.placement import placed, placed_devices, placement_text
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_seconds
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.search_space import make_space
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

PLACED: Final = {
    "gnmt": ("gnmt", {"batch": 1024}, "v100x8x2"),
    "bert": ("bert-large", {"batch": 128}, "v100x8x2"),
    "gpt": ("gpt", {"batch": 256}, "v100x8x2"),
    "gnmt-s1": ("gnmt", {"batch": 1024}, "s1x8"),
    "bert-s1": ("bert-large", {"batch": 128}, "s1x8"),
    "gpt-s1": ("gpt", {"batch": 256}, "s1x8"),
    "bert-vp": ("bert-large", {"batch": 128}, "v100x8+p100x8"),
    "bert-pv": ("bert-large", {"batch": 128}, "p100x8+v100x8"),
}
"""The same, of what is planned on ranks in several orders of the cluster's devices."""


MOST_PIPELINES: Final = 12
"""How many pipelines a strategy may have evaluated of each kind of orders."""


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


@dataclass(frozen=True, slots=True)
class Placed:
    """The best pipeline whose ranks are neighbours, that in other orders of devices, and the best plan, unasked.

    None stands where there is none. `unasked_s` are the processor's seconds for the last.
    """

    case: str
    where: str
    neighbours: Estimate | None
    others: Estimate | None
    unasked: Estimate
    words: str
    unasked_s: float


class _AsNumbered(Evaluator):
    """Evaluates pipelines on ranks that take devices as numbered."""

    def orders(self, sizes: Sequence[int]) -> tuple[Cluster, ...]:
        """Returns the first of the orders that are looked at."""
        return super().orders(sizes)[:1]


class _InOtherOrders(Evaluator):
    """Evaluates pipelines on ranks that take devices in other orders than as numbered."""

    def orders(self, sizes: Sequence[int]) -> tuple[Cluster, ...]:
        """Returns all but the first of the orders that are looked at."""
        others = super().orders(sizes)[1:]
        if not others:
            raise RhinoError("RHI-MESH-001", "there is one order of devices")
        return others


class Planner:
    """Plans each configuration of a step once; `text` is the step of a preset."""

    def __init__(
        self,
        text: bytes,
        preset: str,
        cluster: str,
        plans: type[Evaluator] = Evaluator,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        module = read_module(text, preset, make_context())
        with module.context, ir.Location.unknown():
            Normalize(boundaries=True).run(module.operation, Remarks(preset))
        budget = float(largest_memory(load_cluster(cluster)))
        setup = replace(in_own_types(Setup(bytecode(module), preset, cluster, budget, dict(options))), recomputes=True)
        self.evaluator = plans(folded(setup))
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

    def unasked(self) -> Estimate:
        """Returns the best plan of all that may be planned: its shardings are searched for as far as a plan's are."""
        best = explore(self.space, self.evaluate, screen=self.screen).quickest
        assert best is not None, "each case has a plan that fits"
        return made(self.evaluator.setup, best)

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
        preset, sizes, cluster = CASES[case]
        yield Planner(step_of(sized(preset, **sizes)), preset, cluster).compared(case)


def placed_records(options: Options) -> Iterator[Placed]:
    """Yields the best plans of each case on ranks whose devices are neighbours, and on others.

    What is planned unasked is looked for in all orders, and among plans in one program too.
    """
    for case in options.cases:
        preset, sizes, cluster = PLACED[case]
        text = step_of(sized(preset, **sizes))
        neighbours, others = (_best_pipeline(text, preset, cluster, plans) for plans in (_AsNumbered, _InOtherOrders))
        planner, begun = Planner(text, preset, cluster), time.process_time()
        unasked = planner.unasked()
        machine, ranks = load_cluster(cluster), [prod(mesh) for mesh in unasked.config.rank_meshes]
        devices = placed_devices(placed(machine, unasked.device_order), ranks)
        seconds, words = time.process_time() - begun, placement_text(machine, devices)
        yield Placed(case, cluster, neighbours, others, unasked, words, seconds)


def _best_pipeline(text: bytes, preset: str, cluster: str, plans: type[Evaluator]) -> Estimate | None:
    planner = Planner(text, preset, cluster, plans)
    pipelines = {count: meshes for count, meshes in planner.space.meshes.items() if count > 1}
    space = replace(planner.space, meshes=pipelines, replicas={}, unlike_stages=(), most=MOST_PIPELINES)
    return explore(space, planner.evaluate).quickest


def worse(unasked: Estimate | None, step_s: float, case: str) -> Iterator[str]:
    """Yields that the plan which was found takes longer than `step_s`, by more than a search may leave."""
    if unasked is not None and unasked.step_s > (1 + TOLERANCE) * step_s:
        yield f"{case}: the plan that nobody asked for takes {unasked.step_s / step_s:.3f} times as long"


def placed_faults(results: Sequence[Placed]) -> Iterator[str]:
    """Yields where the plan that nobody asked for is worse than one of either kind."""
    for one in results:
        for other in (one.neighbours, one.others):
            if other is not None and other.step_s < one.unasked.step_s:
                yield f"{one.case}: {other.config} takes less than the plan that was found"


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


def plan_text(one: Estimate | None) -> str:
    """Returns a plan's configuration and schedule; `-` where there is none."""
    return ", ".join(filter(None, (str(one.config), one.schedule))) if one else "-"


def step_text(one: Estimate | None) -> str:
    """Returns what a plan's step takes; `-` where there is none."""
    return format_seconds(one.step_s) if one else "-"


PLACED_QUESTION: Final = Question(
    placed_records.__doc__ or "",
    placed_records,
    {
        "case": key("case"),
        "on": key("where"),
        "ranks of neighbours": lambda one: plan_text(one.neighbours),
        "step": lambda one: step_text(one.neighbours),
        "in other orders": lambda one: plan_text(one.others),
        "then": lambda one: step_text(one.others),
        "unasked": lambda one: f"{one.unasked.config}{', ' + one.words if one.words else ''}",
        "it takes": lambda one: step_text(one.unasked),
        "processor, s": key("unasked_s", ".1f"),
    },
    (option("--cases", list(PLACED), "which, by name"),),
    ("on", "ranks of neighbours", "in other orders", "unasked"),
    placed_faults,
)
