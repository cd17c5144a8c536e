"""Attention in loops over blocks of keys gives what it gave: drawn forms of it (bench/correctness.py attentions).

Most run on StableHLO's interpreter, as one device does; some under a plan drawn at random, on several.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_attention import LIBRARY, MASKS, TOLERANCE, Form, blockwise, drawn, step_of, try_attention
from drawn_plans import MOODS, one_device
from hypothesis import given, settings
from hypothesis import strategies as st
from longer_floats import in_f64
from planning import sharded
from snippets import evaluate

import rhino
from rhino.ir.mlir.reader import entry_function
from rhino.passes.sharding.choose_shardings import ShardingChoice, predicted_stats

LONG = pytest.mark.long


def assert_gives_what_it_gave(text, module):
    """Both give the same in f64 for inputs drawn at random, which is returned."""
    random = np.random.default_rng(0)
    inputs = [random.uniform(-2, 2, kind.shape) for kind in entry_function(module.operation).type.inputs]
    before, after = (evaluate(in_f64(one), inputs) for one in (text, str(module)))
    for old, new in zip(before, after, strict=True):
        assert np.abs(new - old).max() <= TOLERANCE * np.abs(old).max()
    return after


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    st.builds(
        Form,
        st.sampled_from([4, 5]),
        st.sampled_from([3, 4, 8]),
        st.just(2),
        st.just(2),
        st.sampled_from([1, 2]),
        st.sampled_from(["f32", "bf16"]),
        st.sampled_from(["queries", "scores"]),
        st.sampled_from(MASKS),
        st.sampled_from(["jax", "log", "by hand", "sinks", "safe", LIBRARY]),
        st.just(False),
        st.booleans(),
        st.just(False),
    )
)
def test_drawn_attention_gives_what_it_gave(form):
    text = step_of(form)
    module, _ = blockwise(text, form.most_keys)
    assert_gives_what_it_gave(text.decode(), module)


@pytest.mark.parametrize("seed", [8, *(pytest.param(seed, marks=LONG) for seed in range(8))])
def test_it_does_so_under_a_plan_drawn_at_random(seed):
    mesh = ("2", "4", "8", "2x2")[seed % 4]
    passes, line = try_attention(drawn(seed), seed, MOODS[seed % len(MOODS)], mesh)
    assert passes, line


def long_attention(heads):
    """The gradient of attention over a long sequence, and its weights."""
    seq, width = 8192, 256

    def loss(w, x):
        q, k, v = ((x @ w[name]).reshape(seq, heads, -1) for name in "qkv")
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k)), v)
        return (x + mixed.reshape(x.shape) @ w["out"]).sum()

    weights = {name: jax.ShapeDtypeStruct((width, width), jnp.float32) for name in ("q", "k", "v", "out")}
    x = jax.ShapeDtypeStruct((seq, width), jnp.float32)
    return str(jax.jit(jax.grad(loss)).lower(weights, x).as_text()).encode()


@pytest.mark.parametrize(("heads", "is_ring"), [(2, True), (8, False)])
def test_keys_go_round_devices_in_a_ring_where_there_are_too_few_heads_to_split(heads, is_ring):
    passes = "rhino-attention,func.func(sdy-populate-op-sharding-rules),rhino-choose-shardings{cluster=h100x8 mesh=8}"
    _, remarks = sharded(long_attention(heads), "long", f"rhino-normalize,{passes}")
    sent = predicted_stats(remarks.result(ShardingChoice).plan).counts
    assert ("collective_permute" in sent) == is_ring


UNUSUAL = {
    "a row divided by what is inside": lambda s, e, rows: e * (rows / (1 + s * s)),
    "weights that are rounded to whole numbers": lambda s, e, rows: jnp.round(8 * e).astype(jnp.int32).astype(e.dtype),
    "products of two exponentials": lambda s, e, rows: e * e / rows,
    "weights beside a constant": lambda s, e, rows: e / rows + 0.5,
    "weights that are compared": lambda s, e, rows: jnp.where(e > 0.5 * rows, e, 0),
    "negated rows": lambda s, e, rows: -rows * e,
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_no_factor_of_a_row_puts_right_takes_a_loop_of_its_own(case):
    def weighted(q, k, v):
        scores = q @ k.T
        powers = jnp.exp(scores - scores.max(-1, keepdims=True))
        return UNUSUAL[case](scores, powers, powers.sum(-1, keepdims=True)) @ v

    shapes = [jax.ShapeDtypeStruct((4, 3), jnp.float32)] * 3
    text = jax.jit(weighted).lower(*shapes).as_text()
    module, remarks = blockwise(text.encode(), 2)
    assert "is computed in 2 blocks" in "".join(remarks)
    assert_gives_what_it_gave(text, module)


@pytest.mark.parametrize(
    ("mask", "softmax", "is_dropped"),
    [("padding", "jax", False), ("given", "jax", False), ("none", "jax", True), ("causal", "sinks", False)],
)
def test_a_loop_over_layers_stacks_neither_weights_nor_masks_nor_random_bits(mask, softmax, is_dropped):
    text = step_of(
        Form(10, 6, 2, 2, 1, "f32", "scores", mask, softmax, is_dropped, is_checkpointed=False, is_scanned=True)
    )
    module, remarks = blockwise(text, 2)
    assert [one for one in remarks if "is computed in 3 blocks" in one] == remarks
    assert "2x2x1x10x6x" in text.decode()
    assert "2x2x1x10x6x" not in str(module)
    expected, again = one_device(in_f64(text.decode())), one_device(in_f64(str(module)))
    for before, after in zip(expected.results, again.results, strict=True):
        assert np.abs(after - before).max() <= TOLERANCE * np.abs(before).max()


def test_scores_that_a_checkpoint_stores_by_a_policy_are_not_stored():
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(x, w):
        return x + jnp.tanh(jax.nn.softmax((x @ w) @ x.T) @ x)

    def loss(w, x):
        return (layer(layer(x, w), w) ** 2).sum()

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 3), (8, 3))]
    text = jax.jit(jax.grad(loss)).lower(*shapes).as_text()
    module, remarks = blockwise(text.encode(), 4)
    assert [one for one in remarks if "is computed in 2 blocks" in one] == remarks
    assert "optimization_barrier" in text
    assert "tensor<8x8xf32>" not in str(module)
    assert_gives_what_it_gave(text, module)


def merged(x):
    """Batch and heads in one dim, as PyTorch has them in products."""
    return x.reshape(-1, *x.shape[2:])


def with_merged_heads(q, k, v, _):
    scores = (merged(q) @ merged(k).swapaxes(1, 2)).reshape(2, 2, 4, 4)
    return (merged(jax.nn.softmax(scores)) @ merged(v)).reshape(v.shape)


def with_merged_heads_but_for_a_mask(q, k, v, _):
    scores = (merged(q) @ merged(k).swapaxes(1, 2)).reshape(2, 2, 4, 4)
    scores = merged(jnp.where(jnp.tri(4, dtype=bool), scores, -jnp.inf))
    return (jax.nn.softmax(scores) @ merged(v)).reshape(v.shape)


def with_factors_of_heads(q, k, v, factors):
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2))
    return jnp.einsum("...hqk,h->...hqk", weights, factors) @ v


@pytest.mark.parametrize("form", [with_merged_heads, with_merged_heads_but_for_a_mask, with_factors_of_heads])
def test_products_in_another_form_take_one_loop_each_way(form):
    def loss(q, k, v, factors):
        return (form(q, k, v, factors) ** 2).sum()

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(2, 2, 4, 3)] * 3 + [(2,)]]
    text = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*shapes).as_text()
    module, remarks = blockwise(text.encode(), 2)
    assert "by 2 loops" in "".join(remarks)
    assert_gives_what_it_gave(text, module)


def beside_sinks(scores, count=1, scale=1.0):
    """Weights beside sinks, which are converted and scaled behind what joins them."""
    sinks = jnp.full((*scores.shape[:-1], count), 0.5, scores.dtype)
    joined = jnp.concatenate([scores, sinks], -1).astype(jnp.float32)
    return jax.nn.softmax(scale * joined)[..., : scores.shape[-1]]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_several_sinks_of_scanned_layers_and_what_is_computed_behind_them(dtype):
    def layer(x, w):
        scores = (x @ w).astype(dtype) @ x.T.astype(dtype)
        return x + jnp.tanh(beside_sinks(scores, 2, 0.7) @ x), None

    text = gradient(lambda w, x: jax.lax.scan(layer, x, w)[0], (2, 3, 3), (8, 3))
    module, remarks = blockwise(text.encode(), 4)
    assert [one for one in remarks if "is computed in 2 blocks" in one] == remarks
    assert_gives_what_it_gave(text, module)


def test_what_one_attention_gives_may_be_the_values_of_the_next():
    """Agent attention: of a few agents, whose queries attend to all keys, and to whom all queries attend."""

    def mixed(x, w):
        agents = x.reshape(4, 2, 3).mean(1)
        values = jax.nn.softmax(agents @ w @ x.T) @ x
        return beside_sinks(x @ agents.T) @ values

    text = gradient(mixed, (8, 3), (3, 3))
    module, remarks = blockwise(text.encode(), 2)
    assert "by 2 loops" in remarks[-1]
    assert all("is computed in" in one for one in remarks)
    assert_gives_what_it_gave(text, module)


def test_a_barrier_may_store_the_same_scores_twice():
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(x, w):
        one, other = (x @ w) @ x.T, (x @ w) @ x.T
        return x + jnp.tanh((jax.nn.softmax(one) - 0.4 * jax.nn.softmax(1.3 * other)) @ x)

    text = gradient(lambda w, x: layer(layer(x, w), w), (3, 3), (8, 3))
    module, remarks = blockwise(text.encode(), 4)
    assert [one for one in remarks if "is computed in 2 blocks" in one] == remarks
    assert_gives_what_it_gave(text, module)


@pytest.mark.parametrize("shifted", [lambda s: s.max(-1, keepdims=True) ** 2, lambda s: s.min(-1, keepdims=True)])
def test_what_is_subtracted_may_be_another_number_of_the_row(shifted):
    def mixed(x, w):
        scores = 0.1 * (x @ w @ x.T)
        powers = jnp.exp(scores - jax.lax.stop_gradient(shifted(scores)))
        return powers / (powers.sum(-1, keepdims=True) + scores.max(-1, keepdims=True) ** 2) @ x

    text = gradient(mixed, (8, 3), (3, 3))
    module, _ = blockwise(text.encode(), 2)
    assert_gives_what_it_gave(text, module)


def test_long_chains_behind_joined_columns_are_split():
    def mixed(x, w):
        scores = jnp.concatenate([x @ w @ x.T, jnp.ones((8, 1))], -1)
        for number in range(1200):
            scores = scores + 1e-3 if number % 2 else scores * 0.999
        return jax.nn.softmax(scores)[:, :-1] @ x

    text = jax.jit(mixed).lower(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 3), (3, 3))]).as_text()
    module, remarks = blockwise(text.encode(), 2)
    assert "is computed in 4 blocks" in "".join(remarks)
    assert_gives_what_it_gave(text, module)


def gradient(result, *shapes):
    """The gradients of a sum of squares, by the first two arguments, as text."""
    kinds = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(jax.grad(lambda *given: (result(*given) ** 2).sum(), (0, 1))).lower(*kinds).as_text()


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_rows_without_keys_are_zero_where_a_softmax_says_so_as_that_of_torch(is_asked_first):
    def weighted(q, k, v):
        scores = jnp.where(jnp.arange(4)[:, None] > jnp.arange(4), q @ k.T, -jnp.inf)
        first = (scores == -jnp.inf).all(-1, keepdims=True)
        weights = jax.nn.softmax(scores, axis=-1)
        after = (scores > -jnp.inf).any(-1, keepdims=True)
        return (jnp.where(first, 0, weights) if is_asked_first else jnp.where(after, weights, 0)) @ v

    text = jax.jit(weighted).lower(*[jax.ShapeDtypeStruct((4, 3), jnp.float32)] * 3).as_text()
    module, remarks = blockwise(text.encode(), 2)
    assert "by one loop" in "".join(remarks)
    (after,) = assert_gives_what_it_gave(text, module)
    assert not np.any(after[0])


def test_a_plan_keeps_it_and_is_adopted_with_it(tmp_path):
    def mixed(q, k, v):
        return (jax.nn.softmax(q @ k.T) @ v).sum()

    given = list(np.random.default_rng(0).normal(size=(3, 8, 4)).astype(np.float32))
    step = rhino.parallelize(mixed, mesh="2", attention="blockwise:2")
    step.plan(*given).save(tmp_path / "plan.json")
    assert '"attention": "blockwise:2"' in (tmp_path / "plan.json").read_text()
    adopted = rhino.parallelize(mixed, plan=rhino.Plan.load(tmp_path / "plan.json"), verify=True)
    np.testing.assert_allclose(adopted(*given), mixed(*given), rtol=1e-6)
