"""What a device's program computes before its loops, and what their bodies make in the buffers of what they carry."""

import re

import numpy as np
import pytest
from choices import S0, R
from local_programs import SCATTER, local
from snippets import function, program_of, tensor

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.graph.graph import Graph
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.memory.carried import carried_on
from rhino.strategies.memory.fusion import fuse
from rhino.strategies.memory.op_order import schedules_fused
from rhino.strategies.sharding.choice_problem import build

KIND, COUNT = tensor((8, 8)), "tensor<i32>"


def looped(inner, trips=3, carried="%a", outer=""):
    """The body of a function that runs `inner`, which computes %b of %a and %x, so many times."""
    return f"""{outer}
      %zero = stablehlo.constant dense<0> : {COUNT}
      %one = stablehlo.constant dense<1> : {COUNT}
      %most = stablehlo.constant dense<{trips}> : {COUNT}
      %e:2 = stablehlo.while(%i = %zero, {carried} = %v) : {COUNT}, {KIND} cond {{
        %more = stablehlo.compare LT, %i, %most : ({COUNT}, {COUNT}) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        {inner}
        %j = stablehlo.add %i, %one : {COUNT}
        stablehlo.return %j, %b : {COUNT}, {KIND}
      }}"""


def names_around(body, specs=None, hoists=True):
    """The names of the ops of a device's program before its loop, but for constants, and in the loop.

    The program comes last.
    """
    names, graph = local(body, {"x": KIND, "v": KIND}, {"e#1": KIND}, specs or {}, (R,), hoists=hoists)
    (loop,) = graph.loops
    return [name for name in names[: loop.op] if name != "constant"], names[loop.op + 1 : loop.end], graph


REVERSED = f"%r = stablehlo.reverse %x, dims = [0] : {KIND}\n%b = stablehlo.add %a, %r : {KIND}"


@pytest.mark.parametrize("trips", [1, 3])
def test_what_a_loop_gathers_anew_each_time_is_gathered_before_it(trips):
    """What takes no arithmetic stays. A loop that runs once is none."""
    before, inside, _ = names_around(looped(REVERSED, trips), {0: S0})
    gather = ["all_gather"]
    assert before == gather * (trips > 1)
    assert inside == [*gather * (trips == 1), "reverse", "add", "add"]


def test_for_accelerators_a_loop_gathers_anew_each_time():
    before, inside, _ = names_around(looped(REVERSED), {0: S0}, hoists=False)
    assert not before
    assert inside == ["all_gather", "reverse", "add", "add"]


@pytest.mark.parametrize(("cluster", "hoists"), [("cpu4", True), ("v100x8", False)])
def test_a_plan_knows_whether_its_devices_are_those_of_a_host(cluster, hoists):
    where = load_cluster(cluster)
    model = CostModel(where.device, mesh_axes(where, (where.num_devices,)))
    choice = build(program_of(function(looped(REVERSED), {"x": KIND, "v": KIND}, {"e#1": KIND})).graph, model)
    assert make_plan(choice, np.zeros(choice.problem.num_nodes, dtype=np.int64)).hoists == hoists


def test_what_goes_before_a_loop_for_others_is_computed_again_where_it_is_read_in_it():
    inner = f"{REVERSED.replace('%b', '%c')}\n%t = stablehlo.tanh %r : {KIND}\n%b = stablehlo.add %c, %t : {KIND}"
    before, inside, graph = names_around(looped(inner))
    assert before == ["reverse", "tanh"]
    assert inside == ["reverse", "add", "add", "add"]
    assert graph.operands(graph.loops[0].op + 1).tolist() == [0]


def test_out_of_a_loop_in_a_loop_it_goes_before_both():
    inner = re.sub(r"%(\w+)", r"%n_\1", looped(REVERSED)).replace("%n_x", "%x").replace("%n_v", "%a")
    body = looped(f"{inner}\n%b = stablehlo.negate %n_e#1 : {KIND}")
    names, graph = local(body, {"x": KIND, "v": KIND}, {"e#1": KIND}, {0: S0}, (R,))
    assert len(graph.loops) == 2
    assert names.index("all_gather") < min(loop.op for loop in graph.loops)


def test_a_mask_that_a_loop_reads_lies_in_memory():
    """It is computed from counters; what is computed from other constants is one itself, and stays."""
    mask = f"""%p = stablehlo.iota dim = 0 : {KIND}
      %q = stablehlo.iota dim = 1 : {KIND}
      %m = stablehlo.compare LT, %p, %q : ({KIND}, {KIND}) -> tensor<8x8xi1>
      %z = stablehlo.constant dense<0.0> : {KIND}
      %n = stablehlo.negate %z : {KIND}
      %b = stablehlo.select %m, %a, %n : tensor<8x8xi1>, {KIND}"""
    before, inside, graph = names_around(looped(mask))
    assert before == ["iota", "iota", "compare"]
    assert inside == ["constant", "negate", "select", "add"]
    made = next(op for op in range(graph.num_ops) if graph.cls(op).name == "stablehlo.compare")
    assert not graph.cls(made).free
    assert fuse(graph).in_memory[graph.results(made).start]


def test_what_is_transposed_before_a_loop_is_read_in_it_as_it_was_made():
    """A product of matrices within the same level reads what was transposed."""
    outer = f"%t = stablehlo.transpose %x, dims = [1, 0] : ({KIND}) -> {KIND}"
    inner = f"%b = stablehlo.dot_general %a, %t, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}"
    before, inside, graph = names_around(looped(inner, outer=outer))
    assert (before, inside) == (["transpose"], ["dot_general", "add"])
    product = graph.loops[0].op + 1
    made = int(graph.operands(product)[1])
    assert graph.cls(int(graph.value_op[made])).name == "stablehlo.transpose"
    assert fuse(graph).in_memory[made]


PRODUCT = f"%c = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}"


@pytest.mark.parametrize(
    ("inner", "is_there"),
    [
        (f"%b = stablehlo.add %a, %x : {KIND}", True),
        (f"%b = stablehlo.reverse %a, dims = [0] : {KIND}", False),  # from another place of it
        (f"{PRODUCT}\n%b = stablehlo.add %a, %c : {KIND}", True),
        (f"{PRODUCT}\n%b = stablehlo.negate %c : {KIND}", True),
    ],
)
def test_what_is_made_of_what_is_carried_lies_where_that_lay(inner, is_there):
    graph: Graph = program_of(function(looped(inner), {"x": KIND, "v": KIND}, {"e#1": KIND})).graph
    made = int(graph.operands(graph.loops[0].end)[1])
    assert (made in carried_on(graph, fuse(graph).in_memory)) == is_there


def test_what_is_carried_and_read_behind_what_takes_its_place_stays():
    """The product does not wait for what is read by nothing that it needs."""
    inner = f"""%c = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}
      %b = stablehlo.negate %c : {KIND}
      %d = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}"""
    graph: Graph = program_of(function(looped(inner), {"x": KIND, "v": KIND}, {"e#1": KIND})).graph
    assert int(graph.operands(graph.loops[0].end)[1]) not in carried_on(graph, fuse(graph).in_memory)


def test_a_sum_that_is_carried_and_scattered_into_is_both_in_place():
    """The scatter comes last, and with it all that is added up goes into the buffer of what is carried."""
    inner = f"""%z = stablehlo.constant dense<0.0> : {KIND}
      %k = stablehlo.constant dense<1> : tensor<2x1xi32>
      %u = stablehlo.slice %a [0:2, 0:8] : ({KIND}) -> {tensor((2, 8))}
      %s = {SCATTER.format(into="%z", at="%k", what="%u", kind=KIND, rows=tensor((2, 8)))}
      %d = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}
      %c = stablehlo.add %d, %s : {KIND}
      %b = stablehlo.add %a, %c : {KIND}"""
    _, inside, graph = names_around(looped(inner.replace("%u = stablehlo.slice %a", "%u = stablehlo.slice %x")))
    assert inside[-3:] == ["add", "scatter", "add"]
    scatter = graph.loops[0].op + 1 + inside.index("scatter")
    fused = fuse(graph)
    assert {int(graph.operands(scatter)[0]), graph.results(scatter).start} <= carried_on(graph, fused.in_memory)
    assert int(graph.value_op[graph.operands(scatter)[0]]) not in schedules_fused(graph, fused)[0].over
