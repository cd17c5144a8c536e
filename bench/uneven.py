"""Data parallelism on unlike devices, after Whale's section 5.2: equal shares of the batch, and shares by speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from models import sized, step_of
from ranks import Planner, plan_text, step_text, worse
from report import Options, Question, key, option

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.planner.staged_plan import StagedPlan, cut_step, make_staged_plan, prove_fit
from rhino.strategies.autotune.base import Estimate

MODELS: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "resnet": (128, {"batch-statistics": "per-part"}),
    "bert-large": (16, {}),
    "gnmt-8": (128, {}),
    "mlp": (1 << 16, {}),
}
"""Presets of examples/export.py: the examples of a micro-batch, and options of its passes."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A model on replicas of two kinds of devices: with equal shares of the micro-batches, and by speed.

    `one_s` is the step of one program on all devices, each with as much of the batch, and `unasked` the plan that is
    found where nothing is asked for; None if it was not looked for.
    """

    model: str
    devices: str
    one_s: float
    equal: StagedPlan
    own: StagedPlan
    unasked: Estimate | None

    @property
    def speedup(self) -> float:
        """How many times as fast the step is as with equal shares."""
        return self.equal.simulation.timeline.end_s / self.own.simulation.timeline.end_s

    @property
    def limit(self) -> float:
        """How many times as fast it could be: the groups' speeds in a micro-batch over twice the slower one's."""
        spans = [one for one in self.equal.simulation.timeline.spans if one.task.phase == "accumulate"]
        each_s = [(one.end_s - one.start_s) / self.equal.plan.shares[one.rank] for one in spans]
        return sum(max(each_s) / seconds for seconds in each_s) / len(each_s)

    @property
    def busier(self) -> float:
        """How many times as busy the devices of the first group are."""
        idle = [one.simulation.timeline.idle(0) for one in (self.own, self.equal)]
        return (1 - idle[0]) / (1 - idle[1])


def records(options: Options) -> Iterator[Shared]:
    """How much faster data parallelism is whose ranks share the batch by the speed of their devices, of two kinds.

    Equal and own shares are of the same micro-batches, and shardings inside of a rank are searched for. The exit code
    is 1 if equal shares are faster, or one program is.
    """
    for model in options.models:
        size, more = MODELS[model]
        num = options.micro_batches
        text = step_of(sized(model, batch=size * num))
        asked = {"cluster": options.cluster, "num": str(num), **more}
        ranks = len(load_cluster(options.cluster).groups)
        one = planned(text, model, {**asked, "stages": "1", "ranks": "1", "mesh": options.whole})
        equal, own = (
            planned(text, model, {**asked, "mesh": options.mesh, "replicas": replicas})
            for replicas in (";".join([str(num // ranks)] * ranks), str(ranks))
        )
        prove_fit(own.plan)
        unasked = Planner(text, model, options.cluster, options=more).unasked() if options.unasked else None
        yield Shared(model, options.cluster, one.simulation.timeline.end_s, equal, own, unasked)


def planned(text: bytes, model: str, asked: Mapping[str, str]) -> StagedPlan:
    """Returns a model's step planned with these options of its passes, within the largest device's memory."""
    module, cluster = read_module(text, model, make_context()), asked["cluster"]
    source = cut_step(module, model, asked, Remarks(model))
    budget = max(one.device.usable_hbm_bytes for one in load_cluster(cluster).groups)
    return make_staged_plan(module, source, cluster, budget, asked)


def _idle(found: StagedPlan) -> str:
    return ", ".join(f"{found.simulation.timeline.idle(rank):.0%}" for rank in range(found.plan.num_ranks))


def _faults(found: Sequence[Shared]) -> Iterator[str]:
    for one in found:
        if one.speedup < 1:
            yield f"{one.model} on {one.devices}: equal shares are faster"
        if one.one_s < one.own.simulation.timeline.end_s:
            yield f"{one.model} on {one.devices}: one program is faster"
        yield from worse(one.unasked, one.own.simulation.timeline.end_s, f"{one.model} on {one.devices}")


QUESTION: Final = Question(
    records.__doc__ or "",
    records,
    {
        "model": key("model"),
        "one program": lambda one: format_seconds(one.one_s),
        "equal shares": lambda one: format_seconds(one.equal.simulation.timeline.end_s),
        "idle": lambda one: _idle(one.equal),
        "shares": lambda one: " and ".join(map(str, one.own.plan.shares)),
        "then": lambda one: format_seconds(one.own.simulation.timeline.end_s),
        "then idle": lambda one: _idle(one.own),
        "peaks": lambda one: ", ".join(format_bytes(rank.peak_bytes) for rank in one.own.simulation.memory),
        "times as fast": lambda one: f"{one.speedup:.2f}",
        "at most": lambda one: f"{one.limit:.2f}",
        "first group as busy": lambda one: f"{one.busier:.2f}",
        "unasked": lambda one: plan_text(one.unasked),
        "it takes": lambda one: step_text(one.unasked),
    },
    (
        option("--models", ["resnet", "bert-large", "gnmt-8"], f"of {', '.join(MODELS)}"),
        option("--cluster", "v100x8+p100x8", "of groups of as many devices"),
        option("--mesh", "8", "of a rank"),
        option("--whole", "2x8", "the mesh of one program"),
        option("--micro-batches", 26, "of a step"),
        option("--unasked", False, "look for the best plan, too"),
    ),
    ("idle", "then idle", "peaks", "shares", "unasked"),
    _faults,
)
