"""A training loop that goes on where it stopped: `train`, and batches by number of which a process reads its part.

The position in the data is the number of the step, so a checkpoint serves any number of processes and devices. Orbax
keeps the checkpoints (`pip install 'rhino-parallel[checkpoint]'`); data sets are those of grain, or any sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.loss_scale import LossScale
from rhino.parallelized import Parallelized
from rhino.plan import Plan
from rhino.split_array import SplitSharding

_STATE, _LOOP = "state", "loop"
"""What a checkpoint holds: the state as its own tree, and where the loop is."""


class Dataset(Protocol):
    """Examples by number, as `grain.MapDataset` and lists have them."""

    def __len__(self) -> int:
        """Returns how many there are."""

    def __getitem__(self, number: int, /) -> Any:  # noqa: ANN401 - a pytree of arrays
        """Returns an example."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of `size` examples each, one behind the other, and from the start again behind the last.

    A data set that is shuffled anew each time says so itself, as `grain.MapDataset.shuffle(seed).repeat()`.
    """

    dataset: Dataset
    size: int

    def __call__(self, number: int) -> Any:  # noqa: ANN401 - a pytree of arrays
        """Returns a whole batch."""
        return jax.tree.map(lambda *each: _stacked(each), *self._examples(number, range(self.size)))

    def shapes(self) -> Any:  # noqa: ANN401 - a pytree
        """Returns the shape and type of each array of a batch, for which one example is read."""
        return jax.tree.map(self._shape, self._examples(0, range(1))[0])

    def placed(self, number: int, shardings: Any, shapes: Any) -> Any:  # noqa: ANN401 - pytrees, and one of arrays
        """Returns a batch of these `shapes` with these shardings.

        This process reads the examples of which something lies on its devices, and keeps the arrays that do.
        """
        kinds, tree = jax.tree.flatten(shapes)
        places = list(zip(kinds, jax.tree.leaves(shardings), strict=True))
        rows = [_rows(sharding, kind.shape) for kind, sharding in places]
        taken = [one for one in rows if one]
        here = range(min((one.start for one in taken), default=0), max((one.stop for one in taken), default=0))
        examples = [jax.tree.leaves(one) for one in self._examples(number, here)]
        found: list[jax.Array] = []
        for leaf, (kind, sharding) in enumerate(places):
            if rows[leaf]:
                found.append(_placed(_stacked([one[leaf] for one in examples]), here.start, kind, sharding))
            else:
                found.append(jax.make_array_from_single_device_arrays(kind.shape, sharding, [], dtype=kind.dtype))
        return jax.tree.unflatten(tree, found)

    def _examples(self, number: int, rows: range) -> list[Any]:
        """Returns some examples of a batch."""
        return [self.dataset[(number * self.size + row) % len(self.dataset)] for row in rows]

    def _shape(self, leaf: Any) -> jax.ShapeDtypeStruct:  # noqa: ANN401 - an array
        one = _stacked([leaf])
        return jax.ShapeDtypeStruct((self.size, *one.shape[1:]), one.dtype)


def train(
    step: Parallelized,
    init: Callable[[], Any],
    batches: Callable[[int], Any],
    *,
    num_steps: int,
    checkpoints: str | PathLike[str] | None = None,
    every: int = 100,
    keep: int = 2,
    on_step: Callable[[int, Any], object] | None = None,
) -> Any:  # noqa: ANN401 - a state
    """Runs `state, out = step(state, batch)` to `num_steps`, and returns the state.

    It goes on from the last checkpoint, which a job of any plan, devices and processes has left. Every process calls
    this.

    Args:
        step: a step that `rhino.parallelize` has made.
        init: makes the first state.
        batches: gives the batch of a step by its number: `Batches`, or a function of one's own.
        num_steps: how many steps are trained in all, those of before among them.
        checkpoints: a folder for them; left out, there are none.
        every: after so many steps there is a checkpoint, and after the last.
        keep: how many of them are kept.
        on_step: called with each step's number and what the step has returned beside the state, which may not be
            computed yet.

    Raises:
        RhinoError: those of the step.
    """
    shapes = _shapes(batches)
    plan = step.plan(jax.eval_shape(init), shapes)
    read = _reader(batches, plan, shapes)
    kept = _Kept(Path(fspath(checkpoints)).absolute(), every, keep) if checkpoints is not None else None
    try:
        state, first = (step.init(init), 0) if kept is None or kept.last is None else kept.restore(step, plan)
        for number in range(first, num_steps):
            state, out = step(state, read(number))
            if on_step is not None:
                on_step(number, out)
            if kept is not None and ((number + 1) % every == 0 or number + 1 == num_steps):
                step.check_finite()
                kept.save(number + 1, step, state)
        step.check_finite()
    except BaseException:
        if kept is not None and jax.process_count() == 1:  # of several, others wait for what this one does not save
            kept.close()
        raise
    if kept is not None:
        kept.close()
    return state


class _Kept:
    """The checkpoints of a folder."""

    def __init__(self, folder: Path, every: int, keep: int) -> None:
        try:
            import orbax.checkpoint as ocp  # noqa: PLC0415 - an extra

            from rhino import checkpoint  # noqa: PLC0415 - which needs it
        except ImportError:
            fix = "pip install 'rhino-parallel[checkpoint]'"
            raise RhinoError("RHI-JAX-002", "checkpoints are given, and orbax is not there", fix=fix) from None
        self._ocp, self._checkpoint = ocp, checkpoint
        handlers = {_STATE: checkpoint.handler(), _LOOP: ocp.JsonCheckpointHandler()}
        options = ocp.CheckpointManagerOptions(max_to_keep=keep)
        self._manager = ocp.CheckpointManager(folder, options=options, item_handlers=handlers)
        self.last: int | None = self._manager.latest_step()

    def restore(self, step: Parallelized, plan: Plan) -> tuple[Any, int]:
        """Returns the state of the last checkpoint as the plan wants it, and the number of the next step."""
        state = self._checkpoint.restore_args(plan.in_shardings[0])
        args = self._ocp.args.Composite(**{_STATE: state, _LOOP: self._ocp.args.JsonRestore()})
        found = self._manager.restore(self.last, args=args)
        loop = found[_LOOP]
        if loop["loss_scale"] is not None:
            step.loss_scale = LossScale(*loop["loss_scale"])
        return found[_STATE], int(loop["step"])

    def save(self, number: int, step: Parallelized, state: Any) -> None:  # noqa: ANN401
        """Keeps a state after `number` steps; writing goes on beside the next ones."""
        scale = step.loss_scale
        numbers = None if scale is None else [np.asarray(one).item() for one in scale]
        loop = {"step": number, "loss_scale": numbers}
        args = {_STATE: self._checkpoint.save_args(state), _LOOP: self._ocp.args.JsonSave(loop)}
        self._manager.save(number, args=self._ocp.args.Composite(**args))

    def close(self) -> None:
        """Waits until what was saved is written."""
        self._manager.close()


def _shapes(batches: Callable[[int], Any]) -> Any:  # noqa: ANN401 - a pytree
    """Returns the shape and type of each array of a batch."""
    if isinstance(batches, Batches):
        return batches.shapes()
    return jax.eval_shape(lambda: jax.tree.map(np.asarray, batches(0)))


def _reader(batches: Callable[[int], Any], plan: Plan, shapes: Any) -> Callable[[int], Any]:  # noqa: ANN401
    """Returns what gives the batch of a step: what of it lies in this process, or the whole.

    It is the whole of what is no `Batches`, and where an array of it is fed to several ranks.
    """
    if not isinstance(batches, Batches) or plan.facts.shares:
        return batches
    shardings = plan.in_shardings[1]
    if any(isinstance(one, SplitSharding) for one in jax.tree.leaves(shardings)):
        return batches
    return lambda number: batches.placed(number, shardings, shapes)


def _stacked(leaves: Sequence[Any]) -> Any:  # noqa: ANN401 - an array
    """Returns leaves stacked, in the type that jit takes them for."""
    found = np.stack(leaves)
    return found.astype(jax.dtypes.canonicalize_dtype(found.dtype), copy=False)


def _rows(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> range:
    """Returns the rows between the first and the last that lie on devices of this process, none where none do."""
    spans = [one[0].indices(shape[0]) for one in sharding.addressable_devices_indices_map(shape).values() if one]
    return range(min((start for start, _, _ in spans), default=0), max((stop for _, stop, _ in spans), default=0))


def _placed(
    part: Any,  # noqa: ANN401 - an array
    first: int,
    kind: jax.ShapeDtypeStruct,
    sharding: jax.sharding.Sharding,
) -> jax.Array:
    """Returns an array of which the rows from `first` on are `part`, and all that lie in this process are in it."""

    def at(index: tuple[slice, ...] | None) -> Any:  # noqa: ANN401 - an array
        assert index is not None, "it is of this process"
        start, stop, _ = index[0].indices(kind.shape[0])
        return part[(slice(start - first, stop - first), *index[1:])]

    return jax.make_array_from_callback(kind.shape, sharding, at, dtype=kind.dtype)
