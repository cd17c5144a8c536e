"""Find the plan that `rhino-opt --auto-parallel` makes where the command line leaves something of it open."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TextIO

from rhino.ir.cluster.mesh import parse_meshes
from rhino.ir.cluster.placement import placed_name
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import bytecode
from rhino.ir.plan.plan import AUTOTUNE, SHARD, Plan, Request
from rhino.ir.units import format_seconds, parse_size
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.frontend.stage_marks import num_marked_stages
from rhino.passes.pipeline.pipeline_stages import parse_tolerance
from rhino.passes.pipeline.rematerialize import BY_STAGE, parse_remat, refuse_several
from rhino.passes.planner.aot_parallel import Compiles
from rhino.passes.planner.autotune import Made, choose_plan
from rhino.passes.planner.autotune_report import Report
from rhino.passes.planner.request import Decided, PlanRequest, budget_of
from rhino.passes.planner.setup import Setup
from rhino.passes.sharding.planning_pass import AUTO, DEFAULT_CLUSTER
from rhino.strategies.autotune import DEFAULT
from rhino.strategies.autotune.base import MOST, Explored
from rhino.tools.ending import heard_at_once
from rhino.tools.files import write_output
from rhino.tools.opt_aot import say_compared
from rhino.tools.opt_options import make_one_program, settle

_PASS_OPTIONS: Final[tuple[str, ...]] = (
    "pin",
    "forbid",
    "axis-role",
    "scope",
    "constraints",
    "op-rules",
    "batch",
    "no-batch",
    "batch-statistics",
    "amp",
    "attention",
    "offload",
)

_INTERRUPTED: Final = (
    "rhino-opt: interrupted: ending with the best plan so far, if there is one; to stop at once, interrupt again"
)


@dataclass(frozen=True, slots=True, eq=False)
class MadeModule:
    """A module made by a plan, the plan where that is in stages, and the work that is left if it is chosen.

    `finish` does that work and takes the search's report.
    """

    module: ir.Module
    plan: Plan | None
    finish: Callable[[Report], None]


Make = Callable[[Callable[[], ir.Module], Namespace, str], Made[MadeModule]]


def search_plan(
    module: ir.Module,
    options: Namespace,
    given: dict[str, str],
    file: str,
    stderr: TextIO,
    make: Make,
    compiles: Compiles | None,
) -> ir.Module:
    """Returns the module that `make` makes by the best plan.

    Reports on `stderr` which plan that is, and by how much the others lost.

    `given` are the options of passes by name. `make` takes what gives a module of its own, a command line on which
    nothing is open, and the name of what that asks for. With `compiles` it has its plans compiled.

    Raises:
        RhinoError: RHI-SOLVE-001 where no plan fits, what reading the module raises, RHI-CLI-003.
    """
    with module.context, ir.Location.unknown():
        Normalize(boundaries=True).run(module.operation, Remarks(file))
    request = request_of(options, given)
    if request.stages is None and (marked := num_marked_stages(module)) > 1:
        request = replace(request, stages=marked)
    budget = float(request.budget_bytes)
    setup = Setup(bytecode(module), file, request.cluster, budget, dict(request.options), request.schedules())
    if (tolerance := parse_tolerance(options.tolerance or "")) is not None:
        setup = replace(setup, tolerances=(tolerance,))

    def make_own(plan: Decided) -> Made[MadeModule]:
        return make(lambda: ir.Module.parse(setup.module, module.context), decided_options(options, plan), str(plan))

    with heard_at_once(_INTERRUPTED, stderr), Progress(stderr) as progress:
        made, report = choose_plan(setup, request, make_own, progress.on_round, compiles)
    print(report.text(), file=stderr)
    if report.compared:
        say_compared(report.compared, stderr)
    if options.plan_json:
        write_output(options.plan_json, (json.dumps(report.json(), indent=2) + "\n").encode(), sys.stdout.buffer)
    made.finish(report)
    return made.module


def request_of(options: Namespace, given: dict[str, str]) -> PlanRequest:
    """Returns what a command line asks for; `given` are the options of passes by name.

    Raises where a text of it is malformed.
    """
    cluster = given.get("cluster", DEFAULT_CLUSTER)
    remat, recomputes = remat_of(options)
    refuse_several(remat)
    searches_mesh = options.mesh == AUTO
    return PlanRequest(
        cluster=cluster,
        budget_bytes=budget_of(cluster, options.budget),
        meshes=parse_meshes(options.mesh) if options.mesh and not searches_mesh else (),
        searches_mesh=searches_mesh,
        stages=options.stages,
        replicas=options.replicas or "",
        micro_batches=options.num,
        schedule=options.schedule or "",
        remat=remat,
        recomputes=recomputes,
        options={name: given[name] for name in _PASS_OPTIONS if name in given},
        strategy=options.strategy or DEFAULT,
        candidates=options.candidates or MOST,
        jobs=options.jobs,
    )


def asked(options: Namespace) -> Request:
    """Returns what a plan keeps of a command line's request."""
    return Request(
        AUTOTUNE if options.searches else SHARD,
        options.mesh or "",
        options.stages,
        options.num,
        options.schedule or "",
        remat_of(options)[0],
        None if options.budget is None else parse_size(options.budget),
        options.strategy or "",
        options.candidates,
        options.replicas or "",
        remat_of(options)[1],
    )


def remat_of(options: Namespace) -> tuple[tuple[float, ...], bool]:
    """Returns the shares that are recomputed, and whether each stage recomputes what its memory asks for."""
    if options.remat is None or options.remat == BY_STAGE:
        return (), options.remat == BY_STAGE
    return parse_remat(options.remat), False


def decided_options(options: Namespace, plan: Decided) -> Namespace:
    """Returns the command line that asks for a plan of which nothing is open."""
    found = Namespace(**vars(options))
    found.searches, found.mesh = False, ";".join("x".join(map(str, mesh)) for mesh in plan.meshes)
    found.remat = BY_STAGE if plan.recomputes else f"{plan.remat:g}" if plan.remat else None
    found.num = plan.micro_batches
    if plan.replicas > 1:
        found.stages, found.replicas, found.is_decided = 1, options.replicas or str(plan.replicas), True
        return found
    if plan.stages == 1:
        make_one_program(found)
        return found
    if plan.device_order:
        found.cluster = placed_name(options.cluster or DEFAULT_CLUSTER, plan.device_order)
    found.schedule = plan.schedule or None
    found.stages, found.chunks = plan.stages, plan.chunks
    settle(found)
    return found


class Progress:
    """How far the search is, on a terminal; nothing elsewhere. To be entered."""

    def __init__(self, stderr: TextIO) -> None:
        self.is_shown = stderr.isatty()
        self.stderr = stderr

    def __enter__(self) -> Progress:
        if self.is_shown:
            from rich.console import Console  # noqa: PLC0415 - for terminals alone

            self.status = Console(file=self.stderr).status("planning the first configurations")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_shown:
            self.status.stop()

    def on_round(self, explored: Explored) -> None:
        """Shows what is known after a round."""
        if self.is_shown:
            best = explored.quickest
            words = (
                f"best so far: {best.config}, {format_seconds(best.step_s)}"
                if best
                else "none is predicted to fit so far"
            )
            self.status.update(f"{len(explored.outcomes)} configurations planned; {words}")
