"""Which dims to see as [blocks, block]: strided layouts found before the search, as views (Rhino 4.1).

A dim of D elements that is cut into blocks of b elements, viewed as [D / b, b], can be split along the second dim:
every device gets a part of each block, which is Rhino's split with a stride. Slices, concatenations and paddings by
whole blocks are then free. A *place* is a dim of a value; its block is what it is viewed by (the size of the dim: not
viewed).

From a cut, a view is spread along factors: a link of an op joins the dims that one factor of its sharding rule leads,
and these are viewed alike or not at all. Where a link cannot follow, the op reads and gives the dim whole, and the
value is reshaped there: a *border*.

A region is kept if it

- has a product which makes or takes the viewed dim, its block divisible by the parts that it is to be split into
  (`has_product`);
- cuts more bytes than are at its borders, where the data would move instead (`cut_bytes`, `border_bytes`);
- reaches an argument, which is then stored viewed: inside of attention, say (rotary positions cut each head in two),
  every product that takes a viewed dim has a better one to split.

Source: Rhino 4.1 and 4.3.3 (other strides than the maximum only where they reduce communication).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from rhino.ir.graph.graph import Graph
from rhino.strategies.structure.factor_links import Cut, End, Link, Links, Place, tensors_of

View = tuple[int, ...]
"""The block of each dim of a value; the size of the dim where it is not viewed."""

_PRODUCT: Final = "stablehlo.dot_general"
_FLOATS: Final = ("f", "bf", "complex")


@dataclass(frozen=True, slots=True)
class Region:
    """Places viewed together because of one cut, and what the view saves.

    It counts the bytes in its cuts per step, and the bytes that its borders move instead.
    """

    seed: Place
    block: int
    op: int
    blocks: Mapping[Place, int]
    cut_bytes: int
    border_bytes: int


@dataclass(frozen=True, slots=True)
class Views:
    """How values are stored, and how ops read and give them.

    `values` holds the view of every value that is viewed. `ops[op]` has the view of each operand and result as the op
    itself has it, for every op that touches a viewed value; where it is not the stored one, a reshape stands between.
    """

    values: Mapping[int, View]
    ops: Mapping[int, tuple[View, ...]]
    regions: tuple[Region, ...]


def find_views(
    graph: Graph, cuts: Mapping[int, Cut], able: Sequence[bool], blocked: frozenset[Place], num_parts: int
) -> Views:
    """Returns the views that save communication.

    Args:
        graph: The program.
        cuts: What each slice, concatenation and padding cuts, by op.
        able: For each op, whether it can be written for viewed shapes.
        blocked: Places that must stay as they are.
        num_parts: What a block has to be divisible by.
    """
    seeds = list(_seeds(graph, cuts))
    if not seeds:
        return Views({}, {}, ())
    return _Finder(graph, cuts, able, blocked, num_parts).find(seeds)


def views_of(graph: Graph, cuts: Mapping[int, Cut], able: Sequence[bool], values: Mapping[int, View]) -> Views:
    """Returns the views in which `values` are stored: those that `find_views` found for the same arguments.

    They have no regions.
    """
    finder = _Finder(graph, cuts, able, frozenset(), 1)
    for value, view in values.items():
        for dim, (size, block) in enumerate(zip(graph.type_of(value).shape, view, strict=True)):
            if block != size:
                finder.blocks[value, dim] = block
    return finder.views(())


@dataclass(frozen=True, slots=True)
class _Seed:
    place: Place
    block: int
    op: int


def _seeds(graph: Graph, cuts: Mapping[int, Cut]) -> Iterator[_Seed]:
    """Yields the dims of floating-point tensors that are cut in parts, all of which are taken.

    The block is the largest of which all of them are multiples.

    Integers are indices and random bits: a product takes none of them, and a view of them would spread to whatever they
    mask.
    """
    slices: dict[Place, list[tuple[int, int, int]]] = defaultdict(list)
    for op, cut in sorted(cuts.items()):
        tensors = tensors_of(graph, op)
        whole = tensors[cut.whole]
        if not graph.type_of(whole).dtype.startswith(_FLOATS):
            continue
        shape, parts = graph.type_of(whole).shape, [graph.type_of(tensors[part]).shape for part in cut.parts]
        dims = [dim for dim, size in enumerate(shape) if any(part[dim] != size for part in parts)]
        if len(dims) != 1:
            continue
        (dim,) = dims
        if len(parts) > 1:
            yield _Seed((whole, dim), gcd(*(part[dim] for part in parts)), op)
        elif cut.whole == 0:
            slices[whole, dim].append((cut.offsets[0][dim], parts[0][dim], op))
    for (value, dim), taken in slices.items():
        op, ends = taken[0][2], 0
        for start, length in sorted({(start, length) for start, length, _ in taken}):
            if start != ends:
                break
            ends = start + length
        if ends == graph.type_of(value).shape[dim]:
            yield _Seed((value, dim), gcd(*(length for _, length, _ in taken)), op)


@dataclass(eq=False)
class _Finder:
    graph: Graph
    cuts: Mapping[int, Cut]
    able: Sequence[bool]
    blocked: frozenset[Place]
    num_parts: int
    blocks: dict[Place, int] = field(default_factory=dict)
    """What is viewed so far."""

    def __post_init__(self) -> None:
        graph = self.graph
        self.times: list[int] = graph.times().tolist()
        self.free = [op >= 0 and graph.cls(op).free for op in graph.value_op.tolist()]
        self.joined = Links(graph, self.able, self.cuts)

    def find(self, seeds: list[_Seed]) -> Views:
        tried: set[tuple[Place, int]] = set()
        regions = []
        for seed in seeds:
            if (
                (seed.place, seed.block) in tried
                or seed.place in self.blocks
                or seed.place in self.blocked
                or self.free[seed.place[0]]
            ):
                continue
            grown = self.grow(seed)
            tried |= grown.items()
            region = self.judge(seed, grown)
            if region is not None:
                self.blocks |= grown
                regions.append(region)
        return self.views(regions)

    def views(self, regions: Sequence[Region]) -> Views:
        """Returns what is viewed so far."""
        values = {value: self.stored(value) for value in sorted({value for value, _ in self.blocks})}
        ops = sorted({op for value in values for op in self.joined.touching[value] if op < self.graph.num_ops})
        return Views(values, {op: self.at(op) for op in ops}, tuple(regions))

    def grow(self, seed: _Seed) -> dict[Place, int]:
        """Returns all places that a view of the seed spreads to, itself included."""
        return self.joined.grow(seed.place, seed.block, self.spread)

    def spread(self, link: Link, tensors: Sequence[int], place: Place, region: Mapping[Place, int]) -> dict[Place, int]:
        """Returns the places that a link adds to a region: none where one of them cannot follow."""
        start = next(end for end in link if (tensors[end.tensor], end.dim) == place)
        block, rest = divmod(region[place], start.scale)
        if rest:
            return {}
        found: dict[Place, int] = {}
        for end in link:
            wanted, other = block * end.scale, (tensors[end.tensor], end.dim)
            if not _fits(end, wanted):
                return {}
            if self.free[other[0]]:
                continue
            known = region.get(other, self.blocks.get(other, found.get(other)))
            if wanted == end.size:
                if known is not None:
                    return {}
            elif other in self.blocked or known not in (None, wanted):
                return {}
            elif known is None:
                found[other] = wanted
        return found

    def agreed(self, link: Link, tensors: Sequence[int], blocks: Mapping[Place, int]) -> int | None:
        """Returns the block by which an op can follow all dims of a link as they are stored.

        The result is None where the dims are whole, or differ.
        """
        ends = [
            (end, blocks.get((tensors[end.tensor], end.dim), end.size))
            for end in link
            if not self.free[tensors[end.tensor]]
        ]
        if all(block == end.size for end, block in ends):
            return None
        found = {divmod(block, end.scale) for end, block in ends}
        if len(found) != 1:
            return None
        ((block, rest),) = found
        return block if rest == 0 and all(_fits(end, block * end.scale) for end in link) else None

    def at(self, op: int, blocks: Mapping[Place, int] | None = None) -> tuple[View, ...]:
        """Returns the view that an op itself has of each of its operands and results."""
        blocks = self.blocks if blocks is None else blocks
        tensors = self.joined.tensors(op)
        if op in self.joined.ties:
            anchors = [self.stored(anchor, blocks) for _, anchor in self.joined.ties[op]]
            return tuple(view for anchor in anchors for view in (anchor, anchor))
        views = [list(self.graph.type_of(value).shape) for value in tensors]
        for link in self.joined.links(op):
            block = self.agreed(link, tensors, blocks)
            if block is not None:
                for end in link:
                    views[end.tensor][end.dim] = block * end.scale
        return tuple(map(tuple, views))

    def stored(self, value: int, blocks: Mapping[Place, int] | None = None) -> View:
        """Returns the view in which a value is stored."""
        blocks = self.blocks if blocks is None else blocks
        return tuple(blocks.get((value, dim), size) for dim, size in enumerate(self.graph.type_of(value).shape))

    def judge(self, seed: _Seed, grown: Mapping[Place, int]) -> Region | None:
        """Returns the region if it saves communication."""
        if all(block == 1 for block in grown.values()):
            return None  # nothing is viewed: the blocks are single elements
        blocks = {**self.blocks, **grown}
        touched = sorted({op for value, _ in grown for op in self.joined.touching[value]})
        stored = any(value < len(self.graph.arguments) for value, _ in grown)
        if not stored or not any(self.has_product(op, grown) for op in touched):
            return None
        cut_bytes = sum(self.cut_bytes(op, grown) for op in touched)
        border_bytes = sum(self.border_bytes(op, blocks) - self.border_bytes(op, self.blocks) for op in touched)
        if border_bytes >= cut_bytes:
            return None
        return Region(seed.place, seed.block, seed.op, grown, cut_bytes, border_bytes)

    def has_product(self, op: int, grown: Mapping[Place, int]) -> bool:
        """Says whether an op is a product over a dim of the region, with blocks that can be split."""
        if op in self.joined.ties or self.graph.cls(op).name != _PRODUCT:
            return False
        blocks = (self.agreed(link, self.joined.tensors(op), grown) for link in self.joined.links(op))
        return any(block is not None and block > 1 and block % self.num_parts == 0 for block in blocks)

    def cut_bytes(self, op: int, grown: Mapping[Place, int]) -> int:
        """Returns the bytes per step that an op cuts out of, or puts together to, a dim of the region."""
        if op not in self.cuts:
            return 0
        tensors, cut = self.joined.tensors(op), self.cuts[op]
        for link in self.joined.links(op):
            if len({end.size for end in link}) > 1 and self.agreed(link, tensors, grown) is not None:
                return self.times[op] * sum(self.graph.type_of(tensors[part]).num_bytes for part in cut.parts)
        return 0

    def border_bytes(self, op: int, blocks: Mapping[Place, int]) -> int:
        """Returns the bytes per step of the values that an op has in another view than they are stored in."""
        times = self.times[op] if op < self.graph.num_ops else 1
        apart = (
            value
            for value, view in zip(self.joined.tensors(op), self.at(op, blocks), strict=True)
            if self.is_apart(value, view, blocks)
        )
        return times * sum(self.graph.type_of(value).num_bytes for value in apart)

    def is_apart(self, value: int, view: View, blocks: Mapping[Place, int]) -> bool:
        """Says whether a value has to be moved to be seen in a view; a free one is made in it."""
        return not self.free[value] and view != self.stored(value, blocks)


def _fits(end: End, block: int) -> bool:
    """Whether a dim, and where it begins in the whole, are multiples of a block."""
    return block > 0 and end.size % block == 0 and end.offset % block == 0
