"""Replicas of a step: how many micro-batches each takes, where the update of each sum runs, and what a step takes.

Each of R replicas runs the micro-batches of its share, one after the other, and all are joined once. A step takes as
long as the slowest share, so `shares` are those whose longest time is least: micro-batches are given out one by one,
each to the replica that would end first with it. (However the last one that was given out is placed, some replica ends
no earlier.) Whale's algorithm 1 gives shares in proportion to speed, and shifts what exceeds a device's memory; here
all replicas run micro-batches of one size, so memory limits their size and not their number.

Source    Whale, section 3.3.1 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.ir.arrays import Floats
from rhino.ir.graph.graph import Graph, Loop
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.structure.training_phases import parts_of


def shares(micro_batch_s: Sequence[float], num_micro_batches: int) -> tuple[int, ...]:
    """Returns how many micro-batches each replica takes, at least one, so that the last one ends as early as can be.

    Shapes: `micro_batch_s` and what is returned [replicas]; of equal ends the first replicas take more. There are as
    many micro-batches as replicas, or more.
    """
    found = [1] * len(micro_batch_s)
    for _ in range(num_micro_batches - len(found)):
        ends = [(count + 1) * seconds for count, seconds in zip(found, micro_batch_s, strict=True)]
        found[ends.index(min(ends))] += 1
    return tuple(found)


def micro_batch_s(graph: Graph, loop: Loop | None, seconds: Floats) -> float:
    """Returns the seconds of a micro-batch of a step whose ops take `seconds` [ops] in all."""
    parts = parts_of(graph, loop, seconds)
    return float(parts.seconds[parts.body].sum())


def order_of_replicas(count: int) -> Order:
    """Returns the order in which replica r is alone on rank r; none has tasks in the micro-batches of a schedule."""
    return Order(((),) * count, tuple(range(count)))


def owners(num_bytes: Sequence[int], reads: Sequence[Sequence[int]], joins: Sequence[int], count: int) -> list[int]:
    """Returns the replica that each op after the micro-batches runs on, so that all send about as much.

    Shapes: `num_bytes` [ops] of what each gives, `reads[i]` the earlier ops whose results op i reads, and what is
    returned [ops]. `joins` are the ops that join what replicas have accumulated: the largest first, each goes to the
    replica with the fewest bytes so far. Other ops run where the largest of what they read is, or else where what they
    give is read.
    """
    found = [-1] * len(num_bytes)
    load = [0] * count
    for op in sorted(joins, key=lambda one: (-num_bytes[one], one)):
        found[op] = load.index(min(load))
        load[found[op]] += num_bytes[op]

    def nearest(op: int, others: Sequence[int]) -> None:
        if found[op] < 0 and (known := [one for one in others if found[one] >= 0]):
            found[op] = found[max(known, key=lambda one: (num_bytes[one], -one))]

    readers: list[list[int]] = [[] for _ in num_bytes]
    for op, others in enumerate(reads):
        nearest(op, others)
        for other in others:
            readers[other].append(op)
    for op in reversed(range(len(num_bytes))):
        nearest(op, readers[op])
    return [max(0, one) for one in found]
