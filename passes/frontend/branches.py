"""Turn `case` and `if` into selections where they compute element by element, and into loops where they have products.

A branch runs whole on every device, so what it reads and gives would have to be whole. An update that is skipped where
a gradient is not finite, or a loss that is scaled, is a branch in the program and nothing but element-wise ops in its
body: computed in both ways and selected, its tensors can be split like any others, and a compiler fuses the selection
with what it selects from.

Of a branch with products only the one that is taken may run. It becomes a loop of one trip or none: the search, which
goes into loops, goes into it, and each device runs its part, with the collectives that stand in it, for all devices
take the same branch. What it carries starts as what the element-wise branches give, or as zeros where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import captured_by, maker_of, walk
from rhino.ir.program.identity import make_constant
from rhino.ir.program.numerics import FUSIBLE, SOURCES

_CASE, _IF, _RETURN = "stablehlo.case", "stablehlo.if", "stablehlo.return"
BRANCHES: Final = (_CASE, _IF)
_PRODUCTS: Final = frozenset(f"stablehlo.{name}" for name in ("dot_general", "dot", "convolution"))
_MOST_SELECTED: Final = 4
"""More branches are a table of functions, of which computing all would waste work."""

_Values = Sequence[ir.Value[Any]]
_Make = Callable[..., ir.Value[Any]]


def split_branches(entry: func.FuncOp) -> None:
    """Replaces branches by selections and loops, inner ones first."""
    for op in reversed([op for op in walk(entry.operation) if op.name in BRANCHES]):
        plain = [number for number, region in enumerate(op.regions) if _is_elementwise(region)]
        if op.regions and len(plain) <= _MOST_SELECTED and (len(plain) == len(op.regions) or _is_worth_loops(op)):
            _split(op, plain)


def _is_elementwise(region: ir.Region) -> bool:
    return all(
        op.operation.name in FUSIBLE or op.operation.name == _RETURN for block in region for op in block.operations
    )


def _is_worth_loops(op: ir.Operation) -> bool:
    tensors = all(isinstance(result.type, ir.RankedTensorType) for result in op.results)
    return tensors and any(inner.name in _PRODUCTS for inner in walk(op))


def _split(op: ir.Operation, plain: Sequence[int]) -> None:
    """Takes `op` apart: its branches in `plain` are selected from, the others become loops."""
    selected = [(number, _take_out(op, op.regions[number].blocks[0])) for number in plain]
    with ir.InsertionPoint(op), op.location:
        *others, (_, values) = selected or [(0, [make_constant(result.type, 0) for result in op.results])]
        for number, branch in others:
            values = _between(_is_taken(op, number), branch, values)
        for number, region in enumerate(op.regions):
            if number not in plain:
                values = _loop(_is_taken(op, number), values, region.blocks[0])
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _take_out(op: ir.Operation, block: ir.Block) -> _Values:
    """Moves the ops of a branch before `op`; returns what the branch returns."""
    *body, last = [view.operation for view in block.operations]
    for inner in body:
        inner.move_before(op)
    return list(last.operands)


def _is_taken(op: ir.Operation, number: int) -> ir.Value[Any]:
    """Makes the test whether `op` takes a branch; the last one of a case stands for every number that no other has."""
    index, last = op.operands[0], len(op.regions) - 1
    flip: _Make = stablehlo.not_
    join: _Make = stablehlo.or_
    if op.name == _IF:
        return flip(index) if number else index
    if number < last:
        return _compare(index, "EQ", number)
    return join(_compare(index, "LT", 0), _compare(index, "GE", last))


def _compare(index: ir.Value[Any], direction: str, number: int) -> ir.Value[Any]:
    make: _Make = stablehlo.compare
    wanted = stablehlo.constant(
        ir.DenseElementsAttr.get_splat(index.type, ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number))
    )
    return make(index, wanted, stablehlo.ComparisonDirectionAttr.get(direction))


def _between(test: ir.Value[Any], yes: _Values, no: _Values) -> _Values:
    return [a if a == b else _joined(test, a, b) for a, b in zip(yes, no, strict=True)]


def _joined(test: ir.Value[Any], yes: ir.Value[Any], no: ir.Value[Any]) -> ir.Value[Any]:
    """Selects between two tensors; of tokens, which no selection takes, makes one that comes after both."""
    select: _Make = stablehlo.select
    after: _Make = stablehlo.after_all
    return select(test, yes, no) if isinstance(yes.type, ir.RankedTensorType) else after([yes, no])


def _loop(test: ir.Value[Any], starts: _Values, branch: ir.Block) -> _Values:
    """Makes a loop that runs a branch once if `test` holds, and else gives back `starts`; returns its results."""
    made: ir.Operation = stablehlo.WhileOp([value.type for value in (test, *starts)], [test, *starts]).operation
    condition = made.regions[0].blocks.append(*[result.type for result in made.results])
    with ir.InsertionPoint(condition):
        stablehlo.ReturnOp([condition.arguments[0]])
    for result in made.results:
        branch.add_argument(result.type, made.location)
    branch.append_to(made.regions[1])
    _read_in_turn(made, branch)
    *_, last = branch.operations
    with ir.InsertionPoint(last):
        stablehlo.ReturnOp([make_constant(test.type, 0), *last.operands])
    last.operation.erase()
    return list(made.results)[1:]


def _read_in_turn(loop: ir.Operation, body: ir.Block) -> None:
    """Makes what a body reads from outside depend on the loop.

    Otherwise XLA would hoist out of the loop what it finds to be the same in each trip.
    """
    outside = [value for value in captured_by(loop) if (made := maker_of(value)) is None or made.name not in SOURCES]
    inside = [view.operation for view in body.operations]
    with ir.InsertionPoint.at_block_begin(body):
        barrier = stablehlo.OptimizationBarrierOp([body.arguments[0], *outside])
    for value, one in zip(outside, list(barrier.results)[1:], strict=True):
        for op in (inner for view in inside for inner in walk(view)):
            op.replace_uses_of_with(value, one)
