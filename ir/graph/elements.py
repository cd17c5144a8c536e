"""The types of a tensor's elements, by the names that MLIR writes."""

from __future__ import annotations

import re
from typing import Final

_BITS: Final = re.compile(r"[a-z]+(\d+)")


def element_bytes(dtype: str) -> int:
    """Returns the bytes that an element takes in memory: "f32", "i1", "f8E4M3FN", "complex<f32>"; none for what is no number."""
    if dtype.startswith("complex<"):
        return 2 * element_bytes(dtype.removeprefix("complex<").removesuffix(">"))
    bits = _BITS.match(dtype)
    return -(-int(bits[1]) // 8) if bits else 0
