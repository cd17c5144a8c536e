"""Segments: the program cut at its critical nodes (Rhino 4.3.2), each with its backward and update ops.

Critical nodes are found with products alone taking time (strategies/structure/critical_path.py); their times, in order,
are the *cuts*. A training step goes down the model and back up, so it has cuts on both ways. The *turn* is the place
between two cuts over which most tensors pass, from where they are made to where they are last read: there the backward
pass has yet to read everything. It counts as one only if most arguments read before it are read again behind it, as
parameters are; otherwise the program has one way. Of the cuts before the turn the last is left out, so that the last
product, the loss and the first gradients stay together; the others are 0 .. n - 1, or all are where there is one way.
Segment k ends with cut k, and segment n is what follows. Every op goes, by the graph alone,

1. if one of these cuts needs it: to the first that does (what is computed early for a later layer belongs to that
   layer);
2. else, if cuts lead to it but none behind the turn: to the segment behind the last of them, or to a later one that it
   reads from;
3. else, if a cut behind the turn leads to it: to the earliest segment that it reads from. There an argument, or a
   tensor of the way down, counts as of the last segment that needs it for a cut: a mask that all layers read says
   nothing of a gradient's layer, an activation and a weight do;
4. else, as no cut leads to it: to the earliest segment that reads it, be it through a scalar as the key of a random
   mask is; or if none does, to the last; but never before one that it reads from.

Otherwise only tensors are looked at: the norm by which all gradients are clipped, a scalar, ties no layer to another
(strategies/structure/dependences.py). An op that does not count in the flow follows its readers and has no segment.
Everything is linear in the number of uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import Graph
from rhino.strategies.structure.critical_path import CriticalPath, critical_path
from rhino.strategies.structure.dependences import Flow, flow_of, values_read
from rhino.strategies.structure.segment_folding import fold

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The program in segments, and which of them are alike.

    Shapes: `number` [ops] is the segment of each op, -1 for one that does not count; `fold` [segments] is the class of
    each segment, numbered in order of first appearance. Segments follow one another along the model; none is empty.
    `turns` says whether there is a backward pass.
    """

    number: Ints
    fold: Ints
    turns: bool

    @property
    def num_unique(self) -> int:
        """Number of segments that are not alike."""
        return int(self.fold.max(initial=NONE)) + 1

    def sizes(self) -> Ints:
        """Returns the number of ops of each segment [segments]."""
        return np.bincount(self.number[self.number >= 0], minlength=len(self.fold))


def segments_of(graph: Graph) -> Segments:
    """Returns the segments of `graph` and their fold classes."""
    flow = flow_of(graph)
    return segments_between(graph, flow, critical_path(graph, flow, only_products=True))


def segments_between(graph: Graph, flow: Flow, path: CriticalPath) -> Segments:
    """Returns the segments between the critical nodes of `path`."""
    stages = _stages(flow, path)
    turn = _turn(graph, flow, stages)
    home = _homes(graph, flow, stages, turn)
    number = np.full(graph.num_ops, NONE, dtype=np.int64)
    used, number[flow.counts] = np.unique(np.array(home, dtype=np.int64)[flow.counts], return_inverse=True)
    return Segments(number, fold(graph, flow, number, len(used)), turn is not None)


@dataclass(frozen=True, slots=True)
class _Stages:
    """Where each op stands between the cuts [ops].

    `after` cuts lead to it, and cut `before` is the first that it is or leads to.
    """

    num_cuts: int
    after: list[int]
    before: list[int]

    def position(self, op: int) -> int:
        """Returns after how many cuts an op runs: as late as possible where none leads to it."""
        return self.after[op] or self.before[op]


def _between_ops(flow: Flow) -> list[tuple[int, int]]:
    """Returns reader and producer of each read of an op's result, in the order of the readers."""
    made = flow.producer >= 0
    return list(zip(flow.reader[made].tolist(), flow.producer[made].tolist(), strict=True))


def _stages(flow: Flow, path: CriticalPath) -> _Stages:
    reads = _between_ops(flow)
    critical = np.flatnonzero(path.critical)
    times, cut = np.unique(path.earliest[critical], return_inverse=True)
    after, before = [0] * len(path.earliest), [len(times)] * len(path.earliest)
    own = [NONE] * len(path.earliest)
    for op, number in zip(critical.tolist(), cut.tolist(), strict=True):
        own[op] = before[op] = number
    for reader, producer in reads:
        after[reader] = max(after[reader], after[producer], own[producer] + 1)
    for reader, producer in reversed(reads):
        before[producer] = min(before[producer], before[reader])
    return _Stages(len(times), after, before)


def _turn(graph: Graph, flow: Flow, stages: _Stages) -> int | None:
    """Returns the number of cuts before the place where the program turns back, or None where it does not."""
    first, last = _lifetimes(graph, flow, stages)
    change = np.zeros(stages.num_cuts + 2, dtype=np.int64)
    read = last > first
    np.add.at(change, first[read] + 1, 1)
    np.add.at(change, last[read] + 1, -1)
    passing = np.cumsum(change)  # over each cut, from one place to the next
    turn = int(np.argmax(passing[:-1] + passing[1:]))
    arguments = np.arange(graph.num_values) < len(graph.arguments)
    before = arguments & (first < turn)
    return turn if 2 * np.count_nonzero(before & (last > turn)) > np.count_nonzero(before) else None


def _lifetimes(graph: Graph, flow: Flow, stages: _Stages) -> tuple[Ints, Ints]:
    """Returns after how many cuts each value is made (an argument: first read), and last read [values]."""
    position = np.array([stages.position(op) for op in range(graph.num_ops)], dtype=np.int64)
    last = np.full(graph.num_values, NONE, dtype=np.int64)
    np.maximum.at(last, flow.value, position[flow.reader])
    first = np.full(graph.num_values, stages.num_cuts, dtype=np.int64)
    np.minimum.at(first, flow.value, np.where(flow.producer >= 0, position[flow.producer], position[flow.reader]))
    return first, last


def _homes(graph: Graph, flow: Flow, stages: _Stages, turn: int | None) -> list[int]:
    """Returns the segment of each op, by the rules of this file [ops]."""
    last, back = (max(turn - 1, 0), turn + 1) if turn is not None else (stages.num_cuts, stages.num_cuts + 1)
    reach = list(zip(stages.after, stages.before, strict=True))
    rule = [1 if before < last else 3 if after >= back else 2 if after else 4 for after, before in reach]
    home = [
        min(before if kind == 1 else after if kind == 2 else last, last)
        for kind, (after, before) in zip(rule, reach, strict=True)
    ]
    least = [segment if kind <= 2 else 0 for kind, segment in zip(rule, home, strict=True)]
    for reader, producer in _between_ops(flow):
        if rule[reader] in (2, 4):
            least[reader] = max(least[reader], least[producer])
    home = [least[op] if kind == 2 else home[op] for op, kind in enumerate(rule)]
    least_of = _least_segments(graph, flow, rule, home, last)
    home = [least_of[op] if kind == 3 else home[op] for op, kind in enumerate(rule)]
    anything, value = values_read(graph)
    for reader, producer in zip(anything[::-1].tolist(), graph.value_op[value][::-1].tolist(), strict=True):
        if producer >= 0 and rule[producer] == 4:
            home[producer] = max(least[producer], min(home[producer], home[reader]))
    return home


def _least_segments(graph: Graph, flow: Flow, rule: list[int], home: list[int], last: int) -> list[int]:
    """Returns the segment that each op's tensors, then each argument, give their backward-pass readers (rule 3)."""
    source = np.where(flow.producer >= 0, flow.producer, graph.num_ops + flow.value)
    reads = list(zip(flow.reader.tolist(), source.tolist(), strict=True))
    least_of = [*home, *[NONE] * len(graph.arguments)]
    for reader, tensor in reads:
        if rule[reader] == 1:
            least_of[tensor] = max(least_of[tensor], home[reader])
    least_of[graph.num_ops :] = [last if segment == NONE else segment for segment in least_of[graph.num_ops :]]
    for reader, tensor in reads:
        if rule[reader] >= 3:
            least_of[reader] = min(least_of[reader], least_of[tensor])
    return least_of
