"""What is computed while weights are gathered, against windows worked out by hand and what compilers made."""

from dataclasses import replace

import pytest
from snippets import program_of

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.graph.spec import PARTIAL, REPLICATED, all_specs, pack, split
from rhino.strategies.cost.buckets import packing_of
from rhino.strategies.cost.compiled_step import compiled_step
from rhino.strategies.cost.cost_model import CostModel, Window, collective_s, reshard_seconds, step_seconds
from rhino.strategies.cost.overlap import Order, windows
from rhino.strategies.cost.reshard import moves
from rhino.strategies.cost.target import TARGETS

W = "tensor<1024x1024xf32>"
X = "tensor<8192x1024xf32>"


def dot(a, b, types, dims):
    return f"stablehlo.dot_general {a}, {b}, contracting_dims = {dims} : ({types[0]}, {types[1]}) -> {types[2]}"


FORWARD = f"""  %0 = {dot("%x", "%w1", (X, W, X), "[1] x [0]")}
  %1 = stablehlo.tanh %0 : {X}
  %2 = {dot("%1", "%w2", (X, W, X), "[1] x [0]")}
  %3 = stablehlo.tanh %2 : {X}
  %4 = {dot("%3", "%w3", (X, W, X), "[1] x [0]")}
"""
BACKWARD = f"""  %5 = {dot("%3", "%4", (X, X, W), "[0] x [0]")}
  %6 = {dot("%4", "%w3", (X, W, X), "[1] x [1]")}
  %7 = {dot("%1", "%6", (X, X, W), "[0] x [0]")}
  %8 = {dot("%6", "%w2", (X, W, X), "[1] x [1]")}
  %9 = {dot("%x", "%8", (X, X, W), "[0] x [0]")}
  %10 = stablehlo.subtract %w1, %9 : {W}
  %11 = stablehlo.subtract %w2, %7 : {W}
  %12 = stablehlo.subtract %w3, %5 : {W}
  return %10, %11, %12 : {W}, {W}, {W}
"""
TAKES = f"func.func @main(%x: {X}, %w1: {W}, %w2: {W}, %w3: {W})"
STEP = f"{TAKES} -> ({W}, {W}, {W}) {{\n{FORWARD}{BACKWARD}}}"
LAYERS = f"{TAKES} -> {X} {{\n{FORWARD}  return %4 : {X}\n}}"
_, W1, W2, W3 = range(4)
WHOLE = 1024 * 1024 * 4
SECONDS = [10, 1, 20, 2, 30, 40, 50, 60, 70, 80, 3, 4, 5]
"""Of the ops of STEP."""


CLUSTERS = {"cpu": "cpu8", "gpu": "h100x8", "tpu": "v5e-8"}


def model_of(platform, shape=(8,)):
    cluster = load_cluster(CLUSTERS.get(platform, platform))
    return CostModel(cluster.device, mesh_axes(cluster, shape))


def found(platform="tpu"):
    graph = program_of(STEP).graph
    return graph, windows(Order(graph), model_of(platform), SECONDS)


def window_s(windows_, value, reader):
    one = windows_.window(value, reader)
    return one and one.seconds[0]


@pytest.mark.parametrize(("platform", "share"), [("tpu", 1), ("gpu", 2 / 5)])
def test_a_weight_is_gathered_since_the_weight_before_it_was_read(platform, share):
    _, windows_ = found(platform)
    reads = [(W1, 0), (W2, 2), (W3, 4), (W3, 6), (W2, 8)]
    seconds = [0, 10 + 1, 20 + 2, share * (30 + 40), share * (50 + 60)]  # GPUs reduce three gradients meanwhile
    assert [window_s(windows_, value, op) for value, op in reads] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("size", "scattered", "reduced"), [(1024, [0, 0, 0], [0, 0, 0]), (4096, [0, 0, 0], [78, 78, 0])]
)
def test_gpus_hide_reductions_of_gradients_but_for_those_that_are_joined_last(size, scattered, reduced):
    # 4096 x 4096 are 64 MiB: more than 30 MiB are not joined of all-reduces, but 8 x 30 MiB of reduce-scatters
    graph = program_of(STEP.replace("1024", str(size))).graph
    windows_ = windows(Order(graph), model_of("gpu"), SECONDS)
    seconds = [windows_.window(graph.results(op)[0], None).seconds for op in (5, 7, 9)]
    assert [one[1] for one in seconds] == scattered
    assert [one[2] for one in seconds] == pytest.approx(reduced)  # 3/5, beside gathers, of half of 50 + 60 + 70 + 80
    assert [windows(Order(graph), model_of("tpu"), SECONDS).gradients[graph.results(5)[0]][1:]] == [(0, 0)]


def test_the_windows_of_a_step_hide_no_more_than_is_computed():
    _, windows_ = found()
    assert sum(windows_.readers[op] for op in (0, 2, 4, 6, 8)) < sum(SECONDS)


@pytest.mark.parametrize(("platform", "seconds"), [("tpu", [50 + 60, 70 + 80, 0]), ("gpu", [0, 0, 0])])
def test_a_new_weight_is_gathered_until_the_next_gradient_is_there_unless_reductions_are_joined(platform, seconds):
    graph, windows_ = found(platform)
    gradients = [graph.results(op)[0] for op in (5, 7, 9)]
    updated = [graph.results(op)[0] for op in (12, 11, 10)]
    for values in (gradients, updated):
        assert [window_s(windows_, value, None) for value in values] == seconds


def test_gpus_join_collectives_up_to_a_threshold_or_all_that_there_is():
    batch = 8192 * 1024 * 4
    assert set(found("gpu")[1].joined_bytes) == {min(30 << 20, 3 * WHOLE + batch)}
    small = windows(Order(program_of(STEP.replace("8192x", "8x")).graph), model_of("gpu"), SECONDS)
    assert set(small.joined_bytes) == {3 * WHOLE + batch // 1024}


@pytest.mark.parametrize("cluster", ["tpu", "v5p-8", "v6e-8"])
def test_tpus_join_small_collectives_up_to_a_bucket_or_all_small_ones_that_there_are(cluster):
    model = model_of(cluster, (4,) if cluster == "v5p-8" else (8,))
    packing = packing_of(model)
    assert packing is not None
    rows = packing.item_bytes // (1024 * 4)  # of the batch: as many as may be joined
    graph = program_of(STEP.replace("8192x", f"{rows}x")).graph
    windows_ = windows(Order(graph), model, SECONDS)
    assert packing.item_bytes < WHOLE
    assert [windows_.joined_bytes[value] for value in (0, W1)] == [rows * 1024 * 4, 0]
    assert [window_s(windows_, W1, op) for op in (0, 1)] == [0.0, 11.0]


def test_of_a_scatter_along_two_axes_gpus_hide_the_last_step():
    model = model_of("gpu", (2, 4))
    kind = program_of(LAYERS, 8).graph.type_of(W1)
    given, needed = pack((PARTIAL, PARTIAL)), pack((split(0), split(1)))
    steps = moves(kind.num_bytes, 2, given, needed, model.sizes)
    assert [step.kind for step in steps] == ["reduce_scatter", "reduce_scatter"]
    window = Window((0.0, 1.0, 0.0), 0)
    left_s = model.target.unhidden * model.move_s(steps[1])
    assert step_seconds(model, kind, steps, window, needed) == pytest.approx((model.move_s(steps[0]), left_s))
    halfway = pack((split(0), PARTIAL))
    (step,) = moves(kind.num_bytes, 2, given, halfway, model.sizes)
    assert step_seconds(model, kind, [step], window, halfway) == (model.move_s(step),)


def test_tpus_hide_on_a_sparse_core_what_options_of_their_compiler_say():
    model = model_of("v6e-8")
    bare = CostModel(replace(model.device, compile_options=()), model.axes)
    option = "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter"
    scatters, not_so = (
        CostModel(replace(model.device, compile_options=((option, value),)), model.axes) for value in (True, False)
    )
    hidden = [sorted(one.target.hidden(one.device)) for one in (model, bare, scatters, not_so)]
    assert hidden == [["all_gather", "all_reduce", "reduce_scatter"], [], ["reduce_scatter"], []]
    graph = program_of(STEP).graph
    gradients = [graph.results(op)[0] for op in (5, 7, 9)]  # one by one: the compiler joins none
    behind = [windows(Order(graph), one, SECONDS).gradients[gradients[0]] for one in (model, bare, scatters)]
    share_s = (50 + 60 + 70 + 80) / 2
    assert behind == [(50 + 60, 3 / 5 * share_s, 3 / 5 * share_s), (0, 0, 0), (50 + 60, 3 / 5 * share_s, 0)]


def test_what_is_joined_waits_for_the_other_gradients():
    tiny = STEP.replace("1024x1024", "64x64").replace("8192x1024", "8192x64")
    graph = program_of(tiny).graph
    windows_ = windows(Order(graph), model_of("tpu"), SECONDS)
    assert [window_s(windows_, graph.results(op)[0], None) for op in (5, 7, 9, 12, 11, 10)] == [0.0] * 6


def test_what_products_give_each_other_is_waited_for():
    graph, windows_ = found()
    assert [window_s(windows_, graph.results(op)[0], op + 1) for op in (0, 1, 2, 3, 4)] == [None] * 5


def test_hosts_join_sums_alone_and_hide_nothing():
    model = model_of("cpu8", (4,))
    graph = program_of(STEP).graph
    windows_ = windows(Order(graph), model, SECONDS)
    assert set(windows_.joined_bytes) == {3 * WHOLE + 8192 * 1024 * 4}
    gradient = graph.results(5)[0]
    window, kind = windows_.window(gradient, None), graph.type_of(gradient)
    assert window.seconds == (0, 0, 0)

    def saved(given, needed):
        alone, together = (reshard_seconds(model, kind, [given], [needed], window=one) for one in (None, window))
        return float((alone - together)[0, 0])

    launch_s = collective_s(model.axes[0], "all_reduce", 0)
    assert saved(PARTIAL, REPLICATED) == pytest.approx(launch_s * (1 - WHOLE / windows_.joined_bytes[gradient]))
    assert saved(PARTIAL, split(0)) == saved(split(0), REPLICATED) == 0


F = "tensor<f32>"


def squares(of, kind, places):
    summed = "applies stablehlo.add across dimensions = [0, 1]"
    return f"""  %{places[0]} = stablehlo.multiply {of}, {of} : {kind}
  %{places[1]} = stablehlo.reduce(%{places[0]} init: %zero) {summed} : ({kind}, {F}) -> {F}
"""


SCALARS = f"""{TAKES} -> ({W}, {W}, {F}) {{
  %zero = stablehlo.constant dense<0.0> : {F}
{FORWARD}{squares("%4", X, (20, 21))}{squares("%5", W, (22, 23))}{squares("%7", W, (24, 25))}
  %26 = stablehlo.add %23, %25 : {F}
  %27 = stablehlo.broadcast_in_dim %26, dims = [] : ({F}) -> {W}
  %28 = stablehlo.multiply %5, %27 : {W}
  %29 = stablehlo.multiply %7, %27 : {W}
  return %28, %29, %21 : {W}, {W}, {F}
}}"""


def test_a_loss_is_summed_with_the_gradients_and_norms_by_themselves():
    text = SCALARS.replace(FORWARD, FORWARD + "".join(BACKWARD.splitlines(keepends=True)[:3]))
    graph = program_of(text).graph
    model = model_of("cpu8")
    windows_ = windows(Order(graph), model, [0.0] * graph.num_ops)
    loss, *norms = [graph.results(op)[0] for op in range(graph.num_ops) if graph.cls(op).name == "stablehlo.reduce"]
    everything = windows_.joined_bytes[graph.results(0)[0]]
    assert everything > WHOLE
    assert [windows_.joined_bytes[value] for value in (loss, *norms)] == [everything, 8, 8]
    launch_s, kind = collective_s(model.axes[0], "all_reduce", 0), graph.type_of(loss)
    taken_s = [
        float(reshard_seconds(model, kind, [PARTIAL], [REPLICATED], window=windows_.window(value, None))[0, 0])
        for value in (loss, *norms)
    ]
    assert taken_s == pytest.approx([0, launch_s / 2, launch_s / 2], abs=1e-3 * launch_s)


S = "tensor<4x1024x1024xf32>"
PART = "tensor<1x1024x1024xf32>"
UPDATE = f"({S}, {PART}, tensor<i32>, tensor<i32>, tensor<i32>) -> {S}"
SLICE = f"({S}, tensor<i32>, tensor<i32>, tensor<i32>) -> {PART}"
LOOP = f"""func.func @main(%x: {X}, %w1: {S}, %w2: {S}) -> {X} {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %r:4 = stablehlo.while(%i = %z, %h = %x, %s1 = %w1, %s2 = %w2) : tensor<i32>, {X}, {S}, {S}
   cond {{
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %o = stablehlo.constant dense<0> : tensor<i32>
    %p1 = stablehlo.dynamic_slice %s1, %i, %o, %o, sizes = [1, 1024, 1024] : {SLICE}
    %v1 = stablehlo.reshape %p1 : ({PART}) -> {W}
    %a = {dot("%h", "%v1", (X, W, X), "[1] x [0]")}
    %p2 = stablehlo.dynamic_slice %s2, %i, %o, %o, sizes = [1, 1024, 1024] : {SLICE}
    %v2 = stablehlo.reshape %p2 : ({PART}) -> {W}
    %b = {dot("%a", "%v2", (X, W, X), "[1] x [0]")}
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %b, %s1, %s2 : tensor<i32>, {X}, {S}, {S}
  }}
  return %r#1 : {X}
}}"""


def test_the_windows_of_a_loop_are_those_of_a_trip():
    graph = program_of(LOOP).graph
    names = [graph.cls(op).name.removeprefix("stablehlo.") for op in range(graph.num_ops)]
    seconds = [4.0 * {"dot_general": 10, "dynamic_slice": 1}.get(name, 0) for name in names]
    windows_ = windows(Order(graph), model_of("tpu"), seconds)
    for name, position in (("reshape", 0), ("dot_general", 1)):  # wherever a weight is gathered on its way
        readers = [op for op, own in enumerate(names) if own == name]
        weights = [graph.operands(op).tolist()[position] for op in readers]
        found_s = [window_s(windows_, value, op) for value, op in zip(weights, readers, strict=True)]
        assert found_s == [1, 10 + 1]
    (loop,) = [op for op, name in enumerate(names) if name == "while"]
    assert window_s(windows_, W1, loop) is None


@pytest.mark.parametrize("has_barrier", [False, True])
def test_a_weight_that_several_read_is_gathered_until_the_first_reads_it_but_not_through_a_barrier(has_barrier):
    types = f"{X}, {W}"
    barrier = f'  %w:2 = "stablehlo.optimization_barrier"(%1, %t) : ({types}) -> ({types})\n' if has_barrier else ""
    kept = ("%w#0", "%w#1") if has_barrier else ("%1", "%t")
    text = f"""{TAKES} -> ({X}, {X}) {{
  %0 = {dot("%x", "%w1", (X, W, X), "[1] x [0]")}
  %t = stablehlo.tanh %w2 : {W}
  %1 = stablehlo.tanh %0 : {X}
{barrier}  %2 = {dot(kept[0], kept[1], (X, W, X), "[1] x [0]")}
  %3 = {dot("%2", kept[1], (X, W, X), "[1] x [1]")}
  return %2, %3 : {X}, {X}
}}"""
    graph = program_of(text).graph
    names = [graph.cls(op).name.removeprefix("stablehlo.") for op in range(graph.num_ops)]
    windows_ = windows(Order(graph), model_of("gpu"), [10.0 * (name == "dot_general") for name in names])
    products = [op for op, name in enumerate(names) if name == "dot_general"]
    weight = graph.operands(products[1]).tolist()[1]
    assert [window_s(windows_, weight, reader) for reader in (None, *products[1:])] == [10, 10, 10]
    if has_barrier:  # behind which all begins that it passes on
        barrier = names.index("optimization_barrier")
        assert [window_s(windows_, value, barrier) for value in graph.operands(barrier).tolist()] == [None, None]
        weight_op = names.index("tanh")
        assert window_s(windows_, graph.operands(weight_op).tolist()[0], weight_op) == 0


BACKWARD_LOOP = f"""func.func @main(%x: {X}, %w: {S}) -> ({X}, {S}, {S}) {{
  %z = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : {S}
  %r:5 = stablehlo.while(%i = %z, %h = %x, %s = %w, %g1 = %none, %g2 = %none)
      : tensor<i32>, {X}, {S}, {S}, {S}
   cond {{
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %o = stablehlo.constant dense<0> : tensor<i32>
    %p = stablehlo.dynamic_slice %s, %i, %o, %o, sizes = [1, 1024, 1024] : {SLICE}
    %v = stablehlo.reshape %p : ({PART}) -> {W}
    %d1 = {dot("%h", "%h", (X, X, W), "[0] x [0]")}
    %a = {dot("%h", "%v", (X, W, X), "[1] x [0]")}
    %d2 = {dot("%a", "%h", (X, X, W), "[0] x [0]")}
    %b = {dot("%a", "%v", (X, W, X), "[1] x [1]")}
    %q1 = stablehlo.reshape %d1 : ({W}) -> {PART}
    %q2 = stablehlo.reshape %d2 : ({W}) -> {PART}
    %t1 = stablehlo.dynamic_update_slice %g1, %q1, %i, %o, %o : {UPDATE}
    %t2 = stablehlo.dynamic_update_slice %g2, %q2, %i, %o, %o : {UPDATE}
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %b, %s, %t1, %t2 : tensor<i32>, {X}, {S}, {S}, {S}
  }}
  return %r#1, %r#3, %r#4 : {X}, {S}, {S}
}}"""


def test_gradients_of_a_loop_are_scattered_in_its_next_trip_too_and_reduced_behind_the_last_that_is_joined():
    graph = program_of(BACKWARD_LOOP).graph
    names = [graph.cls(op).name.removeprefix("stablehlo.") for op in range(graph.num_ops)]
    seconds = [4.0 * {"dot_general": 10, "dynamic_slice": 1}.get(name, 0) for name in names]
    windows_ = windows(Order(graph), model_of("gpu"), seconds)
    first, read, second, again = [op for op, name in enumerate(names) if name == "dot_general"]
    share = 2 / 3  # of three tensors that are sent behind the first gradient one is the weight, read twice
    for op in (first, second):
        (value,) = graph.results(op)
        gather_s, scatter_s, reduce_s = windows_.window(value, None).seconds
        assert gather_s == 0
        assert scatter_s == pytest.approx(share * (10 + 10 + 10) / 2)
        assert reduce_s == pytest.approx(share * 10 / 2)
        within = share * 10 / 2  # both are joined, and begin behind the second
        readers = [op for op, name in enumerate(names) if name == "dynamic_update_slice"]
        parts = [graph.operands(reader).tolist()[1] for reader in readers]  # what follows from gradients
        for one in (value, *parts):
            assert windows_.window(one, None).carried == pytest.approx((scatter_s, within))
    weight = graph.operands(read).tolist()[1]
    assert window_s(windows_, weight, None) == pytest.approx((1 - share) * (1 + 10))
    assert window_s(windows_, weight, again) == 10 + 10  # from when the first product that reads it begins
    (loop,) = [op for op, name in enumerate(names) if name == "while"]
    assert windows_.window(graph.results(loop)[3], None).seconds == (0, 0, 0)


def test_a_gather_of_what_the_next_trip_would_scatter_takes_what_that_hides():
    model, kind = model_of("gpu"), program_of(LAYERS).graph.type_of(W1)

    def both(window):
        pairs = [(PARTIAL, split(0)), (split(0), REPLICATED)]
        return [float(reshard_seconds(model, kind, [a], [b], window=window)[0, 0]) for a, b in pairs]

    waited = both(None)
    assert sum(both(Window((0.0, 1.0, 0.0), 0, (1.0, 0.0)))) == pytest.approx(sum(waited))
    half_s = waited[1] / 2  # so much of it is hidden in the same trip too
    found = both(Window((0.0, 1.0, 0.0), 0, (1.0, half_s)))
    assert sum(found) == pytest.approx(sum(waited) - half_s * (1 - model.target.unhidden))
    assert both(Window((0.0, 1.0, 0.0), 0, (1.0, 1.0)))[1] == waited[1]
    alone = Window((0.0, 1.0, 0.0), 0, (1.0, 0.0))  # nothing is gathered
    assert reshard_seconds(model, kind, [PARTIAL], [split(0)], window=alone)[0, 0] < waited[0]


# What compilers made

COMPILED = """HloModule main, is_scheduled=true, num_partitions=8

%first (p: bf16[128,1024]) -> (bf16[128,1024], bf16[1024,1024]) {
  %p = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %g = bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=3, GROUPS, backend_config=CONFIG-1"}}
  ROOT %c = (bf16[128,1024], bf16[1024,1024]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%middle (p: bf16[128,1024], w: bf16[1024,1024], a: bf16[1024,1024]) -> bf16[1024,1024] {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %w = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %y = f32[1024,1024]{1,0:T(8,128)} convolution(%a, %w), dim_labels=bf_io->bf
  %p = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %g = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=3, GROUPS, backend_config=CONFIG2"}}
  ROOT %c = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} convert(%y)
}

%last (p: bf16[128,1024]) -> bf16[1024,1024] {
  %p = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %g = bf16[1024,1024]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=3, GROUPS, backend_config=CONFIG2"}}
  ROOT %c = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} custom-call(%g), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: bf16[1024,1024], w2: bf16[128,1024], w1: bf16[128,1024], w3: bf16[128,1024]) -> f32[1024,1024] {
  %x = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %w2 = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %w1 = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %w3 = bf16[128,1024]{1,0:T(8,128)(2,1)S(1)} parameter(3)
  %all-gather.32 = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} all-gather(%w2), channel_id=2, GROUPS
  %all-gather.33 = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} all-gather(%w1), channel_id=1, GROUPS
  %start = (bf16[128,1024]{1,0:S(1)}, bf16[1024,1024]{1,0:S(1)}) fusion(%w3), kind=kCustom, calls=%first
  %fusion.8 = bf16[1024,1024]{1,0:S(1)} fusion(%w3, %all-gather.33, %x), kind=kOutput, calls=%middle
  %fusion.13 = bf16[1024,1024]{1,0:S(1)} fusion(%w3, %all-gather.32, %fusion.8), kind=kOutput, calls=%middle
  %done = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} fusion(%w3), kind=kCustom, calls=%last
  ROOT %y = f32[1024,1024]{1,0:T(8,128)} convolution(%fusion.13, %done), dim_labels=bf_io->bf
}
"""
COMPILED = COMPILED.replace("GROUPS", "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}")
COMPILED = COMPILED.replace("CONFIG", '{"async_collective_fusion_config":{"flag_end":"8","flag_start":"')
"""What libtpu 0.0.51 makes of LAYERS for v5e-8, weights split in rows, cut to its products and gathers."""


def test_what_is_left_of_gathers_is_what_a_tpu_waits_for():
    cluster, model = load_cluster("v5e-8"), model_of("tpu")
    graph, target = program_of(LAYERS, 8).graph, TARGETS["tpu"]
    product_s = 2 * 1024**3 / target.product_flops_per_s(cluster.device, "f32", "default")
    windows_ = windows(Order(graph), model, [product_s, 0, product_s, 0, product_s])
    (gather,) = moves(1024 * 1024 * 4, 2, split(0), REPLICATED, (8,))
    left = [
        step_seconds(model, graph.type_of(value), [gather.narrowed()], windows_.window(value, op), REPLICATED)[0]
        for value, op in ((W1, 0), (W2, 2), (W3, 4))
    ]
    whole_s = model.move_s(gather.narrowed())
    assert left == pytest.approx([whole_s, whole_s - product_s, whole_s - product_s], abs=1e-9)
    # it gathers the first two before the first product, and hides the third behind two products
    assert sum(left) == pytest.approx(compiled_step(COMPILED, cluster, target).exposed_s, rel=0.01)


JOINED = """HloModule main, is_scheduled=true, num_partitions=8

ENTRY %main (a: f32[1024,1024], b: f32[1024,1024], c: f32[1024,1024]) -> f32[128,1024] {
  %a = f32[1024,1024]{1,0} parameter(0)
  %b = f32[1024,1024]{1,0} parameter(1)
  %c = f32[1024,1024]{1,0} parameter(2)
  %s = ((f32[1024,1024], f32[1024,1024], f32[1024,1024]), (f32[128,1024], f32[128,1024], f32[128,1024])) START
  ROOT %d = (f32[128,1024]{1,0}, f32[128,1024]{1,0}, f32[128,1024]{1,0}) reduce-scatter-done(%s)
}
"""
START = "reduce-scatter-start(%a, %b, %c), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"
JOINED = JOINED.replace("START", START)
"""What XLA:GPU of jaxlib 0.10.2 makes of the reductions of STEP for h100x8, weights split in rows."""


def test_reductions_of_gradients_are_joined_on_gpus():
    cluster, model = load_cluster("h100x8"), model_of("gpu")
    kind = program_of(LAYERS, 8).graph.type_of(W1)
    alone = reshard_seconds(model, kind, [PARTIAL], [split(0)])[0, 0]
    joined = reshard_seconds(model, kind, [PARTIAL], [split(0)], window=Window((0.0, 0.0, 0.0), 3 * WHOLE))[0, 0]
    compiled_s = compiled_step(JOINED, cluster, TARGETS["gpu"]).exposed_s
    assert 3 * joined == pytest.approx(compiled_s, rel=0.2)
    assert 3 * alone > 1.6 * compiled_s


@pytest.mark.parametrize("cluster", ["cpu8", "v5e-8", "v6e-8", "h100x8"])
@pytest.mark.parametrize(
    "window",
    [
        None,
        Window((0, 0, 0), 0),
        Window((1e-5, 2e-5, 0), 30 << 20),
        Window((0, 1e-5, 1), WHOLE // 2),
        Window((0, 1, 0), 0, (1, 1e-6)),
    ],
)
def test_the_steps_of_a_path_take_what_the_path_takes(cluster, window):
    model = model_of(cluster, (2, 4))
    kind = program_of(LAYERS, 8).graph.type_of(W1)
    specs = all_specs(kind.shape, model.sizes, (0, 1))
    seconds = reshard_seconds(model, kind, specs, specs, window=window)
    for row, given in enumerate(specs):
        for column, needed in enumerate(specs):
            steps = moves(kind.num_bytes, 2, given, needed, model.sizes)
            if steps is None:
                continue
            assert sum(step_seconds(model, kind, steps, window, needed)) == pytest.approx(
                seconds[row, column], rel=1e-9
            )
