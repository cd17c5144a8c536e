"""Gathers, scatters, dynamic slices and their updates on local shapes.

They come in every layout, and as programs of others have them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from indexed_forms import MESHES, draw_form, try_form
from jax import lax
from long_cases import one_in

import rhino


# 392: two dims of a gather are split that Shardy's rule lists in another order than the operand has them.
@pytest.mark.parametrize("seed", [*one_in(2, range(20)), 392])
def test_every_split_of_a_drawn_form_gives_the_answer_of_one_device(seed):
    passes, line = try_form(draw_form(seed), seed, MESHES[seed % len(MESHES)])
    assert passes, line


def test_forms_are_drawn_in_every_layout():
    texts = "".join(draw_form(seed).text for seed in range(200))
    wanted = [
        *(
            "stablehlo.gather",
            "stablehlo.scatter",
            "stablehlo.dynamic_slice",
            "stablehlo.dynamic_update_slice",
            "input_batching_dims = [0",
        ),
        *(
            "operand_batching_dims = [0",
            "inserted_window_dims = [0",
            "scatter_dims_to_operand_dims = [1, 0",
            "index_vector_dim = 0",
        ),
        *(
            "stablehlo.maximum",
            "stablehlo.multiply",
            "xi64>",
            "xui32>",
            "xi8>",
            "xi1>",
            "%r:2 =",
            "%r:3 =",
            "(%x, %x, ",
            "select %p",
        ),
    ]
    assert [text for text in wanted if text not in texts] == []


def test_a_window_that_covers_an_indexed_dim_is_written_on_every_device():
    """What a gradient of rows taken one by one is: the index has a component for the dim that the window covers."""
    w, t = jnp.arange(128000.0).reshape(1000, 128) / 1e5, jnp.arange(1024).reshape(16, 64) % 997

    def gradient(w, t):
        return jax.grad(lambda w: (jax.vmap(jax.vmap(lambda i: w[i]))(t) ** 2).sum())(w)

    step = rhino.parallelize(gradient, cluster="cpu8", pins={"result:0": jax.sharding.PartitionSpec(None, "x")})
    np.testing.assert_allclose(step(w, t), jax.jit(gradient)(w, t), rtol=1e-6)


@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_one_row_is_written_where_the_operand_is_cut(method):
    x, u = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32), np.full(16, 1.5, np.float32)

    def write(x, u):
        return getattr(x.at[33], method)(u).sum(1)

    pins = {"x": jax.sharding.PartitionSpec(), "result:0": jax.sharding.PartitionSpec("x")}
    np.testing.assert_allclose(
        rhino.parallelize(write, cluster="cpu8", pins=pins)(x, u), jax.jit(write)(x, u), rtol=1e-5
    )


@pytest.mark.parametrize("method", ["add", "set", "min"])
@pytest.mark.parametrize("fill", [0.0, 2.5])
def test_what_is_one_value_everywhere_is_written_over_without_a_barrier(method, fill):
    """What a loss by index gives back is a scatter over zeros, added to the softmax's part: one kernel of XLA's."""
    x, u = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32), np.full(16, 1.5, np.float32)

    def write(x, u):
        return x + getattr(jnp.full_like(x, fill).at[33], method)(u)

    pins = {name: jax.sharding.PartitionSpec("x") for name in ("x", "result:0")}
    step = rhino.parallelize(write, cluster="cpu8", pins=pins)
    np.testing.assert_allclose(step(x, u), jax.jit(write)(x, u), rtol=1e-6)
    text = jax.jit(step).lower(x, u).as_text()
    assert "stablehlo.scatter" in text
    assert "optimization_barrier" not in text


def test_a_slice_of_a_cut_operand_starts_where_clamping_puts_it():
    """The index of a dim that is taken whole says nothing, and is not added to the place of the cut."""
    x, place = jnp.arange(64.0 * 16).reshape(64, 16), jnp.array([2, 5])

    def read(x, place):
        return lax.dynamic_slice(x, (place[0], place[1]), (4, 16))

    step = rhino.parallelize(
        read,
        cluster="cpu8",
        pins={"x": jax.sharding.PartitionSpec(), "result:0": jax.sharding.PartitionSpec(None, "x")},
    )
    np.testing.assert_array_equal(step(x, place), jax.jit(read)(x, place))


def test_a_narrow_index_is_clamped_to_what_it_can_reach():
    x, place = jnp.arange(300.0), jnp.array(100, jnp.int8)

    def read(x, place):
        return lax.dynamic_slice(x, (place,), (16,))

    np.testing.assert_array_equal(rhino.parallelize(read, cluster="cpu8")(x, place), jax.jit(read)(x, place))


def test_each_sequence_writes_its_own_place_of_a_cache():
    """Decoding, two sequences at different places, the heads of the cache split."""
    cache, rows, places = jnp.zeros((2, 64, 8, 4)), jnp.ones((2, 8, 4)), jnp.array([3, 60])

    def write(cache, rows, places):
        return jax.vmap(lambda c, r, i: lax.dynamic_update_slice(c, r[None], (i, 0, 0)))(cache, rows, places)

    spec = jax.sharding.PartitionSpec(None, None, "x", None)
    step = rhino.parallelize(write, cluster="cpu8", pins={"cache": spec, "result:0": spec})
    np.testing.assert_array_equal(step(cache, rows, places), jax.jit(write)(cache, rows, places))


def test_xla_forgets_to_clamp_a_slice_of_a_slice():
    """Why a barrier stands before a scatter, in passes/sharding/indexed_ops.py.

    Where this fails, XLA clamps, and the barrier may go.
    """
    table = jnp.array([0, 10, 20, 30, 40])

    def twice(x, place):
        offset = lax.dynamic_slice(table, (place,), (1,))[0]
        return lax.dynamic_slice(lax.dynamic_slice(x, (offset,), (10,)), (32 - offset,), (1,))

    assert jax.jit(twice)(jnp.arange(50), 0).tolist() == [32], "it is 9 that is due"
