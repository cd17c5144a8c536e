"""From a traced function to a plan: by search, in one program or in stages, or as a plan that was kept says."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from typing import Final

from jax.version import __version__ as jax_version

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import DEVICE
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.plan.changes import check_current
from rhino.ir.plan.leaves import leaf_groups
from rhino.ir.plan.plan import SHARD, Plan, Predicted, device_bytes, dims_between_calls
from rhino.ir.units import PEAK, format_bytes
from rhino.keywords import in_keywords
from rhino.passes.base import Remarks, make_passes
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.frontend.stage_marks import BOUNDARY, num_marked_stages
from rhino.passes.layout.pad import refuse_pads
from rhino.passes.pipeline.micro_batch import BATCH
from rhino.passes.pipeline.part_statistics import num_statistics_parts
from rhino.passes.pipeline.parted_statistics import PartedStatistics
from rhino.passes.pipeline.rematerialize import refuse_several
from rhino.passes.pipeline.scope_stages import ranks_of_scopes
from rhino.passes.planner.aot import LOCALIZED, SEARCHED, Comparer, Judged, first_form
from rhino.passes.planner.aot_parallel import CompilerFor, Compiles, compilers_of
from rhino.passes.planner.autotune import NOT_MADE, Made, choose_plan
from rhino.passes.planner.choose_layouts import host_shares
from rhino.passes.planner.in_less_memory import LessMemory, search_in_less
from rhino.passes.planner.module_facts import cluster_lines
from rhino.passes.planner.repeated_passes import RepeatedPasses
from rhino.passes.planner.request import MEMORY, Decided, PlanRequest
from rhino.passes.planner.scope_batches import choose_micro_batches
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.staged_fitting import Attempt, fit_in_stages
from rhino.passes.planner.staged_plan import cut_step, make_staged_plan, prove_fit, source_of_staged
from rhino.passes.planner.unstaged_plan import ANNOTATED, annotate, search
from rhino.passes.precision.mixed_precision import MixedPrecision
from rhino.passes.sharding.pin import requested_scopes
from rhino.passes.sharding.planning_pass import OTHERS_NEED_LESS
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.plan_options import PlanOptions
from rhino.runtime.aot.compile import compiler_of
from rhino.runtime.executor.inputs import nonnegative_arguments
from rhino.source import key_words, read_traced, shapes, tensors, with_kinds
from rhino.traced import Traced

_LOG: Final = logging.getLogger("rhino")

_SEARCHED: Final = (
    "pin",
    "forbid",
    "axis-role",
    "constraints",
    "op-rules",
    "batch",
    "batch-statistics",
    "amp",
    "attention",
    "offload",
)
"""Options that hold whatever stages, mesh and micro-batches are found."""

_REWRITING: Final = ("amp", *BATCH)
"""Options by which a step is made another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan, and the module that XLA is to compile, as bytecode; empty where the plan holds its programs."""

    plan: Plan
    code: bytes = b""


def plan_function(traced: Traced, options: PlanOptions) -> Planned:
    """Returns the best plan that keeps to what is asked.

    Raises:
        RhinoError: what `rhino-opt` raises for such a plan, RHI-JAX-002 where options are given on stages or a divided
            batch that there is not.
    """
    try:
        found = _planned(traced, options)
        return replace(found, plan=replace(found.plan, request=options.asked()))
    except RhinoError as error:
        fix = in_keywords(error.fix)
        if error.id in NOT_MADE and options.search == SHARD and not options.by_scopes:
            fix = f"{fix}; or give search='autotune': {OTHERS_NEED_LESS}"
        raise replace(error, fix=fix) from None


def adopt_plan(traced: Traced, plan: Plan, cluster: str | None, op_rules: str) -> Planned:
    """Returns `plan` for `traced`, which is to be the program that it was made for; nothing is searched.

    Raises:
        RhinoError: RHI-PLAN-004 where the program, or a cluster that is named, is another one; RHI-PLAN-001 where the
            plan is malformed.
    """
    if plan.is_staged:
        module = read_traced(traced, make_context())
        now = shapes(traced, module)
        source = source_of_staged(module, traced.name)
        check_current(plan, source, now, _lines(cluster))
        return Planned(plan)
    module = annotated_module(traced, plan, op_rules, cluster)
    assert plan.sharding is not None
    # A compiler has chosen the form too; else the local program is taken where there is one.
    chosen = plan.sharding.form if plan.compared else LOCALIZED
    form, code = (ANNOTATED, bytecode(module)) if chosen == ANNOTATED else first_form(module)
    return Planned(replace(plan, sharding=replace(plan.sharding, form=form)), code)


def rewritten_step(traced: Traced, plan: Plan) -> bytes:
    """Returns the program of which a plan is to give the answer, where that is not `traced`; else nothing."""
    options = {name: text for name, text in plan.options.items() if name in _REWRITING}
    if not options.get("amp") and not num_statistics_parts(options.get("batch-statistics", "")):
        return b""
    module = read_traced(traced, make_context())
    amp, parted = make_passes((MixedPrecision, PartedStatistics), options, "the plan")
    passes = [Normalize(), *((amp,) if "amp" in options else ()), parted]
    build_pass_manager(passes, module.context, Remarks(traced.name)).run(module.operation)
    return bytecode(module)


def annotated_module(traced: Traced, plan: Plan, op_rules: str, cluster: str | None = None) -> ir.Module:
    """Returns the module of `traced` with the shardings of a plan in one program on it. Raises as `adopt_plan`."""
    module = read_traced(traced, make_context())
    annotate(module, plan, traced.name, op_rules, shapes(traced, module), _lines(cluster))
    return module


def _planned(traced: Traced, options: PlanOptions) -> Planned:
    if options.by_scopes:
        options = _in_scopes(traced, options)
    if options.stages is None and not options.replicas and (count := _marked(traced)) > 1:
        options = replace(options, stages=count)
        if options.shared:
            options = replace(options, meshes=(mesh_of_shape((max(1, options.shared // options.num_ranks),)),))
    if options.is_open or options.is_staged:
        refuse_pads({"pad": "; ".join(options.pad), "constraints": options.constraints})
    is_parted = num_statistics_parts(options.batch_statistics) > 0
    of_parts = {} if is_parted else {"batch": options.batch, "batch_statistics": options.batch_statistics}
    given = ["schedule"] if options.schedule else []
    given += [name for name, one in of_parts.items() if one and options.micro_batches is None]
    unused = given[0] if given else ""
    if unused and not options.is_open and not options.is_staged:
        what = f"{unused} is given, and {traced.name} is one program for the whole batch"
        raise RhinoError(
            "RHI-JAX-002", what, Place(traced.name), fix=f"give stages or micro_batches, or leave {unused} out"
        )
    is_whole = options.micro_batches == 1
    if is_whole and not options.is_open and not options.is_staged:
        # A loop of one trip would refuse arguments that have no batch.
        options = replace(options, micro_batches=None)
        options = options if is_parted else replace(options, batch="", batch_statistics="")
    in_stages = options.is_staged and not options.is_open
    module = read_traced(traced, make_context())
    request = options.request(shapes(traced, module))
    if options.is_open:
        return _autotuned(traced, request, module, options)
    if options.by_scopes and options.micro_batches is None:
        return _in_batches(traced, request, options)
    if in_stages:
        return _staged(traced, request, module, options)
    return _one_program(traced, request, module, options, in_less=not is_whole and options.micro_batches is None)


def _in_scopes(traced: Traced, options: PlanOptions) -> PlanOptions:
    """Returns the request with the stages and meshes that the function's scopes ask for."""
    count = options.shared or load_cluster(options.cluster).num_devices
    scopes = requested_scopes("", options.constraints)
    ranks = ranks_of_scopes(_normalized(traced).operation, scopes, count, traced.name)
    return replace(options, stages=len(ranks.meshes), meshes=ranks.meshes, scope_replicas=ranks.replicas)


def _in_batches(traced: Traced, request: PlanRequest, own: PlanOptions) -> Planned:
    """Returns the plan of stages that are scopes in the best number of micro-batches, compiled if that is asked."""
    made: dict[int, Planned] = {}

    def make(number: int) -> Predicted:
        in_parts = replace(request, micro_batches=number)
        made[number] = _in_stages(traced, in_parts, read_traced(traced, make_context()))
        return made[number].plan.predicted

    best = choose_micro_batches(_setup(traced, request, _normalized(traced)), request.meshes, make)
    if not own.aot:
        return made[best]
    return _staged(traced, replace(request, micro_batches=best), read_traced(traced, make_context()), own)


def _setup(traced: Traced, request: PlanRequest, module: ir.Module) -> Setup:
    """Returns what configurations of a normalized module are evaluated for."""
    return Setup(
        bytecode(module),
        traced.name,
        request.cluster,
        float(request.budget_bytes),
        {name: text for name, text in request.options.items() if name in _SEARCHED},
        request.schedules(),
        own_shapes=True,
    )


def _marked(traced: Traced) -> int:
    """Returns how many stages the function's own boundaries make."""
    return num_marked_stages(_normalized(traced)) if BOUNDARY.encode() in traced.code else 1


def _normalized(traced: Traced) -> ir.Module:
    """Returns the module of a function, with its boundaries, normalized."""
    context = make_context()
    module = read_traced(traced, context)
    with context, ir.Location.unknown():
        Normalize(boundaries=True).run(module.operation, Remarks(traced.name))
    return module


def _one_program(
    traced: Traced, request: PlanRequest, module: ir.Module, options: PlanOptions, *, in_less: bool
) -> Planned:
    """Returns the best plan of `module` in one program; with `aot` the one that the target's compiler chooses.

    With `in_less` a step that is not predicted to fit is planned so that it takes less memory.
    """
    compiler_for = _compiler_for(traced, request, options, by_jit=True)
    if compiler_for is None:
        return _predicted(traced, request, module, in_less=in_less)
    return _of_judged(traced, request, _comparer(traced, request, options, compiler_for).run())


def _predicted(traced: Traced, request: PlanRequest, module: ir.Module, *, in_less: bool = False) -> Planned:
    """Returns the best plan of `module` in one program, as the search predicts it.

    With `in_less` a step that does not fit is planned so that it takes less memory.

    The search lets a carried result have its argument's buffer. Where the caller keeps the argument, both are there:
    what that takes is known with the plan, and is counted then.
    """
    budget = request.budget_bytes
    planned = _searched(traced, request, module, in_less=in_less)
    kept = _kept_bytes(traced, planned.plan)
    if planned.plan.predicted.peak_bytes[0] + kept[0] > budget:
        again = replace(request, budget_bytes=max(1, budget - kept[0]))
        planned = _searched(traced, again, read_traced(traced, make_context()), in_less=in_less)
        kept = _kept_bytes(traced, planned.plan)
    return replace(planned, plan=_with_kept(planned.plan, kept, budget))


def _searched(traced: Traced, request: PlanRequest, module: ir.Module, *, in_less: bool) -> Planned:
    """Returns the best plan; with `in_less`, where the step does not fit, one that takes less, which is logged."""
    given, words = request.pass_options(), key_words(traced)
    try:
        plan = search(module, traced.name, given, Remarks(traced.name), words).plan
    except RhinoError as error:
        if not in_less:
            raise
        found = search_in_less(lambda: read_traced(traced, make_context()), traced.name, given, error, words)
        module, plan = found.module, found.plan
        _LOG.warning("%s: %s", traced.name, found.remarks.result(LessMemory).words)
    form, code = first_form(module)
    assert plan.sharding is not None
    return _of_traced(traced, module, replace(plan, sharding=replace(plan.sharding, form=form)), code)


def _compiler_for(traced: Traced, request: PlanRequest, own: PlanOptions, *, by_jit: bool) -> CompilerFor | None:
    """Returns what compiles for the cluster's meshes, if that is asked for; None where nothing does, which is logged.

    A plan in one program is run by jit, one in stages by the executor.
    """
    if not own.aot:
        return None
    found = compilers_of(load_cluster(request.cluster), functools.partial(compiler_of, by_jit=by_jit))
    if isinstance(found, str):
        _LOG.warning("%s: the plan is as predicted, not compiled: %s", traced.name, found)
        return None
    return found


def _comparer(traced: Traced, request: PlanRequest, own: PlanOptions, compiler_for: CompilerFor) -> Comparer:
    """Returns what compares plans of the function in one program."""
    return Comparer(
        read=lambda: read_traced(traced, make_context()),
        name=traced.name,
        options={"cluster": request.cluster, **request.pass_options()},
        cluster=load_cluster(request.cluster),
        budget_bytes=float(request.budget_bytes),
        compiler_for=functools.partial(compiler_for, load_cluster(request.cluster)),
        memory_only=own.aot == MEMORY,
        most=own.compiles,
        unsplit=key_words(traced),
        on_compile=functools.partial(_log_compile, traced.name),
    )


def _log_compile(name: str, what: str) -> None:
    _LOG.info("%s: compiling %s", name, what)


def _of_judged(traced: Traced, request: PlanRequest, judged: Judged) -> Planned:
    """Returns a plan that the target's compiler chose: it fits as it runs, with what the caller keeps."""
    planned = _of_traced(traced, judged.best.found.module, judged.plan(), judged.best.code)
    return replace(planned, plan=_counted(planned.plan, _kept_bytes(traced, planned.plan), request.budget_bytes))


def _of_traced(traced: Traced, module: ir.Module, plan: Plan, code: bytes) -> Planned:
    """Returns a plan of a planned module with what the traced function calls its arguments and results."""
    arguments, results = tensors(traced, module)
    return Planned(replace(plan, versions={"jax": jax_version}, arguments=arguments, results=results), code)


def _staged(traced: Traced, request: PlanRequest, module: ir.Module, own: PlanOptions) -> Planned:
    """Returns the plan of `module` in the stages and micro-batches of the request, compiled if that is asked."""
    compiler_for = _compiler_for(traced, request, own, by_jit=False)
    if compiler_for is None:
        return _in_stages(traced, request, module)
    compiles = _compiles(traced, request, own, compiler_for)
    made = _compiled_stages(traced, request, compiles, SEARCHED)
    assert made.compiled is not None
    return replace(made.made, plan=replace(made.made.plan, compared=compiles.comparison(made.compiled)))


def _in_stages(traced: Traced, request: PlanRequest, module: ir.Module) -> Planned:
    """Returns the plan of `module` in the stages and micro-batches of the request, as predicted."""
    nonnegative, budget = sorted(nonnegative_arguments(module)), request.budget_bytes
    context, repeated = make_context(), RepeatedPasses()

    def make(more: dict[str, str]) -> Attempt[Plan]:
        step, remarks = read_traced(traced, context), Remarks(traced.name)
        options = {**request.staged_options(), **more}
        source = cut_step(step, traced.name, options, remarks, key_words(traced), repeated=repeated)
        plan = make_staged_plan(step, source, request.cluster, budget, options, nonnegative).plan
        arguments, results = with_kinds(traced, (plan.arguments, plan.results))
        plan = replace(plan, versions={"jax": jax_version}, arguments=arguments, results=results)
        return Attempt(plan, _counted(plan, _kept_bytes(traced, plan), budget), remarks)

    plan = fit_in_stages(make, budget, host_shares(request.pass_options())).made
    prove_fit(plan)
    return Planned(_with_kept(plan, _kept_bytes(traced, plan), budget))


def _compiles(traced: Traced, request: PlanRequest, own: PlanOptions, compiler_for: CompilerFor) -> Compiles:
    """Returns what has plans of the function compiled, in one program and in stages."""
    on_compile = functools.partial(_log_compile, traced.name)
    return Compiles(compiler_for, request.budget_bytes, own.compiles, own.aot == MEMORY, on_compile)


def _compiled_stages(traced: Traced, request: PlanRequest, compiles: Compiles, name: str) -> Made[Planned]:
    """Returns the plan in the stages of a request that fits once compiled."""

    def within(budget: int) -> Planned:
        return _in_stages(traced, replace(request, budget_bytes=budget), read_traced(traced, make_context()))

    found, row = compiles.staged(name, within, lambda one: one.plan)
    predicted = replace(found.plan.predicted, budget_bytes=request.budget_bytes)
    return replace(_made(replace(found, plan=replace(found.plan, predicted=predicted))), compiled=row)


def _compiled_program(
    traced: Traced, request: PlanRequest, compiles: Compiles, name: str, own: PlanOptions, compiler_for: CompilerFor
) -> Made[Planned]:
    """Returns the plan in one program of a request that fits once compiled, with which experts' plans may compete."""

    def made(judged: Judged) -> Made[Planned]:
        return replace(_made(_of_judged(traced, request, judged)), compiled=compiles.row_of(judged))

    comparer = _comparer(traced, request, own, compiler_for)
    return replace(made(compiles.begin(name, comparer)), compare=lambda: made(compiles.compare(name, comparer)))


def _made(found: Planned) -> Made[Planned]:
    """Returns a plan as the search compares it."""
    return Made(found, found.plan.predicted.step_s, tuple(map(float, found.plan.predicted.peak_bytes)))


def _autotuned(traced: Traced, request: PlanRequest, module: ir.Module, own: PlanOptions) -> Planned:
    """Returns the best plan of what the request leaves open, by what is compiled if that is asked."""
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks(traced.name))
    refuse_several(request.remat)
    setup = _setup(traced, request, module)
    compiler_for = _compiler_for(traced, request, own, by_jit=False)
    of_jit = _compiler_for(traced, request, own, by_jit=True) if compiler_for else None
    compiles = _compiles(traced, request, own, compiler_for) if compiler_for else None

    def make(decided: Decided) -> Made[Planned]:
        found = request.decided(decided)
        if compiles is not None and found.is_staged:
            return _compiled_stages(traced, found, compiles, str(decided))
        if compiles is not None and of_jit is not None:
            return _compiled_program(traced, found, compiles, str(decided), own, of_jit)
        planned = _in_stages if found.is_staged else _predicted
        return _made(planned(traced, found, read_traced(traced, make_context())))

    found, report = choose_plan(setup, request, make, compiles=compiles)
    return replace(found, plan=report.added_to(found.plan))


def _kept_bytes(traced: Traced, plan: Plan) -> tuple[int, ...]:
    """Returns the bytes, per device of each rank, that the caller keeps beside what the programs take and give.

    These are arguments that are kept, and the callers' form of what is stored padded or as blocks.
    """
    kept = [0] * plan.num_ranks
    read = plan.read_arguments()
    leaf_of = {piece: leaf for leaf, group in enumerate(leaf_groups(plan.arguments)) for piece in group}
    for number, one in enumerate(plan.arguments):
        mesh = plan.axes(one.rank)
        if leaf_of[number] in traced.kept and number in read and one.memory == DEVICE:
            kept[one.rank] += device_bytes(one, mesh)
        if one.padded or one.viewed:
            kept[one.rank] += device_bytes(replace(one, dims=dims_between_calls(one, mesh)), mesh)
    return tuple(kept)


def _with_kept(plan: Plan, kept: tuple[int, ...], budget: int) -> Plan:
    """Returns a plan that counts what the caller keeps. Raises RHI-SOLVE-001 where that does not fit."""
    peaks = tuple(one + more for one, more in zip(plan.predicted.peak_bytes, kept, strict=True))
    if max(peaks) > budget:
        rank = peaks.index(max(peaks))
        sizes = f"{format_bytes(peaks[rank])} per device, of {format_bytes(budget)}"
        who = f"rank {rank}" if len(peaks) > 1 else "the step"
        what = f"{who} has a {PEAK} of {sizes}: {format_bytes(kept[rank])} of it to keep old state"
        fix = "donate the state (donate_argnums), or raise the budget"
        raise RhinoError("RHI-SOLVE-001", what, Place(plan.source.function), fix=fix)
    return _counted(plan, kept, budget)


def _counted(plan: Plan, kept: tuple[int, ...], budget: int) -> Plan:
    """Returns a plan whose peaks count what the caller keeps."""
    peaks = tuple(one + more for one, more in zip(plan.predicted.peak_bytes, kept, strict=True))
    return replace(plan, predicted=replace(plan.predicted, peak_bytes=peaks, budget_bytes=budget, kept_bytes=kept))


def _lines(cluster: str | None) -> tuple[str, ...] | None:
    return cluster_lines(cluster) if cluster is not None else None
