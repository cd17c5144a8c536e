"""Ops that compilers compute both into memory and inside kernels: what they read then stays in memory, too.

Where somebody reads a value from memory, as a gather, a collective or a loop does, it is there; kernels could read it
there as well. But XLA (`InstructionFusion`) computes an op again in each kernel that reads it, where the op reads no
more than one tensor of its result's rank, for a kernel then reads no more tensors than before. So logits that are
converted to f32 lie in memory in f32 until those of the labels are looked up, and as the product gave them until the
last kernel has read them.

In the graph such an op is written twice: the first result is what lies in memory, the second what kernels read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, ranges
from rhino.ir.graph.graph import REPEATS, Graph
from rhino.strategies.cost.target import Fusion
from rhino.strategies.memory.fusion import is_cheap, takes_in

_MOST_TENSORS: Final = 1
"""How many operands of its result's rank an op has that is duplicated (`EffectivelyAtMostUnary`)."""


def with_duplicates(graph: Graph, fusion: Fusion) -> Graph:
    """Returns the graph with those ops written twice that are computed into memory and in kernels.

    That is for a target that fuses "products". XLA:GPU computes an op in all kernels that read it, or in none.
    """
    if fusion != "products":
        return graph
    inside = _taken_in(graph, fusion)
    twice = _written_twice(graph, fusion, inside)
    return _duplicated(graph, twice, inside) if twice.any() else graph


def _taken_in(graph: Graph, fusion: Fusion) -> Bools:
    """Returns which uses may be computed inside the kernel that reads them [uses]."""
    of_class = [[takes_in(cls, place, fusion) for place in range(len(cls.operands))] for cls in graph.classes]
    return np.array([taken for number in graph.op_class.tolist() for taken in of_class[number]], dtype=bool)


def _written_twice(graph: Graph, fusion: Fusion, inside: Bools) -> Bools:
    """Returns which ops are computed into memory for some readers, and again in the kernels of others [ops]."""
    in_kernels, from_memory, twice = (np.zeros(size, dtype=bool) for size in (*[graph.num_values] * 2, graph.num_ops))
    in_kernels[graph.uses[inside]] = True
    from_memory[graph.uses[~inside]] = True
    from_memory[list(graph.returns)] = True
    makers = graph.value_op[in_kernels & from_memory]
    twice[[op for op in makers[makers >= 0].tolist() if _is_at_most_unary(graph, op, fusion)]] = True
    return twice


def _is_at_most_unary(graph: Graph, op: int, fusion: Fusion) -> bool:
    """Says whether an op is cheap, computed element by element, and reads at most one tensor of its result's rank."""
    cls = graph.cls(op)
    if not cls.fusible or cls.free or cls.is_view or len(cls.results) != 1 or not is_cheap(cls.name, fusion):
        return False
    rank = _rank(cls.results[0].shape)
    read = [v for v, kind in zip(graph.operands(op).tolist(), cls.operands, strict=True) if _rank(kind.shape) >= rank]
    return len([value for value in read if not _is_repeated_or_free(graph, value)]) <= _MOST_TENSORS


def _rank(shape: tuple[int, ...]) -> int:
    return sum(extent > 1 for extent in shape)


def _is_repeated_or_free(graph: Graph, value: int) -> bool:
    op = int(graph.value_op[value])
    return op >= 0 and (graph.cls(op).free or graph.cls(op).name in REPEATS)


def _duplicated(graph: Graph, twice: Bools, inside: Bools) -> Graph:
    """Returns the graph with ops written `twice` [ops], of whose results kernels read the second [uses]."""
    times = 1 + twice.astype(np.int64)
    source = np.repeat(np.arange(graph.num_ops), times)  # the op that each op is
    place = np.cumsum(times) - times
    num_operands, num_results = (np.diff(start)[source] for start in (graph.use_start, graph.result_start))
    result_start = len(graph.arguments) + np.concatenate(([0], np.cumsum(num_results)))
    values = np.concatenate((np.arange(len(graph.arguments)), ranges(graph.result_start[source], num_results)))
    maker = np.concatenate((np.full(len(graph.arguments), -1), np.repeat(np.arange(len(source)), num_results)))
    first, second = np.zeros(graph.num_values, dtype=np.int64), np.zeros(graph.num_values, dtype=np.int64)
    second[values] = np.arange(len(values))  # the last that stands for a value
    first[values[::-1]] = np.arange(len(values))[::-1]
    used = ranges(graph.use_start[source], num_operands)
    repeats = graph.repeats
    return replace(
        graph,
        op_class=graph.op_class[source],
        use_start=np.concatenate(([0], np.cumsum(num_operands))),
        uses=np.where(inside[used], second[graph.uses[used]], first[graph.uses[used]]),
        result_start=result_start,
        value_type=graph.value_type[values],
        value_op=maker,
        returns=tuple(first[list(graph.returns)].tolist()),
        fixed={int(first[value]): specs for value, specs in graph.fixed.items()},
        loops=tuple([replace(loop, op=int(place[loop.op]), end=int(place[loop.end])) for loop in graph.loops]),
        zeros=frozenset(first[sorted(graph.zeros)].tolist()),
        choices={int(place[op]): choices for op, choices in graph.choices.items()},
        repeats=repeats
        and replace(repeats, times=repeats.times[source], copies=repeats.copies[values], run=repeats.run[source]),
    )
