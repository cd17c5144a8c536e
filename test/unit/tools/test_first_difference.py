"""A step computed in a second way: it passes where rounding alone differs, and names the first op where more does."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rhino
from rhino import verified
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.sharding import indexed_ops
from rhino.tools import run as run_tool
from rhino.tools.first_difference import first_difference

CUT = {"x": jax.sharding.PartitionSpec(), "result:0": jax.sharding.PartitionSpec("x")}


def write(x, u):
    return jnp.tanh(x.at[33].set(u)).sum(1)


def operands():
    return np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32), np.full(16, 1.5, np.float32)


@pytest.fixture
def faulty(monkeypatch):
    """Rhino with a fault: a scatter is folded with what cuts its operand."""
    monkeypatch.setattr(indexed_ops, "_keep_apart", lambda op: None)


def test_the_first_op_that_differs_is_named(faulty):
    step = rhino.parallelize(write, cluster="cpu8", pins=CUT, verify=True)
    with pytest.raises(rhino.RhinoError) as caught:
        step(*operands())
    assert caught.value.id == "RHI-RUN-003"
    assert "the first op that differs is 'stablehlo.scatter' in 'jit(write)" in caught.value.notes[-1]


def test_of_stages_the_error_says_that_rounding_may_have_grown(monkeypatch):
    def step(w, x):
        return jax.tree.map(
            lambda one, by: one - by, w, jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]).sum())(w)
        )

    monkeypatch.setattr(verified, "coarsest_tolerance", lambda module: -1.0)
    weights = [np.full((16, 16), 0.1, np.float32)] * 2
    with pytest.raises(rhino.RhinoError) as caught:
        rhino.parallelize(step, cluster="cpu8", stages=2, micro_batches=2, verify=True)(weights, operands()[0])
    assert caught.value.id == "RHI-RUN-003"
    assert caught.value.notes[-1].endswith("rounding may have grown to this")
    assert caught.value.fix.startswith("verify the step without stages")


def test_without_verify_nobody_notices(faulty):
    got = rhino.parallelize(write, cluster="cpu8", pins=CUT)(*operands())
    assert not np.allclose(got, jax.jit(write)(*operands()))


def test_a_step_that_is_right_passes_and_runs_as_ever():
    """Its state is donated, and is there for the second way all the same."""

    def train(params, batch, key):
        def loss(w):
            keep = jax.random.bernoulli(key, 0.8, (64, 32))
            return jnp.mean((jnp.tanh(batch @ w["a"]) * keep @ w["b"] - batch) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    key = jax.random.key(0)
    params = {"a": jnp.full((16, 32), 0.1), "b": jnp.full((32, 16), 0.2)}
    batch = jax.random.normal(key, (64, 16))
    want = jax.jit(train)(params, batch, key)
    step = rhino.parallelize(train, cluster="cpu8", donate_argnums=0, verify=True)
    step.plan(params, batch, key)
    params = step.init(lambda: params)  # on the devices of the plan
    got = step(params, batch, key)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    assert float(step(*got[:1], batch, key)[1]) < float(got[1])


def test_a_pipeline_is_compared_as_well():
    def train(w, x):
        def loss(w):
            return jnp.mean(jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) ** 2)

        value, grads = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda p, g: p - g, w, grads), value

    w, x = [jnp.full((16, 16), 0.1), jnp.full((16, 16), 0.2)], jnp.ones((32, 16))
    step = rhino.parallelize(train, cluster="cpu8", mesh="2", stages=2, micro_batches=2, verify=True)
    np.testing.assert_allclose(step(w, x)[1], jax.jit(train)(w, x)[1], rtol=1e-5)


def test_what_speaks_of_a_mesh_is_compared_on_it():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    shift = jax.shard_map(
        lambda x: lax.ppermute(x, "x", [(n, (n + 1) % 8) for n in range(8)]), mesh=mesh, in_specs=spec, out_specs=spec
    )
    x = jnp.arange(64.0).reshape(16, 4)
    got = rhino.parallelize(lambda x: shift(x) * 2, cluster="cpu8", mesh=mesh, verify=True)(x)
    np.testing.assert_array_equal(got, 2 * jnp.roll(x, 2, 0))


def test_padded_arguments_are_compared():
    x = jnp.arange(30.0).reshape(10, 3)
    got = rhino.parallelize(lambda x: jnp.tanh(x), cluster="cpu8", pad="*", verify=True)(x)
    np.testing.assert_allclose(got, jnp.tanh(x), rtol=1e-6)


def test_rounding_that_grows_is_no_fault():
    """What is nothing but rounding, blown up: no op does what it should not."""

    def blown_up(x):
        noise = x.sum() - x.sum(0).sum()
        return jnp.sign(noise) + jnp.zeros(8), x * 2

    x = jax.random.normal(jax.random.key(0), (256, 64)) * 100
    rhino.parallelize(blown_up, cluster="cpu8", verify=True, pins={"x": jax.sharding.PartitionSpec("x")})(x)


ANNOTATED = """
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<8x8xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0]\
 : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
"""


def test_two_ways_that_agree_are_told_so():
    module = read_module(ANNOTATED.encode(), "m.mlir", make_context())
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    verdict = first_difference(module, [x], jax.devices()[:4], None)
    assert not verdict.is_rounding
    assert "no result differs" in verdict.note


def run(text, *options):
    out, err = io.StringIO(), io.StringIO()
    code = run_tool.run(["-", *options], io.BytesIO(text.encode()), out, err)
    return code, out.getvalue(), err.getvalue()


def test_a_module_is_verified_by_the_command():
    code, out, _ = run(ANNOTATED, "--verify", "--steps=2")
    assert code == 0
    assert out.splitlines()[-1] == "the first step agrees with the one-device program"


def test_verify_and_compare_are_two_things():
    code, out, err = run(ANNOTATED, "--verify", "--compare=other.mlir")
    assert (code, out) == (2, "")
    assert "[RHI-CLI-001] --verify compares the module with itself" in err


def test_a_local_program_has_no_second_way():
    code, _, err = run(
        ANNOTATED.replace("sdy.mesh", "module attributes {rhino.local} {\nsdy.mesh", 1) + "}", "--verify"
    )
    assert code == 1
    assert "[RHI-LOCAL-001] the module is the program of one device already" in err
