"""Stacks that a step takes and gives in pieces: each piece an argument or result of its own.

An argument of which nothing but the rows of a loop's pieces are read becomes one argument for each group of rows, and a
result that is put together of them one result for each. An argument and the result that takes its place are in the same
pieces. Each says which rows of which leaf it is (ir/program/leaf_rows.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from rhino.ir.mlir.bindings import func, ir, sdy, stablehlo
from rhino.ir.mlir.boundary import Attributes, boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.leaf_rows import ROWS, rows_attribute
from rhino.ir.program.named_tensors import result_name
from rhino.ir.program.program import argument_name
from rhino.passes.pipeline.row_dims import rows_of, with_rows

Value = ir.Value[Any]


def split_leaves(entry: func.FuncOp, loops: Sequence[Sequence[int]]) -> list[str]:
    """Makes pieces of the stacks at the boundary of a function whose loops were cut at these iterations, from 0.

    A row is one iteration, or each iteration has as many. Returns which of the stacks that are read or made in pieces
    stay whole, and why: a sentence each.
    """
    arguments, results = boundary_attributes(entry, "arg"), boundary_attributes(entry, "res")
    aliases = {number: ir.IntegerAttr(one[ALIAS]).value for number, one in enumerate(arguments) if ALIAS in one}
    cuts = _boundary_cuts(entry, arguments, aliases, loops)
    whole = _whole(entry, cuts, arguments, results)
    if not cuts.taken:
        return whole
    first_piece = _return_pieces(entry, cuts.given)
    _replace_arguments(entry.regions[0].blocks[0], cuts.taken)
    set_function_type(entry)
    new = [
        {**one, **({ALIAS: _index(first_piece[aliases[number]] + at)} if number in aliases else {})}
        for number, attributes in enumerate(arguments)
        for at, one in enumerate(_of_pieces(attributes, cuts.taken.get(number)))
    ]
    set_boundary_attributes(entry, "arg", new)
    pieces = [
        one for number, attributes in enumerate(results) for one in _of_pieces(attributes, cuts.given.get(number))
    ]
    set_boundary_attributes(entry, "res", pieces)
    return whole


class _Cuts(NamedTuple):
    """The rows at which arguments are `taken` in pieces, and results `given`, by number."""

    taken: dict[int, tuple[int, ...]]
    given: dict[int, tuple[int, ...]]


def _boundary_cuts(
    entry: func.FuncOp, arguments: Sequence[Attributes], aliases: Mapping[int, int], loops: Sequence[Sequence[int]]
) -> _Cuts:
    """Returns where arguments can be cut, and the results that take their place; those without an argument stay whole.

    What is read in pieces is given in the same ones, and what is given in pieces and takes the place of an argument
    makes pieces of that.
    """
    block = entry.regions[0].blocks[0]
    end = end_of(block)
    taken, given = dict[int, tuple[int, ...]](), dict[int, tuple[int, ...]]()
    for number, value in enumerate(block.arguments):
        result = aliases.get(number)
        cuts = _cuts_read(value, end) or (_cuts_made(end.operands[result]) if result is not None else ())
        if _is_of(cuts, loops) and not _is_key(value) and not _splits_rows(arguments[number]):
            taken[number] = cuts
            if result is not None:
                given[result] = cuts
    return _Cuts(taken, given)


def _whole(
    entry: func.FuncOp, cuts: _Cuts, arguments: Sequence[Attributes], results: Sequence[Attributes]
) -> list[str]:
    """Returns which stacks stay whole, and why.

    A result that is put together otherwise than any stack is read is no stack of layers.
    """
    block = entry.regions[0].blocks[0]
    end = end_of(block)
    read = {number: rows for number, value in enumerate(block.arguments) if (rows := _cuts_read(value, end))}
    found = [
        f"{argument_name(block.arguments[number], number)} stays whole: its sharding splits rows over devices"
        for number in read
        if _splits_rows(arguments[number])
    ]
    of_stacks = {*read.values(), *cuts.taken.values()}
    for number, value in enumerate(end.operands):
        if number not in cuts.given and _cuts_made(value) in of_stacks:
            name = result_name(results[number], number)
            found.append(f"{name} is put together on one rank: it takes the place of no argument that lies in pieces")
    return found


def _return_pieces(entry: func.FuncOp, given: Mapping[int, Sequence[int]]) -> list[int]:
    """Has a function return pieces for the results that are `given` so.

    Returns the number of the first piece of each result.
    """
    end = end_of(entry.regions[0].blocks[0])
    pieces = [_result_pieces(value, given.get(number), end) for number, value in enumerate(end.operands)]
    with ir.InsertionPoint(end), end.location:
        func.ReturnOp([one for each in pieces for one in each])
    end.erase()
    return [0, *accumulate(map(len, pieces))][:-1]


def _of_pieces(attributes: Attributes, cuts: Sequence[int] | None) -> list[Attributes]:
    """Returns the attributes of the pieces of what had `attributes`; without cuts it is one, all of it."""
    return [{**attributes, ROWS: rows_attribute(*rows)} for rows in pairwise(cuts)] if cuts else [attributes]


def _is_of(cuts: Sequence[int], loops: Sequence[Sequence[int]]) -> bool:
    """Says whether rows are cut as a loop's iterations are."""
    each = [divmod(cuts[-1], loop[-1]) for loop in loops] if cuts else []
    return any(
        not rest and [rows * at for at in loop] == list(cuts) for (rows, rest), loop in zip(each, loops, strict=False)
    )


def _is_key(value: Value) -> bool:
    """Says whether a value may be the words of one random key, which are read one by one."""
    kind = ir.RankedTensorType(value.type)
    return kind.rank == 1 and str(kind.element_type) == "ui32"


def _index(number: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)


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
