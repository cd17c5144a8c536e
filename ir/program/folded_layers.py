"""Ops that stand for several alike ones, in a step that has fewer layers than it takes time and memory for.

`rhino-fold-layers` (passes/pipeline/fold_layers.py) keeps one layer for a group of neighbours and marks what it keeps.
Rewriting keeps marks on ops; an op that is new belongs to what it reads. From the marks follows how often each op runs,
and how many tensors a value may stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import FORWARDS_OPERANDS, Graph, Repeats
from rhino.ir.graph.layer_mark import NOWHERE, LayerMark
from rhino.ir.mlir.bindings import ir

FOLDED: Final = "rhino.folded"
"""On a module: its ops stand for more than themselves."""

GROUP: Final = "rhino.group"
"""On an op or an argument: the number of its group, for how many layers that stands, and 1 where later layers come
first."""


def refuse_folded(module: ir.Operation, file: str) -> None:
    """Raises RHI-LOCAL-001 where layers of `module` stand for several each.

    Programs of such a module would compute something else.
    """
    if FOLDED in module.attributes:
        what, fix = (
            "the module's layers stand for several each, which is for estimates alone",
            "leave rhino-fold-layers out",
        )
        raise RhinoError("RHI-LOCAL-001", what, Place(file), fix=fix)


def mark_attribute(mark: LayerMark) -> ir.Attribute:
    """Returns a mark as an attribute."""
    return ir.DenseI64ArrayAttr.get([mark.group, mark.size, int(mark.is_back)])


def mark_of(attribute: ir.Attribute | None) -> LayerMark | None:
    """Returns the mark that an attribute is, None for none."""
    if attribute is None:
        return None
    group, size, is_back = ir.DenseI64ArrayAttr(attribute)
    return LayerMark(group, size, bool(is_back))


def repeats_of(graph: Graph, ops: Sequence[LayerMark | None], arguments: Sequence[LayerMark | None]) -> Repeats:
    """Returns for how many layers the ops and values of a graph stand.

    The marks are `ops` [ops] and `arguments` [arguments]; a mark is None where the op or argument is new.
    """
    values = [mark or NOWHERE for mark in arguments]
    found: list[LayerMark] = []
    begin = {loop.end: loop.op for loop in graph.loops}
    for op, mark in enumerate(ops):
        if graph.cls(op).name in FORWARDS_OPERANDS:
            found.append(NOWHERE)
            values += [
                values[operand] for operand, _ in zip(graph.operands(op).tolist(), graph.results(op), strict=False)
            ]
        else:
            found.append(mark or _mark_of_read(graph, op, values))
            values += [found[-1]] * len(graph.results(op))
        if op in begin:  # what a loop carries is of the group of what its body makes of it
            for value, returned in zip(graph.results(begin[op]), graph.operands(op).tolist(), strict=True):
                values[value] = values[returned]
    sizes = [[mark.size for mark in side] for side in (found, values)]
    columns = (*sizes, [_run(mark) for mark in found])
    return Repeats(*(np.array(column, dtype=np.int64) for column in columns))


def _mark_of_read(graph: Graph, op: int, values: Sequence[LayerMark]) -> LayerMark:
    """Returns the mark for a new op: that of the last value it reads that belongs to a group.

    An argument's mark counts only where the op reads nothing else of a group.
    """
    read = [value for value in graph.operands(op).tolist() if values[value].group >= 0]
    return values[max(read)] if read else NOWHERE


def _run(mark: LayerMark) -> int:
    return 0 if mark.group < 0 else 2 * mark.group + 1 + mark.is_back
