"""`rhino.train` goes on from its last checkpoint, by another plan too; a process reads the rows of its devices."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import training_part
from fault_part import BATCHES, KINDS, init, planned, step
from jobs import launched

import rhino
from rhino.ir.diagnostics import RhinoError


def alone(num_steps: int) -> list[float]:
    state, losses, one = init(), [], jax.jit(step)
    for number in range(num_steps):
        state, loss = one(state, BATCHES(number))
        losses.append(float(loss))
    return losses


def trained(fast: Any, num_steps: int, folder: Path, **options: Any) -> dict[int, float]:
    losses: dict[int, float] = {}

    def after(number: int, loss: jax.Array) -> None:
        losses[number] = float(loss)

    rhino.train(fast, init, BATCHES, num_steps=num_steps, checkpoints=folder, on_step=after, **options)
    return losses


def test_it_goes_on_by_another_plan(tmp_path: Path):
    assert [*KINDS] == ["spmd", "stages"]
    expected = alone(6)
    first = trained(planned("stages"), 3, tmp_path, every=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["2", "3"]
    second = trained(planned("spmd"), 6, tmp_path, every=2)
    np.testing.assert_allclose([*first.values(), *second.values()], expected, rtol=1e-5)
    assert [*second] == [3, 4, 5]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["4", "6"]
    assert trained(planned("spmd"), 6, tmp_path) == {}


def test_the_loss_scale_goes_on_too(tmp_path: Path):
    fast = planned("spmd", amp="f16")
    fast.loss_scale = rhino.LossScale(2.0**9, 7)
    trained(fast, 2, tmp_path)
    after = planned("spmd", amp="f16")
    trained(after, 2, tmp_path)
    assert [float(one) for one in after.loss_scale] == [2.0**9, 9]


def test_a_loss_that_is_not_finite_is_not_kept(tmp_path: Path):
    fast = planned("spmd", on_nonfinite="raise")
    bad = np.full((8, 64), np.inf, np.float32)
    with pytest.raises(RhinoError, match=r"RHI-RUN-011.*call 3 of step"):
        rhino.train(fast, init, lambda n: bad if n == 3 else BATCHES(n), num_steps=9, checkpoints=tmp_path, every=2)
    assert [one.name for one in tmp_path.iterdir()] == ["2"]


class Counted:
    """Examples that note which of them were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.read.append(number)
        return {"x": np.full((2,), number), "y": np.int32(number)}


def test_batches_follow_one_another_and_only_rows_of_here_are_read():
    examples = Counted()
    batches = rhino.Batches(examples, 4)
    assert batches(2)["y"].tolist() == [8, 9, 0, 1]
    examples.read.clear()
    shapes = batches.shapes()
    assert examples.read == [0]
    assert {name: (one.shape, one.dtype) for name, one in shapes.items()} == {
        "x": ((4, 2), np.dtype(np.int32)),
        "y": ((4,), np.dtype(np.int32)),
    }
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    both, rows = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ("xy", "x"))
    placed = batches.placed(1, {"x": both, "y": rows}, shapes)
    assert examples.read == [0, 4, 5, 6, 7]
    assert placed["x"].sharding == both
    assert np.asarray(placed["x"])[:, 0].tolist() == np.asarray(placed["y"]).tolist() == [4, 5, 6, 7]


def test_batches_in_stages_lie_where_they_are_read():
    batches = rhino.Batches(training_part.Examples(), training_part.SIZE)
    plan = training_part.planned("stages").plan(jax.eval_shape(training_part.init), batches.shapes())
    assert {name: plan.rank_of(f"batch['{name}']") for name in "xy"} == {"x": {"batch['x']": 0}, "y": {"batch['y']": 1}}
    placed = batches.placed(0, plan.in_shardings[1], batches.shapes())
    assert [placed[name].sharding.device_set for name in "xy"] == [set(rank.devices) for rank in plan.ranks]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "count", "rows"), [("spmd", 2, 4), ("stages", 2, 8), ("stages", 4, 4)])
def test_a_process_reads_what_lies_on_its_devices(tmp_path: Path, kind: str, count: int, rows: int):
    """Ranks in a process each, and in two: then each has half of the rows of its rank."""
    expected, _ = training_part.trained(kind)
    options = (str(tmp_path), str(count), kind)
    codes = launched(tmp_path, training_part.__file__, *[options] * count)
    assert codes == [0] * count, [(tmp_path / f"log-{one}").read_text() for one in range(count)]
    every = []
    for process in range(count):
        with np.load(tmp_path / f"{process}.npz") as out:
            np.testing.assert_allclose(out["losses"], expected, rtol=1e-6)
            first, *read = out["read"].tolist()
        assert first == 0, "its shape"
        assert len(read) == rows * training_part.NUM_STEPS
        every += read
    numbers = [number % 20 for number in range(training_part.SIZE * training_part.NUM_STEPS)]
    assert sorted(every) == sorted(numbers * (rows * count // training_part.SIZE))


def test_data_sets_of_grain_are_read_by_number():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(12).shuffle(seed=3).map(lambda number: {"x": np.int32(number)}).repeat(2)
    batches = rhino.Batches(data, 4)
    epochs = [np.concatenate([batches(number)["x"] for number in range(start, start + 3)]) for start in (0, 3)]
    assert [sorted(one) for one in epochs] == [[*range(12)]] * 2
    assert (epochs[0] != epochs[1]).any()
    assert (batches(4)["x"] == rhino.Batches(data, 4)(4)["x"]).all()
