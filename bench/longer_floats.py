"""Modules whose floats are longer, so that rounding hides nothing where two forms of a step are compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.integer[Any]]

_FROM_BITS: Final = re.compile(
    r"^( *)(%\w+) = (stablehlo\.bitcast_convert .*tensor<([0-9x]*)ui32>\) -> .*f64.*)$", re.MULTILINE
)


def in_f32(text: str) -> str:
    """Returns the text of a module with f32 in the place of bf16."""
    text = _longer_bits(text, "bf16", lambda bits: bits.astype("<u4") << 16)
    return re.sub(r"format = e8m7( : tensor<[0-9x]*bf16>)", r"format = e8m23\1", text).replace("bf16", "f32")


def in_f64(text: str) -> str:
    """Returns the text of a module with f64 in the place of bf16 and f32.

    What is made of the bits of a number of f32, as random numbers are, has the value that it has there. What a program
    rounds to a shorter format than that of its own dtype is rounded still.
    """
    text = _longer_bits(in_f32(text), "f32", lambda bits: bits.view("<f4").astype("<f8").view("<u8"))
    text = re.sub(r"format = e8m23( : tensor<[0-9x]*f32>)", r"format = e11m52\1", text)
    return _FROM_BITS.sub(_of_f32, re.sub(r"(?<![a-z0-9])f32(?![a-z0-9])|(?<=x)f32\b", "f64", text))


def _of_f32(found: re.Match[str]) -> str:
    indent, name, op, dims = found.groups()
    short = f"%f32_{name[1:]}"
    bits = f"{indent}{short} = {op.replace('f64', 'f32')}"
    return f"{bits}\n{indent}{name} = stablehlo.convert {short} : (tensor<{dims}f32>) -> tensor<{dims}f64>"


def _longer_bits(text: str, dtype: str, longer: Callable[[Bits], Bits]) -> str:
    """Returns a text in which numbers of a dtype that are written as their bits have those of a longer one."""
    words = "<u2" if dtype == "bf16" else "<u4"

    def replaced(found: re.Match[str]) -> str:
        order = -1 if '"' not in found[0] else 1  # one number is written as such, several as the bytes in memory
        given = np.frombuffer(bytes.fromhex(found[1])[::order], words)
        return found[0].replace(found[1], longer(given).tobytes()[::order].hex().upper(), 1)

    return re.sub(rf'dense<"?0x([0-9A-F]+)"?> : tensor<[0-9x]*{dtype}>', replaced, text)
