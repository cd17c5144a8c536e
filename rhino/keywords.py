"""What a user gives to `parallelize` and asks of a plan, in the types that the rest takes; refused where it says nothing."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from rhino.ir.diagnostics import RhinoError


def count(name: str, given: SupportsIndex | None) -> int | None:
    """Returns a number from 1, NumPy's and JAX's too, or None. Raises RHI-JAX-002 for anything else."""
    if given is None:
        return None
    number = _index(given)
    if number is None or number < 1:
        raise RhinoError("RHI-JAX-002", f"{name} is {given!r:.60}", fix="say a number from 1, or leave it out")
    return number


def _index(given: object) -> int | None:
    """Returns the integer that something is, None where it is none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None
