"""Scopes in a model, which say how devices are to share the ops traced in them.

`rhino.parallelize` follows them.

    with rhino.replicate(8):
        features = backbone(params, images)
    with rhino.split(8):
        logits = features @ params["classes"]

A scope is a name on the locations of ops (rhino/ir/program/scopes.py), which JAX keeps through `grad`, `vmap`, `scan`
and `jit`. It changes no value, and means nothing to plain `jax.jit`. Source: Whale 3.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from operator import index
from typing import SupportsIndex

import jax
from jax._src.source_info_util import current_name_stack

from rhino.ir.diagnostics import RhinoError
from rhino.ir.request.scope_sharding import REPLICATE, SPLIT, ScopeSharding


def replicate(num_devices: SupportsIndex | None = None) -> AbstractContextManager[None]:
    """Returns a scope whose ops are data parallel.

    They are split by the batch over `num_devices` devices (left out: all), with parameters whole on each.

    Raises:
        RhinoError: RHI-JAX-002 where `num_devices` is no number of devices.
    """
    return _scope(REPLICATE, num_devices)


def split(num_devices: SupportsIndex | None = None) -> AbstractContextManager[None]:
    """Returns a scope whose products are split over `num_devices` devices (left out: all) by other dims than the batch.

    The search chooses the dims.

    Raises:
        RhinoError: RHI-JAX-002 where `num_devices` is no number of devices.
    """
    return _scope(SPLIT, num_devices)


def _scope(kind: str, num_devices: SupportsIndex | None) -> AbstractContextManager[None]:
    if num_devices is None:
        return _entered(kind, None)
    number = None if isinstance(num_devices, bool) or not isinstance(num_devices, SupportsIndex) else index(num_devices)
    if number is None or number < 1:
        what = f"rhino.{kind}({num_devices!r}): {num_devices!r} is no number of devices"
        fix = f"say @rhino.{kind}()" if callable(num_devices) else "give 1 or more, or nothing for all devices"
        raise RhinoError("RHI-JAX-002", what, fix=fix)
    return _entered(kind, number)


@contextmanager
def _entered(kind: str, num_devices: int | None) -> Iterator[None]:
    """Names what is traced meanwhile.

    A scope inside another one of the same words gets a name of its own, so that the two are distinct.
    """
    sharding = ScopeSharding(kind, num_devices)
    around = {str(one.name) for one in current_name_stack().stack}
    with jax.named_scope(next(name for depth in count() if (name := sharding.name(depth)) not in around)):
        yield
