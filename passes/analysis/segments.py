"""Write on every op the segment that it is in, and which segments are alike.

Reads     the ops and what they read; a missing `sdy.sharding_rule` is made for the time of the pass.
Writes    `rhino.segment = N : i64` and `rhino.fold = M : i64` on each op of the entry and of the loops in it that takes
          part (as for `rhino-critical-path`). Segments are numbered along the model; those with the same number of
          `rhino.fold` are alike.
Errors    RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have.
Source    Rhino 4.3.2, level 3 (segments), TAP IV-C (folding); strategies/structure/segments.py,
          strategies/structure/segment_folding.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from rhino.ir.diagnostics import Place
from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Pass, Remarks
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.structure.segments import Segments, segments_of

SEGMENT: Final = "rhino.segment"
FOLD: Final = "rhino.fold"


@dataclass(frozen=True)
class AnnotateSegments(Pass):
    """Write on every op the number of its segment, and of the class of segments that are alike."""

    name: ClassVar[str] = "rhino-segments"
    errors: ClassVar[tuple[str, ...]] = UNSHARDED_ERRORS

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        with unsharded_program(module, remarks) as program:
            segments = segments_of(program.graph)
            i64 = ir.IntegerType.get_signless(64)
            fold = segments.fold.tolist()
            for op, segment in zip(program.ops, segments.number.tolist(), strict=True):
                if segment >= 0:
                    op.attributes[SEGMENT] = ir.IntegerAttr.get(i64, segment)
                    op.attributes[FOLD] = ir.IntegerAttr.get(i64, fold[segment])
        for text in _remarks(segments):
            remarks.add(self.name, Place(remarks.file), text)


def _remarks(segments: Segments) -> list[str]:
    """Returns a sentence on all segments, and one on each class of alike ones."""
    direction = "down and back up" if segments.turns else "one way"
    sizes, (_, first, times) = segments.sizes(), np.unique(segments.fold, return_index=True, return_counts=True)
    lines = [f"segments: {len(segments.fold):,}, unique: {segments.num_unique:,}; the program runs {direction}"]
    for number, (example, count) in enumerate(zip(first.tolist(), times.tolist(), strict=True)):
        lines.append(f"fold {number}: {count:,} of {sizes[example]:,} ops, first segment {example:,}")
    return lines
