"""Bring a module into the form that the planner reads: one function, StableHLO alone, nothing dead, nothing twice.

Reads     any StableHLO / CHLO module with calls, composites and ops of Shardy's.
Writes    the entry function with every call inlined, CHLO, composites, tuples and deprecated ops in plain terms,
          reductions that start from their identity, slices and updates of whole dims that start at zero, dims that are
          indexed by a count as batching dims (passes/frontend/batching_dims.py), tensors without elements as constants,
          branches as selections and loops, common subexpressions merged, dead code gone, loops with values of their own
          (passes/frontend/loop_values.py) and no stacks that follow from others (passes/frontend/loop_stashes.py),
          parts by hand over all axes (passes/frontend/manual_regions.py). Debug notes of Shardy's propagation are gone.
          Locations stay; an inlined op's says where it was called.
Errors    RHI-READ-005 no entry function, RHI-READ-006 recursive calls, RHI-READ-007 calls of too many ops, RHI-READ-008
          a callee without a body, RHI-SHARD-001 a part by hand in another that cannot be honoured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.graph.graph import REDUCE, WHILE
from rhino.ir.mlir.bindings import func, ir, passmanager, stablehlo
from rhino.ir.mlir.reader import entry_function, maker_of, walk
from rhino.ir.mlir.shardings import module_meshes
from rhino.ir.program.identity import is_constant, make_constant
from rhino.ir.program.numerics import needless_start
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.frontend.batching_dims import name_batching_dims
from rhino.passes.frontend.branches import BRANCHES, split_branches
from rhino.passes.frontend.empty_tensors import drop_empty_tensors
from rhino.passes.frontend.inline import CALL, INLINE_ERRORS, inline_calls
from rhino.passes.frontend.loop_stashes import shrink_stashes
from rhino.passes.frontend.loop_values import compute_constants
from rhino.passes.frontend.manual_regions import widen_regions
from rhino.passes.frontend.shardy_ops import plain_shardy_ops
from rhino.passes.frontend.stage_marks import keep_marks
from rhino.passes.frontend.tidy import HOIST, tidy


@dataclass(frozen=True)
class Normalize(Pass):
    """Inline calls, legalize CHLO and composites, merge common subexpressions, drop dead code."""

    name: ClassVar[str] = "rhino-normalize"
    errors: ClassVar[tuple[str, ...]] = ("RHI-READ-005", *INLINE_ERRORS, "RHI-SHARD-001")

    boundaries: bool = opt(False, "keep the marks of stages for rhino-pipeline-stages")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Normalizes `module` in place."""
        entry = entry_function(module, remarks.file)
        if self.boundaries:
            keep_marks(module)
        _nested(module, f"{_FORGET},func.func({_LEGALIZE})")
        ops = walk(entry.operation)
        if not _is_plain(module, ops):
            inline_calls(module, entry, remarks.file)
            plain_shardy_ops(entry, self.name, remarks)
            widen_regions(entry, self.name, remarks)
            _unpack_tuples(entry)
            split_branches(entry)
            ops = walk(entry.operation)
        drop_empty_tensors(ops)
        name_batching_dims(ops)
        for op, (by, identity) in [(op, found) for op in ops if op.name == REDUCE and (found := needless_start(op))]:
            _start_from_identity(op, by, identity)
        for op in ops:
            _start_at_zero(op)
        has_loops = any(op.name == WHILE for op in ops)
        del ops  # no handle of an op outlives what erases it
        _nested(module, "symbol-dce,func.func(cse)")
        if has_loops:
            shrink_stashes(entry)
            compute_constants(entry)
        tidy(module, entry)


_FORGET: Final = "sdy-remove-propagation-debug-info"
"""Drops Shardy's notes of how it came to its shardings.

XLA refuses `sdy.propagation_edges` of an op without a sharding.
"""
_LEGALIZE = (
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false},"
    f"chlo-legalize-to-stablehlo,{HOIST},stablehlo-legalize-composite-to-call"
)


_ELEMENT: Final = "stablehlo.get_tuple_element"
_FIRST_STARTS: Final = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}
"""The number of the first operand that says where a window starts."""
_APART: Final = frozenset({CALL, _ELEMENT, *BRANCHES})
"""Ops that are taken apart, beside those of Shardy."""


def _is_plain(module: ir.Operation, ops: Sequence[ir.Operation]) -> bool:
    """Says whether nothing is to be taken apart in `ops`, nor said of their shardings."""
    kinds = {op.name for op in ops}
    return _APART.isdisjoint(kinds) and not any(kind.startswith("sdy.") for kind in kinds) and not module_meshes(module)


def _unpack_tuples(entry: func.FuncOp) -> None:
    """Replaces the elements taken from tuples by what the tuples were made of, outer tuples first."""
    for op in [op for op in walk(entry.operation) if op.name == _ELEMENT]:
        made = maker_of(op.operands[0])
        if made is not None and made.name == "stablehlo.tuple":
            op.results[0].replace_all_uses_with(made.operands[ir.IntegerAttr(op.attributes["index"]).value])
            op.erase()


def _start_from_identity(op: ir.Operation, by: str, identity: float) -> None:
    """Joins what a reduction starts from to the reduction from its identity, so that parts of it can be reduced apart.

    XLA takes any start for the identity: it reduces the parts of what it joins (after an all-to-all, say) from the same
    start, and a dim of one element not at all.
    """
    result, start = op.results[0], op.operands[1]
    kind = ir.RankedTensorType(result.type)
    with op.location:
        with ir.InsertionPoint(op):
            op.operands[1] = make_constant(start.type, identity)
            repeated = stablehlo.BroadcastInDimOp(kind, start, []).result if kind.shape else start
        with ir.InsertionPoint.after(op):
            joined = ir.Operation.create(by, [kind], [result, repeated])
    result.replace_all_uses_except(joined.results[0], joined)


def _start_at_zero(op: ir.Operation) -> None:
    """Takes the starts that a slice or its update need not read: a window of a whole dim starts at zero."""
    first = _FIRST_STARTS.get(op.name)
    if first is None:
        return
    window = op.results[0] if first == 1 else op.operands[1]
    sizes = zip(ir.RankedTensorType(op.operands[0].type).shape, ir.RankedTensorType(window.type).shape, strict=True)
    for dim, (whole, part) in enumerate(sizes):
        if whole == part and not is_constant(start := op.operands[first + dim], 0):
            with ir.InsertionPoint(op), op.location:
                op.operands[first + dim] = make_constant(start.type, 0)


def _nested(module: ir.Operation, pipeline: str) -> None:
    manager = passmanager.PassManager.parse(f"builtin.module({pipeline})", module.context)
    manager.enable_verifier(False)  # takes longer than these passes; the one after this pass looks at what they leave
    manager.run(module)
