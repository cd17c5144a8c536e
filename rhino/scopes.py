"""Scopes in a model, which say how devices are to share the ops traced in them.

`rhino.parallelize` follows them.

    with rhino.default_strategy(rhino.replicate()):
        features = backbone(params, images)
        with rhino.split(8):
            logits = features @ params["classes"]

A scope is a name on the locations of ops (rhino/ir/program/scope_paths.py), which JAX keeps through `grad`, `vmap`,
`scan` and `jit`. It changes no value, and means nothing to plain `jax.jit`. Source: Whale 3.1.2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from operator import index
from types import TracebackType
from typing import Final, ParamSpec, SupportsIndex, TypeVar

import jax

from rhino.call import kind_name
from rhino.ir.diagnostics import RhinoError
from rhino.ir.request.scope_sharding import REPLICATE, SPLIT, ScopeSharding

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS: Final = count(1)
"""A number for each scope that is entered: two of the same words are two scopes."""


class ScopeContext:
    """A scope of a model, as a context manager or a decorator; made by `replicate`, `split` and `default_strategy`."""

    def __init__(self, sharding: ScopeSharding, *, is_default: bool = False) -> None:
        self.sharding, self.is_default = sharding, is_default
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        named = jax.named_scope(self.sharding.name(next(_NUMBERS), is_default=self.is_default))
        named.__enter__()
        self._entered.append(named)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Returns a function each call of which is a scope of its own."""

        @functools.wraps(fn)
        def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
            with ScopeContext(self.sharding, is_default=self.is_default):
                return fn(*args, **kwargs)

        return scoped


def replicate(num_devices: SupportsIndex | None = None) -> ScopeContext:
    """Returns a scope whose ops are data parallel.

    They are split by the batch over `num_devices` devices (left out: all), with parameters whole on each.

    Raises:
        RhinoError: RHI-JAX-002 where `num_devices` is no number of devices.
    """
    return ScopeContext(_sharding(REPLICATE, num_devices))


def split(num_devices: SupportsIndex | None = None) -> ScopeContext:
    """Returns a scope whose products are split over `num_devices` devices (left out: all) by other dims than the batch.

    The search chooses the dims.

    Raises:
        RhinoError: RHI-JAX-002 where `num_devices` is no number of devices.
    """
    return ScopeContext(_sharding(SPLIT, num_devices))


def default_strategy(scope: ScopeContext) -> ScopeContext:
    """Returns a scope that shares as `scope` does what is traced in it and is in no `replicate` or `split`.

    So these stand in its place, where in each other they would multiply.

    Raises:
        RhinoError: RHI-JAX-002 where it is given something else than `replicate` and `split` return.
    """
    if not isinstance(scope, ScopeContext) or scope.is_default:
        got = (
            "another rhino.default_strategy"
            if isinstance(scope, ScopeContext)
            else f"{kind_name(scope)}: {scope!r:.60}"
        )
        what = f"rhino.default_strategy takes a scope, not {got}"
        raise RhinoError("RHI-JAX-002", what, fix="say rhino.default_strategy(rhino.replicate()), or rhino.split()")
    return ScopeContext(scope.sharding, is_default=True)


def _sharding(kind: str, num_devices: SupportsIndex | None) -> ScopeSharding:
    if num_devices is None:
        return ScopeSharding(kind, None)
    number = None if isinstance(num_devices, bool) or not isinstance(num_devices, SupportsIndex) else index(num_devices)
    if number is None or number < 1:
        what = f"rhino.{kind}({num_devices!r}): {num_devices!r} is no number of devices"
        fix = f"say @rhino.{kind}()" if callable(num_devices) else "give 1 or more, or nothing for all devices"
        raise RhinoError("RHI-JAX-002", what, fix=fix)
    return ScopeSharding(kind, number)
