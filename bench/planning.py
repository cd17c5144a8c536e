"""A model planned as `rhino-opt --auto-shard` plans it, in every form that can be run, and what the plan predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import jax

from rhino.ir.graph.collective_stats import CollectiveStats
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import read_module
from rhino.ir.program.collectives import module_stats
from rhino.passes.base import Remarks
from rhino.passes.sharding.choose_shardings import ShardingChoice, predicted_stats
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.compare import TOLERANCES, Difference, differences, worst
from rhino.runtime.executor.executable import Executable, Host, compile_module
from rhino.runtime.executor.inputs import InputRule, draw_inputs, nonnegative_arguments
from rhino.runtime.executor.steps import run_steps
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.solver.answer import Answer

INT_RANGE: Final = 8
"""Below the vocabulary and number of classes of every model: integers are indices."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A module with its shardings, the program of each device, the plan of both, and the search's answer."""

    annotated: ir.Module
    local: ir.Module
    plan: ShardingPlan
    answer: Answer

    @property
    def predicted(self) -> CollectiveStats:
        """The collectives that the plan foresees."""
        return predicted_stats(self.plan)

    @property
    def localized(self) -> CollectiveStats:
        """The collectives that stand in each device's program."""
        return module_stats(self.local)

    def form(self, name: str) -> ir.Module:
        """Returns what to compile for the form "annotated" or "localized"."""
        return self.annotated if name == "annotated" else wrap_manual(self.local)


def auto_shard(cluster: str, mesh: str = "", budget: str = "", level: int = 3, **more: str) -> str:
    """Returns the pipeline for a cluster (a preset or a file), a mesh and a budget; empty takes the defaults."""
    options = {"cluster": cluster, "mesh": mesh, "budget": budget, **more}
    words = [f'{name}="{value}"' for name, value in options.items()]
    return f"auto-shard{{{' '.join(words)} level={level}}}"


def sharded(text: bytes, name: str, pipeline: str) -> tuple[ir.Module, Remarks]:
    """Returns the program in `text` behind a pipeline, and what its passes say."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    build_pass_manager(pipeline, module.context, remarks).run(module.operation)
    return module, remarks


def planned(module: ir.Module, name: str, remarks: Remarks) -> Planned:
    """Returns what a search has found for a module."""
    chosen = remarks.result(ShardingChoice)
    return Planned(module, localized_copy(module, name), chosen.plan, chosen.answer)


def plan_step(text: bytes, name: str, cluster: str, budget: str = "", mesh: str = "") -> Planned:
    """Returns the training step in `text` planned for a cluster (preset or file) and a mesh.

    `budget` is bytes per device, as "16GiB".
    """
    module, remarks = sharded(text, name, auto_shard(cluster, mesh, budget))
    return planned(module, name, remarks)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A step on one device: its inputs, and every result of every step [steps][results]."""

    inputs: list[Host]
    results: list[list[Host]]

    def difference(self, form: Executable, tolerance: float | None = None) -> Difference:
        """Returns how far the same steps on `form` are from these: the worst result of all steps."""
        steps = run_on(form, self.inputs, len(self.results))
        found = [
            worst(differences(form.signature, got, want, tolerance))
            for got, want in zip(steps, self.results, strict=True)
        ]
        result = worst(difference for difference in found if difference is not None)
        assert result is not None
        return result


def reference(text: bytes, name: str, num_steps: int, given: Mapping[int, Host] | None = None) -> Reference:
    """Returns `num_steps` steps of the training step in `text` on one device; arguments not in `given` are drawn."""
    module = read_module(text, name, make_context())
    executable = compile_module(module, jax.devices()[:1])
    inputs = draw_inputs(executable.signature, InputRule(0, INT_RANGE, nonnegative_arguments(module)), given or {})
    return Reference(inputs, run_on(executable, inputs, num_steps))


def run_on(executable: Executable, inputs: Sequence[Host], num_steps: int) -> list[list[Host]]:
    """Returns every result of every step [steps][results]."""
    return [executable.fetch(step.results) for step in run_steps(executable, inputs, num_steps)]


def tolerance(name: str) -> float | None:
    """Returns the relative error allowed for a model by its name in the zoo, None for that of its results' dtypes.

    A model that computes in bf16 has f32 results, whose errors are nonetheless those of bf16.
    """
    return TOLERANCES["bfloat16"] if "bf16" in name else None
