"""Pipelines that begin alike, on copies of one module: what they have in common is done once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Item, Remarks, pipeline_text
from rhino.passes.pipeline.pipeline_stages import PipelineStages
from rhino.passes.planner.choose_layouts import swap
from rhino.passes.sharding.choose_shardings import ChooseShardings
from rhino.passes.textual_pipelines import build_pass_manager

_LONG: Final = (ChooseShardings, PipelineStages)
"""Before a pass of each of these kinds the module is kept, the last one that came there."""


@dataclass(eq=False)
class RepeatedPasses:
    """Runs pipelines on copies of one module, one after the other, all of them in one MLIR context."""

    kept: dict[type, tuple[str, ir.Operation, Remarks]] = field(default_factory=dict)
    """By the kind of pass: what ran before, the module that it left, and its remarks."""

    def run(self, module: ir.Operation, items: Sequence[Item], remarks: Remarks) -> None:
        """Runs passes on a copy of the module, as a pass manager would."""
        stops = [(number, kind) for number, one in enumerate(items) for kind in _LONG if isinstance(one, kind)]
        done = 0
        for number, kind in reversed(stops):
            text, left, its_remarks = self.kept.get(kind, ("", module, remarks))
            if text and text == pipeline_text(items[:number]):
                assert left.context is module.context, "a module takes no ops of another MLIR context"
                swap(module, left.clone())
                remarks.items[:], remarks.results = its_remarks.items, dict(its_remarks.results)
                done = number
                break
        for number, kind in stops:
            if number > done:
                build_pass_manager(items[done:number], module.context, remarks).run(module)
                its_remarks = Remarks(remarks.file, [*remarks.items], dict(remarks.results))
                self.kept[kind] = (pipeline_text(items[:number]), module.clone(), its_remarks)
                done = number
        build_pass_manager(items[done:], module.context, remarks).run(module)
