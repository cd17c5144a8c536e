"""From a step in stages to a whole plan: its programs as stock XLA takes them, what they cost, their order, and what all that comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.mlir.bindings import func, ir, passmanager
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.reader import entry_function
from rhino.ir.plan.folder import Boundary, WholePlan
from rhino.ir.plan.instructions import StepProgram
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.program.program import read_program
from rhino.ir.program.staged_module import NAME, STEP, read_staged
from rhino.passes.pipeline.program_modules import compiled_form, program_modules
from rhino.strategies.choice.plan import make_plan
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.memory.peak import predicted_peak
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import make_order
from rhino.strategies.pipeline.schedules.base import Pipeline
from rhino.strategies.pipeline.simulate import Costs, Link, Simulation, equal_links, simulate
from rhino.strategies.sharding.choice_problem import Builder
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.search import Search


@dataclass(frozen=True, slots=True)
class Made:
    """A whole plan, and what it comes to when it is simulated."""

    plan: WholePlan
    simulation: Simulation
    costs: Costs


def make_whole_plan(staged: ir.Module, schedule: str, cluster: str, about: Mapping[str, Any], *, chunks: int = 1, file: str = "") -> Made:
    """Returns the plan of a module in stages for the devices of `cluster`, `chunks` stages to a rank.

    Raises:
        RhinoError: RHI-SCHED-001 for the schedule, RHI-CLUSTER-001 and -002 for the cluster, RHI-MESH-001 where it has too few devices,
            RHI-LOCAL-001 where a program cannot be localized.
    """
    step = read_staged(staged.operation)
    order = make_order(schedule, Pipeline(step.num_stages, step.num_micro_batches, chunks))
    num_ranks = len(order.tasks)
    where = load_cluster(cluster)
    outer, *inner = mesh_axes(where, (num_ranks, *step.mesh.shape))
    model = CostModel(where.device, tuple(inner))
    modules = program_modules(staged)
    priced = [_price(modules[program.module], program, step.mesh, model) for program in step.programs]
    costs = Costs(
        run_s=tuple(seconds for seconds, _ in priced),
        temp_bytes=tuple(size for _, size in priced),
        links=equal_links(num_ranks, Link(outer.link.fixed_s, outer.link.per_s)),
    )
    instructions = assemble(step, order, costs.run_s)
    simulation = simulate(instructions, costs)
    texts = {name: str(compiled_form(module, file).operation.get_asm(enable_debug_info=False)) for name, module in modules.items()}
    arguments, results = _boundaries(staged)
    timeline = simulation.timeline
    said = {
        **about,
        "schedule": schedule,
        "stages": step.num_stages,
        "micro_batches": step.num_micro_batches,
        "ranks": num_ranks,
        "mesh": str(step.mesh),
        "cluster": where.name,
        "predicted_step_s": timeline.end_s,
        "predicted_idle": [timeline.idle(rank) for rank in range(num_ranks)],
        "predicted_peak_bytes": [memory.peak_bytes for memory in simulation.memory],
        "predicted_run_s": list(costs.run_s),
        "predicted_temp_bytes": list(costs.temp_bytes),
        "link_latency_s": outer.link.fixed_s,
        "link_bytes_per_s": outer.link.per_s,
    }
    return Made(WholePlan(instructions, texts, arguments, results, said), simulation, costs)


def costs_of(plan: WholePlan) -> Costs:
    """Returns what the instructions of a plan were predicted to take."""
    about = plan.about
    link = Link(about["link_latency_s"], about["link_bytes_per_s"])
    links = equal_links(plan.step.num_ranks, link)
    return Costs(tuple(about["predicted_run_s"]), tuple(about["predicted_temp_bytes"]), links)


def _price(module: ir.Module, program: StepProgram, mesh: Mesh, model: CostModel) -> tuple[float, int]:
    """Returns the seconds of one run of a program, and the bytes that a device needs beside its inputs and outputs meanwhile."""
    with module.context:
        passmanager.PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(module.operation)
        read = read_program(entry_function(module), mesh)
        choice = Builder(graph=read.graph, model=model, is_part=True).costs()
        outcome = Search(choice.problem).run(None)
        passmanager.PassManager.parse("builtin.module(func.func(sdy-drop-sharding-rules))").run(module.operation)
    assert isinstance(outcome, Answer), "a sharded program has a way to run"
    outside = sum(local_bytes(layout, mesh) for layout in (*program.inputs, *program.outputs))
    taken_over = sum(local_bytes(program.inputs[source], mesh) for source, _ in program.donated)
    return outcome.cost, max(0, int(predicted_peak(make_plan(choice, outcome.states))) - (outside - taken_over))


def _boundaries(staged: ir.Module) -> tuple[tuple[Boundary, ...], tuple[Boundary, ...]]:
    step = next(op for op in staged.body.operations if isinstance(op, func.FuncOp) and op.name.value == STEP)
    arguments = []
    for kind, attributes in zip(step.type.inputs, boundary_attributes(step, "arg"), strict=True):
        alias = ir.IntegerAttr(attributes[ALIAS]).value if ALIAS in attributes else None
        arguments.append(_boundary(kind, ir.StringAttr(attributes[NAME]).value, alias))
    names = [attributes.get("jax.result_info") for attributes in boundary_attributes(step, "res")]
    results = [
        _boundary(kind, ir.StringAttr(name).value if name is not None else "", None)
        for kind, name in zip(step.type.results, names, strict=True)
    ]
    return tuple(arguments), tuple(results)


def _boundary(kind: ir.Type, name: str, alias: int | None) -> Boundary:
    tensor = ir.RankedTensorType(kind)
    return Boundary(str(name), tuple(tensor.shape), str(tensor.element_type), alias)
