"""Write on every op the cone that it is in.

Reads     the ops and what they read; a missing `sdy.sharding_rule` is made for the time of the pass.
Writes    `rhino.cone = N : i64` on each op of the entry and of the loops in it that takes part (as for
          `rhino-critical-path`); cones are numbered in the order of their roots. `rhino.cone_root` on the roots.
Errors    RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have.
Source    Rhino 4.3.2, level 1; strategies/structure/cones.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.diagnostics import Place
from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Pass, Remarks
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.structure.cones import cones_of
from rhino.strategies.structure.dependences import flow_of

CONE: Final = "rhino.cone"
CONE_ROOT: Final = "rhino.cone_root"


@dataclass(frozen=True)
class AnnotateCones(Pass):
    """Write on every op the number of its cone, and mark the cones' roots."""

    name: ClassVar[str] = "rhino-cones"
    errors: ClassVar[tuple[str, ...]] = UNSHARDED_ERRORS

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        with unsharded_program(module, remarks) as program:
            cones = cones_of(program.graph, flow_of(program.graph))
            i64 = ir.IntegerType.get_signless(64)
            for op, cone in zip(program.ops, cones.number.tolist(), strict=True):
                if cone >= 0:
                    op.attributes[CONE] = ir.IntegerAttr.get(i64, cone)
            for root in cones.root.tolist():
                program.ops[root].attributes[CONE_ROOT] = ir.UnitAttr.get()
        num_ops = int((cones.number >= 0).sum())
        remarks.add(self.name, Place(remarks.file), f"{num_ops:,} ops in {len(cones.root):,} cones")
