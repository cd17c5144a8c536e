"""The local program of a module, and modules that several tests compile."""

from choices import R
from snippets import function, program_of

from rhino.strategies.choice.sharding_plan import ShardingPlan, implied, loop_states
from rhino.strategies.cost.target import TARGETS
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.peak import predicted_peak


def local(body, arguments, results, specs, returned, size=2):
    """The names of the ops of a device's program, with values stored and returned as given.

    The mesh is one axis of host devices, unless others are given.
    """
    graph = program_of(function(body, arguments, results), size).graph
    stored = [specs.get(value, R) for value in range(graph.num_values)]
    ops = [implied(graph, op, stored, (size,)) for op in range(graph.num_ops)]
    for loop in graph.loops:
        ops[loop.op], ops[loop.end] = loop_states(graph, loop, stored)
    plan = ShardingPlan(graph, (size,), tuple(ops), tuple(stored), returned, TARGETS["cpu"])
    assert predicted_peak(plan) > 0
    found = device_graph(plan)
    return [found.cls(op).name.removeprefix("stablehlo.") for op in range(found.num_ops)], found


SCATTER = """"stablehlo.scatter"({into}, {at}, {what})\
 <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
  inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %m = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %m : tensor<f32>
  }}) : ({kind}, tensor<2x1xi32>, {rows}) -> {kind}"""
