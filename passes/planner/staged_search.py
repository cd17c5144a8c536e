"""From a module to its step in stages: what `auto-parallel` makes of it, with what binds a plan to the module.

Errors    those of the passes of `auto-parallel`.
"""

from __future__ import annotations

from collections.abc import Mapping

from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.spmd_plan import Source
from rhino.passes.base import Remarks
from rhino.passes.pipeline.split_stages import SplitStages
from rhino.passes.planner.spmd_search import Whole, keep_whole, normalize
from rhino.passes.registry import PARALLEL, Item, build_named
from rhino.passes.sharding.choose_shardings import ChooseShardings
from rhino.passes.textual_pipelines import build_pass_manager


def cut_step(
    module: ir.Module, name: str, options: Mapping[str, str], remarks: Remarks, whole: Whole | None = None, *, is_split: bool = True
) -> Source:
    """Makes of `module` what `auto-parallel` with these options makes of it, and returns what binds a plan to it.

    `whole` says which last dims must stay whole. Where it is not to be split, its ops say of which stage they are, and shardings are chosen
    on one device too.
    """
    passes = build_named(PARALLEL, options)
    assert passes is not None
    source = normalize(module, name, passes[:1], remarks, is_rewritten=False)
    rest: list[Item] = list(passes[1:])
    if not is_split:
        rest = [one for one in rest if not isinstance(one, SplitStages)]
        if not any(isinstance(one, ChooseShardings) for one in rest):
            rest += _chosen_alone(options)
    for chooser in rest:
        if isinstance(chooser, ChooseShardings):
            keep_whole(module, name, whole or {}, chooser, remarks)
    build_pass_manager(rest, module.context, remarks).run(module.operation)
    return source


def _chosen_alone(options: Mapping[str, str]) -> tuple[Item, ...]:
    """Returns what chooses how everything lies on one device, where nothing is left to choose: it makes the problem, all the same."""
    choose = ChooseShardings(cluster=options["cluster"], mesh="1", ranks=int(options["ranks"]))
    return ("func.func(sdy-populate-op-sharding-rules)", choose, "func.func(sdy-drop-sharding-rules)")
