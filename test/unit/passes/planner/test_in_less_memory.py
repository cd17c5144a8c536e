"""Steps that do not fit as they are asked for: what is planned in their place, and what an error lists then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino
from rhino.ir.diagnostics import RhinoError

WIDTH, BATCH = 32, 1024


def step(weights, x):
    def loss(weights):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ weights) @ weights) ** 2)

    return weights - jax.grad(loss)(weights)


WEIGHTS = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) / 8
X = np.random.default_rng(1).standard_normal((BATCH, WIDTH), np.float32)


def planned(budget, **options):
    fast = rhino.parallelize(step, cluster="cpu4", mesh="2", budget=budget, donate_argnums=0, **options)
    return fast, fast.plan(WEIGHTS, X)


def test_a_step_that_does_not_fit_is_taken_in_micro_batches_and_gives_the_same(caplog):
    fast, plan = planned("220KiB")
    assert plan.facts.num_micro_batches == 2
    assert "planned in 2 micro-batches" in caplog.text
    expected = np.asarray(jax.jit(step)(WEIGHTS, X))
    np.testing.assert_allclose(np.asarray(fast(WEIGHTS.copy(), X)), expected, rtol=1e-6, atol=1e-6)


def test_a_number_of_micro_batches_that_is_given_stays():
    with pytest.raises(RhinoError, match=r"RHI-SOLVE-001") as raised:
        planned("220KiB", micro_batches=1)
    assert not any("micro-batches" in note for note in raised.value.notes)


def test_what_was_tried_is_named_where_nothing_fits():
    with pytest.raises(RhinoError, match=r"RHI-SOLVE-001") as raised:
        planned("20KiB")
    tried = [note.partition(":")[0] for note in raised.value.notes if "no choice of shardings" in note]
    assert tried[-2:] == ["in 2 micro-batches", "with offloading and 2 micro-batches"]
