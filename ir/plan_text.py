"""A plan of an SPMD program in words: what it comes to, and where time and memory go, the largest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rhino.ir.spmd_plan import Cost, Dims, SpmdPlan, Tensor, dims_text, folded, num_parts
from rhino.ir.tally import EMPTY, Count, Tally
from rhino.ir.units import format_bytes, format_seconds


def explain_text(plan: SpmdPlan, num_rows: int = 20) -> str:
    """Returns the totals of a plan, and `num_rows` of its arguments, results and collectives each; `[*]` stands for numbers that differ."""
    return "\n".join([*_totals(plan), *_tensors(plan, num_rows), *_collectives(plan, num_rows)])


def tally_of(costs: Iterable[Cost]) -> Tally:
    """Returns collectives by kind."""
    return sum((Tally({one.kind: Count(one.count, one.num_bytes)}) for one in costs), EMPTY)


def _totals(plan: SpmdPlan) -> list[str]:
    said = plan.predicted
    gap = 1 - said.at_least_s / said.step_s if said.step_s else 0.0
    return [
        f"{plan.source.function} on mesh {', '.join(f'{name}={size}' for name, size in plan.mesh)}, {plan.form} form",
        f"  step   {format_seconds(said.step_s)}, of which {format_seconds(said.communication_s)} in collectives; "
        f"no plan takes less than {format_seconds(said.at_least_s)} (gap {max(gap, 0.0):.2%})",
        f"  memory {format_bytes(said.peak_bytes)} of {format_bytes(said.budget_bytes)} per device",
    ]


def _tensors(plan: SpmdPlan, num_rows: int) -> list[str]:
    lines = []
    for title, tensors in (("arguments", plan.arguments), ("results that are no argument's next value", _new_results(plan))):
        rows = _alike(plan, tensors)
        if rows:
            lines += [f"{title}, bytes per device:", *_table(rows[:num_rows]), *_more(len(rows), num_rows)]
    return lines


def _alike(plan: SpmdPlan, tensors: Sequence[Tensor]) -> list[tuple[str, ...]]:
    """Returns a row for all tensors that differ in the numbers of their paths alone; what takes most memory comes first."""
    mesh = dict(plan.mesh)
    groups: dict[tuple[str, str, Dims], list[Tensor]] = {}
    for one in tensors:
        groups.setdefault((folded(one.path), one.kind, one.dims), []).append(one)
    rows = []
    for (path, kind, dims), ones in groups.items():
        size = ones[0].num_bytes // num_parts(ones[0], mesh) * len(ones)
        name = path if len(ones) > 1 else ones[0].path
        rows.append((-size, (format_bytes(size), f"{len(ones)} x {kind}", dims_text(dims), name)))
    return [row for _, row in sorted(rows)]


def _new_results(plan: SpmdPlan) -> list[Tensor]:
    carried = {one.alias for one in plan.arguments}
    return [one for number, one in enumerate(plan.results) if number not in carried]


def _collectives(plan: SpmdPlan, num_rows: int) -> list[str]:
    if not plan.costs:
        return ["no collectives"]
    table = [
        (format_seconds(one.seconds), f"{one.count} x {one.kind}", format_bytes(one.num_bytes), one.place) for one in plan.costs[:num_rows]
    ]
    totals = [f"  {line}" for line in tally_of(plan.costs).table().splitlines()]
    return ["collectives, seconds and bytes per step and device:", *totals, *_table(table), *_more(len(plan.costs), num_rows)]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _more(count: int, shown: int) -> list[str]:
    return [f"  and {count - shown} more"] if count > shown else []
