"""What a user asks of a plan by keywords, before the function is traced and a cluster is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rhino.ir.cluster.mesh import Mesh, option_of_meshes
from rhino.ir.plan.plan import AUTOTUNE, SHARD, Request
from rhino.ir.program.replicas import parse_replicas
from rhino.passes.planner.module_facts import Sides
from rhino.passes.planner.request import MOST_COMPILES, PlanRequest, budget_of
from rhino.passes.sharding.choose_shardings import LEVELS
from rhino.passes.sharding.planning_pass import AUTO
from rhino.pins import Named, named
from rhino.strategies.pipeline.schedules import DEFAULT, find_schedule, num_ranks_of

Pins = Callable[[Sequence[Named]], tuple[str, ...]]
"""From paths and ranks of the arguments to the texts of pins."""

LEVEL: Final = max(LEVELS)
"""Searches go on to the end."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The request of a user: a `PlanRequest` whose cluster may be open and whose pinned tensors are not known yet.

    An open cluster is empty. `meshes` are as a `PlanRequest` has them; where `shared` is not 0, nobody gave one, and it
    is a stage's share of so many devices. With `by_scopes` stages and meshes follow from the function's scopes, and are
    not known before it is traced; from then on `scope_replicas` says how often these are there. `aot` is "compare" or
    "memory" where the target's compiler judges plans, of which it compiles `compiles` at most.
    """

    cluster: str = ""
    meshes: tuple[Mesh, ...] = ()
    searches_mesh: bool = False
    budget_bytes: int | None = None
    level: int = LEVEL
    pins: Pins = field(default=lambda _: ())
    forbid: tuple[str, ...] = ()
    pad: tuple[str, ...] = ()
    axis_roles: tuple[str, ...] = ()
    constraints: str = ""
    op_rules: str = ""
    micro_batches: int | None = None
    batch: str = ""
    batch_statistics: str = ""
    amp: str = ""
    attention: str = ""
    offload: bool = False
    remat: tuple[float, ...] = ()
    recomputes: bool = False
    stages: int | None = None
    by_scopes: bool = False
    scope_replicas: int = 0
    replicas: str = ""
    schedule: str = ""
    search: str = SHARD
    jobs: int | None = None
    shared: int = 0
    aot: str = ""
    compiles: int = MOST_COMPILES

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that all ranks are to have; None where it is open, or each is to have its own."""
        return self.meshes[0] if len(set(self.meshes)) == 1 else None

    @property
    def is_open(self) -> bool:
        """Whether stages, micro-batches or the mesh of a pipeline are to be searched for.

        Of stages that are scopes, micro-batches are all that may be open, which whole plans are made for.
        """
        if self.by_scopes or (self.stages is not None and self.micro_batches is not None and self.meshes):
            return False
        return self.search == AUTOTUNE or (self.is_staged and (self.micro_batches is None or self.searches_mesh))

    @property
    def is_staged(self) -> bool:
        """Whether several stages or replicas are asked for."""
        return (self.stages or 1) > 1 or bool(self.replicas)

    @property
    def num_ranks(self) -> int:
        """On how many ranks the stages are, or the replicas.

        Raises RHI-SCHED-001 where the schedule does not take so many stages.
        """
        if self.replicas:
            return parse_replicas(self.replicas).count
        return num_ranks_of(find_schedule(self.schedule or DEFAULT), self.stages or 1)

    def asked(self) -> Request:
        """Returns what a plan keeps of the request."""
        mesh = AUTO if self.searches_mesh else "" if self.shared else option_of_meshes(self.meshes)
        found = Request(
            self.search, mesh, self.stages, self.micro_batches, self.schedule, self.remat, self.budget_bytes
        )
        return replace(found, replicas=self.replicas, recomputes=self.recomputes)

    def with_pins(self, pins: tuple[str, ...]) -> PlanOptions:
        """Returns the same with more pins."""
        return replace(self, pins=lambda tensors: (*self.pins(tensors), *pins))

    def request(self, sides: Sides) -> PlanRequest:
        """Returns the request for a function of these tensors, on a cluster that is named."""
        options = {
            "level": "" if self.level == LEVEL else str(self.level),
            "pin": "; ".join(self.pins(named(sides))),
            "forbid": "; ".join(self.forbid),
            "pad": "; ".join(self.pad),
            "axis-role": "; ".join(self.axis_roles),
            "constraints": self.constraints,
            "op-rules": self.op_rules,
            "batch": self.batch,
            "batch-statistics": self.batch_statistics,
            "amp": self.amp,
            "attention": self.attention,
            "own-shapes": "true",  # of JAX's arrays
            "offload": "true" if self.offload else "",
            "scope-replicas": str(self.scope_replicas or ""),
        }
        return PlanRequest(
            cluster=self.cluster,
            budget_bytes=self.budget_bytes or budget_of(self.cluster),
            meshes=self.meshes,
            searches_mesh=self.searches_mesh,
            stages=self.stages,
            replicas=self.replicas,
            micro_batches=self.micro_batches,
            schedule=self.schedule,
            remat=self.remat,
            recomputes=self.recomputes,
            options={name: text for name, text in options.items() if text},
            jobs=self.jobs,
        )
