"""A plan from disk that is proven to run: its files are those that were written, its step can run, its programs are what the step says.

Errors    RHI-PLAN-001, RHI-PLAN-002, RHI-STEP-001 to RHI-STEP-007, RHI-RUN-001 and RHI-RUN-006, and RHI-READ-001 to RHI-READ-005
          for a program.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.mlir.refusals import refuse_unrunnable
from rhino.ir.plan.folder import STEP, WholePlan, program_file, read_plan
from rhino.ir.program.program_signature import check_signature
from rhino.runtime.executor.verify import verify_plan


def read_proven_plan(folder: Path) -> WholePlan:
    """Returns the plan in a folder. Raises the errors above, each with the file at fault."""
    plan = read_plan(folder)
    try:
        verify_plan(plan)
    except RhinoError as error:
        raise replace(error, place=Place(str(folder / STEP))) from None
    for program in plan.step.programs:
        file = str(folder / program_file(program.module))
        module = read_module(plan.modules[program.module].encode(), file, make_context())
        refuse_unrunnable(module, file)
        check_signature(program, module, plan.step.mesh, file)
    return plan
