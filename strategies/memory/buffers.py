"""What ops and collectives hold in memory beside their operands and results, in bytes of one device.

Facts of XLA, from its sources and from the buffers that jaxlib 0.10.2 assigns on the CPU (2026-11-22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from math import prod
from typing import Final, Literal, NamedTuple, TypeVar

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import OpClass, TensorType
from rhino.ir.graph.rules import Rule
from rhino.ir.graph.spec import Spec, num_parts
from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.reshard import LayoutStep, parted_path, reshard_path
from rhino.strategies.cost.reshard_classes import pair_classes

_ALIGNMENT: Final = 64
"""Bytes: where XLA lets buffers begin on a CPU."""

_GAPS: Final = 16
"""One part in this many of each temporary is added as a margin.

The margin is for gaps in XLA's heap, and for orders of ops that are not known before the program is compiled.
docs/memory.md has the figures behind it.
"""

_INDEX_BYTES: Final = 4

_MOST_BUFFERS: Final = 3
"""How many buffers one step of a move has at most."""

PRODUCT: Final = "stablehlo.dot_general"

Size = TypeVar("Size", int, Ints)
"""Bytes of one tensor or of many."""


def aligned(num_bytes: Size) -> Size:
    """Returns what a temporary buffer of `num_bytes` takes."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def rounded(num_bytes: Size) -> Size:
    """Returns what the rows of the search count a temporary buffer of `num_bytes` as."""
    size = aligned(num_bytes)
    return size + size // _GAPS


class _SizedStep(NamedTuple):
    """A step of a path: the numbers of parts before and after it, and whether what it joins or cuts is one piece.

    The parts are those into which the tensor is split.
    """

    kind: str
    before: int
    after: int
    is_major: bool


_SizedPath = tuple[_SizedStep, ...]


class BufferCounts(NamedTuple):
    """The buffers of moves: in each of their steps, and after them, each by how many of it make the tensor.

    A count is 0 where there is no buffer. Shapes: `during` [moves, steps, buffers]; `after` [moves].
    """

    during: Ints
    after: Ints

    def num_bytes(self, total_bytes: int) -> Ints:
        """Returns the bytes during and after the move of a tensor [moves, 2].

        The whole tensor has `total_bytes` bytes.
        """
        during, after = (
            np.where(parts, rounded(total_bytes // np.maximum(parts, 1)), 0) for parts in (self.during, self.after)
        )
        return np.stack([during.sum(axis=2).max(axis=1), after], axis=1)


@dataclass(frozen=True, slots=True)
class MoveBuffers:
    """How the bytes of a move are counted.

    Its source or its target may be counted elsewhere; a fused loop may read its target with its dims in any order
    (`read_in_any_order`).
    """

    source_counted: bool
    target_counted: bool
    read_in_any_order: bool

    def num_bytes(
        self, kind: TensorType, given: tuple[Spec, ...], needed: tuple[Spec, ...], sizes: tuple[int, ...]
    ) -> tuple[Ints, Ints]:
        """Returns `BufferCounts.num_bytes` of the moves that occur, and each spec pair's move [given, needed]."""
        counts, which = _counts_of(self, _head(kind.shape, sizes), given, needed, sizes)
        return counts.num_bytes(kind.num_bytes), which

    def counts(self, paths: Sequence[_SizedPath]) -> BufferCounts:
        """Returns the buffers of bringing a tensor by each of `paths`; none where there is nothing to do."""
        after = np.zeros(len(paths), dtype=np.int64)
        during = np.zeros((len(paths), max(1, *map(len, paths)), _MOST_BUFFERS), dtype=np.int64)
        for number, steps in enumerate(paths):
            for at, step in enumerate(steps):
                buffers = self._buffers(step, at == 0, at == len(steps) - 1)
                during[number, at, : len(buffers)] = buffers
            if steps:
                after[number] = steps[-1].after
        return BufferCounts(during, after)

    def _buffers(self, step: _SizedStep, first: bool, last: bool) -> tuple[int, ...]:
        # cut up to be sent, before anything arrives
        gone = step.kind == "all_to_all" or (first and self.source_counted)
        found = [] if gone else [step.before]
        found += [] if last and self.target_counted else [step.after]
        match step.kind:
            case "all_to_all":  # its parts arrive as tensors of their own, which are then joined
                found.append(step.after)
            case "all_gather" if not self.read_in_any_order and not step.is_major:
                found.append(step.after)  # parts arrive one after the other, and are put in order
            case "reduce_scatter" if not step.is_major:
                found.append(step.before)
        return tuple(found)


@lru_cache(maxsize=4096)
def _counts_of(
    move: MoveBuffers, shape: tuple[int, ...], given: tuple[Spec, ...], needed: tuple[Spec, ...], sizes: tuple[int, ...]
) -> tuple[BufferCounts, Ints]:
    """Returns the buffers of the moves that occur, and which of them each pair of specs has [given, needed]."""
    paths, which = _sized_paths(shape, given, needed, sizes)
    return move.counts(paths), which


@lru_cache(maxsize=4096)
def _sized_paths(
    head: tuple[int, ...], given: tuple[Spec, ...], needed: tuple[Spec, ...], sizes: tuple[int, ...]
) -> tuple[tuple[_SizedPath, ...], Ints]:
    """Returns the ways that occur, and which of them each pair of specs has [given, needed]."""
    pairs, which = pair_classes(given, needed, len(sizes), len(head) + 1)
    paths = [_sized_path(head, *pair, sizes) for pair in pairs]
    distinct = {id(one): one for one in paths}
    number = {key: place for place, key in enumerate(distinct)}
    return tuple(distinct.values()), np.array([number[id(one)] for one in paths], dtype=np.int64)[which]


def _head(shape: tuple[int, ...], sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the dims behind which blocks may lie one after the other.

    An axis is left when each of these has one element on a device.
    """
    elements, most = 1, prod(sizes) // min((size for size in sizes if size > 1), default=1)
    for number, extent in enumerate(shape):
        elements *= extent
        if not 0 < elements <= most:
            return shape[:number]
    return shape[:-1]


@lru_cache(maxsize=1 << 16)
def _sized_path(head: tuple[int, ...], rank: int, source: Spec, target: Spec, sizes: tuple[int, ...]) -> _SizedPath:
    """Returns the steps from one spec to another, none where there is no path."""
    steps = reshard_path(rank, source, target, len(sizes)) or ()
    parted = parted_path(rank, source, target, sizes) or ()
    return _same_path(
        tuple(
            [
                _SizedStep(one.kind, one.before, one.after, _is_one_piece(head, step, sizes))
                for one, step in zip(parted, steps, strict=True)
            ]
        )
    )


@lru_cache(maxsize=1 << 16)
def _same_path(one: _SizedPath) -> _SizedPath:
    """Returns the path that was equal to this first.

    A caller with many paths finds the equal ones by their ids, without comparing their steps.
    """
    return one


def _is_one_piece(head: tuple[int, ...], step: LayoutStep, sizes: tuple[int, ...]) -> bool:
    """Says what `is_major` does of a step that gathers or scatters a dim.

    That dim cannot be behind the dims of `head` and another one.
    """
    dim = step.source if step.kind == "all_gather" else step.target if step.kind == "reduce_scatter" else None
    return dim is not None and dim <= len(head) and is_major(head, step, sizes)


def is_major(shape: tuple[int, ...], step: LayoutStep, sizes: Sequence[int]) -> bool:
    """Says whether the blocks that a step joins or cuts lie one after the other, row by row.

    No dim before theirs is longer than one.
    """
    dim, layout = (step.source, step.after) if step.kind == "all_gather" else (step.target, step.before)
    return all(extent == prod(sizes[a] for a in axes) for extent, axes in zip(shape[:dim], layout[:dim], strict=True))


def selection_buffers(cls: OpClass, state: State, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the temporaries of a `select_and_scatter` in a state, as rows count them, each by itself."""
    parts = [num_parts(need, sizes) for need in state.operand_specs[:2]]
    inputs, outputs = selection_sizes(cls, parts[0], parts[1])
    return tuple([rounded(size) for size in (*inputs, *outputs)])


def selection_sizes(
    cls: OpClass, operand_parts: int = 1, window_parts: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the bytes of the temporaries of a `select_and_scatter`, and of those that stay until its result is there.

    XLA (`SelectAndScatterExpander`) finds what it selects by an index for each dim of each element, and carries these
    through a windowed reduction along with the elements. What that gives it scatters by the indices.
    """
    operand, windows = cls.operands[0], cls.operands[1]
    indices, chosen = (
        (aligned(_INDEX_BYTES * kind.num_bytes // kind.element_bytes // parts),) * len(operand.shape)
        for kind, parts in ((operand, operand_parts), (windows, window_parts))
    )
    return (*indices, aligned(windows.num_bytes // window_parts)), chosen


def reads_as_stored(cls: OpClass, position: int) -> bool:
    """Says whether a product reads an operand as it lies: batch dims first, and of the left one the summed dims last.

    Otherwise the operand is copied.
    """
    if cls.name != PRODUCT or cls.rule is None:
        return True
    roles = [min(role, 1) if position else role for role in _roles(cls.rule, position)]
    return all(a <= b for a, b in pairwise(roles))


def is_matrix(cls: OpClass, position: int) -> bool:
    """Says whether an operand of a product has one dim to sum over and one of its own.

    Where it has more, they are joined first, by a reshape.
    """
    return cls.rule is not None and _is_matrix(_roles(cls.rule, position))


def _is_matrix(roles: Sequence[int]) -> bool:
    return roles.count(_FREE) <= 1 and roles.count(_SUMMED) <= 1


Arranged = tuple[int, ...] | Literal["view"] | None
"""What is done to a tensor before it is read.

That is a copy with its dims in an order, a view with dims joined or dropped, or nothing.
"""


def arranged(
    cls: OpClass,
    position: int,
    shape: tuple[int, ...],
    dims: Sequence[int] | None = None,
    *,
    in_any_order: bool = False,
) -> Arranged:
    """Returns what XLA does to an operand of a product.

    `shape` is its shape on a device. Where the operand is a transpose of what has that shape, `dims` says which dim of
    the operand each is (`TransposeFolding`).

    A product of matrices, or batches of these, reads them in either order (`TransposeFolding`). Others are made
    matrices first: dims of one element are dropped, those of a batch are put first, and then a left operand's summed
    dims last, a right one's first (`DotDecomposer`). Some libraries read rows, columns and batch `in_any_order` but
    with the batch innermost, if the dims of each lie side by side (`MatrixLayout::For`).
    """
    if cls.rule is None:
        return None
    roles = _roles(cls.rule, position)
    if len(roles) != len(shape):
        return None
    roles = roles if dims is None else [roles[dim] for dim in dims]
    long = [dim for dim, extent in enumerate(shape) if extent > 1]
    is_plain = len(long) == len(shape) and _is_matrix(roles)
    if in_any_order and _is_strided([roles[dim] for dim in long], [dims[dim] if dims else dim for dim in long]):
        return None if is_plain else "view"
    first = (_BATCH, _FREE, _FREE) if is_plain else (_BATCH, _SUMMED, _FREE) if position else (_BATCH, _FREE, _SUMMED)
    order = tuple(sorted(long, key=lambda dim: first[roles[dim]]))
    return order if order != tuple(long) else None if is_plain else "view"


def _is_strided(roles: Sequence[int], dims: Sequence[int]) -> bool:
    """Says whether dims with `roles`, as they lie in memory, are rows, columns and batch; `dims` are the operand's."""
    alike = list(pairwise(zip(roles, dims, strict=True)))
    runs = [role for role, _ in groupby(roles)]
    in_order = all(before < after for (role, before), (next_role, after) in alike if role == next_role)
    return in_order and len(runs) == len(set(runs)) and (runs[-1:] != [_BATCH] or len(runs) == 1)


_BATCH, _FREE, _SUMMED = range(3)


def _roles(rule: Rule, position: int) -> list[int]:
    """Returns what each dim of an operand of a product is to it."""
    result = {factor for dim in rule.results[0] for factor in dim}
    other = {factor for dim in rule.operands[1 - position] for factor in dim}
    factors = [dim[0] for dim in rule.operands[position] if dim]
    return [_FREE if f not in other else _BATCH if f in result else _SUMMED for f in factors]
