"""Write what a local program does with the number of its part plainly: counted instead of looked up in tables.

Shardy's conversion looks up where a part's block begins in a table with a row for each part, which it slices by
`partition_id`. Also gone are slices of constants whose elements are all the same, and choices between two zeros (what a
scatter starts from on the first part and on the others).
"""

from __future__ import annotations

from typing import Any

from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of, walk
from rhino.ir.program.identity import is_constant, make_constant
from rhino.ir.program.local_rules import CUSTOM_CALL

Value = ir.Value[Any]


def count_parts(entry: ir.Operation) -> None:
    """Rewrites the lookups in `entry`, and what needs none; what nobody reads any more stays."""
    for op in [op for op in walk(entry) if op.name in ("stablehlo.dynamic_slice", "stablehlo.select")]:
        if op.name == "stablehlo.select":
            if _is_zero(op.operands[1]) and _is_zero(op.operands[2]):
                op.results[0].replace_all_uses_with(op.operands[1])
        elif (made := _constant(op.operands[0])) is not None:
            _simplify(op, made)


def _simplify(op: ir.Operation, constant: ir.DenseElementsAttr) -> None:
    kind = ir.RankedTensorType(op.results[0].type)
    if constant.is_splat:
        with ir.InsertionPoint(op), op.location:
            splat = ir.DenseElementsAttr.get_splat(kind, constant.get_splat_value())
            op.results[0].replace_all_uses_with(stablehlo.ConstantOp(splat).result)
        return
    rank = len(ir.RankedTensorType(op.operands[0].type).shape)
    if rank != 1 or list(kind.shape) != [1] or not _is_part(op.operands[1]):
        return
    with ir.InsertionPoint(op), op.location:
        looked_up = _counted(constant, op.operands[1], kind.element_type)
        if looked_up is None:
            return
        for use in list(op.results[0].uses):
            if use.owner.name == "stablehlo.reshape" and not ir.RankedTensorType(use.owner.results[0].type).shape:
                use.owner.results[0].replace_all_uses_with(looked_up)
        op.results[0].replace_all_uses_with(stablehlo.ReshapeOp(kind, looked_up).result)


def _counted(table: ir.DenseElementsAttr, part: Value, element: ir.Type) -> Value | None:
    """Returns what stands in the row of a part, as a scalar: a multiple of its number, or whether it is the first."""
    if not isinstance(element, ir.IntegerType):
        return None
    rows = [int(table[row]) for row in range(len(table))] if isinstance(table, ir.DenseIntElementsAttr) else []
    scalar = ir.RankedTensorType.get([], element)
    if element.width == 1:
        if rows != [1] + [0] * (len(rows) - 1):
            return None
        equal = ir.Attribute.parse("#stablehlo<comparison_direction EQ>")
        first: Value = stablehlo.CompareOp(part, make_constant(part.type, 0), equal).result
        return first
    if len(rows) < 2 or rows != [rows[1] * number for number in range(len(rows))]:
        return None
    number = stablehlo.ConvertOp(scalar, part).result if part.type != scalar else part
    begin: Value = stablehlo.MulOp(number, make_constant(scalar, rows[1])).result
    return begin


def _is_part(value: Value) -> bool:
    made = maker_of(value)
    while made is not None and made.name == "stablehlo.convert":
        made = maker_of(made.operands[0])
    return made is not None and made.name == "stablehlo.partition_id"


def _constant(value: Value) -> ir.DenseElementsAttr | None:
    made = maker_of(value)
    if made is None or made.name != "stablehlo.constant":
        return None
    attribute = made.attributes["value"]
    return attribute if isinstance(attribute, ir.DenseElementsAttr) else None


def _is_zero(value: Value) -> bool:
    while (made := maker_of(value)) is not None and made.name == "stablehlo.broadcast_in_dim":
        value = made.operands[0]
    return is_constant(value, 0)


def drop_dead(block: ir.Block) -> None:
    """Removes the ops of a block, and of loops in it, that nobody reads."""
    for view in reversed(list(block.operations)):
        op = view.operation
        name, results = op.name, list(op.results)
        if name == WHILE:
            drop_dead(op.regions[1].blocks[0])
        elif results and name != CUSTOM_CALL and not any(is_used(result) for result in results):
            op.erase()


def is_used(value: Value) -> bool:
    """Says whether anybody reads a value."""
    return next(iter(value.uses), None) is not None
