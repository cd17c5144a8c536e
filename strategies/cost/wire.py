"""In what element type values lie, and are moved between devices.

XLA:TPU converts the operands of an f32 product at default precision to bf16. It converts before collectives that only
move data, transposes and reshapes, where nobody reads the value otherwise. A value that something else reads too, and
what is summed on the way, keep their type. In what libtpu 0.0.51 compiles for v5e-8, bytes of gathers and all-to-alls
by element type are those of this rule (GPT, BERT, MoE and T5, localized plans of experts and of the search on meshes 8
and 2x4; 2026-11-24).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhino.ir.graph.graph import Graph, OpClass
from rhino.strategies.cost.cost_model import PRODUCTS
from rhino.strategies.cost.target import Target

_CONVERTED_BEFORE: Final = frozenset({"stablehlo.transpose", "stablehlo.reshape", "all_gather", "all_to_all"})
"""Ops that do the same to elements of any type; in the program of a device collectives are ops."""


@dataclass(frozen=True, slots=True, eq=False)
class Narrow:
    """Which values lie in memory, and are moved, in elements half as wide.

    Shapes: `reads` [ops] are the ops to which their f32 operands come so, `stored` [values] the values all of whose
    readers are such.
    """

    reads: list[bool]
    stored: list[bool]

    def is_moved(self, value: int, reader: int | None) -> bool:
        """Says whether a value is moved so to a reader, or to where it is stored if that is None."""
        return self.stored[value] if reader is None else self.reads[reader]


def narrow(graph: Graph, target: Target) -> Narrow:
    """Returns which values of a graph the programs of a target move in elements half as wide."""
    found = Narrow([False] * graph.num_ops, [False] * graph.num_values)
    products = [_is_converted(cls, target) for cls in graph.classes]
    if not any(products):
        return found
    is_read, is_kept = [False] * graph.num_values, [False] * graph.num_values
    for value in graph.returns:
        is_kept[value] = True
    for op in reversed(range(graph.num_ops)):
        cls = graph.cls(op)
        for value in graph.results(op):
            found.stored[value] = is_read[value] and not is_kept[value] and graph.type_of(value).dtype == "f32"
        passes = cls.name in _CONVERTED_BEFORE and found.stored[graph.results(op)[0]]
        found.reads[op] = products[graph.op_class[op]] or passes
        for value in graph.operands(op).tolist():
            is_read[value] = True
            is_kept[value] |= not found.reads[op]
    return found


def _is_converted(cls: OpClass, target: Target) -> bool:
    """Says whether an op is a product whose operands are converted to a type half as wide."""
    return cls.name in PRODUCTS and all(target.halves(kind.dtype, cls.precision) for kind in cls.operands)
