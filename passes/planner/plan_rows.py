"""What stands in a plan as rows that a text and a page show alike: tensors, programs, transfers, collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.cluster.groups import rank_budgets, rank_clusters
from rhino.ir.graph.collective_stats import EMPTY, CollectiveStats, Count
from rhino.ir.graph.graph import HOST
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.plan.instruction_list import in_columns
from rhino.ir.plan.instructions import Run, Transfer, rank_of
from rhino.ir.plan.pieces import sent_bytes
from rhino.ir.plan.plan import Alternative, Cost, Execution, Plan, Tensor, common_name, device_bytes, folded, host_bytes
from rhino.ir.plan.slot_table import slot_ranks
from rhino.ir.plan.step_memory import host_peaks
from rhino.ir.program.collectives import module_stats
from rhino.ir.units import format_seconds
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.pipeline.simulate import Costs, Link, Simulation, equal_links, simulate


@dataclass(frozen=True, slots=True)
class AlikeTensors:
    """Tensors that differ in the numbers of their paths alone, with their bytes on a device of their rank together."""

    name: str
    tensors: tuple[Tensor, ...]
    num_bytes: int

    @property
    def first(self) -> Tensor:
        """One of them."""
        return self.tensors[0]


@dataclass(frozen=True, slots=True)
class ProgramRuns:
    """The runs of a program on a rank: their phase, their stage, and how many there are in a step.

    The seconds and temporary bytes are those of one run on one device.
    """

    rank: int
    name: str
    phase: str
    stage: int
    runs: int
    seconds: float
    temp_bytes: int


@dataclass(frozen=True, slots=True)
class TransferRow:
    """Transfers from one rank to another: their number, bytes and seconds.

    The bytes are those of the device of either rank that sends or receives most.
    """

    source: int
    target: int
    count: int
    num_bytes: int
    seconds: float


def costs_of(execution: Execution) -> Costs:
    """Returns what the instructions of a plan were predicted to take."""
    link = Link(execution.link_latency_s, execution.link_bytes_per_s)
    return Costs(execution.run_s, execution.temp_bytes, equal_links(execution.step.num_ranks, link))


def simulation_of(execution: Execution) -> Simulation:
    """Returns the step of a plan as it is predicted to run."""
    return simulate(execution.step, costs_of(execution))


def busy_seconds(execution: Execution) -> tuple[float, ...]:
    """Returns how long each rank is predicted to run programs in a step [ranks]."""
    step = execution.step
    ranks, found = slot_ranks(step), np.zeros(step.num_ranks)
    for group in in_columns(step.instructions).of_kind("run"):
        counts = np.bincount(ranks[group.numbers[:, 0]], minlength=step.num_ranks)
        found += counts * execution.run_s[group.form.program]
    return tuple(found.tolist())


@dataclass(frozen=True, slots=True)
class RankLimits:
    """What a device of a rank may hold, and of unlike devices the group that it is of.

    `host_bytes` is what may lie in host memory for each, None where nobody knows.
    """

    budget_bytes: int
    group: str
    host_bytes: int | None


def rank_limits(plan: Plan) -> tuple[RankLimits, ...]:
    """Returns what the devices of each rank of a plan may hold [ranks]."""
    cluster, sizes = plan.machine(), [mesh.num_devices for mesh in plan.meshes]
    budgets, own = rank_budgets(cluster, sizes, plan.predicted.budget_bytes), rank_clusters(cluster, sizes)
    return tuple(
        [
            RankLimits(int(most), one.name if cluster.groups else "", one.device.host_bytes)
            for most, one in zip(budgets, own, strict=True)
        ]
    )


def in_host_memory(plan: Plan) -> tuple[int, ...]:
    """Returns the bytes that lie in host memory for a device of each rank, at most at a time [ranks].

    An argument there that the caller keeps is there twice, with its next value.
    """
    ranks = range(plan.num_ranks)
    if plan.execution is None:
        waiting = plan.sharding.waiting if plan.sharding else None
        return (host_bytes(plan.arguments, plan.axes(0)) + (waiting.num_bytes if waiting else 0),)
    kept = [[one for one in plan.arguments if one.is_kept and one.rank == rank] for rank in ranks]
    peaks = host_peaks(plan.execution.step)
    return tuple(
        [
            peaks[rank] + host_bytes([replace(one, is_kept=False) for one in kept[rank]], plan.axes(rank))
            for rank in ranks
        ]
    )


def fullest_rank(plan: Plan) -> tuple[int, RankLimits]:
    """Returns the rank whose devices have least left of what they may hold, and that."""
    own, peaks = rank_limits(plan), plan.predicted.peak_bytes
    rank = max(range(plan.num_ranks), key=lambda rank: peaks[rank] / own[rank].budget_bytes)
    return rank, own[rank]


def host_seconds(plan: Plan) -> float:
    """Returns the seconds in which what lies in host memory comes from there in a step, and goes back.

    Of several ranks they are those of the rank that has most of it.
    """
    there = [one for one in plan.arguments if one.memory == HOST]
    if not there:
        return 0.0
    model = CostModel(plan.machine().device, ())
    seconds = [0.0] * plan.num_ranks
    for one in there:
        seconds[one.rank] += model.visit_s(device_bytes(one, plan.axes(one.rank)), is_updated=one.alias is not None)
    return max(seconds)


def alike(plan: Plan, tensors: Iterable[Tensor]) -> list[AlikeTensors]:
    """Returns tensors in groups of those that are alike and placed alike, the largest first."""
    groups: dict[tuple[object, ...], list[Tensor]] = {}
    for one in tensors:
        groups.setdefault((folded(one.path), one.words, one.dims, one.rank, one.memory), []).append(one)
    rows = [
        AlikeTensors(
            common_name([one.path for one in ones]),
            tuple(ones),
            sum(device_bytes(one, plan.axes(one.rank)) for one in ones),
        )
        for ones in groups.values()
    ]
    return sorted(rows, key=lambda row: (-row.num_bytes, row.first.rank, row.name))


def new_results(plan: Plan) -> list[Tensor]:
    """Returns the results that are not an argument's next value."""
    carried = {one.alias for one in plan.arguments}
    return [one for number, one in enumerate(plan.results) if number not in carried]


def sent_s(costs: Iterable[Cost], name: str) -> float:
    """Returns the seconds of the collectives that move tensors of this name, which may be a common one."""
    return sum(one.seconds for one in costs if name in (one.tensor, folded(one.tensor)))


def stats_of(costs: Iterable[Cost]) -> CollectiveStats:
    """Returns collectives by kind."""
    return sum((CollectiveStats({one.kind: Count(one.count, one.num_bytes)}) for one in costs), EMPTY)


def program_runs(execution: Execution) -> list[ProgramRuns]:
    """Returns the programs of a step, those that take longest first.

    A program that runs on several ranks has a row for each.
    """
    step = execution.step
    runs = [one for one in step.instructions if isinstance(one, Run)]
    counted = Counter((one.program, rank_of(step, one), one.task.phase, one.task.stage) for one in runs)
    rows = [
        ProgramRuns(
            rank,
            step.programs[program].name,
            phase,
            stage,
            count,
            execution.run_s[program],
            execution.temp_bytes[program],
        )
        for (program, rank, phase, stage), count in counted.items()
    ]
    return sorted(rows, key=lambda one: (-one.runs * one.seconds, one.rank, one.name))


def transfers_of(execution: Execution, simulation: Simulation) -> list[TransferRow]:
    """Returns the transfers of a step from rank to rank, those that take longest first."""
    step = execution.step
    found: dict[tuple[int, int], list[int]] = {}
    for one in step.instructions:
        if isinstance(one, Transfer):
            pair = step.slots[one.source].rank, step.slots[one.target].rank
            found.setdefault(pair, []).append(sent_bytes(step, one))
    seconds = dict.fromkeys(found, 0.0)
    for move in simulation.timeline.moves:
        seconds[move.source_rank, move.target_rank] += move.end_s - move.start_s
    rows = [TransferRow(*pair, len(sizes), sum(sizes), seconds[pair]) for pair, sizes in found.items()]
    return sorted(rows, key=lambda one: (-one.seconds, one.source, one.target))


def collectives_by_task(execution: Execution) -> list[tuple[str, CollectiveStats]]:
    """Returns the collectives of a step by phase and stage; a program's own are as many as it runs."""
    context, step = make_context(), execution.step
    own: dict[int, CollectiveStats] = {}
    found: dict[str, CollectiveStats] = {}
    for one in step.instructions:
        if isinstance(one, Run):
            if one.program not in own:
                own[one.program] = module_stats(
                    ir.Module.parse(execution.modules[step.programs[one.program].module], context)
                )
            task = f"{one.task.phase} of stage {one.task.stage}"
            found[task] = found.get(task, EMPTY) + own[one.program]
    return [(task, stats) for task, stats in found.items() if stats.counts]


def step_of(one: Alternative) -> str:
    """Returns the step of an alternative in words; `about` says that it is an estimate."""
    if one.step_s is None:
        return "-"
    return format_seconds(one.step_s) if one.is_exact else f"about {format_seconds(one.step_s)}"


def total_counts(stats: Sequence[CollectiveStats]) -> tuple[int, int]:
    """Returns the number of collectives and their bytes on a device."""
    counts = [count for one in stats for count in one.counts.values()]
    return sum(one.num for one in counts), sum(one.num_bytes for one in counts)
