"""The page of a plan, as data: a table for each thing that is known of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from rhino.ir.plan.instructions import Run, Step, Transfer
from rhino.ir.plan.plan import Cost, Execution, Plan, Sharding, Tensor, dims_text, meshes_text
from rhino.ir.plan.step_memory import live_slots, local_bytes, memory_over_time
from rhino.ir.units import PEAK, format_bytes, format_seconds
from rhino.passes.planner.module_facts import ROW_LIMITS
from rhino.passes.planner.plan_rows import (
    alike,
    collectives_by_task,
    fullest_rank,
    new_results,
    program_runs,
    sent_s,
    simulation_of,
    step_of,
    transfers_of,
)
from rhino.passes.planner.why import Why
from rhino.strategies.pipeline.simulate import Simulation
from rhino.tools.drawing import memory_curve, mesh_drawing, tensor_drawing, timeline_drawing
from rhino.tools.page_data import (
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

_INSIDE: Final = re.compile(r"^jit\([^)]*\)/")
"""What the scopes of all ops begin with."""

_MOST_POINTS: Final = 600
"""Points of a curve of memory."""


def plan_page(plan: Plan, reasons: Sequence[Why] = ()) -> Page:
    """Returns the page of a plan; `reasons` are what else was possible, where somebody has asked."""
    simulation = simulation_of(plan.execution) if plan.execution else None
    timeline = simulation.timeline if simulation else None
    alike = len(set(plan.meshes)) == 1
    axes = plan.meshes[0].axes if alike else (("device", plan.num_devices),)
    axes = (("rank", plan.num_ranks), *axes) if alike and plan.num_ranks > 1 else axes
    return Page(
        title=plan.source.function,
        subtitle=f"{plan.form()}, for {plan.cluster_name}",
        tiles=tuple(_tiles(plan, simulation)),
        parts=tuple(_parts(plan, simulation)),
        mesh=mesh_drawing(axes),
        timeline=timeline_drawing(timeline) if timeline else None,
        phases=tuple(dict.fromkeys(span.task.phase for span in timeline.spans)) if timeline else (),
        memory=tuple(_memory_charts(plan, simulation)),
        tables=tuple(one for one in _tables(plan, simulation, reasons) if one.rows),
        facts=tuple(_facts(plan)),
        cluster="\n".join(plan.cluster),
    )


def _tiles(plan: Plan, simulation: Simulation | None) -> Iterator[tuple[str, str, str]]:
    found = plan.predicted
    bound = ""
    if found.at_least_s:
        gap = max(0.0, 1 - found.at_least_s / found.step_s) if found.step_s else 0.0
        bound = f"no plan takes less than {format_seconds(found.at_least_s)}, gap {gap:.2%}"
    yield "step", format_seconds(found.step_s), bound
    if plan.sharding:
        sent_s_ = plan.sharding.communication_s
        yield "in collectives", format_seconds(sent_s_), f"{share_text(sent_s_, found.step_s)} of the step"
    if simulation:
        end_s = simulation.timeline.end_s or 1.0
        yield "idle", share_text(end_s - _busy_s(plan, simulation), end_s), "of the step, in the mean of the ranks"
    rank, own = fullest_rank(plan)
    yield PEAK, format_bytes(found.peak_bytes[rank]), f"of {format_bytes(own.budget_bytes)} per device"
    ranks = f"{plan.num_ranks} ranks of {meshes_text(plan.meshes)}" if plan.num_ranks > 1 else str(plan.mesh)
    yield "devices", str(plan.num_devices), ranks


def _busy_s(plan: Plan, simulation: Simulation) -> float:
    return sum(simulation.timeline.busy_s(rank) for rank in range(plan.num_ranks)) / plan.num_ranks


def _parts(plan: Plan, simulation: Simulation | None) -> Iterator[PagePart]:
    step_s = plan.predicted.step_s
    seconds: tuple[tuple[str, float], ...] = ()
    if plan.sharding:
        compute_s, sent_s_ = plan.sharding.compute_s, plan.sharding.communication_s
        rest_s = max(0.0, step_s - compute_s - sent_s_)
        seconds = (("compute", compute_s), ("collectives", sent_s_), ("launch and slices", rest_s))
    elif simulation:
        busy_s = _busy_s(plan, simulation)
        seconds = (("busy", busy_s), ("idle", simulation.timeline.end_s - busy_s))
    yield from (PagePart(name, one / (step_s or 1.0), format_seconds(one)) for name, one in seconds if one)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    words = {**plan.options, **plan.request.words()}
    yield "asked", "; ".join(f"{key}: {value}" for key, value in words.items() if key not in ROW_LIMITS)
    ops = f"{sum(plan.source.ops.values())} ops, " if plan.source.ops else ""
    form = f", {plan.sharding.form} form" if plan.sharding else ""
    yield "program", f"{plan.source.function}, {ops}sha256 {plan.source.sha256}{form}"
    if plan.autotuning:
        count = sum(plan.autotuning.num_planned.values())
        yield "found", f"by {plan.autotuning.found_by}, {count} configurations were planned"
    yield "versions", ", ".join(f"{name} {version}" for name, version in plan.versions.items()) or "-"


# Memory


def _memory_charts(plan: Plan, simulation: Simulation | None) -> Iterator[MemoryChart]:
    found = plan.predicted
    limit = format_bytes(found.budget_bytes)
    if plan.sharding:
        memory = plan.sharding.memory
        counted = format_bytes(max((num_bytes for _, num_bytes in memory.curve), default=0))
        where = f", in {memory.peak_op}" if memory.peak_op else ""
        at = f"at time {memory.peak_time} of {memory.num_times}{where}"
        words = f"{format_bytes(found.largest_peak_bytes)}; the curve is of the search's rows, at most {counted} {at}"
        curve = memory_curve(memory.curve, memory.num_times - 1, found.largest_peak_bytes, found.budget_bytes)
        yield MemoryChart("every device", curve, words, limit)
    if plan.execution and simulation:
        most = max(one.peak_bytes for one in simulation.memory)
        for rank in range(plan.num_ranks):
            points, words = _rank_memory(plan.execution, simulation, rank)
            if found.kept_bytes[rank]:
                words += f", beside {format_bytes(found.kept_bytes[rank])} of old state that is kept"
            curve = memory_curve(points, simulation.timeline.end_s, most, found.budget_bytes)
            yield MemoryChart(f"rank {rank}", curve, words, limit)


def _rank_memory(execution: Execution, simulation: Simulation, rank: int) -> tuple[list[tuple[float, float]], str]:
    """Returns the curve of a rank's memory, and its peak in words."""
    began, step = _began(execution.step, simulation), execution.step
    every: list[tuple[float, float]] = []
    for at, whose, num_bytes in memory_over_time(step, execution.temp_bytes):
        if whose == rank:  # what is freed and donated follows the list, so no time is before the one in front of it
            every.append((max(began[at], every[-1][0] if every else 0.0), num_bytes))
    size = -(-len(every) // _MOST_POINTS)
    starts = range(0, len(every), size) if every else ()
    points = [max(every[start : start + size], key=lambda one: one[1]) for start in starts]
    peak = simulation.memory[rank]
    return points, f"{format_bytes(peak.peak_bytes)} at instruction {peak.peak_at} of {len(step.instructions)}"


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


# Tables


def _tables(plan: Plan, simulation: Simulation | None, reasons: Sequence[Why]) -> Iterator[Table]:
    if plan.execution and simulation:
        yield from _execution_tables(plan, plan.execution, simulation)
    yield _tensors(plan, "arguments", "Arguments", plan.arguments)
    yield _tensors(plan, "results", "New results", new_results(plan))
    if plan.sharding:
        yield from _sharding_tables(plan, plan.sharding)
    yield from _reasons(plan, reasons)
    rows: list[Row] = [
        (Cell(one.what), Cell(step_of(one), one.step_s), seconds_cell(one.at_least_s), Cell(one.why))
        for one in plan.alternatives
    ]
    note = (
        'The best plan of each configuration or mesh. A step with "about" is an estimate: its programs were not made.'
    )
    yield table("alternatives", "Alternatives", note, ("what", "step", "at least", "why not"), rows)


def _tensors(plan: Plan, name: str, title: str, tensors: Sequence[Tensor]) -> Table:
    found, costs = plan.predicted, plan.sharding.costs if plan.sharding else ()
    rows: list[Row] = []
    for one in alike(plan, tensors):
        first = one.first
        rank = (Cell(f"rank {first.rank}", first.rank),) if plan.num_ranks > 1 else ()
        sent = (seconds_cell(sent_s(costs, one.name), found.step_s),) if plan.sharding else ()
        rows.append(
            (
                Cell("", None, None, tensor_drawing(first.shape, first.dims, plan.axes(first.rank))),
                Cell(one.name),
                *rank,
                Cell(f"{len(one.tensors)} x {first.words}", first.num_bytes),
                Cell(dims_text(first.dims)),
                bytes_cell(one.num_bytes, found.largest_peak_bytes),
                *sent,
            )
        )
    on = ("rank",) if plan.num_ranks > 1 else ()
    last = ("sent in",) if plan.sharding else ()
    note = (
        "Blocks over devices; [*] stands for numbers that differ, those of layers. "
        "Bytes are of all of them on a device."
    )
    return table(name, title, note, ("blocks", "name", *on, "tensors", "sharding", "bytes", *last), rows)


def _reasons(plan: Plan, reasons: Sequence[Why]) -> Iterator[Table]:
    if plan.execution:
        moves: list[Row] = [(subject_cell(one), Cell(words)) for one in reasons for words in one.notes]
        note = "What it costs to move it to the stage before or after, with all stages cut again."
        yield table("moves", "Why in these stages", note, ("what", "stage"), moves)
        note = (
            "What else was possible: what it adds to the work of its rank in a step, "
            "and to the bytes of all ranks together."
        )
        yield reasons_table(reasons, note, ("work", "compute", "collectives", "memory"))
    else:
        note = (
            "What else was possible for the largest tensors and the longest ops, and what it would add, "
            "with everything else chosen again."
        )
        yield reasons_table(reasons, note, ("step", "compute", "collectives", PEAK))


def _sharding_tables(plan: Plan, sharding: Sharding) -> Iterator[Table]:
    step_s = plan.predicted.step_s
    rows: list[Row] = [
        (
            seconds_cell(one.compute_s, step_s),
            seconds_cell(one.collectives_s, step_s),
            bytes_cell(one.num_bytes),
            Cell(f"{one.count} x {one.kind}", one.count),
            Cell(str(one.shares), one.shares),
            Cell(one.how),
            Cell(_INSIDE.sub("", one.name)),
            Cell(one.line),
        )
        for one in sharding.works
    ]
    head = ("compute", "waits", "results", "ops", "shared by", "operands -> results", "scope", "line")
    yield table(
        "ops", "Ops", "Seconds of compute and of the collectives that ops wait for, per step and device.", head, rows
    )
    yield from _communication(sharding, step_s)
    rows = [
        (
            bytes_cell(one.num_bytes, plan.predicted.largest_peak_bytes),
            Cell(str(one.count), one.count),
            Cell(one.kind),
            Cell(one.name),
        )
        for one in sharding.memory.alive
    ]
    yield table("alive", "Alive at the peak", "Bytes on a device.", ("bytes", "tensors", "what", "name"), rows)


def _communication(sharding: Sharding, step_s: float) -> Iterator[Table]:
    head = ("seconds", "number", "bytes")
    for name, title, note, column, key in (
        ("kinds", "Communication by kind", "Per step and device.", "kind", _kind),
        ("scopes", "Communication by layer", "By the scope that reads what is sent, or makes it.", "scope", _scope),
    ):
        rows: list[Row] = [
            (Cell(words), seconds_cell(seconds, step_s), Cell(str(count), count), bytes_cell(num_bytes))
            for words, count, num_bytes, seconds in _summed(sharding.costs, key)
        ]
        yield table(name, title, note, (column, *head), rows)
    rows = [
        (
            seconds_cell(one.seconds, step_s),
            Cell(f"{one.count} x {one.kind}", one.count),
            bytes_cell(one.num_bytes),
            Cell(one.place),
            Cell(one.line),
        )
        for one in sharding.costs
    ]
    note = "What is sent, for what, and the line that asks for it."
    yield table("collectives", "Collectives", note, (*head, "what", "line"), rows)


def _execution_tables(plan: Plan, execution: Execution, simulation: Simulation) -> Iterator[Table]:
    timeline, end_s = simulation.timeline, simulation.timeline.end_s
    peaks, most = plan.predicted.peak_bytes, plan.predicted.largest_peak_bytes
    rows: list[Row] = [
        (
            Cell(f"rank {rank}", rank),
            Cell(f"{timeline.idle(rank):.1%}", timeline.idle(rank), timeline.idle(rank)),
            seconds_cell(timeline.busy_s(rank), end_s),
            bytes_cell(peaks[rank], most),
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
        for one in program_runs(execution)
    ]
    note = "Seconds in a step; bytes that a run takes beside what it reads and gives."
    yield table("programs", "Programs", note, ("seconds", "runs", "bytes", "rank", "task", "program"), rows)
    rows = [
        (
            seconds_cell(one.seconds, end_s),
            Cell(f"{one.count} from rank {one.source} to rank {one.target}", one.count),
            bytes_cell(one.num_bytes),
        )
        for one in transfers_of(execution, simulation)
    ]
    yield table("transfers", "Transfers", "Between ranks, per step and device.", ("seconds", "number", "bytes"), rows)
    rows = [
        (Cell(task), Cell(kind), Cell(str(count.num), count.num), bytes_cell(count.num_bytes))
        for task, stats in collectives_by_task(execution)
        for kind, count in stats.counts.items()
    ]
    head = ("stage", "kind", "number", "bytes")
    yield table("stage_kinds", "Collectives by stage and kind", "Within ranks, per step and device.", head, rows)
    note = "Bytes on a device of the rank, after the instruction."
    rows = list(_slots_at_peak(execution, simulation))
    yield table("slots", "Alive at the peak of each rank", note, ("bytes", "rank", "tensors", "what"), rows)


def _slots_at_peak(execution: Execution, simulation: Simulation) -> Iterable[Row]:
    step = execution.step
    made: dict[int, str] = {}
    for one in step.instructions:
        if isinstance(one, Run):
            made |= dict.fromkeys(one.outputs, step.programs[one.program].name)
    rows: dict[tuple[int, str], list[int]] = {}
    for rank, memory in enumerate(simulation.memory):
        for slot in live_slots(step, memory.peak_at, rank):
            layout = step.slots[slot].layout
            shape = ",".join(map(str, layout.shape))
            what = f"{layout.dtype}[{shape}], {'given by ' + made[slot] if slot in made else 'fed or received'}"
            rows.setdefault((rank, what), []).append(local_bytes(layout, step.meshes[rank]))
    for (rank, what), sizes in sorted(rows.items(), key=lambda row: (-sum(row[1]), row[0])):
        yield (
            bytes_cell(sum(sizes), simulation.memory[rank].peak_bytes),
            Cell(f"rank {rank}", rank),
            Cell(str(len(sizes)), len(sizes)),
            Cell(what),
        )


def _summed(costs: Sequence[Cost], name: Callable[[Cost], str]) -> list[tuple[str, int, int, float]]:
    found: dict[str, tuple[int, int, float]] = {}
    for one in costs:
        count, num_bytes, seconds = found.get(name(one), (0, 0, 0.0))
        found[name(one)] = (count + one.count, num_bytes + one.num_bytes, seconds + one.seconds)
    return sorted(((key, *row) for key, row in found.items()), key=lambda row: (-row[3], row[0]))


def _kind(one: Cost) -> str:
    return one.kind


def _scope(one: Cost) -> str:
    """Returns the scope that what is sent is read in, or made, without the function and the op."""
    name = one.reader or one.tensor
    return _INSIDE.sub("", name).rpartition("/")[0] or name
