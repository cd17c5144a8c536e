"""Specs in Shardy's words: `#sdy.sharding` attributes for one mesh axis, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mesh import Mesh
from rhino.ir.mlir import ir, sdy
from rhino.ir.spec import PARTIAL, REPLICATED, Spec, split, split_dim

SHARDING = "sdy.sharding"
MESH_NAME = "mesh"


@lru_cache(maxsize=4096)
def _sharding_text(mesh_name: str, axis: str, spec: int, rank: int) -> str:
    dims = ", ".join(f'{{"{axis}"}}' if split_dim(spec) == dim else "{}" for dim in range(rank))
    unreduced = f', unreduced={{"{axis}"}}' if spec == PARTIAL else ""
    return f"#sdy.sharding<@{mesh_name}, [{dims}]{unreduced}>"


def sharding_attribute(mesh_name: str, axis: str, spec: Spec, rank: int) -> ir.Attribute:
    """Returns the closed `#sdy.sharding` that says `spec` of a tensor of `rank`."""
    return ir.Attribute.parse(_sharding_text(mesh_name, axis, spec, rank))


def per_value_attribute(shardings: list[ir.Attribute]) -> ir.Attribute:
    """Returns the attribute that an op carries: one sharding for each of its results."""
    return ir.Attribute(sdy.TensorShardingPerValueAttr.get(shardings))


@dataclass(frozen=True, slots=True)
class AxisOfMesh:
    """The mesh axis that is planned for: its name and size, and the name of its mesh in the module."""

    mesh: str
    name: str
    size: int


def allowed_specs(attribute: ir.Attribute, axis: AxisOfMesh, shape: tuple[int, ...], place: Place, what: str) -> frozenset[Spec]:
    """Returns the specs that an existing sharding leaves open: one if it is closed, more where its dims are open.

    Raises:
        RhinoError: RHI-SHARD-001 where the sharding splits a dim that the axis does not divide, or names another mesh or axis, or a part.
    """
    sharding = sdy.TensorShardingAttr(attribute)
    inlined = f'#sdy.mesh<["{axis.name}"={axis.size}]>'
    if str(sharding.mesh_or_ref) not in (f"@{axis.mesh}", inlined):
        raise _refused(place, what, str(attribute), f"it is of mesh {sharding.mesh_or_ref}, and the plan is for @{axis.mesh}")
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    for number, dim in enumerate(dims):
        references = [sdy.AxisRefAttr(reference) for reference in dim.axes]
        if not references:
            continue
        if [r.name for r in references] != [axis.name] or references[0].sub_axis_info is not None:
            over = ", ".join(str(axis_ref).removeprefix("#sdy<axis_ref").removesuffix(">") for axis_ref in dim.axes)
            raise _refused(place, what, str(attribute), f'dim {number} is split over {over}; the plan is for the whole axis "{axis.name}"')
        if shape[number] % axis.size:
            why = f'dim {number} has size {shape[number]}, which "{axis.name}" ({axis.size}) does not divide'
            raise _refused(place, what, str(attribute), why)
        return frozenset({split(number)})
    if any(sdy.AxisRefAttr(ref).name == axis.name for ref in sharding.unreduced_axes):
        return frozenset({PARTIAL})
    if any(sdy.AxisRefAttr(ref).name == axis.name for ref in sharding.replicated_axes):
        return frozenset({REPLICATED})
    free = {split(number) for number, dim in enumerate(dims) if not dim.is_closed and shape[number] % axis.size == 0}
    return frozenset({REPLICATED, *free})


def _refused(place: Place, what: str, got: str, why: str) -> RhinoError:
    return RhinoError(
        "RHI-SHARD-001",
        f"the sharding of {what} cannot be honoured: {why}",
        place,
        (f"the sharding is {got}",),
        "choose a dim that the axis divides, or leave the sharding open for the search",
    )


def module_mesh(module: ir.Operation) -> tuple[str, Mesh] | None:
    """Returns the name and axes of the module's mesh, or None where it has none."""
    for op in module.regions[0].blocks[0].operations:
        if isinstance(op, sdy.MeshOp):
            axes = [sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(op.attributes["mesh"]).axes]
            if axes:
                return str(op.sym_name.value), Mesh(tuple((str(axis.name), int(axis.size)) for axis in axes))
    return None
