"""Reconfiguration primitives: the ten of Aceso's Table 1, in the form that they have for stages that are alike.

A configuration of ranks of one mesh has one share to recompute; the boundaries of stages, the schedule and every
tensor's place are the best ones of a configuration, found with what it comes to. To find that takes a search of
shardings on a mesh, which all ranks then share. So a primitive that needs a partner, as devices and ops are neither
made nor lost, moves all stages at once here; on meshes that were searched, `stage_moves.py` moves single stages:

| Aceso | here |
| --- | --- |
| dec-op#, with dec-dp or dec-tp | more stages, each of fewer ops, on a mesh with fewer devices along one of its axes |
| inc-op#, with inc-dp or inc-tp | fewer stages, each of more ops, on a mesh with more devices along one of its axes |
| inc-dp with dec-tp, inc-tp with dec-dp | as many stages, with devices moved from one axis of the mesh to the other |
| inc-mbs, dec-mbs | fewer or more micro-batches |
| inc-rc, dec-rc | a larger or smaller share recomputed |

An axis has no role in our plans: the search of shardings says for each tensor what it does there, so that *dp* and *tp*
are only names for its two sides.

What a primitive relieves is Table 1 for its parts taken together. Idle time, which Aceso counts with a stage's time,
stands beside its three resources: with stages that are even it is most of what a pipeline loses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import log2, prod
from typing import Final, Literal, get_args

from rhino.strategies.autotune.base import PlanConfig, Space

Resource = Literal["memory", "compute", "collectives", "idle"]

Mesh = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Primitive:
    """A kind of move: what it takes from, and the configurations of a space that it leads to."""

    name: str
    relieves: tuple[Resource, ...]
    apply: Callable[[Space, PlanConfig], Iterator[PlanConfig]]


def _more_stages(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    for stages in _next_stages(space, config.stages, up=True):
        yield from _restaged(space, config, stages)


def _fewer_stages(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    for stages in _next_stages(space, config.stages, up=False):
        yield from _restaged(space, config, stages)


def _other_axis(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    outer, inner = _two_axes(config.mesh)
    wanted = [(outer * f, inner // f) for f in _primes(inner)] + [(outer // f, inner * f) for f in _primes(outer)]
    for mesh in dict.fromkeys(_nearest(space.meshes[config.stages], one) for one in wanted):
        if mesh != config.mesh:
            yield PlanConfig(config.stages, mesh, config.micro_batches, config.remat)


def _fewer_micro_batches(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    lower = [number for number in space.micro_batches if number < config.micro_batches]
    if lower and is_legal(config.stages, lower[-1]):
        yield PlanConfig(config.stages, config.mesh, lower[-1], config.remat)


def _more_micro_batches(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    higher = [number for number in space.micro_batches if number > config.micro_batches]
    if higher:
        yield PlanConfig(config.stages, config.mesh, higher[0], config.remat)


def recompute_more(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    """Returns the configuration that recomputes the next larger share."""
    larger = [remat for remat in space.remats_of(config.stages) if remat > config.remat]
    if larger:
        yield PlanConfig(config.stages, config.mesh, config.micro_batches, min(larger))


def recompute_less(space: Space, config: PlanConfig) -> Iterator[PlanConfig]:
    """Returns the configuration that recomputes the next smaller share."""
    smaller = [remat for remat in space.remats_of(config.stages) if remat < config.remat]
    if smaller:
        yield PlanConfig(config.stages, config.mesh, config.micro_batches, max(smaller))


PRIMITIVES: Final = (
    Primitive("dec-op#, dec-dp/tp", ("memory", "compute", "collectives"), _more_stages),
    Primitive("inc-op#, inc-dp/tp", ("memory", "idle"), _fewer_stages),
    Primitive("inc-dp, dec-tp and back", ("memory", "compute", "collectives"), _other_axis),
    Primitive("inc-mbs", ("compute", "collectives"), _fewer_micro_batches),
    Primitive("dec-mbs", ("memory", "idle"), _more_micro_batches),
    Primitive("inc-rc", ("memory",), recompute_more),
    Primitive("dec-rc", ("compute", "collectives"), recompute_less),
)
"""Every kind of move."""


RESOURCES: Final[tuple[Resource, ...]] = get_args(Resource)
"""What a configuration may lack."""


def moves(space: Space, config: PlanConfig, lacking: Collection[Resource] = RESOURCES) -> list[PlanConfig]:
    """Returns where the primitives lead that relieve any of some resources; each configuration once."""
    taken = [one for one in PRIMITIVES if not set(lacking).isdisjoint(one.relieves)]
    return [
        one
        for one in dict.fromkeys(to for primitive in taken for to in primitive.apply(space, config))
        if one != config
    ]


def balanced(space: Space) -> list[list[PlanConfig]]:
    """Returns a configuration of each mesh of each number of stages [numbers of stages], the squarest mesh first.

    A search that knows nothing begins with the first of each.
    """
    return [
        [
            PlanConfig(stages, mesh, space.micro_batches[space.seed(stages)], min(space.remats))
            for mesh in sorted(meshes, key=lambda mesh: (max(_two_axes(mesh)), mesh))
        ]
        for stages, meshes in sorted(space.meshes.items())
    ]


def is_legal(stages: int, micro_batches: int) -> bool:
    """Says whether a pipeline has more than one micro-batch: with one it is idle but for one rank at a time."""
    return stages == 1 or micro_batches > 1


def _restaged(space: Space, config: PlanConfig, stages: int) -> Iterator[PlanConfig]:
    """Returns the configurations of so many stages, one axis having the devices that this frees or takes.

    They have as many micro-batches, or as many as the seed. These are two primitives at once where the number of
    micro-batches changes: a pipeline twice as deep wants twice as many.
    """
    outer, inner = _two_axes(config.mesh)
    meshes = space.meshes[stages]
    grown, shrunk = max(1, config.stages // stages), max(1, stages // config.stages)
    remat = min(config.remat, max(space.remats_of(stages)))
    wanted = [(outer * grown // shrunk, inner)] * (outer * grown >= shrunk) + [(outer, inner * grown // shrunk)] * (
        inner * grown >= shrunk
    )
    for mesh in dict.fromkeys(_nearest(meshes, one) for one in wanted or [(outer, inner)]):
        for number in dict.fromkeys((config.micro_batches, space.micro_batches[space.seed(stages, remat)])):
            if is_legal(stages, number):
                yield PlanConfig(stages, mesh, number, remat)


def _next_stages(space: Space, stages: int, *, up: bool) -> list[int]:
    """Returns the numbers of stages that are a multiple of `stages`, or that it is one of, with none in between."""
    found = [one for one in sorted(space.meshes) if one != stages and not (one % stages if up else stages % one)]
    if up:
        return [one for one in found if not any(one != other and one % other == 0 for other in found)]
    return [one for one in reversed(found) if not any(one != other and other % one == 0 for other in found)]


def _nearest(meshes: tuple[Mesh, ...], wanted: tuple[int, int]) -> Mesh:
    """Returns the mesh that stands for the one wanted.

    That is the mesh itself, the same mesh with its axes in order where that means the same, or the nearest one.
    """
    known = {_two_axes(mesh): mesh for mesh in meshes}
    ordered = (min(wanted), max(wanted))
    return (
        known.get(wanted) or known.get(ordered) or min(meshes, key=lambda mesh: (_apart(_two_axes(mesh), wanted), mesh))
    )


def _two_axes(mesh: Mesh) -> tuple[int, int]:
    return (prod(mesh[:-1]), mesh[-1]) if mesh else (1, 1)


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Returns how far two products are apart, factor by factor; rounded, so that equal distances are equal."""
    return round(sum((log2(a) - log2(b)) ** 2 for a, b in zip(one, other, strict=True)), 9)


def _primes(number: int) -> list[int]:
    """Returns the prime numbers that divide a number."""
    return [f for f in range(2, number + 1) if number % f == 0 and all(f % smaller for smaller in range(2, f))]
