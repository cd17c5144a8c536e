"""Compute attention in loops over blocks of keys, so that nothing is stored for each query and key.

Reads     a normalized module.
Writes    loops (`stablehlo.while`) in the place of each softmax between two products with its gradient, wherever it
          stands: what they give is the same, but for the order in which it is summed up. What stays as it is has a
          remark that says why. Then `tidy`. Nothing has numbers for all queries and keys any more, so a second run
          changes nothing.
Errors    RHI-READ-005 no entry function, RHI-ATTN-001 another way to compute attention than there is.
Source    What is rewritten: passes/attention/score_region.py; in how many loops: online_form.py; a loop: key_loop.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import BARRIER
from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import captured_by, entry_function, maker_of, walk
from rhino.ir.program.local_rules import shape_of
from rhino.passes.attention.block_views import Blocks, converted, joined
from rhino.passes.attention.key_loop import KeyLoop, Sum
from rhino.passes.attention.online_form import Loops
from rhino.passes.attention.plain_products import drop_own_precision, write_products_plainly
from rhino.passes.attention.row_factors import with_factor
from rhino.passes.attention.row_sums import simplify_row_sums
from rhino.passes.attention.score_dims import NO_DIMS, in_order
from rhino.passes.attention.score_region import Refused, Region, Value, ops_of_softmaxes, regions_of, softmaxes_of
from rhino.passes.attention.split_columns import split_columns, split_concatenated
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.frontend.loop_reads import spread_in_loops
from rhino.passes.frontend.loop_stashes import shrink_stashes
from rhino.passes.frontend.tidy import tidy
from rhino.passes.with_rules import renew_rules, run_on_functions, with_rules

BLOCKWISE: Final = "blockwise"
"""What asks for loops over blocks of keys."""
MOST_KEYS: Final = 512
"""The most keys of a block: splash attention, JAX's kernel for TPUs, has as many by default."""


@dataclass(frozen=True)
class BlockwiseAttention(Pass):
    """Compute attention in loops over blocks of keys, with nothing stored for each query and key."""

    name: ClassVar[str] = "rhino-attention"
    errors: ClassVar[tuple[str, ...]] = ("RHI-READ-005", "RHI-ATTN-001")

    attention: str = opt(
        BLOCKWISE, f"{BLOCKWISE}, with at most {MOST_KEYS} keys in a block, or as many as {BLOCKWISE}:N says"
    )

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        most = parse_attention(self.attention, remarks.file)
        for block in _blocks(entry_function(module, remarks.file).operation):
            split_columns(block)
            drop_own_precision(block)
        spread_in_loops(entry_function(module, remarks.file))
        with with_rules(module):
            for block in _blocks(entry_function(module, remarks.file).operation):
                for region in list(softmaxes_of(block)):
                    write_products_plainly(region)
                    _pass_barriers(region)
        with with_rules(module):  # again, for what is new
            _unstack(entry_function(module, remarks.file))
            for block in _blocks(entry_function(module, remarks.file).operation):
                split_concatenated(block)
        run_on_functions(module, "cse")  # what was copied for one stack is what was for another
        with with_rules(module):  # again, for what is new
            self._rewrite(module, most, remarks)
        tidy(module, entry_function(module, remarks.file))
        renew_rules(module)

    def _rewrite(self, module: ir.Operation, most: int, remarks: Remarks) -> None:
        entry = entry_function(module, remarks.file)
        # All are found before one is rewritten, for with it blocks of loops are gone, and the ops that remarks are on.
        regions = [one for block in _blocks(entry.operation) for one in regions_of(block)]
        ops = [one.op if isinstance(one, Refused) else one.top for one in regions]
        places = [place_of(op.location, remarks.file) for op in ops]
        for one, place in zip(regions, places, strict=True):
            remarks.add(self.name, place, one.reason if isinstance(one, Refused) else _rewritten(one, most))


def parse_attention(text: str, file: str = "") -> int:
    """Returns the most keys of a block.

    Raises:
        RhinoError: RHI-ATTN-001 where the text names no way to compute attention.
    """
    name, _, most = text.partition(":")
    if name != BLOCKWISE or not re.fullmatch("[1-9][0-9]*", most or "1"):
        what = f"'{text}' is no way to compute attention"
        raise RhinoError(
            "RHI-ATTN-001", what, Place(file), fix=f"give {BLOCKWISE}, or {BLOCKWISE}:256 for small blocks"
        )
    return int(most) if most else MOST_KEYS


def _blocks(op: ir.Operation) -> list[ir.Block]:
    """Returns the blocks of a function and of the loops in it."""
    found = [op.regions[0].blocks[0]]
    for inner in walk(op):
        if inner.name == "stablehlo.while":
            found.append(inner.regions[1].blocks[0])
    return found


def _pass_barriers(region: Region) -> None:
    """Lets the backward pass read scores as they are that a checkpoint stores behind a barrier, by its policy.

    It computes their softmax again, which then is that of the forward pass.
    """
    for value in region.given:
        readers = {use.owner.operation: None for use in value.uses}  # one may read it twice
        for op in readers:
            if op.name == BARRIER:
                _pass(op, value)


def _pass(barrier: ir.Operation, value: Value) -> None:
    """Takes a value out of what a barrier holds back."""
    kept = [number for number, operand in enumerate(barrier.operands) if operand != value]
    with ir.InsertionPoint(barrier), barrier.location:
        new = stablehlo.OptimizationBarrierOp([barrier.operands[number] for number in kept]) if kept else None
    for number, result in enumerate(barrier.results):
        if number not in kept:
            result.replace_all_uses_with(value)
        elif new is not None:
            result.replace_all_uses_with(new.operation.results[kept.index(number)])
    barrier.erase()


def _unstack(entry: func.FuncOp) -> None:
    """Lets loops compute again what other loops stack for them of softmaxes: weights follow from queries and keys.

    Rounded weights follow from those that are not, and from queries and keys once these are gone.
    """
    repeated = True
    while repeated:
        ops = {op for block in _blocks(entry.operation) for op in ops_of_softmaxes(block)}
        repeated = bool(ops) and shrink_stashes(entry, ops)


def _rewritten(found: Region, most: int) -> str:
    """Rewrites attention, if it can be divided; returns what was done."""
    region = Region(found.block, found.top)
    try:
        region.read()  # again: what was rewritten before has put other values in the place of what is read here
    except Refused as refused:
        return region.stays(refused)
    sizes = f"{region.num_queries} queries and {region.num_keys} keys"
    count = -(-region.num_keys // most)
    if count < 2:
        return f"attention of {sizes} stays as it is: a block has up to {most} keys"
    if count > region.num_queries:
        return f"attention of {sizes} stays as it is: fewer queries than blocks of at most {most} keys"
    if simplify_row_sums(region):
        _erase(region)
        region = Region(region.block, region.top)
        region.read()
    num_loops = _Writer(Loops(region).read(), Blocks(count)).write()
    _erase(region)
    loops = "one loop" if num_loops == 1 else f"{num_loops} loops"
    return f"attention of {sizes} is computed in {count} blocks, by {loops}"


@dataclass(eq=False)
class _Writer:
    """Writes the loops of a region where what they give is first read; what they read is computed before."""

    loops: Loops
    blocks: Blocks
    new: dict[Value, Value] = field(default_factory=dict)

    def write(self) -> int:
        """Writes the loops; returns how many."""
        count = 0
        for number in range(len(self.loops.ends)):
            loop = KeyLoop(self.loops, number, self.blocks)
            if not loop.ends:
                continue
            count += 1
            point = in_order({self._point(op) for op in loop.ends})[0]
            self._bring([value for value, _ in loop.outside()], point)
            with ir.InsertionPoint(point), self.loops.region.top.location:
                sums = loop.write()
            for one in sums:
                self._hand_out(one)
        return count

    def _hand_out(self, one: Sum) -> None:
        """Puts what a loop has summed up in the place of what the program computed."""
        (old,) = one.op.results
        point = self._point(one.op) if one.form.factors else None
        factors = [replace(factor, row=self.new.get(factor.row, factor.row)) for factor in one.form.factors]
        if point is not None:
            self._bring([factor.row for factor in factors], point)
        made = maker_of(one.carried.result)
        assert made is not None
        place = ir.InsertionPoint.after(made) if point is None else ir.InsertionPoint(point)
        with place, one.op.location:
            value = one.carried.result
            shape = shape_of(old)
            value = joined(value, one.by) if one.at == NO_DIMS else self.blocks.whole(value, one.at, shape)
            for factor in factors:
                value = with_factor(value, factor)
            value = converted(value, ir.RankedTensorType(old.type).element_type)
        self.new[old] = value
        old.replace_all_uses_with(value)
        if old in self.loops.row_at:
            self.loops.row_at[value] = self.loops.row_at[old]

    def _point(self, end: ir.Operation) -> ir.Operation:
        """Returns the first op of the block outside of the region that reads an end; the end itself without one."""
        region = self.loops.region
        readers = [_ancestor(use.owner.operation, region.block) for use in end.results[0].uses]
        outside = in_order({one for one in readers if one not in region.dims})
        return outside[0] if outside else end

    def _bring(self, values: Sequence[Value], point: ir.Operation) -> None:
        """Moves what computes some values before an op, where it comes after that."""
        found, waiting = set[ir.Operation](), list(values)
        while waiting:
            made = maker_of(waiting.pop())
            if made is None or made in found or made.block != point.block or made.is_before_in_block(point):
                continue
            assert made != point, "what a loop reads depends on what it gives"
            found.add(made)
            waiting += [*made.operands, *(captured_by(made) if len(made.regions) else ())]
        for op in in_order(found):
            op.move_before(point)


def _ancestor(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """Returns the op of a block in which another stands, or that itself."""
    while op.block != block:
        assert op.parent is not None
        op = op.parent
    return op


def _erase(region: Region) -> None:
    """Erases what nobody reads any more of a region."""
    for op in reversed(in_order(one for one in region.dims if one.block == region.block)):
        if not any(list(result.uses) for result in op.results):
            op.erase()
