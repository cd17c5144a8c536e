"""Which values are one computation, on text where it can be read off."""

from snippets import program_of

from rhino.ir.program.same_values import same_values

X = "tensor<4x4xf32>"


def total(name, of, by="add"):
    return f"""  %{name} = stablehlo.reduce({of} init: %zero) applies stablehlo.{by} across dimensions = [0]\
 : ({X}, tensor<f32>) -> tensor<4xf32>
"""


def numbers(*lines):
    body = "".join(lines)
    program = program_of(f"""func.func @main(%x: {X}) -> {X} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
{body}  return %x : {X}
}}""")
    graph = program.graph
    found = same_values(program)
    return [found[graph.results(op)[0]] for op in range(graph.num_ops)]


def test_what_is_computed_again_behind_a_barrier_is_one_computation():
    again = f"  %y = stablehlo.optimization_barrier %x : {X}\n"
    _, first, tanh, _, second, tanh_again = numbers(
        total("a", "%x"),
        f"  %t = stablehlo.tanh %x : {X}\n",
        again,
        total("b", "%y"),
        f"  %u = stablehlo.tanh %y : {X}\n",
    )
    assert (first, tanh) == (second, tanh_again)
    assert first != tanh


def test_other_operands_attributes_and_bodies_are_other_computations():
    found = numbers(
        total("a", "%x"),
        total("b", "%x", by="maximum"),
        "  %one = stablehlo.constant dense<1.0> : tensor<f32>\n",
        f"  %t = stablehlo.tanh %x : {X}\n",
        total("c", "%t"),
        f"  %n = stablehlo.transpose %x, dims = [1, 0] : ({X}) -> {X}\n",
        f"  %m = stablehlo.transpose %x, dims = [0, 1] : ({X}) -> {X}\n",
    )
    assert len(set(found)) == len(found)
