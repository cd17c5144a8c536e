"""Write on every op when it can and must start, and mark the critical nodes.

Reads     the ops and what they read; a missing `sdy.sharding_rule` is made for the time of the pass.
Writes    `rhino.earliest = N : i64` and `rhino.latest = N : i64` on each op of the entry and of the loops in it that
          takes part: none on ops that depend on constants or scalars alone, on loops themselves and on returns. Where
          both are equal, the op is on the backbone; `rhino.critical` marks the products there. Time counts ops, or
          products alone; a loop's body counts once.
Errors    RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have.
Source    Rhino 4.3.1; strategies/structure/critical_path.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.diagnostics import Place
from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.structure.critical_path import critical_path
from rhino.strategies.structure.dependences import flow_of

EARLIEST: Final = "rhino.earliest"
LATEST: Final = "rhino.latest"
CRITICAL: Final = "rhino.critical"


@dataclass(frozen=True)
class AnnotateCriticalPath(Pass):
    """Write on every op its earliest and latest time, and mark the critical nodes."""

    name: ClassVar[str] = "rhino-critical-path"
    errors: ClassVar[tuple[str, ...]] = UNSHARDED_ERRORS

    only_products: bool = opt(False, "true = only products take time, as for segments; false = every op takes one unit")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        with unsharded_program(module, remarks) as program:
            flow = flow_of(program.graph)
            path = critical_path(program.graph, flow, self.only_products)
            i64 = ir.IntegerType.get_signless(64)
            for number, op in enumerate(program.ops):
                if not flow.counts[number]:
                    continue
                op.attributes[EARLIEST] = ir.IntegerAttr.get(i64, int(path.earliest[number]))
                op.attributes[LATEST] = ir.IntegerAttr.get(i64, int(path.latest[number]))
                if path.critical[number]:
                    op.attributes[CRITICAL] = ir.UnitAttr.get()
        unit = "products" if self.only_products else "ops"
        remarks.add(
            self.name,
            Place(remarks.file),
            f"the critical path is {path.length:,} {unit} long; critical nodes: {path.critical.sum():,}",
        )
