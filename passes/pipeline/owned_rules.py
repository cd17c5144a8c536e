"""Rules that custom calls have of their owners, kept while a step is rewritten for parts of its batch.

Shardy's conversion to smaller shapes drops all rules: those of other ops follow from what they are, but those not. What
a kernel shows of itself, or a file says, comes with costs (`rhino.cost`), which are others for a part: both are given
anew (passes/sharding/op_rules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rhino.ir.graph.rules import RULE, resized_rule
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk
from rhino.ir.program.local_rules import CUSTOM_CALL, shape_of
from rhino.ir.program.program import COST

_KEPT: Final = "rhino.owned_rule"


@contextmanager
def owned_rules(module: ir.Operation) -> Iterator[None]:
    """Gives custom calls, at the end, the rules that they had, for the shapes that they then have.

    A call whose rule fits those shapes in no way has none then.
    """
    for op in _calls(module):
        if RULE in op.attributes and COST not in op.attributes:
            op.attributes[_KEPT] = ir.StringAttr.get(str(op.attributes[RULE]))
    yield
    for op in _calls(module):
        if _KEPT not in op.attributes:
            continue
        kept = ir.StringAttr(op.attributes[_KEPT]).value
        del op.attributes[_KEPT]
        rule = resized_rule(kept, list(map(shape_of, op.operands)), list(map(shape_of, op.results)))
        if rule is not None:
            op.attributes[RULE] = ir.Attribute.parse(rule)


def _calls(module: ir.Operation) -> list[ir.Operation]:
    return [op for op in walk(module) if op.name == CUSTOM_CALL]
