"""One step sharded on several meshes: its stages are on ranks of unlike meshes, and each is to take its own shardings.

The shardings of all meshes stand on the module at the same time: on each op, argument and result as a list in
`rhino.mesh_views`, one dictionary of attributes for each mesh and one for what was there before. One of them is shown,
as the attributes themselves. So whatever reads a sharded module reads it for the mesh that is shown.
`rhino.stage_meshes` names the mesh of each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.boundary import Attributes, boundary_attributes, entries, set_boundary_attributes
from rhino.ir.mlir.memory_kinds import MEMORY_KIND, SIDES
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING, module_mesh
from rhino.ir.program.program import CARRIED
from rhino.ir.program.staged_module import STAGE_MESHES, stage_mesh_names
from rhino.passes.sharding.choose_shardings import STRATEGY

VIEWS: Final = "rhino.mesh_views"
"""On an op, argument or result: its attributes on each mesh, and those before the step was sharded."""

_SHOWN: Final = (SHARDING, CARRIED, STRATEGY, MEMORY_KIND)
"""What is shown of one mesh at a time."""


def has_views(module: ir.Operation) -> bool:
    """Says whether a module is sharded on several meshes."""
    return STAGE_MESHES in module.attributes


def write_views(module: ir.Operation, sharded: Sequence[ir.Operation], stages: Sequence[str]) -> None:
    """Writes on `module` how it is in each of `sharded`, copies of it on meshes of their own; the first is shown.

    `stages` has the name of each stage's mesh [stages].
    """
    before = as_on(module, "")
    others = [entry_function(one) for one in (*sharded, before)]
    entry = entry_function(module)
    for one in [op for op in _mesh_ops(module) if has_views(module) and op.sym_name.value in _names(module)]:
        one.operation.erase()
    for mesh in reversed([_mesh_op(one) for one in sharded]):
        mesh.clone(ip=ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]))
    for op, *copies in zip(walk(entry.operation), *(walk(one.operation) for one in others), strict=True):
        assert all(copy.name == op.name for copy in copies), "sharding a step changes attributes alone"
        found = [_shown(copy.attributes) for copy in copies]
        if any(found):
            op.attributes[VIEWS] = _listed(found)
    for side in SIDES:
        every = zip(*(boundary_attributes(one, side) for one in others), strict=True)
        views = [_listed([_shown(one) for one in own]) for own in every]
        present = boundary_attributes(entry, side)
        set_boundary_attributes(entry, side, [{**old, VIEWS: one} for old, one in zip(present, views, strict=True)])
    module.attributes[STAGE_MESHES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in stages])
    _show(module, 0)


def is_rewritten(module: ir.Operation) -> bool:
    """Says whether a pass has put ops into a module since it was sharded on several meshes: they are of one alone."""
    ops = walk(entry_function(module).operation)
    return has_views(module) and any(
        VIEWS not in op.attributes and any(name in op.attributes for name in _SHOWN) for op in ops
    )


def as_on(module: ir.Operation, name: str) -> ir.Operation:
    """Returns a copy of a module as it is on the mesh of this name alone; without a name, as it was before."""
    copy = module.clone()
    _keep(copy, name)
    return copy


def clear(module: ir.Operation) -> None:
    """Makes of a module what it was before it was sharded."""
    _keep(module, "")


def _keep(module: ir.Operation, name: str) -> None:
    """Keeps the shardings of the mesh of this name alone, or without one none."""
    if not has_views(module):
        return
    if name:
        _show_mesh(module, name)
    else:
        _show(module, -1)
    drop_views(module)
    for op in list(_mesh_ops(module)):
        if op.sym_name.value != name and op.sym_name.value in _names(module):
            op.operation.erase()
    del module.attributes[STAGE_MESHES]


def partial_results(module: ir.Operation, name: str, results: Sequence[tuple[int, int]]) -> bool:
    """Says whether, on the mesh of this name, any of some results is stored as a partial sum.

    `results` are numbers of ops, as the entry function is walked, each with that of the result.
    """
    number = _names(module).index(name)
    ops = list(walk(entry_function(module).operation))
    return any(_is_partial(ops[op], number, result) for op, result in results)


def show(module: ir.Operation, stage: int) -> bool:
    """Shows a module as it is on the mesh of a stage; returns whether another one was shown."""
    if not has_views(module):
        return False
    name, found = stage_mesh_names(module)[stage], module_mesh(module)
    if found is not None and found[0] == name:
        return False
    _show_mesh(module, name)
    return True


def alike_stages(module: ir.Operation, num_stages: int) -> list[list[int]]:
    """Returns the stages of a module, those together that are on one mesh."""
    if not has_views(module):
        return [list(range(num_stages))]
    names = stage_mesh_names(module)
    return [[stage for stage, own in enumerate(names) if own == name] for name in _names(module)]


def drop_views(module: ir.Operation) -> None:
    """Takes the shardings of meshes that are not shown off a module."""
    for op in walk(module):
        if VIEWS in op.attributes:
            del op.attributes[VIEWS]
        if isinstance(op.opview, func.FuncOp):
            for side in SIDES:
                given = boundary_attributes(op.opview, side)
                if any(VIEWS in one for one in given):
                    kept = [{name: one for name, one in own.items() if name != VIEWS} for own in given]
                    set_boundary_attributes(op.opview, side, kept)


def _show_mesh(module: ir.Operation, name: str) -> None:
    """Shows a mesh: its attributes on ops, and its `sdy.mesh` before the others."""
    _show(module, _names(module).index(name))
    meshes = list(_mesh_ops(module))
    own = next(one for one in meshes if one.sym_name.value == name)
    if own != meshes[0]:
        own.operation.move_before(meshes[0].operation)


def _show(module: ir.Operation, number: int) -> None:
    """Shows the attributes of the mesh of this number, or with -1 those that were there before."""
    entry = entry_function(module)
    for op in walk(entry.operation):
        if VIEWS in op.attributes or number < 0:  # what came later has none, and was not there before
            shown = _view(op.attributes[VIEWS], number) if VIEWS in op.attributes else {}
            for name in _SHOWN:
                if name in shown:
                    op.attributes[name] = shown[name]
                elif name in op.attributes:
                    del op.attributes[name]
    for side in SIDES:
        given = boundary_attributes(entry, side)
        kept = [{name: own for name, own in one.items() if name not in _SHOWN} for one in given]
        shown_there = [_view(one[VIEWS], number) for one in given]
        set_boundary_attributes(entry, side, [{**one, **own} for one, own in zip(kept, shown_there, strict=True)])


def _view(views: ir.Attribute, number: int) -> Attributes:
    listed = list(ir.ArrayAttr(views))
    return entries(listed[number])


def _shown(attributes: Mapping[str, ir.Attribute]) -> Attributes:
    return {name: attributes[name] for name in _SHOWN if name in attributes}


def _is_partial(op: ir.Operation, number: int, result: int) -> bool:
    """Says whether a result is stored as a partial sum in a view."""
    found = _view(op.attributes[VIEWS], number) if VIEWS in op.attributes else {}
    stored = found.get(CARRIED) or found.get(SHARDING)
    if stored is None:
        return False
    one = ir.ArrayAttr(stored)[result] if CARRIED in found else sdy.TensorShardingPerValueAttr(stored).shardings[result]
    return bool(sdy.TensorShardingAttr(one).unreduced_axes)


def _names(module: ir.Operation) -> list[str]:
    """Returns the names of the meshes in the order of the views."""
    return list(dict.fromkeys(stage_mesh_names(module)))


def _mesh_ops(module: ir.Operation) -> Iterator[sdy.MeshOp]:
    return (op for op in module.regions[0].blocks[0].operations if isinstance(op, sdy.MeshOp))


def _mesh_op(module: ir.Operation) -> ir.Operation:
    found = module_mesh(module)
    assert found is not None, "a sharded step has a mesh"
    own: ir.Operation = next(op.operation for op in _mesh_ops(module) if op.sym_name.value == found[0])
    return own


def _listed(views: Sequence[Attributes]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.DictAttr.get(one) for one in views])
