"""A plan of an SPMD program in words: what it comes to, and where time and memory go, the largest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isclose
from textwrap import shorten
from typing import Final

from rhino.ir.graph.collective_stats import EMPTY, CollectiveStats, Count
from rhino.ir.plan.spmd_plan import Cost, Dims, SpmdPlan, Tensor, dims_text, folded, num_parts
from rhino.ir.units import format_bytes, format_seconds, peak_text

# Characters of how an op runs; a loop's return has a spec for each value that it carries, and one row would make all as wide.
_HOW_WIDTH: Final = 90


def explain_text(plan: SpmdPlan, num_rows: int = 20) -> str:
    """Returns the totals of a plan, and `num_rows` of its tensors, ops and collectives each; `[*]` stands for numbers that differ."""
    sections = (totals(plan), _tensors(plan, num_rows), _works(plan, num_rows), _collectives(plan, num_rows), _memory(plan, num_rows))
    return "\n".join([*(line for lines in sections for line in lines), *_rivals(plan, num_rows)])


def stats_of(costs: Iterable[Cost]) -> CollectiveStats:
    """Returns collectives by kind."""
    return sum((CollectiveStats({one.kind: Count(one.count, one.num_bytes)}) for one in costs), EMPTY)


def differ(then: float, now: float) -> bool:
    """Says whether two figures differ by more than the rounding of sums."""
    return not isclose(then, now, rel_tol=1e-9)


def changes_of(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yields what is asked of one plan and otherwise, or not at all, of another."""
    for key in sorted({*then, *now}):
        if then.get(key) != now.get(key):
            yield f"{key}: {then.get(key, 'not asked')} -> {now.get(key, 'not asked')}"


def signed_seconds(seconds: float) -> str:
    """Returns a difference in seconds with its sign."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def signed_bytes(num_bytes: float) -> str:
    """Returns a difference in bytes with its sign."""
    return f"{'-' if num_bytes < 0 else '+'}{format_bytes(abs(num_bytes))}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows of cells as indented lines whose columns stand below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def more(count: int, shown: int) -> list[str]:
    """Returns a line that says how many of `count` rows are not shown, if any."""
    return [f"  and {count - shown} more"] if count > shown else []


def sent_s(plan: SpmdPlan, name: str) -> float:
    """Returns the seconds of the collectives that move a tensor of this name (with `[*]` for its numbers)."""
    return sum(one.seconds for one in plan.costs if one.tensor == name)


def alike(plan: SpmdPlan, tensors: Sequence[Tensor]) -> list[tuple[str, list[Tensor], int]]:
    """Returns tensors in groups that differ in the numbers of their paths alone: name, tensors, bytes on a device; the largest first."""
    mesh = dict(plan.mesh)
    groups: dict[tuple[str, str, Dims], list[Tensor]] = {}
    for one in tensors:
        groups.setdefault((folded(one.path), one.kind, one.dims), []).append(one)
    rows = [
        (path if len(ones) > 1 else ones[0].path, ones, ones[0].num_bytes // num_parts(ones[0], mesh) * len(ones))
        for (path, _, _), ones in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def new_results(plan: SpmdPlan) -> list[Tensor]:
    """Returns the results that are not an argument's next value."""
    carried = {one.alias for one in plan.arguments}
    return [one for number, one in enumerate(plan.results) if number not in carried]


def totals(plan: SpmdPlan) -> list[str]:
    """Returns what a plan is of, what it takes and what it needs, a line each."""
    said = plan.predicted
    gap = 1 - said.at_least_s / said.step_s if said.step_s else 0.0
    rest = max(0.0, said.step_s - said.compute_s - said.communication_s)
    other = f", {format_seconds(rest)} to launch it and to cut blocks" if rest > 1e-4 * said.step_s else ""
    kept = f", {format_bytes(said.kept_bytes)} of it old state that is kept" if said.kept_bytes else ""
    return [
        f"{plan.source.function} on mesh {', '.join(f'{name}={size}' for name, size in plan.mesh)}, {plan.form} form",
        f"  step   {format_seconds(said.step_s)}: {format_seconds(said.compute_s)} of compute, {format_seconds(said.communication_s)} in "
        f"collectives{other}; no plan takes less than {format_seconds(said.at_least_s)} (gap {max(gap, 0.0):.2%})",
        f"  memory {peak_text(said.peak_bytes, said.budget_bytes)}{kept}",
    ]


def _tensors(plan: SpmdPlan, num_rows: int) -> list[str]:
    lines = []
    for title, tensors in (("arguments", plan.arguments), ("results that are no argument's next value", new_results(plan))):
        groups = alike(plan, tensors)
        rows = [
            (format_bytes(size), _seconds(sent_s(plan, name)), f"{len(ones)} x {ones[0].kind}", dims_text(ones[0].dims), name)
            for name, ones, size in groups
        ]
        if rows:
            lines += [f"{title}: bytes per device, seconds in which they are sent", *table(rows[:num_rows]), *more(len(rows), num_rows)]
    return lines


def _works(plan: SpmdPlan, num_rows: int) -> list[str]:
    if not plan.works:
        return []
    devices = 1
    for _, size in plan.mesh:
        devices *= size
    head = ("compute", "waits", "results", "ops", "shared by", "how", "where")
    rows = [
        (
            format_seconds(one.compute_s),
            _seconds(one.collectives_s),
            format_bytes(one.num_bytes),
            f"{one.count} x {one.kind}",
            f"{one.shares} of {devices}",
            shorten(one.how, _HOW_WIDTH, placeholder=" ..."),
            " at ".join(filter(None, (one.name, one.line))),
        )
        for one in plan.works[:num_rows]
    ]
    title = "ops: seconds of compute and of the collectives that they wait for, and bytes of their results, per step and device"
    return [title, *table([head, *rows]), *more(len(plan.works), num_rows)]


def _collectives(plan: SpmdPlan, num_rows: int) -> list[str]:
    if not plan.costs:
        return ["no collectives"]
    rows = [
        (
            format_seconds(one.seconds),
            f"{one.count} x {one.kind}",
            format_bytes(one.num_bytes),
            " at ".join(filter(None, (one.place, one.line))),
        )
        for one in plan.costs[:num_rows]
    ]
    totals = [f"  {line}" for line in stats_of(plan.costs).table().splitlines()]
    return ["collectives, seconds and bytes per step and device:", *totals, *table(rows), *more(len(plan.costs), num_rows)]


def _memory(plan: SpmdPlan, num_rows: int) -> list[str]:
    held = plan.memory.alive
    rows = [(format_bytes(one.num_bytes), f"{one.count} x {one.kind}", one.name) for one in held[:num_rows] if one.num_bytes]
    if not rows:
        return []
    where = f", in {plan.memory.peak_op}" if plan.memory.peak_op else ""
    title = f"alive at the peak (time {plan.memory.peak_time} of {plan.memory.num_times}{where}), bytes per device:"
    return [title, *table(rows), *more(len(held), num_rows)]


def _rivals(plan: SpmdPlan, num_rows: int) -> list[str]:
    if not plan.rivals:
        return []
    rows = [(format_seconds(one.step_s) if one.step_s is not None else "-", one.mesh, one.why) for one in plan.rivals]
    return ["other meshes:", *table(rows[:num_rows]), *more(len(rows), num_rows)]


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"
