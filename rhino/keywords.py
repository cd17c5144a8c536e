"""What a user gives to `parallelize` and asks of a plan, in the types that the rest takes; refused where it says nothing."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import SupportsIndex

import jax

from rhino.call import kind_name
from rhino.ir.diagnostics import RhinoError
from rhino.ir.units import parse_size
from rhino.passes.pipeline.rematerialize import kept_shares


def count(name: str, given: SupportsIndex | None) -> int | None:
    """Returns a number from 1, NumPy's and JAX's too, or None. Raises RHI-JAX-002 for anything else."""
    if given is None:
        return None
    number = _index(given)
    if number is None or number < 1:
        raise RhinoError("RHI-JAX-002", f"{name} is {given!r:.60}", fix="say a number from 1, or leave it out")
    return number


def text_of(name: str, given: object, fix: str) -> str:
    """Returns a text. Raises RHI-JAX-002, with what to do, for anything else."""
    if isinstance(given, str):
        return given
    raise RhinoError("RHI-JAX-002", f"{name} is {kind_name(given)}, no text: {given!r:.60}", fix=fix)


def texts(name: str, given: str | Iterable[str], fix: str, *, is_one_enough: bool = False) -> tuple[str, ...]:
    """Returns several texts; one alone only where it is enough. Raises RHI-JAX-002, with what to do, for anything else."""
    if isinstance(given, str):
        if is_one_enough:
            return (given,)
        raise RhinoError("RHI-JAX-002", f"{name} is the text {given!r}", fix=fix)
    if not isinstance(given, Iterable):
        raise RhinoError("RHI-JAX-002", f"{name} is {kind_name(given)}: {given!r:.60}", fix=fix)
    return tuple(text_of(f"one of {name}", one, fix) for one in given)


def path_of(name: str, given: str | PathLike[str]) -> str:
    """Returns a path. Raises RHI-JAX-002 for what is none."""
    if isinstance(given, str | PathLike):
        return fspath(given)
    raise RhinoError("RHI-JAX-002", f"{name} is {kind_name(given)}, no path: {given!r:.60}", fix="give the path of a file")


def budget_text(given: object) -> str:
    """Returns what memory a device may use, as sizes are written; empty for None.

    Raises:
        RhinoError: RHI-JAX-002 where it is no whole number of bytes from 1, or no size.
    """
    if given is None:
        return ""
    number = int(given) if isinstance(given, float) and given.is_integer() else _index(given)
    text = given if isinstance(given, str) else str(given if number is None else number)
    try:
        parse_size(text)
    except RhinoError as error:
        raise RhinoError("RHI-JAX-002", f"budget is {given!r:.60}, no memory size", fix=error.fix) from None
    return text


def remat_given(given: float | str | None, stages: int | None) -> str:
    """Returns the shares that are recomputed, as passes take them; empty for None.

    Raises:
        RhinoError: RHI-RECOMPUTE-001 where they are no shares, or not of so many stages as are said.
    """
    if given is None:
        return ""
    try:
        num_shares = len(kept_shares(str(given)))
    except RhinoError as error:
        fix = "say a number from 0 to 1, or with stages one for each, as '0;0.5'"
        raise replace(error, what=f"remat is {given!r:.60}, not between 0 and 1", fix=fix) from None
    if stages is not None and num_shares not in (1, stages):
        what = f"remat has {num_shares} shares, and stages is {stages}"
        raise RhinoError("RHI-RECOMPUTE-001", what, fix=f"say one share for all stages, or {stages}, with ; between")
    return str(given)


def devices_of(given: Sequence[jax.Device] | None) -> tuple[jax.Device, ...] | None:
    """Returns devices, each of which is there once.

    Raises:
        RhinoError: RHI-JAX-002 where something is no device, RHI-RUN-004 where one is there twice.
    """
    if given is None:
        return None
    devices = tuple(given) if isinstance(given, Iterable) else (given,)
    for number, one in enumerate(devices):
        if not isinstance(one, jax.Device):
            raise RhinoError("RHI-JAX-002", f"devices has {one!r:.60}, which is {kind_name(one)}", fix="give some of jax.devices()")
        if one in devices[:number]:
            raise RhinoError("RHI-RUN-004", f"devices has {one} more than once", fix="give each device once")
    return devices


def _index(given: object) -> int | None:
    """Returns the integer that something is, None where it is none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None
