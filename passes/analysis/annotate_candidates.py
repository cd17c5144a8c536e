"""Write on every op the strategies that the search chooses from.

Reads     what `rhino-choose-shardings` reads: rules, mesh, existing shardings and scopes. Missing rules are made for
          the time of the pass.
Writes    `rhino.candidates = ["replicate", "i", "partial 0", ...]`, named as in `rhino.strategy`, on each op of the
          entry and of the loops in it that has more than one strategy. Ops that depend on constants or scalars alone
          have none: they follow their users.
Errors    RHI-SHARD-001 a user's sharding cannot be honoured, RHI-MESH-001 larger than the cluster, RHI-MESH-002 not the
          module's mesh, RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function,
          RHI-PIN-002 a scope has no axes, or nothing to share.
Source    Rhino 4.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function
from rhino.passes.base import Remarks
from rhino.passes.sharding.planning_pass import PLANNING_ERRORS, PlanningPass, begin_choice
from rhino.passes.with_rules import with_rules
from rhino.strategies.cost.candidates import strategy_name

CANDIDATES = "rhino.candidates"


@dataclass(frozen=True)
class AnnotateCandidates(PlanningPass):
    """Write on every op the strategies that the search chooses from."""

    name: ClassVar[str] = "rhino-annotate-candidates"
    errors: ClassVar[tuple[str, ...]] = ("RHI-PIN-002", *PLANNING_ERRORS)

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        target = self.target(module, remarks)
        entry_function(module, remarks.file)
        with with_rules(module):
            program = self.read(module, target, remarks)
            choice = begin_choice(program, target)
            for node in choice.nodes:
                if node.kind == "op" and len(node.states) > 1:
                    cls = program.graph.cls(node.number)
                    names = [ir.StringAttr.get(strategy_name(cls, state.strategy)) for state in node.states]
                    program.ops[node.number].attributes[CANDIDATES] = ir.ArrayAttr.get(names)
