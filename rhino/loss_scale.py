"""The loss scale of a step in f16: what a `Parallelized` keeps between calls, as an argument and result of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.program.loss_scale import FIRST, GOOD_STEPS, NAME, RANGE, SCALE


class LossScale(NamedTuple):
    """By what a step in f16 multiplies its loss, and how many steps in a row had finite gradients since that changed.

    Shapes: none, in f32 and i32.
    """

    scale: jax.typing.ArrayLike
    good_steps: jax.typing.ArrayLike


def first_loss_scale() -> LossScale:
    """Returns what training starts from."""
    return LossScale(np.float32(FIRST[SCALE]), np.int32(FIRST[GOOD_STEPS]))


def loss_scale_of(value: Any) -> LossScale:  # noqa: ANN401 - what a user gives
    """Returns a loss scale that was saved. Raises RHI-JAX-002 for what is none, and numbers that no step gives.

    An array of JAX's is not waited for, so its number is not looked at.
    """
    try:
        scale, good_steps = value
        found = LossScale(_number(scale, np.float32), _number(good_steps, np.int32))
    except (TypeError, ValueError):
        what = f"the loss scale is {value!r:.60}"
        raise RhinoError(
            "RHI-JAX-002", what, fix="give rhino.LossScale(scale, good_steps), two numbers, the second whole"
        ) from None
    least, most = RANGE
    if isinstance(found.scale, np.float32) and not least <= found.scale <= most:
        what = f"the loss scale is {scale!r:.60}, and no loss can be multiplied by that"
        raise RhinoError("RHI-JAX-002", what, fix="give a number above 0, as 2.0**15, with which training starts")
    return found


def _number(value: Any, dtype: Any) -> Any:  # noqa: ANN401 - an array of JAX's, or a number
    """Returns an array of a dtype as it is, and another number as one.

    Raises ValueError for what has dims, and for what is no number of an integer dtype.
    """
    if isinstance(value, jax.Array) and value.dtype == dtype and not value.shape:
        return value
    given = np.asarray(value).reshape(())
    with np.errstate(over="ignore", invalid="ignore"):  # infinite then, or another number, which is refused
        found = dtype(given)
    if np.issubdtype(dtype, np.integer) and found != given:
        raise ValueError
    return found


def with_loss_scale(fn: Callable[..., Any], signature: inspect.Signature | None) -> Callable[..., Any]:
    """Returns `fn` with a loss scale as one more argument, by name, and one more result, behind its own.

    It comes out as it went in: mixed precision writes what is done with it.
    """

    def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's own
        scale = kwargs.pop(NAME)
        return fn(*args, **kwargs), scale

    functools.update_wrapper(step, fn)
    if signature is not None:
        own = list(signature.parameters.values())
        number = next((n for n, one in enumerate(own) if one.kind is inspect.Parameter.VAR_KEYWORD), len(own))
        own.insert(number, inspect.Parameter(NAME, inspect.Parameter.KEYWORD_ONLY))
        step.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return step
