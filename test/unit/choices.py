"""Choice problems of small modules: what several tests read, choose and look at."""

from snippets import program_of

from rhino.ir.cluster.cluster import MeshAxis
from rhino.ir.cluster.hardware import Device
from rhino.ir.graph.spec import PARTIAL, REPLICATED, split
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.sharding.choice_problem import build

R, P, S0, S1 = REPLICATED, PARTIAL, split(0), split(1)


DEVICE = Device("test", (("f32", 1e9),), 10**9, 1.0, 1e9, 1.0, 1.0, (), "cpu")


def model(size=2, latency_s=1e-9):
    """1 GFLOP/s, 1 GB/s of memory, 1 GB/s between devices: on small tensors, everything counts."""
    return CostModel(DEVICE, (MeshAxis("x", size, latency_s, 1e9, 1e9, "ring", ("link",)),))


def choice_of(text, size=2):
    return build(program_of(text, size).graph, model(size))


def pick(choice, wanted=None, default=R):
    """The states by (kind, number): specs that a node gives, or a strategy by needs and specs.

    All other nodes take `default`.
    """
    states = []
    for node in choice.nodes:
        want = (wanted or {}).get((node.kind, node.number), default)
        fits = [n for n, s in enumerate(node.states) if want in (s.result_specs[0], (s.operand_specs, s.result_specs))]
        states.append(fits[0])
    return states


FOUR = """func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x8xf32>) -> tensor<4x6xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %h = stablehlo.tanh %y : tensor<4x8xf32>
  %z = stablehlo.dot_general %h, %w, contracting_dims = [1] x [1]\
 : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %r = stablehlo.add %z, %x : tensor<4x6xf32>
  return %r : tensor<4x6xf32>
}"""


UPDATE = """func.func @main(%w: tensor<4x6xf32> {tf.aliasing_output = 0 : i32}, %g: tensor<4x6xf32>)\
 -> tensor<4x6xf32> {
  %n = stablehlo.subtract %w, %g : tensor<4x6xf32>
  return %n : tensor<4x6xf32>
}"""


def loop(trips):
    return f"""func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %most = stablehlo.constant dense<{trips}> : tensor<i32>
      %end:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<4x8xf32>
      cond {{
        %more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %j = stablehlo.add %i, %one : tensor<i32>
        %y = stablehlo.dot_general %v, %w, contracting_dims = [1] x [0]\
 : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
        stablehlo.return %j, %y : tensor<i32>, tensor<4x8xf32>
      }}
      return %end#1 : tensor<4x8xf32>
    }}"""
