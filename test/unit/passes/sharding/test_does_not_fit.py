"""What is said of a budget that is not met: proven impossible, or not found within the steps, are told apart."""

import pytest
from snippets import parse

from rhino.ir.diagnostics import ExitCode
from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Remarks
from rhino.passes.sharding.choose_shardings import ChooseShardings, does_not_fit
from rhino.passes.sharding.planning_pass import build_choice
from rhino.strategies.solver.answer import Infeasible, Unsolved

SQUARE = """
func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]\
 : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %y : tensor<64x64xf32>
}
"""


@pytest.mark.parametrize(
    ("outcome", "identity", "words"),
    [
        (Infeasible(6144.0), "RHI-SOLVE-001", "at least 6 KiB are needed"),  # of the budget: rows may need more than it
        (Infeasible(None), "RHI-SOLVE-001", "at least 8.25 KiB are needed"),
        # rows are no proof
        (
            Infeasible(6144.0, 7168.0),
            "RHI-SOLVE-001",
            "about 6 KiB are needed, the smallest plan that was found needs 7 KiB",
        ),
        (
            Infeasible(4000.0, 7168.0),
            "RHI-SOLVE-001",
            "no choice of shardings is predicted to fit 4 KiB per device; the smallest plan that was found needs 7 KiB",
        ),
        (
            Unsolved(0.0, 9216.0),
            "RHI-SOLVE-002",
            "was found within the steps of the search; the smallest found needs 9 KiB",
        ),
        (Unsolved(0.0), "RHI-SOLVE-002", "was found within the steps of the search"),
    ],
)
def test_the_error_says_what_is_known(outcome, identity, words):
    module = parse(SQUARE)
    with module.context, ir.Location.unknown():
        planner, remarks = ChooseShardings(cluster="cpu4"), Remarks("square.mlir")
        target = planner.target(module.operation, remarks)
        program = planner.read(module.operation, target, remarks)
        error = does_not_fit(build_choice(program, target), program, 4096, outcome)
    assert (error.id, error.exit_code) == (identity, ExitCode.DOES_NOT_FIT)
    assert error.what.endswith(words)
    assert '4 KiB: argument 0 "arg0" tensor<64x64xf32>' in error.notes[0] + error.notes[1]
