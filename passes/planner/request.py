"""What is asked of a plan, in values: texts are read where a user gives them, on a command line or by keywords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.groups import largest_memory
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape, option_of_meshes
from rhino.ir.cluster.placement import placed_name
from rhino.ir.diagnostics import RhinoError
from rhino.ir.units import parse_size
from rhino.passes.pipeline.rematerialize import BY_STAGE
from rhino.passes.sharding.planning_pass import AUTO
from rhino.strategies.autotune import DEFAULT as BEST
from rhino.strategies.autotune.base import MOST, PlanConfig, plan_name
from rhino.strategies.pipeline.schedules import DEFAULT, SCHEDULES, find_schedule, num_ranks_of

COMPARE, MEMORY = "compare", "memory"
"""What the target's compiler may be asked: to choose among plans, or only whether a plan fits."""

MOST_COMPILES: Final = 10
"""Plans that are compiled for one that is asked for, unless a user names another number."""


def budget_of(cluster: str, text: str | None = None) -> int:
    """Returns the bytes of a device that may be used: a size like 16GiB, or what the cluster's devices have."""
    return parse_size(text) if text else largest_memory(load_cluster(cluster))


_SIZES: Final = re.compile(r"[1-9][0-9]*(\+[1-9][0-9]*)+")


def parse_stages(text: str) -> tuple[int, tuple[Mesh, ...]]:
    """Returns the number of stages written as "3", or as the devices of each, "4+2+2"; then their meshes, of one axis.

    Raises:
        RhinoError: RHI-CLI-001 for another text.
    """
    if re.fullmatch("-?[0-9]+", text):
        return int(text), ()
    if not _SIZES.fullmatch(text):
        what = f"stages: got {text!r}, expected a number, or the devices of each stage with + between"
        raise RhinoError("RHI-CLI-001", what, fix="write for example 3, or 4+2+2")
    sizes = [int(size) for size in text.split("+")]
    return len(sizes), tuple([mesh_of_shape((size,)) for size in sizes])


BY_SCOPES: Final = "scopes"
"""The number of stages that leaves them to the scopes of the model: each outermost one is a stage."""


def refuse_beside_scopes(given: Mapping[str, object]) -> None:
    """Refuses what contradicts stages that are the model's scopes; `given` are values by option, None if left out.

    Raises:
        RhinoError: RHI-CLI-001.
    """
    for name, value in given.items():
        if value not in (None, ""):
            what = f"stages are the scopes of the model, and {name} is given too"
            fix = "leave it out: stages follow from the scopes, or say how many with --stages=2"
            raise RhinoError("RHI-CLI-001", what, fix=fix)


def refuse_two_meshes(stages: str, mesh: str) -> None:
    """Raises RHI-CLI-001 where the devices of each stage are given, and a mesh too."""
    if "+" in stages and mesh:
        what = f"stages of {stages} devices are given, and meshes too: {mesh}"
        fix = "leave the mesh out, which gives each stage one axis, or give the number of stages and a mesh for each"
        raise RhinoError("RHI-CLI-001", what, fix=fix)


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan of which nothing is open.

    Without a `schedule` it has one stage, on each of `replicas`; `meshes` are one for all ranks, or one for each. A
    rank has `chunks` stages. With `recomputes` each stage recomputes what its memory asks for. Ranks take the cluster's
    devices in `device_order`, as numbered where it is empty.
    """

    stages: int
    chunks: int
    schedule: str
    meshes: tuple[tuple[int, ...], ...]
    micro_batches: int
    remat: float
    replicas: int = 1
    recomputes: bool = False
    device_order: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Says the configuration, and the schedule where there is one."""
        ranks, unlike = self.stages // self.chunks, self.meshes if len(self.meshes) > 1 else ()
        config = PlanConfig(ranks, self.meshes[0], self.micro_batches, self.remat, self.replicas, unlike)
        return plan_name(config, self.schedule, recomputes=self.recomputes)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The plan that is requested.

    What is None (an empty schedule, no shares) is open, or left to its default where nothing is searched.

    `stages` are those of the model, of which a schedule may put several on a rank; in their place, `replicas` are ranks
    that share the micro-batches, as `rhino.ir.program.replicas` parses them. `meshes` is one for all ranks, or one for
    each; none is open, and is searched for where `searches_mesh`. `budget_bytes` are per device. `remat` is the share
    of the activation stash that is recomputed, one for all stages or one for each; with `recomputes` each recomputes
    what its memory asks for. `options` are others of the passes, by name: the level, and constraints on tensors and
    ops.

    In a search a strategy looks at `candidates` plans at most, in `jobs` processes (None: one a core).
    """

    cluster: str
    budget_bytes: int
    meshes: tuple[Mesh, ...] = ()
    searches_mesh: bool = False
    stages: int | None = None
    replicas: str = ""
    micro_batches: int | None = None
    schedule: str = ""
    remat: tuple[float, ...] = ()
    recomputes: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    strategy: str = BEST
    candidates: int = MOST
    jobs: int | None = None

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that all ranks are to have; None where it is open, or each is to have its own."""
        return self.meshes[0] if len(set(self.meshes)) == 1 else None

    @property
    def is_unlike(self) -> bool:
        """Whether ranks are to have unlike meshes."""
        return len(set(self.meshes)) > 1

    @property
    def is_staged(self) -> bool:
        """Whether several stages or replicas are asked for."""
        return (self.stages or 1) > 1 or bool(self.replicas)

    def schedules(self) -> tuple[str, ...]:
        """Returns the schedules to choose from; a number of stages that is given means one for each rank."""
        if self.schedule:
            return (self.schedule,)
        return tuple(name for name, schedule in SCHEDULES.items() if self.stages is None or not schedule.chunked)

    def decided(self, plan: Decided) -> PlanRequest:
        """Returns the request for a plan of which nothing is open."""
        return replace(
            self,
            cluster=placed_name(self.cluster, plan.device_order),
            meshes=self.meshes or tuple(map(mesh_of_shape, plan.meshes)),
            searches_mesh=False,
            micro_batches=plan.micro_batches if plan.schedule or plan.micro_batches > 1 else None,
            remat=(plan.remat,) if plan.remat else (),
            recomputes=plan.recomputes,
            stages=plan.stages,
            replicas=self.replicas or (str(plan.replicas) if plan.replicas > 1 else ""),
            schedule=plan.schedule,
        )

    def pass_options(self) -> dict[str, str]:
        """Returns the request for one program as passes take it, by name."""
        mesh = AUTO if self.searches_mesh else option_of_meshes(self.meshes)
        own = {
            "cluster": self.cluster,
            "mesh": mesh,
            "budget": str(self.budget_bytes),
            "num": "" if self.micro_batches is None else str(self.micro_batches),
            "remat": BY_STAGE if self.recomputes else ";".join(f"{share:g}" for share in self.remat),
        }
        return {name: text for name, text in {**self.options, **own}.items() if text}

    def staged_options(self) -> dict[str, str]:
        """Returns the request for a step in stages, or on replicas, as passes take it, by name."""
        if self.replicas:
            return {**self.pass_options(), "replicas": self.replicas}
        schedule, stages = find_schedule(self.schedule or DEFAULT), self.stages or 1
        ranks = num_ranks_of(schedule, stages)
        splits = {"split-backward": "true"} if schedule.splits_backward else {}
        return {**self.pass_options(), "stages": str(stages), "ranks": str(ranks), "schedule": schedule.name, **splits}
