"""A function planned in stages, on its devices: the executor behind a call of the function."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rhino.call import Key, leaf_kind
from rhino.ir.plan.instructions import Feed, Fetch
from rhino.ir.plan.leaves import leaf_groups, leaf_tensors
from rhino.ir.plan.plan import Tensor
from rhino.jit_program import Getter, NewShapesError, as_known, as_stored
from rhino.passes.planner.plan_rows import busy_seconds
from rhino.plan import Plan
from rhino.runtime.executor.executable import off_host, weakly_typed
from rhino.runtime.executor.executor import Argument, Executor
from rhino.runtime.executor.trace import Recorder
from rhino.split_array import SplitArray
from rhino.spread import Spread
from rhino.traced import Traced


class StagePrograms:
    """The programs of a plan in stages, compiled and bound; `run` takes the arrays of a call as `Pieces.values`.

    Results stay where they are made, and are ordinary arrays there. An argument that lies where it is fed is used as it
    is. Of several processes each has the programs of its own ranks (`rhino.spread`).
    """

    watched: tuple[Getter, ...] = ()

    def __init__(self, traced: Traced, plan: Plan, recorder: Recorder | None = None) -> None:
        """`recorder` notes what each rank does.

        Raises RHI-RUN-004 where the devices do not do, RHI-RUN-007 where another process does not come.
        """
        self.key: Key = traced.key
        self.recorder = recorder
        self.in_shardings: tuple[Any, ...] = plan.program_shardings[0]
        self._traced = traced
        arguments, results = plan.facts.arguments, plan.facts.results
        given, made = ([one.num_key_dims for one in side] for side in leaf_tensors(arguments, results))
        self._given_by = leaf_groups(arguments)
        self._given = [[arguments[piece].rows for piece in group] for group in self._given_by]
        self._made = leaf_groups(results)
        self._kept = plan.facts.predicted.kept_bytes
        self._kinds = [(*kind, bool(words)) for kind, words in zip(traced.key.leaves, given, strict=True)]
        self._keys = {n: _implementation(aval.dtype) for n, aval in enumerate(traced.out_avals) if made[n]}
        self._weak = [n for n, aval in enumerate(traced.out_avals) if aval.weak_type]
        self._donated = [number for number in traced.alias if number not in traced.kept]
        self._taken = _by_rank(plan, arguments, plan.argument_shardings, as_stored, is_known_first=True)
        self._given_back = _by_rank(plan, results, plan.result_shardings, as_known, is_known_first=False)
        self._spread = Spread(plan, plan.team) if plan.team is not None else None
        self._execution = execution = plan.facts.execution
        if self._spread is None:
            assert execution is not None, "it is a plan of stage programs"
            fed = {one.target: one.argument for one in execution.step.instructions if isinstance(one, Feed)}
            fetched = [one.source for one in execution.step.instructions if isinstance(one, Fetch)]
            self._returned = frozenset(fed[slot] for slot in fetched if slot in fed)
            self._executor = Executor(
                execution.step,
                execution.modules,
                {rank.rank: rank.devices for rank in plan.ranks},
                options=plan.own_options,
                recorder=recorder,
            )
        else:
            self._returned = self._spread.share.returned
            self._executor = self._spread.executor(recorder)
            self._donated = [number for number in self._donated if number not in self._spread.share.lasting]
        weakref.finalize(self, self._executor.close)

    def run(self, *values: Any) -> Any:  # noqa: ANN401 - pytrees
        """Dispatches a step and returns its results."""
        leaves, tree = jax.tree.flatten(values)
        if tree != self.key.tree:
            raise NewShapesError
        pieces = [
            _pieces(_stored(leaf, *kind), rows)
            for leaf, kind, rows in zip(leaves, self._kinds, self._given, strict=True)
        ]
        arguments = [one for each in pieces for one in each]
        if self._spread is not None:
            arguments = self._spread.taken(arguments)
        for moved in self._taken:
            moved.move(arguments)
        made, result_ids = _each_once(self._executor.run(arguments))
        for number in self._donated:
            own = zip(_arrays(leaves[number]), pieces[number], self._given_by[number], strict=False)
            for leaf, argument, place in own:
                # One that was moved first, and is a result as it is, may share its buffers with that.
                if id(argument) not in result_ids and place not in self._returned and not leaf.is_deleted():
                    leaf.delete()  # it was sent, or moved first: its buffer could not be taken over
        if self._spread is not None:
            made = self._spread.completed(made)
        for moved in self._given_back:
            moved.move(made)
        results: list[Any] = [_joined([made[piece] for piece in group]) for group in self._made]
        for number, implementation in self._keys.items():
            results[number] = jax.random.wrap_key_data(jnp.asarray(results[number]), impl=implementation)
        for number in self._weak:
            if isinstance(results[number], jax.Array):
                results[number] = weakly_typed(results[number])
        return jax.tree.unflatten(self._traced.out_tree, results)

    call = run

    def compiled_bytes(self, _values: tuple[Any, ...]) -> int:
        """Returns the bytes that a step takes of a device of the rank that takes most, as its programs were compiled.

        The ranks are those of this process; returns 0 where it has none.
        """
        return max(self.rank_bytes().values(), default=0)

    def rank_bytes(self) -> dict[int, int]:
        """Returns the bytes that a step takes of a device of each rank of this process, as programs were compiled."""
        return {rank: peak + self._kept[rank] for rank, peak in self._executor.peak_bytes().items()}

    def busy_seconds(self) -> tuple[float, ...]:
        """Returns how long each rank is predicted to run programs in a step [ranks]."""
        if self._spread is not None:
            return self._spread.share.busy_s
        assert self._execution is not None, "it is a plan of stage programs"
        return busy_seconds(self._execution)

    @property
    def step_number(self) -> int:
        """The number of the step that was started last, as a recorder has it."""
        return self._executor.memory.step

    def last_runs(self) -> list[Any]:
        """Returns what is there when the last programs of that step have ended, one for each rank of this process."""
        return [runs[-1][1] for runs in self._executor.launched().values() if runs]

    def place(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments as they are: the executor moves what lies elsewhere."""
        return values


@dataclass(frozen=True, slots=True, eq=False)
class _Moved:
    """Arrays of a rank by number that one program brings from the shape that callers know to that stored, or back."""

    numbers: tuple[int, ...]
    sources: tuple[jax.sharding.NamedSharding, ...]
    program: Any

    def move(self, arrays: list[Any]) -> None:
        """Puts them in the place of the arrays that they are made of."""
        given = [jax.device_put(arrays[n], source) for n, source in zip(self.numbers, self.sources, strict=True)]
        for number, array in zip(self.numbers, self.program(given), strict=True):
            arrays[number] = array


def _by_rank(
    plan: Plan,
    tensors: Sequence[Tensor],
    known: Sequence[jax.sharding.NamedSharding],
    change: Callable[[jax.Array, Tensor], jax.Array],
    *,
    is_known_first: bool,
) -> list[_Moved]:
    """Returns what changes the viewed tensors of each rank of this process; `known` are their shardings between calls.

    They are changed in one program, so that what moves is sent together.
    """
    found = []
    here = plan.team.ranks[jax.process_index()] if plan.team is not None else range(len(plan.ranks))
    for rank in here:
        numbers = tuple(n for n, one in enumerate(tensors) if one.viewed and one.rank == rank)
        if numbers:
            own = [tensors[n] for n in numbers]
            outside, inside = [known[n] for n in numbers], [plan.ranks[rank].sharding(one.dims) for one in own]
            sources, targets = (outside, inside) if is_known_first else (inside, outside)
            program = jax.jit(partial(_changed, change, own), out_shardings=targets)
            found.append(_Moved(numbers, tuple(sources), program))
    return found


def _changed(
    change: Callable[[jax.Array, Tensor], jax.Array], tensors: Sequence[Tensor], arrays: Sequence[jax.Array]
) -> list[jax.Array]:
    return [change(array, one) for array, one in zip(arrays, tensors, strict=True)]


def _pieces(leaf: Argument | SplitArray, rows: Sequence[tuple[int, int] | None]) -> Sequence[Argument]:
    """Returns the arguments that a leaf is, for the rows of each; None is for all rows."""
    if isinstance(leaf, SplitArray):
        if leaf.rows == tuple(rows):
            return leaf.pieces
        leaf = np.asarray(leaf)
    if rows[0] is None or leaf is None:
        return (leaf,)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and leaf.is_fully_replicated:
        leaf = leaf.addressable_data(0)
    leaf = off_host(leaf)
    return [leaf[one[0] : one[1]] for one in rows if one is not None]


def _arrays(leaf: Any) -> Sequence[jax.Array]:  # noqa: ANN401 - a leaf
    """Returns JAX's arrays of a leaf."""
    return leaf.pieces if isinstance(leaf, SplitArray) else (leaf,) if isinstance(leaf, jax.Array) else ()


def _joined(pieces: Sequence[Any]) -> Any:  # noqa: ANN401 - arrays
    """Returns the leaf that pieces are."""
    return pieces[0] if len(pieces) == 1 else SplitArray(pieces)


def _stored(leaf: Any, shape: tuple[int, ...], dtype: Any, is_key: bool) -> Argument | SplitArray:  # noqa: ANN401 - a leaf, and its dtype
    """Returns a leaf as the executor takes it: typed keys as their words.

    Raises NewShapesError for another, or a dead one.
    """
    if isinstance(leaf, SplitArray):
        if leaf.shape != shape or leaf.dtype != dtype or leaf.is_deleted():
            raise NewShapesError
        return leaf
    if not isinstance(leaf, jax.Array):
        if leaf_kind(leaf) != (shape, dtype):
            raise NewShapesError
        return np.asarray(leaf, dtype)
    if leaf.shape != shape or leaf.dtype != dtype or leaf.is_deleted():
        raise NewShapesError
    return jax.random.key_data(leaf) if is_key else leaf


def _each_once(results: Sequence[Any]) -> tuple[list[Any], set[int]]:
    """Returns the results of a step, with an array that is several of them copied, and the arrays' ids.

    Each result may be donated alone, so each needs a buffer of its own.
    """
    apart: list[Any] = []
    seen: set[int] = set()
    for one in results:
        apart.append(one.copy() if id(one) in seen and one is not None else one)  # None is in another process
        seen.add(id(one))
    return apart, seen


def _implementation(dtype: Any) -> str:  # noqa: ANN401 - JAX's dtype of keys
    """Returns the generator of typed keys."""
    return str(jax.random.key_impl(jnp.empty((), dtype)))
