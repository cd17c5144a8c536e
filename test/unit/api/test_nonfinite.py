"""A step whose loss is NaN raises, leaves its state as it was, or goes on: in one program, in stages, and in f16."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino
from rhino.ir.diagnostics import RhinoError

State = dict[str, jax.Array]
BATCH = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
BAD = np.where(np.arange(16)[:, None] == 3, np.nan, BATCH).astype(np.float32)
PLANS: dict[str, dict[str, Any]] = {
    "one program": {"mesh": "4"},
    "stages": {"stages": 2, "mesh": "1", "micro_batches": 2},
}


def init() -> State:
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "up": jax.random.normal(keys[0], (8, 16)) / 3,
        "down": jax.random.normal(keys[1], (16, 8)) / 4,
        "count": jnp.int32(0),
    }


def step(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
    def loss(params: State) -> jax.Array:
        return ((jnp.tanh(batch @ params["up"]) @ params["down"] - batch) ** 2).mean()

    value, grads = jax.value_and_grad(loss)({name: state[name] for name in ("up", "down")})
    new = {name: state[name] - 0.1 * grad for name, grad in grads.items()}
    return {**new, "count": state["count"] + 1}, value


def planned(policy: str, plan: str = "one program", **options: Any) -> Any:
    fast = rhino.parallelize(step, cluster="cpu4", donate_argnums=0, on_nonfinite=policy, **PLANS[plan], **options)
    fast.plan(jax.eval_shape(init), BATCH)
    return fast


@pytest.mark.parametrize("plan", PLANS)
def test_a_bad_batch_is_as_if_it_had_not_been(plan: str):
    fast, alone = planned("skip", plan), jax.jit(step)
    state, expected = fast.init(init), init()
    for batch in (BATCH, BAD, BATCH):
        state, loss = fast(state, batch)
        assert np.isfinite(float(loss)) == (batch is BATCH)
        if batch is BATCH:
            expected, wanted = alone(expected, batch)
            np.testing.assert_allclose(float(loss), float(wanted), rtol=1e-5)
    for name, leaf in state.items():
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-5, atol=1e-6)
    assert int(state["count"]) == 2


def test_it_is_ignored_unless_asked():
    fast = planned("ignore")
    state, _ = fast(fast.init(init), BAD)
    assert np.isnan(state["up"]).all()


@pytest.mark.parametrize("plan", PLANS)
def test_it_raises_two_calls_later_or_when_asked(plan: str):
    fast = planned("raise", plan)
    state = fast.init(init)
    for batch in (BATCH, BAD, BATCH):
        state, _ = fast(state, batch)
    with pytest.raises(RhinoError, match=r"RHI-RUN-011.*a loss of call 1 of step, counted from 0, is nan"):
        fast(state, BATCH)
    fast = planned("raise", plan)
    fast(fast.init(init), BAD)
    with pytest.raises(RhinoError, match=r"RHI-RUN-011.*a loss of call 0 of step"):
        fast.check_finite()


def test_with_a_loss_scale_both_keep_the_state():
    fast = planned("skip", amp="f16")
    state = fast.init(init)
    before, scale = {name: np.asarray(leaf) for name, leaf in state.items()}, float(fast.loss_scale.scale)
    state, _ = fast(state, BAD)
    assert all((np.asarray(leaf) == before[name]).all() for name, leaf in state.items())
    assert float(fast.loss_scale.scale) < scale
    state, loss = fast(state, BATCH)
    assert np.isfinite(float(loss))
    assert int(state["count"]) == 1


@pytest.mark.parametrize(
    ("fn", "donated", "why"),
    [
        (step, (), "no argument is donated"),
        (lambda state, batch: step(state, batch)[1], 0, "a donated argument has no result of its tree"),
        (lambda state, batch: step(state, batch)[0], 0, "no result is a loss"),
    ],
)
def test_what_cannot_be_skipped_is_refused(fn: Any, donated: Any, why: str):
    fast = rhino.parallelize(fn, cluster="cpu4", mesh="4", donate_argnums=donated, on_nonfinite="skip")
    with pytest.raises(RhinoError, match=rf"RHI-JAX-002.*{why}"):
        fast.plan(jax.eval_shape(init), BATCH)


def test_another_policy_is_refused():
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*on_nonfinite is 'retry'"):
        rhino.parallelize(step, on_nonfinite="retry")
