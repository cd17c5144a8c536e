"""Tiny programs on two mesh axes, through the choice problem that is made of them.

The search is compared with enumeration, and with plans on paper.
"""

from functools import cache

import numpy as np
import pytest
from brute_force import brute_force, choice_costs, choice_peaks
from snippets import function, program_of, tensor

from rhino.ir.cluster.cluster import MeshAxis
from rhino.ir.cluster.hardware import Device
from rhino.ir.graph.spec import PARTIAL, REPLICATED, all_specs, fits, pack, partial_axes, spec_text, split, unpack
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.cost.candidates import REPLICATE
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.sharding.choice_problem import build
from rhino.strategies.solver.answer import Answer, Infeasible
from rhino.strategies.solver.search import Limits, Search

R, P, S0, S1 = REPLICATED, PARTIAL, split(0), split(1)
DEVICE = Device("test", (("f32", 1e9),), 10**9, 1.0, 1e9, 1.0, 1.0, (), platform="cpu")
GRID = (2, 2)


def model(sizes=GRID, latency_s=1e-9):
    """The inner axis is twice as fast as the outer one."""
    rates = [1e9 * 2**number for number in range(len(sizes))]
    return CostModel(
        DEVICE,
        tuple(
            MeshAxis("xyz"[n], size, latency_s, rates[n], rates[n], "ring", ("link",)) for n, size in enumerate(sizes)
        ),
    )


def choice_of(text, sizes=GRID):
    return build(program_of(text, sizes).graph, model(sizes))


def matrix_times(name, matrix, vector, rows, columns):
    kinds = f"(tensor<{rows}x{columns}xf32>, tensor<{columns}xf32>) -> tensor<{rows}xf32>"
    return f"%{name} = stablehlo.dot_general %{matrix}, %{vector}, contracting_dims = [1] x [0] : {kinds}"


ONE = function(matrix_times("y", "a", "x", 4, 8), {"a": tensor((4, 8)), "x": tensor((8,))}, {"y": tensor((4,))})
TWO = function(
    f"{matrix_times('y', 'a', 'x', 4, 2)}\n%h = stablehlo.tanh %y : tensor<4xf32>\n{matrix_times('z', 'b', 'h', 2, 4)}",
    {"a": tensor((4, 2)), "x": tensor((2,)), "b": tensor((2, 4))},
    {"z": tensor((2,))},
)
TWICE = function(
    f"{matrix_times('y', 'a', 'x', 4, 2)}\n%p = stablehlo.tanh %y : tensor<4xf32>\n"
    f"%q = stablehlo.negate %y : tensor<4xf32>",
    {"a": tensor((4, 2)), "x": tensor((2,))},
    {"p": tensor((4,)), "q": tensor((4,))},
)
REDUCED = function(
    """%l = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%a init: %l) applies stablehlo.maximum across dimensions = [1]\
 : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1]\
 : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>""",
    {"a": tensor((4, 4))},
    {"m": tensor((4,)), "s": tensor(())},
)
UPDATE = """func.func @main(%w: tensor<4x4xf32> {tf.aliasing_output = 0 : i32}, %g: tensor<4x4xf32>)\
 -> tensor<4x4xf32> {
  %n = stablehlo.subtract %w, %g : tensor<4x4xf32>
  return %n : tensor<4x4xf32>
}"""
LOOP = """func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %most = stablehlo.constant dense<3> : tensor<i32>
  %end:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<4x4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.transpose %v, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    stablehlo.return %j, %t : tensor<i32>, tensor<4x4xf32>
  }
  return %end#1 : tensor<4x4xf32>
}"""
TINY = {"one": ONE, "two": TWO, "twice": TWICE, "reduced": REDUCED, "update": UPDATE, "loop": LOOP}


@cache
def truth(name, sizes):
    """The problem of a program, and cost and peak of every choice."""
    problem = choice_of(TINY[name], sizes).problem
    states = tuple(problem.num_states())
    choices = np.array(np.unravel_index(np.arange(np.prod(states)), states))
    costs = choice_costs(problem, choices)
    return problem, costs, np.where(np.isfinite(costs), choice_peaks(problem, choices), np.inf)


@pytest.mark.parametrize("entries", [Limits().table_entries, 30])
@pytest.mark.parametrize(
    ("name", "sizes"), [*((name, GRID) for name in TINY), ("one", (2, 4)), ("one", (2, 2, 2)), ("reduced", (4, 2))]
)
def test_the_search_finds_the_best_of_all_choices(name, sizes, entries):
    """By elimination, and by sweeps where tables may have 30 entries; with budgets by MILP in the end."""
    problem, costs, peaks = truth(name, sizes)
    outcome = Search(problem, Limits(table_entries=entries)).run(None)
    assert outcome.cost == pytest.approx(costs.min(), rel=1e-9)
    assert outcome.bound <= outcome.cost
    assert outcome.gap < 1e-6
    for budget in np.quantile(peaks[np.isfinite(peaks)], [0.0, 0.001, 0.05]):
        outcome = Search(problem, Limits(gap=0.0, table_entries=entries, exact_below_states=1000)).run(budget)
        assert isinstance(outcome, Answer)
        assert outcome.peak_bytes <= budget
        assert outcome.cost == pytest.approx(costs[peaks <= budget].min(), rel=1e-6)
    assert isinstance(Search(problem, Limits(table_entries=entries)).run(peaks.min() - 1), Infeasible)


def test_enumeration_is_that_of_the_project():
    problem, costs, _ = truth("twice", GRID)
    assert brute_force(problem).cost == pytest.approx(costs.min(), rel=1e-12)


@pytest.mark.parametrize("name", TINY)
def test_every_state_lies_as_its_axes_divide(name):
    """Of arguments, results and values every spec that fits is there, and no other."""
    choice = choice_of(TINY[name])
    graph = choice.graph
    for node in choice.nodes:
        if node.kind == "argument":
            shape = graph.type_of(node.number).shape
            assert {s.result_specs[0] for s in node.states} == set(all_specs(shape, GRID))
        elif node.kind == "op":
            kinds = [graph.type_of(v).shape for v in graph.operands(node.number).tolist()]
            assert all(
                fits(need, shape, GRID) for s in node.states for need, shape in zip(s.operand_specs, kinds, strict=True)
            )


@pytest.mark.parametrize("name", TINY)
def test_coordinates_name_a_choice_for_each_axis(name):
    choice = choice_of(TINY[name])
    for node, found in zip(choice.nodes, choice.problem.coordinates, strict=True):
        assert found.shape == (len(node.states), 2)
        wanted = [s.strategy if node.kind == "op" else unpack(s.result_specs[0], 2) for s in node.states]
        assert [tuple(row) for row in found.tolist()] == wanted
        assert len(set(wanted)) == len(wanted)


def test_a_choice_on_one_axis_of_two_is_the_choice_on_that_axis_alone():
    """The other axis has a single device: costs are the same, state by state."""
    flat, thin = choice_of(ONE, (4,)), choice_of(ONE, (4, 1))
    assert brute_force(flat.problem).cost == pytest.approx(brute_force(thin.problem).cost)
    assert isinstance(Search(thin.problem).run(None), Answer)


def test_a_plan_on_two_axes_says_what_is_sent_along_each():
    """Rows are split along x, and the sum along y.

    Of 4 x 8 and 8, each device multiplies 2 x 4 by 4, and joins 2 sums with its neighbour along y.
    """
    choice = choice_of(ONE)
    wanted = {
        ("argument", 0): pack((S0, S1)),
        ("argument", 1): pack((R, S0)),
        ("op", 0): pack((S0, P)),
        ("return", 0): pack((S0, R)),
    }
    states = []
    for node in choice.nodes:
        found = [n for n, s in enumerate(node.states) if s.result_specs[0] == wanted[node.kind, node.number]]
        if node.kind == "op":
            found = [n for n in found if min(node.states[n].strategy) > REPLICATE]
        states.append(found[0])
    (transfer,) = make_plan(choice, states).transfers()
    assert (transfer.move.kind, transfer.move.axes, transfer.move.num_bytes) == ("all_reduce", (1,), 2 * 4)
    # 2 x 4 and 4 read, 2 written at 1 GB/s; then, twice, half of 8 bytes at 2 GB/s and a tenth of 1 ns. Sums are
    # joined, and what is summed is 4 elements of the 40 that products read.
    assert choice.problem.cost(states) == pytest.approx((8 + 4 + 2) * 4e-9 + 2 * (0.1e-9 + 4 / 2e9))


def test_no_stored_value_is_a_sum_along_an_axis_without_a_use_for_it():
    """Values are stored as sums only along axes along which their ops leave sums."""
    for text in TINY.values():
        choice = choice_of(text)
        for node in choice.nodes:
            if node.kind in ("argument", "return"):
                assert not [spec_text(s.result_specs[0], "xy") for s in node.states if partial_axes(s.result_specs[0])]
