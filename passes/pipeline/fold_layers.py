"""Keep one of several alike layers, which stands for them in what the step takes: to plan a deep step as a shallow one.

Reads     a normalized step of unrolled layers on one device (strategies/structure/layer_folding.py finds where they are
          alike).
Writes    the same with `num-groups` layers in each stretch of alike ones, marked on ops and arguments
          (ir/program/folded_layers.py). It computes something else and is not for running: seconds, traffic and memory
          are those of the step that it was, where all layers of a group lie alike.
Errors    RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have, RHI-PASS-001 no
          number of layers.
Source    TAP IV-C (folding), on whole training steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.reader import end_of, walk
from rhino.ir.program.folded_layers import FOLDED, GROUP, mark_attribute
from rhino.ir.program.program import Program
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.pipeline.part_numbers import drop_dead
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.structure.layer_folding import Shorter, shorten, stretches_of


@dataclass(frozen=True, slots=True)
class FoldedLayers:
    """How many alike layers each stretch of a step had that are fewer now."""

    counts: tuple[int, ...]


@dataclass(frozen=True)
class FoldLayers(Pass):
    """Keep one of several alike layers, which stands for them in what the step takes."""

    name: ClassVar[str] = "rhino-fold-layers"
    errors: ClassVar[tuple[str, ...]] = ("RHI-PASS-001", *UNSHARDED_ERRORS)

    num_groups: int = opt(64, "how many layers to keep where there are at least twice as many alike ones")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        if self.num_groups < 1:
            what = f"pass '{self.name}' keeps 1 layer or more, not {self.num_groups}"
            raise RhinoError("RHI-PASS-001", what, fix="num-groups=1, or more")
        with unsharded_program(module, remarks) as program:
            stretches = stretches_of(program.graph, 2 * self.num_groups)
            shorter = shorten(program.graph, stretches, self.num_groups) if stretches else None
            if shorter is not None:
                _write(program, shorter)
        if shorter is None:
            return
        module.attributes[FOLDED] = ir.UnitAttr.get(module.context)
        remarks.record(FoldedLayers(tuple(len(stretch.ops) for stretch in stretches)))
        for stretch in stretches:
            text = f"{len(stretch.ops):,} layers of {stretch.ops.shape[1]:,} ops are kept as {self.num_groups:,}"
            remarks.add(self.name, Place(remarks.file), text)


def _write(program: Program, shorter: Shorter) -> None:
    """Makes the entry function the shorter one."""
    graph, entry = program.graph, program.entry
    values = [*entry.arguments, *(result for op in program.ops for result in op.results)]
    before, after, start = graph.uses.tolist(), shorter.uses.tolist(), graph.use_start.tolist()
    for number, op in enumerate(program.ops):
        if shorter.kept[number]:
            for use in range(start[number], start[number + 1]):
                if before[use] != after[use]:
                    _read(op, use - start[number], values[before[use]], values[after[use]])
            op.attributes[GROUP] = mark_attribute(
                shorter.mark(int(shorter.group[number]), bool(shorter.is_back[number]))
            )
    _return(entry, [values[graph.returns[result]] for result in shorter.returned])
    for number in reversed(np.flatnonzero(~shorter.kept).tolist()):
        program.ops[number].erase()
    furthest = -1
    for before, number in pairwise((-1, *shorter.order)):
        if number < furthest:
            program.ops[number].move_after(program.ops[before])
        furthest = max(furthest, number)
    # This drops what only left layers needed. Two ops that are now the same stay two, as they were.
    drop_dead(entry.regions[0].blocks[0])
    _declare(program, shorter)


def _read(op: ir.Operation, position: int, old: ir.Value[Any], new: ir.Value[Any]) -> None:
    """Has an op read `new` as operand number `position`, or in its regions for `old`."""
    if position < len(op.operands):
        op.operands[position] = new
    else:
        for inner in walk(op):
            inner.replace_uses_of_with(old, new)


def _return(entry: func.FuncOp, values: list[ir.Value[Any]]) -> None:
    """Has a function return other values."""
    end = end_of(entry.regions[0].blocks[0])
    with ir.InsertionPoint(end), end.location:
        func.ReturnOp(values)
    end.erase()


def _declare(program: Program, shorter: Shorter) -> None:
    """Leaves out the arguments that nothing reads any more, and says which groups the others belong to."""
    graph, entry = program.graph, program.entry
    block = entry.regions[0].blocks[0]
    inputs, outputs = boundary_attributes(entry, "arg"), boundary_attributes(entry, "res")
    result_of = {result: number for number, result in enumerate(shorter.returned)}
    once_read = np.isin(np.arange(len(inputs)), [*graph.uses.tolist(), *graph.returns])
    kept = [
        number for number, value in enumerate(entry.arguments) if not once_read[number] or any(True for _ in value.uses)
    ]
    for number in kept:
        alias, group = graph.arguments[number].alias, int(shorter.argument_group[number])
        inputs[number].pop(ALIAS, None)
        if alias in result_of:
            inputs[number][ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result_of[alias])
        if group >= 0:
            inputs[number][GROUP] = mark_attribute(shorter.mark(group))
    for number in reversed(range(len(inputs))):
        if number not in kept:
            block.erase_argument(number)
    set_function_type(entry)
    set_boundary_attributes(entry, "arg", [inputs[number] for number in kept])
    set_boundary_attributes(entry, "res", [outputs[number] for number in shorter.returned])
