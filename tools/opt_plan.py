"""Write the whole plan that `rhino-opt --auto-parallel` ends in, once it is proven to run and to fit."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.folder import digest_of, write_plan
from rhino.ir.plan.timeline import render
from rhino.ir.program.staged_module import is_staged
from rhino.ir.units import format_seconds, parse_size, peak_text
from rhino.passes.base import read_options
from rhino.passes.planner.spmd_search import cluster_lines
from rhino.passes.planner.staged_plan import Made, make_whole_plan
from rhino.passes.planner.staged_text import micro_batches_at_a_time
from rhino.passes.registry import PARALLEL
from rhino.passes.sharding.problem import DEFAULT_CLUSTER
from rhino.runtime.executor.inputs import nonnegative_arguments
from rhino.runtime.executor.verify import Limits, verify
from rhino.strategies.pipeline.schedules import DEFAULT
from rhino.tools.opt_options import given_options


def source_facts(module: ir.Module, data: bytes, file: str) -> dict[str, Any]:
    """Returns what a plan keeps of the program that it is made for; to be asked before passes run."""
    return {"source": Path(file).name, "source_sha256": digest_of(data), "nonnegative_arguments": sorted(nonnegative_arguments(module))}


def prove(staged: ir.Module, options: Namespace, facts: dict[str, Any], file: str) -> Made:
    """Returns the plan of `staged` as the command line asks for it.

    Raises:
        RhinoError: RHI-CLI-001 where `staged` is not in stages, and what `prove_whole_plan` raises.
    """
    if not is_staged(staged.operation):
        raise RhinoError("RHI-CLI-001", "--plan is given, and the module is no step in stages", Place(file), fix="add --auto-parallel")
    cluster = options.cluster or DEFAULT_CLUSTER
    budget = parse_size(options.budget) if options.budget else int(load_cluster(cluster).device.usable_hbm_bytes)
    facts = {**facts, "cluster_file": list(cluster_lines(cluster)), **_asked_of_pipeline(options)}
    return prove_whole_plan(staged, options.schedule or DEFAULT, cluster, budget, facts, chunks=options.chunks, file=file)


def _asked_of_pipeline(options: Namespace) -> dict[str, dict[str, str]]:
    """Returns what the pipeline that cuts a step was asked for, but for the cluster; nothing where passes were named one by one."""
    own = [text for name, text in options.steps if name == PARALLEL]
    asked = {**given_options(options), **read_options(PARALLEL, own[0])} if own else {}
    return {"pipeline": {name: text for name, text in asked.items() if name != "cluster"}} if own else {}


def prove_whole_plan(
    staged: ir.Module, schedule: str, cluster: str, budget_bytes: int, facts: dict[str, Any], *, chunks: int = 1, file: str = ""
) -> Made:
    """Returns the plan of `staged`, whose programs are in an order that is proven to run and to fit.

    Raises:
        RhinoError: RHI-SCHED-001, RHI-STEP-008 where a device has not enough memory, and what `make_whole_plan` raises.
    """
    made = make_whole_plan(staged, schedule, cluster, facts, chunks=chunks, file=file)
    plan = made.plan
    limits = Limits(budget_bytes, made.costs.temp_bytes, tuple(one.name for one in plan.arguments))
    verify(plan.step, len(plan.arguments), len(plan.results), limits)
    return made


def with_search(made: Made, search: dict[str, Any]) -> Made:
    """Returns a plan that says how it was found, and what others lost by."""
    return replace(made, plan=replace(made.plan, about={**made.plan.about, "search": search}))


def write_whole_plan(made: Made, options: Namespace, stderr: TextIO) -> None:
    """Writes a plan, and says what it comes to. Raises RHI-PLAN-003 where the folder cannot be written."""
    if options.plan:
        write_plan(made.plan, Path(options.plan))
    print(_summary(made), file=stderr)
    if options.timeline:
        print(render(made.simulation.timeline), file=stderr)


def _summary(made: Made) -> str:
    about, timeline = made.plan.about, made.simulation.timeline
    chunks = about["stages"] // about["ranks"]
    counted = f", counted in each of its {chunks} stages" if chunks > 1 else ""
    rows = [
        f"  rank {rank}: {timeline.idle(rank):.0%} idle, {peak_text(memory.peak_bytes)}, "
        f"at most {micro_batches_at_a_time(memory.peak_micro_batches)}{counted}"
        for rank, memory in enumerate(made.simulation.memory)
    ]
    moved = len(timeline.moves)
    head = f"{made.plan.form()}: step {format_seconds(timeline.end_s)}, {moved} transfers"
    return "\n".join([head, *rows])
