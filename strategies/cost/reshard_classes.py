"""Pairs of specs that differ in the numbers of their dims alone, as one.

How a tensor gets from one spec to another hangs on which axes split the same dim, not on which dim that is: with three
axes and five dims there are 117,649 pairs of specs, and some 3,000 that differ in more than the numbers of dims. So
what a way costs is worked out for those, and looked up for the others, all of a table at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.spec import Spec, pack_rows, split, unpack

_MOST_CODE: Final = 2**63

Pair = tuple[int, Spec, Spec]
"""The least rank that a tensor has which can be in both specs, and these."""


def pair_classes(
    given: Sequence[int], needed: Sequence[int], num_axes: int, num_kept: int = 0
) -> tuple[list[Pair], Ints]:
    """Returns pairs of specs, and the one that each given spec with each needed one is alike to [given, needed].

    Alike are pairs that become each other when dims get other numbers; the first `num_kept` dims keep theirs.
    """
    sources, targets = (
        np.array([unpack(spec, num_axes) for spec in specs], dtype=np.int64) for specs in (given, needed)
    )
    columns = [*(column[:, None] for column in sources.T), *(column[None, :] for column in targets.T)]
    labels = _renumbered(columns, int(split(num_kept)))
    code, at = _codes(labels, (len(given), len(needed)))
    every = np.stack([np.broadcast_to(label, code.shape).ravel()[at] for label in labels], axis=1)
    ranks = np.maximum(every.max(axis=1) - 1, 0).tolist()
    return [*zip(ranks, pack_rows(every[:, :num_axes]), pack_rows(every[:, num_axes:]), strict=True)], code


def _renumbered(columns: Sequence[Ints], first: int) -> list[Ints]:
    """Returns the entries of pairs, whose dims from entry `first` on are numbered in the order in which they occur."""
    labels: list[Ints] = []
    num_seen: Ints = np.zeros((1, 1), dtype=np.int64)
    for place, column in enumerate(columns):
        is_new = column >= first
        label = np.where(is_new, first + num_seen, column)
        for before, known in zip(columns[:place], labels, strict=True):
            same = (column == before) & (column >= first)
            label, is_new = np.where(same, known, label), is_new & ~same
        labels.append(label)
        num_seen = num_seen + is_new
    return labels


def _codes(labels: Sequence[Ints], shape: tuple[int, int]) -> tuple[Ints, Ints]:
    """Returns numbers that are equal where all labels are [shape], from 0 on, and where each number occurs first."""
    code: Ints = np.zeros(shape, dtype=np.int64)
    num_codes = 1
    for label in labels:
        base = int(label.max(initial=0)) + 1
        if num_codes * base > _MOST_CODE:
            code = np.unique(code, return_inverse=True)[1].reshape(shape)
            num_codes = int(code.max(initial=0)) + 1
        code, num_codes = code * base + label, num_codes * base
    _, at, code = np.unique(code, return_index=True, return_inverse=True)
    return code.reshape(shape), at
