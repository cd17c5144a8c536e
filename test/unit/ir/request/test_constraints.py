"""Constraints: names that patterns find, texts that parse, and joined shardings and roles of axes by enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from snippets import context, function, parse, program_of, tensor

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.spec import dim_axes
from rhino.ir.mlir.shardings import NamedMesh, allowed_specs
from rhino.ir.program.named_tensors import NamedTensor, both, dims_attribute, without_axis
from rhino.ir.request.constraints import AxisBan, Dim, parse_forbid, parse_pin, parse_role, read_constraints
from rhino.ir.request.patterns import dotted, matches, nearest
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.sharding.choice_problem import build
from rhino.strategies.structure.axis_roles import Roles

NAME = "state.params['layers'][0]['up']"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("up", True),
        ("layers.*.up", True),
        ("layers[0]['up']", True),
        ("params.*", True),
        ("state.params.layers.0.up", True),
        ("layers.?.up", True),
        ("*", True),
        ("p", False),
        ("layers", False),
        ("ayers.0.up", False),
        ("layers.??.up", False),
        ("layers[1]['up']", False),
        ("params.layers.0.u.", False),
    ],
)
def test_a_pattern_finds_a_path_or_its_end(pattern, found):
    assert dotted(NAME) == "state.params.layers.0.up"
    assert matches(dotted(pattern), dotted(NAME), ".") is found


def test_the_nearest_names_are_alike_in_some_part():
    names = [
        dotted(f"state.{kind}['layers'][{n}]['{leaf}']")
        for kind in ("params", "mu")
        for n in range(2)
        for leaf in ("up", "down", "q")
    ]
    assert nearest("layer.0.upp", names, ".") == (
        "state.mu.layers.0.up",
        "state.params.layers.0.up",
        "state.mu.layers.1.up",
    )
    assert nearest("zzzz", names, ".") == ()


def test_constraints_parse():
    pin = parse_pin("a['b=c']=[{\"x\", y, ?}, {}, {?}]")
    assert (pin.pattern, pin.dims) == ("a['b=c']", (Dim(("x", "y"), True), Dim((), False), Dim((), True)))
    assert parse_pin("scalar=[]").dims == ()
    assert parse_forbid("w=y") == AxisBan("w", "y", "forbid 'w=y'")
    assert parse_role("x = batch").role == "batch"


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_pin, text)
        for text in (
            "w",
            "=[{}]",
            "w=",
            "w=[{}",
            "w=[{?, x}]",
            "w=[{x}{y}]",
            "w=[{x}, {x}]",
            "w=[{x:(1)2}]",
            "w=[,]",
            "w=x",
        )
    ]
    + [(parse_forbid, "w=[{}"), (parse_forbid, "w"), (parse_role, "x=data"), (parse_role, "batch")],
)
def test_what_does_not_parse_is_quoted(parse, text):
    with pytest.raises(RhinoError) as raised:
        parse(text)
    assert raised.value.id == "RHI-CLI-001"
    assert f"'{text}'" in raised.value.what


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (parse_pin, "w", "pin 'w': expected PATTERN="),
        (parse_pin, "w=[{x}, {x}]", "pin 'w=[{x}, {x}]': axis \"x\" stands twice"),
        (parse_role, "x=data", "axis-role 'x=data': got x=data, expected one of x=batch, x=model"),
    ],
)
def test_what_does_not_parse_is_told_why(parse, text, why):
    with pytest.raises(RhinoError) as raised:
        parse(text)
    assert raised.value.what.startswith(why)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[pins]]\nname = 'w'", "the file: unknown key 'pins'; known are pin, forbid, axis-role, scope"),
        ("[[pin]]\nname = 'w'", "pin 1 of FILE: got sharding = None, expected text"),
        ("[[forbid]]\nname = 'w'\naxis = 'x'\nsharding = '[{}]'", "forbid 1 of FILE: expected either sharding or axis"),
        ("[axis-role]\nx = 'data'", "got x=data, expected one of x=batch, x=model"),
    ],
)
def test_a_file_that_says_nothing_is_told_why(text, why, tmp_path):
    file = tmp_path / "constraints.toml"
    file.write_text(text)
    with pytest.raises(RhinoError) as raised:
        read_constraints(str(file))
    assert (raised.value.id, raised.value.place) == ("RHI-PIN-001", Place(str(file)))
    assert raised.value.what.startswith(why.replace("FILE", str(file)))


def drawn_sharding(rng, names, rank):
    """A random sharding that splits outer axes first, or the ban of an axis."""
    if rng.random() < 0.2:
        return without_axis("mesh", str(rng.choice(names)), rank)
    place = rng.integers(-1, rank, len(names))
    dims = [
        Dim(tuple(n for n, at in zip(names, place, strict=True) if at == d), bool(rng.random() < 0.6))
        for d in range(rank)
    ]
    return dims_attribute("mesh", dims)


@pytest.mark.parametrize("mesh", ["2x2", "2x3x2"])
def test_shardings_together_leave_open_what_each_does(mesh):
    target, rng, kinds = NamedMesh("mesh", parse_mesh(mesh)), np.random.default_rng(0), [0, 0]
    with context():
        for _ in range(400):
            shape = (12, 24)[: rng.integers(1, 3)]
            tensor = NamedTensor(("w",), "w", shape, Place(), None)
            first, second = (drawn_sharding(rng, target.mesh.names, len(shape)) for _ in range(2))
            sets = [allowed_specs(one, target, shape, Place(), "w") for one in (first, second)]
            found = both(first, second, target, tensor)
            kinds[found is None] += 1
            assert (found is None) == (not sets[0] & sets[1])
            if found is not None:
                assert allowed_specs(found, target, shape, Place(), "w") == sets[0] & sets[1]
    assert min(kinds) > 40


STEP = f"""
func.func @main(%w: {tensor((8, 16))} {{tf.aliasing_output = 0 : i32}},\
 %v: {tensor((16, 4))} {{tf.aliasing_output = 1 : i32}},
                %x: {tensor((4, 2, 8))}, %pairs: {tensor((8, 16))}) -> ({tensor((8, 16))}, {tensor((16, 4))}) {{
  %rows = stablehlo.reshape %x : ({tensor((4, 2, 8))}) -> {tensor((8, 8))}
  %h = stablehlo.dot_general %rows, %w, contracting_dims = [1] x [0]\
 : ({tensor((8, 8))}, {tensor((8, 16))}) -> {tensor((8, 16))}
  %m = stablehlo.multiply %h, %pairs : {tensor((8, 16))}
  %y = stablehlo.dot_general %m, %v, contracting_dims = [1] x [0]\
 : ({tensor((8, 16))}, {tensor((16, 4))}) -> {tensor((8, 4))}
  %dv = stablehlo.dot_general %m, %y, contracting_dims = [0] x [0]\
 : ({tensor((8, 16))}, {tensor((8, 4))}) -> {tensor((16, 4))}
  %dw = stablehlo.dot_general %rows, %m, contracting_dims = [0] x [0]\
 : ({tensor((8, 8))}, {tensor((8, 16))}) -> {tensor((8, 16))}
  %w2 = stablehlo.subtract %w, %dw : {tensor((8, 16))}
  %v2 = stablehlo.subtract %v, %dv : {tensor((16, 4))}
  return %w2, %v2 : {tensor((8, 16))}, {tensor((16, 4))}
}}
"""


def with_roles(text, roles):
    """The module, whose axes have these roles."""
    inner = ", ".join(f'{axis} = "{role}"' for axis, role in roles.items())
    return f"module attributes {{rhino.axis_roles = {{{inner}}}}} {{{text}}}"


def test_batch_dims_are_what_inputs_have_and_parameters_lack():
    graph = program_of(with_roles(STEP, {"x": "batch"}), (2, 2)).graph
    roles = Roles(graph)
    assert graph.roles == ("batch", "")
    # x's last dim is w's, and the rows are x's
    assert [sorted(roles.batch_dims(value)) for value in range(4)] == [
        [],
        [],
        [0, 1],
        [0],
    ]
    by_name = {
        name: [sorted(roles.batch_dims(v)) for v in graph.results(op)]
        for op, name in enumerate(("rows", "h", "m", "y", "dv", "dw"))
    }
    assert by_name == {"rows": [[0]], "h": [[0]], "m": [[0]], "y": [[0]], "dv": [[]], "dw": [[]]}
    assert [len(roles.batch_factors(op)) for op in range(graph.num_ops)] == [2, 1, 1, 1, 1, 1, 0, 0]


def test_what_loops_carry_keeps_its_dims():
    kinds = f"{tensor((8, 4))}, tensor<i32>"
    text = f"""
func.func @main(%w: {tensor((4, 4))} {{tf.aliasing_output = 0 : i32}}, %x: {tensor((8, 4))})\
 -> ({tensor((4, 4))}, {tensor((8, 4))}) {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%a = %x, %i = %zero) : {kinds}
  cond {{
    %three = stablehlo.constant dense<3> : tensor<i32>
    %less = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]\
 : ({tensor((8, 4))}, {tensor((4, 4))}) -> {tensor((8, 4))}
    stablehlo.return %b, %n : {kinds}
  }}
  return %w, %r#0 : {tensor((4, 4))}, {tensor((8, 4))}
}}"""
    graph = program_of(text).graph
    roles = Roles(graph)
    (loop,) = graph.loops
    assert roles.batch_dims(graph.results(loop.op)[0]) == {0}
    assert roles.batch_dims(0) == frozenset()


def choice_of(text):
    """The choice problem of a module on two axes of two devices."""
    cluster, mesh = load_cluster("v100x8"), parse_mesh("2x2")
    return build(program_of(text, (2, 2)).graph, CostModel(cluster.device, mesh_axes(cluster, mesh.shape, mesh.names)))


def keeps(role, is_batch, has_batch):
    """Whether what is of the batch, or not, of something that has such, may be split along an axis with this role."""
    return {"batch": is_batch or not has_batch, "model": not is_batch, "": True}[role]


@pytest.mark.parametrize("given", [{"x": "batch", "y": "model"}, {"x": "model"}, {"y": "batch"}])
def test_roles_leave_exactly_the_states_that_they_allow(given):
    free, held = choice_of(STEP), choice_of(with_roles(STEP, given))
    roles, by_axis = Roles(held.graph), [given.get(axis, "") for axis in ("x", "y")]
    fewer = {"op": 0, "other": 0}
    for before, after in zip(free.nodes, held.nodes, strict=True):
        if before.kind == "op":
            batch = roles.batch_factors(before.number)
            split = {s: list(zip(by_axis, s.strategy, strict=True)) for s in before.states}
        else:
            value = held.graph.returns[before.number] if before.kind == "return" else before.number
            batch, rank = roles.batch_dims(value), len(held.graph.type_of(value).shape)
            split = {
                s: [(by_axis[a], dim) for dim, axes in enumerate(dim_axes(s.result_specs[0], 2, rank)) for a in axes]
                for s in before.states
            }
        kept = [
            s
            for s in before.states
            if all(part < 0 or keeps(role, part in batch, bool(batch)) for role, part in split[s])
        ]
        assert list(after.states) == kept
        fewer["op" if before.kind == "op" else "other"] += len(kept) < len(before.states)
    assert min(fewer.values()) >= 2


def test_a_forbidden_sharding_leaves_the_others():
    kind = tensor((4, 4))
    text = 'sdy.mesh @mesh = <["x"=2]>\n' + function(
        f"%y = stablehlo.tanh %x : {kind}", {"x": kind}, {"y": kind}
    ).replace(
        f"%x: {kind})",
        f'%x: {kind} {{rhino.forbidden = [#sdy.sharding<@mesh, [{{"x"}}, {{?}}]>, '
        f"#sdy.sharding<@mesh, [{{}}, {{}}]>]}})",
    )
    assert program_of(text).graph.fixed == {0: frozenset({3})}  # split along dim 1


def _normalized(fn, *args):
    """What JAX says of meshes without axes in a step, what is left of it, and the remarks."""
    lowered = jax.jit(fn).lower(*args).as_text()
    module, remarks = parse(lowered), Remarks("step.mlir")
    build_pass_manager("rhino-normalize", module.context, remarks).run(module.operation)
    return lowered, str(module), [item.text for item in remarks.items]


def test_what_jax_says_on_its_own_of_one_device_is_dropped_and_what_its_user_says_inside_is_kept():
    x, here = jnp.ones((8, 16)), jax.sharding.SingleDeviceSharding(jax.devices()[0])

    given, left, remarks = _normalized(lambda x: x + 1, jax.device_put(x, here))
    assert "<@empty_mesh, [{}, {}]>" in given
    assert "sdy.sharding" not in left
    assert len(remarks) == 1
    assert "argument 0" in remarks[0]
    assert "--pin='arg0=[{}, {}]'" in remarks[0]

    given, left, remarks = _normalized(lambda key: jax.random.split(key), jax.random.key(0))
    assert "<@empty_mesh, [{}]>" in given
    assert "<@empty_mesh, [{?}, {}]>" in given
    assert "sdy.sharding" not in left
    assert not remarks

    given, left, remarks = _normalized(lambda x: jax.lax.with_sharding_constraint(x, here) + 1, x)
    assert "<@empty_mesh, [{}, {}]>" in given
    assert "sdy.sharding_constraint %arg0 <mesh<[]>, [{}, {}]>" in left
    assert not remarks
