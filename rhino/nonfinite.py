"""What a step does when its loss is NaN or infinite: it raises, skips the update, or goes on.

A loss is any result that is a number of a floating type and no part of the state. To skip is part of the program, so
all devices decide alike, and nothing waits for the host: each leaf of the new state is a select between itself and the
old one, which XLA fuses with the update where that reads the old one anyhow. To raise is up to the host, which reads a
loss once later calls are dispatched, in every process at the same call.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rhino.ir.diagnostics import RhinoError

RAISE: Final = "raise"
SKIP: Final = "skip"
IGNORE: Final = "ignore"
POLICIES: Final = (RAISE, SKIP, IGNORE)

_LAG: Final = 2
"""So many calls later a loss is read: it is there by then, and dispatch is not held up."""


class FiniteCheck:
    """The losses of the last calls of a function, which are read as they grow old."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_calls = 0
        self._unread: deque[tuple[int, list[Any]]] = deque()

    def take(self, result: Any) -> None:  # noqa: ANN401 - the function's own
        """Keeps the losses of a call, and reads those of an earlier one. Raises RHI-RUN-011 for one not finite."""
        self._unread.append((self._num_calls, [leaf for leaf in jax.tree.leaves(result) if _is_number(leaf)]))
        self._num_calls += 1
        self.read(_LAG)

    def read(self, num_left: int = 0) -> None:
        """Reads all losses but those of the last calls."""
        while len(self._unread) > num_left:
            number, losses = self._unread.popleft()
            # One that the next call was given is state.
            bad = [float(one) for one in losses if not one.is_deleted() and not np.isfinite(np.asarray(one))]
            if bad:
                what = f"a loss of call {number} of {self._name}, counted from 0, is {bad[0]}"
                fix = "look at the batch and the state of that call; on_nonfinite='skip' leaves such batches out"
                raise RhinoError("RHI-RUN-011", what, fix=fix)


def keeping_finite(
    fn: Callable[..., Any], signature: inspect.Signature | None, donated: Iterable[int | str]
) -> Callable[..., Any]:
    """Returns `fn` with its donated arguments as they were in place of the results that follow them, if a loss is bad.

    `donated` are numbers and names of arguments. The result that follows one is the first of its tree, shapes and
    dtypes among the results at the top.

    Raises:
        RhinoError: RHI-JAX-002 when it is traced, where no argument is donated, a donated one is no result, or no
            result is a loss.
    """
    kept_back = frozenset(donated)

    def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's own
        olds = [args[number] for number in range(len(args)) if number in kept_back]
        olds += [kwargs[name] for name in sorted(kwargs) if name in kept_back]
        result = fn(*args, **kwargs)
        is_tuple = type(result) in (tuple, list)
        parts = list(result) if is_tuple else [result]
        places = _places(olds, parts)
        losses = [
            leaf
            for place, part in enumerate(parts)
            if place not in places
            for leaf in jax.tree.leaves(part)
            if _is_number(leaf)
        ]
        if not losses:
            raise _unfit("no result is a loss, a number of a floating type beside the state")
        is_finite = functools.reduce(jnp.logical_and, [jnp.isfinite(loss) for loss in losses])
        for place, old in zip(places, olds, strict=True):
            parts[place] = jax.tree.map(lambda new, kept: jnp.where(is_finite, new, kept), parts[place], old)
        return type(result)(parts) if is_tuple else parts[0]

    functools.update_wrapper(step, fn)
    if signature is not None:
        step.__signature__ = signature  # type: ignore[attr-defined]
    return step


def _places(olds: Sequence[Any], parts: Sequence[Any]) -> list[int]:
    """Returns the place of the result that follows each donated argument."""
    places: list[int] = []
    kinds = [_kind(part) for part in parts]
    for old in olds:
        place = next((n for n, kind in enumerate(kinds) if kind == _kind(old) and n not in places), None)
        if place is None:
            raise _unfit("a donated argument has no result of its tree, shapes and dtypes")
        places.append(place)
    if not places:
        raise _unfit("no argument is donated, so it is not known what the state is")
    return places


def _kind(tree: Any) -> object:  # noqa: ANN401 - a pytree
    leaves, kind = jax.tree.flatten(tree)
    return kind, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def _is_number(leaf: Any) -> bool:  # noqa: ANN401 - a leaf
    return isinstance(leaf, jax.Array) and not leaf.shape and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _unfit(why: str) -> RhinoError:
    fix = "return (state, loss) and donate the state, or leave out on_nonfinite='skip'"
    return RhinoError("RHI-JAX-002", f"on_nonfinite='skip' keeps the state of before, and {why}", fix=fix)
