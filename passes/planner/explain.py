"""A plan in words: what it comes to, and where time and memory go, the largest first.

A section of which nothing is known is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import shorten
from typing import Final

from rhino.ir.graph.graph import DEVICE, HOST
from rhino.ir.plan.leaves import leaf_groups
from rhino.ir.plan.plan import (
    IN_HOST_MEMORY,
    PLAIN,
    Comparison,
    Execution,
    Plan,
    Sharding,
    Tensor,
    device_bytes,
    dims_text,
    folded,
)
from rhino.ir.plan.timeline import render
from rhino.ir.units import format_bytes, format_seconds, peak_text
from rhino.passes.pipeline.part_statistics import num_statistics_parts
from rhino.passes.planner.plan_rows import (
    alike,
    fullest_rank,
    host_seconds,
    in_host_memory,
    new_results,
    program_runs,
    rank_limits,
    sent_s,
    simulation_of,
    stats_of,
    step_of,
    transfers_of,
)
from rhino.passes.planner.tables import more, section, table
from rhino.strategies.pipeline.simulate import Simulation

_SHOWN: Final = 4
"""Names of what is stored as blocks that the totals show."""

# Characters of how an op runs; a loop's return has a spec for each value that it carries, and one row would make all as
# wide.
_HOW_WIDTH: Final = 90


def explain_text(plan: Plan, num_rows: int = 20) -> str:
    """Returns the totals of a plan, and `num_rows` of its tensors, ops, programs, transfers and collectives each.

    `[*]` stands for numbers that differ, those of layers.
    """
    lines = totals(plan)
    execution, sharding = plan.execution, plan.sharding
    simulation = simulation_of(execution) if execution else None
    if execution and simulation:
        lines += [
            *_ranks(plan, simulation),
            *_programs(execution, num_rows),
            *_transfers(execution, simulation, num_rows),
        ]
    lines += _tensors(plan, num_rows)
    if sharding:
        lines += [*_works(plan, sharding, num_rows), *_collectives(sharding, num_rows), *_memory(sharding, num_rows)]
    lines += compared_text(plan.compared) if plan.compared else []
    lines += alternatives_text(plan, num_rows)
    return "\n".join([*lines, *([render(simulation.timeline).rstrip("\n")] if simulation else [])])


def summary_text(plan: Plan) -> str:
    """Returns what a plan comes to in a few lines, as its file says."""
    return "\n".join(
        [*totals(plan), f"  {len(plan.arguments)} arguments, {len(plan.results)} results; explain() has more"]
    )


def totals(plan: Plan) -> list[str]:
    """Returns what a plan is of, what it takes and what it needs, a line each."""
    found = plan.predicted
    kept = max(found.kept_bytes)
    old = f", {format_bytes(kept)} of it old state that is kept" if kept else ""
    rank, own = fullest_rank(plan)
    of = f" of {own.group}" if own.group else ""
    on = f" on rank {rank}{of}, the fullest of {plan.num_ranks}" if plan.num_ranks > 1 else ""
    return [
        f"{plan.source.function}: {plan.form()}, for {plan.cluster_name}",
        f"  step   {format_seconds(found.step_s)}{_parts(plan)}{_bound(plan)}",
        f"  memory {peak_text(found.peak_bytes[rank], own.budget_bytes)}{old}{on}",
        *_headroom_lines(plan),
        *_stored_lines(plan),
        *_host_lines(plan),
        *answer_lines(plan),
    ]


def _headroom_lines(plan: Plan) -> list[str]:
    """Returns a line on what is left free of a device's memory, where the budget is the one that the cluster gives."""
    cluster = plan.machine()
    device, share = cluster.device, cluster.device.headroom_fraction
    if cluster.groups or not share or plan.predicted.budget_bytes != device.usable_hbm_bytes:
        return []
    left = format_bytes(device.hbm_bytes * device.usable_hbm_fraction * share)
    return [f"  headroom {left}, {share:.0%} of what programs may use, for what lies beside a step"]


def _stored_lines(plan: Plan) -> list[str]:
    """Returns a line that says what is stored as blocks, where something is, and the step without."""
    viewed = [one.path for one in plan.arguments if one.viewed]
    if not viewed:
        return []
    names = list(dict.fromkeys(map(folded, viewed)))
    shown = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
    without = next((one for one in plan.alternatives if one.what == PLAIN), None)
    against = f"; step {step_of(without)} without" if without else ""
    return [f"  blocks in {len(viewed)} of {len(plan.arguments)} arguments{against}: {shown}"]


def _host_lines(plan: Plan) -> list[str]:
    """Returns a line for the arguments that lie in host memory, one for the saved values, and one for all together."""
    sizes = in_host_memory(plan)
    rank = max(range(plan.num_ranks), key=sizes.__getitem__)
    most = rank_limits(plan)[rank].host_bytes
    of = f" of {format_bytes(most)}" if most is not None else ""
    on = f" on rank {rank}" if plan.num_ranks > 1 else ""
    total = [f"  host memory {format_bytes(sizes[rank])}{of} per device{on}"] if sizes[rank] else []
    return [*_arguments_on_host(plan), *_values_on_host(plan), *total]


def _values_on_host(plan: Plan) -> list[str]:
    waiting = plan.sharding.waiting if plan.sharding else None
    if waiting is None:
        return []
    what = f"{waiting.count} value{'s' if waiting.count != 1 else ''}, {format_bytes(waiting.num_bytes)} per device"
    moved = f"{format_seconds(waiting.seconds)} to take them there and bring them back"
    return [f"  saved  {what}, for the backward pass in host memory: {moved}"]


def _arguments_on_host(plan: Plan) -> list[str]:
    groups = leaf_groups(plan.arguments)
    there = [one for one in plan.arguments if one.memory == HOST]
    if not there:
        return []
    count = sum(any(plan.arguments[piece].memory == HOST for piece in group) for group in groups)
    sizes = [0] * plan.num_ranks
    for one in there:
        sizes[one.rank] += device_bytes(one, plan.axes(one.rank))
    what = f"{count} argument{'s' if count != 1 else ''}, {format_bytes(max(sizes))} per device"
    return [f"  host   {what}, in host memory: {format_seconds(host_seconds(plan))} to bring them and take them back"]


def answer_lines(plan: Plan) -> list[str]:
    """Returns a line for each thing that a plan was asked to compute in another way than the step is written."""
    parts = num_statistics_parts(plan.options.get("batch-statistics", ""))
    of = f"of {parts} equal parts of the batch" if parts else "micro-batch"
    texts = {
        "batch-statistics": f"that of a step whose statistics are of each {of}",
        "amp": "that of a step whose f32 products and activations are in 16 bits, and its parameters and update in f32",
    }
    return [f"  answer {text} ({name}={plan.options[name]})" for name, text in texts.items() if plan.options.get(name)]


def micro_batches_at_a_time(count: int) -> str:
    """Returns how many micro-batches are alive, in words."""
    return f"{count} micro-batch{'es' if count != 1 else ''} at a time"


def compared_text(compared: Comparison) -> list[str]:
    """Returns what a compiler made of each plan that it compiled, beside what was predicted, as lines."""
    best = compared.plans[compared.chosen].compiled_s or 1.0
    head = ("", "plan", "form", "step", "times the best", "memory", "predicted", "")
    rows = [head]
    for number, one in enumerate(compared.plans):
        figures = (
            ("", "", "")
            if one.compiled_s is None or one.compiled_bytes is None
            else (format_seconds(one.compiled_s), f"{one.compiled_s / best:.2f}", format_bytes(one.compiled_bytes))
        )
        predicted = f"{format_seconds(one.predicted_s)}, {format_bytes(one.predicted_bytes)}"
        rows.append(("*" if number == compared.chosen else "", one.name, one.form, *figures, predicted, one.why))
    return [f"compiled by {compared.compiler}:", *table(rows)]


def alternatives_text(plan: Plan, num_rows: int = 20) -> list[str]:
    """Returns what else was looked at, best first, as lines; none where nothing was."""
    return section("alternatives:", [(step_of(one), one.what, one.why) for one in plan.alternatives], num_rows)


def _parts(plan: Plan) -> str:
    one = plan.sharding
    if one is None:
        return ""
    host_s = host_seconds(plan) + (one.waiting.seconds if one.waiting else 0.0)
    rest = max(0.0, plan.predicted.step_s - one.compute_s - one.communication_s - host_s)
    there = f", {format_seconds(host_s)} from host memory and back" if host_s else ""
    other = f", {format_seconds(rest)} to launch it and to cut blocks" if rest > 1e-4 * plan.predicted.step_s else ""
    parts = f"{format_seconds(one.compute_s)} of compute, {format_seconds(one.communication_s)} in collectives"
    return f": {parts}{there}{other}"


def _bound(plan: Plan) -> str:
    found = plan.predicted
    if not found.at_least_s:
        return ""
    gap = max(0.0, 1 - found.at_least_s / found.step_s) if found.step_s else 0.0
    return f"; no plan takes less than {format_seconds(found.at_least_s)} (gap {gap:.2%})"


def _ranks(plan: Plan, simulation: Simulation) -> list[str]:
    arguments = Counter[int]()
    for one in alike(plan, plan.arguments):
        arguments[one.first.rank] += one.num_bytes if one.first.memory == DEVICE else 0
    groups = [one.group for one in rank_limits(plan)]
    rows = [
        (
            f"rank {rank}",
            *([groups[rank]] if any(groups) else []),
            f"{simulation.timeline.idle(rank):.0%} idle",
            peak_text(plan.predicted.peak_bytes[rank]),
            f"arguments {format_bytes(arguments[rank])}",
            micro_batches_at_a_time(memory.peak_micro_batches),
        )
        for rank, memory in enumerate(simulation.memory)
    ]
    return ["ranks:", *table(rows)]


def _programs(execution: Execution, num_rows: int) -> list[str]:
    rows = [
        (
            format_seconds(one.runs * one.seconds),
            f"{one.runs} x {format_seconds(one.seconds)}",
            format_bytes(one.temp_bytes),
            f"rank {one.rank}",
            f"{one.phase} of stage {one.stage}",
            one.name,
        )
        for one in program_runs(execution)
    ]
    return section("programs: seconds in a step and in a run, bytes beside inputs and outputs", rows, num_rows)


def _transfers(execution: Execution, simulation: Simulation, num_rows: int) -> list[str]:
    rows = [
        (
            format_seconds(one.seconds),
            format_bytes(one.num_bytes),
            f"{one.count} from rank {one.source} to {one.target}",
        )
        for one in transfers_of(execution, simulation)
    ]
    title = "transfers: seconds and bytes per step, from each device of one rank to a device of the other"
    return section(title, rows, num_rows)


def _tensors(plan: Plan, num_rows: int) -> list[str]:
    arguments = _tensor_section(plan, "arguments", plan.arguments, num_rows)
    return [
        *arguments,
        *_tensor_section(plan, "results that replace no argument", new_results(plan), num_rows),
    ]


def _tensor_section(plan: Plan, title: str, tensors: Sequence[Tensor], num_rows: int) -> list[str]:
    costs = plan.sharding.costs if plan.sharding else ()
    rows = []
    for one in alike(plan, tensors):
        sent = [_seconds(sent_s(costs, one.name))] if plan.sharding else []
        rank = [f"rank {one.first.rank}"] if plan.num_ranks > 1 else []
        kind = f"{len(one.tensors)} x {one.first.words}"
        where = IN_HOST_MEMORY if one.first.memory == HOST else ""
        rows.append((format_bytes(one.num_bytes), *sent, *rank, kind, dims_text(one.first.dims) + where, one.name))
    words = ", seconds in collectives" if plan.sharding else ""
    return section(f"{title}: bytes per device{words}", rows, num_rows)


def _works(plan: Plan, sharding: Sharding, num_rows: int) -> list[str]:
    head = ("compute", "waits", "results", "ops", "shared by", "how", "where")
    rows = [
        (
            format_seconds(one.compute_s),
            _seconds(one.collectives_s),
            format_bytes(one.num_bytes),
            f"{one.count} x {one.kind}",
            f"{one.shares} of {plan.mesh.num_devices}",
            shorten(one.how, _HOW_WIDTH, placeholder=" ..."),
            " at ".join(filter(None, (one.name, one.line))),
        )
        for one in sharding.works
    ]
    title = (
        "ops: seconds of compute and of the collectives that they wait for, and bytes of their results, per step and "
        "device"
    )
    return section(title, rows, num_rows, head)


def _collectives(sharding: Sharding, num_rows: int) -> list[str]:
    if not sharding.costs:
        return ["no collectives"]
    rows = [
        (
            format_seconds(one.seconds),
            f"{one.count} x {one.kind}",
            format_bytes(one.num_bytes),
            " at ".join(filter(None, (one.place, one.line))),
        )
        for one in sharding.costs
    ]
    sums = [f"  {line}" for line in stats_of(sharding.costs).table().splitlines()]
    title = "collectives, seconds and bytes per step and device:"
    return [title, *sums, *table(rows[:num_rows]), *more(len(rows), num_rows)]


def _memory(sharding: Sharding, num_rows: int) -> list[str]:
    memory = sharding.memory
    rows = [
        (format_bytes(one.num_bytes), f"{one.count} x {one.kind}", one.name) for one in memory.alive if one.num_bytes
    ]
    where = f", in {memory.peak_op}" if memory.peak_op else ""
    title = f"alive at the peak (time {memory.peak_time} of {memory.num_times}{where}), bytes per device:"
    return section(title, rows, num_rows)


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"
