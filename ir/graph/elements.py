"""The types of a tensor's elements, by the names that MLIR writes."""

from __future__ import annotations

import re
from typing import Final

_BITS: Final = re.compile(r"[a-z]+(\d+)")

DTYPES: Final = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
"""What NumPy and JAX call the types that arrays have."""


def element_bytes(dtype: str) -> int:
    """Returns the bytes that an element takes in memory: "f32", "i1", "f8E4M3FN", "complex<f32>".

    Returns None for a type that is no number.
    """
    if dtype.startswith("complex<"):
        return 2 * element_bytes(dtype.removeprefix("complex<").removesuffix(">"))
    bits = _BITS.match(dtype)
    return -(-int(bits[1]) // 8) if bits else 0
