"""Dims that are seen as blocks: what becomes of a dim, and of the arrays that have it.

Blocks of one size stay in order, so that `[blocks, block]` is a reshape away. Blocks of several sizes interleave: each
has as many parts, and the first parts of all blocks come first, then the second ones: `[parts, size / parts]`. In
either form a split gives every device its share of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypeVar

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """A dim in blocks of these `sizes`; in one block it is whole. They interleave where `parts` is more than 1."""

    sizes: Shape
    parts: int = 1

    @property
    def size(self) -> int:
        """The size of the dim."""
        return sum(self.sizes)

    @property
    def is_whole(self) -> bool:
        """Whether the dim is in one block."""
        return len(self.sizes) == 1

    @property
    def is_split(self) -> bool:
        """Whether the dim becomes two: not in one block, nor in blocks of one element that stay in order."""
        return not self.is_whole and (self.parts > 1 or self.sizes[0] > 1)

    @property
    def shape(self) -> Shape:
        """What the dim becomes."""
        return self.upto(self.size)

    @property
    def cut_dim(self) -> int:
        """In which of the two dims blocks follow each other: 0 in order, 1 where they interleave."""
        return 0 if self.parts == 1 else 1

    def upto(self, end: int) -> Shape:
        """Returns what the first `end` elements become, which are whole blocks."""
        if not self.is_split:
            return (end,)
        return (end // self.sizes[0], self.sizes[0]) if self.parts == 1 else (self.parts, end // self.parts)

    def start(self, at: int) -> Shape:
        """Returns where the block is that begins at element `at`."""
        if not self.is_split:
            return (at,)
        return (at // self.sizes[0], 0) if self.parts == 1 else (0, at // self.parts)

    def times(self, scale: int) -> Blocks:
        """Returns the blocks of a dim with `scale` elements for each element of this one."""
        return Blocks(tuple(size * scale for size in self.sizes), self.parts)

    def over(self, scale: int) -> Blocks | None:
        """Returns the blocks of a dim of which each element is `scale` elements here; None where that is none."""
        if any(size % scale for size in self.sizes):
            return None
        return Blocks(tuple(size // scale for size in self.sizes), self.parts)

    def between(self, start: int, size: int) -> Blocks | None:
        """Returns the blocks of a part of the dim; None where it cuts one."""
        ends = list(accumulate(self.sizes, initial=0))
        if not size or start not in ends or start + size not in ends:
            return None
        sizes = self.sizes[ends.index(start) : ends.index(start + size)]
        return Blocks(sizes, 1 if len(sizes) == 1 else self.parts)


View = tuple[Blocks, ...]
"""How each dim of a value is seen."""


def whole(shape: Sequence[int]) -> View:
    """Returns the view of a value of which nothing is in blocks."""
    return tuple(Blocks((size,)) for size in shape)


def viewed_shape(view: View) -> Shape:
    """Returns the shape of a value in a view."""
    return tuple(size for one in view for size in one.shape)


def interleaved_dims(view: View) -> tuple[Shape, ...]:
    """Returns for each dim the parts and the blocks that interleave, none where none do; nothing if no dim has any."""
    found = tuple((one.parts, *one.sizes) if one.parts > 1 else () for one in view)
    return found if any(found) else ()


def are_interleaved(interleaved: Sequence[Shape], shape: Shape) -> bool:
    """Says whether that can be what `interleaved_dims` says of a view of an array of this shape."""
    return len(interleaved) == len(shape) and all(
        not one or (one[0] > 1 and sum(one[1:]) == size and not any(block % one[0] for block in one[1:]))
        for one, size in zip(interleaved, shape, strict=True)
    )


_T = TypeVar("_T")


class Moves(Protocol[_T]):
    """How arrays, or values that stand for such, are cut along a dim, put together along one, and given a shape."""

    def cut(self, array: _T, dim: int, start: int, size: int) -> _T:
        """Returns a part of an array."""

    def joined(self, arrays: Sequence[_T], dim: int) -> _T:
        """Returns arrays one after the other."""

    def reshaped(self, array: _T, shape: Shape) -> _T:
        """Returns the elements of an array in another shape."""


def interleave(array: _T, shape: Shape, dim: int, blocks: Blocks, by: Moves[_T]) -> _T:
    """Returns an array of `shape` with the blocks of a dim interleaved, so that it has two dims for it."""
    pieces, start = [], 0
    for size in blocks.sizes:
        piece = by.cut(array, dim, start, size)
        pieces.append(by.reshaped(piece, (*shape[:dim], *blocks.upto(size), *shape[dim + 1 :])))
        start += size
    return by.joined(pieces, dim + 1)


def put_in_order(array: _T, shape: Shape, dim: int, blocks: Blocks, by: Moves[_T]) -> _T:
    """Returns an array whose dims `dim` and the next hold interleaved blocks with these in order, and of `shape`."""
    pieces, start = [], 0
    for size in blocks.sizes:
        piece = by.cut(array, dim + 1, start, size // blocks.parts)
        pieces.append(by.reshaped(piece, (*shape[:dim], size, *shape[dim + 1 :])))
        start += size // blocks.parts
    return by.joined(pieces, dim)


class _ArrayMoves:
    """The moves of NumPy's arrays, and of JAX's."""

    def cut(self, array: Any, dim: int, start: int, size: int) -> Any:  # noqa: ANN401 - either's array
        return array[(*[slice(None)] * dim, slice(start, start + size))]

    def joined(self, arrays: Sequence[Any], dim: int) -> Any:  # noqa: ANN401 - either's array
        return arrays[0].__array_namespace__().concat(arrays, axis=dim)

    def reshaped(self, array: Any, shape: Shape) -> Any:  # noqa: ANN401 - either's array
        return array.reshape(shape)


def to_view(array: Any, viewed: Shape, interleaved: Sequence[Shape]) -> Any:  # noqa: ANN401 - NumPy's or JAX's
    """Returns an array in a view of the shape `viewed`, of which `interleaved` says what `interleaved_dims` does."""
    shape = tuple(array.shape)
    for dim, (parts, *sizes) in _given(interleaved):
        array = interleave(array, shape, dim, Blocks(tuple(sizes), parts), _ArrayMoves()).reshape(shape)
    return array.reshape(viewed)


def from_view(array: Any, shape: Shape, interleaved: Sequence[Shape]) -> Any:  # noqa: ANN401 - NumPy's or JAX's
    """Returns an array that is in a view in its own shape, its elements in order."""
    array = array.reshape(shape)
    for dim, (parts, *sizes) in _given(interleaved):
        apart = array.reshape(*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :])
        array = put_in_order(apart, shape, dim, Blocks(tuple(sizes), parts), _ArrayMoves())
    return array


def _given(interleaved: Sequence[Shape]) -> list[tuple[int, Shape]]:
    return [(dim, one) for dim, one in enumerate(interleaved) if one]
