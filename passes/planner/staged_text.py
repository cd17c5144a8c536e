"""A plan in stages in words: what it comes to, rank by rank, and where time and memory go, the largest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.graph.collective_stats import EMPTY, CollectiveStats
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.plan.folder import WholePlan
from rhino.ir.plan.instructions import Feed, Layout, Run, Transfer, rank_of
from rhino.ir.plan.spmd_diff import diff_text
from rhino.ir.plan.spmd_plan import SpmdPlan, dims_text, folded, num_parts
from rhino.ir.plan.spmd_text import changes_of, differ, more, signed_bytes, signed_seconds, table, totals
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.plan.timeline import render
from rhino.ir.program.collectives import module_stats
from rhino.ir.units import PEAK, format_bytes, format_seconds, peak_text
from rhino.passes.planner.staged_plan import costs_of
from rhino.strategies.autotune.base import PlanConfig
from rhino.strategies.pipeline.simulate import Simulation, simulate

Placed = tuple[str, int, str]
"""An argument's name, its bytes on a device, and how it lies, in words."""

SHOWN: Final = 40
"""Lines of a difference that are shown."""

_SAID: Final = ("mesh", "num", "ranks", "split-backward", "stages")
"""What a pipeline is asked for that a plan in stages says of itself."""


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
    lines = [
        *_totals(plan, simulation.timeline.end_s, max(one.peak_bytes for one in simulation.memory)),
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
    return "\n".join([*lines, *lost_text(plan, num_rows), render(simulation.timeline).rstrip("\n")])


def _totals(plan: WholePlan, step_s: float, peak_bytes: float) -> list[str]:
    return [
        f"{plan.about['source']}: {plan.form()}, for {plan.about['cluster']}",
        f"  step   {format_seconds(step_s)}",
        f"  memory {peak_text(peak_bytes)} per device",
    ]


def summary_text(plan: SpmdPlan | WholePlan) -> str:
    """Returns what a plan comes to in four lines, as its file says."""
    if isinstance(plan, SpmdPlan):
        lines = totals(plan)
    else:
        lines = _totals(plan, plan.about["predicted_step_s"], max(plan.about["predicted_peak_bytes"]))
    return "\n".join([*lines, f"  {len(plan.arguments)} arguments, {len(plan.results)} results; explain() has more"])


def micro_batches_at_a_time(count: int) -> str:
    """Returns how many micro-batches are alive, in words."""
    return f"{count} micro-batch{'es' if count != 1 else ''} at a time"


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


@dataclass(frozen=True, slots=True)
class LostShape:
    """What else a search has looked at: `step_s` is None where there is none, `is_made` says that it is that of its programs."""

    what: str
    step_s: float | None
    is_made: bool
    why: str

    @property
    def step(self) -> str:
        """The step in words; `about` says that it is an estimate."""
        if self.step_s is None:
            return "-"
        return format_seconds(self.step_s) if self.is_made else f"about {format_seconds(self.step_s)}"


def lost(search: dict[str, Any]) -> Iterator[LostShape]:
    """Yields what else a search has found, best first."""
    for one in search["alternatives"]:
        step_s = one.get("predicted_step_s", one.get("estimated_step_s"))
        what = f"{shape_text(one)}{', ' + one['schedule'] if one['schedule'] else ''}"
        yield LostShape(what, step_s, "predicted_step_s" in one, one["why"])
    for one in search.get("cut_off", ()):
        yield LostShape(shape_text(one), None, is_made=False, why=f"not planned to its end: {one['why']}")
    for one in search["refused"]:
        yield LostShape(shape_text(one), None, is_made=False, why=one["why"])


def shape_text(one: dict[str, Any]) -> str:
    """Returns a shape of a report in words."""
    return str(PlanConfig(one["stages"], tuple(one["mesh"]), one.get("micro_batches", 0), 1 - one.get("remat", 0.0)))


def _ranks(plan: WholePlan, simulation: Simulation) -> list[str]:
    held = Counter[int]()
    for one in arguments_of(plan):
        held[one.rank] += one.num_bytes
    rows = [
        (
            f"rank {rank}",
            f"{simulation.timeline.idle(rank):.0%} idle",
            peak_text(memory.peak_bytes),
            f"arguments {format_bytes(held[rank])}",
            micro_batches_at_a_time(memory.peak_micro_batches),
        )
        for rank, memory in enumerate(simulation.memory)
    ]
    return table(rows)


def lost_text(plan: WholePlan, num_rows: int = 20) -> list[str]:
    """Returns what else a search has looked at, best first, as lines; none where nothing was."""
    every = list(lost(plan.about["search"])) if plan.about.get("search") else []
    rows = [(one.step, one.what, one.why) for one in every]
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
    if "pipeline" in a.about and "pipeline" in b.about:
        yield from changes_of(*({key: text for key, text in one.about["pipeline"].items() if key not in _SAID} for one in (a, b)))
    then, now = a.about["predicted_step_s"], b.about["predicted_step_s"]
    if differ(then, now):
        yield f"step: {format_seconds(then)} -> {format_seconds(now)} ({signed_seconds(now - then)})"
    held, holds = max(a.about["predicted_peak_bytes"]), max(b.about["predicted_peak_bytes"])
    if held != holds:
        yield f"{PEAK}: {format_bytes(held)} -> {format_bytes(holds)} ({signed_bytes(holds - held)})"
    for name, sent in (("transfers", _transferred), ("collectives", _collected)):
        (count, num_bytes), (counts, nums_bytes) = sent(a), sent(b)
        if (count, num_bytes) != (counts, nums_bytes):
            moved = f"{format_bytes(num_bytes)} in {count} -> {format_bytes(nums_bytes)} in {counts}"
            yield f"{name}: {moved} ({signed_bytes(nums_bytes - num_bytes)})"


def _transferred(plan: WholePlan) -> tuple[int, int]:
    """Returns the number of transfers in a step, and their bytes from a device to a device."""
    slots, mesh = plan.step.slots, plan.step.mesh
    sizes = [local_bytes(slots[one.source].layout, mesh) for one in plan.step.instructions if isinstance(one, Transfer)]
    return len(sizes), sum(sizes)


def _collected(plan: WholePlan) -> tuple[int, int]:
    """Returns the number of collectives in a step, each counted on its rank, and their bytes on a device."""
    counts = [count for _, stats in collectives_by_task(plan) for count in stats.counts.values()]
    return sum(one.num for one in counts), sum(one.num_bytes for one in counts)


def collectives_by_task(plan: WholePlan) -> list[tuple[str, CollectiveStats]]:
    """Returns the collectives of a step by stage; a program's own are as many as it runs."""
    context = make_context()
    own: dict[int, CollectiveStats] = {}
    found: dict[str, CollectiveStats] = {}
    for one in plan.step.instructions:
        if isinstance(one, Run):
            if one.program not in own:
                own[one.program] = module_stats(ir.Module.parse(plan.modules[plan.step.programs[one.program].module], context))
            task = f"{one.task.phase} of stage {one.task.stage}"
            found[task] = found.get(task, EMPTY) + own[one.program]
    return [(task, stats) for task, stats in found.items() if stats.counts]


def _placed_diff(a: WholePlan, b: WholePlan) -> Iterator[str]:
    yield from _lie_differently(_placed(a), _placed(b))


def _lie_differently(a: Iterable[Placed], b: Iterable[Placed]) -> Iterator[str]:
    """Yields the arguments that lie differently, the largest first; those that differ in the numbers of their names alone together."""
    then, now = ({name: (size, words) for name, size, words in side} for side in (a, b))
    groups: dict[str, list[int]] = {}
    for name in {**then, **now}:
        old, new = (side.get(name, (0, "not there")) for side in (then, now))
        if old[1] != new[1]:
            groups.setdefault(f"argument {folded(name)}: {old[1]} -> {new[1]}", []).append(max(old[0], new[0]))
    lines = sorted((-sum(sizes), f"{words} ({len(sizes)} of them)" if len(sizes) > 1 else words) for words, sizes in groups.items())
    yield from (line for _, line in lines[:SHOWN])
    yield from more(len(lines), SHOWN)


def _placed(plan: WholePlan) -> Iterator[Placed]:
    step = plan.step
    for one in step.instructions:
        if isinstance(one, Feed):
            slot = step.slots[one.target]
            yield plan.arguments[one.argument].name, local_bytes(slot.layout, step.mesh), f"rank {slot.rank} {dims(slot.layout)}"


def diff_plans(a: SpmdPlan | WholePlan, b: SpmdPlan | WholePlan) -> str:
    """Returns what plan `b` does differently from `a`, of one program or in stages; an empty text where they are the same."""
    if isinstance(a, SpmdPlan) and isinstance(b, SpmdPlan):
        return diff_text(a, b)
    if isinstance(a, WholePlan) and isinstance(b, WholePlan):
        return diff_whole(a, b)
    one, other = _outline(a), _outline(b)
    lines = [] if one.arguments == other.arguments else ["made for programs of different arguments"]
    lines.append(f"{one.what} -> {other.what}")
    lines.append(f"step: {format_seconds(one.step_s)} -> {format_seconds(other.step_s)} ({signed_seconds(other.step_s - one.step_s)})")
    change = signed_bytes(other.peak_bytes - one.peak_bytes)
    lines.append(f"{PEAK}: {format_bytes(one.peak_bytes)} -> {format_bytes(other.peak_bytes)} ({change})")
    return "\n".join([*lines, *_lie_differently(one.placed, other.placed)])


@dataclass(frozen=True, slots=True)
class _Outline:
    """What plans of both kinds have: what they are in words, what they come to, and how arguments lie."""

    what: str
    step_s: float
    peak_bytes: float
    arguments: frozenset[str]
    placed: tuple[Placed, ...]


def _outline(plan: SpmdPlan | WholePlan) -> _Outline:
    if isinstance(plan, WholePlan):
        about = plan.about
        names = frozenset(one.name for one in plan.arguments)
        return _Outline(plan.form(), about["predicted_step_s"], max(about["predicted_peak_bytes"]), names, tuple(_placed(plan)))
    mesh, said = dict(plan.mesh), plan.predicted
    placed = tuple((one.path, one.num_bytes // num_parts(one, mesh), dims_text(one.dims)) for one in plan.arguments)
    what = f"one program on mesh {', '.join(f'{name}={size}' for name, size in plan.mesh)}"
    return _Outline(what, said.step_s, said.peak_bytes, frozenset(one.path for one in plan.arguments), placed)
