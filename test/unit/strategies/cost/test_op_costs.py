"""What ops read and write, with a memory nearer to the units, against bytes worked out by hand."""

from dataclasses import replace

import pytest
from snippets import program_of

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.graph.graph import materialized
from rhino.strategies.cost.candidates import strategies
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.op_costs import OpCosts

CLUSTER = load_cluster("v5e-8")
T = "tensor<8x8xf32>"
DOT = f"contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"
PROGRAM = f"""func.func @main(%a: {T}, %b: {T}) -> {T} {{
  %0 = stablehlo.dot_general %a, %b, {DOT}
  %1 = stablehlo.dot_general %0, %0, {DOT}
  %2 = stablehlo.dot_general %1, %b, {DOT}
  return %2 : {T}
}}"""
WHOLE = 8 * 8 * 4


def moved(near_bytes):
    """The bytes that each product moves on one device, whole and with its rows split in two."""
    graph = program_of(PROGRAM).graph
    device = replace(CLUSTER.device, near_memory_bytes=near_bytes)
    costs = OpCosts(graph, CostModel(device, mesh_axes(CLUSTER, (2,))), materialized(graph).tolist(), frozenset())
    whole, rows = strategies(graph.cls(0), (2,))[:2]
    return [[costs.moved_bytes(op, state) for op in range(3)] for state in (whole, rows)]


def test_without_a_nearer_memory_all_is_read_and_written():
    assert moved(None) == [[3 * WHOLE] * 3, [2 * WHOLE] * 3]


@pytest.mark.parametrize("near_bytes", [2 * WHOLE, 2 * WHOLE + 1])
def test_what_fits_half_of_a_nearer_memory_is_neither_read_nor_written(near_bytes):
    # what the program is given is read, and what it gives is written; the others are not
    assert moved(near_bytes) == [[2 * WHOLE, 0, 2 * WHOLE], [WHOLE + WHOLE // 2, 0, WHOLE + WHOLE // 2]]


def test_what_does_not_fit_is_read_and_written():
    assert moved(2 * WHOLE - 1)[0] == [3 * WHOLE] * 3
    # of the second product, half of the result and of the first operand fit, and the second operand does not
    assert moved(2 * WHOLE - 1)[1][1] == WHOLE
