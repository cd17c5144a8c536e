"""Scopes: the names around an op, and the axes and dims that a scope gets.

Whale's examples are planned in the IR and run on eight devices.
"""

import contextlib
import re
from itertools import combinations, pairwise, permutations, product
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from snippets import function, lying, parse, tensor

import rhino
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.collective_stats import KINDS
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import entry_function, read_module, walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.loop_conditions import condition_reads
from rhino.ir.program.program import read_program
from rhino.ir.program.scope_paths import SCOPES as SCOPES_ATTRIBUTE
from rhino.ir.program.scope_paths import depth_in, scope_path, scopes_around
from rhino.ir.request.scope_sharding import ScopeSharding, parse_scope_sharding, scope_sharding_of_name
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.choice.scope_axes import meshes_for, possible_counts, take_axes
from rhino.strategies.microbatch.batch_dims import batch_roles
from rhino.strategies.structure.axis_roles import Roles

# What a scope is called


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ('"jit(step)/transpose(jvp(moe))/dot_general"', "step/moe"),
        ('"jit(f)/jvp(outer)/rhino.split[8]/vmap()/add"("moe"("m.py":1:2 to :9))', "f/outer/rhino.split[8]"),
        (
            'callsite("moe/dot"("f"("m.py":1:2)) at "jit(f)/body/call"(callsite("g"("m.py":1:2) at "h"("m.py":3:4))))',
            "f/body/call/moe",
        ),
        ('callsite(callsite("max" at "up/jit(relu)") at "jit(f)/jvp(mlp)/closed_call")', "f/mlp/closed_call/up/relu"),
        ('"m.mlir":3:4', ""),
        ("unknown", ""),
    ],
)
def test_the_path_of_an_op_is_the_names_around_it(location, path):
    module = parse(
        function(f"%y = stablehlo.abs %x : tensor<f32> loc({location})", {"x": tensor(())}, {"y": tensor(())})
    )
    op = next(op for op in walk(entry_function(module).operation) if op.name == "stablehlo.abs")
    assert "/".join(scope_path(op.location)) == path


@pytest.mark.parametrize(
    ("pattern", "depth"),
    [("moe", 3), ("layer_*", 2), ("layer_1/moe", 3), ("step", 1), ("mo", None), ("experts", None), ("*", 1)],
)
def test_a_pattern_finds_the_outermost_scope_that_it_may(pattern, depth):
    assert depth_in(pattern, ("step", "layer_1", "moe", "moe")) == depth


@pytest.mark.parametrize(
    ("text", "name"), [("split(8)", "rhino.split[8]"), ("replicate", "rhino.replicate"), ("split(1)", "rhino.split[1]")]
)
def test_the_sharding_of_a_scope_is_read_as_it_is_written(text, name):
    sharding = parse_scope_sharding(text)
    assert sharding is not None
    assert (str(sharding), sharding.name(), scope_sharding_of_name(name)) == (text, name, sharding)


@pytest.mark.parametrize("text", ["split(0)", "split()", "split(-1)", "splits", "replicate(2", "rhino.split(2)"])
def test_what_is_no_sharding_of_a_scope_is_none(text):
    assert parse_scope_sharding(text) is None


@pytest.mark.parametrize("count", [0, -2, 2.0, "8", True])
def test_a_scope_is_of_a_number_of_devices(count):
    assert jax.eval_shape(rhino.split(np.int64(2))(jax.numpy.sin), 1.0).shape == ()
    with pytest.raises(RhinoError, match=rf"RHI-JAX-002.*rhino\.split\({count!r}\)"):
        rhino.split(count)


# Which axes it gets


@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2), (1, 6, 2)])
def test_axes_are_found_wherever_there_are_some_for_every_scope(sizes):
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    subsets = [one for count in range(len(axes) + 1) for one in combinations(axes, count)]
    counts = possible_counts(sizes)
    assert counts == sorted({prod(sizes[axis] for axis in one) for one in subsets})
    shardings = [ScopeSharding(kind, num) for kind in ("replicate", "split") for num in (*counts, 5)]
    for chain in (*product(shardings, repeat=1), *product(shardings, repeat=2), *product(shardings[:3], repeat=3)):
        for bars in product([frozenset(), frozenset({axes[0]})], repeat=len(chain)):
            found = take_axes(sizes, chain, bars)
            fits = [
                chosen
                for chosen in product(subsets, repeat=len(chain))
                if len({axis for one in chosen for axis in one}) == sum(map(len, chosen))
                and all(
                    prod(sizes[a] for a in one) == sharding.num and not bar & {*one}
                    for one, sharding, bar in zip(chosen, chain, bars, strict=True)
                )
            ]
            assert (found is None) == (not fits)
            assert found is None or found in fits


def test_replicate_gets_outer_axes_and_split_inner_ones_and_what_has_no_number_the_rest():
    none = [frozenset()] * 3
    assert take_axes((2, 2, 2), [ScopeSharding("replicate", 2), ScopeSharding("split", 2)], none[:2]) == ((0,), (2,))
    assert take_axes((2, 2, 2), [ScopeSharding("split", 4)], none[:1]) == ((1, 2),)
    assert take_axes((2, 4), [ScopeSharding("replicate", None), ScopeSharding("split", 4)], none[:2]) == ((0,), (1,))
    assert take_axes((2, 4), [ScopeSharding("replicate", None)], none[:1]) == ((0, 1),)
    assert take_axes((2, 4), [ScopeSharding("replicate", None), ScopeSharding("split", None)], none[:2]) is None
    assert take_axes((1,), [ScopeSharding("split", None)], none[:1]) == ((),)


# Models


def normal(number, *shape):
    return jax.random.normal(jax.random.fold_in(jax.random.key(7), number), shape) / (shape[0] ** 0.5)


def descend(loss, params, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda a, g: a - 0.1 * g, params, grads), value


def weights(*widths):
    return {f"w{n}": normal(n, a, b) for n, (a, b) in enumerate(pairwise(widths), 1)}


BATCH = 24


def rows():
    return {"x": normal(20, BATCH, 16), "y": jnp.arange(BATCH) % 16}


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def replicated(params, batch):
    """Whale's example 1: two stages, each data parallel."""

    def loss(params, batch):
        with rhino.replicate():
            h = jax.nn.relu(batch["x"] @ params["w1"])
        h = rhino.stage_boundary(h)
        with rhino.replicate():
            return cross_entropy(h @ params["w2"], batch["y"])

    return descend(loss, params, batch)


def hybrid(params, batch):
    """Whale's hybrid of replicate and split: features are data parallel, the classifier is split."""

    def loss(params, batch):
        with rhino.replicate(8):
            h = jax.nn.relu(jax.nn.relu(batch["x"] @ params["w1"]) @ params["w2"])
        with rhino.split(8):
            return cross_entropy(h @ params["w3"], batch["y"])

    return descend(loss, params, batch)


def experts(params, batch):
    """Whale's example 5: data parallel, but for the experts, which are split."""

    @rhino.default_strategy(rhino.replicate())
    def loss(params, batch):
        x = batch["x"]
        q, k, v = (x @ params[name] for name in ("q", "k", "v"))
        x = x + jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v
        gates = jax.nn.softmax(x @ params["router"])
        slots = jax.nn.one_hot(gates.argmax(-1), 8) * gates.max(-1, keepdims=True)
        sent = jnp.einsum("bse,bsd->ebsd", slots, x)
        with rhino.split(8):
            h = jax.nn.relu(jnp.einsum("ebsd,edf->ebsf", sent, params["up"]))
            y = jnp.einsum("ebsf,efd->ebsd", h, params["down"])
        y = jnp.einsum("bse,ebsd->bsd", slots, y)
        return ((x + y - batch["y"]) ** 2).mean()

    return descend(loss, params, batch)


@jax.custom_vjp
def gated(x):
    return x * jnp.tanh(x)


gated.defvjp(lambda x: (gated(x), x), lambda x, g: (g * (jnp.tanh(x) + x / jnp.cosh(x) ** 2),))


class Head(linen.Module):
    @linen.compact
    def __call__(self, x):
        with rhino.split(4):
            return linen.Dense(16)(gated(x))


def transformed(params, batch):
    """Scopes in each other, in a loop, under checkpoint, custom gradients and vmap, and in a module of flax."""

    def loss(params, batch):
        def layer(h, w):
            with rhino.split(4):
                return h + jax.checkpoint(lambda h: gated(h @ w["up"]) @ w["down"])(h), None

        with rhino.replicate(2):
            h, _ = jax.lax.scan(layer, batch["x"], params["layers"])
            h = jax.vmap(lambda row: row @ params["mix"])(h)
        return cross_entropy(Head().apply({"params": params["head"]}, h), batch["y"])

    return descend(loss, params, batch)


def stacked(count=3):
    layers = {"up": normal(1, count, 16, 32), "down": normal(2, count, 32, 16)}
    return {
        "layers": layers,
        "mix": normal(3, 16, 16),
        "head": {"Dense_0": {"kernel": normal(4, 16, 16), "bias": jnp.zeros(16)}},
    }


SENTENCES = {"x": normal(21, BATCH, 4, 16), "y": normal(22, BATCH, 4, 16)}
EXPERTS = {
    **{name: normal(n, 16, 16) for n, name in enumerate("qkv")},
    **{"router": normal(4, 16, 8), "up": normal(5, 8, 16, 32), "down": normal(6, 8, 32, 16)},
}
MODELS = {
    "1": (replicated, weights(16, 32, 16), rows(), "8"),
    "3": (hybrid, weights(16, 32, 32, 64), rows(), "8"),
    "5": (experts, EXPERTS, SENTENCES, "8"),
    "transformed": (transformed, stacked(), rows(), "2x4"),
}


def text_of(fn, *args, donated=0):
    """The module of `fn` with an argument donated, places and all."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), args)
    return jax.jit(fn, donate_argnums=donated, keep_unused=True).trace(*shapes).lower().as_text(debug_info=True)


def passed(text, pipeline):
    """The module after a pipeline."""
    found = read_module(text.encode(), "step", CONTEXT)
    build_pass_manager(pipeline, CONTEXT, Remarks("step")).run(found.operation)
    return found


CONTEXT = make_context()


def arguments(module):
    """How each argument lies, by the last part of its name."""
    entry = entry_function(module)
    names = [re.findall(r"\w+", str(argument.location))[-1] for argument in entry.arguments]
    return {name: lying(attributes[SHARDING])[0] for name, attributes in zip(names, entry.arg_attrs, strict=True)}


def products_in(module, scope):
    """Shapes of the products in a scope, and how they lie."""
    ops = [
        op
        for op in walk(entry_function(module).operation)
        if op.name == "stablehlo.dot_general"
        and scope in [str(one.sharding) for one in scopes_around(scope_path(op.location))]
    ]
    return [(tuple(op.results[0].type.shape), *lying(op.attributes[SHARDING])) for op in ops]


@pytest.mark.parametrize("name", MODELS)
def test_models_with_scopes_give_the_answer_of_one_device(name):
    step, params, batch, mesh = MODELS[name]
    options = {"mesh": mesh} if name != "1" else {"mesh": "4", "micro_batches": 2}  # a pipeline of its two parts
    got = rhino.parallelize(step, cluster="cpu8", **options)(params, batch)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(params, batch)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


SCOPES = {
    "1": {"replicate": "x"},
    "3": {"replicate(8)": "x", "split(8)": "x"},
    "5": {"replicate": "x", "split(8)": "x"},
    "transformed": {"replicate(2)": "x", "split(4)": "y"},
}
"""The axis of each scope of a model."""

STORED = {
    "1": {"w1": ("", ""), "w2": ("", ""), "x": ("x", ""), "y": ("x",)},
    "3": {"w1": ("", ""), "w2": ("", ""), "w3": ("", "x"), "x": ("x", "")},
    "5": {
        **dict.fromkeys(("q", "k", "v", "router"), ("", "")),
        **dict.fromkeys(("up", "down"), ("x", "", "")),
        "x": ("x", "", ""),
    },
    "transformed": {"x": ("x", "")},
}
"""How arguments must lie, by the axes of each dim."""


@pytest.mark.parametrize("name", MODELS)
def test_products_of_a_scope_are_split_by_the_batch_or_by_anything_else(name):
    step, params, batch, mesh = MODELS[name]
    pipeline = f"auto-shard{{cluster=v100x8 mesh={mesh}}}"
    module = passed(text_of(step, params, batch), pipeline)
    found = arguments(module)
    assert {one: found[one] for one in STORED[name]} == STORED[name]
    is_cut_by_batch = all("replicate" in one or axis != "x" for one, axis in SCOPES[name].items())
    for scope, axis in SCOPES[name].items():
        check_products(module, scope, axis, BATCH, sums_are_shown=not is_cut_by_batch)
    local = passed(text_of(step, params, batch), f"{pipeline},rhino-localize")
    products = [op for op in walk(entry_function(local).operation) if op.name == "stablehlo.dot_general"]
    if is_cut_by_batch:
        # Where a product's sum is scattered or reduced at once, its result does not say that the batch is what it sums.
        assert not any(BATCH in value.type.shape for op in products for value in (*op.operands, *op.results))


def check_products(module, scope, axis, batch, *, sums_are_shown=True):
    """Checks that products of a scope are split along an axis: by the dim of size `batch`, or not by it.

    A product without a dim of that size sums over it, and is split there; the sum may be scattered. Unless
    `sums_are_shown` it may also be reduced at once, and whole.
    """
    products = products_in(module, scope)
    assert len(products) > 1
    for shape, dims, sums in products:
        of_batch = [axes for size, axes in zip(shape, dims, strict=True) if size == batch]
        others = [*(axes for size, axes in zip(shape, dims, strict=True) if size != batch), sums]
        where = of_batch if of_batch and "replicate" in scope else others
        fewest = 1 if of_batch or sums_are_shown else 0
        assert fewest <= sum(axis in axes for axes in where) <= 1
        assert fewest <= sum(axis in axes for axes in (*of_batch, *others)) <= 1


def test_scopes_hold_in_micro_batches():
    step, params, batch, _ = MODELS["1"]
    module = passed(text_of(step, params, batch), "rhino-micro-batch{num=2},auto-shard{cluster=v100x8 mesh=4}")
    check_products(module, "replicate", "x", BATCH // 2)


def test_whole_parameters_are_whole_along_the_axes_of_their_scope_alone():
    step, params, batch, mesh = MODELS["transformed"]
    found = arguments(passed(text_of(step, params, batch), f"auto-shard{{cluster=v100x8 mesh={mesh}}}"))
    assert not any("x" in axes for name in ("up", "down", "mix") for axes in found[name])


def test_ops_in_no_scope_are_as_one_that_an_option_names():
    """Of several defaults around an op the innermost counts, and none where a scope is around it."""

    def step(w, x):
        with rhino.default_strategy(rhino.split()), rhino.default_strategy(rhino.replicate()):
            h = jax.nn.relu(x @ w)
            with rhino.split(8):
                h = h @ w
        return h @ w

    args = normal(1, 16, 16), normal(2, BATCH, 16)
    module = passed(text_of(step, *args, donated=()), 'rhino-normalize,rhino-pin{scope="*=replicate(4)"}')
    ops = [op for op in walk(entry_function(module).operation) if op.name == "stablehlo.dot_general"]
    assert [str(op.attributes[SCOPES_ATTRIBUTE]) for op in ops] == ['["replicate"]', '["split(8)"]', '["replicate(4)"]']
    for given in (rhino.split, rhino.default_strategy(rhino.split()), "split"):
        with pytest.raises(RhinoError, match=r"RHI-JAX-002.*takes a scope, not"):
            rhino.default_strategy(given)
    with pytest.raises(RhinoError, match=r"not another rhino\.default_strategy"):
        rhino.default_strategy(rhino.default_strategy(rhino.split()))


@pytest.mark.parametrize(
    ("first", "second", "between", "after"),
    [
        (rhino.replicate(8), rhino.replicate(8), [], []),
        (rhino.replicate(8), rhino.split(8), ["all_gather"], []),
        (rhino.split(8), rhino.replicate(8), ["all_to_all"], []),
        (rhino.split(8), rhino.split(8), [], ["reduce_scatter"]),
    ],
)
def test_between_scopes_whose_layouts_agree_nothing_is_sent(first, second, between, after):
    """What is split by columns is contracted by rows, and a gather with the split after it is one exchange."""

    def forward(params, batch):
        with first:
            h = jax.nn.relu(batch["x"] @ params["w1"])
        with second:
            return jax.nn.relu(h @ params["w2"])

    text = text_of(forward, weights(64, 256, 64), {"x": normal(1, 64, 64)}, donated=())
    module = passed(text, "auto-shard{cluster=v100x8 mesh=8},localize")
    names = [op.name.removeprefix("stablehlo.") for op in walk(module.operation)]
    product = "dot_general"
    assert [name for name in names if name in (*KINDS, product)] == [product, *between, product, *after]


@pytest.mark.parametrize(
    ("chains", "count", "shapes"),
    [
        (["replicate(4)", "split(8)"], 8, [(4, 2)]),
        (["replicate(2)", "split(4)", "split(8)"], 8, [(2, 4), (4, 2)]),
        (["replicate(4)", "split(6)"], 12, [(2, 2, 3), (2, 3, 2), (3, 2, 2)]),
        (["replicate(2)", "split"], 8, [(2, 4)]),
        (["replicate", "split"], 1, [(1,)]),
        (["replicate(3)"], 8, []),
        (["replicate(2)", "split(3)", "split(5)"], 30, sorted(permutations((2, 3, 5)))),
    ],
)
def test_a_mesh_has_axes_for_all_scopes(chains, count, shapes):
    chains = [[parse_scope_sharding(text)] for text in chains]
    assert meshes_for(chains, count) == shapes
    assert all(take_axes(shape, chain, [frozenset()]) is not None for shape in shapes for chain in chains)


def test_scopes_change_nothing_for_jit():
    step, params, batch, _ = MODELS["5"]
    with_scopes = jax.jit(step).lower(params, batch).as_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rhino, "split", lambda *_: contextlib.nullcontext())
        patch.setattr(rhino, "default_strategy", lambda _: lambda fn: fn)
        assert (
            jax.jit(lambda *args: step(*args)).lower(params, batch).as_text().split("\n", 1)[1]
            == with_scopes.split("\n", 1)[1]
        )


def test_a_plan_is_of_the_scopes_that_it_was_made_for(tmp_path):
    def step(w, x, scope):
        with scope():
            return jax.nn.relu(x @ w)

    args = normal(1, 16, 32), normal(2, BATCH, 16)
    plan = rhino.parallelize(lambda w, x: step(w, x, contextlib.nullcontext), cluster="cpu8").plan(*args)
    again = rhino.parallelize(lambda w, x: step(w, x, rhino.split), cluster="cpu8", plan=plan)
    with pytest.raises(RhinoError, match=r"(?s)RHI-PLAN-004.*scopes"):
        again.plan(*args)


STEP = """
func.func @main(%w: tensor<64x64xf32> {tf.aliasing_output = 0 : i32} loc("w"), %x: tensor<12x64xf32> loc("x"))\
 -> tensor<64x64xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<12x64xf32>, tensor<64x64xf32>) -> tensor<12x64xf32>
    loc("jit(step)/mlp/up/dot_general")
  %t = stablehlo.tanh %h : tensor<12x64xf32> loc("jit(step)/mlp/act/tanh")
  %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0]\
 : (tensor<12x64xf32>, tensor<12x64xf32>) -> tensor<64x64xf32>
    loc("jit(step)/grad/dot_general")
  %n = stablehlo.subtract %w, %g : tensor<64x64xf32> loc("jit(step)/update/sub")
  return %n : tensor<64x64xf32>
}
"""


def test_scopes_in_each_other_multiply_and_the_mesh_that_they_want_is_told():
    def step(x, w):
        with rhino.replicate(2), rhino.split(2):
            return jax.checkpoint(rhino.split(2)(lambda x, w: jax.numpy.tanh(x @ w)))(x, w).sum()

    arguments = [jax.ShapeDtypeStruct((8, 8), "float32")] * 2
    with pytest.raises(RhinoError, match=r"(?s)RHI-PIN-002.*mesh x=8 .*with such axes, as 2x2x2"):
        rhino.parallelize(jax.grad(step, 1), cluster="v100x8").plan(*arguments)
    plan = rhino.parallelize(jax.grad(step, 1), cluster="v100x8", mesh="auto").plan(*arguments)
    assert [size for _, size in plan.axes] == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("mesh=8 scope=mlp=split(0)", r"RHI-CLI-001.*got split\(0\), expected replicate, split"),
        (
            "mesh=2x4 scope=mlp=split(3)",
            r"RHI-PIN-002.*split\(3\) around .*mlp/up.*3 does not divide .* mesh x=2,y=4.*say 1, 2, 4, 8",
        ),
        (
            "mesh=8 scope=mlp=replicate(16)",
            r"RHI-PIN-002.*replicate\(16\) around .*16 does not divide .* it has 8 devices",
        ),
        (
            'mesh=8 scope="mlp/up=replicate(4); mlp/act=replicate(2)"',
            r"RHI-PIN-002.*replicate\(4\) around .*with such axes, as 4x2",
        ),
        ("mesh=auto scope=mlp=split(3)", r"RHI-PIN-002.*split\(3\) around"),
        (
            'mesh=8 scope="mlp=replicate; up=split(8)"',
            r"SHARD-001.*replicate and split\(8\) .*mlp=replicate' requires it.*up=split\(8\)' requires it",
        ),
        (
            "mesh=8 scope=mlp=split axis-role=x=batch",
            r"SHARD-001.*no other role.*mlp=split' requires it.*axis-role x=batch requires it",
        ),
        (
            'mesh=8 scope=up=split pin="loc:up/dot_general=[{}, {}]"',
            r"SHARD-001.*pin 'loc:up.*requires it.*up=split' requires it.*keeps split what is given",
        ),
        (
            "mesh=2x4 scope=grad=replicate(8)",
            r'SHARD-001.*grad/dot.*along "x" \(2\) .* k of 12.*along "y" \(4\) .* k of 12.*\(8\)\' requires it',
        ),
        ("mesh=8 scope=act=split", r"PIN-002.*split around .*act/tanh' has no product in it that"),
        (
            "mesh=8 scope=update=replicate",
            r'PIN-002.*replicate around .*update/sub.*no.* dim of the batch.*dim 0 of "x"',
        ),
    ],
)
def test_what_a_scope_cannot_have_is_told_why(options, error):
    with pytest.raises(RhinoError, match=f"(?s){error}"):
        passed(STEP, f"auto-shard{{cluster=v100x8 {options}}}")


# Which dims are the batch


def linear(params, batch):
    return jax.nn.relu(batch["x"] @ params["w1"])


def residual(params, batch):
    return batch["x"] + linear(params, batch) @ params["w2"]


def normed(params, batch):
    def loss(params, batch):
        h = batch["x"] @ params["w1"]
        return ((((h - h.mean(0)) / (h.std(0) + 1)) @ params["w2"] - batch["y"]) ** 2).mean()

    return descend(loss, params, batch)


def checkpointed(params, batch):
    """All but the loss runs again, behind a barrier."""

    def loss(params, batch):
        h = jax.checkpoint(lambda params, x: jax.nn.relu(jax.nn.relu(x @ params["w1"]) @ params["w2"]))(
            params, batch["x"]
        )
        return ((h - batch["y"]) ** 2).mean()

    return descend(loss, params, batch)


def attending(params, batch):
    """Attention with the batch behind the sequence."""

    def loss(params, batch):
        x = batch["x"]
        a = jax.nn.softmax(jnp.einsum("sbd,tbd->bst", x @ params["w1"], x))
        return (jnp.einsum("bst,tbd->sbd", a, x @ params["w2"]) ** 2).mean()

    return descend(loss, params, batch)


def contrasted(params, batch):
    def loss(params, batch):
        scores = (batch["x"] @ params["w1"]) @ (batch["z"] @ params["w2"].T).T
        return -jnp.diagonal(jax.nn.log_softmax(scores)).mean()

    return descend(loss, params, batch)


def accumulated(params, batch):
    def loss(params, part):
        return (residual(params, {"x": part}) ** 2).mean()

    def one(sums, part):
        return jax.tree.map(jnp.add, sums, jax.grad(loss)(params, part)), None

    grads, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), batch["x"].reshape(2, -1, 16))
    return jax.tree.map(lambda a, g: a - 0.1 * g, params, grads)


@pytest.mark.parametrize(
    ("fn", "widths", "batch", "donated", "lies"),
    [
        (linear, (16, 16), {"x": (BATCH, 16)}, (), {"x": {0}}),
        (linear, (16, 16), {"x": (BATCH, 16)}, 1, {"x": {0}}),  # what looks like a state is none
        (residual, (16, 32, 16), {"x": (BATCH, 16)}, (), {"x": {0}}),
        (normed, (16, 32, 16), {"x": (BATCH, 16), "y": (BATCH, 16)}, 0, {"x": {0}, "y": {0}}),
        (checkpointed, (16, 32, 8), {"x": (BATCH, 16), "y": (BATCH, 8)}, (), {"x": {0}, "y": {0}}),
        (attending, (16, 16, 16), {"x": (8, 4, 16)}, 0, {"x": {1}}),
        (contrasted, (16, 32, 12), {"x": (BATCH, 16), "z": (BATCH, 12)}, 0, {"x": {0}, "z": {0}}),
    ],
)
def test_the_batch_is_found(fn, widths, batch, donated, lies):
    program, roles = batch_of(
        fn, weights(*widths), {name: normal(9, *shape) for name, shape in batch.items()}, donated=donated
    )
    found = {argument.name: roles.batch_dims(number) for number, argument in enumerate(program.graph.arguments)}
    assert {re.findall(r"\w+", name)[-1]: dims for name, dims in found.items() if dims} == lies


def test_a_batch_that_is_cut_in_micro_batches_is_what_they_are_of():
    program, roles = batch_of(accumulated, weights(16, 32, 16), rows())
    products = [op for op in range(program.graph.num_ops) if program.graph.cls(op).name == "stablehlo.dot_general"]
    assert len(products) == 5
    for op in products:
        rule = program.graph.cls(op).rule
        assert [rule.sizes[factor] for factor in roles.batch_factors(op)] == [BATCH // 2]


def batch_of(fn, params, batch, donated=0):
    """A function's program, and its dims with the batch found."""
    module = passed(
        text_of(fn, params, batch, donated=donated), "rhino-normalize,func.func(sdy-populate-op-sharding-rules)"
    )
    program = read_program(entry_function(module), parse_mesh("8"))
    return program, batch_roles(Roles(program.graph), condition_reads(program))
