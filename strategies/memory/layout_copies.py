"""Arguments that lie in memory a second time, for their updates are computed in another order of dims.

The gradient of a matrix is a product whose result is transposed. XLA:TPU transposes nothing there: it takes the
product's own order of dims as the layout of the gradient, and of all that is computed of that element by element. What
arguments and results are given in is fixed, so that a weight and the moments that belong to it are copied to the
gradient's layout, most of them at the start of the step, and lie so until they are updated (libtpu 0.0.51: GPT for v5e
and v6e, 2026-11-24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rhino.ir.graph.graph import MOVES, Graph

_TRANSPOSE: Final = "stablehlo.transpose"
_SENT: Final = frozenset({"all_gather", "all_reduce", "all_to_all", "reduce_scatter"})


def copied_arguments(graph: Graph, taken_over: Mapping[int, int]) -> list[int]:
    """Returns the results that are computed in another layout than that of the argument whose buffer they take over.

    `taken_over` are arguments by result.
    """
    return [result for result in taken_over if _is_of_transposed(graph, graph.returns[result])]


def _is_of_transposed(graph: Graph, value: int) -> bool:
    """Says whether a value is computed, element by element, of something that the program transposes."""
    seen, waiting = set[int](), [value]
    while waiting:
        op = int(graph.value_op[waiting.pop()])
        if op < 0 or op in seen:
            continue
        seen.add(op)
        cls = graph.cls(op)
        is_written = cls.rule is not None  # by the user, and not for a collective
        if cls.name == _TRANSPOSE and is_written:
            return True
        if cls.name in _SENT or (cls.fusible and not (cls.name in MOVES and is_written)):
            waiting += graph.operands(op).tolist()
    return False
