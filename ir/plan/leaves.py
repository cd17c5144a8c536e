"""Arguments and results by leaf of the user's pytrees: a stack that lies in pieces, on several ranks, is one leaf.

The pieces of a leaf stand one after the other, in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rhino.ir.plan.plan import Tensor, kind_of


def leaf_groups(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Returns the numbers of the tensors that each leaf consists of: one, or its pieces."""
    groups: list[list[int]] = []
    for number, one in enumerate(tensors):
        before = tensors[number - 1] if number else None
        is_next = (
            one.rows is not None
            and before is not None
            and before.rows is not None
            and before.rows[1] == one.rows[0]
            and before.leaf == one.leaf
        )
        if is_next:
            groups[-1].append(number)
        else:
            groups.append([number])
    return tuple(map(tuple, groups))


def leaf_tensors(
    arguments: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns arguments and results as the user has them: each leaf whole, placed as its first piece is."""
    groups = leaf_groups(results)
    leaf_of = {piece: number for number, group in enumerate(groups) for piece in group}
    return (
        tuple([_joined([arguments[piece] for piece in group], leaf_of) for group in leaf_groups(arguments)]),
        tuple([_joined([results[piece] for piece in group], leaf_of) for group in groups]),
    )


def _joined(pieces: Sequence[Tensor], leaf_of: dict[int, int]) -> Tensor:
    first = pieces[0]
    alias = None if first.alias is None else leaf_of[first.alias]
    if first.rows is None:
        return replace(first, alias=alias)
    shape = (sum(one.shape[0] for one in pieces), *first.shape[1:])
    num_bytes = sum(one.num_bytes for one in pieces)
    viewed = (shape[0], *first.viewed[1:]) if first.viewed else ()
    return replace(
        first,
        path=first.leaf,
        kind=kind_of(first.dtype, shape),
        num_bytes=num_bytes,
        alias=alias,
        rows=None,
        viewed=viewed,
    )
