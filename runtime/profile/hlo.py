"""What the kernels of a compiled program are: how many, and what they move.

Loops and called computations count as one kernel each.
"""

from __future__ import annotations

import re
from typing import Final

from rhino.ir.hlo.text import shape_bytes

_KERNEL: Final = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<shape>.*?[\]})]) (?P<opcode>[a-z][\w-]*)\((?P<operands>[^)]*)\)",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_NO_KERNELS: Final = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})


def kernels(hlo: str) -> tuple[int, int]:
    """Returns the number of kernels of a compiled program's entry, and the bytes that they read and write together."""
    entry = _COMMENT.sub("", hlo[hlo.index("\nENTRY ") :].split("\n}", 1)[0])
    sizes: dict[str, int] = {}
    number = moved = 0
    for found in _KERNEL.finditer(entry):
        sizes[found["name"]] = shape_bytes(found["shape"])
        if found["opcode"] not in _NO_KERNELS:
            operands = [name.strip().lstrip("%") for name in found["operands"].split(",")]
            number += 1
            moved += sizes[found["name"]] + sum(sizes.get(name, 0) for name in operands)
    return number, moved
