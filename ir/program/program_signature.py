"""What a step says of a program, held against the module that is to be the program.

Errors    RHI-RUN-006 they disagree; RHI-READ-005 the module has no entry.
"""

from __future__ import annotations

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.plan.instructions import Layout, StepProgram


def check_signature(program: StepProgram, module: ir.Module, mesh: Mesh, file: str) -> None:
    """Raises an error where `module`, of the file `file`, differs from `program` in arguments, results or mesh size.

    How arrays are split is seen only in what XLA makes of the module.
    """
    entry = entry_function(module, file)
    for side, types, layouts in (
        ("argument", entry.type.inputs, program.inputs),
        ("result", entry.type.results, program.outputs),
    ):
        if len(types) != len(layouts):
            raise disagreement(program, f"the module has {len(types)} {side}s, the program {len(layouts)}", file)
        for number, (got, layout) in enumerate(zip(types, layouts, strict=True)):
            if not _is_of(got, layout):
                wanted = f"{layout.dtype}[{', '.join(map(str, layout.shape))}]"
                raise disagreement(program, f"{side} {number} is {got} in the module, {wanted} in the program", file)
    found = module_mesh(module.operation)
    if found is not None and found[1].num_devices != mesh.num_devices:
        raise disagreement(program, f"the module is for mesh {found[1]}, the step for mesh {mesh}", file)


def disagreement(program: StepProgram, what: str, file: str) -> RhinoError:
    """Returns the error that says in what a program and its module disagree."""
    return RhinoError(
        "RHI-RUN-006",
        f"program {program.name} and its module {program.module} disagree: {what}",
        Place(file),
        fix="plan again: the plan's files do not belong together",
    )


def _is_of(kind: ir.Type, layout: Layout) -> bool:
    return isinstance(kind, ir.RankedTensorType) and (str(kind.element_type), tuple(kind.shape)) == (
        layout.dtype,
        layout.shape,
    )
