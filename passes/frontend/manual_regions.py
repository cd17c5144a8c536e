"""Widen regions that are manual over some axes of a mesh to all of its axes.

Along the axes that are added, every device of a region does the same.

JAX lowers a `shard_map` with `axis_names` to a `sdy.manual_computation` over those axes, whose body speaks of shapes
that only they split. With nothing split along the others that body is also the program of one device. What it says of
them, in constraints and in regions of their own (JAX puts each `axis_index` in one), is then no choice any more, and
goes.
"""

from __future__ import annotations

from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.fixed_region import MANUAL
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.refusals import cannot_honour
from rhino.ir.mlir.shardings import SHARDING, Axes, module_meshes, named_axes
from rhino.passes.base import Remarks
from rhino.passes.frontend.shardy_ops import inline_body, replace_op

_AXES = "manual_axes"
_SIDES = ("in_shardings", "out_shardings")


def widen_regions(entry: func.FuncOp, name: str, remarks: Remarks) -> None:
    """Widens all regions in `entry` that are over some axes of their mesh; the remarks are those of pass `name`.

    Raises:
        RhinoError: RHI-SHARD-001 where a region inside another one splits what it reads or gives along an axis that is
            not the outer one's.
    """
    assert entry.operation.parent is not None
    meshes = {f"@{mesh}": axes for mesh, axes in module_meshes(entry.operation.parent).items()}
    for op in [op for op in walk(entry.operation) if op.name == MANUAL and not _is_inside(op)]:
        sizes = _mesh_sizes(op, meshes)
        free = [axis for axis in sizes if axis not in _axes(op)]
        if free:
            _make_plain(walk(op)[1:], free, remarks.file)
            _widen(op, sizes, free)
            if any(sizes[axis] > 1 for axis in free):
                text = (
                    f"a part that is parallel by hand does the same on every device along {_listed(free)}, over which "
                    "it is not"
                )
                remarks.add(name, place_of(op.location, remarks.file), text)


def _is_inside(op: ir.Operation) -> bool:
    """Says whether an op stands in a region that is parallel by hand."""
    outer = op.parent
    while outer is not None and outer.name != MANUAL:
        outer = outer.parent
    return outer is not None


def _axes(op: ir.Operation) -> list[str]:
    return [str(axis) for axis in sdy.ManualAxesAttr(op.attributes[_AXES])]


def _listed(axes: list[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes)


def _shardings(op: ir.Operation, side: str) -> list[sdy.TensorShardingAttr]:
    return [sdy.TensorShardingAttr(one) for one in sdy.TensorShardingPerValueAttr(op.attributes[side]).shardings]


def _mesh_sizes(op: ir.Operation, meshes: dict[str, Axes]) -> dict[str, int]:
    """Returns the axes of the mesh that a region refers to, with their sizes.

    A region that has neither operands nor results refers to no mesh: its own axes are returned, with size 1.
    """
    for side in _SIDES:
        for sharding in _shardings(op, side):
            reference = str(sharding.mesh_or_ref)
            return dict(meshes[reference] if reference in meshes else named_axes(sharding.mesh_or_ref))
    return dict.fromkeys(_axes(op), 1)


def _make_plain(body: list[ir.Operation], free: list[str], file: str) -> None:
    """Drops what ops in a region, outer ones first, say of the axes that it is not over."""
    for op in body:
        if SHARDING in op.attributes:
            del op.attributes[SHARDING]
        if op.name == "sdy.sharding_constraint":
            replace_op(op, list(op.operands))
        elif op.name == MANUAL:
            _take_out(op, free, file)


def _take_out(op: ir.Operation, free: list[str], file: str) -> None:
    for sharding in (one for side in _SIDES for one in _shardings(op, side)):
        if set(_split_over(sharding)) & set(free):
            what = (
                f"a part that is parallel by hand over {_listed(_axes(op))} inside another, which splits what the "
                "outer one has whole,"
            )
            raise cannot_honour(what, "make one shard_map over the axes of both", place_of(op.location, file))
    replace_op(op, inline_body(op, list(op.operands)))


def _split_over(sharding: sdy.TensorShardingAttr) -> list[str]:
    return [_name(axis) for dim in sharding.dimension_shardings for axis in sdy.DimensionShardingAttr(dim).axes]


def _name(axis: ir.Attribute) -> str:
    return str(sdy.AxisRefAttr(axis).name)


def _widen(op: ir.Operation, sizes: dict[str, int], free: list[str]) -> None:
    op.attributes[_AXES] = sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in sizes])
    for side in _SIDES:
        op.attributes[side] = sdy.TensorShardingPerValueAttr.get([_without(one, free) for one in _shardings(op, side)])


def _without(sharding: sdy.TensorShardingAttr, free: list[str]) -> ir.Attribute:
    """Returns a sharding, closed, without the axes `free`."""
    dims = []
    for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings):
        dims.append(sdy.DimensionShardingAttr.get([axis for axis in dim.axes if _name(axis) not in free], True))
    return ir.Attribute(sdy.TensorShardingAttr.get(sharding.mesh_or_ref, dims, unreduced_axes=sharding.unreduced_axes))
