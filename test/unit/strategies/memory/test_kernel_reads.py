"""How often kernels read what lies in memory."""

import pytest
from snippets import function, program_of, tensor

from rhino.strategies.memory.fusion import in_memory
from rhino.strategies.memory.kernel_reads import kernel_reads

KIND = tensor((8, 8))


def reads(body, results, arguments=None, in_place=frozenset()):
    """How often each operand is read, by the names of ops, where all that can be is fused."""
    graph = program_of(function(body, arguments or {"x": KIND}, results)).graph
    stored = in_memory(graph, (), "all")
    counts = kernel_reads(graph, stored, in_place).tolist()
    return [
        (graph.cls(op).name.removeprefix("stablehlo."), counts[graph.use_start[op] : graph.use_start[op + 1]])
        for op in range(graph.num_ops)
    ]


def test_a_kernel_reads_a_value_once():
    """Both ops are in the kernel of the sum."""
    body = f"""%a = stablehlo.negate %x : {KIND}
      %b = stablehlo.tanh %x : {KIND}
      %y = stablehlo.add %a, %b : {KIND}"""
    assert sorted(sum(counts) for _, counts in reads(body, {"y": KIND})) == [0, 0, 1]


def test_what_several_kernels_compute_reads_in_each():
    body = f"""%a = stablehlo.negate %x : {KIND}
      %y = stablehlo.tanh %a : {KIND}
      %z = stablehlo.abs %a : {KIND}"""
    assert reads(body, {"y": KIND, "z": KIND}) == [("negate", [2]), ("tanh", [0]), ("abs", [0])]


def test_what_is_looked_up_is_read_by_each_op():
    """Two rows are read of one value, and not the same."""
    row = tensor((1, 8))
    body = f"""%a = stablehlo.slice %x [0:1, 0:8] : ({KIND}) -> {row}
      %b = stablehlo.slice %x [1:2, 0:8] : ({KIND}) -> {row}
      %y = stablehlo.add %a, %b : {row}"""
    assert reads(body, {"y": row}) == [("slice", [1]), ("slice", [1]), ("add", [0, 0])]


@pytest.mark.parametrize("is_in_place", [False, True])
def test_what_is_written_into_is_not_read(is_in_place):
    row = tensor((1, 8))
    body = f"""%i = stablehlo.constant dense<1> : tensor<i32>
      %y = stablehlo.dynamic_update_slice %x, %u, %i, %i : ({KIND}, {row}, tensor<i32>, tensor<i32>) -> {KIND}"""
    found = reads(body, {"y": KIND}, {"x": KIND, "u": row}, {3} if is_in_place else frozenset())
    assert found[-1] == ("dynamic_update_slice", [1 - is_in_place, 1, 1, 0])  # both indices are one value


@pytest.mark.parametrize(("terms", "kernels", "inside"), [(2, 3, True), (2, 4, False), (3, 2, True), (3, 3, False)])
def test_several_kernels_compute_what_moves_fewer_bytes_so(terms, kernels, inside):
    """A sum of two values in three kernels: 3 x 2 reads, or 2 reads, 1 write and 3 reads. In four it is 8 against 7."""
    body = {2: f"%s = stablehlo.add %a, %b : {KIND}\n", 3: f"%s = stablehlo.clamp %a, %b, %c : {KIND}\n"}[terms]
    readers = dict(zip("wxyz"[:kernels], ("tanh", "abs", "negate", "floor"), strict=False))
    body += "\n".join(f"%{name} = stablehlo.{op} %s : {KIND}" for name, op in readers.items())
    graph = program_of(function(body, dict.fromkeys("abc"[:terms], KIND), dict.fromkeys(readers, KIND))).graph
    assert in_memory(graph, (), "all", by_bytes=True)[terms] is not inside
    assert not in_memory(graph, (), "all")[terms]
