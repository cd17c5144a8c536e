"""Small linear and integer programs, by solvers that load at once: a few rows over what a search has found.

    minimise  cost @ x   such that  low <= matrix @ x <= high,  0 <= x <= most,  x whole where asked for

Host: GLOP and SCIP through OR-tools' linear solver, which loads in 0.03 s; SciPy's takes 0.5 s, MathOpt
(`rhino.strategies.solver.lp.linear_programs`, for large ones) 0.3 s (processor, 2026-11-22), and a search solves a few
dozen of these in 0.1 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from ortools.linear_solver import pywraplp

from rhino.ir.arrays import Floats

_NODE_LIMIT: Final = 20_000
"""Nodes of branch and bound: a choice that is near the best will do."""


@dataclass(frozen=True, slots=True, eq=False)
class SmallPoint:
    """The best point, and what it costs.

    Shapes: `values` [variables]; `duals` [rows], zero where variables are whole.
    """

    cost: float
    values: Floats
    duals: Floats


def solve_small(
    cost: Floats, matrix: Floats, low: Floats, high: Floats, most: Floats, *, integer: bool = False
) -> SmallPoint | None:
    """Returns the best point found, or None if there is none.

    Shapes: `cost`, `most` [variables]; `matrix` [rows, variables]; `low`, `high` [rows].
    """
    solver = pywraplp.Solver.CreateSolver("SCIP" if integer else "GLOP")
    if integer:
        solver.SetSolverSpecificParametersAsString(f"limits/nodes = {_NODE_LIMIT}")
    variables = [solver.Var(0.0, upper, integer, "") for upper in most.tolist()]
    rows = []
    for coefficients, lower, upper in zip(matrix, low.tolist(), high.tolist(), strict=True):
        row = solver.RowConstraint(lower, upper, "")
        for at in np.flatnonzero(coefficients).tolist():
            row.SetCoefficient(variables[at], float(coefficients[at]))
        rows.append(row)
    objective = solver.Objective()
    for variable, one in zip(variables, cost.tolist(), strict=True):
        objective.SetCoefficient(variable, one)
    objective.SetMinimization()
    if solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return None
    values = np.array([variable.solution_value() for variable in variables])
    duals = np.zeros(len(rows)) if integer else np.array([row.dual_value() for row in rows])
    return SmallPoint(float(cost @ values), values, duals)
