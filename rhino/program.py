"""A planned function on its devices: jit, with the plan's shardings around the plan's program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from rhino.call import Key
from rhino.embed import Embedded
from rhino.plan import Plan
from rhino.traced import Traced


class NewShapesError(Exception):
    """A program is asked for arrays that it was not made for."""


@dataclass(frozen=True, slots=True, eq=False)
class SpmdProgram:
    """One program for the arrays that `key` says; `run` takes them as `Pieces.values` and is what jit gave."""

    key: Key
    plan: Plan
    run: Any
    in_shardings: tuple[Any, ...]

    def place(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments with every array that is committed to another place moved to that of the plan."""
        return tuple(jax.tree.map(_placed, values, self.in_shardings))


def _placed(leaf: Any, sharding: jax.sharding.NamedSharding) -> Any:  # noqa: ANN401 - a leaf
    if not isinstance(leaf, jax.Array) or not leaf.committed or leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


def make_program(traced: Traced, plan: Plan, code: bytes, donated: tuple[int, ...]) -> SpmdProgram:
    """Returns the program of a plan; `code` is its module, `donated` are arguments by number.

    Raises:
        RhinoError: RHI-RUN-004 where there are too few devices.
    """
    embedded = Embedded(traced.name, code, traced.out_avals)
    key = traced.key

    def run(*values: Any) -> Any:  # noqa: ANN401 - pytrees
        leaves, tree = jax.tree.flatten(values)
        if tree != key.tree or tuple((one.shape, one.dtype) for one in leaves) != key.leaves:
            raise NewShapesError
        return jax.tree.unflatten(traced.out_tree, embedded(*leaves))

    run.__name__ = run.__qualname__ = traced.name
    shardings = plan.in_shardings
    jitted = jax.jit(run, in_shardings=shardings, out_shardings=plan.out_shardings, donate_argnums=donated)
    return SpmdProgram(key, plan, jitted, shardings)
