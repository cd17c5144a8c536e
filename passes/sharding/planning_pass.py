"""What passes that plan have in common: the mesh and cluster they plan for, and the module read as a choice problem."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rhino.ir.cluster.age import stale_now
from rhino.ir.cluster.cluster import Cluster, default_mesh, load_cluster, mesh_axes, possible_meshes, takes_three_axes
from rhino.ir.cluster.groups import rank_groups
from rhino.ir.cluster.hardware import Device
from rhino.ir.cluster.mesh import Mesh, finer_shapes, mesh_of_shape, parse_mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.spec import spec_text
from rhino.ir.mlir.bindings import ir, passmanager
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import MESH_NAME, module_mesh
from rhino.ir.program.named_tensors import provenance_of
from rhino.ir.program.program import Program, is_ruled, read_program
from rhino.ir.program.stored_shapes import PADDED, VIEW
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.sharding.scope_constraints import cannot_run, limit_notes, scope_meshes, scoped_graph
from rhino.strategies.choice.choice import Choice
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.memory.host_memory import with_host_choice
from rhino.strategies.sharding.choice_problem import Builder, ContradictionError, NoChoiceError
from rhino.strategies.structure.axis_roles import Roles

PLANNING_ERRORS = (
    "RHI-CLUSTER-001",
    "RHI-CLUSTER-002",
    "RHI-MESH-001",
    "RHI-MESH-002",
    "RHI-READ-005",
    "RHI-SHARD-001",
)


DEFAULT_CLUSTER = "cpu8"
"""What is planned for if no cluster is given."""

OFFLOAD = (
    "arguments that only their update reads, as moments, and values saved for the backward pass may lie in host "
    "memory where the budget binds"
)
"""What the option of that name does."""

AUTO = "auto"
"""The mesh option that leaves the mesh to the search."""

OTHERS_NEED_LESS = "micro-batches and stages need less"
"""What may do where only shardings were searched for."""


@dataclass(frozen=True)
class Target:
    """What is planned for: the mesh by its name in the module, and the cost model of its axes on the cluster."""

    mesh_name: str
    mesh: Mesh
    model: CostModel

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the mesh axes."""
        return self.mesh.names


@dataclass(frozen=True)
class PlanningPass(Pass):
    """A pass that plans: its options say for which cluster and mesh."""

    errors: ClassVar[tuple[str, ...]] = PLANNING_ERRORS

    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")
    mesh: str = opt(
        "",
        "mesh sizes, as 8, 2x4 or x=2,y=4, or auto for the best of one or two axes, and of three on three levels or "
        "more than 64 devices; empty takes the module's mesh, or else an axis for each level of the cluster",
    )

    def targets(self, module: ir.Operation, remarks: Remarks) -> tuple[Target, ...]:
        """Returns the meshes that are planned for first.

        This is one mesh, or with `auto` those of `possible_meshes` and those that scopes need.
        """
        if self.mesh != AUTO:
            return (self.target(module, remarks),)
        if module_mesh(module) is not None:
            return (replace(self, mesh="").target(module, remarks),)
        cluster = self.load(remarks)
        meshes = dict.fromkeys([*possible_meshes(cluster), *scope_meshes(module, cluster.num_devices)])
        return tuple(_target(cluster, MESH_NAME, mesh) for mesh in meshes)

    def finer(self, module: ir.Operation, best: Target) -> tuple[Target, ...]:
        """Returns the meshes of three axes next to the best so far; none where one was asked for or two are enough."""
        if self.mesh != AUTO or module_mesh(module) is not None:
            return ()
        cluster = load_cluster(self.cluster)
        shapes = finer_shapes(best.mesh.shape) if takes_three_axes(cluster) else ()
        return tuple([_target(cluster, MESH_NAME, mesh_of_shape(shape)) for shape in shapes])

    def load(self, remarks: Remarks) -> Cluster:
        """Returns the cluster that is planned for, with a remark for each reason why its measurements may not hold."""
        cluster = load_cluster(self.cluster)
        for why in stale_now(cluster):
            remarks.add(self.name, Place(self.cluster), why)
        return cluster

    def target(self, module: ir.Operation, remarks: Remarks) -> Target:
        """Returns what to plan for; the module's own mesh must agree with the one asked for."""
        cluster = self.load(remarks)
        present = module_mesh(module)
        requested = parse_mesh(self.mesh) if self.mesh and self.mesh != AUTO else None
        if present is not None and requested is not None and requested.shape != present[1].shape:
            raise RhinoError(
                "RHI-MESH-002",
                f"the module has mesh @{present[0]} ({present[1]}), and {requested} was asked for",
                Place(remarks.file),
                fix="leave the mesh out, or remove the module's shardings first",
            )
        name, mesh = present or (MESH_NAME, requested or default_mesh(cluster))
        return _target(cluster, name, mesh)

    def read(self, module: ir.Operation, target: Target, remarks: Remarks) -> Program:
        """Returns the program behind the module, whose ops get their rules if they have none."""
        entry = entry_function(module, remarks.file)
        if not any(is_ruled(op.operation) for op in entry.regions[0].blocks[0].operations):
            passmanager.PassManager.parse(
                "builtin.module(func.func(sdy-populate-op-sharding-rules))", module.context
            ).run(module)
        return read_program(entry, target.mesh, remarks.file)


def machine_of(cluster: Cluster, num_ranks: int) -> Cluster:
    """Returns the cluster as so many ranks see it: one program takes devices as numbered, whatever order ranks have."""
    return replace(cluster, order=()) if num_ranks == 1 and cluster.order else cluster


def _target(cluster: Cluster, name: str, mesh: Mesh) -> Target:
    return Target(name, mesh, CostModel(cluster.device, mesh_axes(machine_of(cluster, 1), mesh.shape, mesh.names)))


def group_target(group: Cluster, mesh: Mesh) -> Target:
    """Returns the target for the mesh of a rank that lies in a group of devices, which is full of such ranks."""
    return rank_target(group, mesh, max(1, group.num_devices // mesh.num_devices))


def rank_target(cluster: Cluster, mesh: Mesh, num_ranks: int, name: str = MESH_NAME) -> Target:
    """Returns the target for the mesh of a rank, with the links that it has if each of `num_ranks` ranks uses as many.

    On a cluster of groups it is that of a rank that could lie in any.

    Raises:
        RhinoError: RHI-MESH-001 where the cluster has too few devices.
    """
    if num_ranks == 1:
        return _target(cluster, name, mesh)
    _, *axes = mesh_axes(cluster, (num_ranks, *mesh.shape))
    named = tuple(replace(axis, name=own) for axis, own in zip(axes, mesh.names, strict=True))
    return Target(name, mesh, CostModel(cluster.device, named))


def common_target(cluster: Cluster, mesh: Mesh, meshes: Sequence[Mesh], name: str = MESH_NAME) -> Target:
    """Returns the target for a mesh of ranks with `meshes`, whichever of the cluster's devices they have.

    It has the links that it has where all ranks use as many; among unlike ones, where the cluster is full of its like.
    """
    count = len(meshes) if len(set(meshes)) == 1 else cluster.num_devices // mesh.num_devices
    return rank_target(cluster, mesh, max(1, count), name)


def rank_models(cluster: Cluster, meshes: Sequence[Mesh]) -> tuple[CostModel, ...]:
    """Returns the cost model of each rank's devices; of equal ranks it is one object [ranks].

    Raises:
        RhinoError: RHI-MESH-001 where a mesh is larger than the cluster.
    """
    groups, group = rank_groups(cluster, [mesh.num_devices for mesh in meshes])
    pairs = list(zip(group, meshes, strict=True))
    models = {
        (own, mesh): (
            common_target(cluster, mesh, meshes) if len(groups) == 1 else group_target(groups[own], mesh)
        ).model
        for own, mesh in dict.fromkeys(pairs)
    }
    return tuple([models[pair] for pair in pairs])


def refuse_unknown_host(device: Device, file: str) -> None:
    """Raises RHI-OFFLOAD-001 where nobody knows how fast devices reach their host's memory."""
    if device.host_bytes_per_s is None:
        raise RhinoError(
            "RHI-OFFLOAD-001",
            f"something may lie in host memory, and how fast a {device.kind} reaches it is not known",
            Place(file),
            fix="add device.host_bytes_per_s to the cluster's file (docs/cluster.md), or leave offload out",
        )


def with_offload(program: Program, target: Target, barred: Collection[int] = ()) -> Program:
    """Returns a program whose arguments may lie in host memory where they can, but for those `barred`.

    An argument that is stored padded or as blocks stays on the device: calls bring it to that form there.

    Raises:
        RhinoError: RHI-OFFLOAD-001 where nobody knows how fast devices reach their host's memory.
    """
    refuse_unknown_host(target.model.device, program.file)
    given = boundary_attributes(program.entry, "arg")
    changed = [*barred, *(number for number, one in enumerate(given) if PADDED in one or VIEW in one)]
    return replace(program, graph=with_host_choice(program.graph, changed))


def write_mesh(module: ir.Operation, target: Target) -> None:
    """Writes the mesh that is planned for onto a module that has none."""
    if module_mesh(module) is None:
        axes = ", ".join(f'"{name}"={size}' for name, size in target.mesh.axes)
        mesh = ir.Module.parse(f"sdy.mesh @{target.mesh_name} = <[{axes}]>").body.operations[0].operation
        mesh.clone(ip=ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]))


def to_fit(cause: str = "", more: str = "") -> str:
    """Returns what to do where no plan fits.

    `cause` are constraints of the user that may be why, `more` is what else may do.
    """
    room = "raise --budget, use more devices, or a smaller batch"
    return f"{room}{f', or give {more}' if more else ''}{f', or remove {cause}' if cause else ''}"


def build_choice(program: Program, target: Target) -> Choice:
    """Returns the choice problem of a program. Raises as `begin_choice` does."""
    return begin_choice(program, target).with_memory()


def begin_choice(program: Program, target: Target) -> Choice:
    """Returns the choice problem of a program, so far without regard to memory.

    Raises:
        RhinoError: RHI-SHARD-001 where what the user says of shardings and scopes contradicts itself, RHI-PIN-002 where
            a scope wants devices that the mesh has not.
    """
    scoped = scoped_graph(program, target.mesh)
    try:
        return Builder(graph=scoped.graph, model=target.model).costs()
    except NoChoiceError as error:
        raise cannot_run(program, scoped, target.mesh, error.op) from None
    except ContradictionError as contradiction:
        value = contradiction.value
        graph = program.graph
        notes = [
            *(f"{words} requires it" for words in _user_words(program, value)),
            *limit_notes(program, scoped, value),
        ]
        if contradiction.by_role:
            roles = ", ".join(f"{name}={role}" for name, role in zip(target.names, graph.roles, strict=True) if role)
            notes.append(
                f"axis-role {roles} leaves none of these: its dims of the batch are "
                f"{_listed(Roles(graph).batch_dims(value))}"
            )
        given = [
            graph.fixed.get(value),
            *(limit for v, limit in zip(graph.returns, graph.return_fixed, strict=True) if v == value),
        ]
        if value < len(graph.arguments) and (alias := graph.arguments[value].alias) is not None:
            given.append(graph.return_fixed[alias])  # the result that takes over its buffer lies as it does
        limits = ", and ".join(
            " or ".join(spec_text(spec, target.names) for spec in sorted(limit)) for limit in given if limit is not None
        )
        op = int(program.graph.value_op[value])
        place = place_of(program.ops[op].location, program.file) if op >= 0 else Place(program.file)
        why = (
            "cannot be reached from how its op can run"
            if op >= 0 and limits and not notes
            else "contradicts another constraint on it"
        )
        raise RhinoError(
            "RHI-SHARD-001",
            f"the sharding of {program.describe(value)} {why}",
            place,
            (
                f"it allows {limits or 'nothing'} (R: whole on every device, P: partial sums, S0: split along dim 0)",
                *notes,
            ),
            "leave the sharding open, or choose a dim that the op can split",
        ) from None


def _user_words(program: Program, value: int) -> list[str]:
    """Returns the user's words about a value, and about the results that it is."""
    op = int(program.graph.value_op[value])
    attributes = [boundary_attributes(program.entry, "arg")[value] if op < 0 else program.ops[op].attributes]
    alias = program.graph.arguments[value].alias if op < 0 else None
    results = boundary_attributes(program.entry, "res")
    attributes += [results[n] for n, returned in enumerate(program.graph.returns) if returned == value or n == alias]
    return [words for one in attributes for words in provenance_of(one)]


def _listed(dims: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(dims))) or "none"
