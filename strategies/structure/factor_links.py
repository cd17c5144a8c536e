"""Which dims an op changes together.

They are the factors of its sharding rule, as links between dims of its operands and results.

Whoever stores a dim in another form (seen as blocks, or padded) brings it to every dim in a link, or ends at the op.
What a loop carries is one value in storage, and so are an argument and the result that takes over its buffer: a *tie*
stands for that like an op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rhino.ir.graph.graph import Graph
from rhino.ir.graph.rules import Rule

Place = tuple[int, int]
"""A value and one of its dims."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a slice, concatenation or padding does: parts of a whole.

    Tensors are numbered operands first, then results. `offsets[part][dim]` is where a part begins in the whole.
    """

    whole: int
    parts: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class End:
    """A dim of one tensor of an op in a link.

    It is a part of the link's dim from `offset` on, with `scale` elements for each element of the link.
    """

    tensor: int
    dim: int
    size: int
    scale: int = 1
    offset: int = 0


Link = tuple[End, ...]
_Form = TypeVar("_Form")
"""How a dim is stored, as whoever stores it says: its blocks, or its padding."""
Spread = Callable[[Link, Sequence[int], Place, Mapping[Place, _Form]], dict[Place, _Form]]
"""From a link, the values of its op, one of the link's places and the region so far to what is added to it."""


@dataclass(eq=False)
class Links:
    """The links of every op of a graph; `able` says of each op whether it can be written for other shapes."""

    graph: Graph
    able: Sequence[bool]
    cuts: Mapping[int, Cut]

    def __post_init__(self) -> None:
        graph = self.graph
        self.ties: dict[int, tuple[tuple[int, int], ...]] = {}
        """Pairs of (other, anchor), values that are one in storage.

        Such a pair is what a loop carries, or a returned value and the argument that it becomes.
        """
        for loop in graph.loops:
            carried = graph.results(loop.op)
            for op in (loop.op, loop.end):
                self.ties[op] = tuple(zip(graph.operands(op).tolist(), carried, strict=True))
        aliases = [
            (graph.returns[arg.alias], index) for index, arg in enumerate(graph.arguments) if arg.alias is not None
        ]
        self.ties |= {graph.num_ops + number: (pair,) for number, pair in enumerate(aliases)}
        self.touching: dict[int, list[int]] = defaultdict(list)
        """The ops and ties that have a value."""
        for op in range(graph.num_ops + len(aliases)):
            for value in dict.fromkeys(self.tensors(op)):
                self.touching[value].append(op)
        self._links: dict[tuple[int, Cut | None], tuple[Link, ...]] = {}
        """By class and cut; of a tie by its number below zero."""

    def tensors(self, op: int) -> list[int]:
        """Returns the values that an op joins: operands, then results; of a tie, what it ties."""
        if op in self.ties:
            return [value for pair in self.ties[op] for value in pair]
        return tensors_of(self.graph, op)

    def links(self, op: int) -> tuple[Link, ...]:
        """Returns the dims that change together at an op."""
        if op not in self.ties and not self.able[op]:
            return ()
        key = (-1 - op, None) if op in self.ties else (int(self.graph.op_class[op]), self.cuts.get(op))
        if key not in self._links:
            self._links[key] = self._make(op)
        return self._links[key]

    def grow(self, seed: Place, form: _Form, spread: Spread[_Form]) -> dict[Place, _Form]:
        """Returns all places that the form of a dim goes to, itself included.

        `spread` says how it goes on at a link.
        """
        region = {seed: form}
        todo = [seed]
        while todo:
            place = todo.pop()
            for op in self.touching[place[0]]:
                tensors = self.tensors(op)
                for link in self.links(op):
                    if any((tensors[end.tensor], end.dim) == place for end in link):
                        found = spread(link, tensors, place, region)
                        region |= found
                        todo += found
        return region

    def _make(self, op: int) -> tuple[Link, ...]:
        shapes = [self.graph.type_of(value).shape for value in self.tensors(op)]
        if op in self.ties:
            return _pair_links(shapes, [(first, first + 1) for first in range(0, len(shapes), 2)])
        if op in self.cuts:
            return _cut_links(self.cuts[op], shapes)
        rule = self.graph.cls(op).rule
        half = len(shapes) // 2
        return (
            _rule_links(rule, shapes) if rule is not None else _pair_links(shapes, [(t, t + half) for t in range(half)])
        )


def tensors_of(graph: Graph, op: int) -> list[int]:
    """Returns the operands of an op, and then its results."""
    return [*graph.operands(op).tolist(), *graph.results(op)]


def _pair_links(shapes: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> tuple[Link, ...]:
    """The links of tensors that are the same in pairs."""
    return tuple((End(a, dim, size), End(b, dim, size)) for a, b in pairs for dim, size in enumerate(shapes[a]))


def _cut_links(cut: Cut, shapes: Sequence[Sequence[int]]) -> tuple[Link, ...]:
    return tuple(
        (
            End(cut.whole, dim, size),
            *(
                End(part, dim, shapes[part][dim], offset=at[dim])
                for part, at in zip(cut.parts, cut.offsets, strict=True)
            ),
        )
        for dim, size in enumerate(shapes[cut.whole])
    )


def _rule_links(rule: Rule, shapes: Sequence[Sequence[int]]) -> tuple[Link, ...]:
    """The links of the factors that can be split, and lead every dim that they are in."""
    ends: dict[int, list[End]] = defaultdict(list)
    for tensor, mapping in enumerate((*rule.operands, *rule.results)):
        for dim, factors in enumerate(mapping):
            scale = 1
            for factor in reversed(factors):
                ends[factor].append(End(tensor, dim, shapes[tensor][dim], scale))
                scale *= rule.sizes[factor]
    return tuple(tuple(link) for factor, link in ends.items() if factor not in rule.fixed and rule.is_major(factor))
