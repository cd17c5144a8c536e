"""Write on every op how much work it is on one device: floating-point operations, and bytes of its tensors.

Reads     the ops, and their `sdy.sharding_rule` (how much a product multiplies); a rule that is missing is made for the
          time of the pass.
Writes    `rhino.work = {bytes = B : i64, flops = F : i64}` on each op of the entry and of the loops in it, for one run
          of the op; none on returns and on loops themselves. `bytes` are those of its operands and results, each read
          or written once; `flops` are two for each multiply-add of a product or convolution, else one for each element.
Errors    RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rhino.ir.graph.graph import WHILE, YIELD
from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Pass, Remarks
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program

WORK = "rhino.work"


@dataclass(frozen=True)
class AnnotateWork(Pass):
    """Write on every op its work: floating-point operations, and bytes of its tensors."""

    name: ClassVar[str] = "rhino-annotate-work"
    errors: ClassVar[tuple[str, ...]] = UNSHARDED_ERRORS

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        with unsharded_program(module, remarks) as program:
            written: dict[tuple[int, int], ir.Attribute] = {}
            for number, op in enumerate(program.ops):
                cls = program.graph.cls(number)
                if cls.name in (WHILE, YIELD):
                    continue
                key = (sum(kind.num_bytes for kind in (*cls.operands, *cls.results)), cls.flops)
                if key not in written:
                    written[key] = ir.Attribute.parse(f"{{bytes = {key[0]} : i64, flops = {key[1]} : i64}}")
                op.attributes[WORK] = written[key]
