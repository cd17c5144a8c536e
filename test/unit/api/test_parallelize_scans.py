"""Scanned layers in stages from JAX: a stack is one leaf of the state, whose rows lie where their layers are."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scanned_steps import LAYERS, STEPS, batch, layer, state

import rhino

DEVICES = 8
OPTIONS = {"cluster": "cpu8", "donate_argnums": 0, "micro_batches": 4}


@functools.cache
def trained(name: str, steps: int = 3):
    """What one device makes of some steps."""
    run, now, losses = jax.jit(STEPS[name]), state(), []
    for _ in range(steps):
        now, loss = run(now, batch())
        losses.append(loss)
    return now, losses


@functools.cache
def in_two_stages():
    """The step in two stages, and its plan."""
    step = rhino.parallelize(STEPS["plain"], stages=2, **OPTIONS)
    return step, step.plan(jax.eval_shape(state), jax.eval_shape(batch))


def check_same(got, want) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("plain", {"stages": 4}, marks=pytest.mark.long),
        pytest.param("clipped", {"stages": 2, "schedule": "zero-bubble"}, marks=pytest.mark.long),
        pytest.param("dropped", {"stages": 3, "mesh": "2"}, marks=pytest.mark.long),
        ("checkpointed", {"stages": 4, "schedule": "interleaved", "mesh": "2"}),
        pytest.param("twice", {"stages": 2}, marks=pytest.mark.long),
        ("apart", {"stages": 3, "mesh": "1"}),
    ],
)
def test_training_is_that_of_one_device(name: str, options: dict[str, object]):
    step = rhino.parallelize(STEPS[name], **{**OPTIONS, **options})
    step.plan(jax.eval_shape(state), jax.eval_shape(batch))
    now, losses = step.init(state), []
    stacks = [leaf for leaf in jax.tree.leaves(now) if leaf.ndim and leaf.shape[0] == LAYERS]
    split = [leaf for leaf in stacks if isinstance(leaf, rhino.SplitArray)]
    assert split
    assert split == stacks or name == "apart"  # of the loop over little, all is on one rank
    assert len({device for leaf in split for piece in leaf.pieces for device in piece.devices()}) > 2
    for _ in range(3):
        before = now
        now, loss = step(now, batch())
        losses.append(loss)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    check_same((now, losses), trained(name))


def test_a_state_goes_to_the_host_and_comes_back(tmp_path: Path):
    step = rhino.parallelize(STEPS["plain"], stages=2, verify=True, **OPTIONS)
    now, _ = step(state(), batch())  # whole arrays are taken as well
    np.savez(tmp_path / "state.npz", *jax.tree.leaves(jax.device_get(now)))
    with np.load(tmp_path / "state.npz") as file:
        kept = jax.tree.unflatten(jax.tree.structure(now), [file[name] for name in file.files])
    now, _ = step(kept, batch())
    check_same(now, trained("plain", 2)[0])


@pytest.mark.long
def test_a_plan_from_a_folder_runs_on_the_state_of_another(tmp_path: Path):
    step, plan = in_two_stages()
    plan.save(tmp_path / "plan")
    again = rhino.parallelize(STEPS["plain"], plan=rhino.Plan.load(tmp_path / "plan"), donate_argnums=0)
    other = rhino.parallelize(STEPS["plain"], stages=3, **OPTIONS)
    whole = rhino.parallelize(STEPS["plain"], cluster="cpu8", donate_argnums=0)
    now = state()
    for one in (other, again, step, whole):
        now, _ = one(now, batch())
    check_same(now, trained("plain", 4)[0])


def test_a_plan_says_which_rows_are_where():
    _, plan = in_two_stages()
    ranks = {path: rank for path, rank in plan.rank_of().items() if "['up']" in path and "state[0]" in path}
    assert [path.rpartition("[")[2] for path in ranks] == ["0:3]", "3:6]"] or len(ranks) > 2
    assert set(ranks.values()) == {0, 1}
    sharding = plan.in_shardings[0][0]["layers"]["up"]
    assert isinstance(sharding, rhino.SplitSharding)
    assert sharding.rows[0][0] == 0
    assert sharding.rows[-1][1] == LAYERS


@pytest.mark.long
def test_pieces_are_found_by_the_name_of_their_leaf():
    _, plan = in_two_stages()
    of_leaf = {path: rank for path, rank in plan.rank_of().items() if path.startswith("state[0]['layers']['up'][")}
    assert len(of_leaf) > 2
    for name in ("state[0]['layers']['up']", "state.0.layers.up"):
        assert plan.rank_of(name) == of_leaf
        assert plan.partition_specs(name).keys() == of_leaf.keys()
        assert plan.why(name).startswith("state[0]['layers']['up']")
    first = next(iter(of_leaf))
    assert plan.rank_of(first) == {first: 0}
    assert len(plan.rank_of("layers.up")) == 3 * len(of_leaf)  # the moments, too
    with pytest.raises(rhino.RhinoError, match="RHI-PIN-002") as caught:
        plan.rank_of("layers.upp")
    assert "did you mean" in str(caught.value)


def orthogonal(update):
    """The stacked matrices of an update nearer to orthogonal ones, by a loop that is not over layers."""
    scaled = update / (1e-3 + jnp.sqrt((update * update).sum((1, 2), keepdims=True)))
    return jax.lax.fori_loop(0, LAYERS, lambda _, x: 1.5 * x - 0.5 * x @ x.mT @ x, scaled)


def given_whole(state, batch):
    """Gradients of stacks are results, moments are returned as they came, and a loop of the update reads all rows."""
    params, *moments = state

    def loss(params):
        run = jax.lax.scan(lambda h, p: (layer(h, p), None), batch["x"] @ params["in"], params["layers"])
        return jnp.mean((run[0] @ params["out"] - batch["y"]) ** 2)

    grads = jax.grad(loss)(params)
    updates = {**grads, "layers": {n: orthogonal(g) if g.ndim > 2 else g for n, g in grads["layers"].items()}}
    return (jax.tree.map(lambda p, u: p - 0.01 * u, params, updates), *moments), grads


def test_what_is_needed_whole_is_put_together():
    step = rhino.parallelize(given_whole, stages=2, mesh="2", **OPTIONS)
    now, expected = state(), state()
    for _ in range(2):
        now, grads = step(now, batch())
        expected, wanted = jax.jit(given_whole)(expected, batch())
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((now, grads)))  # moments are where arguments were
        check_same((now, grads), (expected, wanted))


def test_a_split_array_is_an_array():
    pieces = [jnp.arange(6.0).reshape(3, 2), jnp.arange(6.0, 8.0).reshape(1, 2)]
    array = rhino.SplitArray(pieces)
    assert (array.shape, array.dtype, array.ndim, array.size, array.nbytes, len(array)) == (
        (4, 2),
        "float32",
        2,
        8,
        32,
        4,
    )
    assert array.rows == ((0, 3), (3, 4))
    np.testing.assert_array_equal(np.asarray(array), np.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(jnp.asarray(array), np.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(array[3], [6.0, 7.0])
    jax.block_until_ready({"a": array})
    copy = array.copy()
    array.delete()
    assert array.is_deleted()
    assert not copy.is_deleted()
