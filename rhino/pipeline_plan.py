"""A plan in stages as a JAX user holds it: on which rank each array lies and how, and the folder that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.call import kind_name
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.folder import Boundary, WholePlan, write_plan
from rhino.ir.plan.instructions import Feed, Fetch, Layout
from rhino.ir.plan.spmd_plan import Source, SpmdPlan, Tensor
from rhino.ir.program.staged_module import KEPT
from rhino.keywords import path_of, text_of
from rhino.passes.planner.staged_text import diff_plans, explain_whole, summary_text
from rhino.passes.planner.staged_why import notable_whole, why_not_whole_text, why_whole_text
from rhino.runtime.distributed.jax_job import deal_devices, team_of
from rhino.runtime.distributed.processes import Team
from rhino.runtime.executor.executor import devices_of_ranks
from rhino.runtime.executor.proven_plan import read_proven_plan
from rhino.runtime.executor.rank_program import RankDevices
from rhino.runtime.executor.signature import array_dtype
from rhino.source import asked_in_python, program_of, program_text
from rhino.tools.files import write_file
from rhino.tools.plan_report import frame_html, report_html
from rhino.traced import Traced
from rhino.trees import Trees, known

Place = tuple[int, Layout]
"""A rank, and how an array lies on its mesh."""

NAMED: Final = "name a tensor or an op as docs/explain.md says, as 'state.w'"
PINNED: Final = "say a name and dims, as 'state.w=[{}, {\"x\"}]'"


class AnyPlan(Protocol):
    """A plan of one program, or in stages."""

    @property
    def facts(self) -> SpmdPlan | WholePlan:
        """What its file or folder holds."""


def facts_of(plan: AnyPlan) -> SpmdPlan | WholePlan:
    """Returns what a plan says. Raises RHI-JAX-002 for what is none."""
    facts = getattr(plan, "facts", None)
    if isinstance(facts, SpmdPlan | WholePlan):
        return facts
    raise RhinoError("RHI-JAX-002", f"the other plan is {kind_name(plan)}: {plan!r:.60}", fix="give rhino.Plan.load(path)")


@dataclass(frozen=True, repr=False)
class PipelinePlan:
    """How a function runs in stages, each on the mesh of its rank.

    `facts` is what the folder holds (that of `rhino-opt --auto-parallel --plan`, which `rhino-run` runs), and what makes plans equal.
    Devices are looked for when shardings are asked for: JAX's first ones, in a job of several processes the first ones of each, unless some
    were given; each rank has as many, one after another. `traced` is the program, which a folder does not hold: `why` and
    `why_not` need it.
    """

    facts: WholePlan
    trees: Trees | None = field(default=None, compare=False)
    devices: tuple[jax.Device, ...] | None = field(default=None, compare=False, repr=False)
    key_dims: tuple[tuple[int, ...], tuple[int, ...]] = field(default=((), ()), compare=False, repr=False)
    """Of arguments and results, how many dims behind a typed key's own its words have; empty where nothing is known of keys."""
    traced: Traced | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> PipelinePlan:
        """Returns the plan in a folder. Raises RHI-PLAN-001, RHI-PLAN-002 where a file is missing or altered, and where it cannot run."""
        return cls(read_proven_plan(Path(path_of("folder", folder))))

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the plan as a folder, whole or not at all. Raises RHI-PLAN-003."""
        write_plan(self.facts, Path(path_of("folder", folder)))

    def __repr__(self) -> str:
        return f"<rhino.PipelinePlan\n{summary_text(self.facts)}>"

    def _repr_html_(self) -> str:
        """Returns the page of the plan, for notebooks."""
        return frame_html(self.facts)

    @property
    def num_devices(self) -> int:
        """How many devices the plan runs on."""
        return self.facts.step.num_ranks * self.facts.step.mesh.num_devices

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh of a rank, with their sizes."""
        return self.facts.step.mesh.axes

    @cached_property
    def ranks(self) -> tuple[RankDevices, ...]:
        """The devices of each rank. Raises RHI-RUN-004 where there are too few."""
        step = self.facts.step
        devices = deal_devices(step.num_ranks, step.mesh.num_devices) if self.devices is None else self.devices
        return tuple(RankDevices(rank, step.mesh, held) for rank, held in devices_of_ranks(step, devices).items())

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each rank on its devices. Raises RHI-RUN-004 where there are too few."""
        mesh = self.facts.step.mesh
        return tuple(Mesh(np.array(rank.devices, dtype=object).reshape(mesh.shape), mesh.names) for rank in self.ranks)

    @cached_property
    def team(self) -> Team | None:
        """The processes that hold the ranks, None where this one holds all. Raises RHI-RUN-004 where a rank is spread over two."""
        return team_of(self.ranks)

    @cached_property
    def shared(self) -> frozenset[int]:
        """The results that every process gets, where there are several: those that have no dims and are no argument of the next step."""
        passed_on = {one.alias for one in self.facts.arguments}
        return frozenset(number for number, one in enumerate(self.facts.results) if not one.shape and number not in passed_on)

    @cached_property
    def shared_sharding(self) -> NamedSharding:
        """How a result lies that every process gets: whole on the first rank of each."""
        assert self.team is not None
        devices = [device for ranks in self.team.ranks for device in self.ranks[ranks[0]].devices]
        return NamedSharding(Mesh(np.array(devices, dtype=object), ("devices",)), PartitionSpec())

    @property
    def in_shardings(self) -> Any:  # noqa: ANN401 - a pytree
        """A sharding for every array of the arguments, on the mesh of its rank: a tuple with a tree for each that is no constant."""
        return jax.tree.unflatten(known(self.trees, self.function).arguments, self._shardings(self.arguments(), self.key_dims[0]))

    @property
    def out_shardings(self) -> Any:  # noqa: ANN401 - a pytree
        """A sharding for every array of the results, on the mesh of its rank or, if all processes get it, of them; in their tree."""
        found = self._shardings(self.results(), self.key_dims[1])
        if self.team is not None:
            found = [self.shared_sharding if number in self.shared else one for number, one in enumerate(found)]
        return jax.tree.unflatten(known(self.trees, self.function).results, found)

    @property
    def function(self) -> str:
        """What is planned."""
        return str(self.facts.about["source"])

    def arguments(self) -> tuple[Place, ...]:
        """Returns where each argument lives. One that nothing reads lies whole on the first rank."""
        fed = {one.argument: one.target for one in self.facts.step.instructions if isinstance(one, Feed)}
        return tuple(self._place(fed.get(number), one) for number, one in enumerate(self.facts.arguments))

    def results(self) -> tuple[Place, ...]:
        """Returns where each result is given."""
        given = {one.result: one.source for one in self.facts.step.instructions if isinstance(one, Fetch)}
        return tuple(self._place(given[number], one) for number, one in enumerate(self.facts.results))

    def partition_specs(self) -> dict[str, PartitionSpec]:
        """Returns the partition spec of each argument by its path, on the mesh of its rank (`rank_of`)."""
        return {one.name: _spec(layout) for one, (_, layout) in zip(self.facts.arguments, self.arguments(), strict=True)}

    def rank_of(self) -> dict[str, int]:
        """Returns the rank on which each argument lives, by its path."""
        return {one.name: rank for one, (rank, _) in zip(self.facts.arguments, self.arguments(), strict=True)}

    def explain(self, num_rows: int = 20) -> str:
        """Returns what the plan comes to, rank by rank, its largest programs, arguments and transfers, `num_rows` each, and a timeline."""
        return explain_whole(self.facts, num_rows)

    def diff(self, other: AnyPlan) -> str:
        """Returns what `other` does differently, and what that costs; empty where nothing is."""
        return diff_plans(self.facts, facts_of(other))

    def why(self, name: str) -> str:
        """Returns on which rank what `name` speaks of is and how it lies there, and what else there was; of `"plan"`, which plans lost.

        Raises:
            RhinoError: RHI-PIN-002 where nothing has such a name, RHI-JAX-006 where the plan came from a folder.
        """
        with asked_in_python():
            return why_whole_text(self._module(), self.facts, text_of("name", name, NAMED))

    def why_not(self, pin: str) -> str:
        """Returns what `pin` would change and cost in as many stages and micro-batches, or why it cannot be. Raises as `why`."""
        with asked_in_python():
            return why_not_whole_text(self._module(), self.facts, text_of("pin", pin, PINNED))

    def report(self, path: str | PathLike[str], *, reasons: bool = True) -> None:
        """Writes a page of HTML that says all that is known of the plan. Raises RHI-CLI-003 where it cannot be written.

        With `reasons`, where the program is known, it says what else was possible for the largest tensors and ops: that is searched first.
        """
        found = notable_whole(self._module(), self.facts) if reasons and self.traced else []
        write_file(path_of("path", path), report_html(self.facts, found).encode())

    def save_program(self, path: str | PathLike[str]) -> None:
        """Writes the module that was planned, as `rhino-plan --module` takes it with the plan. Raises RHI-CLI-003, RHI-JAX-006."""
        write_file(path_of("path", path), program_text(self._module()))

    def _module(self) -> ir.Module:
        return program_of(self.traced, self.function, KEPT)

    def _place(self, slot: int | None, one: Boundary) -> Place:
        if slot is None:
            return 0, Layout(one.shape, one.dtype, ((),) * len(one.shape))
        found = self.facts.step.slots[slot]
        return found.rank, found.layout

    def _shardings(self, places: Sequence[Place], key_dims: Sequence[int]) -> list[NamedSharding]:
        own = [self.ranks[rank].sharding(layout) for rank, layout in places]
        if not any(key_dims):
            return own
        return [
            NamedSharding(one.mesh, PartitionSpec(*tuple(one.spec)[: len(layout.dims) - extra])) if extra else one
            for one, (_, layout), extra in zip(own, places, key_dims, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a plan in stages is of: the program, its arguments and results, and the lines of the cluster's file."""

    source: Source
    cluster: tuple[str, ...]
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


def origin_of(plan: WholePlan) -> Origin:
    """Returns what a plan says that it is of. Raises RHI-PLAN-001 where it was made of a file, of which nothing is known here."""
    about = plan.about
    try:
        source = Source(about["source"], about["source_sha256"], about["normal_sha256"], about["ops"])
        return Origin(source, tuple(about["cluster_file"]), _tensors(plan.arguments), _tensors(plan.results))
    except (KeyError, TypeError) as error:
        what = f"the plan of {about.get('source')} was made from a file, not from a function"
        raise RhinoError(
            "RHI-PLAN-001", what, notes=(f"it does not say {error}",), fix="run it with rhino-run, or plan the function and save that"
        ) from None


def _tensors(side: Sequence[Boundary]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(one.name or f"result{number}", kind_of(one.dtype, one.shape), ((),) * len(one.shape), 0, one.alias)
        for number, one in enumerate(side)
    )


def kind_of(dtype: str, shape: Sequence[int]) -> str:
    """Returns the kind of an array, as plans say it; `dtype` is MLIR's name."""
    return f"{array_dtype(dtype) or dtype}[{','.join(map(str, shape))}]"


def _spec(layout: Layout) -> PartitionSpec:
    return PartitionSpec(*(axes or None for axes in layout.dims))
