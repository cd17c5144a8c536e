"""What autotuning says for itself: the chosen plan, what the others lost by, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any, Final

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.placement import placed, placed_devices, placement_text
from rhino.ir.plan.plan import Alternative, Autotuning, Comparison, CompiledPlan, Plan
from rhino.ir.units import format_bytes, format_seconds, peak_text
from rhino.passes.pipeline.rematerialize import BY_STAGE
from rhino.strategies.autotune.base import CutOff, Estimate, Explored, PlanConfig, Refused, plan_name

SHOWN: Final = 5
"""How many of the configurations that lost are printed, best first, and how many of those that are none.

The JSON has them all.
"""

NOTABLE: Final = 0.001
"""The share of a step below which a difference in one of its parts is not worth a word."""


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan whose programs were made: as it was estimated, and what it came to once they were there, and compiled."""

    estimate: Estimate
    step_s: float
    peak_bytes: tuple[float, ...]
    compiled: CompiledPlan | None = None

    @property
    def compiled_s(self) -> float | None:
        """The compiled step, None where nothing was compiled."""
        return None if self.compiled is None else self.compiled.compiled_s

    @property
    def compiled_bytes(self) -> int | None:
        """What a device holds at most as it was compiled; None where that was not asked for."""
        return None if self.compiled is None else self.compiled.compiled_bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """A plan that could be had and was not taken, and `why`; `made` is what it came to where its programs were made."""

    estimate: Estimate
    made: MadePlan | None
    why: str

    @property
    def step_s(self) -> float:
        """The seconds of a step: of its programs where they were made, else as it was estimated."""
        return self.made.step_s if self.made else self.estimate.step_s


@dataclass(frozen=True, slots=True)
class Report:
    """A search and its end.

    `made` are the plans whose programs were made and fit, `failed` the configurations of those that did not;
    `budget_bytes` is per device. Of a deep step, configurations were compared with so many `groups` for the alike
    `layers` of each stretch, and plans whose programs were not made are reported in these. Steps of programs are
    compared with those of programs, and estimates with estimates. `compared` is what a compiler made of plans.
    """

    explored: Explored
    chosen: MadePlan
    made: tuple[MadePlan, ...]
    failed: tuple[Refused, ...]
    cluster: str
    budget_bytes: float
    layers: tuple[int, ...] = ()
    groups: int = 0
    compared: Comparison | None = None

    def text(self) -> str:
        """Returns the summary."""
        one = self.chosen.estimate
        bound_s = min(self.explored.bound_s, self.chosen.step_s)
        gap = _part(self.chosen.step_s - bound_s, self.chosen.step_s)
        ended = "" if self.explored.is_complete else "; the search ended early"
        lines = [
            f"{self.name(one)}: step {format_seconds(self.chosen.step_s)}, no plan that was compared takes less than "
            f"{format_seconds(bound_s)} "
            f"({gap:.1%}); {peak_text(max(self.chosen.peak_bytes), self.budget_bytes)}",
            f"  about {format_seconds(one.step_s)} by its estimate: {_parts(one)}",
            f"  found by {self.explored.requested_by[one.config]}, the best of {len(self.explored.outcomes)} "
            "configurations that were planned "
            f"({_counts(self.explored)}){ended}",
        ]
        if self.compared and self.chosen.compiled_s is not None:
            taken = format_bytes(self.chosen.compiled_bytes or 0)
            found = f"{format_seconds(self.chosen.compiled_s)} and {taken} per device once compiled"
            lines.append(f"  {found}, the best of {len(self.compared.plans)} that were")
        lines += [
            f"  compared with {count:,} equal layers in {self.groups} groups, whose layers share their shardings"
            for count in self.layers
        ]
        lost = self.lost()
        lines += [f"  {self.name(other.estimate)}: {_step(other)}, {other.why}" for other in lost[:SHOWN]]
        if len(lost) > SHOWN:
            lines.append(f"  and {len(lost) - SHOWN} more that are slower")
        if cut_off := self.cut_off():
            whose = "was cut off before the end of its" if len(cut_off) == 1 else "were cut off before the end of their"
            lines.append(f"  {len(cut_off)} {whose} search:")
            lines += [f"    {self.cut_name(other)}: {why}" for other, why in cut_off[:SHOWN]]
            if len(cut_off) > SHOWN:
                lines.append(f"    and {len(cut_off) - SHOWN} more, from {format_seconds(cut_off[SHOWN][0].step_s)} on")
        none = self.refused()
        lines += [f"  {other.config}: {other.why}" for other in none[:SHOWN]]
        if len(none) > SHOWN:
            lines.append(f"  and {len(none) - SHOWN} more that were refused")
        return "\n".join(lines)

    def lost(self) -> list[Lost]:
        """Returns the configurations that could be had and were not taken, each as its best plan, best first."""
        best: dict[PlanConfig, MadePlan] = {}
        for plan in sorted(self.made, key=lambda one: one.step_s):
            best.setdefault(plan.estimate.config, plan)
        gone = {self.chosen.estimate.config, *best, *(one.config for one in self.failed)}
        found = [
            Lost(plan.estimate, plan, self.made_loss(plan))
            for config, plan in best.items()
            if config != self.chosen.estimate.config
        ]
        found += [
            Lost(one.quickest, None, self.loss(one.quickest)) for one in self.explored.ranked if one.config not in gone
        ]
        found += self.elsewhere()
        return sorted(found, key=lambda one: (one.step_s, one.estimate.config))

    def elsewhere(self) -> list[Lost]:
        """Returns the best plan of the chosen configuration in each other order of the cluster's devices."""
        chosen, best = self.chosen.estimate, dict[tuple[int, ...], Estimate]()
        every = [one for one in self.explored.ranked if one.config == chosen.config]
        plans = [plan for one in every for plan in (one, *([one.ahead] if one.ahead else []), *one.others)]
        for plan in sorted(plans, key=lambda one: one.step_s):
            best.setdefault(plan.device_order, plan)
        made = {one.estimate: one for one in self.made}
        others = [(plan, made.get(plan)) for order, plan in best.items() if order != chosen.device_order]
        return [Lost(plan, own, self.made_loss(own) if own else self.loss(plan)) for plan, own in others]

    def name(self, one: Estimate) -> str:
        """Returns what a plan is called, with the devices of its ranks where they do not follow one another."""
        name = plan_name(one.config, one.schedule, recomputes=one.recomputes)
        if not one.device_order:
            return name
        cluster = load_cluster(self.cluster)
        devices = placed_devices(placed(cluster, one.device_order), [prod(mesh) for mesh in one.config.rank_meshes])
        return f"{name}, {placement_text(cluster, devices)}"

    def cut_name(self, one: CutOff) -> str:
        """Returns what a configuration is called that was cut off: the best plan that was estimated of it, if any."""
        return self.name(one.plans[0]) if one.plans else str(one.config)

    def made_loss(self, plan: MadePlan) -> str:
        """Returns by what a plan loses whose programs were made."""
        if plan.compiled_s is not None and self.chosen.compiled_s is not None:
            slower = _part(plan.compiled_s - self.chosen.compiled_s, self.chosen.compiled_s)
            return f"{abs(slower):.1%} {'slower' if slower >= 0 else 'faster'} once compiled"
        return f"{_part(plan.step_s - self.chosen.step_s, self.chosen.step_s):.1%} slower once its programs were made"

    def loss(self, one: Estimate) -> str:
        """Returns by what a plan loses as it was estimated, against what was chosen as that was."""
        left = "; its programs were not made" if one.step_s < self.chosen.step_s else ""
        return f"{_loss(one, self.chosen.estimate)}{left}"

    def cut_off(self) -> list[tuple[CutOff, str]]:
        """Returns the configurations that were cut off, the fastest first, each with the reason.

        Configurations whose programs were made are left out.
        """
        gone = {*(one.estimate.config for one in self.made), *(one.config for one in self.failed)}
        every = sorted(self.explored.cut_off, key=lambda one: one.step_s)
        return [(one, self.cut(one)) for one in every if one.config not in gone]

    def cut(self, one: CutOff) -> str:
        """Returns why a configuration was not planned to its end."""
        if one.plans:
            about = f"about {format_seconds(one.plans[0].step_s)} without regard to memory"
            return f"{about}, {self.loss(one.plans[0])}"
        memory = " within the memory budget" if one.by_memory else ""
        slower = _part(one.bound_s - self.chosen.step_s, self.chosen.step_s)
        than = f"{slower:.1%} slower" if slower >= 0 else "no less than the estimate of the best plan at that time"
        return f"at least {format_seconds(one.bound_s)}{memory}, {than}"

    def refused(self) -> list[Refused]:
        """Returns the configurations that cannot be had, those first whose programs were made and did not fit."""
        made = {one.estimate.config for one in self.made}
        failed = [one for one in self.failed if one.config not in made]
        gone = made | {one.config for one in failed}
        return [*failed, *(one for one in self.explored.refused if one.config not in gone)]

    def added_to(self, plan: Plan) -> Plan:
        """Returns the chosen plan with what the search found beside it."""
        bound_s = min(self.explored.bound_s, self.chosen.step_s)
        tuning = Autotuning(self.explored.requested_by[self.chosen.estimate.config], self.explored.num_requested)
        predicted = replace(plan.predicted, at_least_s=bound_s)
        found = replace(plan, predicted=predicted, autotuning=tuning, alternatives=tuple(self.alternatives()))
        return replace(found, compared=self.compared) if self.compared else found

    def alternatives(self) -> Iterator[Alternative]:
        """Yields the alternatives: other plans, best first, then configurations cut off, then refused ones."""
        for one in self.lost():
            yield Alternative(self.name(one.estimate), one.step_s, one.estimate.bound_s, one.made is not None, one.why)
        for cut, why in self.cut_off():
            yield Alternative(
                str(cut.config), None, cut.bound_s, is_exact=False, why=f"cut off before the end of its search: {why}"
            )
        for refused in self.refused():
            yield Alternative(str(refused.config), None, 0.0, is_exact=False, why=refused.why)

    def json(self) -> dict[str, Any]:
        """Returns what a program reads."""
        one = self.chosen.estimate
        return {
            "version": 1,
            "cluster": self.cluster,
            "budget_bytes": self.budget_bytes,
            "plan": _plan_json(one),
            "predicted_step_s": self.chosen.step_s,
            "predicted_peak_bytes": list(self.chosen.peak_bytes),
            **_compiled_json(self.chosen),
            **_estimate_json(one),
            "bound_s": min(self.explored.bound_s, self.chosen.step_s),
            "is_complete": self.explored.is_complete,
            "grouped": [{"layers": count, "groups": self.groups} for count in self.layers],
            "found_by": self.explored.requested_by[one.config],
            "num_planned": self.explored.num_requested,
            "alternatives": [_lost_json(other) for other in self.lost()],
            "cut_off": [_cut_json(other) | {"why": why} for other, why in self.cut_off()],
            "refused": [_config_json(other.config) | {"why": other.why} for other in self.refused()],
            "passed_over": [
                _config_json(config) | {"bound_s": bound_s}
                for config, bound_s in sorted(self.explored.passed_over.items())
            ],
        }


def _compiled_json(chosen: MadePlan) -> dict[str, Any]:
    """Returns the figures of a plan as it was compiled; nothing where it was not."""
    if chosen.compiled_s is None:
        return {}
    return {"compiled_step_s": chosen.compiled_s, "compiled_peak_bytes": chosen.compiled_bytes}


def _config_json(config: PlanConfig) -> dict[str, Any]:
    found: dict[str, Any] = {
        "stages": config.stages,
        **({"replicas": config.replicas} if config.replicas > 1 else {}),
        "mesh": list(config.mesh),
        **({"meshes": [list(mesh) for mesh in config.meshes]} if config.meshes else {}),
        "micro_batches": config.micro_batches,
        "remat": config.remat,
    }
    return found if config.micro_batches else {key: value for key, value in found.items() if key != "micro_batches"}


def _plan_json(one: Estimate) -> dict[str, Any]:
    """Returns what says a plan, as options of the command line do."""
    own = {"remat": BY_STAGE} if one.recomputes else {}
    order = {"device_order": list(one.device_order)} if one.device_order else {}
    return _config_json(one.config) | own | order | {"schedule": one.schedule}


def _estimate_json(one: Estimate) -> dict[str, Any]:
    """Returns the figures of a plan as it was estimated; the peaks of the ranks where it was told what they need."""
    peaks = (
        {"estimated_peak_bytes": [ceil(size) for size in one.peak_bytes]}
        if len(one.peak_bytes) == one.config.stages
        else {}
    )
    return {"estimated_step_s": one.step_s, **peaks}


def _lost_json(one: Lost) -> dict[str, Any]:
    """Returns an alternative: its estimate, and what its programs are predicted to take if they were made."""
    made = {"predicted_step_s": one.made.step_s, "predicted_peak_bytes": list(one.made.peak_bytes)} if one.made else {}
    return (
        _plan_json(one.estimate)
        | made
        | _estimate_json(one.estimate)
        | {"bound_s": one.estimate.bound_s, "why": one.why}
    )


def _cut_json(one: CutOff) -> dict[str, Any]:
    """Returns a configuration that was not planned to its end, with its bound.

    The estimate of a pipeline is added if that was too slow.
    """
    found = _config_json(one.config) | {"bound_s": one.bound_s}
    return found | {"estimated_step_s": one.estimated_s} if one.estimated_s else found


def _counts(explored: Explored) -> str:
    return ", ".join(f"{count} for {name}" for name, count in explored.num_requested.items())


def _step(one: Lost) -> str:
    """Returns the step of a plan that was not taken; `about` says that it is an estimate."""
    return format_seconds(one.step_s) if one.made else f"about {format_seconds(one.step_s)}"


def _parts(one: Estimate) -> str:
    parts = (("compute", one.compute_s), ("collectives", one.collectives_s), ("idle", one.idle_s))
    return ", ".join(f"{_part(seconds, one.step_s):.0%} {name}" for name, seconds in parts)


def _part(seconds: float, step_s: float) -> float:
    """Returns what part of a step some time is; none, where nothing is computed and the step takes no time."""
    return seconds / step_s if step_s else 0.0


def _loss(one: Estimate, best: Estimate) -> str:
    """Returns by what a plan loses to another, both as they were estimated."""
    pairs = (
        ("compute", one.compute_s - best.compute_s),
        ("collectives", one.collectives_s - best.collectives_s),
        ("idle time", one.idle_s - best.idle_s),
    )
    words = [
        f"{_part(seconds, best.step_s):+.1%} {name}" for name, seconds in pairs if abs(seconds) > NOTABLE * best.step_s
    ]
    slower = _part(one.step_s - best.step_s, best.step_s)
    return f"by estimates {abs(slower):.1%} {'slower' if slower >= 0 else 'faster'}: {', '.join(words) or 'hardly'}"
