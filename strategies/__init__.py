"""Decisions on plain data: candidates, costs, exact reductions, LP and ILP. No MLIR in here."""
