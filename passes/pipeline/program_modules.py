"""The programs of a step in stages, each as a module of its own that stock XLA compiles."""

from __future__ import annotations

from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.manual import copy_module, mesh_size, wrap_manual
from rhino.ir.mlir.memory_kinds import with_transfers
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.program import CARRIED
from rhino.ir.program.staged_module import STEP, function_meshes
from rhino.passes.sharding.choose_shardings import STRATEGY
from rhino.passes.sharding.localize import localized_copy


def program_modules(staged: ir.Module) -> dict[str, ir.Module]:
    """Returns by its function's name the module of each program of `staged`, with its shardings if it has some."""
    with staged.context, ir.Location.unknown():
        tops = [view.operation for view in staged.body.operations]
        meshes = {op.opview.sym_name.value: op for op in tops if isinstance(op.opview, sdy.MeshOp)}
        functions = {op.opview.name.value: op for op in tops if isinstance(op.opview, func.FuncOp)}
        mesh_of = function_meshes(staged.operation)
        return {name: _alone(op, meshes.get(mesh_of[name])) for name, op in functions.items() if name != STEP}


def compiled_form(program: ir.Module, file: str = "") -> ir.Module:
    """Returns what is compiled of a program: on several devices what each runs, collectives spelled out.

    Raises:
        RhinoError: RHI-LOCAL-001 where it cannot be localized.
    """
    if mesh_size(program) == 1:  # XLA does not compile the localized form for one host device (jaxlib 0.10.2)
        return with_transfers(_unsharded(program))
    return wrap_manual(localized_copy(program, file))


def _unsharded(program: ir.Module) -> ir.Module:
    """Returns a program without shardings on its ops, which say nothing on one device.

    On a barrier of which nobody reads a value XLA refuses them (jaxlib 0.10.2), as on a loop.
    """
    copy = copy_module(program)
    for op in walk(entry_function(copy).operation):
        for name in (SHARDING, CARRIED, STRATEGY):
            if name in op.attributes:
                del op.attributes[name]
    return copy


def _alone(function: ir.Operation, mesh: ir.Operation | None) -> ir.Module:
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        for op in (mesh, function):
            if op is not None:
                copy = op.clone()
    copy.attributes["sym_name"] = ir.StringAttr.get("main")
    copy.attributes["sym_visibility"] = ir.StringAttr.get("public")
    return module
