"""The page of a plan of one program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Final

from rhino.ir.plan.spmd_plan import Cost, SpmdPlan, dims_text
from rhino.ir.plan.spmd_text import alike, new_results, sent_s
from rhino.ir.units import PEAK, format_bytes, format_seconds
from rhino.passes.planner.why import Why
from rhino.tools.drawing import memory_curve, mesh_drawing, tensor_drawing
from rhino.tools.page import Cell, MemoryChart, Page, PagePart, Row, Table, bytes_cell, reasons_table, seconds_cell, share_text, table

_INSIDE: Final = re.compile(r"^jit\([^)]*\)/")
"""What the scopes of all ops begin with."""

_SHAPE: Final = re.compile(r".*\[(.*)\]")


def spmd_page(plan: SpmdPlan, reasons: Sequence[Why]) -> Page:
    """Returns the page of a plan of one program; `reasons` are what else was possible, where somebody has asked."""
    said = plan.predicted
    rest = max(0.0, said.step_s - said.compute_s - said.communication_s)
    gap = max(0.0, 1 - said.at_least_s / said.step_s) if said.step_s else 0.0
    names = ", ".join(f"{name}={size}" for name, size in plan.mesh)
    parts = (("compute", said.compute_s), ("collectives", said.communication_s), ("launch and slices", rest))
    counted = format_bytes(max((num_bytes for _, num_bytes in plan.memory.curve), default=0))
    where = f", in {plan.memory.peak_op}" if plan.memory.peak_op else ""
    rows = f"the curve is of the search's rows, at most {counted} at time {plan.memory.peak_time} of {plan.memory.num_times}{where}"
    curve = memory_curve(plan.memory.curve, plan.memory.num_times - 1, said.peak_bytes, said.budget_bytes)
    return Page(
        title=plan.source.function,
        subtitle=f"one program on mesh {names}, {plan.form} form",
        tiles=(
            ("step", format_seconds(said.step_s), f"no plan takes less than {format_seconds(said.at_least_s)}, gap {gap:.2%}"),
            ("in collectives", format_seconds(said.communication_s), f"{share_text(said.communication_s, said.step_s)} of the step"),
            (PEAK, format_bytes(said.peak_bytes), f"of {format_bytes(said.budget_bytes)} per device"),
            ("devices", str(prod(size for _, size in plan.mesh)), names),
        ),
        parts=tuple(PagePart(name, seconds / (said.step_s or 1.0), format_seconds(seconds)) for name, seconds in parts if seconds),
        mesh=mesh_drawing(plan.mesh),
        timeline=None,
        phases=(),
        memory=(MemoryChart("every device", curve, f"{format_bytes(said.peak_bytes)}; {rows}", format_bytes(said.budget_bytes)),),
        tables=tuple(one for one in _spmd_tables(plan, reasons) if one.rows),
        facts=(
            ("asked", "; ".join(f"{key}: {value}" for key, value in plan.asked.items()) or "nothing beside cluster, mesh and budget"),
            ("program", f"{plan.source.function}, {sum(plan.source.ops.values())} ops, sha256 {plan.source.sha256}"),
            ("versions", ", ".join(f"{name} {version}" for name, version in plan.versions.items()) or "-"),
        ),
        cluster="\n".join(plan.cluster),
    )


def _spmd_tables(plan: SpmdPlan, reasons: Sequence[Why]) -> Iterable[Table]:
    mesh = dict(plan.mesh)
    rows: list[Row] = [
        (
            seconds_cell(one.compute_s, plan.predicted.step_s),
            seconds_cell(one.collectives_s, plan.predicted.step_s),
            bytes_cell(one.num_bytes),
            Cell(f"{one.count} x {one.kind}", one.count),
            Cell(str(one.shares), one.shares),
            Cell(one.how),
            Cell(_INSIDE.sub("", one.name)),
            Cell(one.line),
        )
        for one in plan.works
    ]
    for name, title, tensors in (("arguments", "Arguments", plan.arguments), ("results", "New results", new_results(plan))):
        lie = [
            (
                Cell("", None, None, tensor_drawing(_shape(ones[0].kind), ones[0].dims, mesh)),
                Cell(path),
                Cell(f"{len(ones)} x {ones[0].kind}", ones[0].num_bytes),
                Cell(dims_text(ones[0].dims)),
                bytes_cell(size, plan.predicted.peak_bytes),
                seconds_cell(sent_s(plan, path), plan.predicted.step_s),
            )
            for path, ones, size in alike(plan, tensors)
        ]
        note = "Blocks over devices; [*] stands for numbers that differ, those of layers. Bytes are of all of them on a device."
        yield table(name, title, note, ("blocks", "name", "tensors", "sharding", "bytes", "sent in"), lie)
    head = ("compute", "waits", "results", "ops", "shared by", "operands -> results", "scope", "line")
    yield table("ops", "Ops", "Seconds of compute and of the collectives that ops wait for, per step and device.", head, rows)
    yield from _communication(plan)
    at_peak = [
        (bytes_cell(one.num_bytes, plan.predicted.peak_bytes), Cell(str(one.count), one.count), Cell(one.kind), Cell(one.name))
        for one in plan.memory.alive
    ]
    yield table("alive", "Alive at the peak", "Bytes on a device.", ("bytes", "tensors", "what", "name"), at_peak)
    note = "What else was possible for the largest tensors and the longest ops, and what it would add, everything else chosen anew."
    yield reasons_table(reasons, note, ("step", "compute", "collectives", PEAK))
    rivals = [
        (
            Cell(one.mesh),
            Cell("-" if one.step_s is None else format_seconds(one.step_s), one.step_s),
            seconds_cell(one.at_least_s),
            Cell(one.why),
        )
        for one in plan.rivals
    ]
    yield table("meshes", "Other meshes", "The best plan of each mesh that was looked at.", ("mesh", "step", "at least", "why not"), rivals)


def _communication(plan: SpmdPlan) -> Iterable[Table]:
    total = plan.predicted.step_s
    by_kind = _summed(plan.costs, lambda one: one.kind)
    rows: list[Row] = [
        (Cell(name), seconds_cell(seconds, total), Cell(str(count), count), bytes_cell(num_bytes))
        for name, count, num_bytes, seconds in by_kind
    ]
    yield table("kinds", "Communication by kind", "Per step and device.", ("kind", "seconds", "number", "bytes"), rows)
    by_scope = _summed(plan.costs, lambda one: _scope(one.reader or one.tensor))
    rows = [
        (Cell(name), seconds_cell(seconds, total), Cell(str(count), count), bytes_cell(num_bytes))
        for name, count, num_bytes, seconds in by_scope
    ]
    yield table(
        "scopes",
        "Communication by layer",
        "By the scope that reads what is sent, or makes it.",
        ("scope", "seconds", "number", "bytes"),
        rows,
    )
    rows = [
        (
            seconds_cell(one.seconds, total),
            Cell(f"{one.count} x {one.kind}", one.count),
            bytes_cell(one.num_bytes),
            Cell(one.place),
            Cell(one.line),
        )
        for one in plan.costs
    ]
    yield table(
        "collectives",
        "Collectives",
        "What is sent, for what, and the line that asks for it.",
        ("seconds", "number", "bytes", "what", "line"),
        rows,
    )


def _summed(costs: Sequence[Cost], name: Callable[[Cost], str]) -> list[tuple[str, int, int, float]]:
    found: dict[str, tuple[int, int, float]] = {}
    for one in costs:
        count, num_bytes, seconds = found.get(name(one), (0, 0, 0.0))
        found[name(one)] = (count + one.count, num_bytes + one.num_bytes, seconds + one.seconds)
    return sorted(((key, *row) for key, row in found.items()), key=lambda row: (-row[3], row[0]))


def _scope(name: str) -> str:
    """Returns the scope that an op stands in, without the function and the op."""
    return _INSIDE.sub("", name).rpartition("/")[0] or name


def _shape(kind: str) -> tuple[int, ...]:
    found = _SHAPE.fullmatch(kind)
    return tuple(map(int, found[1].split(","))) if found and found[1] else ()
