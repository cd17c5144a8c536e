"""What an axis is for, taken from the graph alone: no name and no position of a dim says that it is the batch.

A *batch dim* is a dim of an argument that a step only reads (its inputs), or any dim that one of those becomes, if it
nowhere becomes or meets a dim of an argument that is carried from step to step (parameters and what the optimizer
keeps, whose buffers results take over). Dims become each other where a factor of an op's rule leads both; as loops and
barriers pass values on, so do they their dims. What depends on constants alone ties nothing: it is computed for each
reader. A sequence is a batch dim in this sense too, unless something carried has it (learned positions, say).

    "batch"   along the axis an op that has a batch factor is split by one or runs whole; what has a batch dim is split
              by one, or not. Ops and tensors without are free: that is how parameters, their gradients and updates
              may be split.
    "model"   along the axis no batch factor and no batch dim is split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from copy import copy

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import BARRIER, Graph
from rhino.ir.graph.rules import Mapping, Rule
from rhino.ir.graph.spec import Spec, entry, split_dim
from rhino.strategies.solver.connected_components import components


class Roles:
    """Which dims and factors of a graph are of the batch, and what the roles of axes make of that."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.start = np.concatenate(
            [[0], np.cumsum([len(graph.type_of(value).shape) for value in range(graph.num_values)])]
        ).tolist()
        self.leading: dict[int, list[list[tuple[int, int]]]] = {}
        """By class of ops: which factor leads each dim that has one, for each operand and each result."""
        made_by = [graph.cls(op).free for op in range(graph.num_ops)]
        self.is_free = [op >= 0 and made_by[op] for op in graph.value_op.tolist()]
        joined: list[Sequence[int]] = []
        for op in range(graph.num_ops):
            cls = graph.cls(op)
            if cls.rule is not None:
                joined += self.places(op, cls.rule)
            if cls.name == BARRIER:
                joined += self._across(graph.operands(op), graph.results(op))
        for loop in graph.loops:
            joined += self._across(graph.operands(loop.op), graph.results(loop.op), graph.operands(loop.end))
        self.group = components(self.start[-1], [(dims[0], other) for dims in joined for other in dims[1:]]).tolist()
        """Of every dim a number that it shares with the dims that it becomes or comes from."""
        inputs, carried = (
            {
                self.group[dim]
                for number, a in enumerate(graph.arguments)
                if (a.alias is None) == reads
                for dim in self.dims(number)
            }
            for reads in (True, False)
        )
        self._take(inputs - carried)

    def of_groups(self, batch: AbstractSet[int]) -> Roles:
        """Returns the same with these groups of dims for the batch."""
        other = copy(self)
        other._take(batch)
        return other

    def _take(self, batch: AbstractSet[int]) -> None:
        self.is_batch = [group in batch for group in self.group]

    def _across(self, *sides: Ints | range) -> Iterator[tuple[int, ...]]:
        """Yields the dims that become each other where values are passed on, from each side to the next."""
        for values in zip(*sides, strict=True):
            yield from zip(*(self.dims(int(value)) for value in values if not self.is_free[value]), strict=True)

    def dims(self, value: int) -> range:
        """Returns the dims of a value, among those of all values."""
        return range(self.start[value], self.start[value + 1])

    def batch_dims(self, value: int) -> frozenset[int]:
        """Returns which dims of a value are of the batch."""
        return frozenset(number for number, dim in enumerate(self.dims(value)) if self.is_batch[dim])

    def batch_factors(self, op: int) -> frozenset[int]:
        """Returns which factors of an op are of the batch."""
        rule = self.graph.cls(op).rule
        places = self.places(op, rule) if rule is not None else []
        return frozenset(factor for factor, dims in enumerate(places) if any(self.is_batch[dim] for dim in dims))

    def places(self, op: int, rule: Rule) -> list[list[int]]:
        """Returns for each factor of an op the dims that it leads, among those of all values [factors]."""
        found: list[list[int]] = [[] for _ in rule.sizes]
        kind = int(self.graph.op_class[op])
        if kind not in self.leading:
            self.leading[kind] = [_leading(mapping, rule) for side in (rule.operands, rule.results) for mapping in side]
        operands = self.graph.operands(op).tolist()[: len(rule.operands)]
        for value, leading in zip((*operands, *self.graph.results(op)), self.leading[kind], strict=False):
            if not self.is_free[value]:
                for number, factor in leading:
                    found[factor].append(self.start[value] + number)
        return found

    def allows_strategy(self, strategy: Sequence[int], batch_factors: frozenset[int]) -> bool:
        """Says whether an op with these batch factors may run so."""
        return all(
            choice < 0 or _allowed(role, choice in batch_factors, bool(batch_factors))
            for role, choice in zip(self.graph.roles, strategy, strict=True)
        )

    def allows_spec(self, spec: Spec, batch_dims: frozenset[int]) -> bool:
        """Says whether a value with these batch dims may be stored so."""
        split = [(role, split_dim(entry(spec, axis))) for axis, role in enumerate(self.graph.roles)]
        return all(dim is None or _allowed(role, dim in batch_dims, bool(batch_dims)) for role, dim in split)


def _leading(mapping: Mapping, rule: Rule) -> list[tuple[int, int]]:
    """Returns the dims of a tensor that a factor of more than one element leads, each with that factor."""
    found = [
        (number, next((factor for factor in factors if rule.sizes[factor] > 1), None))
        for number, factors in enumerate(mapping)
    ]
    return [(number, factor) for number, factor in found if factor is not None]


def _allowed(role: str, is_batch: bool, has_batch: bool) -> bool:
    match role:
        case "batch":
            return is_batch or not has_batch
        case "model":
            return not is_batch
    return True
