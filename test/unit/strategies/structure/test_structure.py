"""Flow, critical path and cones against enumeration and their definitions, on random graphs; loops by hand."""

import numpy as np
import pytest
from graphs import CHEAP, PRODUCT, SOURCE, graph_of, random_graph
from snippets import function, program_of, tensor

from rhino.strategies.structure.cones import cones_of
from rhino.strategies.structure.critical_path import critical_path
from rhino.strategies.structure.dependences import flow_of

SEEDS = range(150)


def counting(graph):
    """The ops that take part: here all but constants."""
    return [op for op in range(graph.num_ops) if graph.cls(op).name != SOURCE]


def tensors_read(graph, op):
    """The values that an op reads and that count: tensors, but no constants."""
    made = [(value, int(graph.value_op[value])) for value in graph.operands(op).tolist()]
    return [value for value, by in made if graph.type_of(value).shape and (by < 0 or graph.cls(by).name != SOURCE)]


def read_by(graph):
    """For each op that counts, those that read a tensor of it."""
    readers = {op: [] for op in counting(graph)}
    for op in readers:
        for value in tensors_read(graph, op):
            if graph.value_op[value] >= 0:
                readers[int(graph.value_op[value])].append(op)
    return readers


def every_path(graph):
    """Every way through the graph, from an op that reads no op to one that none reads."""
    readers = read_by(graph)
    starts = [op for op in readers if not any(op in some for some in readers.values())]
    paths, open_paths = [], [[op] for op in starts]
    while open_paths:
        path = open_paths.pop()
        following = sorted(set(readers[path[-1]]))
        open_paths += [[*path, op] for op in following]
        paths += [] if following else [path]
    return paths


@pytest.mark.parametrize("only_products", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_times_are_those_of_the_longest_ways(seed, only_products):
    graph = random_graph(seed)
    found = critical_path(graph, flow_of(graph), only_products)
    takes = [int(graph.cls(op).name == PRODUCT or not only_products) for op in range(graph.num_ops)]
    paths = every_path(graph)
    length = max((sum(takes[op] for op in path) for path in paths), default=0)
    assert found.length == length
    for op in range(graph.num_ops):
        through = [(path, path.index(op)) for path in paths if op in path]
        if not through:
            assert (found.earliest[op], found.latest[op], found.critical[op]) == (-1, -1, False)
            continue
        assert found.earliest[op] == max(sum(takes[o] for o in path[:at]) for path, at in through)
        assert found.latest[op] == length - max(sum(takes[o] for o in path[at:]) for path, at in through)
        on_a_longest = any(sum(takes[o] for o in path) == length for path, _ in through)
        assert found.critical[op] == (on_a_longest and graph.cls(op).name == PRODUCT)


@pytest.mark.parametrize("seed", SEEDS)
def test_cones_by_their_definition(seed):
    graph = random_graph(seed, most=14)
    cones = cones_of(graph, flow_of(graph))
    readers, roots = read_by(graph), cones.root.tolist()
    assert roots == sorted(roots)
    for op in range(graph.num_ops):
        if op not in readers:
            assert cones.number[op] == -1
            continue
        around = {int(cones.number[reader]) for reader in readers[op]}
        alone = (
            len(set(tensors_read(graph, op))) > 1
            or bool(set(graph.results(op)) & set(graph.returns))
            or len(around) != 1
        )
        assert (op in roots) == alone
        assert cones.number[op] == (roots.index(op) if alone else around.pop())


LOOP = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %a = stablehlo.abs %x : tensor<4xf32>
  %end:3 = stablehlo.while(%i = %zero, %v = %a, %k = %w) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.multiply %v, %k : tensor<4xf32>
    stablehlo.return %j, %u, %k : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %y = stablehlo.subtract %end#1, %end#2 : tensor<4xf32>"""


def test_loops_are_seen_through():
    """The body reads what the loop starts with.

    Behind it, its sum comes from the body, and what the body keeps from the argument.
    """
    graph = program_of(function(LOOP, {"x": tensor([4]), "w": tensor([4])}, {"y": tensor([4])})).graph
    names = [graph.cls(op).name.removeprefix("stablehlo.") for op in range(graph.num_ops)]
    flow = flow_of(graph)
    reads = {
        (names[reader], operand, names[producer] if producer >= 0 else graph.arguments[value].name)
        for reader, operand, value, producer in zip(flow.reader, flow.operand, flow.value, flow.producer, strict=True)
    }
    assert reads == {
        ("abs", 0, "arg0"),
        ("multiply", 0, "abs"),
        ("multiply", 1, "arg1"),
        ("subtract", 0, "multiply"),
        ("subtract", 1, "arg1"),
    }
    assert {name for name, counts in zip(names, flow.counts, strict=True) if counts} == {"abs", "multiply", "subtract"}
    assert critical_path(graph, flow).length == 3
    assert len(cones_of(graph, flow).root) == 3  # %a does not join the cone in the loop


def test_an_op_that_reads_a_tensor_twice_is_no_root():
    graph = graph_of([0, 0], [(CHEAP, [0, 0], [0]), (CHEAP, [2, 1], [0])], [3])
    cones = cones_of(graph, flow_of(graph))
    assert cones.root.tolist() == [1]
    assert cones.number.tolist() == [0, 0]


def test_a_graph_without_ops():
    graph = graph_of([0], [], [0])
    flow = flow_of(graph)
    assert critical_path(graph, flow).length == 0
    assert len(cones_of(graph, flow).root) == 0
    assert np.diff(flow.start).tolist() == []
