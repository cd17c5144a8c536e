"""Stages that follow from the scopes of a model: each scope is one, in the order of the program.

What the scope of stage s computes in the forward pass is on virtual stage s, and what it computes in the backward pass
on the opposite one. Its ops are of the backward pass where they follow from a later scope: its gradients come from
there. Whatever leads to a later scope is of the forward pass. An op that does both is in a scope that comes back: no
pipeline has it, for its stage would run before and after another in the same direction.

A stage has the devices that its scope asks for. Where these fit into the devices that there are several times, the
whole pipeline is there as often: data parallelism around the scope of each stage (Whale 3.1.2, 3.2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rhino.ir.arrays import Bools
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.graph.graph import Graph
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.request.scope_sharding import REPLICATE, ScopeSharding
from rhino.strategies.choice.scope_axes import meshes_for
from rhino.strategies.pipeline.stages.units import units_of

Chain = tuple[ScopeSharding, ...]
"""The shardings of the scopes around an op, outermost first."""


@dataclass(frozen=True, slots=True)
class ScopeRanks:
    """The mesh of the rank of each scope [stages], and how many replicas of the pipeline these devices run."""

    meshes: tuple[Mesh, ...]
    replicas: int


def share_devices(stages: Sequence[Sequence[Chain]], num_devices: int) -> ScopeRanks | None:
    """Returns the ranks of stages with these chains of scopes inside of them; None where the devices do not fit.

    Stages with a scope without a number share evenly what the others leave, and what is over stays idle. Where all have
    numbers, the pipeline is replicated, and none may be over.
    """
    asked = [num_devices_of(widest_of(chains)) for chains in stages]
    is_open = [any(one.num is None for chain in chains for one in chain) for chains in stages]
    fixed = sum(size for size, own in zip(asked, is_open, strict=True) if not own)
    replicas, over = (1, 0) if any(is_open) else divmod(num_devices, fixed)
    if over or fixed > num_devices:
        return None
    share = (num_devices - fixed) // max(1, sum(is_open))
    sizes = [share if own else size * replicas for size, own in zip(asked, is_open, strict=True)]
    nested = (ScopeSharding(REPLICATE, replicas),) if replicas > 1 else ()
    shapes = [
        meshes_for([(*nested, *chain) for chain in chains], size) if size else []
        for chains, size in zip(stages, sizes, strict=True)
    ]
    return ScopeRanks(tuple([mesh_of_shape(own[0]) for own in shapes]), replicas) if all(shapes) else None


def widest_of(chains: Iterable[Chain]) -> Chain:
    """Returns the chain of scopes that asks for the most devices."""
    return max(chains, key=num_devices_of)


def num_devices_of(chain: Chain) -> int:
    """Returns how many devices scopes in each other ask for, those without a number left out."""
    return prod(one.num or 1 for one in chain)


@dataclass(frozen=True, slots=True)
class ScopedUnits:
    """The virtual stages of units that are in scopes, by the first op of each.

    `returning` are ops in a scope that comes back, with the latest stage that they follow from; `torn` are loops with
    parts in several scopes.
    """

    stages: dict[int, int]
    returning: dict[int, int]
    torn: tuple[int, ...]


def stages_of_scopes(graph: Graph, body: Bools, stage: Mapping[int, int], num_stages: int) -> ScopedUnits:
    """Returns what follows from the stages of ops in scopes; `body` [ops] are the ops of a micro-batch."""
    units = units_of(graph, body)
    own: dict[int, int] = {}
    torn: dict[int, None] = {}
    for op, number in stage.items():
        if body[op] and own.setdefault(unit := int(units.of[op]), number) != number:
            torn[unit] = None
    ops = list(units.before)
    follows, leads = _latest(ops, units.before, own), _latest(ops[::-1], units.behind, own)
    virtual = VirtualStages(num_stages)
    stages, returning = dict[int, int](), dict[int, int]()
    for op, number in own.items():
        if min(follows[op], leads[op]) > number:
            returning[op] = follows[op]
        stages[op] = virtual.opposite(number) if follows[op] > number else number
    return ScopedUnits(stages, returning, tuple(torn))


def _latest(ops: list[int], toward: Mapping[int, list[int]], own: Mapping[int, int]) -> dict[int, int]:
    """Returns the latest stage on a path to each op, itself left out; -1 where there is none.

    `ops` are in the order of these paths.
    """
    found: dict[int, int] = {}
    for op in ops:
        found[op] = max((max(found[one], own.get(one, -1)) for one in toward[op]), default=-1)
    return found
