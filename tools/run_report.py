"""What `rhino-run` says of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

from rhino.ir.units import format_seconds
from rhino.runtime.compare import Difference
from rhino.runtime.executable import Host
from rhino.runtime.signature import Signature


def step_line(number: int, time_s: float, results: Mapping[int, Host] | Sequence[jax.Array], signature: Signature) -> str:
    """Returns a step's number, time and losses."""
    losses = (f"{signature.results[i].name or f'result {i}'} = {float(results[i]):.6g}" for i in signature.losses)
    return "  ".join((f"step {number}: {format_seconds(time_s)}", *losses))


def difference_text(found: Difference | None) -> str:
    """Returns how far the worst result is from the expected one."""
    if found is None:
        return "no results to compare"
    if found.max_rel == 0:
        return "all results equal"
    return f"worst result {found.value.label}: relative error {found.max_rel:.2g}, absolute {found.max_abs:.2g}"
