"""Which dims to see in blocks: strided layouts found before the search, as views (Rhino 4.1).

A dim that is cut into blocks is viewed as two (`rhino.ir.graph.blocks`), of which one can be split so that every device
gets a part of each block: Rhino's split with a stride. Slices, concatenations and paddings by whole blocks are then
free. Blocks of one size stay in order. Of blocks of several sizes the parts interleave, as many as devices may split
them. A *place* is a dim of a value.

From a cut, a view is spread along factors: a link of an op joins the dims that one factor of its sharding rule leads,
and these are viewed alike or not at all. What is cut off as one block is not viewed: its parts are a split of it. Where
a link cannot follow, the op reads and gives the dim whole, and the value is brought to that: a *border*.

A region is kept if it

- has a product which makes or takes the viewed dim, its blocks divisible by the parts that they are to be split into
  (`has_product`);
- cuts more bytes than are at its borders, where the data would move instead (`cut_bytes`, `border_bytes`);
- reaches an argument, which is then stored viewed, or weights that the program puts together (`reaches_state`):
  inside of attention, say (rotary positions cut each head in two), every product that takes a viewed dim has a better
  one to split.

Source: Rhino 4.1 and 4.3.3 (other strides than the maximum only where they reduce communication).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from rhino.ir.graph.blocks import Blocks, View, viewed_shape, whole
from rhino.ir.graph.graph import Graph
from rhino.strategies.structure.factor_links import Cut, End, Link, Links, Place, tensors_of

_PRODUCT: Final = "stablehlo.dot_general"
_CONVOLUTION: Final = "stablehlo.convolution"
_FLOATS: Final = ("f", "bf", "complex")


@dataclass(frozen=True, slots=True)
class Region:
    """Places viewed together because of one cut, and what the view saves.

    It counts the bytes in its cuts per step, and the bytes that its borders move instead.
    """

    seed: Place
    op: int
    blocks: Mapping[Place, Blocks]
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

    @property
    def kinds(self) -> list[list[Region]]:
        """The regions by kind, as of layers that are alike, in the order of the first of each."""
        found: dict[tuple[Blocks, int, int], list[Region]] = {}
        for region in self.regions:
            found.setdefault((region.blocks[region.seed], region.cut_bytes, region.border_bytes), []).append(region)
        return list(found.values())

    def of(self, regions: Sequence[Region]) -> dict[int, View]:
        """Returns the views of the values in some of the regions."""
        places = {place for region in regions for place in region.blocks}
        found = {
            value: tuple(one if (value, dim) in places else Blocks((one.size,)) for dim, one in enumerate(view))
            for value, view in self.values.items()
        }
        return {value: view for value, view in found.items() if not all(one.is_whole for one in view)}


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
    seeds = _seeds(graph, cuts, num_parts)
    if not seeds:
        return Views({}, {}, ())
    return _Finder(graph, cuts, able, blocked, num_parts).find(seeds)


def views_of(graph: Graph, cuts: Mapping[int, Cut], able: Sequence[bool], values: Mapping[int, View]) -> Views:
    """Returns the views in which `values` are stored: those that `find_views` found for the same arguments.

    They have no regions.
    """
    finder = _Finder(graph, cuts, able, frozenset(), 1)
    for value, view in values.items():
        finder.blocks |= {(value, dim): blocks for dim, blocks in enumerate(view) if not blocks.is_whole}
    return finder.views(())


def views_without_borders(
    graph: Graph,
    cuts: Mapping[int, Cut],
    able: Sequence[bool],
    blocked: frozenset[Place],
    seeds: Iterable[tuple[Place, Blocks]],
) -> Views:
    """Returns the views that come of dims in blocks, of each that all ops can follow.

    They have no regions. Arguments are as `find_views` has them.
    """
    finder = _Finder(graph, cuts, able, blocked, 1)
    for place, blocks in seeds:
        if place not in finder.blocks:
            grown = {**finder.blocks, **finder.joined.grow(place, blocks, finder.spread)}
            touched = {op for value, _ in grown for op in finder.joined.touching[value]}
            if not any(finder.has_border(op, grown) for op in touched):
                finder.blocks = grown
    return finder.views(())


@dataclass(frozen=True, slots=True)
class _Seed:
    place: Place
    blocks: Blocks
    op: int


def _seeds(graph: Graph, cuts: Mapping[int, Cut], num_parts: int) -> list[_Seed]:
    """Returns the dims of floating-point tensors that are cut in parts, all of which are taken.

    A part that is cut itself is as many blocks.

    Integers are indices and random bits: a product takes none of them, and a view of them would spread to whatever they
    mask.
    """
    parts, ops = dict[Place, dict[int, int]](), dict[Place, int]()
    for place, op, found in _cut_dims(graph, cuts):
        dim, known = place[1], parts.setdefault(place, {})
        ops.setdefault(place, op)
        for start, part in found.items():  # of parts that begin alike the shortest
            known[start] = min(known.get(start, part), part, key=lambda one: graph.type_of(one).shape[dim])
    parts = {place: found for place, found in parts.items() if _ends(graph, place, found)}
    return [_Seed(place, _blocks(graph, place, parts, num_parts), ops[place]) for place in parts]


def _cut_dims(graph: Graph, cuts: Mapping[int, Cut]) -> Iterator[tuple[Place, int, dict[int, int]]]:
    """Yields for each op that cuts one dim the place that it cuts, and its parts by where they begin in that."""
    for op, cut in sorted(cuts.items()):
        tensors = tensors_of(graph, op)
        value, parts = tensors[cut.whole], [tensors[part] for part in cut.parts]
        shape, shapes = graph.type_of(value).shape, [graph.type_of(part).shape for part in parts]
        dims = [dim for dim, size in enumerate(shape) if any(part[dim] != size for part in shapes)]
        if len(dims) == 1 and graph.type_of(value).dtype.startswith(_FLOATS) and (len(parts) > 1 or cut.whole == 0):
            (dim,) = dims
            yield (value, dim), op, {at[dim]: part for at, part in zip(cut.offsets, parts, strict=True)}


def _ends(graph: Graph, place: Place, parts: Mapping[int, int]) -> list[int]:
    """Returns where the parts of a dim end, one after the other; nothing where they are not the dim together."""
    value, dim = place
    ends = [0]
    for start, part in sorted(parts.items()):
        if start != ends[-1]:
            return []
        ends.append(start + graph.type_of(part).shape[dim])
    return ends if ends[-1] == graph.type_of(value).shape[dim] else []


def _blocks(graph: Graph, place: Place, parts: Mapping[Place, Mapping[int, int]], num_parts: int) -> Blocks:
    """Returns the blocks of a dim that is cut in `parts[place]`, which may be cut themselves.

    Where they differ in size, and cannot all be split, they are the largest of which all of them are multiples.
    """

    def sizes(place: Place) -> tuple[int, ...]:
        value, dim = place
        if place not in parts:
            return (graph.type_of(value).shape[dim],)
        return tuple(size for _, part in sorted(parts[place].items()) for size in sizes((part, dim)))

    found = sizes(place)
    if num_parts > 1 and len(set(found)) > 1 and not any(size % num_parts for size in found):
        return Blocks(found, num_parts)
    block = gcd(*found)
    return Blocks((block,) * (sum(found) // block))


@dataclass(eq=False)
class _Finder:
    graph: Graph
    cuts: Mapping[int, Cut]
    able: Sequence[bool]
    blocked: frozenset[Place]
    num_parts: int
    blocks: dict[Place, Blocks] = field(default_factory=dict)
    """What is viewed so far."""

    def __post_init__(self) -> None:
        graph = self.graph
        self.times: list[int] = graph.times().tolist()
        self.free = [op >= 0 and graph.cls(op).free for op in graph.value_op.tolist()]
        self.joined = Links(graph, self.able, self.cuts)
        self.computed: set[int] = set()
        """Values that a product has made, by whatever is between."""
        for op in range(graph.num_ops):
            is_product = graph.cls(op).name in (_PRODUCT, _CONVOLUTION)
            if is_product or not self.computed.isdisjoint(graph.operands(op).tolist()):
                self.computed.update(graph.results(op))

    def find(self, seeds: Sequence[_Seed]) -> Views:
        tried: set[tuple[Place, Blocks]] = set()
        regions = []
        for seed in seeds:
            if (
                (seed.place, seed.blocks) in tried
                or seed.place in self.blocks
                or seed.place in self.blocked
                or self.free[seed.place[0]]
            ):
                continue
            grown = self.joined.grow(seed.place, seed.blocks, self.spread)
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

    def spread(
        self, link: Link, tensors: Sequence[int], place: Place, region: Mapping[Place, Blocks]
    ) -> dict[Place, Blocks]:
        """Returns the places that a link adds to a region: none where one of them cannot follow."""
        start = next(end for end in link if (tensors[end.tensor], end.dim) == place)
        common = _of_link(link, start, region[place])
        found: dict[Place, Blocks] = {}
        for end in link:
            wanted, other = _at_end(end, common), (tensors[end.tensor], end.dim)
            if wanted is None:
                return {}
            if self.free[other[0]]:
                continue
            known = region.get(other, self.blocks.get(other, found.get(other)))
            if wanted.is_whole:
                if known is not None:
                    return {}
            elif (wanted.is_split and other in self.blocked) or known not in (None, wanted):
                return {}
            elif known is None:
                found[other] = wanted
        return found

    def agreed(self, link: Link, tensors: Sequence[int], blocks: Mapping[Place, Blocks]) -> Blocks | None:
        """Returns the blocks in which an op can follow all dims of a link as they are stored.

        The result is None where the dims are whole, or differ.
        """
        stored = [
            (end, blocks.get((tensors[end.tensor], end.dim), Blocks((end.size,))))
            for end in link
            if not self.free[tensors[end.tensor]]
        ]
        longest = max(stored, key=lambda one: one[0].size // one[0].scale, default=None)
        if longest is None or longest[1].is_whole:
            return None
        common = _of_link(link, *longest)
        if any(_at_end(end, common) is None for end in link):
            return None
        return common if all(_at_end(end, common) == one for end, one in stored) else None

    def at(self, op: int, blocks: Mapping[Place, Blocks] | None = None) -> tuple[View, ...]:
        """Returns the view that an op itself has of each of its operands and results."""
        blocks = self.blocks if blocks is None else blocks
        tensors = self.joined.tensors(op)
        if op in self.joined.ties:
            anchors = [self.stored(anchor, blocks) for _, anchor in self.joined.ties[op]]
            return tuple(view for anchor in anchors for view in (anchor, anchor))
        views = [list(whole(self.graph.type_of(value).shape)) for value in tensors]
        for link in self.joined.links(op):
            common = self.agreed(link, tensors, blocks)
            for end in link if common is not None else ():
                views[end.tensor][end.dim] = _at_end(end, common) or views[end.tensor][end.dim]
        return tuple(map(tuple, views))

    def stored(self, value: int, blocks: Mapping[Place, Blocks] | None = None) -> View:
        """Returns the view in which a value is stored."""
        blocks = self.blocks if blocks is None else blocks
        plain = whole(self.graph.type_of(value).shape)
        return tuple(blocks.get((value, dim), one) for dim, one in enumerate(plain))

    def judge(self, seed: _Seed, grown: Mapping[Place, Blocks]) -> Region | None:
        """Returns the region if it saves communication."""
        if not any(one.is_split for one in grown.values()):
            return None  # the blocks are single elements
        blocks = {**self.blocks, **grown}
        touched = sorted({op for value, _ in grown for op in self.joined.touching[value]})
        if not any(self.has_product(op, grown) for op in touched):
            return None
        cut_bytes = sum(self.cut_bytes(op, grown) for op in touched)
        border_bytes = sum(self.border_bytes(op, blocks) - self.border_bytes(op, self.blocks) for op in touched)
        if border_bytes >= cut_bytes or not any(self.reaches_state(value) for value, _ in grown):
            return None
        return Region(seed.place, seed.op, grown, cut_bytes, border_bytes)

    def has_product(self, op: int, grown: Mapping[Place, Blocks]) -> bool:
        """Says whether an op is a product over a dim of the region, with blocks that can be split."""
        if op in self.joined.ties or self.graph.cls(op).name != _PRODUCT:
            return False
        common = (self.agreed(link, self.joined.tensors(op), grown) for link in self.joined.links(op))
        return any(
            one is not None and one.is_split and not any(size % self.num_parts for size in one.sizes) for one in common
        )

    def reaches_state(self, value: int) -> bool:
        """Says whether a value is an argument, or what the program puts together of values that no product has made."""
        op = int(self.graph.value_op[value])
        is_joined = op in self.cuts and self.cuts[op].whole > 0
        return op < 0 or (is_joined and self.computed.isdisjoint(self.graph.operands(op).tolist()))

    def cut_bytes(self, op: int, grown: Mapping[Place, Blocks]) -> int:
        """Returns the bytes per step that an op cuts out of, or puts together to, a dim of the region."""
        if op not in self.cuts:
            return 0
        tensors, cut = self.joined.tensors(op), self.cuts[op]
        for link in self.joined.links(op):
            if len({end.size for end in link}) > 1 and self.agreed(link, tensors, grown) is not None:
                return self.times[op] * sum(self.graph.type_of(tensors[part]).num_bytes for part in cut.parts)
        return 0

    def border_bytes(self, op: int, blocks: Mapping[Place, Blocks]) -> int:
        """Returns the bytes per step of the values that an op has in another view than they are stored in."""
        times = self.times[op] if op < self.graph.num_ops else 1
        apart = (
            value
            for value, view in zip(self.joined.tensors(op), self.at(op, blocks), strict=True)
            if self.is_apart(value, view, blocks)
        )
        return times * sum(self.graph.type_of(value).num_bytes for value in apart)

    def has_border(self, op: int, blocks: Mapping[Place, Blocks]) -> bool:
        """Says whether an op has a value in another shape than it is stored in."""
        return any(
            not self.free[value] and viewed_shape(view) != viewed_shape(self.stored(value, blocks))
            for value, view in zip(self.joined.tensors(op), self.at(op, blocks), strict=True)
        )

    def is_apart(self, value: int, view: View, blocks: Mapping[Place, Blocks]) -> bool:
        """Says whether a value has to be moved to be seen in a view; a free one is made in it."""
        return not self.free[value] and view != self.stored(value, blocks)


def _of_link(link: Link, end: End, blocks: Blocks) -> Blocks | None:
    """Returns the blocks of a link of which one end has `blocks`; None where it cannot be in such.

    What lies around a part is in blocks of its size where they stay in order, and in one on either side else.
    """
    own, size = blocks.over(end.scale), max(one.size // one.scale for one in link)
    if own is None or own.size == size:
        return own
    before, after = end.offset, size - end.offset - own.size
    if blocks.parts > 1:
        return Blocks((*([before] if before else []), *own.sizes, *([after] if after else [])), blocks.parts)
    block = own.sizes[0]
    return Blocks((block,) * (size // block)) if before % block == after % block == 0 else None


def _at_end(end: End, common: Blocks | None) -> Blocks | None:
    """Returns the blocks of an end of a link that is in `common`; None where it cannot be in such."""
    part = common.between(end.offset, end.size // end.scale) if common is not None else None
    if part is None or any(size * end.scale % part.parts for size in part.sizes):
        return None
    return part.times(end.scale)
