"""A leaf whose rows lie on several ranks: the stack of layers that a step in stages shares among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding


@dataclass(frozen=True, slots=True)
class SplitSharding:
    """Where the rows of a `SplitArray` lie: `rows` (from, to) along its first dim, each with the sharding of these."""

    rows: tuple[tuple[int, int], ...]
    shardings: tuple[NamedSharding, ...]


class SplitArray:
    """An array whose rows lie in `pieces` on several ranks, each an ordinary `jax.Array`.

    In a pytree it is one leaf, with the shape and dtype of the whole. `numpy.asarray` and `jax.device_get` put it
    together on the host, `jax.numpy.asarray` on one device. A step in stages takes it, and takes whole arrays as well.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[jax.Array]) -> None:
        self.pieces = tuple(pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return (sum(one.shape[0] for one in self.pieces), *self.pieces[0].shape[1:])

    @property
    def dtype(self) -> Any:  # noqa: ANN401 - a dtype of JAX's
        """The dtype of all elements."""
        return self.pieces[0].dtype

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return self.pieces[0].ndim

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole."""
        return sum(int(one.nbytes) for one in self.pieces)

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The rows of each piece: the first, and the one behind the last."""
        return tuple(pairwise([0, *accumulate(one.shape[0] for one in self.pieces)]))

    @property
    def sharding(self) -> SplitSharding:
        """Where the rows lie."""
        return SplitSharding(self.rows, tuple(cast(NamedSharding, one.sharding) for one in self.pieces))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: ANN401 - NumPy's protocol
        whole = np.concatenate([np.asarray(one) for one in self.pieces])
        return whole if dtype is None else whole.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(np.asarray(self))

    def __repr__(self) -> str:
        return f"SplitArray({self.dtype}[{','.join(map(str, self.shape))}], rows={list(self.rows)})"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as of NumPy's arrays
        return np.asarray(self)[index]

    def is_deleted(self) -> bool:
        """Says whether some of it is gone, as after its donation."""
        return any(one.is_deleted() for one in self.pieces)

    def delete(self) -> None:
        """Frees its memory."""
        for one in self.pieces:
            if not one.is_deleted():
                one.delete()

    def copy(self) -> SplitArray:
        """Returns a copy where it lies."""
        return SplitArray([one.copy() for one in self.pieces])

    def block_until_ready(self) -> SplitArray:
        """Waits until it is computed."""
        for one in self.pieces:
            one.block_until_ready()
        return self


def whole(tree: Any) -> Any:  # noqa: ANN401 - a pytree
    """Returns a tree with every split array put together on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, SplitArray) else leaf, tree)
