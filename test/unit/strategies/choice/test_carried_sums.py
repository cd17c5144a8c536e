"""What a loop carries as a sum stays one in all its rounds, whatever its readers want behind it."""

import jax
import jax.numpy as jnp
import pytest
from drawn_plans import drawable

from rhino.ir.program.collectives import module_stats
from rhino.passes.sharding.choose_shardings import predicted_stats
from rhino.passes.sharding.localize import localized_copy

ROWS = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def accumulate(x, y):
    total, _ = jax.lax.scan(lambda total, _: (total + jnp.tanh(x).T @ (y * 1.5), None), jnp.zeros((8, 8)), length=3)
    return total.T * 2.0, total.T + 1.0


@pytest.fixture(scope="module")
def text() -> str:
    return jax.jit(accumulate).lower(ROWS, ROWS).as_text()


@pytest.mark.parametrize("seed", range(12))
def test_it_is_brought_to_what_its_readers_want_once(text, seed):
    drawn = drawable(text, "2x2")
    plan = drawn.plan(seed, "sums")
    assert predicted_stats(plan) == module_stats(localized_copy(drawn.module, "step"))
