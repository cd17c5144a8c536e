"""Take away what our passes wrote beside the shardings, so that a module can be passed on.

Reads     any module.
Writes    no `rhino.*` attribute and no `sdy.sharding_rule` is left, on ops, arguments and results. Shardings and the
          mesh stay; what only `rhino-localize` reads (strategies, the shardings that loops carry) is gone.
Errors    none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.reader import walk
from rhino.passes.base import Pass, Remarks

SIDES: Final[tuple[Side, ...]] = ("arg", "res")


@dataclass(frozen=True)
class Strip(Pass):
    """Remove every rhino.* attribute and every sharding rule."""

    name: ClassVar[str] = "rhino-strip"

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Strips `module` in place."""
        for op in walk(module):
            for name in [name for name in op.attributes if _is_ours(name)]:
                del op.attributes[name]
            if isinstance(op.opview, func.FuncOp):
                for side in SIDES:
                    kept = [
                        {n: a for n, a in one.items() if not _is_ours(n)}
                        for one in boundary_attributes(op.opview, side)
                    ]
                    set_boundary_attributes(op.opview, side, kept)


def _is_ours(name: str) -> bool:
    return name == RULE or name.startswith("rhino.")
