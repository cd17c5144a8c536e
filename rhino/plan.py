"""A plan as a JAX user holds it: shardings of the trees that their function takes and gives, and the file that keeps it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.spmd_plan import SpmdPlan, Tensor, dims_between_calls, load_plan, save_plan
from rhino.ir.plan.spmd_text import explain_text
from rhino.keywords import path_of, text_of
from rhino.passes.planner.staged_text import diff_plans, summary_text
from rhino.passes.planner.why import notable_reasons, why_not_text, why_text
from rhino.pipeline_plan import NAMED, PINNED, PipelinePlan, facts_of
from rhino.runtime.executor.devices import pick_devices
from rhino.source import asked_in_python, program_of, program_text
from rhino.tools.files import write_file
from rhino.tools.plan_report import frame_html, report_html
from rhino.traced import Traced
from rhino.trees import Trees, known


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """How a function runs on many devices.

    `facts` is what the file holds, and what makes plans equal; from a file alone, `trees` and so pytrees of shardings are not known.
    Devices are looked for when shardings are asked for: JAX's first ones, unless some were given. `traced` is the program, which a file
    does not hold either: `why` and `why_not` need it.
    """

    facts: SpmdPlan
    trees: Trees | None = field(default=None, compare=False)
    devices: tuple[jax.Device, ...] | None = field(default=None, compare=False, repr=False)
    traced: Traced | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan | PipelinePlan:
        """Returns the plan in a file, or in the folder of one in stages. Raises RHI-PLAN-001, RHI-PLAN-002."""
        return PipelinePlan.load(path) if os.path.isdir(path_of("path", path)) else cls(load_plan(Path(path)))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan as a file, whole or not at all. Raises RHI-PLAN-003."""
        save_plan(self.facts, Path(path_of("path", path)))

    def __repr__(self) -> str:
        return f"<rhino.Plan\n{summary_text(self.facts)}>"

    def _repr_html_(self) -> str:
        """Returns the page of the plan, for notebooks."""
        return frame_html(self.facts)

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh, with their sizes."""
        return self.facts.mesh

    @property
    def mesh(self) -> Mesh:
        """The mesh on its devices. Raises RHI-RUN-004 where there are too few."""
        sizes = [size for _, size in self.facts.mesh]
        devices = pick_devices(int(np.prod(sizes))) if self.devices is None else self.devices
        return Mesh(np.array(devices, dtype=object).reshape(sizes), [name for name, _ in self.facts.mesh])

    @property
    def in_shardings(self) -> Any:  # noqa: ANN401 - a pytree
        """A sharding for every array of the arguments: a tuple with a tree for each argument that is no constant."""
        return jax.tree.unflatten(known(self.trees, self.facts.source.function).arguments, self._shardings(self.facts.arguments))

    @property
    def out_shardings(self) -> Any:  # noqa: ANN401 - a pytree
        """A sharding for every array of the results, in their tree."""
        return jax.tree.unflatten(known(self.trees, self.facts.source.function).results, self._shardings(self.facts.results))

    def partition_specs(self) -> dict[str, PartitionSpec]:
        """Returns the partition spec of each argument by its path."""
        return {one.path: partition_spec(one, dict(self.facts.mesh)) for one in self.facts.arguments}

    def explain(self, num_rows: int = 20) -> str:
        """Returns what the plan comes to, and its largest tensors and costs, `num_rows` of each."""
        return explain_text(self.facts, num_rows)

    def why(self, name: str) -> str:
        """Returns what was chosen for tensors or ops with names like `name`, and what each alternative would add.

        Raises:
            RhinoError: RHI-PIN-002 where nothing has such a name, RHI-JAX-006 where the plan came from a file.
        """
        with asked_in_python():
            return why_text(self._module(), self.facts, text_of("name", name, NAMED))

    def why_not(self, pin: str) -> str:
        """Returns what `pin`, as `'params.w1=[{}, {"y"}]'`, would change and cost, or why it cannot be. Raises as `why`."""
        with asked_in_python():
            return why_not_text(self._module(), self.facts, text_of("pin", pin, PINNED))

    def report(self, path: str | PathLike[str], *, reasons: bool = True) -> None:
        """Writes a page of HTML that says all that is known of the plan. Raises RHI-CLI-003 where it cannot be written.

        With `reasons`, where the program is known, it says what else was possible for the largest tensors and ops: that is searched first.
        """
        found = notable_reasons(self._module(), self.facts) if reasons and self.traced else []
        write_file(path_of("path", path), report_html(self.facts, found).encode())

    def save_program(self, path: str | PathLike[str]) -> None:
        """Writes the module that was planned, as `rhino-plan --module` takes it with the plan's file. Raises RHI-CLI-003, RHI-JAX-006."""
        write_file(path_of("path", path), program_text(self._module()))

    def _module(self) -> ir.Module:
        return program_of(self.traced, self.facts.source.function)

    def diff(self, other: Plan | PipelinePlan) -> str:
        """Returns what `other` does differently, and what that costs; empty where nothing is."""
        return diff_plans(self.facts, facts_of(other))

    def _shardings(self, tensors: Sequence[Tensor]) -> list[NamedSharding]:
        mesh = self.mesh
        made: dict[PartitionSpec, NamedSharding] = {}
        specs = [partition_spec(one, dict(self.facts.mesh)) for one in tensors]
        return [made.setdefault(spec, NamedSharding(mesh, spec)) for spec in specs]


def partition_spec(tensor: Tensor, mesh: Mapping[str, int]) -> PartitionSpec:
    """Returns how a tensor is split between calls, as JAX says it; dims at the end that are whole are left out."""
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims_between_calls(tensor, mesh)]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
