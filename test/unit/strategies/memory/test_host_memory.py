"""Arguments that wait in host memory: which may, what they keep on the device and when, and what is chosen."""

from dataclasses import replace
from itertools import combinations

import pytest
from snippets import function, program_of, tensor

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.graph.graph import DEVICE, HOST
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.cost.cost_model import HOST_TRANSFER_S, CostModel
from rhino.strategies.cost.target import TARGETS
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.host_memory import waiting_arguments, with_host_choice
from rhino.strategies.memory.peak import Lives, peak_of, predicted_peak
from rhino.strategies.sharding.choice_problem import Builder
from rhino.strategies.sharding.memory_fitting import find_free, fit_free
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.search import Search

KIND = tensor((64, 64))
SIZE = 64 * 64 * 4
CLUSTER = load_cluster("h100x8")
MODEL = CostModel(CLUSTER.device, mesh_axes(CLUSTER, (1,)))


def momentum(layers, loss=True):
    """Momentum's step of products, all moments of which are updated before the first weight, as optimizers write it."""
    names = range(layers)
    lines = [f"%h0 = stablehlo.tanh %x : {KIND}"]
    for n in names:
        lines.append(
            f"%p{n} = stablehlo.dot_general %h{n}, %w{n}, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}"
        )
        lines.append(f"%h{n + 1} = stablehlo.tanh %p{n} : {KIND}")
    for n in names:
        lines.append(
            f"%g{n} = stablehlo.dot_general %h{n}, %h{n + 1}, contracting_dims = [0] x [0] : ({KIND}, {KIND}) -> {KIND}"
        )
    lines += [f"%n{n} = stablehlo.add %m{n}, %g{n} : {KIND}" for n in names]
    lines += [f"%v{n} = stablehlo.subtract %w{n}, %n{n} : {KIND}" for n in names]
    arguments = {"x": KIND} | {f"w{n}": KIND for n in names} | {f"m{n}": KIND for n in names}
    results = {f"v{n}": KIND for n in names} | {f"n{n}": KIND for n in names} | ({f"h{layers}": KIND} if loss else {})
    graph = program_of(function("\n".join(lines), arguments, results), 1).graph
    taken = [replace(one, alias=number - 1 if number else None) for number, one in enumerate(graph.arguments)]
    return replace(graph, arguments=tuple(taken))


def test_what_only_its_update_reads_may_wait():
    graph = momentum(2)
    assert waiting_arguments(graph) == {3, 4}  # the moments: the loss follows from the weights
    kept = replace(graph, arguments=tuple(replace(one, alias=None) for one in graph.arguments))
    assert waiting_arguments(kept) == set()


def test_one_that_a_loop_reads_may_not():
    body = f"""%i = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = stablehlo.while(%k = %i, %c = %m) : tensor<i32>, {KIND}
        cond {{
          %n = stablehlo.constant dense<3> : tensor<i32>
          %l = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %l : tensor<i1>
        }} do {{
          %o = stablehlo.constant dense<1> : tensor<i32>
          %j = stablehlo.add %k, %o : tensor<i32>
          %d = stablehlo.add %c, %c : {KIND}
          stablehlo.return %j, %d : tensor<i32>, {KIND}
        }}
      %y = stablehlo.negate %r#1 : {KIND}"""
    graph = program_of(function(body, {"m": KIND}, {"y": KIND}), 1).graph
    assert waiting_arguments(replace(graph, arguments=(replace(graph.arguments[0], alias=0),))) == set()


def chosen(graph, budget_bytes):
    """The best choice within a budget, and its plan."""
    choice = Builder(graph=graph, model=MODEL).costs()
    search = Search(choice.problem)
    first = search.reduce()
    answer = find_free(search, budget_bytes, first, peak_of(choice))
    if isinstance(answer, Answer) and answer.peak_bytes > budget_bytes:
        answer = fit_free(search, budget_bytes, answer, peak_of(choice), lambda: choice.with_memory().problem)
    return (answer, make_plan(choice, answer.states)) if isinstance(answer, Answer) else (answer, None)


@pytest.mark.parametrize("share", [1.0, 0.99, 0.9, 0.75, 0.6])
def test_as_few_wait_as_the_budget_lets(share):
    """By enumeration of what may wait; each of them takes its way from the host and back."""
    layers = 4
    graph = with_host_choice(momentum(layers))
    free, plan = chosen(graph, 1e12)
    assert plan.on_host == set()
    moments = range(layers + 1, 2 * layers + 1)
    subsets = [frozenset(some) for count in range(layers + 1) for some in combinations(moments, count)]
    peaks = {some: predicted_peak(replace(plan, on_host=some)) for some in subsets}
    budget = share * free.peak_bytes
    fewest = min((len(some) for some, peak in peaks.items() if peak <= budget), default=None)
    answer, plan = chosen(graph, budget)
    if fewest is None:
        assert plan is None
        return
    assert len(plan.on_host) == fewest
    assert answer.peak_bytes == peaks[plan.on_host] <= budget
    way_s = 2 * (HOST_TRANSFER_S + SIZE / MODEL.device.host_bytes_per_s)
    assert answer.cost == pytest.approx(free.cost + fewest * way_s)
    assert plan.results_on_host == {number - 1 for number in plan.on_host}


@pytest.mark.parametrize("target", ["cpu", "gpu", "tpu"])
def test_one_after_the_other_is_on_the_device(target):
    """Though all moments are updated before the first weight is, a moment's next value leaves once its weight is."""
    layers = 6
    graph = with_host_choice(momentum(layers))
    there = [replace(one, memories=(HOST,) if HOST in one.memories else (DEVICE,)) for one in graph.arguments]
    choice = Builder(graph=replace(graph, arguments=tuple(there)), model=MODEL).costs()
    plan = make_plan(choice, [0] * len(choice.nodes))
    lives = Lives(device_graph(plan), TARGETS[target])
    moments = set(range(layers + 1, 2 * layers + 1)) | {graph.returns[layers + number] for number in range(layers)}
    alive = [0] * lives.num_times
    for value in moments - lives.in_place:
        _, start, stop = lives.value(value)
        for time in range(start, stop + 1):
            alive[time] += 1
    assert 1 < max(alive) <= 3
