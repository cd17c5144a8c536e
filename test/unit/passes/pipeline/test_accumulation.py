"""A loop that accumulates gradients over micro-batches.

Each device adds up by itself, and the sums are joined once, after the loop.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from clusters import waiting
from planning import Planned, plan_step, reference

from rhino.ir.graph.graph import WHILE
from rhino.ir.graph.spec import partial_axes
from rhino.runtime.executor.executable import compile_module
from rhino.strategies.choice.sharding_plan import Transfer

BATCH, FEATURES, HIDDEN, MICRO_BATCHES = 8192, 64, 256, 4


def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


@functools.cache
def step(start: Callable[[jax.Array], jax.Array]) -> bytes:
    """A step whose accumulators start as `start` of each parameter."""

    def train(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        xs, ys = (a.reshape(MICRO_BATCHES, -1, FEATURES) for a in (x, y))

        def accumulate(i: jax.Array, sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return jax.tree.map(jnp.add, sums, jax.grad(loss)(params, xs[i], ys[i]))

        sums = jax.lax.fori_loop(0, MICRO_BATCHES, accumulate, jax.tree.map(start, params))
        return jax.tree.map(lambda value, total: value - 0.1 * total / MICRO_BATCHES, params, sums)

    params = {"in": jnp.zeros((FEATURES, HIDDEN)), "out": jnp.zeros((HIDDEN, FEATURES))}
    batch = jnp.zeros((BATCH, FEATURES))
    return jax.jit(train, donate_argnums=0).lower(params, batch, batch).as_text().encode()


@functools.cache
def planned(start: Callable[[jax.Array], jax.Array], mesh: str) -> Planned:
    return plan_step(step(start), "accumulation", waiting("v100x8"), mesh=mesh)


def carried_sums(plan: Planned) -> list[int]:
    """The parameter-sized values that the loop carries as partial sums."""
    graph = plan.plan.graph
    [loop] = graph.loops
    assert graph.cls(loop.op).name == WHILE
    return [value for value in graph.results(loop.op) if partial_axes(plan.plan.specs[value])]


def sent_in_loop(plan: Planned) -> list[Transfer]:
    """The collectives inside the loop, but those of scalars."""
    return [t for t in plan.plan.transfers() if t.times == MICRO_BATCHES and plan.plan.graph.type_of(t.value).shape]


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_gradients_are_joined_once_a_step(mesh: str):
    plan = planned(jnp.zeros_like, mesh)
    assert len(carried_sums(plan)) == 2
    assert sent_in_loop(plan) == []
    assert plan.localized == plan.predicted


@pytest.mark.parametrize("mesh", ["4", "2x2"])
@pytest.mark.parametrize("form", ["annotated", "localized"])
def test_accumulation_gives_the_answer_of_one_device(mesh: str, form: str):
    executable = compile_module(planned(jnp.zeros_like, mesh).form(form), jax.devices()[:4])
    difference = reference(step(jnp.zeros_like), "accumulation", 2).difference(executable)
    assert difference.passes, difference


def test_only_zeros_start_partial_sums():
    plan = planned(jnp.ones_like, "4")
    assert carried_sums(plan) == []
    executable = compile_module(plan.form("localized"), jax.devices()[:4])
    assert reference(step(jnp.ones_like), "accumulation", 2).difference(executable).passes
