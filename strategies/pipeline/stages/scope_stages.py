"""Stages that follow from the scopes of a model: each scope is one, in the order of the program.

What the scope of stage s computes in the forward pass is on virtual stage s, and what it computes in the backward pass
on the opposite one. Its ops are of the backward pass where they follow from a later scope: its gradients come from
there. Whatever leads to a later scope is of the forward pass. An op that does both is in a scope that comes back: no
pipeline has it, for its stage would run before and after another in the same direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rhino.ir.arrays import Bools
from rhino.ir.graph.graph import Graph
from rhino.ir.plan.stages import VirtualStages
from rhino.strategies.pipeline.stages.units import units_of


@dataclass(frozen=True, slots=True)
class ScopedUnits:
    """The virtual stages of units that are in scopes, by the first op of each.

    `returning` are ops in a scope that comes back, with the later stage that they follow from and lead to; `torn` are
    loops with parts in several scopes.
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
            returning[op] = min(follows[op], leads[op])
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
