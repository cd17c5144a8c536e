"""What ops read and write, with a memory nearer to the units, against bytes worked out by hand."""

from dataclasses import replace

import pytest
from snippets import program_of

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.cluster.hardware import Operator
from rhino.ir.graph.graph import materialized
from rhino.ir.graph.spec import REPLICATED, split
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
FITTING = 3 * WHOLE // 2


def costs_of(near_bytes):
    graph = program_of(PROGRAM).graph
    device = replace(CLUSTER.device, near_memory_bytes=near_bytes)
    return OpCosts(graph, CostModel(device, mesh_axes(CLUSTER, (2,))), materialized(graph).tolist(), frozenset())


def moved(near_bytes):
    """The bytes that each product moves on one device, whole and with its rows split in two."""
    costs = costs_of(near_bytes)
    whole, rows = strategies(costs.graph.cls(0), (2,))[:2]
    return [[costs.moved_bytes(op, state) for op in range(3)] for state in (whole, rows)]


def test_what_was_measured_of_a_shape_counts_for_states_with_that_shape_alone():
    costs = costs_of(None)
    whole, rows = strategies(costs.graph.cls(0), (2,))[:2]
    table = Operator("stablehlo.dot_general", "f32", ((1.0, 42.0),), "s", ("4x8xf32", "8x8xf32"), ("4x8xf32",))
    others = [replace(table, dtype="bf16"), replace(table, op="stablehlo.dot"), replace(table, results=("8x4xf32",))]
    for operators, seconds in (((*others, table), 42.0), (others, costs.state_s(0, rows))):
        model = replace(costs.model, device=replace(costs.model.device, operators=tuple(operators)))
        measured = OpCosts(costs.graph, model, costs.in_memory, frozenset())
        assert measured.state_s(0, rows) == seconds
        assert measured.state_s(0, whole) == costs.state_s(0, whole)


def test_without_a_nearer_memory_all_is_read_and_written():
    assert moved(None) == [[3 * WHOLE] * 3, [2 * WHOLE] * 3]


@pytest.mark.parametrize("near_bytes", [FITTING, FITTING + 1])
def test_what_fits_two_thirds_of_a_nearer_memory_is_neither_read_nor_written(near_bytes):
    # what the program gives is written; what products are given comes by copies of its own, and the others are there
    assert moved(near_bytes) == [[0, 0, WHOLE], [0, 0, WHOLE // 2]]


def test_what_does_not_fit_is_read_and_written():
    assert moved(FITTING - 1)[0] == [WHOLE, 3 * WHOLE, 2 * WHOLE]
    # of the second product, half of the result and of the first operand fit, and the second operand does not
    assert moved(FITTING - 1)[1][1] == WHOLE


def test_what_a_product_is_given_is_fetched_unless_it_is_gathered_into_the_nearer_memory():
    per_s = CLUSTER.device.memory_bytes_per_s
    a, b = 0, 1
    first = 2
    for near_bytes, gathered in ((FITTING, 0), (FITTING - 1, WHOLE)):
        costs = costs_of(near_bytes)
        kind = costs.graph.type_of(a)
        assert [costs.is_fetched(value, op) for value, op in ((a, 0), (b, 0), (b, 2), (first, 1))] == [True] * 3 + [
            False
        ]
        ways = [(REPLICATED, REPLICATED), (split(0), split(0)), (split(0), REPLICATED)]
        assert [costs.fetch_s(kind, *way) * per_s for way in ways] == pytest.approx([WHOLE, WHOLE // 2, gathered])
    assert not costs_of(None).is_fetched(a, 0)


def test_a_result_that_is_gathered_is_written_from_the_nearer_memory():
    ways = [(REPLICATED, REPLICATED), (split(0), split(1)), (split(0), REPLICATED)]
    for near_bytes, written in ((FITTING, [0, 0, WHOLE]), (None, [0, 0, 0])):
        costs = costs_of(near_bytes)
        found = [costs.write_s(costs.graph.type_of(0), *way) * CLUSTER.device.memory_bytes_per_s for way in ways]
        assert found == pytest.approx(written)
