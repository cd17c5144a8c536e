"""How one tensor lies along one mesh axis: replicated, a partial sum, or split along a dim.

A spec is a small integer, so that tables can be indexed by it: 0 replicated, 1 partial (its parts add up), 2 + d split along dim d into
equal consecutive blocks. Sizes along an axis always divide: a dim that the axis does not divide has no split.
"""

from __future__ import annotations

from typing import Final, NewType

Spec = NewType("Spec", int)

REPLICATED: Final = Spec(0)
PARTIAL: Final = Spec(1)


def split(dim: int) -> Spec:
    """Returns the spec of a tensor split along `dim`."""
    return Spec(2 + dim)


def split_dim(spec: int) -> int | None:
    """Returns the dim that `spec` splits, or None."""
    return spec - 2 if spec >= 2 else None


def num_specs(rank: int) -> int:
    """Returns how many specs a tensor of `rank` has."""
    return 2 + rank


def spec_text(spec: int) -> str:
    """Returns the spec as a reader would say it: `R`, `P`, or `S0`, `S1`, ..."""
    return "RP"[spec] if spec < 2 else f"S{spec - 2}"


def all_specs(shape: tuple[int, ...], size: int) -> tuple[Spec, ...]:
    """Returns every spec that a tensor of `shape` can be stored in along an axis of `size`: replicated, and each dim that it divides."""
    return (REPLICATED, *(split(dim) for dim, extent in enumerate(shape) if extent and extent % size == 0))
