"""What devices send one another so that each has what its block of an op reads of a dim.

A part of a split factor reads a range of a dim of an operand (`rhino.ir.graph.halos`), and has one block of the dim.
The *pieces* of a range are what it has in common with blocks. Those of other devices come by collective-permutes, each
of which brings a device one piece and takes one of it. Where ranges begin where blocks do, but for a constant, the
pieces of one permute come from neighbours at one distance, and only at the borders of the dim is one missing.

What joins all elements before each (a cumulative sum) reads of the parts before only what they come to: after each of
a few permutes of one element, it knows that of twice as many.

Several dims of an operand are exchanged one after the other, so that corners come with the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from rhino.ir.graph.graph import OpClass, TensorType
from rhino.ir.graph.halos import Halo, Range
from rhino.ir.graph.spec import Spec, dim_parts
from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.reshard import ReshardStep


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` elements, from `start` on in the block of part `source`, and from `at` on in the range of `target`."""

    source: int
    target: int
    start: int
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class Permute:
    """Pieces that are brought to their targets at once: no two of them share a source, or a target.

    If each stays where it is, nothing is sent.
    """

    pieces: tuple[Piece, ...]

    @property
    def length(self) -> int:
        """The elements along the dim that a device sends: those of the longest piece."""
        return max(piece.length for piece in self.pieces)

    @property
    def is_sent(self) -> bool:
        """Whether a piece changes devices."""
        return any(piece.source != piece.target for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Exchange:
    """How the parts of a factor, along `axes`, get what they read of one dim of an operand.

    A dim has `block` elements on a device. `permutes` are in the order of what they bring, where `is_aligned`. What
    joins elements that come before has them in the order in which they follow one another, each of one element.
    """

    halo: Halo
    axes: tuple[int, ...]
    parts: int
    block: int
    range: Range
    permutes: tuple[Permute, ...]

    @property
    def is_aligned(self) -> bool:
        """Whether a range begins as far from the block of its device, whichever that is."""
        return self.range.step == self.block

    @property
    def is_sent(self) -> bool:
        """Whether anything is."""
        return any(permute.is_sent for permute in self.permutes)


def exchanges(cls: OpClass, strategy: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Exchange, ...]:
    """Returns the exchanges of an op that runs by `strategy` on axes of `sizes`, in their order."""
    found = []
    for halo, axes, parts in _split_halos(cls, strategy, sizes):
        found.append(Exchange(halo, axes, parts, halo.size // parts, halo.read_by(parts), _exchanged(halo, parts)))
    return tuple(found)


def _split_halos(
    cls: OpClass, strategy: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[tuple[Halo, tuple[int, ...], int]]:
    """Yields the halos of factors that are split, along which axes they are, and in how many parts."""
    for halo in cls.rule.halos if cls.rule else ():
        if halo.factor in strategy:
            axes = tuple(axis for axis, choice in enumerate(strategy) if choice == halo.factor)
            yield halo, axes, prod(sizes[axis] for axis in axes)


@lru_cache(maxsize=4096)
def _exchanged(halo: Halo, parts: int) -> tuple[Permute, ...]:
    """Returns the permutes that bring each of so many parts what it reads."""
    block = halo.size // parts
    return _prefix(parts, block, halo.stride) if halo.joins else _permutes(parts, block, halo.read_by(parts))


@lru_cache(maxsize=4096)
def _lengths(halo: Halo, parts: int) -> tuple[int, ...]:
    """Returns the elements along the dim that a device sends in each permute that sends any."""
    return tuple(permute.length for permute in _exchanged(halo, parts) if permute.is_sent)


def halo_moves(cls: OpClass, state: State, sizes: tuple[int, ...]) -> tuple[tuple[int, ReshardStep], ...]:
    """Returns the collectives of an op's exchanges, each with the number of the operand that it brings parts of."""
    found: list[tuple[int, ReshardStep]] = []
    shapes: dict[int, list[int]] = {}
    for halo, axes, parts in _split_halos(cls, state.strategy, sizes):
        operand, dim = halo.operand, halo.dim
        kind = cls.operands[operand]
        if operand not in shapes:
            shapes[operand] = local_shape(kind, state.operand_specs[operand], sizes)
        # What is joined is sent of the result.
        shape = local_shape(cls.results[0], state.result_specs[0], sizes) if halo.joins else shapes[operand]
        rest = kind.element_bytes * prod(size for number, size in enumerate(shape) if number != dim)
        found += [(operand, ReshardStep("collective_permute", axes, length * rest)) for length in _lengths(halo, parts)]
        shape[dim] = halo.read_by(parts).width
    return tuple(found)


def local_shape(kind: TensorType, spec: Spec, sizes: tuple[int, ...]) -> list[int]:
    """Returns the dims of a tensor's part on one device."""
    parts = dim_parts(spec, sizes, len(kind.shape))
    return [size // count for size, count in zip(kind.shape, parts, strict=True)]


def _permutes(parts: int, block: int, read: Range) -> tuple[Permute, ...]:
    pieces = [
        Piece(source, part, max(first, at) - at, max(first, at) - first, length)
        for part in range(parts)
        for first in [read.first + read.step * part]
        for source in range(parts)
        for at in [source * block]
        if (length := min(first + read.width, at + block) - max(first, at)) > 0
    ]
    if read.step == block:
        distances = sorted({piece.source - piece.target for piece in pieces})
        return tuple(
            Permute(tuple(piece for piece in pieces if piece.source - piece.target == distance))
            for distance in distances
        )
    return _together(pieces)


def _prefix(parts: int, block: int, stride: int) -> tuple[Permute, ...]:
    """Returns the permutes after which each part has what the elements of all parts before it come to.

    First each part takes what the block of the part before comes to; then what that has, two before has, and so on:
    twice as many parts each time (Hillis and Steele, "Data parallel algorithms", 1986).
    """
    distances = [1, *(1 << power for power in range((parts - 2).bit_length()))]
    at = block - 1 if stride > 0 else 0
    found = []
    for distance in distances:
        pairs = [(part - distance, part) for part in range(distance, parts)]
        ordered = pairs if stride > 0 else [(parts - 1 - a, parts - 1 - b) for a, b in reversed(pairs)]
        found.append(Permute(tuple(Piece(source, target, at, at, 1) for source, target in ordered)))
    return tuple(found)


def _together(pieces: Sequence[Piece]) -> tuple[Permute, ...]:
    """Returns permutes of all pieces, in few: each piece goes with the first that it can go with.

    What stays where it is goes last, and makes no permute longer.
    """
    groups: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda one: (one.source == one.target, -one.length, one.source - one.target)):
        stays = piece.source == piece.target
        for group in groups:
            is_free = all(piece.source != other.source and piece.target != other.target for other in group)
            fits = not stays or piece.length <= max(other.length for other in group)
            if is_free and fits:
                group.append(piece)
                break
        else:
            groups.append([piece])
    return tuple(Permute(tuple(sorted(group, key=lambda one: one.target))) for group in groups)
