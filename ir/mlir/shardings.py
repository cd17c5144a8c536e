"""Specs in Shardy's words: `#sdy.sharding` attributes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.spec import (
    PARTIAL,
    REPLICATED,
    Spec,
    dim_axes,
    dim_parts,
    fits,
    pack,
    partial_axes,
    split,
    split_dim,
)
from rhino.ir.mlir.bindings import ir, sdy

SHARDING = "sdy.sharding"
FORBIDDEN = "rhino.forbidden"
"""Shardings that a tensor must not have.

On an argument or a result a list of them, on an op a list for each of its results.
"""
PROVENANCE = "rhino.provenance"
"""On an argument, a result or an op: the options or lines of files that its constraints come from, for messages."""
ROLES = "rhino.axis_roles"
"""On the module: what axes of the mesh are for."""
MESH_NAME = "mesh"
NO_MESH: Final = "#sdy.mesh<[]>"
"""The mesh without axes: on it a closed dim is whole on every device of any mesh."""

Axes = tuple[tuple[str, int], ...]
"""The names and sizes of a mesh's axes."""


def sharding_attribute(mesh_name: str, names: tuple[str, ...], spec: Spec, rank: int) -> ir.Attribute:
    """Returns the closed `#sdy.sharding` that says `spec` of a tensor of `rank`, on axes called `names`."""
    return layout_attribute(mesh_name, names, dim_axes(spec, len(names), rank), partial_axes(spec))


def layout_attribute(
    mesh_name: str, names: tuple[str, ...], dims: Sequence[Sequence[int]], partial: Sequence[int] = ()
) -> ir.Attribute:
    """Returns the closed `#sdy.sharding` of a tensor whose dims are split over axes `dims` [rank], in that order."""
    inner = ", ".join(axis_names(names, axes) for axes in dims)
    unreduced = f", unreduced={axis_names(names, partial)}" if partial else ""
    return ir.Attribute.parse(f"#sdy.sharding<@{mesh_name}, [{inner}]{unreduced}>")


def axis_names(names: tuple[str, ...], axes: Sequence[int]) -> str:
    """Returns axes as Shardy lists them: `{"x", "y"}`."""
    return "{" + ", ".join(f'"{names[axis]}"' for axis in axes) + "}"


def per_value_attribute(shardings: list[ir.Attribute]) -> ir.Attribute:
    """Returns the attribute that an op carries: one sharding for each of its results."""
    return ir.Attribute(sdy.TensorShardingPerValueAttr.get(shardings))


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """The mesh that is planned for, and its name in the module."""

    name: str
    mesh: Mesh


def allowed_specs(
    attribute: ir.Attribute, target: NamedMesh, shape: tuple[int, ...], place: Place, what: str
) -> frozenset[Spec]:
    """Returns the specs that an existing sharding leaves open: one if it is closed, more where its dims are open.

    Raises:
        RhinoError: RHI-SHARD-001 where the sharding splits a dim that its axes do not divide, names another mesh, a
            part of an axis, or axes of one dim in another order than the mesh's.
    """
    sharding = sdy.TensorShardingAttr(attribute)
    mesh, names = target.mesh, target.mesh.names
    inlined = "#sdy.mesh<[" + ", ".join(f'"{name}"={size}' for name, size in mesh.axes) + "]>"
    if str(sharding.mesh_or_ref) not in (f"@{target.name}", inlined, NO_MESH):
        raise _refused(
            place, what, str(attribute), f"it is of mesh {sharding.mesh_or_ref}, and the plan is for @{target.name}"
        )
    entries: dict[int, int] = {}
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    last = [-1] * len(dims)  # the innermost axis that splits each dim
    for number, dim in enumerate(dims):
        for reference in map(sdy.AxisRefAttr, dim.axes):
            over = ", ".join(str(axis_ref).removeprefix("#sdy<axis_ref").removesuffix(">") for axis_ref in dim.axes)
            if reference.name not in names or reference.sub_axis_info is not None:
                raise _refused(
                    place,
                    what,
                    str(attribute),
                    f"dim {number} is split over {over}; the plan is for whole axes of {mesh}",
                )
            axis = names.index(reference.name)
            if axis < last[number]:
                raise _refused(
                    place,
                    what,
                    str(attribute),
                    f"dim {number} is split over {over}; the plan splits by outer axes first",
                )
            last[number] = axis
            entries[axis] = split(number)
    given = pack(entries.get(axis, REPLICATED) for axis in range(len(names)))
    for number, (parts, extent) in enumerate(zip(dim_parts(given, mesh.shape, len(shape)), shape, strict=True)):
        if parts > 1 and (extent % parts or not extent):
            over = ", ".join(
                f'"{names[axis]}" ({mesh.shape[axis]})'
                for axis, one in sorted(entries.items())
                if split_dim(one) == number
            )
            why, padded = (
                f"dim {number} has size {extent}, which {over} does not divide",
                max(-(-extent // parts), 1) * parts,
            )
            padding = f"let dim {number} be stored with {padded} elements (--pad=NAME:{number})"
            fix = f"choose dims that whole axes divide, leave the sharding open for the search, or {padding}"
            raise _refused(place, what, str(attribute), why, fix)
    entries |= {names.index(sdy.AxisRefAttr(ref).name): PARTIAL for ref in sharding.unreduced_axes}
    entries |= {names.index(sdy.AxisRefAttr(ref).name): REPLICATED for ref in sharding.replicated_axes}
    options = [
        (entries[axis],)
        if axis in entries
        else (
            REPLICATED,
            *(
                split(number)
                for number, dim in enumerate(dims)
                if size > 1 and not dim.is_closed and axis > last[number]
            ),
        )
        for axis, size in enumerate(mesh.shape)
    ]
    return frozenset(spec for choice in product(*options) if fits(spec := pack(choice), shape, mesh.shape))


_FIX: Final = "choose dims that whole axes divide, outer axes first, or leave the sharding open for the search"


def _refused(place: Place, what: str, got: str, why: str, fix: str = _FIX) -> RhinoError:
    return RhinoError(
        "RHI-SHARD-001", f"the sharding of {what} cannot be honoured: {why}", place, (f"the sharding is {got}",), fix
    )


def module_mesh(module: ir.Operation) -> tuple[str, Mesh] | None:
    """Returns the name and axes of the module's mesh, or None where it has none."""
    return next(((name, Mesh(axes)) for name, axes in module_meshes(module).items() if axes), None)


def module_meshes(module: ir.Operation) -> dict[str, Axes]:
    """Returns the axes of all meshes of a module by name, those without axes too."""
    found = [op for op in module.regions[0].blocks[0].operations if isinstance(op, sdy.MeshOp)]
    return {str(op.sym_name.value): named_axes(op.attributes["mesh"]) for op in found}


def mesh_name(sharding: sdy.TensorShardingAttr) -> str:
    """Returns the name of the mesh that a sharding is of."""
    return str(sharding.mesh_or_ref).removeprefix("@")


def named_axes(mesh: ir.Attribute) -> Axes:
    """Returns the names and sizes of the axes of a `#sdy.mesh`."""
    return tuple((str(axis.name), int(axis.size)) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(mesh).axes))
