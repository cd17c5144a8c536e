"""Values that only products read are moved in the type in which these multiply: as in what XLA:TPU compiles."""

import pytest
from snippets import program_of

from rhino.ir.hlo.collectives import collectives_of
from rhino.ir.hlo.text import parse_hlo
from rhino.strategies.cost.target import TARGETS
from rhino.strategies.cost.wire import narrow

T = "tensor<1024x1024xf32>"
DOT = f"contracting_dims = [1] x [0]{{}} : ({T}, {T}) -> {T}"
SUM = f"({T}, tensor<f32>) -> tensor<1024xf32>"
PROGRAM = f"""func.func @main(%b: {T}, %w: {T}, %e: {T}, %h: {T}, %t: {T}) -> ({T}, {T}, {T}, {T}) {{
  %0 = stablehlo.dot_general %b, %w, {DOT.format("")}
  %n = stablehlo.tanh %e : {T}
  %1 = stablehlo.dot_general %b, %n, {DOT.format("")}
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%n init: %c) applies stablehlo.add across dimensions = [0] : {SUM}
  %r = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<1024xf32>) -> {T}
  %2 = stablehlo.add %1, %r : {T}
  %3 = stablehlo.dot_general %b, %h, {DOT.format(", precision = [HIGH, HIGH]")}
  %v = stablehlo.tanh %t : {T}
  %tt = stablehlo.transpose %v, dims = [1, 0] : ({T}) -> {T}
  %4 = stablehlo.dot_general %b, %tt, {DOT.format("")}
  return %0, %2, %3, %4 : {T}, {T}, {T}, {T}
}}"""
"""Rows of everything are split over eight devices. `w`, `n`, `h` and `v` are gathered, in this order."""

COMPILED = """HloModule main, is_scheduled=true, num_partitions=8

%gather (p: f32[128,1024]) -> f32[1024,1024] {
  %p = f32[128,1024]{1,0:T(8,128)} parameter(0)
  ROOT %g = f32[1024,1024]{1,0:T(8,128)} all-gather(%p), channel_id=3, GROUPS
}

ENTRY %main (w: f32[128,1024], h: f32[128,1024], n: f32[128,1024], v: bf16[128,1024]) -> f32[1024,1024] {
  %w = f32[128,1024]{1,0:T(8,128)} parameter(0)
  %h = f32[128,1024]{1,0:T(8,128)} parameter(1)
  %n = f32[128,1024]{1,0:T(8,128)} parameter(2)
  %v = bf16[128,1024]{1,0:T(8,128)(2,1)} parameter(3)
  %convert = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} convert(%w)
  %gather.1 = bf16[1024,1024]{1,0} all-gather(%convert), channel_id=1, GROUPS
  %gather.4 = bf16[1024,1024]{1,0} all-gather(%v), channel_id=4, GROUPS
  %gather.2 = f32[1024,1024]{1,0} all-gather(%n), channel_id=2, GROUPS
  ROOT %gather.3 = f32[1024,1024]{1,0:T(8,128)} fusion(%h), kind=kCustom, calls=%gather
}
""".replace("GROUPS", "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}")
"""What libtpu 0.0.51 makes of it for v5e-8, cut to its gathers; `v` is what a fusion with `tanh` gives."""


def test_gathers_travel_in_the_type_that_xla_gives_them():
    graph = program_of(PROGRAM, 8).graph
    names = [graph.cls(op).name.removeprefix("stablehlo.") for op in range(graph.num_ops)]
    dots = [op for op, name in enumerate(names) if name == "dot_general"]
    n, v = (graph.results(op)[0] for op, name in enumerate(names) if name == "tanh")
    found = narrow(graph, TARGETS["tpu"])
    ours = [found.is_moved(1, dots[0]), found.is_moved(n, None), found.is_moved(3, dots[2]), found.is_moved(v, None)]
    program = parse_hlo(COMPILED)
    gathers = sorted(
        (one for ones in collectives_of(program, "main").values() for one in ones), key=lambda g: g.channel
    )
    assert ours == [gather.dtype == "bf16" for gather in gathers] == [True, False, False, True]


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_elsewhere_values_are_moved_as_they_are(platform):
    found = narrow(program_of(PROGRAM, 8).graph, TARGETS[platform])
    assert not any([*found.reads, *found.stored])


def test_what_is_returned_is_moved_as_it_is():
    graph = program_of(PROGRAM.replace("return %0, %2, %3, %4", "return %0, %2, %3, %tt"), 8).graph
    assert not any(narrow(graph, TARGETS["tpu"]).stored)
