"""A module as dense arrays: values and ops by number, their names, what is fixed, computed, and takes memory."""

import pytest
from snippets import class_of, function, parse, program_of, tensor

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import materialized
from rhino.ir.graph.spec import PARTIAL, REPLICATED, split

MESH = 'sdy.mesh @mesh = <["x"=2]>\n'

SMALL = """
func.func @main(%x: tensor<4x6xf32> loc("batch['x']"), %w: tensor<6x8xf32>\
 {tf.aliasing_output = 1 : i32} loc("params['w']"),
                %n: tensor<i32>) -> (tensor<4x8xf32>, tensor<6x8xf32>) {
  %c = stablehlo.constant dense<2.0> : tensor<6x8xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32> loc("layer/dot")
  %d = stablehlo.multiply %w, %c : tensor<6x8xf32>
  return %y, %d : tensor<4x8xf32>, tensor<6x8xf32>
}
"""


def test_values_are_numbered_arguments_first():
    graph = program_of(SMALL).graph
    assert (graph.num_ops, graph.num_values, len(graph.arguments)) == (3, 6, 3)
    assert list(graph.value_op) == [-1, -1, -1, 0, 1, 2]
    assert [list(graph.operands(op)) for op in range(3)] == [[], [0, 1], [1, 3]]
    assert [list(graph.results(op)) for op in range(3)] == [[3], [4], [5]]
    assert graph.returns == (4, 5)
    assert [graph.cls(op).name for op in range(3)] == [
        "stablehlo.constant",
        "stablehlo.dot_general",
        "stablehlo.multiply",
    ]


def test_types_and_bytes():
    graph = program_of(SMALL).graph
    assert str(graph.type_of(0)) == "tensor<4x6xf32>"
    assert str(graph.type_of(2)) == "tensor<i32>"
    assert graph.type_of(1) is graph.type_of(3)
    assert list(graph.value_bytes()) == [96, 192, 4, 192, 128, 192]


def test_names_and_aliases_come_from_the_front_end():
    program = program_of(SMALL)
    assert [argument.name for argument in program.graph.arguments] == ["batch['x']", "params['w']", "arg2"]
    assert [argument.alias for argument in program.graph.arguments] == [None, 1, None]
    assert program.describe(1) == "argument 1 \"params['w']\" tensor<6x8xf32>"
    assert program.describe(4) == "stablehlo.dot_general in 'layer/dot' tensor<4x8xf32>"
    assert program.describe(5) == "stablehlo.multiply tensor<6x8xf32>"


def test_alike_ops_share_a_class():
    body = """%0 = stablehlo.add %a, %b : tensor<4x6xf32>
      %1 = stablehlo.add %0, %b : tensor<4x6xf32>
      %2 = stablehlo.subtract %0, %b : tensor<4x6xf32>
      %3 = stablehlo.add %i, %i : tensor<4x6xi32>"""
    kinds = {"a": tensor((4, 6)), "b": tensor((4, 6)), "i": tensor((4, 6), "i32")}
    graph = program_of(function(body, kinds, {"2": kinds["a"]})).graph
    assert list(graph.op_class) == [0, 0, 1, 2]


def test_reductions_from_other_values_are_other_classes():
    """The text of the op is the same; what it starts from is not, and with it what its parts mean."""
    body = """%z = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]\
 : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
      %1 = stablehlo.reduce(%a init: %b) applies stablehlo.add across dimensions = [1]\
 : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>"""
    graph = program_of(function(body, {"a": tensor((4, 6)), "b": tensor(())}, {"1": tensor((4,))})).graph
    assert [graph.cls(op).reduction for op in (1, 2)] == ["add", None]


def test_free_values_depend_on_constants_and_scalars_alone():
    body = """%c = stablehlo.constant dense<1.0> : tensor<4x6xf32>
      %i = stablehlo.iota dim = 0 : tensor<4x6xf32>
      %s = stablehlo.add %n, %n : tensor<f32>
      %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
      %f = stablehlo.multiply %b, %i : tensor<4x6xf32>
      %g = stablehlo.multiply %a, %f : tensor<4x6xf32>
      %d = stablehlo.dot_general %c, %c, contracting_dims = [1] x [1]\
 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>"""
    graph = program_of(function(body, {"a": tensor((4, 6)), "n": tensor(())}, {"g": tensor((4, 6))})).graph
    free = {graph.cls(op).name.removeprefix("stablehlo."): graph.cls(op).free for op in (0, 1, 2, 3, 6)}
    assert free == {"constant": True, "iota": True, "add": True, "broadcast_in_dim": True, "dot_general": False}
    assert [graph.cls(op).free for op in (4, 5)] == [True, False]


def test_a_region_reads_what_it_captures_once_and_last():
    text = """func.func @main(%p: tensor<i32>, %a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "stablehlo.case"(%p) ({
        %1 = stablehlo.add %b, %a : tensor<4xf32>
        stablehlo.return %1 : tensor<4xf32>
      }, {
        %2 = stablehlo.multiply %b, %b : tensor<4xf32>
        stablehlo.return %2 : tensor<4xf32>
      }) : (tensor<i32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    graph = program_of(text).graph
    assert graph.num_ops == 1
    assert list(graph.operands(0)) == [0, 1, 2]
    assert [str(kind) for kind in graph.cls(0).operands] == ["tensor<i32>", "tensor<4xf32>", "tensor<4xf32>"]


# Loops

LOOP = """func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %most = stablehlo.constant dense<5> : tensor<i32>
  %end:3 = stablehlo.while(%i = %zero, %v = %x, %k = %w) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.multiply %v, %k : tensor<4xf32>
    stablehlo.return %j, %u, %k : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %r = stablehlo.negate %end#1 : tensor<4xf32>
  return %r : tensor<4xf32>
}"""


def test_a_body_follows_its_loop_and_reads_what_the_loop_carries():
    """Values: %x 0, %w 1, constants 2 to 4, carried 5 to 7, %j 8, %u 9, %r 10."""
    graph = program_of(LOOP).graph
    names = ["constant"] * 3 + ["while", "add", "multiply", "return", "negate"]
    assert [graph.cls(op).name for op in range(graph.num_ops)] == [f"stablehlo.{name}" for name in names]
    assert [list(graph.operands(op)) for op in range(3, 8)] == [[2, 0, 1], [5, 3], [6, 7], [8, 9, 7], [6]]
    assert [list(graph.results(op)) for op in range(3, 8)] == [[5, 6, 7], [8], [9], [], [10]]


def test_a_loop_says_how_often_it_runs_and_what_it_keeps():
    graph = program_of(LOOP).graph
    (loop,) = graph.loops
    assert (loop.op, loop.end, loop.trips, loop.kept) == (3, 6, 5, (False, False, True))
    assert list(graph.times()) == [1, 1, 1, 1, 5, 5, 5, 1]
    unknown = program_of(
        LOOP.replace("%i, %most :", "%i, %n :").replace("%w: tensor<4xf32>)", "%w: tensor<4xf32>, %n: tensor<i32>)")
    ).graph
    assert unknown.loops[0].trips is None
    assert list(unknown.times()) == [1] * unknown.num_ops


def nested(depth, start):
    """Loops of five trips in each other, around one product."""
    if not depth:
        return f"%r = stablehlo.multiply {start}, {start} : tensor<4xf32>"
    inner = nested(depth - 1, f"%v{depth}")
    result = "%r" if depth == 1 else f"%end{depth - 1}#1"
    return f"""%end{depth}:2 = stablehlo.while(%i{depth} = %zero, %v{depth} = {start}) : tensor<i32>, tensor<4xf32>
      cond {{
        %more = stablehlo.compare LT, %i{depth}, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        {inner}
        %j = stablehlo.add %i{depth}, %one : tensor<i32>
        stablehlo.return %j, {result} : tensor<i32>, tensor<4xf32>
      }}"""


def test_the_trips_of_nested_loops_multiply():
    constants = "".join(
        f"%{name} = stablehlo.constant dense<{n}> : tensor<i32>\n" for name, n in (("zero", 0), ("one", 1), ("most", 5))
    )
    for depth in (1, 2, 3):
        graph = program_of(
            function(constants + nested(depth, "%x"), {"x": "tensor<4xf32>"}, {f"end{depth}#1": "tensor<4xf32>"})
        ).graph
        times = {graph.cls(op).name: count for op, count in enumerate(graph.times().tolist())}
        assert times["stablehlo.multiply"] == 5**depth
        assert [loop.op for loop in graph.loops] == list(range(3, 3 + depth))


@pytest.mark.parametrize(("kind", "trips", "depth"), [("ui64", 2**64 - 1, 1), ("i64", 2**40, 2)])
def test_a_loop_that_never_ends_is_counted_as_far_as_floats_count(kind, trips, depth):
    constants = "".join(
        f"%{name} = stablehlo.constant dense<{n}> : tensor<i32>\n"
        for name, n in (("zero", 0), ("one", 1), ("most", trips))
    )
    text = function(constants + nested(depth, "%x"), {"x": "tensor<4xf32>"}, {f"end{depth}#1": "tensor<4xf32>"})
    assert max(program_of(text.replace("i32", kind)).graph.times().tolist()) == 2**53


def test_what_a_condition_reads_is_whole():
    text = LOOP.replace(
        "%more = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        """%p = stablehlo.compare LT, %v, %k : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %q = stablehlo.slice %p [0:1] : (tensor<4xi1>) -> tensor<1xi1>
    %more = stablehlo.reshape %q : (tensor<1xi1>) -> tensor<i1>""",
    )
    assert program_of(text).graph.fixed == {6: {REPLICATED}, 7: {REPLICATED}}


# Existing shardings


def fixed_by(sharding, kind="tensor<4x6xf32>"):
    """The specs that a sharding of an argument leaves open on two devices."""
    text = f"{MESH}func.func @main(%a: {kind} {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}) {{ return }}"
    return program_of(text).graph.fixed[0]


@pytest.mark.parametrize(
    ("sharding", "open_specs"),
    [
        ("[{}, {}]", {REPLICATED}),
        ('[{"x"}, {}]', {split(0)}),
        ('[{}, {"x"}]', {split(1)}),
        ('[{"x", ?}, {?}]', {split(0)}),
        ("[{?}, {}]", {REPLICATED, split(0)}),
        ("[{?}, {?}]", {REPLICATED, split(0), split(1)}),
        ('[{?}, {?}], replicated={"x"}', {REPLICATED}),
        ('[{}, {}], unreduced={"x"}', {PARTIAL}),
    ],
)
def test_a_sharding_leaves_open_what_its_dims_do(sharding, open_specs):
    assert fixed_by(sharding) == open_specs


def test_an_open_dim_that_the_axis_does_not_divide_cannot_be_split():
    assert fixed_by("[{?}, {?}]", "tensor<3x6xf32>") == {REPLICATED, split(1)}


def test_shardings_of_results_ops_and_constraints_are_kept_apart():
    text = f"""{MESH}func.func @main(%a: tensor<4x6xf32>)
        -> (tensor<4x6xf32>, tensor<4x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
      %0 = stablehlo.negate %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}, {{}}]>]>}} : tensor<4x6xf32>
      %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"x"}}]> : tensor<4x6xf32>
      return %0, %1 : tensor<4x6xf32>, tensor<4x6xf32>
    }}"""
    graph = program_of(text).graph
    assert graph.fixed == {1: {split(0)}, 2: {split(1)}}
    assert graph.return_fixed == (None, {split(1)})


def test_a_constraint_is_an_element_wise_op():
    text = f"""{MESH}func.func @main(%a: tensor<4x6xf32>) -> tensor<4x6xf32> {{
      %0 = sdy.sharding_constraint %a <@mesh, [{{?}}, {{?}}]> : tensor<4x6xf32>
      return %0 : tensor<4x6xf32>
    }}"""
    rule = class_of(text, "sdy.sharding_constraint").rule
    assert rule.sizes == (4, 6)
    assert rule.operands == rule.results == (((0,), (1,)),)


@pytest.mark.parametrize(
    ("sharding", "kind", "why"),
    [
        ('[{"x"}, {}]', "tensor<3x6xf32>", 'dim 0 has size 3, which "x" (2) does not divide'),
        ('[{}, {"y"}]', "tensor<4x6xf32>", 'dim 1 is split over "y"; the plan is for whole axes of x=2'),
        ('[{"x", "y"}, {}]', "tensor<4x6xf32>", 'dim 0 is split over "x", "y"; the plan is for whole axes of x=2'),
    ],
)
def test_a_sharding_that_cannot_be_honoured_is_an_error_at_its_argument(sharding, kind, why):
    mesh = 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n'
    text = (
        f'{mesh}func.func @main(%a: {kind} {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}} loc("w"("f.py":3:7))) '
        f"{{ return }}"
    )
    with pytest.raises(RhinoError) as caught:
        program_of(text)
    assert caught.value.id == "RHI-SHARD-001"
    assert why in caught.value.what
    assert 'argument 0 "w"' in caught.value.what
    assert str(caught.value.place) == "f.py:3:7"


# What an op computes


def test_flops_of_products_count_multiply_and_add():
    dot = """%0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<2x4x6xf32>, tensor<2x6x8xf32>) -> tensor<2x4x8xf32>"""
    text = function(dot, {"a": tensor((2, 4, 6)), "b": tensor((2, 6, 8))}, {})
    assert class_of(text, "stablehlo.dot_general").flops == 2 * (2 * 4 * 6 * 8)


def test_flops_of_a_convolution_count_its_window_and_features():
    """Each of 2 x 6 x 6 results sums 3 x 4 products; with two groups each sums over half of the features."""
    text = """%0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{}}
      {{batch_group_count = 1 : i64, feature_group_count = {0} : i64}}\
 : (tensor<2x8x4xf32>, {1}) -> tensor<2x6x6xf32>"""
    for groups, kernel in ((1, tensor((3, 4, 6))), (2, tensor((3, 2, 6)))):
        body = function(text.format(groups, kernel), {"a": tensor((2, 8, 4)), "b": kernel}, {})
        assert class_of(body, "stablehlo.convolution").flops == 2 * (2 * 6 * 6) * 3 * 4 // groups


def test_flops_of_the_rest_count_what_is_written_or_read():
    body = """%z = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.exponential %a : tensor<4x6xf32>
      %1 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]\
 : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>"""
    text = function(body, {"a": tensor((4, 6))}, {"0": tensor((4, 6)), "1": tensor((4,))})
    assert [class_of(text, f"stablehlo.{name}").flops for name in ("exponential", "reduce")] == [24, 24]


@pytest.mark.parametrize(
    ("kind", "num_bytes"),
    [
        ("f32", 4),
        ("bf16", 2),
        ("f8E4M3FN", 1),
        ("i1", 1),
        ("i4", 1),
        ("ui16", 2),
        ("i64", 8),
        ("complex<f32>", 8),
        ("complex<f64>", 16),
    ],
)
def test_elements_take_whole_bytes(kind, num_bytes):
    module = parse(f"func.func @main(%a: tensor<{kind}>) {{ return }}")
    assert element_bytes(str(module.body.operations[0].type.inputs[0].element_type)) == num_bytes


def test_a_token_takes_no_memory():
    text = (
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { %t = stablehlo.after_all : !stablehlo.token\n"
        " return %a : tensor<2xf32> }"
    )
    graph = program_of(text).graph
    assert (graph.type_of(1).num_bytes, graph.type_of(1).shape) == (0, ())


def test_a_token_is_no_argument():
    with pytest.raises(RhinoError) as caught:
        program_of("func.func @main(%t: !stablehlo.token) { return }")
    assert caught.value.id == "RHI-READ-003"


# What takes memory


def in_memory(body, returned="z"):
    """Which of the named values of `body` get memory of their own, as a string of their names."""
    kinds = {"a": tensor((4, 4)), "b": tensor((4, 4))}
    text = function(body, kinds, {returned: tensor((4, 4))})
    names = [line.split("=")[0].strip().lstrip("%") for line in body.splitlines()]
    found = materialized(program_of(text).graph)
    assert found[:2].all()
    return "".join(name for name, kept in zip(names, found[2:], strict=True) if kept)


def elementwise(result, name, *operands):
    return f"%{result} = stablehlo.{name} {', '.join(f'%{o}' for o in operands)} : tensor<4x4xf32>\n"


def dot(result, left, right):
    kinds = "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>"
    return f"%{result} = stablehlo.dot_general %{left}, %{right}, contracting_dims = [1] x [0] : {kinds}\n"


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([elementwise("c", "add", "a", "b"), elementwise("z", "negate", "c")], "z"),
        ([elementwise("c", "add", "a", "b"), dot("z", "c", "b")], "cz"),
        ([dot("c", "a", "b"), elementwise("z", "negate", "c")], "cz"),
        # read twice: computed twice if that is cheap
        ([elementwise("c", "add", "a", "b"), elementwise("d", "negate", "c"), elementwise("z", "add", "c", "d")], "z"),
        ([elementwise("c", "tanh", "a"), elementwise("d", "negate", "c"), elementwise("z", "add", "c", "d")], "cz"),
        # slow and read once: inside its reader
        ([elementwise("c", "tanh", "a"), elementwise("z", "add", "c", "b")], "z"),
        # one of two readers takes it from memory
        ([elementwise("c", "add", "a", "b"), dot("d", "c", "b"), elementwise("z", "add", "c", "d")], "cdz"),
    ],
    ids=[
        "fused",
        "into a product",
        "out of a product",
        "cheap twice",
        "slow twice",
        "slow once",
        "both kinds of readers",
    ],
)
def test_what_is_fused_takes_no_memory(lines, kept):
    assert in_memory("".join(lines).rstrip()) == kept


def test_a_view_lies_where_its_operand_does():
    body = """%c = stablehlo.tanh %a : tensor<4x4xf32>
%v = stablehlo.reshape %c : (tensor<4x4xf32>) -> tensor<4x4xf32>
%d = stablehlo.dot_general %v, %b, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
%z = stablehlo.negate %d : tensor<4x4xf32>"""
    assert in_memory(body) == "cdz"


def test_what_a_reduction_and_another_read_is_kept():
    body = """%o = stablehlo.constant dense<0.0> : tensor<f32>
%c = stablehlo.add %a, %b : tensor<4x4xf32>
%r = stablehlo.reduce(%c init: %o) applies stablehlo.add across dimensions = [1]\
 : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
%s = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
%z = stablehlo.add %c, %s : tensor<4x4xf32>"""
    assert in_memory(body) == "crz"


def test_a_reduction_absorbs_its_operand_and_is_kept():
    body = """%o = stablehlo.constant dense<0.0> : tensor<f32>
%c = stablehlo.add %a, %b : tensor<4x4xf32>
%r = stablehlo.reduce(%c init: %o) applies stablehlo.add across dimensions = [1]\
 : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
%z = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>"""
    assert in_memory(body) == "rz"


def test_arrays_agree_with_each_other():
    """Values are numbered before they are read, and every value knows the op that defines it."""
    graph = program_of(SMALL).graph
    for op in range(graph.num_ops):
        assert all(value < graph.results(op).start for value in graph.operands(op))
        assert all(graph.value_op[value] == op for value in graph.results(op))
    assert graph.use_start[-1] == len(graph.uses)
    assert graph.result_start[-1] == graph.num_values == len(graph.value_op)


PADS = function(
    "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
    "%0 = stablehlo.pad %a, %z, low = [0, 0], high = [0, 0], interior = [0, 0] "
    ": (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>\n"
    "%1 = stablehlo.pad %0, %z, low = [1, 0], high = [-1, 0], interior = [0, 0] "
    ": (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>",
    {"a": tensor((8, 16))},
    {"1": tensor((8, 16))},
)


def test_pads_of_one_shape_that_move_and_do_not_are_not_alike():
    """Their types and Shardy's rules for them are the same; the one that shifts cannot be split along the dim."""
    whole, shifting = [cls.rule for cls in program_of(PADS).graph.classes if cls.name == "stablehlo.pad"]
    assert not whole.fixed
    assert shifting.fixed == frozenset(shifting.operands[0][0])


SCATTERS = function(
    "".join(
        f'%{n} = "stablehlo.scatter"(%{a}, %i, %u) '
        f"({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): stablehlo.return %y : tensor<f32> }}) "
        "{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], "
        f"scatter_dims_to_operand_dims = [{n}]>}} : (tensor<8x8xf32>, tensor<1xi32>, tensor<f32>) -> tensor<8x8xf32>\n"
        for n, a in ((0, "a"), (1, "0"))
    ),
    {"a": tensor((8, 8)), "i": tensor((1,), "i32"), "u": tensor(())},
    {"1": tensor((8, 8))},
)


def test_scatters_that_index_other_dims_are_not_alike():
    rows, columns = [cls.rule for cls in program_of(SCATTERS).graph.classes if cls.name == "stablehlo.scatter"]
    assert [
        rule.operands[0].index(next(d for d in rule.operands[0] if set(d) & rule.fixed)) for rule in (rows, columns)
    ] == [1, 0]


def test_products_of_other_precision_are_not_alike():
    kind = "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>"
    body = "".join(
        f"%{name} = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]{said} : {kind}\n"
        for name, said in (("x", ""), ("y", ", precision = [DEFAULT, DEFAULT]"), ("z", ", precision = [DEFAULT, HIGH]"))
    )
    graph = program_of(function(body, {"a": tensor((4, 4))}, {"z": tensor((4, 4))})).graph
    assert [graph.cls(op).precision for op in range(3)] == ["default", "default", "high"]
    assert graph.cls(0) == graph.cls(1)
