"""A plan from disk that is proven to run.

Its files are those that were written, its step can run, and its programs match the step.

Errors    RHI-PLAN-001, RHI-PLAN-002, RHI-STEP-001 to RHI-STEP-007, RHI-STEP-009, RHI-RUN-001 and RHI-RUN-006, and
          RHI-READ-001 to RHI-READ-005 for a program.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.mlir.refusals import refuse_unrunnable
from rhino.ir.plan.files import STEP, load_plan, program_file
from rhino.ir.plan.parts import program_meshes
from rhino.ir.plan.plan import Plan
from rhino.ir.plan.verify import verify_plan
from rhino.ir.program.program_signature import check_signature


def load_proven_plan(path: Path) -> Plan:
    """Returns the plan in a file or folder. Raises the errors above, each with the file at fault."""
    plan = load_plan(path)
    execution = plan.execution
    if execution is None:
        return plan  # what its shardings are of is not in it
    try:
        verify_plan(plan, execution)
    except RhinoError as error:
        raise replace(error, place=Place(str(path / STEP))) from None
    for program, mesh in zip(execution.step.programs, program_meshes(execution.step), strict=True):
        file = str(path / program_file(program.module))
        module = read_module(execution.modules[program.module].encode(), file, make_context())
        refuse_unrunnable(module, file)
        check_signature(program, module, mesh, file)
    return plan
