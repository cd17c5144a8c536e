"""Alike layers one after the other, op by op, and a program that has fewer of them.

The classes of a program's segments (strategies/structure/segment_folding.py) repeat where its layers do. A *stretch* is
such a place: layers of as many segments each, with as many ops; what stands in a column is alike, and reads alike: each
operand of a column is made by one other column of its own layer, of the layer before or of the one behind it, or comes
from outside; an argument is read by one layer or by all. Where that does not hold there is no stretch.

In a shorter program one layer stands for several neighbours, a *group*. It reads of the layer before what the group's
first layer did, and of the layer behind what the group's last did, each where it is now: at the layer that stands for
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.graph.graph import Graph
from rhino.ir.graph.layer_mark import NOWHERE, LayerMark
from rhino.strategies.structure.segments import segments_of

MOST_SEGMENTS: Final = 64
"""Layers of more segments are not looked for."""

OUTSIDE: Final = -1
_ELSEWHERE: Final = 2
"""The offset of an operand that comes from outside; else it is -1, 0 or 1 layers away."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Alike layers.

    Shapes: `ops` [layers, columns], layers in the order of the model; `reads` [layers, operands of a layer], the values
    that they read, of one column after the other; `offset` [operands of a layer], how many layers away each is made.
    """

    ops: Ints
    reads: Ints
    offset: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Shorter:
    """A program with fewer layers.

    Shapes: `kept` [ops] says which ops it has, and `order` in which order, each after what it reads; `uses` [uses] what
    each of their uses reads, `group` [ops] and `argument_group` [arguments] the group of each, -1 for none; `size`
    [groups] how many layers each group has; `is_back` [ops] in which ops later layers come first; `returned` which
    results it has.
    """

    kept: Bools
    order: tuple[int, ...]
    uses: Ints
    group: Ints
    argument_group: Ints
    size: tuple[int, ...]
    is_back: Bools
    returned: tuple[int, ...]

    def mark(self, group: int, is_back: bool = False) -> LayerMark:
        """Returns the mark of an op or an argument of a group."""
        return LayerMark(group, self.size[group], is_back) if group >= 0 else NOWHERE


def stretches_of(graph: Graph, least: int) -> list[Stretch]:
    """Returns the stretches of a program that have at least so many layers; a program with loops has none."""
    if graph.loops:
        return []
    segments = segments_of(graph)
    members: list[list[int]] = [[] for _ in segments.fold]
    for op, segment in enumerate(segments.number.tolist()):
        if segment >= 0:
            members[segment].append(op)
    found = []
    for start, period, count in _repeats(segments.fold, least):
        firsts = range(start, start + period * count, period)
        layers = [list(chain.from_iterable(members[first : first + period])) for first in firsts]
        if len({len(layer) for layer in layers}) == 1:
            stretch = _stretch(graph, np.array(layers, dtype=np.int64))
            found += [stretch] if stretch is not None else []
    return found


def _repeats(fold: Ints, least: int) -> list[tuple[int, int, int]]:
    """Returns where classes repeat at least so often.

    The result is the first segment, how many make a layer, and how many layers there are.
    """
    found, waiting = [], [(0, len(fold))]
    while waiting:
        begin, end = waiting.pop()
        longest = _longest(fold[begin:end], least)
        if longest is not None:
            start, period, count = longest
            found.append((begin + start, period, count))
            waiting += [(begin, begin + start), (begin + start + period * count, end)]
    return sorted(found)


def _longest(fold: Ints, least: int) -> tuple[int, int, int] | None:
    """Returns the repeat that takes most segments, in the shortest layers."""
    best: tuple[int, int, int] | None = None
    for period in range(1, min(MOST_SEGMENTS, len(fold) // least) + 1):
        again = np.concatenate(([False], fold[period:] == fold[:-period], [False]))
        for begin, end in np.flatnonzero(np.diff(again)).reshape(-1, 2).tolist():
            count = (end - begin) // period + 1
            if count >= least and (best is None or period * count > best[1] * best[2]):
                best = begin, period, count
    return best


def _stretch(graph: Graph, ops: Ints) -> Stretch | None:
    """Returns layers as a stretch, None where their columns are not alike or do not read alike."""
    if (graph.op_class[ops] != graph.op_class[ops[0]]).any():
        return None
    num_layers, num_columns = ops.shape
    # the last place is that of no op
    layer, column = (np.full(graph.num_ops + 1, OUTSIDE, dtype=np.int64) for _ in range(2))
    layer[ops], column[ops] = np.arange(num_layers)[:, None], np.arange(num_columns)
    reads = np.array([np.concatenate([graph.operands(op) for op in row]) for row in ops.tolist()], dtype=np.int64)
    made = graph.value_op[reads]
    away = np.where(layer[made] == OUTSIDE, _ELSEWHERE, layer[made] - np.arange(num_layers)[:, None])
    source = np.where(away == _ELSEWHERE, OUTSIDE, column[made])
    result = np.where(away == _ELSEWHERE, 0, reads - graph.result_start[np.maximum(made, 0)])
    offset = away[num_layers // 2]
    alike = np.ones(reads.shape, dtype=bool)
    for what in (away, source, result):
        alike &= what == what[num_layers // 2]
    alike[0] |= (offset == -1) & (away[0] == _ELSEWHERE)
    alike[-1] |= (offset == 1) & (away[-1] == _ELSEWHERE)
    if not alike.all() or not np.isin(offset, (-1, 0, 1, _ELSEWHERE)).all():
        return None
    given = reads[:, _given_apart(graph, reads)]
    reader = np.full(len(graph.arguments), OUTSIDE, dtype=np.int64)
    reader[given] = np.arange(num_layers)[:, None]
    return Stretch(ops, reads, offset) if (reader[given] == np.arange(num_layers)[:, None]).all() else None


def _given_apart(graph: Graph, reads: Ints) -> Bools:
    """Says which operands of a layer are arguments that not all layers read [operands of a layer]."""
    found: Bools = (graph.value_op[reads] < 0).all(0) & (reads != reads[0]).any(0)
    return found


def shorten(graph: Graph, stretches: list[Stretch], num_groups: int) -> Shorter | None:
    """Returns a program in which each stretch has so many layers; None where there is none.

    There two ops would each read what follows from the other, or something else reads a layer's argument too: that
    would be two arguments, free to lie in two ways, as it would be where several layers read it.
    """
    stands = np.arange(graph.num_ops)
    kept, is_back = np.ones(graph.num_ops, dtype=bool), np.zeros(graph.num_ops, dtype=bool)
    group, argument_group = (
        np.full(number, OUTSIDE, dtype=np.int64) for number in (graph.num_ops, len(graph.arguments))
    )
    left_out = np.zeros(len(graph.arguments), dtype=bool)
    sizes: list[int] = []
    for stretch in stretches:
        edges = np.linspace(0, len(stretch.ops), num_groups + 1).round().astype(np.int64)
        first = edges[:-1][np.searchsorted(edges, np.arange(len(stretch.ops)), side="right") - 1]
        stands[stretch.ops] = stretch.ops[first]
        kept[stretch.ops] = False
        kept[stretch.ops[edges[:-1]]] = True
        group[stretch.ops[edges[:-1]]] = len(sizes) + np.arange(num_groups)[:, None]
        is_back[stretch.ops] = stretch.ops[1] < stretch.ops[0]
        sizes += np.diff(edges).tolist()
    uses = graph.uses.copy()
    for stretch in stretches:
        _read_of_groups(graph, stretch, group, uses)
        _arguments_of_groups(graph, stretch, group, left_out, argument_group)
    made = graph.value_op[uses]
    of_op = made >= 0
    if left_out[uses[np.repeat(kept, np.diff(graph.use_start)) & ~of_op]].any():
        return None
    uses[of_op] = uses[of_op] - graph.result_start[made[of_op]] + graph.result_start[stands[made[of_op]]]
    order = _in_order(graph, kept, uses)
    if order is None:
        return None
    maker = graph.value_op[list(graph.returns)]
    returned = tuple(np.flatnonzero((maker < 0) | kept[np.maximum(maker, 0)]).tolist())
    return Shorter(kept, order, uses, group, argument_group, tuple(sizes), is_back, returned)


def _read_of_groups(graph: Graph, stretch: Stretch, group: Ints, uses: Ints) -> None:
    """Writes into `uses` what the layers that stand for groups read, before others stand for its makers."""
    num_layers = len(stretch.ops)
    standing = [layer for layer in range(num_layers) if group[stretch.ops[layer, 0]] != OUTSIDE]
    for layer, behind in zip(standing, [*standing[1:], num_layers], strict=True):
        reads = stretch.reads[layer].copy()
        is_next = stretch.offset == 1
        reads[is_next] = stretch.reads[behind - 1][is_next]  # the standing layer is its group's first
        places = np.concatenate(
            [np.arange(graph.use_start[op], graph.use_start[op + 1]) for op in stretch.ops[layer].tolist()]
        )
        uses[places] = reads


def _arguments_of_groups(graph: Graph, stretch: Stretch, group: Ints, left_out: Bools, argument_group: Ints) -> None:
    """Writes whose the arguments are that not all layers read, and which are those of layers that are left out."""
    for row, reads in zip(stretch.ops, stretch.reads[:, _given_apart(graph, stretch.reads)], strict=True):
        left_out[reads] |= group[row[0]] == OUTSIDE
        argument_group[reads] = group[row[0]]


def _in_order(graph: Graph, kept: Bools, uses: Ints) -> tuple[int, ...] | None:
    """Returns the kept ops in program order, but for what is read by ones that stood before it.

    The result is None where there is no order.
    """
    makers = graph.value_op[uses].tolist()
    start = graph.use_start.tolist()
    found: dict[int, bool] = {}
    """Ops that are in the order, and those that wait for what they read (not True)."""
    for first in np.flatnonzero(kept).tolist():
        waiting = [first]
        while waiting:
            op = waiting[-1]
            if found.get(op):
                waiting.pop()
                continue
            unread = [maker for maker in makers[start[op] : start[op + 1]] if maker >= 0 and not found.get(maker)]
            if any(maker in found for maker in unread):
                return None
            if unread:
                found[op] = False
                waiting += reversed(unread)
            else:
                found.pop(op, None)
                found[op] = True
                waiting.pop()
    return tuple(found)
