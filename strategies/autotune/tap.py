"""Tensor parallelism alone (TAP).

It tries every mesh of all devices, without stages, and no more micro-batches than memory requires.

What TAP folds, the parts of a model that are alike, is folded where shardings are chosen: equal parts of that problem
are solved once (`strategies/solver/elimination/by_node.py`). So what is left to choose here is the mesh, and with it
what is split along which axis.
"""

from __future__ import annotations

from typing import Final

from rhino.strategies.autotune.base import Estimate, Evaluations, PlanConfig, Strategy


def search(trials: Evaluations) -> None:
    """Asks for each mesh of one stage, in more and more micro-batches while it does not fit."""
    space = trials.space
    meshes = space.meshes.get(1, ())
    for number in space.micro_batches[space.seed(1) :]:
        configs = [PlanConfig(1, mesh, number, min(space.remats)) for mesh in meshes]
        found = trials.outcomes(configs) if configs else []
        meshes = tuple([one.config.mesh for one in found if not isinstance(one, Estimate) and one.by_memory])


STRATEGY: Final = Strategy("tap", "tensor parallelism alone, without stages", search)
