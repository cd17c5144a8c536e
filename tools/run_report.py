"""What `rhino-run` says of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

from rhino.ir.units import format_seconds
from rhino.runtime.executor.compare import Difference, worst
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.signature import Signature


def step_line(
    number: int, time_s: float, results: Mapping[int, Host] | Sequence[jax.Array], signature: Signature
) -> str:
    """Returns a step's number, time and losses."""
    losses = (f"{signature.results[i].name or f'result {i}'} = {float(results[i]):.6g}" for i in signature.losses)
    return "  ".join((f"step {number}: {format_seconds(time_s)}", *losses))


def difference_text(found: Sequence[Difference]) -> str:
    """Returns how far the worst result is from the expected one."""
    one = worst(found)
    if one is None:
        return "no results to compare"
    num_nan = sum(difference.has_nan for difference in found)
    note = f" ({num_nan} of {len(found)} hold NaN on one device too, which proves little)" if num_nan else ""
    if one.max_rel == 0:
        return f"all results equal{note}"
    return f"worst result {one.value.label}: relative error {one.max_rel:.2g}, absolute {one.max_abs:.2g}{note}"
