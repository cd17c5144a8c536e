"""The page of a plan: one file of HTML with all that is known of it, which loads nothing from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rhino.ir.collectives import tally_module
from rhino.ir.instructions import Layout, Run
from rhino.ir.mlir import ir, make_context
from rhino.ir.plan_folder import WholePlan
from rhino.ir.plan_text import alike, new_results, sent_s
from rhino.ir.spmd_plan import Cost, SpmdPlan, dims_text
from rhino.ir.step_memory import held_over_time, slots_held
from rhino.ir.step_memory import local_bytes as layout_bytes
from rhino.ir.tally import EMPTY, Tally
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.whole_plan import costs_of
from rhino.passes.whole_text import arguments_of, dims, kind, lost, program_runs, ways_of
from rhino.passes.why import Why, added
from rhino.strategies.simulate import Simulation, simulate
from rhino.tools.drawing import Curve, Drawing, memory_curve, mesh_drawing, tensor_drawing, timeline_drawing

MOST_ROWS: Final = 120
"""Rows of a table; what they leave out is said."""

MOST_POINTS: Final = 600
"""Points of a curve of memory."""

_TEMPLATES: Final = Path(__file__).parent / "templates"
_SHAPE: Final = re.compile(r".*\[(.*)\]")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: what it says, what it is sorted by (a number, or None: its text), a bar of a share, and a drawing."""

    text: str
    key: float | None = None
    share: float | None = None
    drawing: Drawing | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table, sorted when it is written; `note` says what it is of, `left_out` how many rows it lacks."""

    name: str
    title: str
    note: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a whole: its name, its share, and what it is in words."""

    name: str
    share: float
    words: str


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """Memory over the schedule of a device: a curve, and what is said of it."""

    title: str
    curve: Curve
    peak: str
    limit: str


@dataclass(frozen=True, slots=True)
class Page:
    """All that the template shows."""

    title: str
    subtitle: str
    tiles: tuple[tuple[str, str, str], ...]
    parts: tuple[Part, ...]
    mesh: Drawing
    timeline: Drawing | None
    phases: tuple[str, ...]
    memory: tuple[MemoryChart, ...]
    tables: tuple[Table, ...]
    facts: tuple[tuple[str, str], ...]
    cluster: str


def report_html(plan: SpmdPlan | WholePlan, reasons: Sequence[Why] = ()) -> str:
    """Returns the page of a plan; `reasons` are what else was possible, where somebody has asked."""
    page = _spmd_page(plan, reasons) if isinstance(plan, SpmdPlan) else _whole_page(plan)
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("plan.html").render(page=page)


# One program


def _spmd_page(plan: SpmdPlan, reasons: Sequence[Why]) -> Page:
    said = plan.predicted
    rest = max(0.0, said.step_s - said.compute_s - said.communication_s)
    gap = max(0.0, 1 - said.at_least_s / said.step_s) if said.step_s else 0.0
    names = ", ".join(f"{name}={size}" for name, size in plan.mesh)
    parts = (("compute", said.compute_s), ("collectives", said.communication_s), ("launch and slices", rest))
    peak = f"{format_bytes(said.peak_bytes)} at time {plan.memory.peak_time} of {plan.memory.num_times}"
    where = f", in {plan.memory.peak_op}" if plan.memory.peak_op else ""
    curve = memory_curve(plan.memory.curve, said.budget_bytes, plan.memory.num_times)
    return Page(
        title=plan.source.function,
        subtitle=f"one program on mesh {names}, {plan.form} form",
        tiles=(
            ("step", format_seconds(said.step_s), f"no plan takes less than {format_seconds(said.at_least_s)}, gap {gap:.2%}"),
            ("in collectives", format_seconds(said.communication_s), f"{_share(said.communication_s, said.step_s)} of the step"),
            ("memory", format_bytes(said.peak_bytes), f"of {format_bytes(said.budget_bytes)} per device"),
            ("devices", str(prod(size for _, size in plan.mesh)), names),
        ),
        parts=tuple(Part(name, seconds / (said.step_s or 1.0), format_seconds(seconds)) for name, seconds in parts if seconds),
        mesh=mesh_drawing(plan.mesh),
        timeline=None,
        phases=(),
        memory=(MemoryChart("every device", curve, peak + where, format_bytes(said.budget_bytes)),),
        tables=tuple(table for table in _spmd_tables(plan, reasons) if table.rows),
        facts=(
            ("asked", "; ".join(f"{key}: {value}" for key, value in plan.asked.items()) or "nothing beside cluster, mesh and budget"),
            ("program", f"{plan.source.function}, {sum(plan.source.ops.values())} ops, sha256 {plan.source.sha256}"),
            ("versions", ", ".join(f"{name} {version}" for name, version in plan.versions.items()) or "-"),
        ),
        cluster="\n".join(plan.cluster),
    )


def _spmd_tables(plan: SpmdPlan, reasons: Sequence[Why]) -> Iterable[Table]:
    mesh = dict(plan.mesh)
    rows = [
        (
            _seconds_cell(one.compute_s, plan.predicted.step_s),
            _seconds_cell(one.collectives_s, plan.predicted.step_s),
            _bytes_cell(one.num_bytes),
            Cell(f"{one.count} x {one.kind}", one.count),
            Cell(str(one.shares), one.shares),
            Cell(one.how),
            Cell(one.name),
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
                _bytes_cell(size, plan.predicted.peak_bytes),
                _seconds_cell(sent_s(plan, path), plan.predicted.step_s),
            )
            for path, ones, size in alike(plan, tensors)
        ]
        note = "Blocks over devices; [*] stands for numbers that differ, those of layers. Bytes are of all of them on a device."
        yield _table(name, title, note, ("blocks", "name", "tensors", "sharding", "bytes", "sent in"), lie)
    head = ("compute", "waits", "results", "ops", "shared by", "how operands are needed and results come", "scope", "line")
    yield _table("ops", "Ops", "Seconds of compute and of the collectives that ops wait for, per step and device.", head, rows)
    yield from _communication(plan)
    at_peak = [
        (_bytes_cell(one.num_bytes, plan.predicted.peak_bytes), Cell(str(one.count), one.count), Cell(one.kind), Cell(one.name))
        for one in plan.memory.alive
    ]
    yield _table("alive", "Alive at the peak", "Bytes on a device.", ("bytes", "tensors", "what", "name"), at_peak)
    yield _reasons(plan, reasons)
    rivals = [
        (
            Cell(one.mesh),
            Cell("-" if one.step_s is None else format_seconds(one.step_s), one.step_s),
            _plain_seconds(one.at_least_s),
            Cell(one.why),
        )
        for one in plan.rivals
    ]
    yield _table(
        "meshes", "Other meshes", "The best plan of each mesh that was looked at.", ("mesh", "step", "at least", "why not"), rivals
    )


def _communication(plan: SpmdPlan) -> Iterable[Table]:
    total = plan.predicted.step_s
    by_kind = _summed(plan.costs, lambda one: one.kind)
    rows = [
        (Cell(name), _seconds_cell(seconds, total), Cell(str(count), count), _bytes_cell(num_bytes))
        for name, count, num_bytes, seconds in by_kind
    ]
    yield _table("kinds", "Communication by kind", "Per step and device.", ("kind", "seconds", "number", "bytes"), rows)
    by_scope = _summed(plan.costs, lambda one: _scope(one.reader or one.tensor))
    rows = [
        (Cell(name), _seconds_cell(seconds, total), Cell(str(count), count), _bytes_cell(num_bytes))
        for name, count, num_bytes, seconds in by_scope
    ]
    yield _table(
        "scopes",
        "Communication by layer",
        "By the scope that reads what is sent, or makes it.",
        ("scope", "seconds", "number", "bytes"),
        rows,
    )
    rows = [
        (
            _seconds_cell(one.seconds, total),
            Cell(f"{one.count} x {one.kind}", one.count),
            _bytes_cell(one.num_bytes),
            Cell(one.place),
            Cell(one.line),
        )
        for one in plan.costs
    ]
    yield _table(
        "collectives",
        "Collectives",
        "What is sent, for what, and the line that asks for it.",
        ("seconds", "number", "bytes", "what", "line"),
        rows,
    )


def _reasons(plan: SpmdPlan, reasons: Sequence[Why]) -> Table:
    rows = []
    for one in reasons:
        subject = f"{one.subject.name}, {one.subject.what}"
        for option in one.options:
            step, compute, collectives, peak, known = added(option.alternative, plan.predicted.step_s)
            parts = option.alternative.parts
            key = parts.step_s if parts else float("inf")
            rows.append(
                (
                    Cell(subject),
                    Cell(one.chosen),
                    Cell(option.how),
                    Cell(step, key),
                    Cell(compute),
                    Cell(collectives),
                    Cell(peak),
                    Cell(known),
                )
            )
    note = "What else was possible for the largest tensors and the longest ops, and what it would add, everything else chosen anew."
    return _table(
        "reasons", "Why not otherwise", note, ("what", "chosen", "instead", "step", "compute", "collectives", "peak", "known"), rows
    )


def _summed(costs: Sequence[Cost], name: Any) -> list[tuple[str, int, int, float]]:  # noqa: ANN401 - from a cost to a text
    found: dict[str, tuple[int, int, float]] = {}
    for one in costs:
        count, num_bytes, seconds = found.get(name(one), (0, 0, 0.0))
        found[name(one)] = (count + one.count, num_bytes + one.num_bytes, seconds + one.seconds)
    return sorted(((key, *row) for key, row in found.items()), key=lambda row: (-row[3], row[0]))


def _scope(name: str) -> str:
    """Returns the scope that an op stands in, without the function and the op."""
    return "/".join(part for part in name.split("/")[:-1] if not part.startswith("jit(")) or name


# A plan in stages


def _whole_page(plan: WholePlan) -> Page:
    about, step = plan.about, plan.step
    simulation = simulate(step, costs_of(plan))
    timeline = simulation.timeline
    busy = sum(timeline.busy_s(rank) for rank in range(step.num_ranks)) / step.num_ranks
    search = about.get("search") or {}
    peak = max(one.peak_bytes for one in simulation.memory)
    budget = search.get("budget_bytes")
    bound = f"no plan looked at takes less than {format_seconds(search['bound_s'])}" if search else ""
    end_s = timeline.end_s or 1.0
    return Page(
        title=str(about["source"]),
        subtitle=f"{about['stages']} stages, {about['micro_batches']} micro-batches, {about['schedule']}, for {about['cluster']}",
        tiles=(
            ("step", format_seconds(timeline.end_s), bound),
            ("idle", _share(end_s - busy, end_s), "of the step, in the mean of the ranks"),
            ("memory", format_bytes(peak), f"of {format_bytes(budget)} per device" if budget else "on the device that holds most"),
            ("devices", str(step.num_ranks * step.mesh.num_devices), f"{step.num_ranks} ranks of {step.mesh}"),
        ),
        parts=(Part("busy", busy / end_s, format_seconds(busy)), Part("idle", 1 - busy / end_s, format_seconds(end_s - busy))),
        mesh=mesh_drawing((("rank", step.num_ranks), *step.mesh.axes)),
        timeline=timeline_drawing(timeline),
        phases=tuple(dict.fromkeys(span.task.phase for span in timeline.spans)),
        memory=tuple(_rank_memory(plan, simulation, rank, budget or peak) for rank in range(step.num_ranks)),
        tables=tuple(table for table in _whole_tables(plan, simulation) if table.rows),
        facts=(
            ("asked", "; ".join(f"{key}: {value}" for key, value in about.get("asked", {}).items()) or "-"),
            ("program", f"{about['source']}, sha256 {about['source_sha256']}"),
            (
                "found",
                f"by {search['found_by']}, {sum(search['num_planned'].values())} shapes were planned" if search else "as it was asked for",
            ),
        ),
        cluster="\n".join(about.get("cluster_file", [str(about["cluster"])])),
    )


def _rank_memory(plan: WholePlan, simulation: Simulation, rank: int, limit: float) -> MemoryChart:
    held = [(at, num_bytes) for at, whose, num_bytes in held_over_time(plan.step, plan.about["predicted_temp_bytes"]) if whose == rank]
    size = -(-len(held) // MOST_POINTS)
    points = [max(held[start : start + size], key=lambda one: one[1]) for start in range(0, len(held), size)] if held else []
    peak = simulation.memory[rank]
    curve = memory_curve(points, limit, len(plan.step.instructions))
    words = f"{format_bytes(peak.peak_bytes)} at instruction {peak.peak_at} of {len(plan.step.instructions)}"
    return MemoryChart(f"rank {rank}", curve, words, format_bytes(limit))


def _whole_tables(plan: WholePlan, simulation: Simulation) -> Iterable[Table]:
    mesh, end_s = dict(plan.step.mesh.axes), simulation.timeline.end_s
    rows = [
        (
            Cell(f"rank {rank}", rank),
            Cell(f"{simulation.timeline.idle(rank):.1%}", simulation.timeline.idle(rank), simulation.timeline.idle(rank)),
            _seconds_cell(simulation.timeline.busy_s(rank), end_s),
            _bytes_cell(memory.peak_bytes, max(one.peak_bytes for one in simulation.memory)),
            Cell(str(memory.peak_micro_batches), memory.peak_micro_batches),
        )
        for rank, memory in enumerate(simulation.memory)
    ]
    yield _table("ranks", "Ranks", "", ("rank", "idle", "busy", "peak", "micro-batches at a time"), rows)
    rows = [
        (
            _seconds_cell(one.runs * one.seconds, end_s),
            Cell(f"{one.runs} x {format_seconds(one.seconds)}", one.runs),
            _bytes_cell(one.temp_bytes),
            Cell(f"rank {one.rank}", one.rank),
            Cell(f"{one.phase} of stage {one.stage}"),
            Cell(one.name),
        )
        for one in program_runs(plan)
    ]
    yield _table(
        "programs",
        "Programs",
        "Seconds in a step; bytes that a run takes beside what it reads and gives.",
        ("seconds", "runs", "bytes", "rank", "task", "program"),
        rows,
    )
    rows = [
        (
            _seconds_cell(one.seconds, end_s),
            Cell(f"{one.count} from rank {one.giver} to rank {one.taker}", one.count),
            _bytes_cell(one.num_bytes),
        )
        for one in ways_of(plan, simulation)
    ]
    yield _table("transfers", "Transfers", "Between ranks, per step and device.", ("seconds", "number", "bytes"), rows)
    rows = [
        (Cell(task), Cell(kind_of), Cell(str(count.num), count.num), _bytes_cell(count.num_bytes))
        for task, tally in _collectives_by_task(plan)
        for kind_of, count in tally.counts.items()
    ]
    yield _table("kinds", "Collectives by stage and kind", "Within ranks, per step and device.", ("stage", "kind", "number", "bytes"), rows)
    rows = [
        (
            Cell("", None, None, tensor_drawing(one.layout.shape, one.layout.dims, mesh)),
            Cell(one.name),
            Cell(f"rank {one.rank}", one.rank),
            Cell(f"{one.count} x {kind(one.layout)}", one.count),
            Cell(dims(one.layout)),
            _bytes_cell(one.num_bytes, simulation.memory[one.rank].peak_bytes),
        )
        for one in arguments_of(plan)
    ]
    note = "Blocks over the devices of a rank; [*] stands for numbers that differ. Bytes are of all of them on a device."
    yield _table("arguments", "Arguments", note, ("blocks", "name", "rank", "tensors", "sharding", "bytes"), rows)
    yield _table(
        "alive",
        "Alive at the peak",
        "Bytes on a device of the rank, after the instruction.",
        ("bytes", "rank", "tensors", "what"),
        list(_alive(plan, simulation)),
    )
    search = plan.about.get("search")
    rows = [
        (Cell(what), Cell("-" if seconds is None else format_seconds(seconds), seconds), Cell(why))
        for what, seconds, why in (lost(search) if search else ())
    ]
    yield _table("losers", "What else was looked at", "As it was estimated.", ("shape", "step", "why not"), rows)


def _collectives_by_task(plan: WholePlan) -> list[tuple[str, Tally]]:
    """Returns the collectives of a step by stage; a program's own are as many as it runs."""
    context = make_context()
    own: dict[int, Tally] = {}
    found: dict[str, Tally] = {}
    for one in plan.step.instructions:
        if isinstance(one, Run):
            if one.program not in own:
                own[one.program] = tally_module(ir.Module.parse(plan.modules[plan.step.programs[one.program].module], context))
            task = f"{one.task.phase} of stage {one.task.stage}"
            found[task] = found.get(task, EMPTY) + own[one.program]
    return [(task, tally) for task, tally in found.items() if tally.counts]


def _alive(plan: WholePlan, simulation: Simulation) -> Iterable[tuple[Cell, ...]]:
    step = plan.step
    made: dict[int, str] = {}
    for one in step.instructions:
        if isinstance(one, Run):
            made |= dict.fromkeys(one.outputs, step.programs[one.program].name)
    rows: dict[tuple[int, str], list[int]] = {}
    for rank, memory in enumerate(simulation.memory):
        for slot in slots_held(step, memory.peak_at, rank):
            layout: Layout = step.slots[slot].layout
            what = f"{kind(layout)}, {'given by ' + made[slot] if slot in made else 'fed or received'}"
            rows.setdefault((rank, what), []).append(layout_bytes(layout, step.mesh))
    for (rank, what), sizes in sorted(rows.items(), key=lambda row: (-sum(row[1]), row[0])):
        yield (
            _bytes_cell(sum(sizes), simulation.memory[rank].peak_bytes),
            Cell(f"rank {rank}", rank),
            Cell(str(len(sizes)), len(sizes)),
            Cell(what),
        )


# Cells


def _table(name: str, title: str, note: str, head: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(name, title, note, head, tuple(rows[:MOST_ROWS]), max(0, len(rows) - MOST_ROWS))


def _seconds_cell(seconds: float, of: float) -> Cell:
    return Cell(format_seconds(seconds) if seconds else "-", seconds, seconds / of if of else None)


def _plain_seconds(seconds: float) -> Cell:
    return Cell(format_seconds(seconds) if seconds else "-", seconds)


def _bytes_cell(num_bytes: float, of: float = 0.0) -> Cell:
    return Cell(format_bytes(num_bytes), num_bytes, num_bytes / of if of else None)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _shape(kind: str) -> tuple[int, ...]:
    found = _SHAPE.fullmatch(kind)
    return tuple(map(int, found[1].split(","))) if found and found[1] else ()
