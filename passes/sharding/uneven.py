"""Say which dims of large tensors cannot be split because an axis does not divide them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rhino.ir.diagnostics import Place
from rhino.ir.mlir.locations import place_of
from rhino.ir.program.program import Program
from rhino.ir.request.patterns import dotted
from rhino.passes.sharding.planning_pass import Target

_WORTH_SAYING_BYTES: Final = 1 << 20
_SHOWN: Final = 3
"""How many tensors are named for an axis, the largest first."""


def uneven_arguments(program: Program, target: Target) -> Iterator[tuple[Place, str]]:
    """Yields a place and a remark for each of the largest arguments whose largest dim an axis does not divide."""
    graph = program.graph
    large = [n for n in range(len(graph.arguments)) if graph.type_of(n).num_bytes >= _WORTH_SAYING_BYTES]
    for name, size in target.mesh.axes:
        uneven = [n for n in large if max(graph.type_of(n).shape) > size and max(graph.type_of(n).shape) % size]
        for number in sorted(uneven, key=lambda n: -graph.type_of(n).num_bytes)[:_SHOWN]:
            shape = graph.type_of(number).shape
            dim = shape.index(max(shape))
            what = f'dim {dim} of {program.describe(number)} cannot be split along "{name}": {size} does not divide it'
            allowed = (
                f"--pad='{dotted(graph.arguments[number].name)}:{dim}' would store it with "
                f"{-(-shape[dim] // size) * size} elements"
            )
            yield place_of(program.entry.arguments[number].location, program.file), f"{what}; {allowed}"
