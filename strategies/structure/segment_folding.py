"""Folding: which segments are alike, by structure and not by names (TAP IV-C).

Ops are coloured twice, as in the test of Weisfeiler and Leman for alike graphs: down the program by their class and the
colours of what they read in their segment, then up the program by that colour and those of their readers. What a
segment reads from outside is coloured like an op, so it matters whether two ops share it. Segments with the same
colours, each as often, are alike. No order within a segment and no name enters, and as colours are numbers of exact
descriptions, there are no collisions of hashes.

Alike means alike to the planner: the same op classes (`rhino.ir.graph.graph.OpClass`: name, types, sharding rule,
numerics), run equally often, with the same values kept by the user's shardings, returned, or read by other segments.
Attributes that no cost depends on, such as where a slice starts or which way a comparison goes, are left out: by them
no two layers that read slices of one tensor would be alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import Graph
from rhino.strategies.structure.dependences import Flow

Edge = tuple[int, int, int, int]
"""A read: reader, operand, value, producer (-1: an argument)."""


def fold(graph: Graph, flow: Flow, segment: Ints, num_segments: int) -> Ints:
    """Returns the class of each segment, numbered in order of first appearance [segments].

    `segment` [ops] is the segment of each op that counts in the flow.
    """
    members: list[list[int]] = [[] for _ in range(num_segments)]
    for owner, colour in _Colouring(graph, flow, segment.tolist()).run():
        members[owner].append(colour)
    classes: dict[tuple[int, ...], int] = {}
    return np.array([classes.setdefault(tuple(sorted(colours)), len(classes)) for colours in members], dtype=np.int64)


@dataclass
class _Colouring:
    """Colours of one graph's ops and of the values that segments read from outside.

    A colour is the number of a description.
    """

    graph: Graph
    flow: Flow
    segment: list[int]
    numbers: dict[Hashable, int] = field(default_factory=dict)

    def number(self, description: Hashable) -> int:
        return self.numbers.setdefault(description, len(self.numbers))

    def run(self) -> list[tuple[int, int]]:
        """Returns segment and colour, op by op, then value by value."""
        flow = self.flow
        edges: list[Edge] = list(
            zip(*(side.tolist() for side in (flow.reader, flow.operand, flow.value, flow.producer)), strict=True)
        )
        traits = self.traits(edges)
        return self.up(edges, traits, self.down(edges, traits))

    def inside(self, edge: Edge) -> bool:
        """Says whether a read stays in its segment."""
        reader, _, _, producer = edge
        return producer >= 0 and self.segment[reader] == self.segment[producer]

    def traits(self, edges: list[Edge]) -> list[int]:
        """Describes each value: its type, what the user's shardings leave open, and who else has it [values].

        The segment itself does not count there.
        """
        graph = self.graph
        found: list[set[Hashable]] = [set() for _ in range(graph.num_values)]
        for number, argument in enumerate(graph.arguments):
            found[number].add(("argument", argument.alias is not None))
        for value, specs in graph.fixed.items():
            found[value].add(specs)
        taken = {argument.alias for argument in graph.arguments}
        for number, (value, limit) in enumerate(zip(graph.returns, graph.return_fixed, strict=True)):
            found[value].add(("returned", number in taken, limit))
        for edge in edges:
            if not self.inside(edge):
                found[edge[2]].add("read by another segment")
        return [
            self.number((kind, frozenset(some))) for kind, some in zip(graph.value_type.tolist(), found, strict=True)
        ]

    def down(self, edges: list[Edge], traits: list[int]) -> list[int]:
        """Colours each op by what it is and by the colours of what it reads, in program order [ops]."""
        first, times, classes = (
            side.tolist() for side in (self.graph.result_start, self.graph.times(), self.graph.op_class)
        )
        colour = [
            self.number((classes[op], times[op], *traits[first[op] : first[op + 1]]))
            for op in range(self.graph.num_ops)
        ]
        for reader, group in groupby(edges, lambda edge: edge[0]):
            sources = []
            for edge in group:
                _, operand, value, producer = edge
                inside = self.inside(edge)
                sources.append(
                    (operand, colour[producer], value - first[producer]) if inside else (operand, traits[value], -1)
                )
            colour[reader] = self.number((colour[reader], *sources))
        return colour

    def up(self, edges: list[Edge], traits: list[int], colour: list[int]) -> list[tuple[int, int]]:
        """Colours each op, and each value read from outside, by its colour and its readers' colours, from the end."""
        first = self.graph.result_start.tolist()
        readers: list[list[tuple[int, int, int]]] = [[] for _ in colour]
        outside: dict[tuple[int, int], list[tuple[int, int]]] = {}
        start = self.flow.start.tolist()
        for op in reversed(range(len(colour))):
            colour[op] = self.number((colour[op], *sorted(readers[op])))
            for edge in edges[start[op] : start[op + 1]]:
                _, operand, value, producer = edge
                if self.inside(edge):
                    readers[producer].append((value - first[producer], operand, colour[op]))
                else:
                    outside.setdefault((self.segment[op], value), []).append((operand, colour[op]))
        ops = [(self.segment[op], colour[op]) for op in np.flatnonzero(self.flow.counts).tolist()]
        return ops + [(owner, self.number((traits[value], *sorted(some)))) for (owner, value), some in outside.items()]
