"""Say which large tensors stay whole because an axis does not divide their dims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rhino.ir.diagnostics import Place
from rhino.ir.locations import place_of
from rhino.ir.program import Program
from rhino.passes.problem import Target

_WORTH_SAYING_BYTES: Final = 1 << 20


def uneven_arguments(program: Program, target: Target) -> Iterator[tuple[Place, str]]:
    """Yields a place and a remark for each large argument that is whole along an axis which divides none of its dims."""
    for number, value in enumerate(program.entry.arguments):
        kind = program.graph.type_of(number)
        largest = max(kind.shape, default=0)
        for name, size in target.mesh.axes:
            if kind.num_bytes >= _WORTH_SAYING_BYTES and 1 < size <= largest and all(extent % size for extent in kind.shape):
                what = f'{program.describe(number)} stays whole along "{name}": {size} divides none of its dims'
                padded = f"padded from {largest} to {-(-largest // size) * size}, dim {kind.shape.index(largest)} could be split"
                yield place_of(value.location, program.file), f"{what}; {padded}"
