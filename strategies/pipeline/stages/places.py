"""From the stages of nodes to those of ops: what costs nothing, and so has no node, gets a place where it is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.strategies.pipeline.stages.stage_graph import NO_NODE, Staging
from rhino.strategies.pipeline.stages.stage_problem import OPEN

SWEEPS = 3
"""How often the scalars after the loop are gone through for a better place."""


@dataclass(frozen=True, slots=True, eq=False)
class OpStages:
    """Where ops are.

    Shapes: `virtual` [ops], the virtual stage of each op of the micro-batch; `device` [ops], the stage of each op of
    the micro-batch and after it. Those of other ops are `OPEN`.
    """

    virtual: Ints
    device: Ints


def op_stages(staging: Staging, stage: Ints) -> OpStages:
    """Returns where ops are, from the virtual stage of each node.

    What costs nothing is where it is read first, or where what it is made of is complete if nothing reads it there; a
    scalar after the loop is where that takes the fewest transfers.
    """
    parts, problem = staging.parts, staging.problem
    found = np.full(staging.graph.num_ops, OPEN, dtype=np.int64)
    placed = staging.node != NO_NODE
    found[placed] = stage[staging.node[placed]]
    found[parts.apply & placed] = problem.device(found[parts.apply & placed])
    _Places(staging, found).fill()
    virtual = np.where(parts.body, found, OPEN)
    return OpStages(virtual, np.where(virtual == OPEN, found, problem.device(virtual)))


class _Places:
    """Fills `found` [ops]: the virtual stage of an op of the micro-batch, the stage of one after it."""

    def __init__(self, staging: Staging, found: Ints) -> None:
        self.graph, self.parts, self.problem, self.found = staging.graph, staging.parts, staging.problem, found
        loop = self.parts.loop
        self.ends: dict[int, int] = {}
        if loop is not None:
            self.ends = dict(zip(self.graph.results(loop.op), self.graph.operands(loop.end).tolist(), strict=True))
        self.readers = staging.readers

    def fill(self) -> None:
        """Gives every op of both parts a stage."""
        for part in (self.parts.body, self.parts.apply):
            waiting = np.flatnonzero(part & (self.found == OPEN))
            for op in waiting[::-1].tolist():
                self.found[op] = self.first_read(op, part)
            for op in waiting.tolist():
                if self.found[op] == OPEN:
                    self.found[op] = max(
                        (self.made_at(value, op) for value in self.graph.operands(op).tolist()), default=0
                    )
            self.found[waiting] = np.maximum(self.found[waiting], 0)
        scalars = np.flatnonzero(self.parts.apply & self.parts.free & ~self.parts.constant).tolist()
        for _ in range(SWEEPS):
            for op in scalars:
                counts = [self.transfers(op, device) for device in range(self.problem.num_stages)]
                self.found[op] = counts.index(min(counts))

    def first_read(self, op: int, part: Bools) -> int:
        """Returns the first stage in which an op of a part is read in that part, `OPEN` if none is known."""
        readers = [reader for value in self.graph.results(op) for reader in self.readers.get(value, ()) if part[reader]]
        return min((int(self.found[reader]) for reader in readers if self.found[reader] != OPEN), default=OPEN)

    def made_at(self, value: int, reader: int) -> int:
        """Returns the stage that a value is made in, as a reader takes it, `OPEN` where it is of no part."""
        after = bool(self.parts.apply[reader])
        op = int(self.graph.value_op[self.ends.get(value, value) if after else value])
        if op < 0 or self.parts.constant[op] or not (self.parts.body[op] or self.parts.apply[op]):
            return OPEN
        made = int(self.found[op])
        return self.problem.virtual.stage(made).device if after and made != OPEN else made

    def transfers(self, op: int, device: int) -> int:
        """Returns between how many devices an op after the loop passes values, if it is on this device.

        The values are those that the op reads and makes.
        """
        self.found[op] = device
        count = 0
        for value in (*self.graph.operands(op).tolist(), *self.graph.results(op)):
            ends = {int(self.found[reader]) for reader in self.readers.get(value, ()) if self.parts.apply[reader]}
            ends.add(self.made_at(value, op))
            count += len(ends - {OPEN}) - 1
        return count
