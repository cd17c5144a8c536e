"""Arguments that lie in memory a second time, for their updates are computed in another layout.

The gradient of a matrix is a product whose result is transposed. XLA:TPU transposes nothing there: it takes the
product's own order of dims as the layout of the gradient, and of all that is computed of that element by element. So it
does of the gradient of a convolution's kernel, and of that of a table of embeddings, which is added up row by row. What
arguments and results are given in is fixed, so that a weight and the moments that belong to it are copied to the
gradient's layout, most of them at the start of the step, and lie so until they are updated (libtpu 0.0.51: GPT for v5e
and v6e, wide-ResNet for v5e, 2026-11-26).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rhino.ir.graph.graph import COPIED_UPDATE, MOVES, Graph
from rhino.strategies.memory.tiles import CONVOLUTION, Tile, compact_bytes, row_bytes

_TRANSPOSE: Final = "stablehlo.transpose"
_SENT: Final = frozenset({"all_gather", "all_reduce", "all_to_all", "reduce_scatter"})


def copied_arguments(graph: Graph, taken_over: Mapping[int, int], tile: Tile) -> Iterator[tuple[int, int]]:
    """Yields the results that are computed in another layout than that of the argument whose buffer they take over.

    `taken_over` are arguments by result. With each are its bytes in that layout, on a target with tiles of `tile`.
    """
    for result in taken_over:
        value = graph.returns[result]
        kind = graph.type_of(value)
        match _layout_of(graph, value):
            case "transposed":
                yield result, kind.num_bytes
            case "rows" if (size := row_bytes(kind, tile)) > compact_bytes(kind, tile):
                yield result, size


def _layout_of(graph: Graph, value: int) -> str:
    """Says of what a value is computed element by element.

    That is something "transposed" (or a convolution, whose result is in an order of its own), "rows" that are added up,
    or "".
    """
    seen, waiting, found = set[int](), [value], ""
    while waiting:
        op = int(graph.value_op[waiting.pop()])
        if op < 0 or op in seen:
            continue
        seen.add(op)
        cls = graph.cls(op)
        is_written = cls.rule is not None  # by the user, and not for a collective
        if (cls.name == _TRANSPOSE and is_written) or cls.name == CONVOLUTION:
            return "transposed"
        if cls.name == COPIED_UPDATE:
            found = "rows"
        elif cls.name in _SENT or (cls.fusible and not (cls.name in MOVES and is_written)):
            waiting += graph.operands(op).tolist()
    return found
