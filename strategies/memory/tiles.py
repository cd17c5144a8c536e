"""Bytes of tensors whose last two dims lie in tiles, as XLA:TPU keeps them.

What is passed to a program lies with its dims in the order that pads least (`ChooseCompactLayoutForShape`), and so does
what is computed element by element. What a convolution reads and gives ends with batch and feature, in either order.

A gather looks up rows, and gives rows; a scatter adds rows up, and its result lies so: a row of few elements is as long
as a tile there. So a table of embeddings that is split in narrow columns is copied row by row before it is looked up,
and so are it and its moments until they are updated.

Seen in what libtpu 0.0.51 compiles for v5e (eight tables of f32[65536,8], position biases of f32[262144,16], a U-Net
with 64 channels; 2026-11-26).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Final

from rhino.ir.graph.graph import COPIED_UPDATE, Graph, TensorType

Tile = tuple[int, int]
"""Rows and columns."""

CONVOLUTION: Final = "stablehlo.convolution"
_GATHER: Final = "stablehlo.gather"
_NUM_ENDS: Final = 2
"""A convolution's tensors end with batch and feature, its kernel with two features."""


def compact_bytes(kind: TensorType, tile: Tile, dims: Sequence[int] | None = None) -> int:
    """Returns the bytes of a tensor with its dims in the order that pads least, of those that end with two of `dims`.

    Of fewer rows than a tile has, tiles have as many as the next power of two.
    """
    most_rows, columns = tile
    if tile == (1, 1) or len(kind.shape) < len(tile) or not kind.num_bytes:
        return kind.num_bytes
    sizes = []
    for height, width in permutations(kind.shape if dims is None else [kind.shape[dim] for dim in dims], 2):
        rows = min(most_rows, 1 << (height - 1).bit_length())
        sizes.append(kind.num_bytes // (height * width) * -(-height // rows) * rows * -(-width // columns) * columns)
    return min(sizes)


def ends_for_convolutions(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Returns the dims in which values end that a convolution reads or gives, by value: all but those of space."""
    found: dict[int, tuple[int, ...]] = {}
    for op in range(graph.num_ops):
        cls = graph.cls(op)
        if cls.name != CONVOLUTION or cls.rule is None:
            continue
        values = [*graph.operands(op).tolist(), *graph.results(op)]
        for value, mapping in zip(values, (*cls.rule.operands, *cls.rule.results), strict=True):
            dims = tuple([dim for dim, factors in enumerate(mapping) if not cls.rule.fixed.intersection(factors)])
            if len(dims) == _NUM_ENDS:
                found[value] = dims
    return found


def row_bytes(kind: TensorType, tile: Tile) -> int:
    """Returns the bytes of a tensor that lies row by row: its last dim is padded to whole tiles, if it is a row."""
    length = kind.shape[-1] if kind.shape else 1
    return kind.num_bytes if length <= 1 else kind.num_bytes // length * -(-length // tile[1]) * tile[1]


def copied_to_rows(graph: Graph, op: int) -> list[int]:
    """Returns the values that an op has row by row while it runs, and that otherwise lie in another way.

    Of a gather these are a table that is an argument, and what it gives; of a scatter, what is added.
    """
    name, operands = graph.cls(op).name, graph.operands(op).tolist()
    if name == COPIED_UPDATE:
        added: list[int] = operands[len(operands) // 2 + 1 :]  # behind as many tables, and the indices
        return added
    if name == _GATHER:
        return [*graph.results(op), *(table for table in operands[:1] if graph.value_op[table] < 0)]
    return []
