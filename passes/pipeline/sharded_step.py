"""What a step comes to on one device, op by op, as its annotations have it sharded."""

from __future__ import annotations

from collections.abc import Sequence

from rhino.ir.arrays import Floats
from rhino.ir.cluster.cluster import Cluster
from rhino.ir.cluster.groups import rank_groups
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.program import Program, read_program
from rhino.passes.pipeline.mesh_views import has_views, show
from rhino.passes.sharding.localize import annotated_plan
from rhino.passes.sharding.planning_pass import group_target, rank_models, rank_target
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.choice.sharding_plan_costs import Sharded, states_of
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.pipeline.replicas import micro_batch_s
from rhino.strategies.pipeline.stages.stage_graph import UnlikeDevices
from rhino.strategies.pipeline.stages.stage_problem import time_ratios
from rhino.strategies.sharding.choice_problem import Builder

SHARDED_ERRORS = ("RHI-LOCAL-001", "RHI-MESH-001")


def rank_mesh(module: ir.Operation) -> Mesh:
    """Returns the mesh that a module is sharded on, one device where it has none."""
    found = module_mesh(module)
    return found[1] if found is not None else mesh_of_shape((1,))


def num_ranks(module: ir.Operation, cluster: Cluster, num_stages: int) -> int:
    """Returns on how many meshes stages are: one each, as far as the cluster has devices."""
    return max(1, min(num_stages, cluster.num_devices // rank_mesh(module).num_devices))


def sharded_step(program: Program, module: ir.Operation, cluster: Cluster, ranks: int = 1) -> Sharded:
    """Returns a step as it is annotated, with what it comes to on one device of a rank's mesh.

    That is told by the cost model that shardings are chosen by.

    Raises:
        RhinoError: RHI-LOCAL-001 an op cannot run between the shardings around it, RHI-MESH-001 the mesh is larger than
            the cluster.
    """
    model = rank_target(cluster, rank_mesh(module), ranks).model
    return _sharded(program, sharded_plan(program, module), model)


def _sharded(program: Program, plan: ShardingPlan, model: CostModel) -> Sharded:
    choice = Builder(graph=program.graph, model=model, is_part=True).costs()
    return Sharded(choice, states_of(choice, plan), plan, accumulation_loop(program))


def unlike_devices(sharded: Sharded, cluster: Cluster, mesh: Mesh, rank_of: Sequence[int]) -> UnlikeDevices | None:
    """Returns how devices differ of stages on ranks `rank_of` [stages] of equal meshes, None where all are alike."""
    groups, group = rank_groups(cluster, (mesh.num_devices,) * (max(rank_of) + 1))
    if len(groups) == 1:
        return None
    works = [sharded.seconds_on(group_target(one, mesh).model) for one in groups]
    return UnlikeDevices(tuple([group[rank] for rank in rank_of]), time_ratios(works, sharded.seconds))


def unlike_ranks(
    module: ir.Operation,
    file: str,
    cluster: Cluster,
    meshes: Sequence[Mesh],
    rank_of: Sequence[int],
    seconds: Floats,
    value_bytes: Floats,
) -> UnlikeDevices:
    """Returns how the devices of stages differ that are on ranks of unlike meshes.

    Shapes: the step takes `seconds` [ops], and its values `value_bytes` [values], on a device of the mesh that is
    shown, or where it is not sharded yet on one device; `meshes` are those of the ranks, and stages are on ranks
    `rank_of`.

    Raises:
        RhinoError: RHI-LOCAL-001 an op cannot run between the shardings around it.
    """
    of_rank = list(zip(rank_models(cluster, meshes), meshes, strict=True))
    kinds = list(dict.fromkeys(of_rank))
    group, works, sizes = tuple([kinds.index(of_rank[rank]) for rank in rank_of]), list[Floats](), list[Floats]()
    for number, (model, mesh) in enumerate(kinds):
        if not has_views(module):
            works.append(seconds / mesh.num_devices)
            sizes.append(value_bytes / mesh.num_devices)
            continue
        show(module, group.index(number))
        program = read_program(entry_function(module, file), mesh, file)
        sharded = _sharded(program, sharded_plan(program, module), model)
        works.append(sharded.seconds)
        sizes.append(sharded.value_bytes)
    show(module, 0)
    return UnlikeDevices(group, time_ratios(works, seconds), tuple(sizes))


def micro_batch_seconds(sharded: Sharded, cluster: Cluster, mesh: Mesh, count: int) -> tuple[float, ...]:
    """Returns the seconds of a micro-batch on each of `count` replicas [replicas]."""
    graph, loop, seconds = sharded.plan.graph, sharded.loop, sharded.seconds
    unlike = unlike_devices(sharded, cluster, mesh, range(count))
    if unlike is None:
        return (micro_batch_s(graph, loop, seconds),) * count
    return tuple([micro_batch_s(graph, loop, seconds * unlike.time_ratio[group]) for group in unlike.group])


def sharded_plan(program: Program, module: ir.Operation) -> ShardingPlan:
    """Returns the plan that the annotations of a module are. What has no sharding is whole everywhere.

    Raises:
        RhinoError: RHI-LOCAL-001 an op cannot run between the shardings around it.
    """
    return annotated_plan(program, rank_mesh(module).shape, program.file)
