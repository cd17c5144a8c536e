"""Where sums are accumulated: the smallest border between what makes partial sums and what needs them whole.

A partial sum flows on through ops that are linear in it, and each of these could as well run after the loop. So a
border is a set of partial values such that every way from where a sum arises to where it is needed passes one: a cut in
the graph of partial values, whose least is found by max-flow (each value an arc as wide as its elements; Ford and
Fulkerson, 1956). An op on the far side has all of its operands there or on the border. Adam needs the gradient squared:
then the momentum's share of it is not accumulated as well. Two contributions to one embedding are added first.

Among cuts of one size it takes the earliest: least work in the loop. Elements of 16 bits count half as much again, so
that a sum that the program widens later is widened first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from math import prod
from typing import Final

import numpy as np

from rhino.ir.graph.graph import BARRIER, Graph, TensorType
from rhino.strategies.microbatch.time_axis import APPLY, Phase, Propagation

_NARROW: Final = frozenset({"bf16", "f16"})


def settle_border(found: Propagation) -> None:
    """Moves into APPLY what can be computed from the least that has to be accumulated."""
    graph = found.graph
    partial = [
        value
        for value in range(graph.num_values)
        if found.lays[value].phase == Phase.LOOP and found.lays[value].is_partial
    ]
    inside = _in_loops(graph)
    flows: list[tuple[int, int]] = []
    needed = {
        value for value in graph.returns if found.lays[value].phase == Phase.LOOP and found.lays[value].is_partial
    }
    in_loop = set(partial)
    for op in range(graph.num_ops):
        needed.update(_read_behind(found, op))
        if op not in inside:
            flows += _flows(found, op)
    in_loop -= {result for _, result in flows}
    for op in sorted(inside):
        if found.phases[op] != Phase.APPLY:
            in_loop.update(_partial_operands(found, op))  # a loop reads its parts
    near = near_side({value: _width(graph.type_of(value)) for value in partial}, flows, needed, in_loop)
    for value in partial:
        op = int(graph.value_op[value])
        if value not in near:
            if found.classes[op].name != BARRIER:
                found.settle(op, Phase.APPLY, None)
            found.lays[value] = APPLY


def settle_means(found: Propagation) -> None:
    """Moves into APPLY what follows from parts' own values, and is computed from their means.

    A gradient is joined before the update squares it, but after what the backward pass makes of several statistics: of
    what leads to a new state, a least border of values has its mean taken, the earliest of those of one size. A measure
    that leads to none is computed by each part, to its end.
    """
    graph = found.graph
    own = [value for value in range(graph.num_values) if found.lays[value].is_own]
    inside = _in_loops(graph)
    flows: list[tuple[int, int]] = []
    behind = {value for value in graph.returns if found.lays[value].is_own}
    in_loop = set[int]()
    for op in range(graph.num_ops):
        reads = [value for value in found.reads[op] if found.lays[value].is_own]
        if found.phases[op] == Phase.APPLY:
            behind.update(reads)
        elif op in inside or op in found.needed_own or not all(found.lays[value].is_own for value in found.gives[op]):
            in_loop.update(reads)
        else:
            flows += [(value, result) for value in reads for result in found.gives[op]]
    in_loop.update(set(own) - {result for _, result in flows})
    updating = _leading_to_state(graph)
    needed = {value for value in behind if value in updating}
    in_loop |= behind - needed
    near = near_side({value: _width(graph.type_of(value)) for value in own}, flows, needed, in_loop)
    for value in own:
        if value not in near:
            found.settle(int(graph.value_op[value]), Phase.APPLY, None)


def _in_loops(graph: Graph) -> set[int]:
    """Returns the ops of loops of the program: they, their bodies and their ends."""
    return {op for loop in graph.loops for op in range(loop.op, loop.end + 1)}


def _leading_to_state(graph: Graph) -> set[int]:
    """Returns the values that a new state follows from: a result that is carried, or any where none is."""
    found = {graph.returns[argument.alias] for argument in graph.arguments if argument.alias is not None}
    found = found or set(graph.returns)
    ends = {loop.end: loop for loop in graph.loops}
    for op in range(graph.num_ops - 1, -1, -1):
        results = graph.results(ends[op].op) if op in ends else graph.results(op)
        if any(value in found for value in results):
            found.update(graph.operands(op).tolist())
    return found


def _width(kind: TensorType) -> int:
    return prod(kind.shape) * (3 if kind.dtype in _NARROW else 2)


def _partial_operands(found: Propagation, op: int) -> list[int]:
    values = found.reads[op]
    return [value for value in values if found.lays[value].phase == Phase.LOOP and found.lays[value].is_partial]


def _read_behind(found: Propagation, op: int) -> list[int]:
    """Returns the partial values that an op reads whole; a barrier does where its result is."""
    if found.classes[op].name == BARRIER:
        pairs = zip(found.reads[op], found.gives[op], strict=True)
        behind = {value for value, result in pairs if found.lays[result].phase == Phase.APPLY}
        return [value for value in _partial_operands(found, op) if value in behind]
    return _partial_operands(found, op) if found.phases[op] == Phase.APPLY else []


def _flows(found: Propagation, op: int) -> Iterator[tuple[int, int]]:
    """Yields which partial operand becomes which partial result, where an op hands sums on."""
    results = found.gives[op]
    if found.classes[op].name == BARRIER:
        pairs = zip(found.reads[op], results, strict=True)
        yield from (
            (value, result)
            for value, result in pairs
            if found.lays[result].is_partial and found.lays[result].phase == Phase.LOOP
        )
        return
    state = found.states[op]
    if state is not None and state.strategy[0] < -1:
        yield from ((value, result) for value in _partial_operands(found, op) for result in results)


def near_side(
    widths: Mapping[int, int], flows: Sequence[tuple[int, int]], needed: Set[int], in_loop: Set[int]
) -> set[int]:
    """Returns which values to compute in the loop, so that those read behind it are as narrow as can be.

    `widths` has the width of every value, earlier ones first; each pair in `flows` is a value and one that is computed
    from it. `needed` are read behind the loop, `in_loop` are computed in it. What nobody needs stays where its operands
    are.
    """
    used = _leading_to(needed | in_loop, flows)
    numbers = {value: number for number, value in enumerate(value for value in widths if value in used)}
    source, sink = 2 * len(numbers), 2 * len(numbers) + 1
    endless = [(source, 2 * numbers[value]) for value in numbers if value in in_loop]
    endless += [(2 * numbers[value] + 1, sink) for value in numbers if value in needed]
    for value, result in flows:
        if result in numbers:
            endless.append((2 * numbers[value] + 1, 2 * numbers[result]))
            # who computes the result in the loop has its operands there
            endless.append((2 * numbers[result], 2 * numbers[value]))
    own = [(2 * number, 2 * number + 1) for number in numbers.values()]
    near = _reached(own + endless, [widths[value] for value in numbers], source, sink) if needed else set(range(source))
    found = {value for value, number in numbers.items() if 2 * number in near}
    origins: dict[int, list[int]] = {}
    for value, result in flows:
        origins.setdefault(result, []).append(value)
    for value in widths:
        if value not in numbers and all(origin in found for origin in origins.get(value, ())):
            found.add(value)
    return found


def _leading_to(ends: Set[int], flows: Sequence[tuple[int, int]]) -> set[int]:
    found = set(ends)
    for value, result in sorted(flows, key=lambda flow: flow[1], reverse=True):
        if result in found:
            found.add(value)
    return found


def _reached(arcs: Sequence[tuple[int, int]], own: Sequence[int], source: int, sink: int) -> set[int]:
    """Returns the nodes on the source's side of a least cut, as few as can be.

    Arcs but the first are as wide as all of those together.
    """
    from ortools.graph.python import max_flow  # noqa: PLC0415 - slow to load, and only cuts need it

    flow = max_flow.SimpleMaxFlow()
    tails, heads = np.array(arcs, dtype=np.int32).T
    widths = np.array([*own, *[sum(own) + 1] * (len(arcs) - len(own))], dtype=np.int64)
    flow.add_arcs_with_capacity(tails, heads, widths)
    status = flow.solve(source, sink)
    assert status == flow.OPTIMAL, status
    return set(flow.get_source_side_min_cut())
