"""What mixed precision has to know of a step: parameters, moments, products, what leads to products, and sums.

Parameters are f32 arguments that the step updates: whose buffers results take over, or where none are, those of a
result's type. Moments are updated arguments on which only other updated arguments depend: what follows from them is the
update. A sum of a loop starts from a constant, and each iteration adds to it, or does other arithmetic on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rhino.ir.graph.graph import BARRIER, WHILE, Graph
from rhino.strategies.precision.op_kinds import Kind, kind_of_op

WIDE_TYPE: Final = "f32"
"""The type that is made narrower."""

SUMS: Final = frozenset({"stablehlo.add", "stablehlo.subtract"})
_MULTIPLY: Final = "stablehlo.multiply"

_POLYNOMIAL: Final = 3
"""A chain of so many products and sums with constants is a polynomial.

Activation functions are written with two at most (GELU: x + c x**3); expansions of erf and the like take five and more.
"""


@dataclass(frozen=True, slots=True)
class Given:
    """What a graph does not say of its program.

    `exact` are the products for which the program asks for more than the default precision. `large` are constants that
    16 bits do not hold, and what a loop's condition reads. With `narrow_sums` results of products are in 16 bits where
    no other product follows, too. With `scales` the backward pass is scaled.
    """

    exact: frozenset[int] = frozenset()
    large: frozenset[int] = frozenset()
    narrow_sums: bool = False
    scales: bool = False


class StepFacts:
    """A graph, and what its ops and values are for mixed precision.

    Lists are by op or by value. `tensors` says which values are f32 and have dims: a scalar is of any width. `leads`
    says which values lead to a product in 16 bits, `data` which follow from arguments that are no parameters, but for
    numbers. `states` are what loops over several steps carry. `products` compute in 16 bits; `kept` are the others,
    with the reason.
    """

    def __init__(self, graph: Graph, given: Given) -> None:
        self.graph, self.given = graph, given
        self.names = [graph.cls(op).name for op in range(graph.num_ops)]
        self.kinds = [kind_of_op(name) for name in self.names]
        self.operands: list[list[int]] = [graph.operands(op).tolist() for op in range(graph.num_ops)]
        types = [graph.type_of(value) for value in range(graph.num_values)]
        self.is_wide_type = [kind.dtype == WIDE_TYPE for kind in types]
        self.has_dims = [bool(kind.shape) for kind in types]
        self.tensors = [a and b for a, b in zip(self.is_wide_type, self.has_dims, strict=True)]
        self.loop_of_end = {loop.end: loop for loop in graph.loops}
        self.constant = [maker >= 0 and graph.cls(maker).free for maker in graph.value_op.tolist()]
        self.states = self._states()
        self.parameters, moments = self._arguments()
        self.products, self.kept = self._products(moments)
        self.leads = self.leading(value for op in self.products for value in self.operands[op])
        arguments = range(len(graph.arguments))
        read = {number for number in arguments if number not in self.parameters and self.has_dims[number]}
        self.data = self.following(read, lambda value: self.has_dims[value])
        self.sums = frozenset(value for loop in graph.loops for value in self._sums(loop.op, loop.end))
        self.polynomials = self._polynomials()

    def forwards_operands(self, op: int) -> bool:
        """Says whether an op passes on each operand by itself: a loop, its end, or a barrier."""
        return self.names[op] in (WHILE, BARRIER) or op in self.loop_of_end

    def edges(self, op: int) -> Iterator[tuple[int, int]]:
        """Yields what follows from what at an op: a loop's value of each iteration from that of the one before."""
        results = self.graph.results(self.loop_of_end[op].op if op in self.loop_of_end else op)
        if self.forwards_operands(op):
            yield from zip(self.operands[op], results, strict=True)
        else:
            for result in results:
                for value in self.operands[op]:
                    yield value, result

    def leading(self, targets: Iterable[int]) -> list[bool]:
        """Returns which values lead to one of these in one step, or are one [values]."""
        found = self._marked(targets)

        def visit(op: int) -> None:
            is_end = op in self.loop_of_end
            for value, result in self.edges(op):
                if not is_end or result not in self.states:
                    found[value] |= found[result]

        self.until_settled(found, visit, reverse=True)
        return found

    def following(
        self, sources: Iterable[int], keeps: Callable[[int], bool] = lambda _: True, *, in_one_step: bool = False
    ) -> list[bool]:
        """Returns which values follow from one of these through values that `keeps` takes, or are one [values].

        With `in_one_step` nothing follows from what a loop over steps has updated in the step before.
        """
        found = self._marked(sources)

        def visit(op: int) -> None:
            is_end = in_one_step and op in self.loop_of_end
            for value, result in self.edges(op):
                if not is_end or result not in self.states:
                    found[result] |= found[value] and keeps(result)

        self.until_settled(found, visit)
        return found

    def until_settled(
        self, found: list[bool] | list[int], visit: Callable[[int], None], *, reverse: bool = False, again: bool = False
    ) -> None:
        """Visits all ops in order, until nothing changes in `found` where there are loops, or with `again`."""
        order = range(self.graph.num_ops)
        while True:
            before = [*found]
            for op in reversed(order) if reverse else order:
                visit(op)
            if not (self.graph.loops or again) or before == found:
                return

    def _marked(self, values: Iterable[int]) -> list[bool]:
        found = [False] * self.graph.num_values
        for value in values:
            found[value] = True
        return found

    def _states(self) -> frozenset[int]:
        """Returns what loops over steps carry from step to step: what starts as an argument that is updated."""
        arguments = self.graph.arguments
        return frozenset(
            result
            for loop in self.graph.loops
            for value, result in self.edges(loop.op)
            if value < len(arguments) and arguments[value].alias is not None
        )

    def _arguments(self) -> tuple[frozenset[int], frozenset[int]]:
        """Returns the parameters and the moments."""
        graph = self.graph
        floats = [number for number in range(len(graph.arguments)) if self.is_wide_type[number]]
        updated = [number for number in floats if graph.arguments[number].alias is not None]
        taken = {argument.alias for argument in graph.arguments}
        others = [value for at, value in enumerate(graph.returns) if at not in taken and self.is_wide_type[value]]
        if not updated:
            types = {int(graph.value_type[value]) for value in graph.returns}
            return frozenset(number for number in floats if int(graph.value_type[number]) in types), frozenset()
        reaches = self.leading(others)
        moments = {number for number in updated if others and not reaches[number]}
        return frozenset(set(updated) - moments), frozenset(moments)

    def _products(self, moments: Iterable[int]) -> tuple[tuple[int, ...], dict[int, str]]:
        """Returns the products to compute in 16 bits, and the others with the reason."""
        updating = self.following(moments, in_one_step=True)
        found, kept = [], {}
        for op, kind in enumerate(self.kinds):
            read, results = self.operands[op], self.graph.results(op)
            if kind != Kind.PRODUCT or not all(self.is_wide_type[value] for value in (*read, *results)):
                continue
            if op in self.given.exact:
                kept[op] = "the program asks for more than the default precision"
            elif not any(self.has_dims[value] for value in results):
                kept[op] = "it is a sum: its result is one number"
            elif any(updating[value] for value in read):
                kept[op] = "it updates parameters"
            else:
                found.append(op)
        return tuple(found), kept

    def _sums(self, begin: int, end: int) -> Iterator[int]:
        """Yields what a loop carries that starts from constants, and to which an iteration adds.

        Each carried value is followed, by a bit of its own, through copies, and behind arithmetic.
        """
        results = self.graph.results(begin)
        starts = zip(results, self.operands[begin], strict=True)
        bits = {
            value: 1 << value - results.start for value, start in starts if self.tensors[value] and self.constant[start]
        }
        copied, added = dict(bits), dict[int, int]()
        through = [
            op
            for op in range(begin + 1, end)
            if self.kinds[op] in (Kind.COPY, Kind.ARITHMETIC) or self.forwards_operands(op)
        ]
        for op in through * 2:  # again for loops inside
            for value, result in self.edges(op):
                own = copied.get(value, 0)
                copied[result] = copied.get(result, 0) | own
                added[result] = added.get(result, 0) | added.get(value, 0)
                added[result] |= own if self.kinds[op] == Kind.ARITHMETIC else 0
        for value, following in zip(results, self.operands[end], strict=True):
            if added.get(following, 0) & bits.get(value, 0):
                yield value

    def _polynomials(self) -> frozenset[int]:
        """Returns the ops that evaluate polynomials by Horner's scheme, from the third product and sum on.

        What comes before is read by these alone, and so computes as they do.
        """
        degree, multiplied = [0] * self.graph.num_values, [0] * self.graph.num_values
        found = set()
        for op, name in enumerate(self.names):
            read = self.operands[op]
            if name == _MULTIPLY:
                multiplied[self.graph.results(op)[0]] = 1 + max(degree[value] for value in read)
            elif name in SUMS and any(self.constant[value] for value in read):
                reached = max(multiplied[value] for value in read)
                degree[self.graph.results(op)[0]] = reached
                if reached >= _POLYNOMIAL:
                    found.add(op)
        return frozenset(found)
