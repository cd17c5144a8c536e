"""What a search of whole plans says for itself: the chosen plan, what the others lost by, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.units import format_bytes, format_seconds
from rhino.strategies.whole.base import CutOff, Estimate, Explored, Refused, Shape

SHOWN: Final = 5
"""How many of the shapes that lost are printed, best first, and how many of those that are none; the JSON has them all."""

NOTABLE: Final = 0.001
"""The share of a step below which a difference in one of its parts is not worth a word."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The plan that was made: its shape as estimated, and what it came to once its programs were there, where they were made."""

    estimate: Estimate
    step_s: float
    peak_bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A search and its end.

    `failed` are shapes whose programs were made, and did not fit; `budget_bytes` is per device. Of a deep step, shapes were compared with
    so many `groups` for the alike `layers` of each stretch, and what is said of others than the chosen one is of these.
    """

    explored: Explored
    chosen: Chosen
    failed: tuple[Refused, ...]
    cluster: str
    budget_bytes: float
    layers: tuple[int, ...] = ()
    groups: int = 0

    def text(self) -> str:
        """Returns the summary."""
        one = self.chosen.estimate
        bound_s = min(self.explored.bound_s, self.chosen.step_s)
        gap = 1 - bound_s / self.chosen.step_s if self.chosen.step_s else 0.0
        ended = "" if self.explored.is_complete else "; the search was ended before its end"
        lines = [
            f"{_named(one)}: step {format_seconds(self.chosen.step_s)}, no plan looked at can take less than {format_seconds(bound_s)} "
            f"({gap:.1%}); peak {format_bytes(max(self.chosen.peak_bytes))} of {format_bytes(self.budget_bytes)} per device",
            f"  {_parts(one)}",
            f"  found by {self.explored.asked_by[one.shape]}, the best of {len(self.explored.outcomes)} shapes that were planned "
            f"({_counts(self.explored)}){ended}",
        ]
        lines += [
            f"  compared with {count:,} alike layers in {self.groups} groups, each as if its layers lay alike" for count in self.layers
        ]
        lost = self.lost()
        lines += [f"  {_named(other)}: {format_seconds(other.step_s)}, {why}" for other, why in lost[:SHOWN]]
        if len(lost) > SHOWN:
            lines.append(f"  and {len(lost) - SHOWN} more that are slower")
        if cut_off := self.cut_off():
            lines.append(f"  {len(cut_off)} were not planned to their end:")
            lines += [f"    {_cut_name(other)}: {why}" for other, why in cut_off[:SHOWN]]
            if len(cut_off) > SHOWN:
                lines.append(f"    and {len(cut_off) - SHOWN} more that take at least {format_seconds(cut_off[SHOWN][0].step_s)}")
        none = [*self.failed, *self.explored.refused]
        lines += [f"  {other.shape}: {other.why}" for other in none[:SHOWN]]
        if len(none) > SHOWN:
            lines.append(f"  and {len(none) - SHOWN} more that cannot be had")
        return "\n".join(lines)

    def lost(self) -> list[tuple[Estimate, str]]:
        """Returns the shapes that could be had and were not taken, best first, with what they lose by."""
        failed = {one.shape for one in self.failed}
        taken = self.chosen.estimate
        return [(one, _loss(one, taken)) for one in self.explored.ranked if one.shape != taken.shape and one.shape not in failed]

    def cut_off(self) -> list[tuple[CutOff, str]]:
        """Returns the shapes that were not planned to their end, the fastest first, with why."""
        every = sorted(self.explored.cut_off, key=lambda one: one.step_s)
        return [(one, _cut(one, self.chosen.estimate)) for one in every]

    def json(self) -> dict[str, Any]:
        """Returns what a program reads."""
        one = self.chosen.estimate
        return {
            "version": 1,
            "cluster": self.cluster,
            "budget_bytes": self.budget_bytes,
            "plan": _shape_json(one.shape) | {"schedule": one.schedule},
            "predicted_step_s": self.chosen.step_s,
            "predicted_peak_bytes": list(self.chosen.peak_bytes),
            "estimated_step_s": one.step_s,
            "bound_s": min(self.explored.bound_s, self.chosen.step_s),
            "is_complete": self.explored.is_complete,
            "grouped": [{"layers": count, "groups": self.groups} for count in self.layers],
            "found_by": self.explored.asked_by[one.shape],
            "num_planned": self.explored.num_asked,
            "alternatives": [
                _shape_json(other.shape)
                | {"schedule": other.schedule, "predicted_step_s": other.step_s, "bound_s": other.bound_s, "why": why}
                | {"predicted_peak_bytes": list(other.peak_bytes)}
                for other, why in self.lost()
            ],
            "cut_off": [_shape_json(other.shape) | {"bound_s": other.bound_s, "why": why} for other, why in self.cut_off()],
            "refused": [_shape_json(other.shape) | {"why": other.why} for other in (*self.failed, *self.explored.refused)],
            "passed_over": [_shape_json(shape) | {"bound_s": bound_s} for shape, bound_s in sorted(self.explored.passed_over.items())],
        }


def _shape_json(shape: Shape) -> dict[str, Any]:
    found: dict[str, Any] = {"stages": shape.stages, "mesh": list(shape.mesh), "micro_batches": shape.micro_batches, "keep": shape.keep}
    return found if shape.micro_batches else {key: value for key, value in found.items() if key != "micro_batches"}


def _counts(explored: Explored) -> str:
    return ", ".join(f"{count} for {name}" for name, count in explored.num_asked.items())


def _named(one: Estimate) -> str:
    return f"{one.shape}, {one.schedule}" if one.schedule else str(one.shape)


def _cut_name(one: CutOff) -> str:
    return _named(one.plans[0]) if one.plans else str(one.shape)


def _cut(one: CutOff, best: Estimate) -> str:
    """Returns why a shape was not planned to its end."""
    if one.plans:
        return f"{format_seconds(one.plans[0].step_s)} by its estimate without regard to memory, {_loss(one.plans[0], best)}"
    memory = " in the memory there is" if one.by_memory else ""
    slower = one.bound_s / best.step_s - 1
    return f"at least {format_seconds(one.bound_s)}{memory}, {f'{slower:.1%} slower' if slower > 0 else 'no faster than what was known'}"


def _parts(one: Estimate) -> str:
    return f"{one.compute_s / one.step_s:.0%} compute, {one.collectives_s / one.step_s:.0%} collectives, {one.idle_s / one.step_s:.0%} idle"


def _loss(one: Estimate, best: Estimate) -> str:
    """Returns by what a shape loses."""
    pairs = (
        ("compute", one.compute_s - best.compute_s),
        ("collectives", one.collectives_s - best.collectives_s),
        ("idle time", one.idle_s - best.idle_s),
    )
    words = [f"{seconds / best.step_s:+.1%} {name}" for name, seconds in pairs if abs(seconds) > NOTABLE * best.step_s]
    slower = one.step_s / best.step_s - 1
    return f"{slower:.1%} slower: {', '.join(words) or 'hardly'}" if slower >= 0 else "slower once its programs were made"
