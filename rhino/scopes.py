"""Scopes in a model, which say how the ops traced in them are to be shared by devices; `rhino.parallelize` keeps to them.

    with rhino.replicate(8):
        features = backbone(params, images)
    with rhino.split(8):
        logits = features @ params["classes"]

A scope is a name on the locations of ops (rhino/ir/scopes.py), which JAX keeps through `grad`, `vmap`, `scan` and `jit`. It changes no
value, and means nothing to plain `jax.jit`. Source: Whale 3.1.2.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax

from rhino.ir.diagnostics import RhinoError
from rhino.ir.scopes import REPLICATE, SPLIT, Way


def replicate(num_devices: int | None = None) -> AbstractContextManager[None]:
    """Returns a scope whose ops are data parallel: split by the batch over so many devices, with parameters whole on each; left out, all.

    Raises:
        RhinoError: RHI-JAX-002 where `num_devices` is no number of devices.
    """
    return _scope(REPLICATE, num_devices)


def split(num_devices: int | None = None) -> AbstractContextManager[None]:
    """Returns a scope whose products are split over so many devices by other dims than the batch, as the search chooses; left out, all.

    Raises:
        RhinoError: RHI-JAX-002 where `num_devices` is no number of devices.
    """
    return _scope(SPLIT, num_devices)


def _scope(kind: str, num_devices: int | None) -> AbstractContextManager[None]:
    if num_devices is not None and (not isinstance(num_devices, int) or isinstance(num_devices, bool) or num_devices < 1):
        what = f"rhino.{kind}({num_devices!r}): {num_devices!r} is no number of devices"
        fix = f"say @rhino.{kind}()" if callable(num_devices) else "say 1 or more, or nothing for all devices"
        raise RhinoError("RHI-JAX-002", what, fix=fix)
    return jax.named_scope(Way(kind, num_devices).name)
