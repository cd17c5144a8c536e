"""Statistics of each part of a batch: what is computed is the step that is written for a part.

Parts are micro-batches, or equal parts of a batch that is taken whole.
"""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from long_cases import one_in
from traffic import splitting_cluster

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.executable import compile_module

BATCH, WIDTH, EXPERTS = 32, 16, 4


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def normalized(x, scale, shift):
    mean = x.mean(0)
    variance = ((x - mean) ** 2).mean(0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift, (mean, variance)


def by_moments(x, scale, shift):
    """As flax normalizes: the gradient of the scale is a product of two statistics."""
    mean = x.mean(0)
    variance = jnp.maximum(0.0, (x * x).mean(0) - mean * mean)
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift, (mean, variance)


@jax.custom_vjp
def by_hand(x, scale, shift):
    """What the backward pass sums up for the examples is the gradient of the scale and the shift, too."""
    return normalized(x, scale, shift)[0]


def by_hand_forward(x, scale, shift):
    mean = x.mean(0)
    inverse = lax.rsqrt(((x - mean) ** 2).mean(0) + 1e-5)
    return (x - mean) * inverse * scale + shift, ((x - mean) * inverse, inverse * scale)


def by_hand_backward(kept, dy):
    normal_x, factor = kept
    for_scale, for_shift = (dy * normal_x).sum(0), dy.sum(0)
    return factor * (dy - (for_shift + normal_x * for_scale) / len(dy)), for_scale, for_shift


by_hand.defvjp(by_hand_forward, by_hand_backward)


def layers(norm):
    def loss(params, x, y, _key):
        h, kept = norm(x @ params["w"][0], *params["norm"][0])
        h, _ = norm(jax.nn.relu(h) @ params["w"][1], *params["norm"][1])
        return ((jax.nn.relu(h) @ params["out"] - y) ** 2).mean(), kept

    return loss


def perceptron(params, x, y, _key):
    """Batch normalization, whose moving averages are kept."""
    with jax.named_scope("first"):
        h, first = normalized(x @ params["w"][0], *params["norm"][0])
    with jax.named_scope("second"):
        h, second = normalized(jax.nn.relu(h) @ params["w"][1], *params["norm"][1])
    return ((jax.nn.relu(h) @ params["out"] - y) ** 2).mean(), (first, second)


def scanned(params, x, y, _key):
    """The same layers in a loop, and dropout."""

    def layer(h, one):
        w, norm = one
        h, kept = normalized(h @ w, *norm)
        return jax.nn.relu(h), kept

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["norm"])
    h, kept = lax.scan(layer, x, (jnp.stack(params["w"]), stacked))
    return ((h @ params["out"] - y) ** 2).mean(), kept


def checkpointed(params, x, y, _key):
    """The first layer is recomputed in the backward pass, behind barriers."""
    layer = jax.checkpoint(lambda w, norm, x: normalized(x @ w, *norm))
    h, _ = layer(params["w"][0], params["norm"][0], x)
    h, kept = layer(params["w"][1], params["norm"][1], jax.nn.relu(h))
    return ((jax.nn.relu(h) @ params["out"] - y) ** 2).mean(), kept


def columns(params, x, y, _key):
    """Examples are columns."""
    h = (x @ params["w"][0]).T
    h = h - h.mean(1, keepdims=True)
    h = h * lax.rsqrt((h * h).mean(1) + 1e-5)[:, None] * params["norm"][0][0][:, None]
    return ((jax.nn.relu(h).T @ params["out"] - y) ** 2).mean(), h.mean(1)


def scaled(params, x, y, _key):
    """The largest example scales all; dropout's mask is one of the whole batch."""
    h = x @ params["w"][0]
    h = h / lax.stop_gradient(jnp.abs(h).max(0))
    return ((h @ params["out"] - y) ** 2).mean(), h.mean(0)


def routed(params, x):
    """A layer of experts and its balance loss: how much each expert gets, times how likely it is."""
    chances = jax.nn.softmax(x @ params["router"])
    taken = jax.nn.one_hot(chances.argmax(-1), EXPERTS)
    each = jnp.einsum("bd,edf,be->bf", x, params["experts"], taken * chances)
    balance = EXPERTS * (lax.stop_gradient(taken.mean(0)) * chances.mean(0)).sum() + (chances.mean(0) ** 2).sum()
    return each, balance


def experts(params, x, y, _key):
    each, balance = routed(params, x)
    return ((each @ params["out"] - y) ** 2).mean() + 0.1 * balance, balance


def recomputed_experts(params, x, y, _key):
    """The forward pass sums up what no example of it waits for, and the backward pass does so again, where some do."""
    layer = jax.checkpoint(routed)
    h, first = layer(params, x)
    h, second = layer(params, x + jax.nn.gelu(h))
    return ((h @ params["out"] - y) ** 2).mean() + 0.1 * (first + second), (first, second)


def scanned_experts(params, x, y, _key):
    """The same in a loop over layers."""
    layer = jax.checkpoint(lambda h, _: routed(params, h))
    h, balance = lax.scan(layer, x, jnp.arange(2))
    return ((h @ params["out"] - y) ** 2).mean() + 0.1 * balance.sum(), balance


MODELS = {
    "moments": layers(by_moments),
    "shared": layers(lambda *of: (by_hand(*of), of[0].mean(0))),
    "perceptron": perceptron,
    "scanned": scanned,
    "checkpointed": checkpointed,
    "columns": columns,
    "scaled": scaled,
    "experts": experts,
    "recomputed_experts": recomputed_experts,
    "scanned_experts": scanned_experts,
}


def make_params():
    return {
        "w": [normal(WIDTH, WIDTH, seed=seed) / 4 for seed in (1, 2)],
        "norm": [(1 + normal(WIDTH, seed=seed) / 9, normal(WIDTH, seed=seed + 1) / 9) for seed in (3, 5)],
        "router": normal(WIDTH, EXPERTS, seed=7),
        "experts": normal(EXPERTS, WIDTH, WIDTH, seed=8) / 4,
        "out": normal(WIDTH, 4, seed=9),
    }


def make_step(loss, parts=1):
    """A training step with clipping and an optimizer that squares gradients; by hand in `parts` micro-batches."""

    def step(state, x, y, key):
        params, moments = state
        batches = jax.tree.map(lambda a: a.reshape(parts, -1, a.shape[-1]), (x, y))
        each = [
            jax.value_and_grad(loss, has_aux=True)(params, *jax.tree.map(lambda a, i=i: a[i], batches), key)
            for i in range(parts)
        ]
        (value, kept), grads = jax.tree.map(lambda *leaves: sum(leaves) / parts, *each)
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g / jnp.maximum(1.0, norm), grads)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g**2, moments, grads)
        params = jax.tree.map(lambda p, g, m: p - 0.1 * g / jnp.sqrt(m + 1e-3), params, grads, moments)
        return (params, moments), (value, kept)

    return step


def inputs():
    params = make_params()
    return (params, jax.tree.map(np.zeros_like, params)), normal(BATCH, WIDTH), normal(BATCH, 4, seed=1), np.uint32(0)


def divided(loss, parts, options="batch-statistics=per-part"):
    """What a step in micro-batches gives, and the remarks of the pass."""
    return passed(loss, f"rhino-micro-batch{{num={parts} {options}}}")


def parted(loss, parts, names=""):
    """What a step with statistics of parts gives whose batch is taken whole, and the remarks of the pass."""
    return passed(loss, f'rhino-parted-statistics{{batch-statistics="{parts}-parts{names}"}}')


def passed(loss, pipeline):
    given, remarks = inputs(), Remarks("step.mlir")
    lowered = jax.jit(make_step(loss), donate_argnums=0, keep_unused=True).lower(*given)
    module = read_module(lowered.as_text(debug_info=True).encode(), "step.mlir", make_context())
    build_pass_manager(pipeline, module.context, remarks).run(module.operation)
    assert module.operation.verify()
    return compile_module(module, jax.devices()[:1]).run(
        [jnp.asarray(leaf) for leaf in jax.tree.leaves(given)]
    ), remarks


@cache
def by_hand_in_parts(name, parts=1):
    """What the step gives that is written for parts."""
    return jax.tree.map(np.asarray, jax.jit(make_step(MODELS[name], parts))(*inputs()))


def same(found, wanted, limit=1e-5):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


@pytest.mark.parametrize(("name", "parts"), one_in(3, product(MODELS, [1, 2, 8])))
def test_the_step_is_the_one_that_is_written_for_a_micro_batch(name, parts):
    found, remarks = divided(MODELS[name], parts)
    same(found, by_hand_in_parts(name, parts))
    assert any("a statistic of each micro-batch" in str(one) for one in remarks.items)


@pytest.mark.parametrize(
    ("name", "parts"), one_in(2, product([name for name in MODELS if not name.startswith("scanned")], [2, 8]))
)
def test_of_a_whole_batch_it_is_the_step_that_is_written_for_a_part(name, parts):
    found, remarks = parted(MODELS[name], parts)
    same(found, by_hand_in_parts(name, parts))
    assert any(f"a statistic of each of {parts} parts of the batch" in str(one) for one in remarks.items)


@pytest.mark.parametrize("name", ["scanned", "scanned_experts"])
def test_a_loop_over_layers_is_refused_where_the_batch_is_taken_whole(name):
    with pytest.raises(RhinoError, match=r"RHI-BATCH-009.*while") as error:
        parted(MODELS[name], 4)
    assert "--micro-batches" in str(error.value)


def test_a_refusal_in_a_loop_names_the_sum_that_its_body_needs():
    with pytest.raises(RhinoError, match=r"RHI-BATCH-004.*in a loop.*needs a value of the whole batch") as error:
        divided(scanned_experts, 4, "")
    assert "computed stablehlo.reduce in" in str(error.value)


def test_a_refusal_speaks_of_parts_where_parts_are_asked_for():
    with pytest.raises(RhinoError, match=r"RHI-BATCH-003.* 5 parts do not divide the batch") as error:
        parted(perceptron, 5)
    assert "micro-batch" not in str(error.value)
    with pytest.raises(RhinoError, match=r"RHI-BATCH-004.* parts would have to synchronize") as error:
        parted(perceptron, 4, ":*first*")
    assert "with --batch-statistics=4-parts; or" in str(error.value)


def test_micro_batches_have_to_divide_the_parts():
    both = "rhino-parted-statistics{batch-statistics=8-parts},rhino-micro-batch{num=16 batch-statistics=8-parts}"
    with pytest.raises(RhinoError, match=r"RHI-BATCH-003.* 16 micro-batches do not divide the 8 blocks") as error:
        passed(perceptron, both)
    assert "ask for one of 1, 2, 4, 8" in str(error.value)


def test_names_say_which_statistics_are_of_a_part_of_a_whole_batch():
    with pytest.raises(RhinoError, match=r"RHI-BATCH-004.*second"):
        parted(perceptron, 4, ":*first*")
    found, _ = parted(perceptron, 4, ":*first*; *second*")
    same(found, by_hand_in_parts("perceptron", 4))


@pytest.mark.parametrize("name", MODELS)
def test_the_statistics_of_the_batch_are_others(name):
    found, _ = divided(MODELS[name], 4)
    with pytest.raises(AssertionError):
        same(found, by_hand_in_parts(name))


def test_nothing_is_taken_of_a_part_that_is_waited_for_behind_the_loop():
    def loss(params, x, y, _key):
        h = jax.nn.relu(x @ params["w"][0]) @ params["out"]
        return ((h - y) ** 2).mean(), ((h - y) ** 2).mean() ** 2

    found, remarks = divided(loss, 4)
    same(found, jax.jit(make_step(loss))(*inputs()))
    assert "statistic" not in "".join(map(str, remarks.items))


def test_names_say_which_statistics_are_of_a_part():
    with pytest.raises(RhinoError, match=r"RHI-BATCH-004.*second") as error:
        divided(perceptron, 4, "batch-statistics=per-part:*first*")
    assert "--batch-statistics=per-part" in str(error.value)
    found, _ = divided(perceptron, 4, 'batch-statistics="per-part:*first*; *second*"')
    same(found, by_hand_in_parts("perceptron", 4))


def test_a_refusal_names_the_sum_and_its_line():
    with pytest.raises(RhinoError, match=r"RHI-BATCH-004.*needs a value of the whole batch") as error:
        divided(perceptron, 4, "")
    assert "computed stablehlo.reduce in" in str(error.value)
    assert "test_part_statistics.py" in str(error.value)


@pytest.mark.parametrize("text", ["per-batch", "per-part:", "0-parts", "parts", "4-parts:"])
def test_other_words_are_refused(text):
    with pytest.raises(RhinoError, match="RHI-BATCH-008"):
        divided(perceptron, 2, f"batch-statistics={text}")


PER_PART = {"batch_statistics": "per-part", "micro_batches": 4}


@pytest.mark.parametrize(
    ("name", "options"),
    one_in(
        3,
        [
            ("perceptron", {**PER_PART, "mesh": "2x2"}),
            ("experts", {**PER_PART, "mesh": "2x2"}),
            ("perceptron", {**PER_PART, "mesh": "2", "stages": 2}),
            ("experts", {**PER_PART, "mesh": "2", "stages": 2}),
            ("experts", {"batch_statistics": "4-parts", "mesh": "4", "batch": "x:0", "verify": True}),
            ("perceptron", {"batch_statistics": "4-parts", "mesh": "2", "stages": 2, "micro_batches": 2}),
        ],
    ),
    ids=["one", "one-experts", "two", "two-experts", "whole", "two-of-parts"],
)
def test_sharded_and_in_stages_it_is_the_same_step(name, options):
    step = rhino.parallelize(make_step(MODELS[name]), cluster="cpu4", donate_argnums=0, **options)
    same(step(*inputs()), by_hand_in_parts(name, 4))
    text = options["batch_statistics"]
    of = "micro-batch" if text == "per-part" else "of 4 equal parts of the batch"
    assert f"statistics are of each {of} (batch-statistics={text})" in step.plan(*inputs()).explain()


def test_where_parts_lie_on_devices_of_their_own_fewer_sums_are_sent(tmp_path):
    file = tmp_path / "splitting.toml"
    file.write_text(splitting_cluster(), encoding="utf-8")
    plans = [
        rhino.parallelize(
            make_step(perceptron), cluster=file, mesh="8", axis_roles={"x": "batch"}, batch_statistics=text
        ).plan(*inputs())
        for text in ("", "8-parts")
    ]
    of_all, of_parts = [sum(one.count for one in plan.facts.sharding.costs) for plan in plans]
    assert of_all - of_parts >= 2 * 4  # a mean and a variance of each layer, forward and backward
