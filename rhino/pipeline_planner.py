"""From a traced function to a plan in stages: by the passes of `rhino-opt --auto-parallel`, or as a plan that was kept says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.version import __version__ as jax_version

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import entry_function
from rhino.ir.plan.folder import WholePlan
from rhino.ir.plan.instructions import Feed
from rhino.ir.plan.spmd_changes import check_current
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.program.staged_module import KEPT
from rhino.ir.units import PEAK, format_bytes
from rhino.passes.base import Remarks
from rhino.passes.planner.spmd_search import Sides, cluster_lines, normalize
from rhino.passes.planner.staged_plan import Made
from rhino.passes.planner.staged_search import cut_step
from rhino.passes.registry import PARALLEL, build_named
from rhino.pipeline_plan import kind_of, origin_of
from rhino.planner import PlanRequest
from rhino.runtime.executor.inputs import nonnegative_arguments
from rhino.source import SIDES, key_words, read_traced, shapes
from rhino.strategies.pipeline.schedules import DEFAULT, find_schedule
from rhino.tools.opt_plan import prove_whole_plan
from rhino.traced import Traced


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A plan in stages; `step_s` and `peak_bytes` of each rank are predicted."""

    plan: WholePlan
    step_s: float
    peak_bytes: tuple[float, ...]


def plan_stages(traced: Traced, request: PlanRequest) -> Staged:
    """Returns the plan of `traced` in the stages and micro-batches that the request names.

    Raises:
        RhinoError: what `rhino-opt --auto-parallel` raises; RHI-SOLVE-001 where old state that is kept does not fit.
    """
    context, remarks = make_context(), Remarks(traced.name)
    module = read_traced(traced, context, KEPT)
    schedule = find_schedule(request.schedule or DEFAULT)
    chunks = 2 if schedule.chunked else 1
    asked = request.options(shapes(traced, module))
    stages = request.stages or 1
    options = {**asked, "cluster": request.cluster, "stages": str(stages), "ranks": str(max(1, stages // chunks))}
    options |= {name: text for name, text in (("mesh", request.mesh), ("budget", request.budget)) if text}
    if schedule.splits_backward:
        options["split-backward"] = "true"
    nonnegative, whole = sorted(nonnegative_arguments(module)), key_words(traced)
    source = cut_step(module, traced.name, options, remarks, whole)
    about: dict[str, Any] = {
        "source": source.function,
        "source_sha256": source.sha256,
        "normal_sha256": source.normal_sha256,
        "ops": dict(source.ops),
        "nonnegative_arguments": nonnegative,
        "cluster_file": list(cluster_lines(request.cluster)),
        "asked": asked,
        "pipeline": {name: text for name, text in options.items() if name != "cluster"},
        "whole": [[list(one) for one in sorted(whole[side].items())] for side in SIDES],
        "jax": jax_version,
    }
    budget = request.budget_bytes()
    made = prove_whole_plan(module, schedule.name, request.cluster, budget, about, chunks=chunks, file=traced.name)
    peaks = _with_kept(made, traced, budget)
    return Staged(made.plan, made.simulation.timeline.end_s, peaks)


def adopt_stages(traced: Traced, plan: WholePlan, cluster: str | None) -> None:
    """Proves that a plan that was kept is of `traced`, and of a cluster that is named.

    Raises:
        RhinoError: RHI-PLAN-004 where it is not, RHI-PLAN-001 where it does not say.
    """
    context, remarks = make_context(), Remarks(traced.name)
    module = read_traced(traced, context, KEPT)
    passes = build_named(PARALLEL, {})
    assert passes is not None
    now = _stored(traced, module)
    source = normalize(module, traced.name, passes[:1], remarks, is_rewritten=False)
    check_current(origin_of(plan), source, now, cluster_lines(cluster) if cluster is not None else None)


def _stored(traced: Traced, module: ir.Module) -> Sides:
    """Returns arguments and results by path, as they are stored: typed keys by their words."""
    entry = entry_function(module)
    sides = []
    for side, types in zip(shapes(traced, module), (entry.type.inputs, entry.type.results), strict=True):
        kinds = [ir.RankedTensorType(one) for one in types]
        sides.append(
            tuple(
                type(one)(one.path, kind_of(str(kind.element_type), kind.shape), one.dims, one.num_bytes, one.alias)
                for one, kind in zip(side, kinds, strict=True)
            )
        )
    return sides[0], sides[1]


def _with_kept(made: Made, traced: Traced, budget: int) -> tuple[float, ...]:
    """Returns the peak of each rank, old state that the caller keeps included. Raises RHI-SOLVE-001 where that does not fit."""
    step = made.plan.step
    kept = [0] * step.num_ranks
    for one in step.instructions:
        if isinstance(one, Feed) and one.argument in traced.kept:
            slot = step.slots[one.target]
            kept[slot.rank] += local_bytes(slot.layout, step.mesh)
    peaks = tuple(float(memory.peak_bytes + more) for memory, more in zip(made.simulation.memory, kept, strict=True))
    if max(peaks) > budget:
        rank = peaks.index(max(peaks))
        sizes = f"{format_bytes(peaks[rank])} per device, of {format_bytes(budget)}"
        what = f"rank {rank} has a {PEAK} of {sizes}: {format_bytes(kept[rank])} of it to keep old state"
        raise RhinoError("RHI-SOLVE-001", what, Place(traced.name), fix="donate the state (donate_argnums), or raise the budget")
    return peaks
