"""Which dims to see as [blocks, block]: strided layouts found before the search, as views (Rhino 4.1).

A dim of D elements that is cut into blocks of b elements, viewed as [D / b, b], can be split along the second dim: every device
gets a part of each block, which is Rhino's split with a stride. Slices, concatenations and paddings by whole blocks are then free.
A *place* is a dim of a value; its block is what it is viewed by (the size of the dim: not viewed).

From a cut, a view is spread along factors: a link of an op joins the dims that one factor of its sharding rule leads, and these are
viewed alike or not at all. Where a link cannot follow, the op reads and gives the dim whole, and the value is reshaped there: a *border*.

Kept is a region that
    holds a product which makes or takes the viewed dim, its block divisible by the parts that it is to be split into (`has_product`);
    cuts more bytes than lie at its borders, where the data would move instead (`cut_bytes`, `border_bytes`);
    reaches an argument, which is then stored viewed: inside of attention, say (rotary positions cut each head in two), every product that
        takes a viewed dim has a better one to split.

Source    Rhino 4.1 and 4.3.3 (other strides than the maximum only where they reduce communication).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.graph import Graph
from rhino.ir.rules import Rule

Place = tuple[int, int]
"""A value and one of its dims."""

View = tuple[int, ...]
"""The block of each dim of a value; the size of the dim where it is not viewed."""

_PRODUCT: Final = "stablehlo.dot_general"
_FLOATS: Final = ("f", "bf", "complex")


@dataclass(frozen=True, slots=True)
class Cut:
    """What a slice, concatenation or padding does: parts of a whole.

    Tensors are numbered operands first, then results. `offsets[part][dim]` is where a part begins in the whole.
    """

    whole: int
    parts: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Places viewed together because of one cut, and what it saves: bytes in its cuts per step, and bytes that its borders move instead."""

    seed: Place
    block: int
    op: int
    blocks: Mapping[Place, int]
    cut_bytes: int
    border_bytes: int


@dataclass(frozen=True, slots=True)
class Views:
    """How values are stored, and how ops read and give them.

    `values` holds the view of every value that is viewed. `ops[op]` has the view of each operand and result as the op itself has it, for
    every op that touches a viewed value; where it is not the stored one, a reshape stands between.
    """

    values: Mapping[int, View]
    ops: Mapping[int, tuple[View, ...]]
    regions: tuple[Region, ...]


def find_views(graph: Graph, cuts: Mapping[int, Cut], able: Sequence[bool], blocked: frozenset[Place], num_parts: int) -> Views:
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


@dataclass(frozen=True, slots=True)
class _Seed:
    place: Place
    block: int
    op: int


def _seeds(graph: Graph, cuts: Mapping[int, Cut]) -> Iterator[_Seed]:
    """Yields the dims of floating-point tensors that are cut into equal blocks, all of which are taken.

    Integers are indices and random bits: a product takes none of them, and a view of them would spread to whatever they mask.
    """
    slices: dict[Place, list[tuple[int, int, int]]] = defaultdict(list)
    for op, cut in sorted(cuts.items()):
        tensors = _values(graph, op)
        whole = tensors[cut.whole]
        if not graph.type_of(whole).dtype.startswith(_FLOATS):
            continue
        shape, parts = graph.type_of(whole).shape, [graph.type_of(tensors[part]).shape for part in cut.parts]
        dims = [dim for dim, size in enumerate(shape) if any(part[dim] != size for part in parts)]
        if len(dims) != 1:
            continue
        (dim,) = dims
        if len(parts) > 1 and len({part[dim] for part in parts}) == 1:
            yield _Seed((whole, dim), parts[0][dim], op)
        elif cut.whole == 0:
            slices[whole, dim].append((cut.offsets[0][dim], parts[0][dim], op))
    for (value, dim), taken in slices.items():
        (_, block, op), size = taken[0], graph.type_of(value).shape[dim]
        if block and size % block == 0 and {(start, length) for start, length, _ in taken} == {(k, block) for k in range(0, size, block)}:
            yield _Seed((value, dim), block, op)


@dataclass(frozen=True, slots=True)
class _End:
    """A dim of one tensor of an op in a link: a part of the link's dim from `offset` on, `scale` elements for each element of the link."""

    tensor: int
    dim: int
    size: int
    scale: int = 1
    offset: int = 0


_Link = tuple[_End, ...]


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
        self.ties: dict[int, tuple[tuple[int, int], ...]] = {}
        """Pairs of (other, anchor), values that are one in storage: what a loop carries, a returned value and the argument it becomes."""
        for loop in graph.loops:
            carried = graph.results(loop.op)
            for op in (loop.op, loop.end):
                self.ties[op] = tuple(zip(graph.operands(op).tolist(), carried, strict=True))
        aliases = [(graph.returns[arg.alias], index) for index, arg in enumerate(graph.arguments) if arg.alias is not None]
        self.ties |= {graph.num_ops + number: (pair,) for number, pair in enumerate(aliases)}
        self.touching: dict[int, list[int]] = defaultdict(list)
        for op in range(graph.num_ops + len(aliases)):
            for value in dict.fromkeys(self.tensors(op)):
                self.touching[value].append(op)
        self._links: dict[tuple[int, Cut | None], tuple[_Link, ...]] = {}
        """By class and cut; of a tie by its number below zero."""

    def find(self, seeds: list[_Seed]) -> Views:
        tried: set[tuple[Place, int]] = set()
        regions = []
        for seed in seeds:
            if (seed.place, seed.block) in tried or seed.place in self.blocks or seed.place in self.blocked or self.free[seed.place[0]]:
                continue
            grown = self.grow(seed)
            tried |= grown.items()
            region = self.judge(seed, grown)
            if region is not None:
                self.blocks |= grown
                regions.append(region)
        values = {value: self.stored(value) for value in sorted({value for value, _ in self.blocks})}
        ops = sorted({op for value in values for op in self.touching[value] if op < self.graph.num_ops})
        return Views(values, {op: self.at(op) for op in ops}, tuple(regions))

    def tensors(self, op: int) -> list[int]:
        """Returns the values that an op joins: operands, then results; of a tie, what it ties."""
        if op in self.ties:
            return [value for pair in self.ties[op] for value in pair]
        return _values(self.graph, op)

    def links(self, op: int) -> tuple[_Link, ...]:
        """Returns what must be viewed alike at an op."""
        if op not in self.ties and not self.able[op]:
            return ()
        key = (-1 - op, None) if op in self.ties else (int(self.graph.op_class[op]), self.cuts.get(op))
        if key not in self._links:
            self._links[key] = self.make_links(op)
        return self._links[key]

    def make_links(self, op: int) -> tuple[_Link, ...]:
        shapes = [self.graph.type_of(value).shape for value in self.tensors(op)]
        if op in self.ties:
            return _pair_links(shapes, [(first, first + 1) for first in range(0, len(shapes), 2)])
        if op in self.cuts:
            return _cut_links(self.cuts[op], shapes)
        rule = self.graph.cls(op).rule
        half = len(shapes) // 2
        return _rule_links(rule, shapes) if rule is not None else _pair_links(shapes, [(t, t + half) for t in range(half)])

    def grow(self, seed: _Seed) -> dict[Place, int]:
        """Returns all places that a view of the seed spreads to, itself included."""
        region = {seed.place: seed.block}
        todo = [seed.place]
        while todo:
            place = todo.pop()
            for op in self.touching[place[0]]:
                tensors = self.tensors(op)
                for link in self.links(op):
                    if any((tensors[end.tensor], end.dim) == place for end in link):
                        found = self.spread(link, tensors, place, region)
                        region |= found
                        todo += found
        return region

    def spread(self, link: _Link, tensors: Sequence[int], place: Place, region: Mapping[Place, int]) -> dict[Place, int]:
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

    def agreed(self, link: _Link, tensors: Sequence[int], blocks: Mapping[Place, int]) -> int | None:
        """Returns the block by which an op can follow all dims of a link as they are stored; None where they are whole, or differ."""
        ends = [(end, blocks.get((tensors[end.tensor], end.dim), end.size)) for end in link if not self.free[tensors[end.tensor]]]
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
        tensors = self.tensors(op)
        if op in self.ties:
            anchors = [self.stored(anchor, blocks) for _, anchor in self.ties[op]]
            return tuple(view for anchor in anchors for view in (anchor, anchor))
        views = [list(self.graph.type_of(value).shape) for value in tensors]
        for link in self.links(op):
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
        touched = sorted({op for value, _ in grown for op in self.touching[value]})
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
        if op in self.ties or self.graph.cls(op).name != _PRODUCT:
            return False
        blocks = (self.agreed(link, self.tensors(op), grown) for link in self.links(op))
        return any(block is not None and block > 1 and block % self.num_parts == 0 for block in blocks)

    def cut_bytes(self, op: int, grown: Mapping[Place, int]) -> int:
        """Returns the bytes per step that an op cuts out of, or puts together to, a dim of the region."""
        if op not in self.cuts:
            return 0
        tensors, cut = self.tensors(op), self.cuts[op]
        for link in self.links(op):
            if len({end.size for end in link}) > 1 and self.agreed(link, tensors, grown) is not None:
                return self.times[op] * sum(self.graph.type_of(tensors[part]).num_bytes for part in cut.parts)
        return 0

    def border_bytes(self, op: int, blocks: Mapping[Place, int]) -> int:
        """Returns the bytes per step of the values that an op has in another view than they are stored in."""
        times = self.times[op] if op < self.graph.num_ops else 1
        apart = (value for value, view in zip(self.tensors(op), self.at(op, blocks), strict=True) if self.is_apart(value, view, blocks))
        return times * sum(self.graph.type_of(value).num_bytes for value in apart)

    def is_apart(self, value: int, view: View, blocks: Mapping[Place, int]) -> bool:
        """Says whether a value has to be moved to be seen in a view; a free one is made in it."""
        return not self.free[value] and view != self.stored(value, blocks)


def _values(graph: Graph, op: int) -> list[int]:
    return [*graph.operands(op).tolist(), *graph.results(op)]


def _fits(end: _End, block: int) -> bool:
    """Whether a dim, and where it begins in the whole, are multiples of a block."""
    return block > 0 and end.size % block == 0 and end.offset % block == 0


def _pair_links(shapes: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]]) -> tuple[_Link, ...]:
    """The links of tensors that are the same in pairs."""
    return tuple((_End(a, dim, size), _End(b, dim, size)) for a, b in pairs for dim, size in enumerate(shapes[a]))


def _cut_links(cut: Cut, shapes: Sequence[Sequence[int]]) -> tuple[_Link, ...]:
    return tuple(
        (
            _End(cut.whole, dim, size),
            *(_End(part, dim, shapes[part][dim], offset=at[dim]) for part, at in zip(cut.parts, cut.offsets, strict=True)),
        )
        for dim, size in enumerate(shapes[cut.whole])
    )


def _rule_links(rule: Rule, shapes: Sequence[Sequence[int]]) -> tuple[_Link, ...]:
    """The links of the factors that can be split, and lead every dim that they are in."""
    ends: dict[int, list[_End]] = defaultdict(list)
    for tensor, mapping in enumerate((*rule.operands, *rule.results)):
        for dim, factors in enumerate(mapping):
            scale = 1
            for factor in reversed(factors):
                ends[factor].append(_End(tensor, dim, shapes[tensor][dim], scale))
                scale *= rule.sizes[factor]
    return tuple(tuple(link) for factor, link in ends.items() if factor not in rule.fixed and rule.is_major(factor))
