"""A step in f16 with a loss scale is the one written by hand, and where a gradient overflows it does nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_plans import MOODS, drawable
from jax import lax
from snippets import evaluate
from test_mixed_precision import error, gradients, passed, perceptron_inputs, perceptron_step, run, text_of

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import read_module, walk
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.executable import compile_module

NORMAL, F16 = "rhino-normalize", "rhino-normalize,rhino-amp{amp=f16}"
FIRST = [np.float32(2.0**15), np.int32(0)]
OVERFLOW = [np.float32(2.0**60), np.int32(7)]
HALVED = [2.0**59, 0]
ROUNDING = 2.0**-11


# By hand


@jax.custom_vjp
def product(x, w):
    """A product in f16, whose gradient of the weight is summed up in f32."""
    return x.astype(jnp.float16) @ w.astype(jnp.float16)


def product_backward(kept, dy):
    x, w = kept
    return (dy @ w.T).astype(jnp.float16), lax.dot_general(x.T, dy, (((1,), (0,)), ((), ())), None, jnp.float32)


product.defvjp(lambda x, w: (product(x, w), (x.astype(jnp.float16), w.astype(jnp.float16))), product_backward)


def small_loss(params, x, y, times):
    """A loss of a perceptron without biases, whose gradients are too small for f16."""
    h = jnp.tanh(times(x, params["w"][0]))
    h = jax.nn.relu(times(h, params["w"][1]))
    return 1e-6 * ((times(h, params["w"][2]).astype(jnp.float32) - y) ** 2).mean()


def updated(state, grads):
    params, momentum = state
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 1e5 * m, params, momentum), momentum


def plain(state, x, y):
    loss, grads = jax.value_and_grad(small_loss)(state[0], x, y, jnp.matmul)
    return updated(state, grads), loss


def by_hand(state, x, y, scale, good_steps):
    def scaled(params):
        loss = small_loss(params, x, y, product)
        return loss * scale, loss

    grads, loss = jax.grad(scaled, has_aux=True)(state[0])
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
    state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated(state, grads), state)
    grown = jnp.where(good_steps >= 1999, 2 * scale, scale)
    counted = jnp.where(good_steps >= 1999, 0, good_steps + 1)
    return state, loss, jnp.where(finite, grown, scale / 2), jnp.where(finite, counted, 0)


def small_inputs():
    state, x, y = perceptron_inputs()
    return tuple({"w": part["w"]} for part in state), x, y


@pytest.mark.parametrize(
    "scale",
    [FIRST, [np.float32(2.0**18), np.int32(1999)], [np.float32(2.0**18), np.int32(4000)], OVERFLOW],
    ids=["", "grows", "late", "overflows"],
)
def test_it_is_the_step_written_by_hand(scale):
    inputs = small_inputs()
    module, _ = passed(text_of(plain, *inputs), F16)
    hand, _ = passed(text_of(by_hand, *inputs, *scale), NORMAL)
    leaves = [*jax.tree.leaves(inputs), *scale]
    found, wanted = evaluate(str(module), leaves), evaluate(str(hand), leaves)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())
    is_skipped = all(np.array_equal(*one) for one in zip(found, leaves[:6], strict=False))
    assert is_skipped == (scale is OVERFLOW)


def test_gradients_that_f16_does_not_hold_are_kept():
    inputs = small_inputs()
    text, leaves = text_of(plain, *inputs), jax.tree.leaves(inputs)
    wanted = run(passed(text, NORMAL)[0], leaves)
    module = passed(text, F16)[0]
    scaled, unscaled = (
        [
            error(*one)
            for one in zip(
                run(module, [*leaves, scale, np.int32(0)]), wanted, map(np.subtract, wanted, leaves[:6]), strict=False
            )
        ]
        for scale in (np.float32(2.0**18), np.float32(1.0))
    )
    assert max(scaled) < 4 * ROUNDING
    assert min(unscaled) > 10 * max(scaled)


# Ways to write a backward pass


def labels():
    return np.random.default_rng(3).integers(0, 8, 32).astype(np.int32)


def entropy(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


def trunk(params, x, layer=lambda h, w: jax.nn.gelu(h @ w)):
    for w in params["w"][:2]:
        x = layer(x, w)
    return x


def simple(params, x, y):
    return entropy(trunk(params, x) @ params["w"][2], y)


def recomputed_layers(params, x, y):
    return entropy(trunk(params, x, jax.checkpoint(lambda h, w: jax.nn.gelu(h @ w))) @ params["w"][2], y)


def in_chunks(params, x, y):
    """A loss in a loop over chunks, which are recomputed: the backward pass begins inside of a loop."""

    @jax.checkpoint
    def one(total, chunk):
        return total + entropy(chunk[0] @ params["w"][2], chunk[1]) / 4, None

    return lax.scan(one, 0.0, (trunk(params, x).reshape(4, 8, -1), y.reshape(4, 8)))[0]


def in_a_loop(params, x, y):
    def layer(h, w):
        return h + jax.nn.gelu(h @ w), None

    return entropy(lax.scan(jax.checkpoint(layer), x, jnp.stack(params["w"][:2]))[0] @ params["w"][2], y)


@jax.custom_vjp
def bounded(x):
    return x


bounded.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1e-3, 1e-3),))


def bounded_gradients(params, x, y):
    """What is no linear function of the gradient is computed of the unscaled one."""
    return entropy(trunk(params, x, lambda h, w: bounded(jax.nn.gelu(h @ w))) @ params["w"][2], y)


def mean_of_outputs(params, x, y):
    """A loss whose gradient is a constant."""
    return jnp.mean(trunk(params, x) @ params["w"][2])


def penalty(params, x, y):
    """The gradient of a gradient."""
    return simple(params, x, y) + (jax.grad(simple, 1)(params, x, y) ** 2).sum()


def descend(loss):
    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def in_micro_batches(params, x, y):
    def one(total, part):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(simple)(params, *part)), None

    parts = x.reshape(4, 8, -1), y.reshape(4, 8)
    (value, grads), _ = lax.scan(one, (0.0, jax.tree.map(jnp.zeros_like, params)), parts)
    return jax.tree.map(lambda p, g: p - 0.025 * g, params, grads), value / 4


def steps_in_a_loop(params, x, y):
    parts = x.reshape(4, 8, -1), y.reshape(4, 8)
    return lax.scan(lambda now, part: descend(simple)(now, *part), params, parts)


def momentum_in_a_loop(state, x, y):
    """Several steps, each of which reads parameters that the moments of the one before have led to."""

    def one(state, part):
        params, momentum = state
        value, grads = jax.value_and_grad(simple)(params, *part)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return (jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum), value

    return lax.scan(one, state, (x.reshape(4, 8, -1), y.reshape(4, 8)))


def clipped(params, x, y):
    """Clips by the norm of all gradients, and returns it."""
    value, grads = jax.value_and_grad(simple)(params, x, y)
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda p, g: p - 0.1 * g * jnp.minimum(1.0, 1 / norm), params, grads), (value, norm)


LOSSES = (simple, recomputed_layers, in_chunks, in_a_loop, bounded_gradients, mean_of_outputs, penalty)
STEPS = {
    **{loss.__name__: descend(loss) for loss in LOSSES},
    **{step.__name__: step for step in (in_micro_batches, steps_in_a_loop, momentum_in_a_loop, clipped)},
}


def small_step(name):
    """A step, its arguments leaf by leaf, and how many of them are its state."""
    (params, momentum), x, _ = perceptron_inputs()
    params, momentum = {"w": params["w"]}, {"w": momentum["w"]}
    state = (params, momentum) if name == momentum_in_a_loop.__name__ else params
    inputs = state, x, labels()
    return text_of(STEPS[name], *inputs), jax.tree.leaves(inputs), len(jax.tree.leaves(state))


@pytest.mark.parametrize("name", sorted(STEPS))
def test_each_backward_pass_is_scaled(name):
    text, leaves, count = small_step(name)
    wanted = run(passed(text, NORMAL)[0], leaves)
    module, remarks = passed(text, F16)
    executable = compile_module(module, jax.devices()[:1])
    found, none, overflown = (
        [np.asarray(one) for one in executable.run([executable.put(*one) for one in enumerate([*leaves, *scale])])]
        for scale in (FIRST, [np.float32(2.0**-12), np.int32(0)], OVERFLOW)
    )
    steps = [now - before for now, before in zip(wanted, leaves[:count], strict=False)]
    near, far = ([error(*one) for one in zip(got, wanted, steps, strict=False)] for got in (found, none))
    assert max(near) < 4 * ROUNDING
    assert max(far) > 10 * max(near), "all of it is scaled: a scale below 1 loses what f16 holds without"
    assert all(np.array_equal(got, leaf) for got, leaf in zip(overflown, leaves[:count], strict=False))
    assert [float(one) for one in (*found[-2:], *overflown[-2:])] == [FIRST[0], 1, *HALVED]
    assert "compute gradients that are scaled" in remarks.items[-1].text


def test_what_has_no_backward_pass_has_no_loss_scale():
    (params, _), x, _ = perceptron_inputs()
    text = jax.jit(lambda p, x: trunk(p, x)).lower({"w": params["w"]}, x).as_text().encode()
    module, remarks = passed(text, F16)
    assert "no loss is scaled" in remarks.items[-1].text
    assert [str(one.results[0].type.element_type) for one in walk(module.operation) if "dot" in one.name] == [
        "f16",
        "f32",
    ]


# Plans


@pytest.mark.parametrize(
    ("name", "mesh", "seed"),
    [
        ("in_a_loop", "2x4", 3),
        ("clipped", "3", 2),
        pytest.param("gpt-scan", "2x4", 3, marks=pytest.mark.long),
        pytest.param("gpt-dropout", "3", 2, marks=pytest.mark.long),
        pytest.param("resnet", "8", 0, marks=pytest.mark.long),
        pytest.param("moe", "2", 1, marks=pytest.mark.long),
        pytest.param("llama-scan-fused", "4", 2, marks=pytest.mark.long),
    ],
)
def test_drawn_plans_give_the_answer_of_one_device(name, mesh, seed):
    """With f16 read as f32, so that nothing is lost in sums over devices; all devices skip a step alike."""
    text, leaves, count = small_step(name) if name in STEPS else gradients(name)
    program = str(passed(text, F16)[0]).replace("f16", "f32")
    inputs = [[*leaves, *scale] for scale in (FIRST, [np.float32(np.inf), np.int32(7)])]
    wanted = run(read_module(program.encode(), "step", make_context()), inputs[0])
    drawn = drawable(program, mesh)
    drawn.plan(seed, MOODS[seed])
    local = wrap_manual(localized_copy(drawn.module, "step"))
    executable = compile_module(local, jax.devices()[: np.prod([int(size) for size in mesh.split("x")])])
    made, skipped = (
        executable.fetch(executable.run([executable.put(*one) for one in enumerate(values)])) for values in inputs
    )
    steps = [now - old for now, old in zip(wanted, leaves[:count], strict=False)]
    assert max(error(*one) for one in zip(made[:count], wanted[:count], steps, strict=True)) < 1e-4
    assert all(np.array_equal(got, leaf) for got, leaf in zip(skipped, leaves[:count], strict=False))
    assert [float(one) for one in (*made[-2:], *skipped[-2:])] == [FIRST[0], 1, np.inf, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "2x2", "micro_batches": 4},
        {"stages": 2, "micro_batches": 4, "mesh": "2"},
        pytest.param({"stages": 4, "micro_batches": 4, "mesh": "1", "remat": 1.0}, marks=pytest.mark.long),
        pytest.param({"replicas": 2, "micro_batches": 4, "mesh": "2"}, marks=pytest.mark.long),
        pytest.param({"search": "autotune"}, marks=pytest.mark.long),
    ],
    ids=["parts", "stages", "recomputed", "replicas", "autotuned"],
)
def test_parallelize_keeps_the_scale(options, tmp_path):
    inputs = perceptron_inputs()
    wanted = run(passed(text_of(perceptron_step(narrow=False), *inputs), F16)[0], [*jax.tree.leaves(inputs), *FIRST])
    fn = perceptron_step(narrow=False)
    step = rhino.parallelize(fn, cluster="cpu4", donate_argnums=0, amp="f16", verify=True, **options)
    plan = step.plan(*inputs)
    assert len(plan.in_shardings) == 3
    assert jax.tree.structure(plan.out_shardings) == jax.tree.structure((inputs[0], 0))
    made = step(*inputs)
    for got, want in zip(jax.tree.leaves(made), wanted[:-2], strict=True):
        np.testing.assert_allclose(np.asarray(got), want, atol=4 * ROUNDING * np.abs(want).max())
    assert [float(one) for one in step.loss_scale] == [FIRST[0], 1]
    plan.save(tmp_path / "plan")
    again = rhino.parallelize(fn, donate_argnums=0, plan=rhino.Plan.load(tmp_path / "plan"))
    again.loss_scale = tuple(OVERFLOW)
    before = [np.array(one) for one in jax.tree.leaves(made[0])]
    state, _ = again(made[0], *inputs[1:])
    for got, want in zip(jax.tree.leaves(state), before, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    assert [float(one) for one in again.loss_scale] == HALVED
    again(state, *inputs[1:])
    assert [float(one) for one in again.loss_scale] == [HALVED[0] / 2, 0]


def test_a_loss_scale_is_two_numbers_of_a_step_in_f16():
    step = rhino.parallelize(perceptron_step(narrow=False), cluster="cpu4", amp="f16")
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*the loss scale is"):
        step.loss_scale = 3.0
    for wrong in (float("nan"), float("inf"), 1e39, 0.0, -2.0):
        with pytest.raises(RhinoError, match=r"RHI-JAX-002.*the loss scale is .*multiplied by"):
            step.loss_scale = (wrong, 0)
    for wrong in (2.5, 1 << 40, float("nan"), "2"):
        with pytest.raises(RhinoError, match=r"(?s)RHI-JAX-002.*the loss scale is .*the second whole"):
            step.loss_scale = (1.0, wrong)
    step.loss_scale = (1.0, 2.0)
    assert step.loss_scale == (1.0, 2)
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*has no loss scale"):
        rhino.parallelize(perceptron_step(narrow=False), cluster="cpu4", amp="bf16").loss_scale = (1.0, 0)
