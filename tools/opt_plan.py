"""The plan that `rhino-opt` writes: of a step in stages as --auto-parallel made it, or as a search found it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.files import save_plan
from rhino.ir.plan.plan import Request, Source
from rhino.ir.plan.timeline import render
from rhino.ir.program.staged_module import is_staged
from rhino.ir.units import format_seconds, peak_text
from rhino.passes.base import read_options
from rhino.passes.planner.autotune_report import Report
from rhino.passes.planner.explain import answer_lines, micro_batches_at_a_time
from rhino.passes.planner.module_facts import digest
from rhino.passes.planner.request import budget_of
from rhino.passes.planner.staged_plan import StagedPlan, make_staged_plan
from rhino.passes.registry import PARALLEL
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER
from rhino.runtime.executor.inputs import nonnegative_arguments
from rhino.tools.opt_options import given_options


class Planner:
    """Makes the plan of a module in stages; made before passes run, it knows the program that the plan is for."""

    def __init__(self, module: ir.Module, file: str) -> None:
        self.file = file
        self.source = Source(Path(file).name, digest(module))
        self.nonnegative = sorted(nonnegative_arguments(module))

    def plan(self, staged: ir.Module, options: Namespace) -> StagedPlan:
        """Returns the plan of `staged` as the command line asks for it.

        Raises:
            RhinoError: RHI-CLI-001 where `staged` is not in stages, and what `make_staged_plan` raises.
        """
        if not is_staged(staged.operation):
            what = "--plan is given, and the module is no step in stages"
            raise RhinoError("RHI-CLI-001", what, Place(self.file), fix="add --auto-parallel")
        own = [text for name, text in options.steps if name == PARALLEL]
        given = {**given_options(options), **read_options(PARALLEL, own[0])} if own else {}
        budget, cluster = self.budget_bytes(options), options.cluster or DEFAULT_CLUSTER
        return make_staged_plan(staged, self.source, cluster, budget, given, self.nonnegative)

    def budget_bytes(self, options: Namespace) -> int:
        """Returns what a plan may take of a device."""
        return budget_of(options.cluster or DEFAULT_CLUSTER, options.budget)


def write_staged_plan(
    made: StagedPlan, report: Report | None, options: Namespace, request: Request, stderr: TextIO
) -> None:
    """Writes a plan, and says what it comes to. Raises RHI-PLAN-003 where the folder cannot be written."""
    if options.plan:
        plan = report.added_to(made.plan) if report else made.plan
        save_plan(replace(plan, request=request), Path(options.plan))
    print(_summary(made), file=stderr)
    if options.timeline:
        print(render(made.simulation.timeline), file=stderr)


def _summary(made: StagedPlan) -> str:
    plan, timeline = made.plan, made.simulation.timeline
    rows = [
        f"  rank {rank}: {timeline.idle(rank):.0%} idle, {peak_text(memory.peak_bytes)}, "
        f"at most {micro_batches_at_a_time(memory.peak_micro_batches)}"
        for rank, memory in enumerate(made.simulation.memory)
    ]
    head = f"{plan.form()}: step {format_seconds(timeline.end_s)}, {len(timeline.moves)} transfers"
    return "\n".join([head, *rows, *answer_lines(plan)])
