"""A plan of any kind for a traced function: shardings alone, in stages, or whatever the search of whole plans finds best."""

from __future__ import annotations

from dataclasses import replace

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.frontend.stage_marks import BOUNDARY, num_marked_stages
from rhino.passes.layout.pad import refuse_pads
from rhino.passes.pipeline.rematerialize import kept_by_all, remat_text
from rhino.passes.planner.autotune import NOT_MADE, AutotuneRequest, Decided, Made, choose_whole
from rhino.passes.planner.evaluate import Setup
from rhino.passes.sharding.problem import WHOLE_NEEDS_LESS
from rhino.pipeline_planner import Staged, plan_stages
from rhino.planner import SHARD, Planned, PlanRequest, search_plan
from rhino.source import as_keywords, read_traced, shapes
from rhino.traced import Traced

_SEARCHED = ("pin", "forbid", "axis-role", "constraints", "op-rules", "batch")


def plan_step(traced: Traced, request: PlanRequest) -> Planned | Staged:
    """Returns the best plan that keeps to the request.

    Raises:
        RhinoError: what `rhino-opt` raises for such a plan, RHI-JAX-002 where something is said of stages or a batch in parts that is not.
    """
    try:
        return _planned(traced, request)
    except RhinoError as error:
        fix = as_keywords(error).fix
        if error.id in NOT_MADE and request.search == SHARD:
            fix = f"{fix}; or say search='whole': {WHOLE_NEEDS_LESS}"
        raise replace(error, fix=fix) from None


def _planned(traced: Traced, request: PlanRequest) -> Planned | Staged:
    if request.stages is None and (count := _marked(traced)) > 1:
        request = replace(request, stages=count, mesh=str(max(1, request.shared // count)) if request.shared else request.mesh)
    if request.is_open or (request.stages or 1) > 1:
        refuse_pads({"pad": "; ".join(request.pad), "constraints": request.constraints})
    if request.is_open:
        return _search_whole(traced, request)
    if (request.stages or 1) > 1:
        return plan_stages(traced, request)
    said = "schedule" if request.schedule else "batch" if request.batch and request.micro_batches is None else ""
    if said:
        what = f"{said} is given, and {traced.name} is one program for the whole batch"
        raise RhinoError("RHI-JAX-002", what, Place(traced.name), fix=f"say stages or micro_batches, or leave {said} out")
    if request.micro_batches == 1:
        request = replace(request, micro_batches=None, batch="")  # a loop of one trip would refuse what stands for the whole batch
    return search_plan(traced, request)


def _marked(traced: Traced) -> int:
    """Returns how many stages the function's own boundaries make."""
    if BOUNDARY.encode() not in traced.code:
        return 1
    context = make_context()
    module = read_traced(traced, context)
    with context, ir.Location.unknown():
        Normalize(boundaries=True).run(module.operation, Remarks(traced.name))
    return num_marked_stages(module)


def _search_whole(traced: Traced, request: PlanRequest) -> Planned | Staged:
    """Returns the best plan of what the request leaves open."""
    context = make_context()
    module = read_traced(traced, context)
    options = {name: text for name, text in request.options(shapes(traced, module)).items() if name in _SEARCHED}
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks(traced.name))
    mesh = request.named_mesh()
    keep = kept_by_all(request.remat) if request.remat else None
    said = AutotuneRequest(request.stages, mesh.shape if mesh else (), request.micro_batches, request.schedule, keep, jobs=request.jobs)
    setup = Setup(bytecode(module), traced.name, request.cluster, float(request.budget_bytes()), options, said.schedules())

    def make(plan: Decided) -> Made[Planned | Staged]:
        found = _made(traced, _as_decided(request, plan))
        if isinstance(found, Staged):
            return Made(found, found.step_s, found.peak_bytes)
        return Made(found, found.plan.predicted.step_s, (found.plan.predicted.peak_bytes,))

    found, report = choose_whole(setup, said, make)
    if isinstance(found, Staged):
        return replace(found, plan=replace(found.plan, about={**found.plan.about, "search": report.json()}))
    return found


def _made(traced: Traced, request: PlanRequest) -> Planned | Staged:
    return plan_stages(traced, request) if request.schedule else search_plan(traced, request)


def _as_decided(request: PlanRequest, plan: Decided) -> PlanRequest:
    """Returns the request for a plan of which nothing is open."""
    return replace(
        request,
        mesh=request.mesh if request.named_mesh() else "x".join(map(str, plan.mesh)),
        micro_batches=plan.micro_batches if plan.schedule or plan.micro_batches > 1 else None,
        remat=remat_text(plan.keep),
        stages=plan.stages,
        schedule=plan.schedule,
        search=SHARD,
    )
