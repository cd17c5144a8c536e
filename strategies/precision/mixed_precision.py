"""Decide which ops of a step in f32 compute in 16 bits, and which values are stored in them.

Every f32 tensor has a width. Parameters are arguments that the step updates; they and constants are of no width of
their own: they are read in what the op that reads them computes in. Widths are found along the program:

- Products (`op_kinds.py`) read 16 bits. Their results are of 16 bits where other products follow from them. Where none
  does, as from the gradient of a weight, results are the sums themselves, in f32.
- Copies and arithmetic take the widest of what they read. So an element-wise chain that starts at products stays in 16
  bits, and one that starts at statistics, or at data of the user's, stays in f32.
- All else computes in f32. So do polynomials, which expand functions like erf: their errors add up (`_polynomials`).
- What a product reads, also through copies, is stored in 16 bits for all its readers.
- So is what the backward pass reads of the forward pass, if it has memory of its own: activations are stashed in 16
  bits. Statistics, which are sums and what follows from sums alone, are small, and stay.
- What one op alone reads, in f32, is computed in f32: it is part of what that op does.
- A loop's sum over its iterations stays in f32: it starts from a constant and adds to itself.

Arithmetic that leads to no product is in f32: losses, what is done to gradients of parameters, and the update.
Products of the update (those that follow from moments: updated arguments on which nothing but other updated arguments
depends) stay in f32. Parameters are converted where they are read; copies of theirs that leave nothing out are made of
the converted parameter, so that what is gathered or transposed is in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools
from rhino.ir.graph.graph import BARRIER, REPEATS, WHILE, YIELD, Graph, materialized
from rhino.strategies.pipeline.activation_stash import Handing
from rhino.strategies.precision.op_kinds import Kind, kind_of_op
from rhino.strategies.structure.training_phases import parts_of

WIDE_TYPE: Final = "f32"
"""The type that is made narrower."""

_CONVERT: Final = "stablehlo.convert"
_SOURCES: Final = frozenset({"stablehlo.constant", "stablehlo.iota"})
_NO_WORK: Final = frozenset({WHILE, YIELD, _CONVERT})
_PARTS: Final = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
"""Copies of a part: before them there is more to convert than after them."""

_SUMS: Final = frozenset({"stablehlo.add", "stablehlo.subtract"})
_MULTIPLY: Final = "stablehlo.multiply"

_POLYNOMIAL: Final = 3
"""A chain of so many products and sums with constants is a polynomial: activation functions are written with two at
most (x + c x**3 in GELU's tangent), expansions of erf and the like take five and more."""


class Width(IntEnum):
    """How wide a value is, from what has no say to what decides."""

    CONSTANT = 0
    PARAMETER = 1
    NARROW = 2
    WIDE = 3


@dataclass(frozen=True, slots=True)
class Given:
    """What a graph does not say of its program.

    `exact` are the products for which the program asks for more than the default precision. `large` are constants that
    16 bits do not hold, and what a loop's condition reads. With `narrow_sums` results of products are in 16 bits where
    no other product follows, too.
    """

    exact: frozenset[int] = frozenset()
    large: frozenset[int] = frozenset()
    narrow_sums: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Precision:
    """What computes and is stored in 16 bits.

    Shapes: `computes` [ops], `stored` [values]. `products` are the ops of that kind in 16 bits, `kept` the others, with
    the reason. `stashed` are the values that are rounded only because the backward pass reads them.
    """

    graph: Graph
    computes: Bools
    stored: Bools
    products: tuple[int, ...]
    kept: dict[int, str]
    stashed: tuple[int, ...]

    def reads(self, op: int, position: int) -> bool:
        """Says whether an op reads an f32 operand in 16 bits."""
        return _reads(self.graph, self.computes, self.stored, op, position)

    def wide(self) -> Iterator[int]:
        """Yields the ops that compute f32 tensors of more than parameters and constants in f32, for what they do."""
        for op in range(self.graph.num_ops):
            name = self.graph.cls(op).name
            tensors = map(self.graph.type_of, (*self.graph.operands(op).tolist(), *self.graph.results(op)))
            is_wide = name not in _NO_WORK and kind_of_op(name) == Kind.WIDE and not self.graph.cls(op).free
            if is_wide and any(kind.dtype == WIDE_TYPE and kind.shape for kind in tensors):
                yield op


def assign(graph: Graph, given: Given) -> Precision:
    """Returns the precision of every op and value of a graph."""
    return _Assignment(graph, given).run()


def _reads(graph: Graph, computes: Bools, stored: Bools, op: int, position: int) -> bool:
    name = graph.cls(op).name
    if name in (WHILE, BARRIER):
        return bool(stored[graph.results(op)[position]])
    if name == YIELD:
        loop = next(loop for loop in graph.loops if loop.end == op)
        return bool(stored[graph.results(loop.op)[position]])
    return bool(computes[op])


class _Assignment:
    def __init__(self, graph: Graph, given: Given) -> None:
        self.graph, self.given = graph, given
        self.names = [cls.name for cls in (graph.cls(op) for op in range(graph.num_ops))]
        self.kinds = [kind_of_op(name) for name in self.names]
        self.operands = [graph.operands(op).tolist() for op in range(graph.num_ops)]
        self.is_wide_type = [graph.type_of(value).dtype == WIDE_TYPE for value in range(graph.num_values)]
        self.has_dims = [bool(graph.type_of(value).shape) for value in range(graph.num_values)]
        self.loop_of_end = {loop.end: loop for loop in graph.loops}
        self.parameters, self.moments = self._arguments()
        self.products, self.kept = self._products()
        self.leads = self._leading({value for op in self.products for value in self.operands[op]})
        self.data = self._following(
            {
                number
                for number in range(len(graph.arguments))
                if number not in self.parameters and self.has_dims[number]
            },
            lambda value: self.has_dims[value],
        )
        self.sums = self._sums()
        self.polynomials = self._polynomials()

    def run(self) -> Precision:
        graph = self.graph
        rounded = self._rounded({value for op in self.products for value in self.operands[op]})
        widths = self._widths(rounded)
        stashed = self._stashed(widths) - rounded if self.parameters else set()
        if stashed:
            rounded |= self._rounded(stashed)
            widths = self._widths(rounded)
        stored = np.array([self._is_narrow(widths, value) for value in range(graph.num_values)], dtype=bool)
        found = np.array(widths, dtype=np.int8)
        computes = np.array([self._computes(found, stored, op) for op in range(graph.num_ops)], dtype=bool)
        uses = self._uses()
        self._widen(rounded, uses, computes, stored)
        self._convert_early(widths, uses, computes, stored)
        kept_in_16 = tuple(sorted(value for value in stashed if stored[value]))
        return Precision(graph, computes, stored, tuple(self.products), self.kept, kept_in_16)

    # What the program is made of

    def _arguments(self) -> tuple[frozenset[int], frozenset[int]]:
        """Returns the parameters and the moments; without donated buffers, parameters are told by results' types."""
        graph = self.graph
        tensors = [number for number in range(len(graph.arguments)) if self.is_wide_type[number]]
        updated = [number for number in tensors if graph.arguments[number].alias is not None]
        if not updated:
            types = {int(graph.value_type[value]) for value in graph.returns}
            updated = [number for number in tensors if int(graph.value_type[number]) in types]
        taken = {argument.alias for argument in graph.arguments}
        others = {value for at, value in enumerate(graph.returns) if at not in taken and self.is_wide_type[value]}
        reaches = self._leading(others)
        moments = {number for number in updated if others and len(taken) > 1 and not reaches[number]}
        return frozenset(set(updated) - moments), frozenset(moments)

    def _products(self) -> tuple[list[int], dict[int, str]]:
        """Returns the products to compute in 16 bits, and the others with the reason."""
        graph = self.graph
        updating = self._following(self.moments, lambda _: True)
        found, kept = [], {}
        for op, kind in enumerate(self.kinds):
            if kind != Kind.PRODUCT or not self._is_in_f32(op):
                continue
            if op in self.given.exact:
                kept[op] = "the program asks for more than the default precision"
            elif not any(self.has_dims[value] for value in graph.results(op)):
                kept[op] = "it is a sum: its result is one number"
            elif any(updating[value] for value in self.operands[op]):
                kept[op] = "it updates parameters"
            else:
                found.append(op)
        return found, kept

    def _is_in_f32(self, op: int) -> bool:
        return all(self.is_wide_type[value] for value in (*self.operands[op], *self.graph.results(op)))

    def _edges(self, op: int) -> Iterable[tuple[int, int]]:
        """Yields what follows from what at an op: a loop's value of each iteration from that of the one before."""
        if self.names[op] in (WHILE, BARRIER):
            yield from zip(self.operands[op], self.graph.results(op), strict=True)
        elif op in self.loop_of_end:
            yield from zip(self.operands[op], self.graph.results(self.loop_of_end[op].op), strict=True)
        else:
            for result in self.graph.results(op):
                for value in self.operands[op]:
                    yield value, result

    def _leading(self, targets: Iterable[int]) -> Bools:
        """Returns which values lead to one of these, or are one [values]."""
        found = np.zeros(self.graph.num_values, dtype=bool)
        found[list(targets)] = True

        def visit(op: int) -> None:
            for value, result in self._edges(op):
                found[value] |= found[result]

        self._until_settled(found, visit, reverse=True)
        return found

    def _following(self, sources: Iterable[int], keeps: Callable[[int], bool]) -> Bools:
        """Returns which values follow from one of these through values that `keeps` takes, or are one [values]."""
        found = np.zeros(self.graph.num_values, dtype=bool)
        found[list(sources)] = True

        def visit(op: int) -> None:
            for value, result in self._edges(op):
                found[result] |= found[value] and keeps(result)

        self._until_settled(found, visit)
        return found

    def _until_settled(
        self, found: np.ndarray, visit: Callable[[int], None], *, reverse: bool = False, is_two_way: bool = False
    ) -> None:
        """Visits all ops in order until nothing changes, as loops need; once where nothing goes against the order."""
        order = range(self.graph.num_ops - 1, -1, -1) if reverse else range(self.graph.num_ops)
        while True:
            before = found.copy()
            for op in order:
                visit(op)
            if not (self.graph.loops or is_two_way) or np.array_equal(before, found):
                return

    def _sums(self) -> frozenset[int]:
        """Returns what loops carry that starts from constants, and to which an iteration adds.

        Each carried value is followed, by a bit of its own, through copies, and behind arithmetic.
        """
        graph, constant = self.graph, self._constants()
        found = set[int]()
        for loop in graph.loops:
            carried = [
                value
                for value, start in zip(graph.results(loop.op), self.operands[loop.op], strict=True)
                if self.is_wide_type[value] and self.has_dims[value] and constant[start]
            ]
            copied = {value: 1 << bit for bit, value in enumerate(carried)}
            added: dict[int, int] = {}
            for _ in range(2):  # again for loops inside
                for op in range(loop.op + 1, loop.end):
                    if (
                        self.kinds[op] in (Kind.COPY, Kind.ARITHMETIC)
                        or self.names[op] == WHILE
                        or op in self.loop_of_end
                    ):
                        for value, result in self._edges(op):
                            own = copied.get(value, 0)
                            copied[result] = copied.get(result, 0) | own
                            added[result] = added.get(result, 0) | added.get(value, 0)
                            if self.kinds[op] == Kind.ARITHMETIC:
                                added[result] |= own
            for value, following in zip(graph.results(loop.op), self.operands[loop.end], strict=True):
                if value in carried and added.get(following, 0) >> carried.index(value) & 1:
                    found.add(value)
        return frozenset(found)

    def _constants(self) -> Bools:
        """Returns which values depend on constants alone [values]."""
        found = np.zeros(self.graph.num_values, dtype=bool)
        for op in range(self.graph.num_ops):
            found[list(self.graph.results(op))] = self.graph.cls(op).free
        return found

    def _polynomials(self) -> frozenset[int]:
        """Returns the ops that evaluate polynomials by Horner's scheme, from the third product and sum on.

        What comes before is read by these alone, and so computes as they do.
        """
        constant = self._constants()
        degree = [0] * self.graph.num_values
        after_product = [0] * self.graph.num_values
        found = set()
        for op, name in enumerate(self.names):
            if name == _MULTIPLY:
                after_product[self.graph.results(op)[0]] = 1 + max(degree[value] for value in self.operands[op])
            elif name in _SUMS and any(constant[value] for value in self.operands[op]):
                reached = max(after_product[value] for value in self.operands[op])
                degree[self.graph.results(op)[0]] = reached
                if reached >= _POLYNOMIAL:
                    found.add(op)
        return frozenset(found)

    # Widths

    def _widths(self, rounded: set[int]) -> list[Width]:
        """Returns the width of every value; of those that are no f32 tensors it means nothing."""
        graph = self.graph
        found = np.zeros(graph.num_values, dtype=np.int8)
        for number in range(len(graph.arguments)):
            if self.is_wide_type[number] and self.has_dims[number]:
                found[number] = Width.PARAMETER if number in self.parameters else Width.WIDE

        def settle(value: int, width: int) -> None:
            if not self.is_wide_type[value] or not self.has_dims[value]:
                return
            if value in rounded and width > Width.NARROW:
                width = Width.NARROW
            found[value] = max(int(found[value]), Width.WIDE if value in self.given.large else width)

        def visit(op: int) -> None:
            if self.names[op] in (WHILE, BARRIER) or op in self.loop_of_end:
                for value, result in self._edges(op):
                    width = int(found[value])
                    is_added = result in self.sums and op in self.loop_of_end and width >= Width.NARROW
                    settle(result, Width.WIDE if is_added else width)
                    self._strengthen(found, value, Width(found[result]), result)
            else:
                width = self._width(found, op)
                for result in graph.results(op):
                    settle(result, self._of_product(result) if op in self._in_16 else width)
                if self.kinds[op] in (Kind.COPY, Kind.ARITHMETIC):
                    for value, result in self._edges(op):
                        self._strengthen(found, value, max(width, Width(found[result])), result)

        self._in_16 = frozenset(self.products)
        self._until_settled(found, visit, is_two_way=True)
        return [Width(width) for width in found.tolist()]

    def _strengthen(self, found: np.ndarray, value: int, width: Width, result: int) -> None:
        """Makes a parameter that an op joins to something in f32 one in f32, also where the backward pass reads it.

        Such are the scales of normalizations; what only updates parameters says nothing about how they are used.
        """
        if found[value] == Width.PARAMETER and width == Width.WIDE and self.leads[result]:
            found[value] = Width.WIDE

    def _of_product(self, result: int) -> Width:
        return Width.NARROW if self.leads[result] or self.given.narrow_sums else Width.WIDE

    def _width(self, found: np.ndarray, op: int) -> Width:
        """Returns the width of what an op computes, but for a product in 16 bits."""
        tensors = [value for value in self.operands[op] if self.has_dims[value]]
        read = [Width(found[value]) for value in tensors if self.is_wide_type[value]]
        others = [value for value in tensors if not self.is_wide_type[value]]
        widest = max(read, default=Width.CONSTANT)
        if self.names[op] in _SOURCES:
            return Width.CONSTANT
        if not read and others:
            is_mask = self.names[op] == _CONVERT and self.graph.type_of(others[0]).dtype == "i1"
            return Width.CONSTANT if is_mask or not any(self.data[value] for value in others) else Width.WIDE
        if widest <= Width.PARAMETER and self.kinds[op] != Kind.PRODUCT:
            # Rows of a parameter that data choose are activations.
            return Width.NARROW if widest == Width.PARAMETER and any(self.data[one] for one in others) else widest
        if self.kinds[op] == Kind.COPY:
            return widest
        leads = any(self.leads[value] for value in self.graph.results(op))
        return widest if self.kinds[op] == Kind.ARITHMETIC and leads and op not in self.polynomials else Width.WIDE

    def _is_narrow(self, widths: list[Width], value: int) -> bool:
        return self.is_wide_type[value] and self.has_dims[value] and widths[value] == Width.NARROW

    def _computes(self, found: np.ndarray, stored: Bools, op: int) -> bool:
        """Says whether an op computes in 16 bits, before constants and parameters are looked at."""
        if self.kinds[op] == Kind.PRODUCT:
            return op in self._in_16
        if self.kinds[op] == Kind.COPY:
            results = [value for value in self.graph.results(op) if self.is_wide_type[value]]
            return bool(results) and all(bool(stored[value]) for value in results)
        return self.kinds[op] == Kind.ARITHMETIC and self._width(found, op) == Width.NARROW

    # What is rounded

    def _rounded(self, values: Iterable[int]) -> set[int]:
        """Returns these values, and what they copy: what is stored in 16 bits wherever it is computed.

        Sums of loops, what leads to no product and arguments are none.
        """
        found = np.zeros(self.graph.num_values, dtype=bool)

        def add(value: int) -> None:
            found[value] = self.is_wide_type[value] and bool(self.leads[value]) and value not in self.sums

        for value in values:
            add(value)

        def visit(op: int) -> None:
            if self.kinds[op] == Kind.COPY or self.names[op] == WHILE or op in self.loop_of_end:
                for value, result in self._edges(op):
                    if found[result] and not found[value] and not self._repeats(op, value, result):
                        add(value)

        self._until_settled(found, visit, reverse=True)
        return {value for value in np.flatnonzero(found).tolist() if value >= len(self.graph.arguments)}

    def _repeats(self, op: int, value: int, result: int) -> bool:
        """Says whether an op makes more elements of what it reads, which may be a statistic."""
        sizes = [prod(self.graph.type_of(one).shape) for one in (value, result)]
        return self.names[op] in REPEATS and sizes[0] < sizes[1]

    def _stashed(self, widths: list[Width]) -> set[int]:
        """Returns what the backward pass reads of the forward pass in f32, but for statistics."""
        graph = self.graph
        parts = parts_of(graph, None, np.zeros(graph.num_ops))
        turn = Handing(graph, parts, graph.value_bytes()).turns[0]
        in_memory, statistic = materialized(graph), self._statistics(widths)
        late = {value for op in range(turn + 1, graph.num_ops) for value in self.operands[op]}
        return {
            value
            for value in late
            if 0 <= graph.value_op[value] <= turn
            and widths[value] == Width.WIDE
            and self.is_wide_type[value]
            and self.has_dims[value]
            and in_memory[value]
            and self.leads[value]
            and not statistic[value]
            and value not in self.given.large
        }

    def _statistics(self, widths: list[Width]) -> Bools:
        """Returns which values are sums, or follow from sums, constants and parameters alone [values]."""
        found = np.zeros(self.graph.num_values, dtype=bool)

        def visit(op: int) -> None:
            if self.names[op] == WHILE or op in self.loop_of_end:
                for value, result in self._edges(op):
                    found[result] |= found[value]
                return
            read = [value for value in self.operands[op] if self.is_wide_type[value] and self.has_dims[value]]
            is_sum = self.names[op] == "stablehlo.reduce"
            follows = any(found[one] for one in read) and all(
                found[one] or widths[one] <= Width.PARAMETER for one in read
            )
            if (is_sum or follows) and self.kinds[op] != Kind.PRODUCT:
                found[list(self.graph.results(op))] = True

        self._until_settled(found, visit)
        return found

    # What readers ask for

    def _uses(self) -> list[list[tuple[int, int]]]:
        """Returns the readers of each value by op and operand, (-1, 0) for the program's end [values]."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.graph.num_values)]
        for op, operands in enumerate(self.operands):
            for position, value in enumerate(operands):
                found[value].append((op, position))
        for value in self.graph.returns:
            found[value].append((-1, 0))
        return found

    def _widen(self, rounded: set[int], uses: list[list[tuple[int, int]]], computes: Bools, stored: Bools) -> None:
        """Lets arithmetic compute in f32 whose one reader reads f32."""
        for op in range(self.graph.num_ops - 1, -1, -1):
            if self.kinds[op] != Kind.ARITHMETIC or not computes[op]:
                continue
            for value in self.graph.results(op):
                if stored[value] and value not in rounded and len(uses[value]) == 1:
                    reader, position = uses[value][0]
                    if reader < 0 or not _reads(self.graph, computes, stored, reader, position):
                        computes[op] = stored[value] = False

    def _convert_early(
        self, widths: list[Width], uses: list[list[tuple[int, int]]], computes: Bools, stored: Bools
    ) -> None:
        """Lets copies of parameters and constants be made in 16 bits where nobody reads them in f32.

        A loop carries in 16 bits what it only reads in them.
        """
        graph = self.graph
        loops = {loop.op: loop for loop in graph.loops}

        def read_in_16(value: int, but: int = -2) -> bool:
            readers = [one for one in uses[value] if one[0] != but]
            return bool(readers) and all(
                op >= 0 and _reads(graph, computes, stored, op, position) for op, position in readers
            )

        for op in range(graph.num_ops - 1, -1, -1):
            open_results = [
                value
                for value in graph.results(op)
                if self.is_wide_type[value] and self.has_dims[value] and widths[value] <= Width.PARAMETER
            ]
            if op in loops:
                for number, value in enumerate(graph.results(op)):
                    if loops[op].kept[number] and value in open_results and read_in_16(value, but=loops[op].end):
                        stored[value] = True
            elif self.names[op] == BARRIER:
                for value in open_results:
                    stored[value] = read_in_16(value)
            elif open_results and self._is_remade(op) and read_in_16(open_results[0]):
                computes[op] = stored[open_results[0]] = True

    def _is_remade(self, op: int) -> bool:
        """Says whether an op of parameters or constants gives the same if it computes in 16 bits."""
        if self.names[op] == _CONVERT:
            return self.graph.type_of(self.operands[op][0]).dtype == "i1"
        return self.names[op] in _SOURCES or (self.kinds[op] == Kind.COPY and self.names[op] not in _PARTS)
