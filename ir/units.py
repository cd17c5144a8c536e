"""Sizes and times as people write them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from rhino.ir.diagnostics import RhinoError

_BINARY: Final = ("KiB", "MiB", "GiB", "TiB")
_FACTORS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{unit.lower(): 1024 ** (i + 1) for i, unit in enumerate(_BINARY)},
    **{unit: 1000 ** (i + 1) for i, unit in enumerate(("kb", "mb", "gb", "tb"))},
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_TIMES: Final = ((1e-6, 1e-9, "ns"), (1e-3, 1e-6, "us"), (1.0, 1e-3, "ms"))


def parse_size(text: str) -> int:
    """Returns the bytes that `text` names, rounded down.

    `text` is as "16GiB" (powers of 1024), "1.5GB" (powers of 1000), or plain bytes.

    Raises:
        RhinoError: RHI-CLI-001 where `text` names less than a byte, or a part of one.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise _bad_size(text, "a number and one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB")
    num_bytes = int(Fraction(match[1]) * factor)
    if num_bytes < 1 or (factor == 1 and "." in match[1]):
        raise _bad_size(text, "a positive number of bytes")
    return num_bytes


def _bad_size(text: str, expected: str) -> RhinoError:
    return RhinoError(
        "RHI-CLI-001", f"size: got {text!r}, expected {expected}", fix="write a size like 16GiB, 32GB or 34359738368"
    )


def format_bytes(num_bytes: float) -> str:
    """Returns `num_bytes` with three significant digits in B, KiB, MiB, GiB or TiB."""
    value, unit = float(num_bytes), "B"
    for larger in _BINARY:
        # A value that would print as 1000 or more takes the next unit, so that three digits are always enough.
        if abs(value) < 999.5:
            break
        value, unit = value / 1024, larger
    return f"{_digits(value)} {unit}"


PEAK: Final = "predicted peak"
"""The name of what a device is predicted to hold at most.

XLA has compiled nothing yet, and may assign more or less (docs/memory.md).
"""


def peak_text(num_bytes: float, budget_bytes: float | None = None) -> str:
    """Returns what a device is predicted to hold at most, of what it may hold, in words."""
    budget = "" if budget_bytes is None else f" of {format_bytes(budget_bytes)} per device"
    return f"{PEAK} {format_bytes(num_bytes)}{budget}"


def fits_text(budget_bytes: float) -> str:
    """Returns "fits" in words that say by what."""
    return f"is predicted to fit {format_bytes(budget_bytes)} per device"


def format_seconds(seconds: float) -> str:
    """Returns `seconds` with three significant digits in ns, us, ms or s."""
    for bound, scale, unit in _TIMES:
        if 0 < abs(seconds) < bound * 0.9995:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds)} s"


def _digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded.is_integer() else f"{value:.3g}"
