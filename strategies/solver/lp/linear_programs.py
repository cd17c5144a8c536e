"""The one door to linear and integer programming: sparse rows in, a point with a bound out.

    minimise  cost @ z   such that  low <= matrix @ z <= high,  0 <= z <= 1,  the first `num_integer` of z whole

Host: HiGHS through OR-tools' MathOpt. Measured 2026-11-21 on one shared core, a random ladder (3,000 nodes of 5 states,
6,000 edges: 62,970 rows, 151,000 variables) with frustrated costs; seconds, building + solving:

    LP    MathOpt/HiGHS 0.4 + 3.9   ModelBuilder/HIGHS_LP 0.1 + 2.7   highspy 0.1 + 2.5   SciPy/HiGHS 0.2 + 3.0
          MathOpt/GLOP 0.4 + 7.4    ModelBuilder/GLOP 0.1 + 6.4       ModelBuilder/PDLP 0.1 + 6.2 (6 digits)
    MILP  MathOpt/HiGHS 0.4 + 4.7   ModelBuilder/HIGHS 0.1 + 7.4      highspy 0.1 + 4.6   SciPy/HiGHS 0.1 + 4.7
          MathOpt/SCIP 0.4 + 25.2   ModelBuilder/SCIP 0.1 + 25.2

(the MILP row: costs whose LP is whole; GLOP took 38 s for that LP, HiGHS 2.4 s). ModelBuilder cannot limit HiGHS's
nodes and prints its banner to stdout, where IR belongs; highspy cannot be imported beside OR-tools, as both load a
`libhighs.so.1` of their own version. Limits are steps, not seconds, the seed is fixed and there is one thread, so that
the same rows give the same point.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt
from ortools.math_opt.solvers import highs_pb2
from scipy import sparse

from rhino.ir.arrays import Floats
from rhino.strategies.solver.answer import Infeasible, Unsolved

# A step is a node of branch and bound or this many simplex iterations: about as long, where a node's LP starts from its
# parent's.
ITERATIONS_PER_STEP = 1000

# Finer than HiGHS's own 1e-7 and 1e-6: with those, 2 of 1,500 random problems lost their optimum, with this 1 of 2,500
# (2026-11-21). Their budgets bind to the byte, and tensors of a byte stand next to tensors of a gigabyte.
FEASIBILITY_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A linear program over variables in [0, 1].

    Shapes: `cost` [variables], `matrix` (CSR) [rows, variables], `low` and `high` [rows]; an equality has low == high.
    The first `num_integer` variables must be whole where the caller asks for it.
    """

    cost: Floats
    matrix: sparse.csr_matrix
    low: Floats
    high: Floats
    num_integer: int


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """What the solver found.

    Shapes: `values` [variables], `duals` [rows], zeros where the solver has none (integer programs).
    `bound` is the solver's lower bound on the objective, not the point's own value; `steps` is what was spent.
    """

    values: Floats
    duals: Floats
    bound: float
    is_optimal: bool
    steps: int


def to_proto(rows: Rows, integer: bool) -> model_pb2.ModelProto:
    """Returns the rows as a MathOpt model, filled column by column.

    Its Python objects would take longer than the solver.
    """
    model = model_pb2.ModelProto()
    num_rows, num_variables = rows.matrix.shape
    variables, costs = model.variables, model.objective.linear_coefficients
    variables.ids.extend(np.arange(num_variables))
    variables.lower_bounds.extend(np.zeros(num_variables))
    variables.upper_bounds.extend(np.ones(num_variables))
    variables.integers.extend(np.arange(num_variables) < (rows.num_integer if integer else 0))
    paid = np.flatnonzero(rows.cost)
    costs.ids.extend(paid)
    costs.values.extend(rows.cost[paid])
    model.linear_constraints.ids.extend(np.arange(num_rows))
    model.linear_constraints.lower_bounds.extend(rows.low)
    model.linear_constraints.upper_bounds.extend(rows.high)
    entries = sparse.coo_matrix(rows.matrix)
    model.linear_constraint_matrix.row_ids.extend(entries.row)
    model.linear_constraint_matrix.column_ids.extend(entries.col)
    model.linear_constraint_matrix.coefficients.extend(entries.data)
    return model


def parameters(integer: bool, step_limit: int, rounds: bool = True) -> mathopt.SolveParameters:
    """Returns the solver's settings.

    No gap is left on purpose, and nothing depends on the clock or the number of cores.

    Without `rounds` it leaves out the search for a point among the roundings of the relaxation (RENS): where a good one
    is known already, that takes longer than the proof (stages of a GPT of 72 layers, tolerance 0.02: 20 s with it, 9 s
    without, 2026-11-22).
    """
    highs = highs_pb2.HighsOptionsProto()
    highs.string_options["parallel"] = "off"
    highs.double_options["mip_rel_gap"] = 0.0
    highs.double_options["mip_abs_gap"] = 0.0
    for tolerance in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
        highs.double_options[tolerance] = FEASIBILITY_TOLERANCE
    if integer:
        highs.bool_options["mip_heuristic_run_rens"] = rounds
        return mathopt.SolveParameters(random_seed=0, highs=highs, node_limit=step_limit)
    iterations = min(step_limit * ITERATIONS_PER_STEP, 2**31 - 1)
    return mathopt.SolveParameters(random_seed=0, highs=highs, iteration_limit=iterations)


def run_host(rows: Rows, integer: bool, step_limit: int, rounds: bool = True) -> mathopt.SolveResult:
    """Returns HiGHS's result, or where the host fails on it, GLOP's or SCIP's.

    MathOpt 9.15 takes some LPs that are infeasible by a hair for an internal error (HiGHS has both a ray and an almost
    feasible point), and fails again while it raises that error, with an AttributeError (2026-11-21).
    """
    model, settings = mathopt.Model.from_model_proto(to_proto(rows, integer)), parameters(integer, step_limit, rounds)
    try:
        with silent_stdout():
            return mathopt.solve(model, mathopt.SolverType.HIGHS, params=settings)
    except (AttributeError, RuntimeError):
        return mathopt.solve(model, mathopt.SolverType.GSCIP if integer else mathopt.SolverType.GLOP, params=settings)


@contextmanager
def silent_stdout() -> Iterator[None]:
    """Keeps what C prints in the meantime out of stdout, where IR belongs.

    HiGHS in OR-tools 9.15 prints a line of its debugging there, whatever the log is set to, where a point of its
    presolved problem is not quite one of the whole (2026-11-22).
    """
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def to_point(rows: Rows, result: mathopt.SolveResult, steps: int, is_optimal: bool) -> Point:
    """Returns the first solution of a MathOpt result; its values come ordered by variable, its duals by row."""
    solution = result.solutions[0]
    num_rows, num_variables = rows.matrix.shape
    values = np.fromiter(solution.primal_solution.variable_values.values(), np.float64, num_variables)
    duals = np.zeros(num_rows)
    if solution.dual_solution is not None:
        duals = np.fromiter(solution.dual_solution.dual_values.values(), np.float64, num_rows)
    return Point(values, duals, float(result.termination.objective_bounds.dual_bound), is_optimal, steps)


def solve_rows(rows: Rows, *, integer: bool, step_limit: int, rounds: bool = True) -> Point | Infeasible | Unsolved:
    """Returns the best point found within the steps, a proof that there is none, or neither.

    `rounds` is as in `parameters`.

    The four cases of a solver's status: proven best, a point at the limit (`is_optimal` is false), infeasible, no
    answer. Trouble with numbers counts as no answer.
    """
    result = run_host(rows, integer, step_limit, rounds)
    stats, reason = result.solve_stats, result.termination.reason
    steps = 1 + (stats.node_count if integer else stats.simplex_iterations // ITERATIONS_PER_STEP)
    if reason in (mathopt.TerminationReason.OPTIMAL, mathopt.TerminationReason.FEASIBLE):
        return to_point(rows, result, steps, reason == mathopt.TerminationReason.OPTIMAL)
    # Nothing is unbounded in a box.
    if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
        return Infeasible(None)
    return Unsolved(float(result.termination.objective_bounds.dual_bound))
