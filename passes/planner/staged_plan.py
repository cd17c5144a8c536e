"""From a module to its plan in stages: what `auto-parallel` makes, its programs as stock XLA takes them, and costs.

Errors    those of the passes of `auto-parallel`; RHI-SCHED-001 for the schedule, RHI-CLUSTER-001 and -002 for the
          cluster, RHI-MESH-001 where it has too few devices, RHI-LOCAL-001 where a program cannot be localized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rhino.ir.cluster.cluster import Cluster, link_between, load_cluster
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.cluster.placement import placed_devices
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import func, ir, passmanager
from rhino.ir.mlir.boundary import Attributes, boundary_attributes
from rhino.ir.mlir.donation import ALIAS, KEPT
from rhino.ir.mlir.reader import entry_function
from rhino.ir.plan.instructions import Feed, Fetch, Step, StepProgram
from rhino.ir.plan.plan import Execution, Plan, Predicted, Source, Tensor, kind_of, rows_text
from rhino.ir.plan.stage_programs import StagedStep
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.plan.verify import Limits, verify
from rhino.ir.program.collectives import tensor_bytes
from rhino.ir.program.leaf_rows import leaf_numbers, rows_in
from rhino.ir.program.named_tensors import result_name
from rhino.ir.program.program import read_program
from rhino.ir.program.staged_module import NAME, STEP, read_staged
from rhino.ir.program.stored_shapes import VIEW, interleaved_of, logical_shape, padded_shape
from rhino.ir.units import format_bytes
from rhino.passes.base import Item, Remarks
from rhino.passes.pipeline.program_modules import compiled_form, program_modules
from rhino.passes.pipeline.shard_ranks import ShardRanks
from rhino.passes.pipeline.split_replicas import SplitReplicas
from rhino.passes.pipeline.split_stages import SplitStages
from rhino.passes.planner.module_facts import (
    Sides,
    Unsplit,
    cluster_lines,
    given_options,
    keep_unsplit,
    normalize,
)
from rhino.passes.planner.plan_rows import in_host_memory, rank_limits
from rhino.passes.planner.repeated_passes import RepeatedPasses
from rhino.passes.registry import PARALLEL, build_named
from rhino.passes.sharding.choose_shardings import MORE_HOST, ChooseShardings
from rhino.passes.sharding.planning_pass import common_target, machine_of, rank_models
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.memory.peak import predicted_peak
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.replicas import order_of_replicas
from rhino.strategies.pipeline.schedules import DEFAULT, find_schedule, make_order
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule
from rhino.strategies.pipeline.simulate import Costs, Link, Simulation, equal_links, simulate
from rhino.strategies.sharding.choice_problem import Builder
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.search import Search


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A plan of stage programs, and what it comes to when it is simulated."""

    plan: Plan
    execution: Execution
    simulation: Simulation


def cut_step(
    module: ir.Module,
    name: str,
    options: Mapping[str, str],
    remarks: Remarks,
    unsplit: Unsplit | None = None,
    *,
    is_split: bool = True,
    repeated: RepeatedPasses | None = None,
) -> Source:
    """Makes of `module` what `auto-parallel` with these options makes of it, and returns what binds a plan to it.

    `unsplit` says which last dims must not be split. Without `is_split` the step stays one program, whose ops say of
    which stage they are, and shardings are chosen on one device too. `repeated` runs the passes where they run on
    several copies of the module.
    """
    passes = build_named(PARALLEL, options)
    assert passes is not None
    source = normalize(module, name, passes[:1], remarks, is_rewritten=False)
    rest: list[Item] = list(passes[1:])
    if not is_split:
        rest = [one for one in rest if not isinstance(one, SplitStages | SplitReplicas)]
        if not any(isinstance(one, ChooseShardings | ShardRanks) for one in rest):
            rest += _chosen_alone(options)
    for chooser in rest:
        if isinstance(chooser, ChooseShardings | ShardRanks):
            keep_unsplit(module, name, unsplit or {}, chooser, remarks)
    (repeated or RepeatedPasses()).run(module.operation, rest, remarks)
    return source


def source_of_staged(module: ir.Module, name: str) -> Source:
    """Returns what binds a plan in stages to `module`, which is normalized as `cut_step` does it."""
    passes = build_named(PARALLEL, {})
    assert passes is not None
    return normalize(module, name, passes[:1], Remarks(name), is_rewritten=False)


def cut_options(plan: Plan, cluster: str) -> dict[str, str]:
    """Returns the options with which `cut_step` finds a plan again; `cluster` names its cluster's file."""
    splits = {"split-backward": "true"} if plan.schedule and find_schedule(plan.schedule).splits_backward else {}
    own = {"num": plan.num_micro_batches, "stages": plan.num_stages, "ranks": plan.num_ranks, "mesh": plan.mesh_option}
    own |= {"schedule": plan.schedule or DEFAULT, "replicas": ";".join(map(str, plan.shares))}
    budget = {"budget": plan.compared.best.within_bytes if plan.compared else plan.predicted.budget_bytes}
    return {**plan.options, **splits, **{name: str(one) for name, one in (own | budget).items()}, "cluster": cluster}


def make_staged_plan(
    staged: ir.Module,
    source: Source,
    cluster: str,
    budget_bytes: int,
    options: Mapping[str, str],
    nonnegative: Sequence[int] = (),
) -> StagedPlan:
    """Returns the plan of a module in stages for the devices of `cluster`, proven to run.

    `options` are those that the module was made with, and its `schedule`. Of the leaves `nonnegative`, by number, no
    element is negative. A rank has as many stages as `ranks` leave to it; without them, as many as the
    schedule wants.

    Raises:
        RhinoError: those of this module.
    """
    step = read_staged(staged.operation)
    schedule = find_schedule(options.get("schedule") or DEFAULT)
    order = _order(step, schedule, options)
    machine = machine_of(load_cluster(cluster), max(order.rank_of) + 1)
    modules, models = program_modules(staged), _models(step, machine, order.rank_of)
    mesh_of = {part.program: step.meshes[part.stage] for part in step.parts}
    priced = [
        _price(modules[one.module], one, mesh_of[number], models[number]) for number, one in enumerate(step.programs)
    ]
    run_s, temp_bytes = tuple(seconds for seconds, _ in priced), tuple(size for _, size in priced)
    instructions = assemble(step, order, run_s)
    sizes = [mesh.num_devices for mesh in instructions.meshes]
    instructions = replace(instructions, devices=placed_devices(machine, sizes))
    outer = link_between(machine, sizes)
    link, num_ranks = Link(outer.fixed_s, outer.per_s), instructions.num_ranks
    simulation = simulate(instructions, Costs(run_s, temp_bytes, equal_links(num_ranks, link)))
    texts = {
        name: str(compiled_form(module, source.function).operation.get_asm(enable_debug_info=False))
        for name, module in modules.items()
    }
    is_pipeline = not step.shares and not any(part.phase == "step" for part in step.parts)
    arguments, results = _boundaries(staged, instructions)
    execution = Execution(
        instructions, texts, run_s, temp_bytes, link.latency_s, link.bytes_per_s, tuple(sorted(nonnegative))
    )
    peaks = tuple(memory.peak_bytes for memory in simulation.memory)
    plan = Plan(
        source=source,
        cluster=cluster_lines(cluster),
        meshes=instructions.meshes,
        devices=instructions.devices,
        num_stages=1 if step.shares else step.num_stages,
        num_micro_batches=step.num_micro_batches,
        schedule=schedule.name if is_pipeline else "",
        shares=step.shares,
        options=given_options(options),
        versions={},
        predicted=Predicted(simulation.timeline.end_s, 0.0, peaks, budget_bytes, (0,) * num_ranks),
        arguments=arguments,
        results=results,
        execution=execution,
    )
    verify(instructions, len(arguments), len(results))
    return StagedPlan(plan, execution, simulation)


def _order(step: StagedStep, schedule: Schedule, options: Mapping[str, str]) -> Order:
    """Returns the tasks of each rank, and the rank of each stage or replica."""
    if step.shares:
        return order_of_replicas(len(step.shares))
    chunks = schedule.stages_per_rank
    if "ranks" in options:
        chunks = max(1, step.num_stages // int(options["ranks"]))
    return make_order(schedule.name, Pipeline(step.num_stages, step.num_micro_batches, chunks))


def _models(step: StagedStep, cluster: Cluster, rank_of: Sequence[int]) -> list[CostModel]:
    """Returns the cost model of each program [programs]: that of the devices of its ranks, which stages are on.

    `rank_of` [stages] says on which rank each stage is. A program of ranks in several groups is priced for all.

    Raises:
        RhinoError: RHI-MESH-001 where the cluster has too few devices.
    """
    mesh_of = dict(zip(rank_of, step.meshes, strict=True))
    meshes = tuple([mesh_of[rank] for rank in range(max(rank_of) + 1)])
    models = rank_models(cluster, meshes)
    found = []
    for program in range(len(step.programs)):
        ranks = sorted({rank_of[part.stage] for part in step.parts if part.program == program})
        own = dict.fromkeys(models[rank] for rank in ranks)
        found.append(next(iter(own)) if len(own) == 1 else common_target(cluster, mesh_of[ranks[0]], meshes).model)
    return found


def prove_fit(plan: Plan) -> None:
    """Raises RHI-STEP-008 where a device has less memory than the instructions need, RHI-SOLVE-001 where its host."""
    execution = plan.execution
    assert execution is not None, "a plan in stages has instructions"
    names = tuple(one.path for one in plan.arguments)
    every = rank_limits(plan)
    limits = Limits(tuple([one.budget_bytes for one in every]), execution.temp_bytes, names)
    verify(execution.step, len(plan.arguments), len(plan.results), limits)
    for rank, (size, own) in enumerate(zip(in_host_memory(plan), every, strict=True)):
        if own.host_bytes is not None and size > own.host_bytes:
            sizes = f"{format_bytes(size)} per device in host memory, which holds {format_bytes(own.host_bytes)}"
            what = f"rank {rank} has {sizes}"
            raise RhinoError("RHI-SOLVE-001", what, Place(plan.source.function), fix=MORE_HOST)


def _chosen_alone(options: Mapping[str, str]) -> tuple[Item, ...]:
    """Returns the passes that choose shardings on one device.

    Nothing is left to choose there; they run because they make the problem.
    """
    choose = ChooseShardings(cluster=options["cluster"], mesh="1", ranks=int(options["ranks"]))
    return ("func.func(sdy-populate-op-sharding-rules)", choose, "func.func(sdy-drop-sharding-rules)")


def _price(module: ir.Module, program: StepProgram, mesh: Mesh, model: CostModel) -> tuple[float, int]:
    """Returns the seconds of one run of a program, and its temporary bytes on a device.

    The temporary bytes are those that it needs beside its inputs and outputs.
    """
    with module.context:
        passmanager.PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(module.operation)
        read = read_program(entry_function(module), mesh)
        choice = Builder(graph=read.graph, model=model, is_part=True).costs()
        outcome = Search(choice.problem).run(None)
        passmanager.PassManager.parse("builtin.module(func.func(sdy-drop-sharding-rules))").run(module.operation)
    assert isinstance(outcome, Answer), "a sharded program has a way to run"
    outside = sum(local_bytes(layout, mesh) for layout in (*program.inputs, *program.outputs))
    donated = sum(local_bytes(program.inputs[source], mesh) for source, _ in program.donated)
    peak = int(predicted_peak(make_plan(choice, outcome.states)))
    return outcome.cost, max(0, peak - (outside - donated))


def _boundaries(staged: ir.Module, instructions: Step) -> Sides:
    """Returns arguments and results by path, on the rank and with the sharding that the instructions give them.

    An argument that nothing reads is replicated on the first rank.
    """
    step = next(op for op in staged.body.operations if isinstance(op, func.FuncOp) and op.name.value == STEP)
    arguments = []
    for kind, attributes in zip(step.type.inputs, boundary_attributes(step, "arg"), strict=True):
        alias = ir.IntegerAttr(attributes[ALIAS]).value if ALIAS in attributes else None
        tensor = _tensor(kind, str(ir.StringAttr(attributes[NAME]).value), attributes)
        arguments.append(replace(tensor, alias=alias, is_kept=KEPT in attributes, rows=rows_in(attributes)))
    given = boundary_attributes(step, "res")
    every = [rows_in(attributes) for attributes in given]
    results = []
    for kind, attributes, rows, leaf in zip(step.type.results, given, every, leaf_numbers(every), strict=True):
        name = result_name(attributes, leaf)
        results.append(replace(_tensor(kind, name + (rows_text(rows) if rows else ""), attributes), rows=rows))
    for one in reversed(instructions.instructions):  # an argument that is fed to several ranks is the first one's
        match one:
            case Feed(number, slot):
                side = arguments
            case Fetch(slot, number):
                side = results
            case _:
                continue
        there = instructions.slots[slot]
        side[number] = replace(side[number], dims=there.layout.dims, rank=there.rank, memory=there.layout.memory)
    return tuple(arguments), tuple(results)


def _tensor(kind: ir.Type, name: str, attributes: Attributes) -> Tensor:
    tensor = ir.RankedTensorType(kind)
    stored = tuple(tensor.shape)
    place = Place(name)
    own = kind_of(tensor.element_type, logical_shape(attributes, stored, place))
    viewed = stored if VIEW in attributes else ()
    interleaved = interleaved_of(attributes, padded_shape(attributes, stored, place), place)
    return Tensor(name, own, ((),) * len(stored), tensor_bytes(tensor), viewed=viewed, interleaved=interleaved)
