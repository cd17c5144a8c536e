"""A plan in stages in words: what it comes to, rank by rank, and where time and memory go, the largest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.instructions import Feed, Layout, Run, Transfer, rank_of
from rhino.ir.plan_folder import WholePlan
from rhino.ir.plan_text import more, signed_bytes, signed_seconds, table
from rhino.ir.spmd_plan import dims_text, folded
from rhino.ir.step_memory import local_bytes
from rhino.ir.timeline import render
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.whole_plan import costs_of
from rhino.strategies.simulate import Simulation, simulate

SHOWN: Final = 40
"""Lines of a difference that are shown."""


@dataclass(frozen=True, slots=True)
class Fed:
    """Arguments that are alike: `count` of them on a rank, with their bytes on a device of it together."""

    rank: int
    name: str
    layout: Layout
    count: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramRuns:
    """A program: on which rank it runs, what it is for, how often in a step, and the seconds and temporary bytes of a run on a device."""

    rank: int
    name: str
    phase: str
    stage: int
    runs: int
    seconds: float
    temp_bytes: int


@dataclass(frozen=True, slots=True)
class Way:
    """Transfers from one rank to another: their number, their bytes from a device of one to a device of the other, and their seconds."""

    giver: int
    taker: int
    count: int
    num_bytes: int
    seconds: float


def explain_whole(plan: WholePlan, num_rows: int = 20) -> str:
    """Returns the totals of a plan, its ranks, and `num_rows` of its programs, arguments and ways each."""
    simulation = simulate(plan.step, costs_of(plan))
    about = plan.about
    lines = [
        f"{about['source']}: {about['stages']} stages on {plan.step.num_ranks} ranks of mesh {plan.step.mesh}, {about['micro_batches']} "
        f"micro-batches, schedule {about['schedule']}, for {about['cluster']}",
        f"  step   {format_seconds(simulation.timeline.end_s)}",
        f"  memory {format_bytes(max(one.peak_bytes for one in simulation.memory))} per device at most",
        "ranks:",
        *_ranks(plan, simulation),
        "programs: seconds in a step and in a run, bytes beside inputs and outputs",
    ]
    programs = program_runs(plan)
    rows = [
        (
            format_seconds(one.runs * one.seconds),
            f"{one.runs} x {format_seconds(one.seconds)}",
            format_bytes(one.temp_bytes),
            f"rank {one.rank}",
            f"{one.phase} of stage {one.stage}",
            one.name,
        )
        for one in programs[:num_rows]
    ]
    lines += [*table(rows), *more(len(programs), num_rows)]
    ways = ways_of(plan, simulation)
    if ways:
        lines.append("transfers: seconds and bytes in a step, from each device of one rank to one of the other")
        sent = [
            (format_seconds(one.seconds), format_bytes(one.num_bytes), f"{one.count} from rank {one.giver} to {one.taker}") for one in ways
        ]
        lines += [*table(sent[:num_rows]), *more(len(ways), num_rows)]
    fed = arguments_of(plan)
    held = [
        (format_bytes(one.num_bytes), f"rank {one.rank}", f"{one.count} x {kind(one.layout)}", dims(one.layout), one.name) for one in fed
    ]
    lines += ["arguments, bytes per device:", *table(held[:num_rows]), *more(len(fed), num_rows)]
    return "\n".join([*lines, *_lost(about.get("search"), num_rows), render(simulation.timeline).rstrip("\n")])


def arguments_of(plan: WholePlan) -> list[Fed]:
    """Returns the arguments that are fed, those that differ in the numbers of their names alone together; the largest first."""
    step = plan.step
    groups: dict[tuple[int, str, Layout], list[str]] = {}
    for one in step.instructions:
        if isinstance(one, Feed):
            slot, name = step.slots[one.target], plan.arguments[one.argument].name
            groups.setdefault((slot.rank, folded(name), slot.layout), []).append(name)
    rows = [
        Fed(rank, name if len(names) > 1 else names[0], layout, len(names), len(names) * local_bytes(layout, step.mesh))
        for (rank, name, layout), names in groups.items()
    ]
    return sorted(rows, key=lambda one: (-one.num_bytes, one.rank, one.name))


def program_runs(plan: WholePlan) -> list[ProgramRuns]:
    """Returns the programs of a step, those that take longest first; one that runs on several ranks is there for each."""
    runs = [one for one in plan.step.instructions if isinstance(one, Run)]
    counted = Counter((one.program, rank_of(plan.step, one), one.task.phase, one.task.stage) for one in runs)
    costs = costs_of(plan)
    rows = [
        ProgramRuns(rank, plan.step.programs[program].name, phase, stage, count, costs.run_s[program], costs.temp_bytes[program])
        for (program, rank, phase, stage), count in counted.items()
    ]
    return sorted(rows, key=lambda one: (-one.runs * one.seconds, one.rank, one.name))


def ways_of(plan: WholePlan, simulation: Simulation) -> list[Way]:
    """Returns the transfers of a step from rank to rank, those that take longest first."""
    step = plan.step
    found: dict[tuple[int, int], list[int]] = {}
    for one in step.instructions:
        if isinstance(one, Transfer):
            source = step.slots[one.source]
            found.setdefault((source.rank, step.slots[one.target].rank), []).append(local_bytes(source.layout, step.mesh))
    seconds: Counter[tuple[int, int]] = Counter()
    for move in simulation.timeline.moves:
        seconds[move.giver, move.taker] += move.end_s - move.start_s  # type: ignore[assignment]
    rows = [Way(*way, len(sizes), sum(sizes), seconds[way]) for way, sizes in found.items()]
    return sorted(rows, key=lambda one: (-one.seconds, one.giver, one.taker))


def kind(layout: Layout) -> str:
    """Returns an array's dtype and shape."""
    return f"{layout.dtype}[{','.join(map(str, layout.shape))}]"


def dims(layout: Layout) -> str:
    """Returns how an array lies, as Shardy lists dims."""
    return dims_text(layout.dims)


def lost(search: dict[str, Any]) -> Iterator[tuple[str, float | None, str]]:
    """Yields what else a search has found, best first: what it is, the seconds of its step (None where there is none), and why not that."""
    for one in search["alternatives"]:
        yield f"{shape_text(one)}{', ' + one['schedule'] if one['schedule'] else ''}", one["predicted_step_s"], one["why"]
    for one in search["refused"]:
        yield shape_text(one), None, one["why"]


def shape_text(one: dict[str, Any]) -> str:
    """Returns a shape of a report in words."""
    mesh = "x".join(map(str, one["mesh"]))
    kept = f", {one['keep']:.0%} of the activations kept" if one["keep"] < 1 else ""
    return f"{one['stages']} stages of {mesh}, {one.get('micro_batches', '?')} micro-batches{kept}"


def _ranks(plan: WholePlan, simulation: Simulation) -> list[str]:
    held = Counter[int]()
    for one in arguments_of(plan):
        held[one.rank] += one.num_bytes
    rows = [
        (
            f"rank {rank}",
            f"{simulation.timeline.idle(rank):.0%} idle",
            f"peak {format_bytes(memory.peak_bytes)}",
            f"arguments {format_bytes(held[rank])}",
            f"{memory.peak_micro_batches} micro-batches at a time",
        )
        for rank, memory in enumerate(simulation.memory)
    ]
    return table(rows)


def _lost(search: dict[str, Any] | None, num_rows: int) -> list[str]:
    every = list(lost(search)) if search else []
    rows = [(format_seconds(seconds) if seconds is not None else "-", what, why) for what, seconds, why in every]
    return ["what else was looked at:", *table(rows[:num_rows]), *more(len(rows), num_rows)] if rows else []


def diff_whole(a: WholePlan, b: WholePlan) -> str:
    """Returns what plan `b` does differently from `a`; an empty text where they are the same."""
    return "\n".join([*_about_diff(a, b), *_placed_diff(a, b)])


def _about_diff(a: WholePlan, b: WholePlan) -> Iterator[str]:
    if a.about["source_sha256"] != b.about["source_sha256"]:
        yield f"made for different programs: {a.about['source']} and {b.about['source']}"
    for name in ("cluster", "stages", "ranks", "mesh", "micro_batches", "schedule"):
        if a.about[name] != b.about[name]:
            yield f"{name.replace('_', '-')}: {a.about[name]} -> {b.about[name]}"
    then, now = a.about["predicted_step_s"], b.about["predicted_step_s"]
    if then != now:
        yield f"step: {format_seconds(then)} -> {format_seconds(now)} ({signed_seconds(now - then)})"
    held, holds = max(a.about["predicted_peak_bytes"]), max(b.about["predicted_peak_bytes"])
    if held != holds:
        yield f"peak: {format_bytes(held)} -> {format_bytes(holds)} ({signed_bytes(holds - held)})"


def _placed_diff(a: WholePlan, b: WholePlan) -> Iterator[str]:
    """Yields the arguments that lie differently, the largest first; those that differ in the numbers of their names alone together."""
    then, now = ({name: (size, words) for name, size, words in _placed(plan)} for plan in (a, b))
    groups: dict[str, list[int]] = {}
    for name in {**then, **now}:
        old, new = (side.get(name, (0, "not there")) for side in (then, now))
        if old[1] != new[1]:
            groups.setdefault(f"argument {folded(name)}: {old[1]} -> {new[1]}", []).append(max(old[0], new[0]))
    lines = sorted((-sum(sizes), f"{words} ({len(sizes)} of them)" if len(sizes) > 1 else words) for words, sizes in groups.items())
    yield from (line for _, line in lines[:SHOWN])
    yield from more(len(lines), SHOWN)


def _placed(plan: WholePlan) -> Iterator[tuple[str, int, str]]:
    step = plan.step
    for one in step.instructions:
        if isinstance(one, Feed):
            slot = step.slots[one.target]
            yield plan.arguments[one.argument].name, local_bytes(slot.layout, step.mesh), f"rank {slot.rank} {dims(slot.layout)}"
