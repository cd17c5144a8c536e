"""The steps by which a program's stash may be recomputed, on the nodes of its problem of stages.

They are those of pieces of the whole forward pass (strategies/remat/rematerialization.py): where stages end is not
known yet. A stage can take the steps of the pieces that it has as a whole. What the stash is there, values that stand
in memory in one program, is not quite what stages save (strategies/pipeline/activation_stash.py), so bytes are scaled
to that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.pipeline.stages.stage_graph import Staging
from rhino.strategies.pipeline.stages.stage_problem import OPEN, RematSteps, nets_of
from rhino.strategies.remat.remat_graph import stash_of


def remat_steps(staging: Staging, split: SplitMicroBatch, in_flight: int) -> RematSteps:
    """Returns the steps of a program of which a stage holds up to so many micro-batches."""
    from rhino.strategies.remat.rematerialization import steps_of  # noqa: PLC0415 - loads LP solvers

    graph, node = staging.graph, staging.node
    stash = stash_of(graph, split.parts, [0] * graph.num_ops, 1)
    stash = replace(stash, num_bytes={value: round(split.num_bytes[value]) for value in stash.num_bytes})
    late = sorted(stash.late)
    stashed = sum(stash.num_bytes[value] for value in late)
    scale = min(1.0, split.size(split.halves) / stashed) if stashed else 0.0
    stash_bytes = np.zeros(staging.problem.num_nodes)
    at = node[graph.value_op[late]]
    np.add.at(stash_bytes, at[at >= 0], scale * np.array([stash.num_bytes[value] for value in late])[at >= 0])
    steps = steps_of(stash, in_flight)
    nodes = [np.unique(node[list(step.ops)]) for step in steps]
    return RematSteps(
        nets_of([some[some >= 0] for some in nodes], np.array([scale * step.freed_bytes for step in steps])),
        np.array([step.added_s for step in steps]),
        np.array([scale * step.alive_bytes for step in steps]),
        np.array([OPEN if step.previous is None else step.previous for step in steps], dtype=np.int64),
        stash_bytes,
    )
