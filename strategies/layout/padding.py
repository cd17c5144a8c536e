"""Which dims to store larger than they are, so that devices divide them, and how far the padding spreads.

A *place* is a dim of a value; its padded size is how many elements it is stored with, the first of which are its own.
From the dims of arguments that are asked for, padding spreads along factors (strategies/structure/factor_links.py): a
link of an op is padded whole or not at all. Where it cannot follow, the op reads the dim cut to its own size, and what
it gives is padded with zeros: a *border*.

What every reader can make for itself (constants of one element, counters, repeated scalars) is made in the size that is
wanted, and joins nothing: two tensors that are compared with the same zeros have no dim in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.graph.graph import WHILE, Graph
from rhino.strategies.structure.factor_links import Link, Links, Place

Shape = tuple[int, ...]

_USING: Final = frozenset({"stablehlo.dot_general", "stablehlo.gather", "stablehlo.scatter"})
"""Ops for whose sake a dim is split: products, and reads and updates of rows."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A dim of an argument that is to be padded.

    One that is not `named` by its number has to be of use: taken by an op of `_USING`.
    """

    place: Place
    size: int
    named: bool


@dataclass(frozen=True, slots=True)
class Pads:
    """How values are stored, and how ops read and give them.

    `values` holds the stored shape of every value that is padded. `ops[op]` has the shape of each operand and result as
    the op itself has it, for every op that touches such a value. `regions` are the places that were padded for each
    seed; those of `useless` seeds stay.
    """

    values: Mapping[int, Shape]
    ops: Mapping[int, tuple[Shape, ...]]
    regions: tuple[tuple[Seed, tuple[Place, ...]], ...]
    useless: tuple[Seed, ...]


def find_pads(
    graph: Graph, able: Sequence[bool], made_anew: Sequence[bool], blocked: frozenset[Place], seeds: Iterable[Seed]
) -> Pads:
    """Returns what is padded for the sake of some dims.

    Args:
        graph: The program.
        able: For each op, whether it can be written for padded shapes.
        made_anew: For each value, whether its readers make it themselves.
        blocked: Places that must stay as they are.
        seeds: What is asked for; what comes first wins where two cannot both be had.
    """
    finder = _Finder(graph, Links(graph, able, {}), made_anew, blocked)
    regions, useless = [], []
    for seed in seeds:
        if seed.place in finder.sizes or seed.place in blocked:
            continue
        grown = finder.grow(seed)
        if seed.named or finder.is_used(grown):
            finder.sizes |= grown
            regions.append((seed, tuple(sorted(grown))))
        else:
            useless.append(seed)
    return finder.pads(tuple(regions), tuple(useless))


@dataclass(eq=False)
class _Finder:
    graph: Graph
    joined: Links
    made_anew: Sequence[bool]
    blocked: frozenset[Place]
    sizes: dict[Place, int] = field(default_factory=dict)
    """What is padded so far."""

    def grow(self, seed: Seed) -> dict[Place, int]:
        """Returns all places that the padding of a seed spreads to, itself included."""
        return self.joined.grow(seed.place, seed.size, self.spread)

    def spread(self, link: Link, tensors: Sequence[int], place: Place, region: Mapping[Place, int]) -> dict[Place, int]:
        """Returns the places that a link adds to a region: none where one of them cannot follow."""
        start = next(end for end in link if (tensors[end.tensor], end.dim) == place)
        count, rest = divmod(region[place], start.scale)
        if rest:
            return {}
        found: dict[Place, int] = {}
        for end in link:
            other, wanted = (tensors[end.tensor], end.dim), count * end.scale
            if self.made_anew[other[0]]:
                continue
            known = region.get(other, self.sizes.get(other, found.get(other)))
            if other in self.blocked or known not in (None, wanted):
                return {}
            if known is None:
                found[other] = wanted
        return found

    def is_used(self, grown: Mapping[Place, int]) -> bool:
        """Says whether a dim of a region is one of an op for whose sake dims are split."""
        touched = dict.fromkeys(
            op for value, _ in grown for op in self.joined.touching[value] if op < self.graph.num_ops
        )
        using = (op for op in touched if self.graph.cls(op).name in _USING)
        return any(
            self.agreed(link, self.joined.tensors(op), grown) is not None
            for op in using
            for link in self.joined.links(op)
        )

    def agreed(self, link: Link, tensors: Sequence[int], sizes: Mapping[Place, int]) -> int | None:
        """Returns the padded size of a link's factor as all its dims are stored.

        The result is None where they are not padded, or differ.
        """
        ends = [end for end in link if not self.made_anew[tensors[end.tensor]]]
        stored = [(end, sizes.get((tensors[end.tensor], end.dim), end.size)) for end in ends]
        counts = {divmod(size, end.scale) for end, size in stored}
        if len(counts) != 1 or all(size == end.size for end, size in stored):
            return None
        ((count, rest),) = counts
        return None if rest else count

    def at(self, op: int) -> tuple[Shape, ...]:
        """Returns the shape in which an op itself has each of its operands and results."""
        tensors = self.joined.tensors(op)
        if op in self.joined.ties:
            anchors = tuple(self.stored(anchor) for _, anchor in self.joined.ties[op])
            return anchors + anchors if self.graph.cls(op).name == WHILE else anchors
        shapes = [list(self.graph.type_of(value).shape) for value in tensors]
        for link in self.joined.links(op):
            count = self.agreed(link, tensors, self.sizes)
            if count is not None:
                for end in link:
                    shapes[end.tensor][end.dim] = count * end.scale
        return tuple(map(tuple, shapes))

    def stored(self, value: int) -> Shape:
        """Returns the shape in which a value is stored."""
        return tuple(self.sizes.get((value, dim), size) for dim, size in enumerate(self.graph.type_of(value).shape))

    def pads(self, regions: tuple[tuple[Seed, tuple[Place, ...]], ...], useless: tuple[Seed, ...]) -> Pads:
        """Returns what has been found."""
        values = {value: self.stored(value) for value in sorted({value for value, _ in self.sizes})}
        ops = sorted({op for value in values for op in self.joined.touching[value] if op < self.graph.num_ops})
        return Pads(values, {op: self.at(op) for op in ops}, regions, useless)
