"""Views of dims that are cut into blocks.

A program rewritten with them computes the same, moves less, and shows its callers logical shapes.
"""

import dataclasses
import functools
import re
from itertools import product

import gpt
import jax
import jax.numpy as jnp
import llama
import numpy as np
import pytest
from clusters import waiting
from hypothesis import given, settings
from hypothesis import strategies as st
from long_cases import one_in
from planning import reference
from snippets import context, evaluate, function, parse, ruled, tensor
from strides import cases, planned, plans, viewed
from training import export_step
from zoo import GPT

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.blocks import from_view, to_view
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.reader import entry_function, read_module, walk
from rhino.ir.program.stored_shapes import VIEW
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.signature import read_signature
from rhino.strategies.layout.blocked_views import Views

PASS = "rhino-materialize-strides"
FUSED = dataclasses.replace(GPT, layers=2, fused_qkv=True)
GATED = llama.LlamaConfig(
    **{"layers": 2, "hidden": 64, "heads": 16, "kv_heads": 8, "ffn": 32, "vocab": 64, "seq": 8, "batch": 8},
    **{"fused_qkv": True, "fused_gate_up": True},
)


def run_pass(text, options=""):
    """The module after the pass, and the views that it found."""
    module, remarks = parse(text), Remarks()
    build_pass_manager(f"{PASS}{options}", module.context, remarks).run(module.operation)
    assert module.operation.verify()
    return module, remarks.result(Views)


def sizes(region):
    """The blocks of the dim that a region starts with."""
    return region.blocks[region.seed].sizes


def kinds(module):
    """The types of the entry's arguments and results."""
    entry = entry_function(module)
    return [str(kind) for kind in entry.type.inputs], [str(kind) for kind in entry.type.results]


def names(module):
    return [op.name.removeprefix("stablehlo.") for op in walk(module.operation)][2:]


def check_same(text, module, seed=0, atol=1e-5):
    """The interpreter gives the same for the original and the rewritten program."""
    random = np.random.default_rng(seed)
    with context():
        before = parse(text).body.operations[0].type
        inputs = [random.standard_normal(ir.RankedTensorType(kind).shape).astype(np.float32) for kind in before.inputs]
    want, signature = evaluate(text, inputs), read_signature(module)
    stored = [to_view(x, one.stored, one.interleaved) for x, one in zip(inputs, signature.arguments, strict=True)]
    for a, b, one in zip(evaluate(str(module), stored), want, signature.results, strict=True):
        np.testing.assert_allclose(from_view(a, b.shape, one.interleaved), b, rtol=1e-3, atol=atol)


FUSED_PROJECTION = function(
    """
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x12xf32>) -> tensor<4x12xf32>
    %a = stablehlo.slice %y [0:4, 0:4] : (tensor<4x12xf32>) -> tensor<4x4xf32>
    %b = stablehlo.slice %y [0:4, 4:8] : (tensor<4x12xf32>) -> tensor<4x4xf32>
    %c = stablehlo.slice %y [0:4, 8:12] : (tensor<4x12xf32>) -> tensor<4x4xf32>
    %ab = stablehlo.multiply %a, %b : tensor<4x4xf32>
    %abc = stablehlo.add %ab, %c : tensor<4x4xf32>
    """,
    {"x": tensor((4, 6)), "w": tensor((6, 12))},
    {"abc": tensor((4, 4))},
)


def test_a_fused_projection_is_viewed():
    module, views = run_pass(FUSED_PROJECTION)
    assert kinds(module) == (["tensor<4x6xf32>", "tensor<6x3x4xf32>"], ["tensor<4x4xf32>"])
    (region,) = views.regions
    assert (sizes(region), region.cut_bytes, region.border_bytes) == ((4, 4, 4), 4 * 12 * 4, 0)
    logical = boundary_attributes(entry_function(module), "arg")[1][VIEW]
    assert list(ir.DenseI64ArrayAttr(logical)) == [6, 12]
    check_same(FUSED_PROJECTION, module)


@pytest.mark.parametrize(("parts", "is_viewed"), [(1, True), (2, True), (4, True), (3, False), (8, False)])
def test_a_block_must_divide_into_the_parts_that_it_is_for(parts: int, is_viewed: bool):
    module, views = run_pass(FUSED_PROJECTION, f"{{parts={parts}}}")
    assert (VIEW in str(module), bool(views.regions)) == (is_viewed, is_viewed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%y [0:4, 8:12]", "%y [0:4, 7:11]"),  # not at a border of blocks
        ("%y [0:4, 8:12]", "%y [0:4, 4:8]"),  # a block is left out
    ],
)
def test_other_cuts_are_left_as_they_are(old: str, new: str):
    text = FUSED_PROJECTION.replace(old, new)
    module, views = run_pass(text)
    assert views.regions == ()
    assert str(module) == str(parse(text))


GROUPED_PROJECTION = function(
    """
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x12xf32>) -> tensor<4x12xf32>
    %a = stablehlo.slice %y [0:4, 0:8] : (tensor<4x12xf32>) -> tensor<4x8xf32>
    %b = stablehlo.slice %y [0:4, 8:12] : (tensor<4x12xf32>) -> tensor<4x4xf32>
    """,
    {"x": tensor((4, 6)), "w": tensor((6, 12))},
    {"a": tensor((4, 8)), "b": tensor((4, 4))},
)


def test_blocks_of_several_sizes_interleave():
    """Of 8 queries and 4 keys each of two devices has 4 queries and then 2 keys; the weight is permuted to that."""
    module, views = run_pass(GROUPED_PROJECTION, "{parts=2}")
    assert [sizes(region) for region in views.regions] == [(8, 4)]
    assert kinds(module) == (["tensor<4x6xf32>", "tensor<6x2x6xf32>"], ["tensor<4x8xf32>", "tensor<4x4xf32>"])
    assert names(module).count("concatenate") == 0
    weight = read_signature(module).arguments[1]
    assert to_view(np.arange(12)[None], (1, 2, 6), weight.interleaved).tolist() == [
        [[0, 1, 2, 3, 8, 9], [4, 5, 6, 7, 10, 11]]
    ]
    check_same(GROUPED_PROJECTION, module)
    in_order, views = run_pass(GROUPED_PROJECTION)  # as multiples of 4, where nobody says how many devices there are
    assert [sizes(region) for region in views.regions] == [(4, 4, 4)]
    check_same(GROUPED_PROJECTION, in_order)


def test_a_cut_of_integers_is_left_as_it_is():
    text = FUSED_PROJECTION.replace("f32", "i32")
    assert str(run_pass(text)[0]) == str(parse(text))


def test_what_a_constant_of_many_values_gives_is_reshaped():
    """It is computed on every device, whatever its shape; the rest of the region needs no reshape."""
    noise = np.arange(48, dtype=np.float32).reshape(4, 12).tolist()
    text = FUSED_PROJECTION.replace(
        "%a = ",
        f"%n = stablehlo.constant dense<{noise}> : tensor<4x12xf32>\n"
        f"%z = stablehlo.add %y, %n : tensor<4x12xf32>\n%a = ",
    )
    text = text.replace("slice %y", "slice %z")
    module, views = run_pass(text)
    assert views.regions[0].border_bytes == 0
    assert names(module).count("reshape") == 4
    check_same(text, module, atol=1e-4)


def test_a_view_ends_in_a_reshape_where_an_op_cannot_take_it():
    """The weight is reversed as well: a small border beside the cuts of many rows."""
    body = """
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<64x6xf32>, tensor<6x12xf32>) -> tensor<64x12xf32>
    %a = stablehlo.slice %y [0:64, 0:6] : (tensor<64x12xf32>) -> tensor<64x6xf32>
    %b = stablehlo.slice %y [0:64, 6:12] : (tensor<64x12xf32>) -> tensor<64x6xf32>
    %ab = stablehlo.multiply %a, %b : tensor<64x6xf32>
    %r = stablehlo.reverse %w, dims = [1] : tensor<6x12xf32>
    %s = stablehlo.add %r, %w : tensor<6x12xf32>
    """
    text = function(body, {"x": tensor((64, 6)), "w": tensor((6, 12))}, {"ab": tensor((64, 6)), "s": tensor((6, 12))})
    module, views = run_pass(text)
    assert views.regions[0].border_bytes == 2 * 6 * 12 * 4  # read and given by the reverse
    assert kinds(module) == (["tensor<64x6xf32>", "tensor<6x2x6xf32>"], ["tensor<64x6xf32>", "tensor<6x2x6xf32>"])
    check_same(text, module)
    again, _ = run_pass(str(module))
    assert str(again) == str(module)
    few_rows = text.replace("64", "2")
    assert str(run_pass(few_rows)[0]) == str(parse(few_rows))


def test_a_projection_that_is_reshaped_before_it_is_cut():
    """[4, 12] as [4, 3, 2, 2]: three matrices of two heads of two."""
    cuts = "\n".join(
        f"%{name} = stablehlo.slice %h [0:4, {k}:{k + 1}, 0:2, 0:2] : (tensor<4x3x2x2xf32>) -> tensor<4x1x2x2xf32>"
        for k, name in enumerate("abc")
    )
    body = f"""
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<4x6xf32>, tensor<6x12xf32>) -> tensor<4x12xf32>
    %h = stablehlo.reshape %y : (tensor<4x12xf32>) -> tensor<4x3x2x2xf32>
    {cuts}
    %ab = stablehlo.multiply %a, %b : tensor<4x1x2x2xf32>
    %abc = stablehlo.add %ab, %c : tensor<4x1x2x2xf32>
    """
    text = function(body, {"x": tensor((4, 6)), "w": tensor((6, 12))}, {"abc": tensor((4, 1, 2, 2))})
    module, _ = run_pass(text)
    assert kinds(module)[0][1] == "tensor<6x3x4xf32>"
    check_same(text, module)


def test_rotary_positions_are_left_as_they_are():
    """Halves of heads are cut and joined inside of attention, where heads are split."""
    angles = jnp.ones((8, 4))

    def scores(x, w):
        q = (x @ w).reshape(8, 2, 8)
        left, right = jnp.split(q, 2, axis=-1)
        turned = jnp.concatenate([left * angles[:, None], right * angles[:, None]], axis=-1)
        return jnp.einsum("qhd,khd->hqk", turned, turned)

    text = str(jax.jit(scores).lower(jnp.ones((8, 4)), jnp.ones((4, 16))).as_text())
    with context():
        module = ir.Module.parse(text)
        build_pass_manager("rhino-normalize", module.context).run(module.operation)
        text = str(module)
    assert str(run_pass(text)[0]) == text


def test_a_dim_that_the_user_splits_stays():
    """The split of 12 in two is another than that of each block of 4 in two."""
    mesh = 'sdy.mesh @mesh = <["x"=2]>\n'
    pinned = FUSED_PROJECTION.replace(
        "%w: tensor<6x12xf32>", '%w: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
    )
    assert VIEW not in str(run_pass(mesh + pinned)[0])
    other = FUSED_PROJECTION.replace(
        "%w: tensor<6x12xf32>", '%w: tensor<6x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}'
    )
    module, _ = run_pass(mesh + other)
    assert '<@mesh, [{"x"}, {?}, {?}]>' in str(module)


def test_what_the_condition_of_a_loop_reads_stays():
    def grow(x, w):
        def halved(y):
            left, right = jnp.split(y, 2, axis=1)
            return jnp.concatenate([left, right], axis=1) * 2 + y @ w

        return jax.lax.while_loop(lambda y: y.sum() < 1e3, halved, x)

    text = str(jax.jit(grow).lower(jnp.ones((4, 8)), jnp.ones((8, 8))).as_text())
    assert run_pass(text)[0].operation.verify()
    assert str(run_pass(text)[0]) == str(parse(text))


def test_rules_of_a_module_that_has_them_are_those_of_the_viewed_ops():
    module, remarks = parse(FUSED_PROJECTION), Remarks()
    rules = "func.func(sdy-populate-op-sharding-rules)"
    build_pass_manager(f"{rules},{PASS}", module.context, remarks).run(module.operation)
    assert str(module) == str(ruled(str(run_pass(FUSED_PROJECTION)[0])))


def test_a_planned_module_stays():
    """Strategies name factors of the ops as they are, shardings their dims."""
    module = parse(FUSED_PROJECTION)
    build_pass_manager("auto-shard{cluster=cpu8}", module.context).run(module.operation)
    text = str(module)
    assert str(run_pass(text)[0]) == text


# Random programs: a value of [ROWS, blocks * block] goes through ops that follow a view, cut it, or cannot follow it.

ROWS, INNER = 32, 4


def cut_up(s, y):
    return jnp.split(y, np.cumsum(s)[:-1], axis=1)


def cut(s, y, p):
    first, *others = cut_up(s, y)
    return jnp.concatenate([first * 2, *(other + first[:, : other.shape[1]] for other in others)], axis=1)


def pad_and_add(s, y, p):
    ends = np.cumsum(s)
    return sum(
        jnp.pad(part, ((0, 0), (int(end) - part.shape[1], int(ends[-1] - end))))
        for part, end in zip(cut_up(s, y), ends, strict=True)
    )


def heads(s, y, p):
    apart = y.reshape(ROWS, -1, min(s))
    return (apart * jnp.arange(1.0, apart.shape[1] + 1)[:, None]).reshape(y.shape)


def nested(s, y, p):
    first, *others = cut_up(s, y)
    rest = jnp.concatenate(others, axis=1)
    return jnp.concatenate([jnp.tanh(first), *(part * 2 for part in cut_up(s[1:], rest))], axis=1)


def loop(s, y, p):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ p["v"]), None), y, length=2)[0]


def branch(s, y, p):
    return jax.lax.cond(p["x"][0, 0] > 0, lambda: jnp.sin(y), lambda: y * p["b"])


OPS = {
    "cut": cut,
    "bias": lambda s, y, p: y + p["b"],
    "tanh": lambda s, y, p: jnp.tanh(y),
    "product": lambda s, y, p: y @ p["v"],
    "checkpoint": lambda s, y, p: jax.checkpoint(lambda h: jnp.tanh(h @ p["v"]))(y),
    "scores": lambda s, y, p: y @ jnp.tanh(y.T @ y),
    "batched": lambda s, y, p: y + jnp.einsum("rc,sc->crs", y, y).mean((1, 2)),
    "transpose twice": lambda s, y, p: (y.T * 0.5).T,
    "reverse": lambda s, y, p: y[:, ::-1] + y,
    "pad and add": pad_and_add,
    "join": lambda s, y, p: jnp.concatenate([y[:, : min(s)]] * (sum(s) // min(s)), axis=1),
    "nested": nested,
    "every other": lambda s, y, p: y + jnp.repeat(y[:, ::2], 2, axis=1),
    "mean": lambda s, y, p: y - y.mean(axis=1, keepdims=True),
    "argmax": lambda s, y, p: y + jnp.argmax(y, axis=1)[:, None],
    "sort": lambda s, y, p: y + jnp.sort(y, axis=0),
    "cumulate": lambda s, y, p: y - jnp.cumsum(y, axis=1),
    "narrow": lambda s, y, p: y.astype(jnp.float16).astype(jnp.float32),
    "clip": lambda s, y, p: jnp.clip(y, -1, 1),
    "heads": heads,
    "softmax": lambda s, y, p: jax.nn.softmax(y, axis=1),
    "mask": lambda s, y, p: jnp.where(jnp.tri(ROWS, y.shape[1], dtype=bool), y, 0.0),
    "rows": lambda s, y, p: jnp.concatenate(jnp.split(y, 2, axis=0)[::-1], axis=0),
    "loop": loop,
    "branch": branch,
    "turn weight": lambda s, y, p: y + p["x"] @ p["w"][:, ::-1],
}


@st.composite
def programs(draw):
    """A function of `x` [ROWS, INNER] and weights, by random ops of which one cuts; or its gradient.

    With it come the parts that its blocks are for.
    """
    block, parts = draw(st.sampled_from([(2, 1), (4, 1), (2, 2), (4, 2)]))
    blocks = tuple(block * times for times in draw(st.sampled_from([(1, 1), (1, 1, 1), (2, 1), (2, 1, 1)])))
    chain = [*draw(st.lists(st.sampled_from(sorted(OPS)), min_size=1, max_size=6))]
    chain.insert(draw(st.integers(0, len(chain))), "cut")

    def forward(p):
        y = p["x"] @ p["w"]
        for name in chain:
            y = OPS[name](blocks, y, p)
        return y

    def loss(p):
        return (forward(p) ** 2).mean()

    wide = sum(blocks)
    shapes = {"x": (ROWS, INNER), "w": (INNER, wide), "b": (wide,), "v": (wide, wide)}
    arguments = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return str(jax.jit(jax.grad(loss) if draw(st.booleans()) else forward).lower(arguments).as_text()), parts


@settings(max_examples=80, deadline=None, derandomize=True)
@given(programs())
def test_a_random_program_computes_the_same(program: tuple[str, int]):
    text, parts = program
    with context():
        module = ir.Module.parse(text)
        build_pass_manager("rhino-normalize", module.context).run(module.operation)
        text = str(module)
    module, _ = run_pass(text, f"{{parts={parts}}}")
    check_same(text, module, atol=1e-3)
    again, _ = run_pass(str(module), f"{{parts={parts}}}")
    assert str(again) == str(module)


MODELS = {
    "gpt": gpt.model(FUSED),
    "gpt-scan": gpt.model(dataclasses.replace(FUSED, scan=True)),
    "llama": llama.model(GATED),
    "llama-scan-remat": llama.model(dataclasses.replace(GATED, scan=True, remat=True)),
}


@functools.cache
def step(name: str) -> bytes:
    return export_step(MODELS[name]).encode()


def callers_view(value):
    """What the callers of a program know of an argument or result."""
    return value.index, value.name, value.shape, value.dtype


@pytest.mark.parametrize("model", MODELS)
def test_every_fused_weight_of_a_model_and_its_state_is_viewed(model: str):
    signature, original = (
        read_signature(viewed(step(model), model)),
        read_signature(read_module(step(model), model, make_context())),
    )
    for ours, theirs in ((signature.arguments, original.arguments), (signature.results, original.results)):
        assert [*map(callers_view, ours)] == [*map(callers_view, theirs)]
        changed = {value.name for value in ours if value.stored != value.shape}
        assert changed == {value.name for value in ours if re.search("qkv|gate_up", value.name)}
        interleaved = {value.name for value in ours if value.interleaved}
        assert interleaved == {name for name in changed if "llama" in model and "qkv" in name}
        assert len(changed) == (3 if "scan" in model else 6) * (2 if "llama" in model else 1)
    assert signature.feedback == original.feedback
    for index, result in signature.feedback.items():
        assert signature.results[result].stored == signature.arguments[index].stored


@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_changes_nothing(name: str):
    once = viewed(step(name), name)
    text = str(once)
    build_pass_manager(PASS, once.context).run(once.operation)
    assert str(once) == text


@pytest.mark.parametrize(("name", "form"), one_in(2, product(MODELS, ["annotated", "localized"])))
def test_steps_of_a_viewed_model_on_eight_devices_give_the_answer_of_one(name: str, form: str):
    plan = planned(step(name), name, "cpu8", views=True, pinned=True)
    executable = compile_module(plan.form(form), jax.devices())
    split = [
        s for v, s in zip(executable.signature.arguments, executable.in_shardings, strict=True) if v.stored != v.shape
    ]
    assert any(not sharding.is_fully_replicated for sharding in split)
    found = reference(step(name), name, 3).difference(executable)
    assert found.passes, found


@pytest.mark.parametrize("name", one_in(2, ["gpt", "llama", "gpt-scan", "llama-scan"]))
def test_a_viewed_model_sends_what_one_with_separate_weights_sends(name: str):
    separate, fused, seen = (
        plan.localized for plan in plans(cases(1, 256, 128, [name])[name], name, waiting("v100x8"), pinned=True)
    )
    assert dict(seen.counts) == dict(separate.counts)
    assert seen.total.num_bytes < fused.total.num_bytes


RETURNED = function(
    FUSED_PROJECTION.split("{", 1)[1].rsplit("return", 1)[0] + "%v = stablehlo.negate %w : tensor<6x12xf32>",
    {"x": tensor((4, 6)), "w": tensor((6, 12))},
    {"abc": tensor((4, 4)), "v": tensor((6, 12))},
)


def test_logical_values_go_in_and_come_out():
    module, _ = run_pass(RETURNED)
    executable = compile_module(module, jax.devices()[:1])
    x, w = np.ones((4, 6), np.float32), np.arange(72, dtype=np.float32).reshape(6, 12)
    arguments = [executable.put(0, x), executable.put(1, w)]
    assert [array.shape for array in arguments] == [(4, 6), (6, 3, 4)]
    product, negated = executable.fetch(executable.run(arguments))
    np.testing.assert_array_equal(negated, -w)
    a, b, c = np.split(x @ w, 3, axis=1)
    np.testing.assert_allclose(product, a * b + c)
    with pytest.raises(RhinoError, match="RHI-RUN-002"):
        executable.put(1, w.reshape(6, 3, 4))


@pytest.mark.parametrize("view", ["array<i64: 6, 13>", "array<i64: -6, -12>", '"6, 12"'])
def test_a_logical_shape_that_does_not_fit_is_refused(view: str):
    text = re.sub("array<i64: 6, 12>", view, str(run_pass(FUSED_PROJECTION)[0]))
    with pytest.raises(RhinoError, match="RHI-READ-002"):
        read_signature(parse(text))


@pytest.mark.parametrize("blocks", ["array<i64: 2, 8, 6>", "array<i64: 3, 8, 4>", "array<i64: 1, 8, 4>", '"2, 8, 4"'])
def test_blocks_that_do_not_fit_are_refused(blocks: str):
    text = str(run_pass(GROUPED_PROJECTION, "{parts=2}")[0]).replace("array<i64: 2, 8, 4>", blocks)
    with pytest.raises(RhinoError, match="RHI-READ-002"):
        read_signature(parse(text))
