"""Take away what our passes wrote beside the shardings, so that a module can be handed on.

Reads     any module.
Writes    no `rhino.*` attribute and no `sdy.sharding_rule` is left, on ops, arguments and results. Shardings and the mesh stay.
Errors    none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rhino.ir.mlir import func, ir
from rhino.ir.program import RULE
from rhino.ir.reader import walk
from rhino.passes.base import Pass, Remarks


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
                for side in ("arg_attrs", "res_attrs"):
                    _strip_boundary(op, side)


def _is_ours(name: str) -> bool:
    return name == RULE or name.startswith("rhino.")


def _strip_boundary(function: ir.Operation, side: str) -> None:
    if side not in function.attributes:
        return
    kept = []
    for one in ir.ArrayAttr(function.attributes[side]):
        entries = {named.name: named.attr for named in ir.DictAttr(one)}
        kept.append(ir.DictAttr.get({name: value for name, value in entries.items() if not _is_ours(name)}))
    function.attributes[side] = ir.ArrayAttr.get(kept)
