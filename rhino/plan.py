"""A plan as a JAX user has it.

It gives the shardings of the function's arguments and results, and saves to a file or folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.call import kind_name
from rhino.ir.cluster.hardware import CompileOption
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.files import save_plan
from rhino.ir.plan.leaves import leaf_groups
from rhino.ir.plan.plan import Plan as PlanFacts
from rhino.ir.plan.plan import Tensor, dims_between_calls, meshes_text
from rhino.ir.program.proven_plan import load_proven_plan
from rhino.ir.request.patterns import dotted, matches, nearest
from rhino.job import plan_of_job
from rhino.keywords import fixed_in_python, path_of, text_of
from rhino.passes.planner.diff import diff_text
from rhino.passes.planner.explain import explain_text, summary_text
from rhino.passes.planner.why import notable_reasons, why_not_text, why_text
from rhino.runtime.distributed.jax_job import deal_devices, team_of
from rhino.runtime.distributed.processes import Team
from rhino.runtime.executor.devices import pick_devices
from rhino.runtime.executor.executor import devices_of_ranks
from rhino.runtime.executor.rank_program import RankDevices
from rhino.source import program_of, program_text
from rhino.split_array import SplitSharding
from rhino.tools.files import write_file
from rhino.tools.page_html import frame_html, page_html
from rhino.traced import Traced
from rhino.trees import Trees, known

_NAMED: Final = "name a tensor or an op as docs/explain.md says, as 'state.w'"
_PINNED: Final = "say a name and dims, as 'state.w=[{}, {\"x\"}]'"


@dataclass(frozen=True, repr=False)
class Plan:
    """How a function runs on many devices: in one program, or in stages, each on the mesh of its rank.

    `facts` is what the file holds, and what makes plans equal; from a file alone, `trees` and so pytrees of shardings
    are not known. Devices are looked for when shardings are asked for: JAX's first ones, in a job of several processes
    the first ones of each, unless some were given; each rank has as many, one after another. `traced` is the program,
    which a file does not hold either: `why` and `why_not` need it.
    """

    facts: PlanFacts
    trees: Trees | None = field(default=None, compare=False)
    devices: tuple[jax.Device, ...] | None = field(default=None, compare=False, repr=False)
    traced: Traced | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Returns the plan in a file, or in the folder of one in stages.

        In a job of several processes, process 0 alone reads it; the others are told what it is, without the programs
        of its stages.

        Raises:
            RhinoError: RHI-PLAN-001, RHI-PLAN-002 where a file is missing or altered, and those of a step that cannot
                run.
        """
        return cls(plan_of_job(lambda: load_proven_plan(Path(path_of("path", path))), f"load {path}"))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan as a file, one in stages as a folder; whole or not at all.

        Raises RHI-PLAN-003, RHI-JAX-009 where this process has no more than its share of the plan.
        """
        save_plan(self._whole("saves"), Path(path_of("path", path)))

    def __repr__(self) -> str:
        if self.facts.is_staged and self.facts.execution is None:
            return f"<rhino.Plan of {self.function}: {self.facts.form()}; process 0 has its stages>"
        return f"<rhino.Plan\n{summary_text(self.facts)}>"

    def _repr_html_(self) -> str:
        """Returns the page of the plan, for notebooks."""
        return frame_html(self._whole("reports"))

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh (in stages, of a rank's), with their sizes.

        Raises RHI-JAX-009 where ranks have unlike meshes.
        """
        if len(set(self.facts.meshes)) > 1:
            what = f"the ranks of the plan of {self.function} have unlike {meshes_text(self.facts.meshes)}"
            raise RhinoError("RHI-JAX-009", what, fix="ask plan.meshes")
        return self.facts.mesh.axes

    @property
    def num_devices(self) -> int:
        """How many devices the plan runs on."""
        return self.facts.num_devices

    @property
    def function(self) -> str:
        """What is planned."""
        return self.facts.source.function

    @cached_property
    def ranks(self) -> tuple[RankDevices, ...]:
        """The devices of each rank, one for a plan in one program. Raises RHI-RUN-004 where there are too few."""
        facts = self.facts
        if not facts.is_staged:
            devices = pick_devices(self.num_devices) if self.devices is None else self.devices
            return (RankDevices(0, facts.mesh, devices),)
        sizes = [mesh.num_devices for mesh in facts.meshes]
        every = deal_devices(sizes, facts.devices) if self.devices is None else self.devices
        return tuple(RankDevices(rank, facts.meshes[rank], own) for rank, own in devices_of_ranks(facts, every).items())

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each rank on its devices. Raises RHI-RUN-004 where there are too few."""
        return tuple(rank.jax_mesh for rank in self.ranks)

    @property
    def mesh(self) -> Mesh:
        """The mesh on its devices, of a plan in one program.

        Raises RHI-RUN-004 where there are too few, RHI-JAX-009 in stages.
        """
        if self.facts.num_ranks > 1:
            what = f"the plan of {self.function} has {self.facts.num_ranks} ranks, each with a mesh of its own"
            raise RhinoError("RHI-JAX-009", what, fix="ask plan.meshes, and plan.rank_of() for where arguments are")
        return self.ranks[0].jax_mesh

    @property
    def compile_options(self) -> dict[str, bool | int | str]:
        """The options of the compiler that the plan counts on, as the `compiler_options` of `jax.jit`.

        They are for the platform of the plan's cluster. What `rhino.parallelize` gives has them there.
        """
        return dict(self.facts.machine().device.compile_options)

    @property
    def own_options(self) -> tuple[CompileOption, ...]:
        """Those of `compile_options` for the devices of the plan: none where these are of another platform."""
        device = self.facts.machine().device
        return device.compile_options if self.ranks[0].devices[0].platform == device.platform else ()

    @cached_property
    def team(self) -> Team | None:
        """The processes that have the ranks of stages; None where this process has all.

        Raises RHI-RUN-004 for a process that has no device of any.
        """
        return team_of(self.ranks) if self.facts.is_staged else None

    @cached_property
    def shared(self) -> frozenset[int]:
        """The results that every process gets, where there are several processes.

        These have no dims and are no argument's next value.
        """
        passed_on = {one.alias for one in self.facts.arguments}
        return frozenset(n for n, one in enumerate(self.facts.results) if not one.dims and n not in passed_on)

    @cached_property
    def shared_sharding(self) -> NamedSharding:
        """The sharding of a result that every process gets: replicated on what each has of the first of its ranks."""
        assert self.team is not None
        devices = [
            device
            for process, ranks in enumerate(self.team.ranks)
            for device in self.ranks[ranks[0]].devices
            if device.process_index == process
        ]
        return NamedSharding(Mesh(np.array(devices, dtype=object), ("devices",)), PartitionSpec())

    @property
    def in_shardings(self) -> Any:  # noqa: ANN401 - a pytree
        """A sharding for every array of the arguments, on the mesh of its rank.

        This is a tuple with a tree for each argument that is no constant. A stack whose rows lie on several ranks has a
        `rhino.SplitSharding`.
        """
        every, place = self.program_shardings[0], known(self.trees, self.function).loss_scale
        return every if place is None else (*every[:place], *every[place + 1 :])

    @property
    def out_shardings(self) -> Any:  # noqa: ANN401 - a pytree
        """A sharding for every array of the results, in their tree.

        It is on the mesh of the result's rank. A result that every process gets is replicated on the first rank of
        each.
        """
        every = self.program_shardings[1]
        return every if known(self.trees, self.function).loss_scale is None else every[0]

    @property
    def program_shardings(self) -> tuple[Any, Any]:
        """The shardings of the arguments and results of the program, which may have a loss scale among them."""
        trees, found = known(self.trees, self.function), self.result_shardings
        if self.team is not None:
            found = [self.shared_sharding if number in self.shared else one for number, one in enumerate(found)]
        arguments = _by_leaf(self.facts.arguments, self.argument_shardings)
        results = _by_leaf(self.facts.results, found)
        return jax.tree.unflatten(trees.arguments, arguments), jax.tree.unflatten(trees.results, results)

    @property
    def argument_shardings(self) -> list[NamedSharding]:
        """The sharding of each argument of the programs: of a leaf that lies in pieces, that of each."""
        return self._of_tensors(self.facts.arguments)

    @property
    def result_shardings(self) -> list[NamedSharding]:
        """The sharding of each result of the programs: of a leaf that lies in pieces, that of each."""
        return self._of_tensors(self.facts.results)

    def partition_specs(self, name: str = "*") -> dict[str, PartitionSpec]:
        """Returns the partition spec of each argument with a name like `name`, on the mesh of its rank (`rank_of`).

        They are by path. Of a leaf that lies in pieces each piece is an argument, and the leaf's name is that of all.

        Raises:
            RhinoError: RHI-PIN-002 where no argument has such a name.
        """
        return {one.path: partition_spec(one, self.facts.axes(one.rank)) for one in self._arguments(name)}

    def rank_of(self, name: str = "*") -> dict[str, int]:
        """Returns the rank on which each argument with a name like `name` is; 0 for all in one program.

        They are by path. Of a leaf that lies in pieces each piece is an argument, and the leaf's name is that of all.

        Raises:
            RhinoError: RHI-PIN-002 where no argument has such a name.
        """
        return {one.path: one.rank for one in self._arguments(name)}

    def explain(self, num_rows: int = 20) -> str:
        """Returns what the plan comes to, and its largest tensors and costs, `num_rows` of each.

        Raises RHI-JAX-009 where this process has no more than its share of the plan.
        """
        return explain_text(self._whole("explains"), num_rows)

    def why(self, name: str) -> str:
        """Returns what was chosen for tensors or ops with names like `name`, and what each alternative would add.

        `"plan"` asks which other plans there were.

        Raises:
            RhinoError: RHI-PIN-002 where nothing has such a name, RHI-JAX-006 where the plan came from a file.
        """
        with fixed_in_python():
            return why_text(self._module(), self._whole("explains"), text_of("name", name, _NAMED))

    def why_not(self, pin: str) -> str:
        """Returns what `pin`, as `'params.w1=[{}, {"y"}]'`, would change and cost, or why it cannot be.

        Raises as `why`.
        """
        with fixed_in_python():
            return why_not_text(self._module(), self._whole("explains"), text_of("pin", pin, _PINNED))

    def report(self, path: str | PathLike[str], *, reasons: bool = True) -> None:
        """Writes a page of HTML that says all that is known of the plan. Raises RHI-CLI-003 where it cannot be written.

        With `reasons`, where the program is known, it says what else was possible for the largest tensors and ops: that
        is searched first.
        """
        facts = self._whole("reports")
        found = notable_reasons(self._module(), facts) if reasons and self.traced else []
        write_file(path_of("path", path), page_html(facts, found).encode())

    def save_program(self, path: str | PathLike[str]) -> None:
        """Writes the module that was planned, as `rhino-plan --module` takes it with the plan.

        Raises RHI-CLI-003, RHI-JAX-006.
        """
        write_file(path_of("path", path), program_text(self._module()))

    def diff(self, other: Plan) -> str:
        """Returns what `other` does differently, and what that costs; empty where nothing is.

        Raises RHI-JAX-002 for no plan.
        """
        if not isinstance(other, Plan):
            what = f"the other plan is {kind_name(other)}: {other!r:.60}"
            raise RhinoError("RHI-JAX-002", what, fix="give rhino.Plan.load(path)")
        return diff_text(self._whole("compares"), other._whole("compares"))

    def _arguments(self, name: str) -> list[Tensor]:
        """Returns the arguments of the programs with names like `name`, and the pieces of leaves with such names."""
        wanted = dotted(text_of("name", name, _NAMED))
        found = [
            one
            for one in self.facts.arguments
            if any(matches(wanted, dotted(path), ".") for path in dict.fromkeys((one.path, one.leaf)))
        ]
        if not found and wanted != "*":
            close = nearest(wanted, [dotted(one.leaf) for one in self.facts.arguments], ".")
            fix = f"did you mean {' or '.join(close)}?" if close else "plan.rank_of() has all arguments by path"
            raise RhinoError("RHI-PIN-002", f"{name} matches no argument", fix=fix)
        return found

    def _whole(self, verb: str) -> PlanFacts:
        """Returns the facts of a plan that is whole here."""
        if self.facts.is_staged and self.facts.execution is None:
            what = f"the plan of {self.function} is in stages, and process 0 alone has all of them"
            raise RhinoError("RHI-JAX-009", what, fix=f"let process 0 do what {verb} the plan")
        return self.facts

    def _module(self) -> ir.Module:
        return program_of(self.traced, self.function)

    def _of_tensors(self, tensors: Sequence[Tensor]) -> list[NamedSharding]:
        return [
            self.ranks[one.rank].sharding(dims_between_calls(one, self.facts.axes(one.rank)), one.memory)
            for one in tensors
        ]


def _by_leaf(tensors: Sequence[Tensor], shardings: Sequence[NamedSharding]) -> list[NamedSharding | SplitSharding]:
    """Returns the sharding of each leaf."""
    found: list[NamedSharding | SplitSharding] = []
    for group in leaf_groups(tensors):
        rows = [one for piece in group if (one := tensors[piece].rows) is not None]
        own = [shardings[piece] for piece in group]
        found.append(SplitSharding(tuple(rows), tuple(own)) if rows else own[0])
    return found


def partition_spec(tensor: Tensor, mesh: Mapping[str, int]) -> PartitionSpec:
    """Returns how a tensor is split between calls, as JAX says it; dims at the end that are not split are left out."""
    return RankDevices.spec(dims_between_calls(tensor, mesh))
