"""A function planned in stages, on its devices: the executor behind a call of the function."""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np

from rhino.call import Key, leaf_kind
from rhino.pipeline_plan import PipelinePlan
from rhino.program import Getter, NewShapesError
from rhino.runtime.executor import Argument, Executor
from rhino.traced import Traced


class PipelineProgram:
    """The programs of a plan in stages, compiled and bound; `run` takes the arrays of a call as `Pieces.values`.

    Results stay where they are made, and are ordinary arrays there. An argument that lies where it is fed is used as it is.
    """

    watched: tuple[Getter, ...] = ()

    def __init__(self, traced: Traced, plan: PipelinePlan) -> None:
        """Raises RHI-RUN-004 where there are too few devices."""
        self.key: Key = traced.key
        self.in_shardings: tuple[Any, ...] = plan.in_shardings
        self._traced, self._plan = traced, plan
        self._keys = [(n, aval.dtype) for n, aval in enumerate(traced.out_avals) if plan.key_dims[1][n]]
        self._executor = Executor(plan.facts.step, plan.facts.modules, {rank.rank: rank.devices for rank in plan.ranks})
        weakref.finalize(self, self._executor.close)

    def run(self, *values: Any) -> Any:  # noqa: ANN401 - pytrees
        """Dispatches a step and returns its results."""
        leaves, tree = jax.tree.flatten(values)
        if tree != self.key.tree:
            raise NewShapesError
        arguments = list(map(_stored, leaves, self.key.leaves))
        results: list[Any] = list(self._executor.run(arguments))
        for number, dtype in self._keys:
            results[number] = jax.random.wrap_key_data(results[number], impl=_implementation(dtype))
        return jax.tree.unflatten(self._traced.out_tree, results)

    def place(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments as they are: the executor moves what lies elsewhere."""
        return values


def _stored(leaf: Any, kind: tuple[tuple[int, ...], Any]) -> Argument:  # noqa: ANN401 - a leaf
    """Returns a leaf of this kind as the executor takes it: typed keys as their words, numbers as arrays."""
    shape, dtype = kind
    if not isinstance(leaf, jax.Array):
        if leaf_kind(leaf) != kind:
            raise NewShapesError
        return np.asarray(leaf, dtype)
    if leaf.shape != shape or leaf.dtype != dtype or leaf.is_deleted():
        raise NewShapesError
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else leaf


def _implementation(dtype: Any) -> str:  # noqa: ANN401 - JAX's dtype of keys
    return str(jax.random.key_impl(jax.ShapeDtypeStruct((), dtype)))
