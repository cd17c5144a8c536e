"""Choose the shardings of a step for ranks of unlike meshes: those of the whole step, once for each distinct mesh.

Each stage takes its own from the choice for the mesh of its rank (passes/pipeline/mesh_views.py). What crosses between
stages of unlike meshes is stored as no partial sum, on either of them: a sum over the devices of one rank is nothing
that those of another could take.

Reads     a step that is sharded on no mesh; `rhino.virtual_stage` and `rhino.stage` on its ops, if it has been cut:
          with them it is known what crosses.
Writes    a `sdy.mesh` for each distinct mesh, `rhino.stage_meshes`, and on ops, arguments and results
          `rhino.mesh_views` with what `inner` writes for each mesh; that for the first stage is shown. A step that is
          sharded so already is sharded anew on those meshes alone on which a partial sum would cross, or on all if ops
          have been put in.
Errors    RHI-MESH-002 the module has a mesh of its own, RHI-CLI-001 a mesh that does not parse, RHI-STAGE-001 another
          number of meshes than stages, RHI-SPLIT-001 no loop over micro-batches, RHI-SPLIT-002 an op with a stage that
          cannot be, RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file; those of the passes of `inner`.
Source    Whale 3.2 (TaskGraphs on meshes of their own); rhino.ir.plan.pieces for what is sent between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import ClassVar

from rhino.ir.cluster.cluster import Cluster, load_cluster
from rhino.ir.cluster.mesh import Mesh, parse_meshes
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import FORBIDDEN, MESH_NAME, module_mesh, module_meshes
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import read_accumulation
from rhino.ir.program.named_tensors import open_attribute
from rhino.ir.program.op_stages import is_cut, num_stages_of
from rhino.passes.base import Item, Pass, Remarks, opt, run_pipeline
from rhino.passes.pipeline.mesh_views import as_on, clear, has_views, is_rewritten, partial_results, write_views
from rhino.passes.pipeline.partial_accumulation import keep_sums_apart
from rhino.passes.pipeline.split_stages import crossing_values
from rhino.passes.sharding.choose_shardings import ChooseShardings, ShardingChoice
from rhino.passes.sharding.pin import PinShardings
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER, PlanningPass, common_target, write_mesh

_Results = list[tuple[int, int]]
"""Results of ops: the number of the op, as the entry function is walked, and that of the result."""


@dataclass(frozen=True)
class ShardRanks(Pass):
    """Choose the shardings of a step for each distinct mesh of its ranks."""

    name: ClassVar[str] = "rhino-shard-ranks"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-CLI-001",
        "RHI-CLUSTER-001",
        "RHI-CLUSTER-002",
        "RHI-MESH-002",
        "RHI-SPLIT-001",
        "RHI-SPLIT-002",
        "RHI-STAGE-001",
    )

    meshes: str = opt("1;1", "the mesh of each stage, as 2x2;2;2")
    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")
    inner: tuple[Item, ...] = opt((), "the passes that shard a step on one mesh")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Shards `module` on each mesh."""
        meshes = parse_meshes(self.meshes)
        if is_cut(module) and (count := num_stages_of(module, ())) != len(meshes):
            what = f"{len(meshes)} meshes were given, and the module has {count} stages"
            raise RhinoError("RHI-STAGE-001", what, Place(remarks.file), fix="give a mesh for each stage, as 2x2;2;2")
        found = module_mesh(module)
        if found is not None and not has_views(module):
            what = f"the module has mesh @{found[0]} ({found[1]}), and ranks of unlike meshes were asked for"
            raise RhinoError(
                "RHI-MESH-002",
                what,
                Place(remarks.file),
                fix="remove the module's shardings, or give all ranks its mesh",
            )
        if is_rewritten(module):
            clear(module)
        if is_cut(module) and _keep_sums_apart(as_on(module, ""), len(meshes), remarks.file):
            clear(module)
            _keep_sums_apart(module, len(meshes), remarks.file)
        names = _names(module, meshes)
        stages = [names[mesh] for mesh in meshes]
        crossing = _crossing(module, stages, remarks.file) if is_cut(module) else {}
        sharded, choices = [], []
        for mesh, name in names.items():
            own = crossing.get(name, [])
            if has_views(module) and not partial_results(module, name, own):
                sharded.append(as_on(module, name))
                continue
            copy, aside = as_on(module, ""), Remarks(remarks.file)
            _forbid_sums(copy, name, mesh, own)
            self._shard(copy, name, mesh, meshes, aside)
            sharded.append(copy)
            for one in aside.items:
                remarks.add(one.pass_name, one.place, f"on mesh {mesh}: {one.text}")
            choices.append(aside.find(ShardingChoice))
        write_views(module, sharded, stages)
        made = [one for one in choices if one is not None]
        if made:
            remarks.record(max(made, key=lambda one: one.answer.peak_bytes * one.target.mesh.num_devices))

    def _shard(self, module: ir.Operation, name: str, mesh: Mesh, meshes: Sequence[Mesh], remarks: Remarks) -> None:
        """Shards a copy of the step on a mesh of this name."""
        cluster = load_cluster(self.cluster)
        write_mesh(module, common_target(cluster, mesh, meshes, name))
        virtual = VirtualStages(len(meshes))
        stages = [stage for stage, own in enumerate(meshes) if own == mesh]
        both = ";".join(str(one) for stage in stages for one in (stage, virtual.opposite(stage)))
        run_pipeline([_for_mesh(one, cluster, mesh, both) for one in self.inner], module, remarks)


def _for_mesh(item: Item, cluster: Cluster, mesh: Mesh, stages: str) -> Item:
    """Returns a pass that plans, with a mesh to plan for, and the virtual stages that are on it."""
    if isinstance(item, ChooseShardings):
        return replace(item, mesh=str(mesh), ranks=max(1, cluster.num_devices // mesh.num_devices))
    if isinstance(item, PinShardings):
        return replace(item, mesh=str(mesh), scope_stages=stages)
    return replace(item, mesh=str(mesh)) if isinstance(item, PlanningPass) else item


def _names(module: ir.Operation, meshes: Sequence[Mesh]) -> dict[Mesh, str]:
    """Returns a name for each distinct mesh, in the order of the stages that have it."""
    distinct = list(dict.fromkeys(meshes))
    taken = [] if has_views(module) else list(module_meshes(module))
    free = [name for number in range(len(distinct) + len(taken)) if (name := f"{MESH_NAME}_{number}") not in taken]
    return dict(zip(distinct, free, strict=False))


def _keep_sums_apart(module: ir.Operation, num_stages: int, file: str) -> bool:
    program = read_accumulation(entry_function(module, file), file)
    return keep_sums_apart(program, num_stages, is_unlike=True)


def _crossing(module: ir.Operation, stages: Sequence[str], file: str) -> dict[str, _Results]:
    """Returns, by the names of meshes, the results of ops that go to or come from stages of others."""
    crossing = crossing_values(module, file)
    found: dict[str, _Results] = {}
    for number, op in enumerate(walk(entry_function(module).operation)):
        for result, value in enumerate(op.results):
            names = dict.fromkeys(stages[stage] for stage in sorted(crossing.get(value, ())))
            for name in names if len(names) > 1 else ():
                found.setdefault(name, []).append((number, result))
    return found


def _forbid_sums(module: ir.Operation, name: str, mesh: Mesh, results: _Results) -> None:
    """Forbids that results of ops are stored as partial sums."""
    own: dict[int, list[int]] = {}
    for number, result in results:
        own.setdefault(number, []).append(result)
    counts = range(1, len(mesh.axes) + 1)
    sums = list(chain.from_iterable(combinations(mesh.names, count) for count in counts))
    for number, op in enumerate(walk(entry_function(module).operation)):
        if number not in own:
            continue
        forbidden = [
            [open_attribute(name, len(ir.RankedTensorType(one.type).shape), axes) for axes in sums]
            if result in own[number]
            else []
            for result, one in enumerate(op.results)
        ]
        op.attributes[FORBIDDEN] = ir.ArrayAttr.get([ir.ArrayAttr.get(one) for one in forbidden])
