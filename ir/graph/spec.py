"""How one tensor lies on a mesh: for each axis replicated, a partial sum, or split along a dim.

A spec has one entry for each mesh axis: 0 replicated, 1 partial (the parts add up), 2 + d split along dim d into equal
consecutive blocks. Each axis, outermost first, splits what the axes before it left: two axes that split one dim share
it, the outer one with the larger blocks. Entries are packed into one integer, five bits an axis and the outermost axis
lowest, so that a spec is cheap to hash and to compare; along a single axis a spec is its entry. Sizes always divide: a
dim that an axis does not divide has no split. Along an axis of size 1 all entries say the same, and the planner's specs
have the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Final, NewType

import numpy as np
from numpy.typing import NDArray

Spec = NewType("Spec", int)

REPLICATED: Final = Spec(0)
PARTIAL: Final = Spec(1)

_BITS: Final = 5
_ENTRY: Final = (1 << _BITS) - 1
_INTEGER_BITS: Final = 63
_MOST_DIMS: Final = _ENTRY - 1


def split(dim: int) -> Spec:
    """Returns the entry of a tensor split along `dim`."""
    return Spec(2 + dim)


def split_dim(entry: int) -> int | None:
    """Returns the dim that an entry splits, or None."""
    return entry - 2 if entry >= 2 else None


def entry(spec: int, axis: int) -> int:
    """Returns the entry of `axis`."""
    return spec >> (_BITS * axis) & _ENTRY


def at(one: int, axis: int) -> Spec:
    """Returns the spec that has entry `one` at `axis` and is replicated along the others."""
    return Spec(one << (_BITS * axis))


def pack(entries: Iterable[int]) -> Spec:
    """Returns the spec with these entries, outermost axis first."""
    return Spec(sum(one << (_BITS * axis) for axis, one in enumerate(entries)))


def pack_rows(entries: NDArray[np.int64]) -> list[Spec]:
    """Returns the spec of each row of entries, outermost axis first [rows, axes]."""
    num_axes = entries.shape[1]
    wide = entries if _BITS * num_axes < _INTEGER_BITS else entries.astype(object)
    return [
        Spec(one)
        for one in (wide @ np.array([1 << (_BITS * axis) for axis in range(num_axes)], dtype=wide.dtype)).tolist()
    ]


def unpack(spec: int, num_axes: int) -> tuple[int, ...]:
    """Returns the entries of a spec, outermost axis first."""
    return tuple([spec >> (_BITS * axis) & _ENTRY for axis in range(num_axes)])


def partial_axes(spec: int) -> tuple[int, ...]:
    """Returns the axes along which a tensor is a partial sum."""
    return _axes_with(spec, partial=True)


def split_axes(spec: int) -> tuple[int, ...]:
    """Returns the axes along which a tensor is split."""
    return _axes_with(spec, partial=False)


def without_partial(spec: int) -> Spec:
    """Returns the spec with every partial entry replaced by replicated."""
    for axis in partial_axes(spec):
        spec -= at(PARTIAL, axis)
    return Spec(spec)


def without_unit_axes(spec: int, sizes: Sequence[int]) -> Spec:
    """Returns the spec with every entry along an axis of size 1 replaced by replicated."""
    return pack(one if size > 1 else REPLICATED for one, size in zip(unpack(spec, len(sizes)), sizes, strict=True))


def num_parts(spec: int, sizes: Sequence[int]) -> int:
    """Returns into how many parts a tensor is split on axes of `sizes`."""
    parts = 1
    for size in sizes:
        if spec & _ENTRY > 1:
            parts *= size
        spec >>= _BITS
    return parts


def dim_parts(spec: int, sizes: Sequence[int], rank: int) -> list[int]:
    """Returns into how many parts each dim is split [rank]."""
    parts = [1] * rank
    for size in sizes:
        if spec & _ENTRY > 1:
            parts[(spec & _ENTRY) - 2] *= size
        spec >>= _BITS
    return parts


def fits(spec: int, shape: Sequence[int], sizes: Sequence[int]) -> bool:
    """Says whether the dims of `shape` divide as `spec` splits them."""
    used = unpack(spec, len(sizes))
    if any(one - 2 >= len(shape) for one in used):
        return False
    parts = dim_parts(spec, sizes, len(shape))
    return all(count == 1 or (extent > 0 and extent % count == 0) for count, extent in zip(parts, shape, strict=True))


def all_specs(shape: Sequence[int], sizes: Sequence[int], partial: Sequence[int] = ()) -> tuple[Spec, ...]:
    """Returns every spec that a tensor of `shape` can be stored in on axes of `sizes`.

    Along the axes in `partial` it is a partial sum.
    """
    dims = range(min(len(shape), _MOST_DIMS))
    options = [
        (REPLICATED, *([PARTIAL] if axis in partial else []), *map(split, dims)) if size > 1 else (REPLICATED,)
        for axis, size in enumerate(sizes)
    ]
    return tuple([spec for entries in product(*options) if fits(spec := pack(entries), shape, sizes)])


def dim_axes(spec: int, num_axes: int, rank: int) -> list[list[int]]:
    """Returns the axes that split each dim, outermost first [rank]."""
    axes: list[list[int]] = [[] for _ in range(rank)]
    for axis, one in enumerate(unpack(spec, num_axes)):
        if one >= 2:
            axes[one - 2].append(axis)
    return axes


def spec_text(spec: int, names: Sequence[str] = ()) -> str:
    """Returns the spec as text: `R`, `P`, `S0`, `S1` and so on.

    With several axes, each follows its name, as in `x:S0 y:R`.
    """
    if len(names) <= 1:
        return _entry_text(spec)
    return " ".join(f"{name}:{_entry_text(one)}" for name, one in zip(names, unpack(spec, len(names)), strict=True))


def _entry_text(one: int) -> str:
    return "RP"[one] if one < 2 else f"S{one - 2}"


def _axes_with(spec: int, *, partial: bool) -> tuple[int, ...]:
    found, axis = [], 0
    while spec:
        one = spec & _ENTRY
        if one and (one == PARTIAL) == partial:
            found.append(axis)
        spec >>= _BITS
        axis += 1
    return tuple(found)
