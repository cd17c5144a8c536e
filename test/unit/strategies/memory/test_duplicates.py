"""Ops that are computed into memory for some readers, and again in the kernels of others."""

import numpy as np
import pytest
from snippets import function, program_of, tensor

from rhino.strategies.memory.duplicates import with_duplicates
from rhino.strategies.memory.fusion import in_memory

HALF, KIND, ROW, INDEX = tensor((8, 8), "bf16"), tensor((8, 8)), tensor((8,)), tensor((8, 1), "i32")

PRODUCT = f"%p = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({HALF}, {HALF}) -> {HALF}"
CONVERT = f"%c = stablehlo.convert %p : ({HALF}) -> {KIND}"
LOOK_UP = f"""%g = "stablehlo.gather"(%c, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}}>
        : ({KIND}, {INDEX}) -> {KIND}"""
KERNEL = f"%y = stablehlo.tanh %c : {KIND}"


def graph_of(*lines, results=("g", "y"), arguments=()):
    given = {"x": HALF, "i": INDEX, **dict(arguments)}
    return program_of(function("\n      ".join(lines), given, dict.fromkeys(results, KIND))).graph


def in_words(graph, value):
    """What a value is computed of, written out."""
    op = int(graph.value_op[value])
    if op < 0:
        return f"%{value}"
    return f"{graph.cls(op).name}({', '.join([in_words(graph, one) for one in graph.operands(op).tolist()])})"


def stored(graph):
    """The names of the ops whose results lie in memory, in order."""
    found = in_memory(graph, (), "products")
    makers = graph.value_op[np.flatnonzero(found)]
    return [graph.cls(op).name.removeprefix("stablehlo.") for op in makers.tolist() if op >= 0]


def test_what_a_gather_and_a_kernel_read_lies_in_both_types():
    """Logits of a product: in f32 for the gather, as the product gave them for the kernel."""
    graph = graph_of(PRODUCT, CONVERT, LOOK_UP, KERNEL)
    twice = with_duplicates(graph, "products")
    assert stored(graph) == ["convert", "gather", "tanh"]
    assert stored(twice) == ["dot_general", "convert", "gather", "tanh"]
    assert twice.num_ops == graph.num_ops + 1


def test_what_is_computed_stays_the_same():
    graph = graph_of(PRODUCT, CONVERT, LOOK_UP, KERNEL)
    twice = with_duplicates(graph, "products")
    words = [[in_words(one, value) for value in one.returns] for one in (graph, twice)]
    assert words[0] == words[1]


@pytest.mark.parametrize(
    ("lines", "results", "fusion"),
    [
        ((PRODUCT, CONVERT, LOOK_UP), ("g",), "products"),  # no kernel reads it
        ((PRODUCT, CONVERT, KERNEL), ("y",), "products"),  # kernels alone do
        ((PRODUCT, CONVERT, LOOK_UP, KERNEL), ("g", "y"), "all"),  # XLA:GPU computes it in all that read it or in none
        ((PRODUCT, f"%c = stablehlo.add %z, %w : {KIND}", LOOK_UP, KERNEL), ("g", "y"), "products"),  # of two tensors
    ],
)
def test_what_is_not_written_twice(lines, results, fusion):
    graph = graph_of(*lines, results=results, arguments={"z": KIND, "w": KIND}.items())
    assert with_duplicates(graph, fusion) is graph


def test_a_row_that_is_repeated_is_no_second_tensor():
    """A kernel reads as many whole tensors as before."""
    row = f"%b = stablehlo.broadcast_in_dim %r, dims = [1] : ({ROW}) -> {KIND}"
    graph = graph_of(
        row, f"%c = stablehlo.add %z, %b : {KIND}", LOOK_UP, KERNEL, arguments={"z": KIND, "r": ROW}.items()
    )
    assert with_duplicates(graph, "products").num_ops == graph.num_ops + 1


def test_what_is_returned_lies_in_memory_and_kernels_compute_it_again():
    graph = graph_of(PRODUCT, CONVERT, KERNEL, results=("c", "y"))
    assert stored(with_duplicates(graph, "products")) == ["dot_general", "convert", "tanh"]


def test_loops_stay_around_their_ops():
    """An op before a loop is written twice: the loop begins and ends one op later."""
    body = f"""{PRODUCT}
      {CONVERT}
      {LOOK_UP}
      {KERNEL}
      %n = stablehlo.constant dense<3> : tensor<i32>
      %o = stablehlo.constant dense<1> : tensor<i32>
      %k = stablehlo.constant dense<0> : tensor<i32>
      %l:2 = stablehlo.while(%a = %k, %v = %y) : tensor<i32>, {KIND}
      cond {{
        %t = stablehlo.compare LT, %a, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %t : tensor<i1>
      }} do {{
        %u = stablehlo.add %a, %o : tensor<i32>
        %w = stablehlo.tanh %v : {KIND}
        stablehlo.return %u, %w : tensor<i32>, {KIND}
      }}
      %z = stablehlo.abs %l#1 : {KIND}"""
    graph = graph_of(body, results=("g", "z"))
    twice = with_duplicates(graph, "products")
    (before,), (after,) = graph.loops, twice.loops
    assert (after.op, after.end) == (before.op + 1, before.end + 1)
    assert [twice.cls(op).name for op in (after.op, after.end)] == [
        graph.cls(op).name for op in (before.op, before.end)
    ]
