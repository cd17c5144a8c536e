"""Stacks that a step takes and gives in pieces: each piece an argument or result of its own.

An argument of which nothing but groups of rows are read becomes one argument for each group, and a result that is put
together of rows one result for each. An argument and the result that takes its place are in the same pieces. Each says
which rows of which leaf it is (ir/program/leaf_rows.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rhino.ir.mlir.bindings import func, ir, sdy, stablehlo
from rhino.ir.mlir.boundary import Attributes, boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.leaf_rows import ROWS, rows_attribute
from rhino.passes.pipeline.row_dims import rows_of, with_rows

Value = ir.Value[Any]


def split_leaves(entry: func.FuncOp) -> None:
    """Makes pieces of the stacks at the boundary of a function."""
    block = entry.regions[0].blocks[0]
    end = end_of(block)
    arguments, results = boundary_attributes(entry, "arg"), boundary_attributes(entry, "res")
    aliases = {number: ir.IntegerAttr(one[ALIAS]).value for number, one in enumerate(arguments) if ALIAS in one}
    returned = list(end.operands)
    taken = {number: cuts for number, value in enumerate(block.arguments) if (cuts := _cuts_read(value, end))}
    given = {number: cuts for number, value in enumerate(returned) if (cuts := _cuts_made(value))}
    for number, result in aliases.items():
        if found := taken.get(number) or given.get(result):
            taken[number] = given[result] = found
    given = {number: cuts for number, cuts in given.items() if number in aliases.values()}
    for number in [one for one in taken if _splits_rows(arguments[one])]:
        del taken[number]
        given.pop(aliases.get(number, -1), None)
    if not taken:
        return
    pieces = [_result_pieces(value, given.get(number), end) for number, value in enumerate(returned)]
    with ir.InsertionPoint(end), end.location:
        func.ReturnOp([one for each in pieces for one in each])
    end.erase()
    first_of = [sum(len(each) for each in pieces[:number]) for number in range(len(pieces))]
    new_arguments: list[Attributes] = []
    for number, attributes in enumerate(arguments):
        cuts = taken.get(number, ())
        for at, rows in enumerate(pairwise(cuts)) if cuts else [(0, (0, 0))]:
            own = {**attributes, **({ROWS: rows_attribute(*rows)} if cuts else {})}
            if number in aliases:
                place = first_of[aliases[number]] + at
                own[ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), place)
            new_arguments.append(own)
    new_results = [
        {**attributes, **({ROWS: rows_attribute(*rows)} if number in given else {})}
        for number, attributes in enumerate(results)
        for rows in (pairwise(given[number]) if number in given else [(0, 0)])
    ]
    _replace_arguments(block, taken)
    set_function_type(entry)
    set_boundary_attributes(entry, "arg", new_arguments)
    set_boundary_attributes(entry, "res", new_results)


def _splits_rows(attributes: Attributes) -> bool:
    """Says whether rows are split over a mesh by what the user asks."""
    if SHARDING not in attributes:
        return False
    rows, *_ = sdy.TensorShardingAttr(attributes[SHARDING]).dimension_shardings
    return bool(sdy.DimensionShardingAttr(rows).axes)


def _cuts_read(value: Value, end: ir.Operation) -> tuple[int, ...]:
    """Returns the rows at which an argument can be cut, of which nothing but rows are read; none if there are none."""
    cuts: dict[int, None] = {}
    spans: dict[tuple[int, int], None] = {}
    for use in value.uses:
        op = use.owner.operation
        if op == end:
            continue
        rows = _rows_taken(op)
        if rows is None:
            return ()
        spans[rows] = None
        cuts |= dict.fromkeys(rows)
    found = tuple(sorted(cuts))
    is_whole = found[:1] == (0,) and found[-1] == ir.RankedTensorType(value.type).shape[0]
    return found if len(found) > 2 and is_whole and set(spans) == set(pairwise(found)) else ()


def _rows_taken(op: ir.Operation) -> tuple[int, int] | None:
    """Returns the rows of its operand that an op takes, all of each, None if it does something else."""
    if op.name != "stablehlo.slice":
        return None
    first, last, steps = (
        list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("start_indices", "limit_indices", "strides")
    )
    shape = list(ir.RankedTensorType(op.operands[0].type).shape)
    is_rows = set(steps) == {1} and not any(first[1:]) and last[1:] == shape[1:]
    return (first[0], last[0]) if is_rows else None


def _cuts_made(value: Value) -> tuple[int, ...]:
    """Returns the rows at which a value is put together."""
    op = maker_of(value)
    if op is None or op.name != "stablehlo.concatenate" or ir.IntegerAttr(op.attributes["dimension"]).value != 0:
        return ()
    cuts = [0]
    for operand in op.operands:
        cuts.append(cuts[-1] + ir.RankedTensorType(operand.type).shape[0])
    return tuple(cuts)


def _result_pieces(value: Value, cuts: Sequence[int] | None, end: ir.Operation) -> list[Value]:
    """Returns what is returned in the place of a value."""
    if cuts is None:
        return [value]
    if _cuts_made(value) == tuple(cuts):
        op = maker_of(value)
        assert op is not None, "it is put together"
        return list(op.operands)
    with ir.InsertionPoint(end), end.location:
        return [rows_of(value, 0, *rows) for rows in pairwise(cuts)]


def _replace_arguments(block: ir.Block, taken: Mapping[int, Sequence[int]]) -> None:
    """Puts arguments for groups of rows in the place of those that are `taken` so."""
    old = list(block.arguments)
    for number, value in enumerate(old):
        if number in taken:
            _replace_argument(block, value, taken[number])
        else:
            value.replace_all_uses_with(block.add_argument(value.type, value.location))
    for number in reversed(range(len(old))):
        block.erase_argument(number)


def _replace_argument(block: ir.Block, value: Value, cuts: Sequence[int]) -> None:
    pieces = [block.add_argument(with_rows(value.type, stop - start), value.location) for start, stop in pairwise(cuts)]
    by_rows = dict(zip(pairwise(cuts), pieces, strict=True))
    for use in list(value.uses):
        op = use.owner.operation
        rows = _rows_taken(op)
        if rows in by_rows:
            op.results[0].replace_all_uses_with(by_rows[rows])
            op.erase()
    if any(True for _ in value.uses):
        with ir.InsertionPoint.at_block_begin(block), value.location:
            value.replace_all_uses_with(stablehlo.ConcatenateOp(pieces, 0).result)
