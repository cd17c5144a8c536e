"""The page of a plan in stages: its timeline and the memory of its ranks as they are simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rhino.ir.cluster.cluster import parse_cluster
from rhino.ir.plan.folder import WholePlan
from rhino.ir.plan.instructions import Run, Step, Transfer
from rhino.ir.plan.step_memory import held_over_time, local_bytes, slots_held
from rhino.ir.units import PEAK, format_bytes, format_seconds
from rhino.passes.planner.staged_plan import costs_of
from rhino.passes.planner.staged_text import arguments_of, collectives_by_task, dims, kind, lost, program_runs, ways_of
from rhino.passes.planner.why import Why
from rhino.strategies.pipeline.simulate import Simulation, simulate
from rhino.tools.drawing import memory_curve, mesh_drawing, tensor_drawing, timeline_drawing
from rhino.tools.page import (
    Cell,
    MemoryChart,
    Page,
    PagePart,
    Row,
    Table,
    bytes_cell,
    reasons_table,
    seconds_cell,
    share_text,
    subject_cell,
    table,
)

MOST_POINTS: Final = 600
"""Points of a curve of memory."""


def whole_page(plan: WholePlan, reasons: Sequence[Why] = ()) -> Page:
    """Returns the page of a plan in stages; `reasons` are what else was possible, where somebody has asked."""
    about, step = plan.about, plan.step
    simulation = simulate(step, costs_of(plan))
    timeline = simulation.timeline
    busy = sum(timeline.busy_s(rank) for rank in range(step.num_ranks)) / step.num_ranks
    search = about.get("search") or {}
    peak, budget = max(one.peak_bytes for one in simulation.memory), _budget(plan)
    bound = f"no plan looked at takes less than {format_seconds(search['bound_s'])}" if search else ""
    end_s = timeline.end_s or 1.0
    return Page(
        title=str(about["source"]),
        subtitle=f"{plan.form()}, for {about['cluster']}",
        tiles=(
            ("step", format_seconds(timeline.end_s), bound),
            ("idle", share_text(end_s - busy, end_s), "of the step, in the mean of the ranks"),
            (PEAK, format_bytes(peak), f"of {format_bytes(budget)} per device" if budget else "on the device that holds most"),
            ("devices", str(step.num_ranks * step.mesh.num_devices), f"{step.num_ranks} ranks of {step.mesh}"),
        ),
        parts=(PagePart("busy", busy / end_s, format_seconds(busy)), PagePart("idle", 1 - busy / end_s, format_seconds(end_s - busy))),
        mesh=mesh_drawing((("rank", step.num_ranks), *step.mesh.axes)),
        timeline=timeline_drawing(timeline),
        phases=tuple(dict.fromkeys(span.task.phase for span in timeline.spans)),
        memory=tuple(_rank_memory(plan, simulation, rank, peak, budget) for rank in range(step.num_ranks)),
        tables=tuple(one for one in _whole_tables(plan, simulation, reasons) if one.rows),
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


def _budget(plan: WholePlan) -> float | None:
    """Returns the bytes that a device may hold, where a plan says it: by its search, or by the file of its cluster."""
    about = plan.about
    if "search" in about:
        return float(about["search"]["budget_bytes"])
    return parse_cluster("\n".join(about["cluster_file"])).device.usable_hbm_bytes if "cluster_file" in about else None


def _rank_memory(plan: WholePlan, simulation: Simulation, rank: int, most: float, budget: float | None) -> MemoryChart:
    end_s, began = simulation.timeline.end_s, _began(plan.step, simulation)
    held: list[tuple[float, float]] = []
    for at, whose, num_bytes in held_over_time(plan.step, plan.about["predicted_temp_bytes"]):
        if whose == rank:  # what is freed and taken over follows the list, so no time is before the one in front of it
            held.append((max(began[at], held[-1][0] if held else 0.0), num_bytes))
    size = -(-len(held) // MOST_POINTS)
    points = [max(held[start : start + size], key=lambda one: one[1]) for start in range(0, len(held), size)] if held else []
    peak = simulation.memory[rank]
    words = f"{format_bytes(peak.peak_bytes)} at instruction {peak.peak_at} of {len(plan.step.instructions)}"
    return MemoryChart(f"rank {rank}", memory_curve(points, end_s, most, budget), words, format_bytes(budget) if budget else "")


def _began(step: Step, simulation: Simulation) -> list[float]:
    """Returns when each instruction begins; what takes no time is at 0."""
    spans, moves = iter(simulation.timeline.spans), iter(simulation.timeline.moves)
    found = []
    for one in step.instructions:
        match one:
            case Run():
                found.append(next(spans).start_s)
            case Transfer():
                found.append(next(moves).start_s)
            case _:
                found.append(0.0)
    return found


def _whole_tables(plan: WholePlan, simulation: Simulation, reasons: Sequence[Why]) -> Iterable[Table]:
    mesh, end_s = dict(plan.step.mesh.axes), simulation.timeline.end_s
    rows: list[Row] = [
        (
            Cell(f"rank {rank}", rank),
            Cell(f"{simulation.timeline.idle(rank):.1%}", simulation.timeline.idle(rank), simulation.timeline.idle(rank)),
            seconds_cell(simulation.timeline.busy_s(rank), end_s),
            bytes_cell(memory.peak_bytes, max(one.peak_bytes for one in simulation.memory)),
            Cell(str(memory.peak_micro_batches), memory.peak_micro_batches),
        )
        for rank, memory in enumerate(simulation.memory)
    ]
    yield table("ranks", "Ranks", "", ("rank", "idle", "busy", PEAK, "micro-batches at a time"), rows)
    rows = [
        (
            seconds_cell(one.runs * one.seconds, end_s),
            Cell(f"{one.runs} x {format_seconds(one.seconds)}", one.runs),
            bytes_cell(one.temp_bytes),
            Cell(f"rank {one.rank}", one.rank),
            Cell(f"{one.phase} of stage {one.stage}"),
            Cell(one.name),
        )
        for one in program_runs(plan)
    ]
    yield table(
        "programs",
        "Programs",
        "Seconds in a step; bytes that a run takes beside what it reads and gives.",
        ("seconds", "runs", "bytes", "rank", "task", "program"),
        rows,
    )
    rows = [
        (
            seconds_cell(one.seconds, end_s),
            Cell(f"{one.count} from rank {one.giver} to rank {one.taker}", one.count),
            bytes_cell(one.num_bytes),
        )
        for one in ways_of(plan, simulation)
    ]
    yield table("transfers", "Transfers", "Between ranks, per step and device.", ("seconds", "number", "bytes"), rows)
    rows = [
        (Cell(task), Cell(kind_of), Cell(str(count.num), count.num), bytes_cell(count.num_bytes))
        for task, stats in collectives_by_task(plan)
        for kind_of, count in stats.counts.items()
    ]
    yield table("kinds", "Collectives by stage and kind", "Within ranks, per step and device.", ("stage", "kind", "number", "bytes"), rows)
    rows = [
        (
            Cell("", None, None, tensor_drawing(one.layout.shape, one.layout.dims, mesh)),
            Cell(one.name),
            Cell(f"rank {one.rank}", one.rank),
            Cell(f"{one.count} x {kind(one.layout)}", one.count),
            Cell(dims(one.layout)),
            bytes_cell(one.num_bytes, simulation.memory[one.rank].peak_bytes),
        )
        for one in arguments_of(plan)
    ]
    note = "Blocks over the devices of a rank; [*] stands for numbers that differ. Bytes are of all of them on a device."
    yield table("arguments", "Arguments", note, ("blocks", "name", "rank", "tensors", "sharding", "bytes"), rows)
    yield table(
        "alive",
        "Alive at the peak",
        "Bytes on a device of the rank, after the instruction.",
        ("bytes", "rank", "tensors", "what"),
        list(_alive(plan, simulation)),
    )
    note = "What else was possible: what it adds to the work of its rank in a step, and to the bytes of all ranks together."
    moves: list[Row] = [(subject_cell(one), Cell(words)) for one in reasons for words in one.notes]
    yield table(
        "moves", "Why in these stages", "What it takes to have it in the stage before or behind, all cut anew.", ("what", "stage"), moves
    )
    yield reasons_table(reasons, note, ("work", "compute", "collectives", "memory"))
    search = plan.about.get("search")
    rows = [(Cell(one.what), Cell(one.step, one.step_s), Cell(one.why)) for one in (lost(search) if search else ())]
    note = 'A step with "about" is an estimate: the programs of that shape were not made.'
    yield table("losers", "What else was looked at", note, ("shape", "step", "why not"), rows)


def _alive(plan: WholePlan, simulation: Simulation) -> Iterable[tuple[Cell, ...]]:
    step = plan.step
    made: dict[int, str] = {}
    for one in step.instructions:
        if isinstance(one, Run):
            made |= dict.fromkeys(one.outputs, step.programs[one.program].name)
    rows: dict[tuple[int, str], list[int]] = {}
    for rank, memory in enumerate(simulation.memory):
        for slot in slots_held(step, memory.peak_at, rank):
            layout = step.slots[slot].layout
            what = f"{kind(layout)}, {'given by ' + made[slot] if slot in made else 'fed or received'}"
            rows.setdefault((rank, what), []).append(local_bytes(layout, step.mesh))
    for (rank, what), sizes in sorted(rows.items(), key=lambda row: (-sum(row[1]), row[0])):
        yield (
            bytes_cell(sum(sizes), simulation.memory[rank].peak_bytes),
            Cell(f"rank {rank}", rank),
            Cell(str(len(sizes)), len(sizes)),
            Cell(what),
        )
