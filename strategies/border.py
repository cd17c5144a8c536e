"""Where sums are accumulated: the smallest border between what makes partial sums and what needs them whole.

A partial sum flows on through ops that are linear in it, and each of these could as well run after the loop. So a border is a set of
partial values such that every way from where a sum arises to where it is needed passes one: a cut in the graph of partial values, whose
least is found by max-flow (each value an arc as wide as its elements; Ford and Fulkerson, 1956). An op on the far side has all of its
operands there or on the border. Adam needs the gradient squared: then the momentum's share of it is not accumulated as well. Two
contributions to one embedding are added first.

Among cuts of one size it takes the earliest: least work in the loop. Elements of 16 bits count half as much again, so that a sum that
the program widens later is widened first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
from ortools.graph.python import max_flow

from rhino.ir.graph import BARRIER, TensorType
from rhino.strategies.time_axis import APPLY, Phase, Propagation

_NARROW: Final = frozenset({"bf16", "f16"})


def settle_border(found: Propagation) -> None:
    """Moves into APPLY what can be computed from the least that has to be accumulated."""
    graph = found.graph
    partial = [value for value in range(graph.num_values) if found.lays[value].phase == Phase.LOOP and found.lays[value].is_partial]
    if not partial:
        return
    arcs = _Arcs({value: number for number, value in enumerate(partial)}, [_width(graph.type_of(value)) for value in partial])
    held = {op for loop in graph.loops for op in found.body(loop)} | found.loops.keys() | found.ends.keys()
    made_elsewhere = set(partial)
    for op in range(graph.num_ops):
        for value, result in _flows(found, op):
            if op in held:
                continue
            arcs.follows(value, result)
            made_elsewhere.discard(result)
        for value in set(_partial_operands(found, op)):
            if found.phases[op] == Phase.APPLY:
                arcs.needed(value)
            elif op in held:
                made_elsewhere.add(value)  # the loop reads its parts
    for value in graph.returns:
        if value in arcs.numbers:
            arcs.needed(value)
    for value in sorted(made_elsewhere):
        arcs.arises(value)
    near = arcs.near_side()
    for value in partial:
        op = int(graph.value_op[value])
        if value not in near:
            if graph.cls(op).name != BARRIER:
                found.settle(op, Phase.APPLY, None)
            found.lays[value] = APPLY


def _width(kind: TensorType) -> int:
    return prod(kind.shape) * (3 if kind.dtype in _NARROW else 2)


def _partial_operands(found: Propagation, op: int) -> list[int]:
    values = found.graph.operands(op).tolist()
    return [value for value in values if found.lays[value].phase == Phase.LOOP and found.lays[value].is_partial]


def _flows(found: Propagation, op: int) -> Iterator[tuple[int, int]]:
    """Yields which partial operand becomes which partial result, where an op hands sums on."""
    graph = found.graph
    results = graph.results(op)
    if graph.cls(op).name == BARRIER:
        pairs = zip(graph.operands(op).tolist(), results, strict=True)
        yield from ((value, result) for value, result in pairs if found.lays[result].is_partial and found.lays[result].phase == Phase.LOOP)
        return
    state = found.states[op]
    if state is not None and state.strategy[0] < -1:
        yield from ((value, result) for value in _partial_operands(found, op) for result in results)


class _Arcs:
    """The graph of partial values: each is an arc of its width, from a node of its own to another."""

    def __init__(self, numbers: dict[int, int], widths: list[int]) -> None:
        self.numbers, self.widths = numbers, widths
        self.source, self.sink = 2 * len(numbers), 2 * len(numbers) + 1
        self.endless: list[tuple[int, int]] = []

    def follows(self, value: int, result: int) -> None:
        before, after = self.numbers[value], self.numbers[result]
        self.endless.append((2 * before + 1, 2 * after))
        self.endless.append((2 * after, 2 * before))  # who computes the result in the loop has its operands there

    def needed(self, value: int) -> None:
        self.endless.append((2 * self.numbers[value] + 1, self.sink))

    def arises(self, value: int) -> None:
        self.endless.append((self.source, 2 * self.numbers[value]))

    def near_side(self) -> set[int]:
        """Returns the values that are computed in the loop."""
        flow = max_flow.SimpleMaxFlow()
        own = [(2 * number, 2 * number + 1) for number in range(len(self.widths))]
        tails, heads = np.array(own + self.endless, dtype=np.int32).T
        widths = np.array(self.widths + [sum(self.widths) + 1] * len(self.endless), dtype=np.int64)
        flow.add_arcs_with_capacity(tails, heads, widths)
        status = flow.solve(self.source, self.sink)
        assert status == flow.OPTIMAL, status
        near = set(flow.get_source_side_min_cut())
        return {value for value, number in self.numbers.items() if 2 * number in near}
