"""Take branches apart: `case` and `if` whose branches compute element by element become selections.

A branch runs whole on every device, so what it reads and gives would have to be whole. An update that is skipped where a gradient is not
finite, or a loss that is scaled, is a branch in the program and nothing but element-wise ops in its body: computed in both ways and
selected, its tensors can be split like any others, and a compiler fuses the selection with what it selects from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rhino.ir.mlir import func, ir, stablehlo
from rhino.ir.numerics import FUSIBLE
from rhino.ir.reader import walk

_CASE, _IF, _RETURN = "stablehlo.case", "stablehlo.if", "stablehlo.return"
_MOST_BRANCHES: Final = 4
"""More of them are a table of functions, of which computing all would waste work."""

_Values = Sequence[ir.Value[Any]]


def select_branches(entry: func.FuncOp) -> None:
    """Replaces element-wise branches by selections, inner ones first."""
    for op in reversed([op for op in walk(entry.operation) if op.name in (_CASE, _IF)]):
        if 0 < len(op.regions) <= _MOST_BRANCHES and all(map(_is_elementwise, op.regions)):
            _select(op)


def _is_elementwise(region: ir.Region) -> bool:
    return all(op.operation.name in FUSIBLE or op.operation.name == _RETURN for block in region for op in block.operations)


def _select(op: ir.Operation) -> None:
    branches = [_take_out(op, region.blocks[0]) for region in op.regions]
    with ir.InsertionPoint(op), op.location:
        selected = _choose(op.operands[0], branches) if op.name == _CASE else _between(op.operands[0], *branches)
    for result, value in zip(op.results, selected, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _take_out(op: ir.Operation, block: ir.Block) -> _Values:
    """Moves the ops of a branch before `op`; returns what the branch returns."""
    *body, last = [view.operation for view in block.operations]
    for inner in body:
        inner.move_before(op)
    return list(last.operands)


def _choose(index: ir.Value[Any], branches: Sequence[_Values]) -> _Values:
    """Selects by number; the last branch stands for every number that no other has."""
    *others, chosen = branches
    for number, branch in enumerate(others):
        wanted = stablehlo.constant(ir.DenseElementsAttr.get_splat(index.type, ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)))
        direction = stablehlo.ComparisonDirectionAttr.get("EQ")
        chosen = _between(stablehlo.compare(index, wanted, direction), branch, chosen)
    return chosen


def _between(test: ir.Value[Any], yes: _Values, no: _Values) -> _Values:
    make: Callable[..., Any] = stablehlo.select
    return [a if a == b else make(test, a, b) for a, b in zip(yes, no, strict=True)]
