"""The state of any plan is saved as whole arrays, and restored into any other plan, or plain JAX."""

import os
import shutil
from pathlib import Path
from typing import Any

import checkpoint_part
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoint_part import JOBS, NUM_STEPS, numbers, parts, state, step, trained
from jobs import launched
from scanned_steps import batch

import rhino


def alone(num_steps: int) -> tuple[Any, list[float]]:
    """Returns the state and the losses of one device."""
    now, losses, one = state(), [], jax.jit(step)
    for _ in range(num_steps):
        now, loss = one(now, batch())
        losses.append(float(loss))
    return now, losses


def assert_close(found: dict[str, np.ndarray], whole: Any) -> None:
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(whole)[0]}
    for name, part in found.items():
        path, _, starts = name.partition("|")
        where = tuple(slice(start, start + size) for start, size in zip(eval(starts), part.shape, strict=True))
        leaf = np.asarray(numbers(leaves[path])).astype(np.float64)
        np.testing.assert_allclose(part, leaf[where], rtol=2e-3, atol=2e-5)


def test_a_plan_in_stages_goes_on_as_one_program_and_in_plain_jax(tmp_path: Path):
    expected, losses = alone(2 * NUM_STEPS)
    before, first = trained("2 stages of 4", tmp_path)
    np.testing.assert_allclose(first, losses, rtol=2e-5)
    assert any(isinstance(leaf, rhino.SplitArray) for leaf in jax.tree.leaves(before))
    after, second = trained("2x4", tmp_path)
    np.testing.assert_allclose(second, losses[NUM_STEPS:], rtol=2e-5)
    assert_close(parts(after), expected)
    plain, third = jax.jit(step), []
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    kinds = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=here), jax.eval_shape(state))
    with ocp.CheckpointManager(tmp_path) as manager:
        now = manager.restore(NUM_STEPS, args=ocp.args.StandardRestore(kinds))
    assert jax.tree.map(lambda one: one.dtype, now) == jax.tree.map(lambda one: one.dtype, expected)
    for _ in range(NUM_STEPS):
        now, loss = plain(now, batch())
        third.append(float(loss))
    np.testing.assert_allclose(third, losses[NUM_STEPS:], rtol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("saving", ["2 stages of 4", "4 stages of 2"])
def test_a_job_goes_on_as_any_other(tmp_path: Path, saving: str):
    expected, losses = alone(2 * NUM_STEPS)
    for job, wanted in ((saving, losses), *((other, losses[NUM_STEPS:]) for other in JOBS)):
        count = JOBS[job][0]
        codes = launched(tmp_path, checkpoint_part.__file__, *[(str(tmp_path), job)] * count)
        assert codes == [0] * count, [(tmp_path / f"log-{one}").read_text() for one in range(count)]
        for process in range(count):
            with np.load(tmp_path / f"{job}-{process}.npz") as out:
                found = dict(out)
            np.testing.assert_allclose(found.pop("losses"), wanted, rtol=2e-5)
            assert_close(found, expected)


@pytest.mark.long
def test_a_save_that_is_cut_off_leaves_the_last_whole_one(tmp_path: Path):
    trained("2x4", tmp_path)
    shutil.copytree(tmp_path / str(NUM_STEPS), tmp_path / "9")
    os.remove(tmp_path / "9" / "commit_success.txt")
    _, losses = trained("2 stages of 4", tmp_path)
    np.testing.assert_allclose(losses, alone(2 * NUM_STEPS)[1][NUM_STEPS:], rtol=2e-5)
