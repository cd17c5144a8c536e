"""The program of a device, what lies in memory of it, when its ops run, and what is alive."""

from dataclasses import replace

import numpy as np
import pytest
from choices import S0, S1, R
from local_programs import SCATTER, local
from snippets import class_of, function, program_of, tensor

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.strategies.choice.sharding_plan import ShardingPlan, implied, make_plan
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.target import TARGETS
from rhino.strategies.memory.buffers import arranged
from rhino.strategies.memory.device_graph import device_graph
from rhino.strategies.memory.fusion import in_memory
from rhino.strategies.memory.loop_invariants import loop_invariants
from rhino.strategies.memory.op_order import schedule
from rhino.strategies.memory.peak import Lives, predicted_peak
from rhino.strategies.sharding.choice_problem import build

KIND, ROW = tensor((8, 8)), tensor((8,))


def dot(left, right):
    return f"stablehlo.dot_general {left}, {right}, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}"


def total(value, zero="%o"):
    return (
        f"stablehlo.reduce({value} init: {zero}) applies stablehlo.add across dimensions = [1] "
        f": ({KIND}, tensor<f32>) -> {ROW}"
    )


# What lies in memory


def held(body, arguments, results, fusion="cheap"):
    """The names of the results of ops that lie in memory."""
    graph = program_of(function(body, arguments, results)).graph
    found = in_memory(graph, (), fusion)
    return [
        graph.cls(op).name.removeprefix("stablehlo.")
        for op in range(graph.num_ops)
        if found[graph.results(op).start] and not graph.cls(op).free
    ]


@pytest.mark.parametrize(
    ("op", "second", "lies_for"),
    [
        ("negate", "tanh", ()),  # cheap: computed in both kernels
        ("exponential", "tanh", ("cheap",)),  # costly, and two kernels would compute it
        ("exponential", "", ()),  # one kernel alone does
        ("negate", "dot", ("cheap", "all")),  # a product reads it from memory, unless it is in a kernel
        ("negate", "reduce", ("cheap",)),  # so does a reduction what others read, on hosts
    ],
)
@pytest.mark.parametrize("fusion", ["cheap", "products", "all"])
def test_what_several_kernels_read(op, second, lies_for, fusion):
    body = f"%e = stablehlo.{op} %x : {KIND}\n%y = stablehlo.add %e, %x : {KIND}\n"
    reader = {
        "": "",
        "tanh": f"%z = stablehlo.tanh %e : {KIND}",
        "dot": f"%z = {dot('%e', '%x')}",
        "reduce": f"%o = stablehlo.constant dense<0.0> : tensor<f32>\n%z = {total('%e')}",
    }[second]
    results = {"y": KIND} | ({"z": ROW if second == "reduce" else KIND} if second else {})
    assert (op in held(body + reader, {"x": KIND}, results, fusion)) == (fusion in lies_for)


@pytest.mark.parametrize(("fusion", "pads"), [("cheap", 2), ("products", 2), ("all", 0)])
def test_a_pad_is_computed_once(fusion, pads):
    """The sum of two is computed in both kernels that read it, and each pad is read by both."""
    part = tensor((8, 4))
    body = "%o = stablehlo.constant dense<0.0> : tensor<f32>\n"
    for name, low, high in (("p", 4, 0), ("q", 0, 4)):
        body += f"""%{name} = stablehlo.pad %x, %o, low = [0, {low}], high = [0, {high}], interior = [0, 0]\
 : ({part}, tensor<f32>) -> {KIND}\n"""
    body += f"%s = stablehlo.add %p, %q : {KIND}\n%y = stablehlo.tanh %s : {KIND}\n%z = stablehlo.negate %s : {KIND}"
    assert held(body, {"x": part}, {"y": KIND, "z": KIND}, fusion) == [*["pad"] * pads, "tanh", "negate"]


def test_division_by_what_is_broadcast_is_cheap():
    for divisor, lies in (("%d", False), ("%v", True)):
        body = f"""%d = stablehlo.broadcast_in_dim %r, dims = [0] : ({ROW}) -> {KIND}
          %q = stablehlo.divide %x, {divisor} : {KIND}
          %y = stablehlo.negate %q : {KIND}
          %z = stablehlo.abs %q : {KIND}"""
        found = held(body, {"x": KIND, "v": KIND, "r": ROW}, {"y": KIND, "z": KIND})
        assert ("divide" in found) == lies


@pytest.mark.parametrize(
    ("inner", "lies"), [("%h = stablehlo.negate %x : KIND", True), (f"%h = {dot('%x', '%x')}", False)]
)
def test_a_view_lies_by_itself_where_what_it_views_is_computed_inside_it(inner, lies):
    flat = tensor((64,))
    body = f"""{inner.replace("KIND", KIND)}
      %v = stablehlo.reshape %h : ({KIND}) -> {flat}
      %y = stablehlo.dot_general %v, %w, contracting_dims = [0] x [0] : ({flat}, {flat}) -> tensor<f32>
      %z = stablehlo.tanh %h : {KIND}"""
    found = held(body, {"x": KIND, "w": flat}, {"y": "tensor<f32>", "z": KIND})
    assert ("reshape" in found) == lies


# The program of a device


@pytest.mark.parametrize(
    ("source", "target", "names"),
    [
        (S0, R, ["tanh", "all_gather"]),
        (S1, R, ["tanh", "transpose", "all_gather", "transpose"]),  # its dim is made the outermost, and put back
        (R, S1, ["tanh", "dynamic_slice"]),
        (S0, S1, ["tanh", "transpose", "all_to_all", "transpose"]),
    ],
)
def test_how_a_value_is_brought_from_one_spec_to_another(source, target, names):
    kind = tensor((4, 8))
    found, graph = local(
        f"%y = stablehlo.tanh %x : {kind}", {"x": kind}, {"y": kind}, {0: source, 1: source}, (target,)
    )
    assert found == names
    assert graph.type_of(graph.returns[0]).num_bytes == 128 // (1 if target == R else 2)


@pytest.mark.parametrize("source", [S0, S1])
def test_one_device_sends_nothing(source):
    body = f"%o = stablehlo.constant dense<0.0> : tensor<f32>\n%y = stablehlo.tanh %x : {KIND}\n%z = {total('%y')}"
    found, _ = local(body, {"x": KIND}, {"y": KIND, "z": ROW}, {0: source, 2: source}, (R, R), size=1)
    assert found == ["constant", "tanh", "reduce"]


@pytest.mark.parametrize(("second", "cuts"), [(S0, 1), (S1, 2)])
def test_what_is_cut_out_of_a_value_for_one_op_is_there_for_the_next(second, cuts):
    """Not so another part of it."""
    body = f"%y = stablehlo.tanh %x : {KIND}\n%z = stablehlo.negate %x : {KIND}"
    found, _ = local(body, {"x": KIND}, {"y": KIND, "z": KIND}, {0: R, 1: S0, 2: second}, (S0, second))
    assert sorted(found) == sorted(["dynamic_slice"] * cuts + ["tanh", "negate"])


@pytest.mark.parametrize(("shape", "reads"), [((4, 8), ""), ((4, 2, 8), "reshape")])
def test_a_product_of_matrices_reads_what_is_transposed_as_it_lies(shape, reads):
    """Others want the summed dims of the right operand first, and read the transpose."""
    kind, turned, left = tensor(shape), tensor((shape[-1], *shape[:-1])), tensor((16, 8))
    result = tensor((16, *shape[:-1]))
    body = f"""%t = stablehlo.transpose %x, dims = [{", ".join(map(str, (len(shape) - 1, *range(len(shape) - 1))))}]\
 : ({kind}) -> {turned}
      %y = stablehlo.dot_general %v, %t, contracting_dims = [1] x [0] : ({left}, {turned}) -> {result}"""
    names, graph = local(body, {"x": kind, "v": left}, {"y": result}, {}, (R,))
    maker = int(graph.value_op[graph.operands(names.index("dot_general"))[1]])
    assert names[maker] == reads if reads else maker < 0


@pytest.mark.parametrize(
    ("left", "right", "dims", "result", "orders"),
    [
        ((4, 6), (8, 6), "contracting_dims = [1] x [1]", (4, 8), (None, None)),
        ((6, 4), (6, 8), "contracting_dims = [0] x [0]", (4, 8), (None, None)),
        ((2, 4, 6), (6, 8), "contracting_dims = [2] x [0]", (2, 4, 8), ("view", None)),
        ((2, 4, 6), (2, 4, 8), "contracting_dims = [0, 1] x [0, 1]", (6, 8), ((2, 0, 1), "view")),
        ((2, 4, 6), (4, 2, 6), "batching_dims = [0] x [1], contracting_dims = [2] x [2]", (2, 4, 4), (None, (1, 0, 2))),
        ((1, 4, 6), (1, 8, 6), "batching_dims = [0] x [0], contracting_dims = [2] x [2]", (1, 4, 8), ("view", (2, 1))),
    ],
)
def test_how_operands_of_products_are_arranged(left, right, dims, result, orders):
    """Matrices are read in either order.

    Others are made matrices, left ones with what is summed last, right ones with it first.
    """
    body = f"%z = stablehlo.dot_general %a, %b, {dims} : ({tensor(left)}, {tensor(right)}) -> {tensor(result)}"
    text = function(body, {"a": tensor(left), "b": tensor(right)}, {"z": tensor(result)})
    cls = class_of(text, "stablehlo.dot_general")
    assert (arranged(cls, 0, left), arranged(cls, 1, right)) == orders


@pytest.mark.parametrize(
    ("left", "right", "dims", "result", "orders"),
    [
        ((2, 4, 6), (2, 4, 8), "contracting_dims = [0, 1] x [0, 1]", (6, 8), ("view", "view")),
        ((2, 4, 6), (4, 2, 6), "batching_dims = [0] x [1], contracting_dims = [2] x [2]", (2, 4, 4), (None, None)),
        ((4, 6, 2), (2, 4, 6), "batching_dims = [2] x [0], contracting_dims = [1] x [2]", (2, 4, 4), ((2, 0, 1), None)),
        ((1, 4, 6), (1, 8, 6), "batching_dims = [0] x [0], contracting_dims = [2] x [2]", (1, 4, 8), ("view", "view")),
        ((2, 4, 6), (2, 5, 6), "contracting_dims = [0, 2] x [0, 2]", (4, 5), ((1, 0, 2), (0, 2, 1))),
    ],
)
def test_how_operands_are_arranged_that_libraries_read_in_any_order(left, right, dims, result, orders):
    """The batch cannot be innermost, nor may dims of one kind lie apart."""
    body = f"%z = stablehlo.dot_general %a, %b, {dims} : ({tensor(left)}, {tensor(right)}) -> {tensor(result)}"
    text = function(body, {"a": tensor(left), "b": tensor(right)}, {"z": tensor(result)})
    cls = class_of(text, "stablehlo.dot_general")
    assert (arranged(cls, 0, left, in_any_order=True), arranged(cls, 1, right, in_any_order=True)) == orders


@pytest.mark.parametrize(("again", "names"), [("", ["add", "scatter"]), ("stablehlo.negate %s", ["scatter", "add"])])
def test_what_is_added_to_a_scatter_over_zeros_is_scattered_into(again, names):
    """Unless something else reads the scatter."""
    body = f"""%z = stablehlo.constant dense<0.0> : {KIND}
      %k = stablehlo.constant dense<1> : tensor<2x1xi32>
      %s = {SCATTER.format(into="%z", at="%k", what="%u", kind=KIND, rows=tensor((2, 8)))}
      %d = stablehlo.add %s, %x : {KIND}
      %y = stablehlo.add %d, %v : {KIND}"""
    results = {"y": KIND}
    if again:
        body += f"\n%n = {again} : {KIND}"
        results["n"] = KIND
    found, _ = local(body, {"x": KIND, "v": KIND, "u": tensor((2, 8))}, results, {}, (R,) * len(results))
    assert [name for name in found if name in ("add", "scatter")][:2] == names


# Loops

LOOP = """%zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %most = stablehlo.constant dense<TRIPS> : tensor<i32>
  %e:2 = stablehlo.while(%i = %zero, %a = %v) : tensor<i32>, KIND cond {
    %more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %r = stablehlo.reverse %x, dims = [0] : KIND
    %t = stablehlo.tanh %r : KIND
    %b = stablehlo.add %a, %t : KIND
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, KIND
  }"""


@pytest.mark.parametrize(("trips", "source", "found"), [(3, S0, ["all_gather", "tanh"]), (3, R, ["tanh"]), (1, S0, [])])
def test_what_is_the_same_each_time_round_lies_in_memory_while_the_loop_runs(trips, source, found):
    """What takes no arithmetic is computed anew. A loop that runs once is none."""
    body = LOOP.replace("TRIPS", str(trips)).replace("KIND", KIND)
    names, graph = local(body, {"x": KIND, "v": KIND}, {"e#1": KIND}, {0: source}, (R,))
    assert [names[int(graph.value_op[value])] for value in loop_invariants(graph)] == found
    lives = Lives(graph, TARGETS["cpu"])
    (loop,), order = graph.loops, lives.order
    for value in lives.hoisted:
        assert lives.value(value)[1:] == (order.start[loop.op], order.stop[loop.end])
    assert not Lives(graph, TARGETS["gpu"]).hoisted


@pytest.mark.parametrize(("cluster", "platform"), [("cpu4", "cpu"), ("v100x8", "gpu"), ("v5e-8", "tpu")])
def test_a_plan_knows_whose_compiler_makes_its_program(cluster, platform):
    where = load_cluster(cluster)
    model = CostModel(where.device, mesh_axes(where, (where.num_devices,)))
    choice = build(program_of(function(f"%y = stablehlo.tanh %x : {KIND}", {"x": KIND}, {"y": KIND})).graph, model)
    assert make_plan(choice, np.zeros(choice.problem.num_nodes, dtype=np.int64)).target == TARGETS[platform]


# The order


def times(body, arguments, results):
    """When ops of a device's program run, by name; names are those of the results."""
    graph = program_of(function(body, arguments, results)).graph
    made = {name: graph.value_op[value] for name, value in zip(results, graph.returns, strict=True)}
    start = schedule(graph, in_memory(graph, (), "cheap")).start
    return {name: start[op] for name, op in made.items()}


def test_what_arguments_take_does_not_count_in_the_order():
    """Of two results, that comes first for which more is computed, not that which reads the larger argument."""
    tall = tensor((64, 8))
    product = f"contracting_dims = [0] x [0] : ({KIND}, {KIND}) -> {KIND}"
    body = f"""%p = stablehlo.dot_general %x, %x, {product}
      %y = stablehlo.dot_general %w, %w, {product.replace(KIND, tall, 2)}
      %z = stablehlo.dot_general %p, %v, {product}"""
    found = times(body, {"w": tall, "x": KIND, "v": KIND}, {"y": KIND, "z": KIND})
    assert found["z"] < found["y"]


def test_the_last_all_reduces_wait_for_each_other():
    """The sum of x needs no product, and is sent with the one that does."""
    body = f"""%o = stablehlo.constant dense<0.0> : tensor<f32>
      %s = {total("%x")}
      %p = {dot("%w", "%w")}
      %m = stablehlo.add %x, %p : {KIND}
      %t = {total("%m")}"""
    names, graph = local(body, {"x": KIND, "w": KIND}, {"s": ROW, "t": ROW}, {0: S1, 5: S1}, (R, R))
    start = Lives(graph, TARGETS["cpu"]).order.start
    sums = [start[op] for op, name in enumerate(names) if name == "all_reduce"]
    assert len(sums) == 2
    assert min(sums) > start[names.index("dot_general")]


# What is alive


def spans(body, arguments, results, target="cpu", donated=False):
    text = function(body, arguments, results)
    if donated:
        text = text.replace(f": {KIND}", f": {KIND} {{tf.aliasing_output = 0 : i32}}", 1)
    lives = Lives(program_of(text).graph, TARGETS[target])
    return sorted(span for span, _ in lives.spans()), lives.num_times


def test_a_result_in_a_donated_buffer_is_beside_the_argument_until_that_is_read_no_more():
    found, last = spans(f"%y = {dot('%x', '%x')}", {"x": KIND}, {"y": KIND}, donated=True)
    assert found == [(256, 0, last - 1), (256, 1, 1)]
    found, last = spans(f"%y = stablehlo.negate %x : {KIND}", {"x": KIND}, {"y": KIND}, donated=True)
    assert found == [(256, 0, last - 1)]


@pytest.mark.parametrize(("target", "computed"), [("cpu", 256), ("gpu", 128)])
def test_hosts_keep_what_is_computed_in_bf16_as_f32(target, computed):
    """What is moved, or returned, stays as it is."""
    half = tensor((8, 8), "bf16")
    product = dot("{}", "{}").replace(KIND, half)
    body = f"""%p = {product.format("%x", "%x")}
      %r = stablehlo.reverse %p, dims = [0] : {half}
      %y = {product.format("%r", "%p")}"""
    found, _ = spans(body, {"x": half}, {"y": half}, target)
    assert sorted(size for size, *_ in found) == sorted([128, 128, 128, computed])


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (tensor((3, 130)), 4 * 256 * 4),
        (tensor((3, 130), "bf16"), 4 * 256 * 2),
        (tensor((300, 8)), 8 * 384 * 4),  # its 300 rows lie as columns
        (tensor((3, 16, 3, 100)), 3 * 3 * 16 * 128 * 4),
        (ROW, 32),
    ],
)
def test_tpus_pad_arguments_to_tiles_in_the_order_that_pads_least(kind, size):
    found, last = spans(f"%y = stablehlo.negate %x : {kind}", {"x": kind}, {"y": kind}, "tpu")
    assert (size, 0, last - 1) in found


GELU = f"""%p = {dot("%x", "%v")}
  %t = stablehlo.tanh %p : {KIND}
  %g = stablehlo.multiply %t, %p : {KIND}
  %q = {dot("%g", "%w")}
  %r = stablehlo.add %q, %p : {KIND}
  %y = stablehlo.negate %t : {KIND}
"""


@pytest.mark.parametrize(
    ("target", "held"),
    [
        ("cpu", ["dot_general", "tanh", "multiply", "dot_general", "add", "negate"]),
        ("gpu", ["dot_general", "multiply", "dot_general", "add", "negate"]),
        ("tpu", ["dot_general", "add", "negate"]),  # the sum's kernel holds the second product, and what that reads
    ],
)
def test_what_of_a_gelu_between_products_lies_in_memory(target, held):
    graph = program_of(function(GELU, {"x": KIND, "v": KIND, "w": KIND}, {"r": KIND, "y": KIND})).graph
    found = Lives(graph, TARGETS[target]).in_memory
    names = [graph.cls(op).name.removeprefix("stablehlo.") for op in range(graph.num_ops)]
    assert [name for op, name in enumerate(names) if found[graph.results(op).start]] == held


def test_a_kernel_holds_one_product():
    body = f"%p = {dot('%x', '%x')}\n%q = {dot('%x', '%p')}\n%y = stablehlo.add %p, %q : {KIND}"
    graph = program_of(function(body, {"x": KIND}, {"y": KIND})).graph
    assert Lives(graph, TARGETS["tpu"]).in_memory == [True, True, False, True]


@pytest.mark.parametrize(("target", "turned", "copies"), [("tpu", True, 1), ("tpu", False, 0), ("gpu", True, 0)])
def test_a_weight_lies_a_second_time_in_the_layout_of_its_gradient(target, turned, copies):
    """A transposed gradient keeps the layout of its product, and the weight is copied to that for its update."""
    x, d, kind, other = (tensor(shape) for shape in ((16, 8), (16, 64), (8, 64), (64, 8)))
    product = "%g = stablehlo.dot_general {}, {}, contracting_dims = [0] x [0] : ({}, {}) -> {}\n"
    if turned:
        body = product.format("%d", "%x", d, x, other)
        body += f"%t = stablehlo.transpose %g, dims = [1, 0] : ({other}) -> {kind}\n"
    else:
        body = product.format("%x", "%d", x, d, kind) + f"%t = stablehlo.negate %g : {kind}\n"
    body += f"""%s = stablehlo.multiply %t, %w : {kind}
      %v = stablehlo.subtract %w, %s : {kind}
      %z = stablehlo.tanh %d : {d}"""
    text = function(body, {"w": kind, "x": x, "d": d}, {"v": kind, "z": d})
    graph = program_of(text.replace(f"%w: {kind}", f"%w: {kind} {{tf.aliasing_output = 0 : i32}}")).graph
    lives = Lives(graph, TARGETS[target])
    found = [(size, start) for (size, start, end), _ in lives.spans() if start == 0 and end < lives.num_times - 1]
    assert found == [(8 * 64 * 4, 0)] * copies


def peaks(body, arguments, results, **device):
    """The predicted peak of a program on one device of a TPU, which has such figures."""
    graph = program_of(function(body, arguments, results)).graph
    ops = [implied(graph, op, [R] * graph.num_values, (1,)) for op in range(graph.num_ops)]
    model = CostModel(replace(load_cluster("v5e-8").device, **device), ())
    plan = ShardingPlan(graph, (1,), tuple(ops), (R,) * graph.num_values, (R,) * len(graph.returns), model=model)
    return predicted_peak(replace(plan, target=replace(TARGETS["gpu"], slack=0.0)))


@pytest.mark.parametrize(("near_bytes", "held"), [(None, 512), (256 * 3 // 2, 256), (1024, 256), (255, 512)])
def test_a_nearer_memory_takes_temporaries_as_far_as_they_fit(near_bytes, held):
    """Two thirds of it do; results are not there."""
    body = f"%p = {dot('%x', '%x')}\n%y = {dot('%p', '%x')}"
    assert peaks(body, {"x": KIND}, {"y": KIND}, near_memory_bytes=near_bytes) == 256 + held


@pytest.mark.parametrize("away", [False, True])
def test_what_is_read_much_later_is_not_in_nearer_memory(away):
    """It goes to main memory in between, if the products between take longer than to fill the near memory 8 times."""
    products = {"p": "xx", "q": "xp", "a": "pq", "b": "ax", "c": "bp", "y": "cq"}
    body = "\n".join(f"%{name} = {dot(*(f'%{one}' for one in of))}" for name, of in products.items())
    fills_s = 8 * 2048 / 1e9
    rate = 2 * 8**3 / (fills_s * (0.6 if away else 0.3))
    device = {"near_memory_bytes": 2048, "hbm_bytes_per_s": 1e9, "flops_per_s": (("bf16", rate),)}
    found = peaks(body, {"x": KIND}, {"y": KIND}, matmul_efficiency=1.0, memory_efficiency=1.0, **device)
    assert found == 512 + 256 * away  # both that are read again, beside the argument


def test_each_product_takes_the_workspace_of_its_library():
    body = f"%y = {dot('%x', '%x')}"
    arguments, results = {"x": KIND}, {"y": KIND}
    without, with_ = (peaks(body, arguments, results, near_memory_bytes=None, workspace_bytes=n) for n in (None, 4096))
    assert with_ == without + 4096


@pytest.mark.parametrize(("target", "halved"), [("tpu", True), ("gpu", False)])
@pytest.mark.parametrize("other", ["", "tanh"])
def test_what_products_alone_read_lies_in_bf16_where_they_convert_it(target, halved, other):
    body = f"%e = stablehlo.exponential %x : {KIND}\n%b = stablehlo.optimization_barrier %e : {KIND}"
    body += f"\n%y = {dot('%b', '%x')}\n"
    body += f"%z = stablehlo.tanh %b : {KIND}" if other else ""
    graph = program_of(function(body, {"x": KIND}, {"y": KIND} | ({"z": KIND} if other else {}))).graph
    lives = Lives(graph, TARGETS[target])
    made = next(op for op in range(graph.num_ops) if graph.cls(op).name == "stablehlo.optimization_barrier")
    assert lives.num_bytes[graph.results(made).start] == (128 if halved and not other else 256)


@pytest.mark.parametrize(("target", "held"), [("tpu", 0), ("gpu", 1)])
def test_a_scatter_of_one_element_a_row_is_a_selection(target, held):
    """XLA:TPU compares the index with all columns, in each kernel that reads it."""
    index, added = tensor((8, 1, 1), "i32"), tensor((8, 1))
    body = f"""%o = stablehlo.constant dense<0.0> : {KIND}
    %s = "stablehlo.scatter"(%o, %i, %u) <{{
      scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0],
      scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
    }}) : ({KIND}, {index}, {added}) -> {KIND}
    %y = stablehlo.tanh %s : {KIND}
    %z = stablehlo.negate %s : {KIND}"""
    graph = program_of(function(body, {"i": index, "u": added}, {"y": KIND, "z": KIND})).graph
    ops = [implied(graph, op, [R] * graph.num_values, (1,)) for op in range(graph.num_ops)]
    plan = ShardingPlan(graph, (1,), tuple(ops), (R,) * graph.num_values, (R, R), TARGETS[target])
    lives = Lives(device_graph(plan), TARGETS[target])
    scattered = {"stablehlo.scatter", "stablehlo.select"}
    found = [
        value for op, cls in enumerate(lives.classes) if cls.name in scattered for value in lives.graph.results(op)
    ]
    assert [sum(lives.in_memory[value] for value in found), len(found)] == [held, 1]


@pytest.mark.parametrize(("target", "apart"), [("gpu", (False, True)), ("cpu", (True, False))])
def test_what_an_op_writes_over(target, apart):
    """XLA:GPU lets a scatter write over what it reads last, and no op element by element; XLA:CPU the other way."""
    body = f"%p = {dot('%x', '%x')}\n%k = stablehlo.constant dense<1> : tensor<2x1xi32>\n%s = "
    body += SCATTER.format(into="%p", at="%k", what="%u", kind=KIND, rows=tensor((2, 8))) + "\n"
    body += f"%q = {dot('%s', '%s')}\n%t = stablehlo.tanh %q : {KIND}\n%y = {dot('%t', '%t')}"
    graph = program_of(function(body, {"x": KIND, "u": tensor((2, 8))}, {"y": KIND})).graph
    lives = Lives(graph, TARGETS[target])
    made = {lives.classes[op].name: value for value, op in enumerate(lives.maker) if op >= 0}
    before = {
        name: graph.operands(lives.maker[made[name]]).tolist()[0] for name in ("stablehlo.scatter", "stablehlo.tanh")
    }
    found = tuple(lives.value(read)[2] >= lives.value(made[name])[1] for name, read in before.items())
    assert found == apart


@pytest.mark.parametrize(("target", "once"), [("gpu", True), ("cpu", False)])
def test_what_products_read_through_unlike_views_lies_in_memory_once(target, once):
    """For products XLA:GPU has one layout, and views of it are free."""
    flat, deep = tensor((64,)), tensor((1, 8, 8))
    kinds = f"({deep}, {deep}) -> {deep}"
    body = f"""%p = stablehlo.negate %x : {flat}
      %a = stablehlo.reshape %p : ({flat}) -> {KIND}
      %b = stablehlo.reshape %p : ({flat}) -> {deep}
      %y = {dot("%a", "%a")}
      %z = stablehlo.dot_general %b, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : {kinds}"""
    graph = program_of(function(body, {"x": flat}, {"y": KIND, "z": deep})).graph
    found = in_memory(graph, (), TARGETS[target].fusion)
    assert found == [True, once, not once, not once, True, True]


@pytest.mark.parametrize(("target", "inside"), [("gpu", True), ("cpu", False)])
def test_a_gather_looks_up_what_it_computes(target, inside):
    """XLA:GPU computes the elements that are looked up, and nothing else of what they are of."""
    index, found = tensor((3, 1), "i32"), tensor((3, 8))
    body = f"""%p = stablehlo.exponential %x : {KIND}
      %g = "stablehlo.gather"(%p, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}}>
        : ({KIND}, {index}) -> {found}
      %y = stablehlo.tanh %g : {found}"""
    graph = program_of(function(body, {"x": KIND, "i": index}, {"y": found})).graph
    assert in_memory(graph, (), TARGETS[target].fusion) == [True, True, not inside, not inside, True]
