"""`stage_boundary`: where a stage of a pipeline ends, said in the model. For everything else it is the identity."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeVar

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from rhino.embed import lower_as
from rhino.passes.frontend.stage_marks import BACK, BOUNDARY, FORWARD

T = TypeVar("T")


def stage_boundary(tree: T) -> T:
    """Returns `tree`, a pytree of arrays, as it is, and marks a boundary between stages.

    What computes it belongs to the stages before this place, what follows to the stages after.

    `rhino.parallelize` cuts the function there: it has one stage more than boundaries stand one after the other, unless
    `stages=1` is given. The backward pass of a value crosses where it does. Under `jax.jit`, `jax.grad` and the like
    this does nothing, and costs nothing.
    """
    marked: T = jax.tree.map(partial(_boundary.bind, direction=FORWARD), tree)
    return marked


_boundary: Final = Primitive("rhino_stage_boundary")
_boundary.def_impl(lambda array, **_: array)
_boundary.def_abstract_eval(lambda array, **_: array)


def _turned(cotangent: Any, _: Any, *, direction: str) -> list[Any]:  # noqa: ANN401 - what JAX differentiates
    return [
        cotangent
        if isinstance(cotangent, ad.Zero)
        else _boundary.bind(cotangent, direction=BACK if direction == FORWARD else FORWARD)
    ]


def _marked(array: jax.Array, *, direction: str) -> jax.Array:
    result: jax.Array = jax.lax.composite(lambda one, way: one, BOUNDARY)(array, way=direction)
    return result


ad.deflinear2(_boundary, _turned)
batching.defvectorized(_boundary)
lower_as(_boundary, _marked)
