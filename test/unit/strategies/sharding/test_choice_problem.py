"""The choice problem of small modules: nodes and edges, memory by hand, a choice's plan and cost, and enumeration."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from brute_force import brute_force, choice_costs, choice_peaks
from choices import DEVICE, FOUR, S0, S1, UPDATE, P, R, choice_of, loop, model, pick
from long_cases import one_in
from snippets import context, function, kept, program_of, tensor
from training import export_step
from zoo import ZOO

from rhino.ir.graph.spec import all_specs
from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.cost.cost_model import CostModel, step_seconds
from rhino.strategies.cost.reshard import ReshardStep
from rhino.strategies.sharding.choice_problem import Builder, ContradictionError, build
from rhino.strategies.solver.answer import Answer, Infeasible
from rhino.strategies.solver.search import Limits, Search
from rhino.strategies.solver.solver import Solver


def node_names(choice):
    return [(node.kind, node.number) for node in choice.nodes]


def edge_names(choice):
    nodes, problem = node_names(choice), choice.problem
    return {(nodes[u], nodes[v]) for u, v in zip(problem.edge_u, problem.edge_v, strict=True)}


# Axes of one device


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 2), (1, 1, 2, 1, 1, 1)])
def test_an_axis_of_one_device_adds_no_way_to_run_or_to_store(sizes):
    plain = choice_of(FOUR)
    axes = tuple(replace(plain.model.axes[0], name=f"a{number}", size=size) for number, size in enumerate(sizes))
    choice = build(program_of(FOUR, sizes).graph, CostModel(DEVICE, axes))
    assert [len(node.states) for node in choice.nodes] == [len(node.states) for node in plain.nodes]
    assert [t.tolist() for t in choice.problem.tables] == [t.tolist() for t in plain.problem.tables]


# Nodes and edges


def test_arguments_ops_and_results_are_nodes():
    """No value is read twice but the arguments, which are nodes anyway."""
    choice = choice_of(FOUR)
    arguments, ops = [("argument", n) for n in range(2)], [("op", n) for n in range(4)]
    assert node_names(choice) == [*arguments, *ops, ("return", 0)]
    x, w = arguments
    y, h, z, r = ops
    assert edge_names(choice) == {(x, y), (w, y), (y, h), (h, z), (w, z), (z, r), (x, r), (r, ("return", 0))}


def test_a_value_that_several_read_is_a_node():
    text = FOUR.replace("stablehlo.add %z, %x", "stablehlo.add %z, %z")
    assert ("value", 4) in node_names(choice_of(text))


def test_scalars_and_free_values_make_no_edges():
    body = """%c = stablehlo.constant dense<2.0> : tensor<4x6xf32>
      %n = stablehlo.add %s, %s : tensor<f32>
      %b = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %f = stablehlo.multiply %b, %c : tensor<4x6xf32>
      %r = stablehlo.multiply %f, %a : tensor<4x6xf32>"""
    choice = choice_of(function(body, {"s": tensor(()), "a": tensor((4, 6))}, {"r": tensor((4, 6)), "n": tensor(())}))
    assert node_names(choice) == [("argument", 0), ("argument", 1), ("op", 4), ("return", 0), ("return", 1)]
    assert edge_names(choice) == {(("argument", 1), ("op", 4)), (("op", 4), ("return", 0))}


def test_a_free_operand_is_no_partial_sum():
    body = "%c = stablehlo.constant dense<2.0> : tensor<4x6xf32>\n%r = stablehlo.add %a, %c : tensor<4x6xf32>"
    choice = choice_of(function(body, {"a": tensor((4, 6))}, {"r": tensor((4, 6))}))
    assert [[s.result_specs for s in node.states] for node in choice.nodes if node.kind == "op"] == [
        [(R,), (S0,), (S1,)]
    ]


def test_a_shared_reshard_is_paid_once():
    """A sum over devices, read twice: taken once, by the value, for both."""
    body = """%y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
      %p = stablehlo.tanh %y : tensor<4x8xf32>
      %q = stablehlo.sqrt %y : tensor<4x8xf32>"""
    choice = choice_of(
        function(body, {"a": tensor((4, 6)), "b": tensor((6, 8))}, {"p": tensor((4, 8)), "q": tensor((4, 8))})
    )
    states = pick(choice, {("argument", 0): S1, ("argument", 1): S0, ("op", 0): ((S1, S0), (P,))})
    compute = sum(choice.problem.tables[t][s] for t, s in zip(choice.problem.node_table, states, strict=True))
    launch_s, sent_s = (model().move_s(ReshardStep("all_reduce", (0,), num_bytes)) for num_bytes in (0, 128))
    others = 1 - 128 / (4 * 6 * 4 + 6 * 8 * 4)  # of a launch that it shares with as much as products read
    assert choice.problem.cost(states) - compute == pytest.approx(sent_s - others * launch_s)


# The user's word


def with_sharding(sharding):
    return 'sdy.mesh @mesh = <["x"=2]>\n' + FOUR.replace(
        "%x: tensor<4x6xf32>", f"%x: tensor<4x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"
    )


def test_a_fixed_argument_has_the_states_that_its_sharding_leaves():
    for sharding, specs in (('[{"x"}, {}]', [S0]), ("[{?}, {}]", [R, S0]), ("[{}, {}]", [R])):
        assert [s.result_specs[0] for s in choice_of(with_sharding(sharding)).nodes[0].states] == specs


def test_a_contradiction_names_its_value():
    """An argument cannot come in as a sum."""
    with pytest.raises(ContradictionError) as caught:
        choice_of(with_sharding('[{}, {}], unreduced={"x"}'))
    assert caught.value.value == 0


# Donated buffers


def test_a_donated_argument_and_its_result_lie_alike():
    choice = choice_of(UPDATE)
    assert node_names(choice) == [("argument", 0), ("argument", 1), ("op", 0)]
    for spec in (R, S0, S1):
        assert make_plan(choice, pick(choice, {("argument", 0): spec})).returned == (spec,)
    # Stored whole: half of it is cut out for the op (48 bytes read and written at 1 GB/s), and the result's halves are
    # gathered.
    more = 96e-9 + model().move_s(ReshardStep("all_gather", (0,), 96))
    same = choice.problem.cost(pick(choice, default=S0))
    assert choice.problem.cost(pick(choice, {("argument", 0): R}, S0)) - same == pytest.approx(more)


# Loops


def test_a_body_costs_what_its_trips_cost():
    """The weight in halves by columns: in every trip the product's result is gathered.

    Around the loop nothing is sent.
    """
    for trips in (3, 5):
        choice = choice_of(loop(trips))
        (product,) = [node.number for node in choice.nodes if node.kind == "op" and len(node.states) > 3]
        states = pick(choice, {("argument", 1): S1, ("op", product): ((R, S1), (S1,))})
        # 128 bytes read, 128 of the weight and 64 written at 1 GB/s (longer than 256 operations at 1 GFLOP/s), 128
        # gathered.
        assert choice.problem.cost(states) == pytest.approx(
            trips * (320e-9 + model().move_s(ReshardStep("all_gather", (0,), 128)))
        )


def test_what_a_loop_carries_lies_in_one_way():
    choice = choice_of(loop(3))
    for number, spec in enumerate((R, S0, S1)):
        carried = [node for node in choice.nodes if node.kind == "value"]
        assert len(carried) == 1
        assert carried[0].states[number].result_specs == (spec,)
    plan = make_plan(choice, pick(choice, {("argument", 1): R}, S0))
    assert [t for t in plan.transfers() if t.times > 1] == []


# The plan that a choice spells out costs what the problem says


@cache
def zoo_choice(name, size, device=DEVICE):
    with context():
        module = kept(ir.Module.parse(export_step(ZOO[name])))
        with ir.Location.unknown():
            Normalize().run(module.operation, Remarks())
        one = replace(model(size), device=device)
        return build(program_of(str(module), size).graph, one)


TPU = replace(DEVICE, kind="TPU v5e", platform="tpu", near_memory_bytes=2048, flops_per_s=(("bf16", 1e9),))
GPU = replace(DEVICE, platform="gpu")
"""Devices for whose programs gathers are hidden: with memory that is nearer, or with collectives that are joined."""


def random_choice(choice, seed, sums_late):
    """A legal choice: the best one at random costs of states.

    Only with `sums_late` is a value stored as a sum for several readers.
    """
    rng, problem = np.random.default_rng(seed), choice.problem
    tables = [rng.choice([1e-5, 1e-4]) * rng.random(n) for n in problem.num_states()]
    for node, table in zip(choice.nodes, tables, strict=True):
        if node.kind == "value" and not sums_late:
            table[[s.result_specs == (P,) for s in node.states]] = 1.0
    node_table = np.arange(len(problem.tables), len(problem.tables) + len(tables))
    solver = Solver(replace(problem, tables=(*problem.tables, *tables), node_table=node_table))
    solved = solver.solve(solver.reduce())
    assert solved.value < 1.0
    return solved.states


def plan_cost(choice, states):
    """Ops cost what their nodes say, the rest is the plan's.

    The rest is slices, and the collectives that the plan lists, each for as often as it runs.
    """
    problem, graph, plan = choice.problem, choice.graph, make_plan(choice, states)
    compute = sum(problem.tables[t][s] for t, s in zip(problem.node_table, states, strict=True))
    # A scalar's sum is part of its op's node.
    paths = [path for path in plan.paths() if path and graph.type_of(path[0].value).shape]
    assert paths
    cut_bytes = sum(times * graph.type_of(value).num_bytes / plan.sizes[0] for value, times in slices(graph, plan))
    copied_s, costs = 0.0, choice.op_costs
    for op, (state, times) in enumerate(zip(plan.ops, graph.times().tolist(), strict=True)):
        for value, needed in zip(graph.operands(op).tolist(), state.operand_specs, strict=True):
            if costs.is_fetched(value, op):
                copied_s += times * costs.fetch_s(graph.type_of(value), plan.specs[value], needed)
    for value, wanted in zip(graph.returns, plan.returned, strict=True):
        copied_s += costs.write_s(graph.type_of(value), plan.specs[value], wanted)
    cut_s = 2 * cut_bytes / choice.model.device.memory_bytes_per_s
    return compute + cut_s + copied_s + sum(path_s(choice, path) for path in paths)


def path_s(choice, path):
    """The seconds of one way in a step."""
    value, reader = path[0].value, path[0].reader
    window = choice.windows.window(value, reader) if choice.windows else None
    is_narrow = choice.narrow.is_moved(value, reader)
    moves = [one.move.narrowed() if is_narrow else one.move for one in path]
    return path[0].times * sum(step_seconds(choice.model, choice.graph.type_of(value), moves, window, path[-1].target))


def slices(graph, plan):
    """The values that are whole where a part is wanted, and how often a part is cut out.

    Free values are computed in parts instead.
    """
    every = graph.times().tolist()
    wanted = [
        (v, need, every[op])
        for op, s in enumerate(plan.ops)
        for v, need in zip(graph.operands(op).tolist(), s.operand_specs, strict=True)
    ]
    wanted += [(v, spec, 1) for v, spec in zip(graph.returns, plan.returned, strict=True)]
    found = [(plan.specs[v], need, v, times) for v, need, times in wanted]
    for op, state in enumerate(plan.ops):
        found += [
            (comes, plan.specs[v], v, every[op]) for v, comes in zip(graph.results(op), state.result_specs, strict=True)
        ]
    free = [op >= 0 and graph.cls(op).free for op in graph.value_op.tolist()]
    return [(v, times) for source, target, v, times in found if source == R and target not in (R, P) and not free[v]]


@pytest.mark.parametrize(
    ("name", "size", "device"),
    one_in(3, product(["mlp", "gpt", "gpt-scan", "two-tower"], [2, 8], [DEVICE, TPU, GPU])),
)
def test_a_plan_costs_what_the_problem_says(name, size, device):
    choice = zoo_choice(name, size, device)
    for seed in range(3):
        states = random_choice(choice, seed, sums_late=False)
        assert plan_cost(choice, states) == pytest.approx(choice.problem.cost(states), rel=1e-9)


@pytest.mark.parametrize("name", ["mlp", "two-tower"])
def test_a_plan_sums_once_what_several_readers_want_whole(name):
    """A choice may put the same sum on each of its edges.

    Its plan takes it where the value is stored, and costs less.
    """
    choice = zoo_choice(name, 8)
    chosen = [random_choice(choice, seed, sums_late=True) for seed in range(8)]
    saved = [1 - plan_cost(choice, states) / choice.problem.cost(states) for states in chosen]
    assert min(saved) > -1e-9
    assert max(saved) > 1e-5


@pytest.mark.parametrize("name", ["mlp", "gpt", "gpt-scan", "two-tower"])
def test_the_best_plan_costs_what_the_search_says(name):
    choice = zoo_choice(name, 8)
    best = Search(choice.problem).run(None)
    assert plan_cost(choice, best.states) == pytest.approx(best.cost, rel=1e-9)
    assert best.cost < choice.problem.cost(pick(choice)) / 2


@pytest.mark.parametrize("name", ["mlp", "gpt-scan"])
def test_a_plan_says_how_each_op_and_value_lies(name):
    """Every value lies in a way that exists, and ops run as the choice says."""
    choice = zoo_choice(name, 8)
    states, graph = random_choice(choice, 0, sums_late=True), choice.graph
    plan = make_plan(choice, states)
    for node, state in zip(choice.nodes, states, strict=True):
        if node.kind == "op":
            assert plan.ops[node.number] == node.states[state]
        elif node.kind in ("argument", "value"):
            assert (plan.specs[node.number],) == node.states[state].result_specs or plan.specs[node.number] != P
        else:
            assert (plan.returned[node.number],) == node.states[state].result_specs
    for value in range(graph.num_values):
        assert plan.specs[value] in (*all_specs(graph.type_of(value).shape, (8,)), P)
    for number, argument in enumerate(graph.arguments):
        if argument.alias is not None:
            assert plan.returned[argument.alias] == plan.specs[number]


# Stacks in loops

STACKS = """func.func @main(%x: tensor<8x8xf32>, %ws: tensor<4x8x8xf32>) -> tensor<4x8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %most = stablehlo.constant dense<4> : tensor<i32>
  %empty = stablehlo.constant dense<0.0> : tensor<4x8x8xf32>
  %end:4 = stablehlo.while(%i = %zero, %v = %x, %s = %ws, %t = %empty)
      : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>, tensor<4x8x8xf32>
    cond {
    %more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %part = stablehlo.dynamic_slice %s, %i, %zero, %zero, sizes = [1, 8, 8]
      : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %w = stablehlo.reshape %part : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %y = READ
    %kept = stablehlo.broadcast_in_dim KEPT, dims = [1, 2] : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %next = stablehlo.dynamic_update_slice %t, %kept, %i, %zero, %zero
      : (tensor<4x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x8xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %y, %s, %next : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>, tensor<4x8x8xf32>
  }
  return %end#3 : tensor<4x8x8xf32>
}"""
PRODUCT = (
    "stablehlo.dot_general %v, %w, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"
)


@pytest.mark.parametrize(
    ("read", "kept", "trip", "why"),
    [
        (
            PRODUCT,
            "%y",
            2 + 3 + 2,
            "the part of the stack is copied, a product reads two tensors and writes one, its result is copied",
        ),
        ("stablehlo.add %v, %w : tensor<8x8xf32>", "%y", 2 + 1 + 2, "a sum is written for the next trip, and copied"),
        (
            "stablehlo.add %v, %w : tensor<8x8xf32>",
            "%w",
            2 + 1 + 1,
            "a part that is computed inside others is read once, and written once",
        ),
    ],
)
def test_what_parts_of_stacks_move(read, kept, trip, why):
    """In tensors of 256 bytes at 1 GB/s, for four trips, after the empty stack of four has been written."""
    scalars = 4 * 2 * 2 * 3 * 4e-9  # the indices, counted as if read and written
    found = choice_of(STACKS.replace("READ", read).replace("KEPT", kept), size=2)
    problem, states = found.problem, pick(found)
    seconds = sum(problem.tables[t][s] for t, s in zip(problem.node_table, states, strict=True))
    flops = 4 * 1024e-9 if "dot" in read else 0.0  # 1024 operations at 1 GFLOP/s: longer than its 768 bytes
    moved = 4 * trip * 256e-9 - (4 * 3 * 256e-9 if flops else 0.0)
    assert seconds == pytest.approx(4 * 256e-9 + moved + flops, abs=scalars), why


# The search on real problems, against enumeration

TINY = {
    "four ops": FOUR,
    "update": UPDATE,
    "loop": loop(3),
    "sums and maxima": function(
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
      %y = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
      %e = stablehlo.exponential %y : tensor<4x8xf32>
      %m = stablehlo.reduce(%e init: %z) applies stablehlo.maximum across dimensions = [1]
        : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
      %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>""",
        {"a": tensor((4, 6)), "b": tensor((6, 8))},
        {"m": tensor((4,)), "s": tensor(())},
    ),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", TINY)
def test_the_search_finds_the_best_of_all_choices(name, size):
    problem = choice_of(TINY[name], size).problem
    best = brute_force(problem)
    outcome = Search(problem).run(None)
    assert outcome.cost == pytest.approx(best.cost, rel=1e-12)
    assert outcome.is_optimal
    peaks = peaks_of(problem)
    for budget in np.quantile(peaks, [0.0, 0.001, 0.01, 0.1]):
        best, outcome = brute_force(problem, budget), Search(problem, Limits(gap=0.0)).run(budget)
        assert isinstance(outcome, Answer)
        assert outcome.peak_bytes <= budget
        assert outcome.cost == pytest.approx(best.cost, rel=1e-6)
    assert isinstance(Search(problem).run(peaks.min() - 1), Infeasible)


def peaks_of(problem):
    """The peaks of all legal choices."""
    sizes = tuple(problem.num_states())
    choices = np.array(np.unravel_index(np.arange(np.prod(sizes)), sizes))
    return choice_peaks(problem, choices)[np.isfinite(choice_costs(problem, choices))]


@pytest.mark.parametrize("name", TINY)
def test_what_one_choice_keeps_is_what_the_problem_with_memory_says_of_it(name):
    free = Builder(graph=program_of(TINY[name], 4).graph, model=model(4)).costs()
    rng, every = np.random.default_rng(0), free.with_memory()
    for _ in range(20):
        states = rng.integers(free.problem.num_states())
        problem, alone = free.kept(states)
        assert (
            problem.memory(alone).tolist()
            == every.problem.memory(states).tolist()
            == every.kept(states)[0].memory(states).tolist()
        )
        assert {problem.tables[table].size for table in problem.node_residents.table} == {1}
