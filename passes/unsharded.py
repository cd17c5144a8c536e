"""The program of a module for passes that plan for no mesh: every op whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.program.program import Program, read_program
from rhino.passes.base import Remarks
from rhino.passes.with_rules import with_rules

UNSHARDED_ERRORS = ("RHI-READ-005", "RHI-SHARD-001")


@contextmanager
def unsharded_program(module: ir.Operation, remarks: Remarks) -> Iterator[Program]:
    """Gives the program of `module`, whose ops have rules for that time; its shardings speak of the module's own mesh.

    Raises:
        RhinoError: RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have.
    """
    entry_function(module, remarks.file)
    found = module_mesh(module)
    mesh = found[1] if found is not None else mesh_of_shape((1,))
    with with_rules(module):
        yield read_program(entry_function(module, remarks.file), mesh, remarks.file)
