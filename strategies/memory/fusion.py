"""Which ops of a device's program XLA computes inside others, use by use.

A producer may be computed inside one reader and lie in memory for another. The rules are those of XLA's
`InstructionFusion` as the CPU backend of jaxlib 0.10.2 has them, from its sources and from what it makes of the models
of bench/memory.py (2026-11-22):

- loops take in ops element by element and moves of elements, and so do gathers, and reductions of few elements; not
  what is costly and read more than once;
- who reads one operand of its own rank at most is recomputed in each reader that takes it in, whatever others do; who
  reads several is computed inside all of its readers, on all ways to them, or inside none;
- a constant of which all that is selected goes to collectives along a minor dim lies in their order of dims: it is
  copied for what a convolution or a pooling reads, which so reads two operands;
- a library computes reductions of floating-point numbers, of 4,096 elements and more. It takes in products of up to
  three factors that nothing else reads, and with a maximum what subtracts it and takes the exponential, up to the
  product of matrices before these. What else it reads lies in memory, constants too; but not the one that such a
  product is scaled by if that has dims of one element, for without these it is not the constant that the gradient
  reads. It may go on with what reads a reduction alone, element by element, as long as that has 4,096 elements too
  (`LibraryRewriter`): constants are read from memory there as well. Where a product of matrices is read by the
  reduction and by what comes behind it, as in the gradient of a softmax, all of this is one call.

What is computed element by element from products alone is computed as they are, as matrices: a view of it as one lies
where it does. A view that is read from memory lies where its operand does, unless that is computed inside it: then it
lies by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rhino.ir.graph.graph import BARRIER, COSTLY, MOVES, PART_UPDATE, REDUCE, REPEATS, Graph, OpClass
from rhino.strategies.memory.buffers import CONVOLUTION, PRODUCT
from rhino.strategies.structure.loop_nesting import regions

_MOST_BETWEEN: Final = 64
"""So many ops, at most, are looked at between a producer and a reader for another path.

Where there are more ops, such a path is assumed.
"""

_MOST_READ: Final = 63
"""So many values, at most, are read from memory by what is computed inside others.

With its result there are 64 (`MaxOperandsAndOutputsPerFusion`). That is XLA's limit for GPUs. Its CPU backend has none:
there, what adds up a residual layer after layer is computed in each reader, and a thousand layers would read a million
values.
"""

_LIBRARY_ELEMENTS: Final = 4096
_FLOATS: Final = frozenset({"f16", "bf16", "f32", "f64"})
_DEEPEST_FACTOR: Final = 2
_GATHER, _DIVIDE, _MULTIPLY, _MAXIMUM = (
    "stablehlo.gather",
    "stablehlo.divide",
    "stablehlo.multiply",
    "stablehlo.maximum",
)
_COPY = "stablehlo.transpose"
_CUTS: Final = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
_TURNING: Final = frozenset({"all_gather", "reduce_scatter"})
_WINDOWS: Final = frozenset({CONVOLUTION, "stablehlo.reduce_window"})
_SUBTRACT, _EXPONENTIAL = "stablehlo.subtract", "stablehlo.exponential"
_IN_LIBRARY: Final = frozenset(
    f"stablehlo.{name}"
    for name in (
        *(
            "abs",
            "ceil",
            "cosine",
            "convert",
            "exponential",
            "exponential_minus_one",
            "floor",
            "log",
            "log_plus_one",
            "logistic",
            "negate",
        ),
        *("round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh"),
        *("add", "divide", "maximum", "minimum", "multiply", "power", "subtract"),
    )
)
"""Ops element by element that the library has (`IsElementwiseOpSupportedByYnn`)."""

Use = tuple[int, int]
"""An op, and which of its operands."""


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """What is computed inside what.

    `in_memory` says which values lie in memory [values]; `uses` are those whose operand is computed inside the op;
    `library` are the ops that a library computes; `constants` are its uses of values that depend on constants alone and
    lie in memory for it.
    """

    in_memory: list[bool]
    uses: frozenset[Use]
    library: frozenset[int]
    constants: frozenset[Use]


def fuse(graph: Graph) -> Fused:
    """Returns what XLA computes inside what in the program of one device."""
    return _Fusion(graph).run()


class _Fusion:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.classes = [graph.classes[number] for number in graph.op_class.tolist()]
        self.maker: list[int] = graph.value_op.tolist()
        self.first: list[int] = graph.result_start.tolist()
        self.ranks = [len(graph.types[number].shape) for number in graph.value_type.tolist()]
        uses: list[int] = graph.uses.tolist()
        self.operands: list[list[int]] = [uses[a:b] for a, b in pairwise(graph.use_start.tolist())]
        self.readers: list[list[int]] = [[] for _ in range(graph.num_values)]
        for op, values in enumerate((*self.operands, graph.returns)):
            for value in dict.fromkeys(values):
                self.readers[value].append(op)
        self.num_readers = [len(ops) for ops in self.readers]
        self.region = regions(graph)
        self.is_view = [cls.is_view and cls.name != BARRIER for cls in self.classes]
        self.is_loop = [view or cls.fusible for view, cls in zip(self.is_view, self.classes, strict=True)]
        self.library = {op for op, cls in enumerate(self.classes) if cls.name == REDUCE and _is_large(cls)}
        self.inside: set[tuple[int, int]] = set()
        """Pairs of ops within one call of a library: who gives, who reads."""
        self.repeats = self.find_repeats()
        self.turned = self.find_turned()
        self.flat = self.find_flat()
        self.windowed = {
            self.maker[v] for op, cls in enumerate(self.classes) if cls.name in _WINDOWS for v in self.operands[op]
        }
        self.by_inverse = self.find_by_inverse()
        self.is_costly = [cls.name in COSTLY and op not in self.by_inverse for op, cls in enumerate(self.classes)]
        self.once: set[int] = set()
        """Values that are not computed twice."""

    def run(self) -> Fused:
        for op in sorted(self.library):
            self.take_factors(op, self.operands[op][0], 0)
        for op, cls in enumerate(self.classes):
            if cls.name == _EXPONENTIAL:
                self.take_maximum(op)
        for op in sorted(self.library):
            if self.classes[op].name == REDUCE:
                self.take_gradient(op)
        self.find_once()
        self.find_wide()
        uses = frozenset(
            [(op, n) for op, values in enumerate(self.operands) for n, v in enumerate(values) if self.is_inside(v, op)]
        )
        return Fused(self.in_memory(uses), uses, frozenset(self.library), self.constants(uses))

    # Values

    def find_repeats(self) -> list[bool]:
        """Returns which values are broadcast, or depend on constants alone [values]."""
        found = [False] * self.graph.num_values
        for op, cls in enumerate(self.classes):
            viewed = self.is_view[op] and found[self.operands[op][0]]
            if cls.free or viewed or (cls.name in REPEATS and not self.is_view[op]):
                found[self.first[op] : self.first[op + 1]] = [True] * (self.first[op + 1] - self.first[op])
        return found

    def find_by_inverse(self) -> set[int]:
        """Returns the ops that divide by what is broadcast.

        XLA (`AlgebraicSimplifier`) multiplies by the inverse instead, and broadcasts that. Of the ops that divide by
        one value that is no constant, this happens to the first alone.
        """
        found, divided = set[int](), set[int]()
        for op, cls in enumerate(self.classes):
            if (
                cls.name == _DIVIDE
                and self.repeats[value := self.operands[op][1]]
                and (value not in divided or self.is_constant(value))
            ):
                found.add(op)
                divided.add(value)
        return found

    def reads_inverse(self, op: int, value: int) -> bool:
        """Says whether an op reads the inverse of a value that is broadcast, and not the value."""
        return op in self.by_inverse and self.operands[op][1] == value and self.operands[op][0] != value

    def find_turned(self) -> set[int]:
        """Returns the constants that lie in the order of collectives, which is that of all that reads them but maxima.

        XLA (`LayoutAssignment`) goes back from what collectives want through what is computed element by element, and
        through cuts.
        """
        turned = [False] * self.graph.num_values
        for value in range(self.graph.num_values - 1, -1, -1):
            op = self.maker[value]
            if op >= 0 and (self.classes[op].free or self.is_element_by_element(op)):
                readers = [reader for reader in self.readers[value] if not self.is_maximum(reader)]
                turned[value] = bool(readers) and all(self.is_turned(reader, turned) for reader in readers)
        return {value for value, found in enumerate(turned) if found and self.is_constant(value)}

    def find_flat(self) -> set[int]:
        """Returns the ops that are computed element by element as matrices, as the products that they read are.

        XLA (`ReshapeMover`) goes from what it views as more than two dims to what reads that, if all that reads it is
        computed element by element and reads no more than such views and constants; then that is viewed, and so on.
        """
        moved, found = {op for op, cls in enumerate(self.classes) if self.is_view_of_product(op, cls)}, set[int]()
        while moved:
            found |= moved
            moved = {op for op in range(self.graph.num_ops) if op not in found and self.is_computed_of(op, found)}
            while stays := {op for op in moved if not self.are_alone(op, found | moved)}:
                moved -= stays
        return {op for op in found if not self.is_view[op]}

    def is_view_of_product(self, op: int, cls: OpClass) -> bool:
        """Says whether an op views a product as what it is in the program."""
        maker = self.maker[self.operands[op][0]] if self.is_view[op] and cls.rule is None else -1
        return maker >= 0 and self.classes[maker].name == PRODUCT

    def is_computed_of(self, op: int, makers: set[int]) -> bool:
        """Says whether an op is computed element by element from what some ops make, and constants."""
        read = [self.maker[value] for value in self.operands[op] if not self.is_constant(value)]
        return (
            bool(read)
            and self.is_element_by_element(op)
            and self.classes[op].name not in _CUTS
            and makers.issuperset(read)
        )

    def are_alone(self, op: int, others: set[int]) -> bool:
        """Says whether what an op reads, but constants, is read by others of its kind alone."""
        return all(self.is_constant(value) or others.issuperset(self.readers[value]) for value in self.operands[op])

    def is_turned(self, reader: int, turned: Sequence[bool]) -> bool:
        """Says whether who reads a value wants it in the order of a collective.

        The reader is a copy for the collective, or its own result is wanted in that order.
        """
        if reader == self.graph.num_ops or not len(self.graph.results(reader)):
            return False  # handed on as it is: what is returned, what a loop takes round
        result = self.first[reader]
        if _is_copy(self.classes[reader]):
            return any(
                after < self.graph.num_ops and self.classes[after].name in _TURNING for after in self.readers[result]
            )
        return turned[result]

    def is_maximum(self, op: int) -> bool:
        """Says whether an op is a maximum; the end is none."""
        return op < self.graph.num_ops and self.classes[op].name == _MAXIMUM

    def is_element_by_element(self, op: int) -> bool:
        """Says whether an op computes each element from those at the same place of its operands, or of a larger one."""
        return self.classes[op].fusible and (self.classes[op].name in _CUTS or self.classes[op].name not in MOVES)

    def is_unary(self, op: int) -> bool:
        """Says whether an op reads one operand of its own rank at most (`EffectivelyAtMostUnary`)."""
        rank = max((len(kind.shape) for kind in self.classes[op].results), default=0)
        return sum(not self.is_repeated(value, op) and self.ranks[value] >= rank for value in self.operands[op]) <= 1

    def is_repeated(self, value: int, op: int) -> bool:
        """Says whether an operand is seen to be broadcast.

        It is not where a copy of it is read, by what a convolution or a pooling wants in rows.
        """
        return self.repeats[value] and not (op in self.windowed and value in self.turned)

    def is_constant(self, value: int) -> bool:
        """Says whether a value depends on constants alone."""
        maker = self.maker[value]
        return maker >= 0 and self.classes[maker].free

    # Libraries

    def take_factors(self, op: int, value: int, depth: int) -> None:
        """Takes the products into a library's call that `op`, which is in it, reads, if nothing else does."""
        maker = self.maker[value]
        if maker < 0 or self.num_readers[value] != 1 or self.region[maker] != self.region[op]:
            return
        name, is_view = self.classes[maker].name, self.is_view[maker]
        if not is_view and not (
            name == _MULTIPLY if depth < _DEEPEST_FACTOR else depth == _DEEPEST_FACTOR and name in REPEATS
        ):
            return
        self.take(maker, op)
        for factor in self.operands[maker]:
            self.take_factors(maker, factor, depth + (not is_view))

    def take(self, maker: int, op: int) -> None:
        """Takes an op into the library's call that its reader is in."""
        self.inside.add((maker, op))
        self.library.add(maker)

    def take_maximum(self, op: int) -> None:
        """Takes exp(x - max(x)) into one call, and x too if it is a product of nothing else's."""
        minus = self.maker[self.operands[op][0]]
        if minus < 0 or self.classes[minus].name != _SUBTRACT or self.num_readers[self.first[minus]] != 1:
            return
        value, largest = self.operands[minus]
        chain = self.chain_to_reduction(largest)
        if not chain or self.operands[chain[-1]][0] != value:
            return
        self.library.add(op)
        for maker, reader in pairwise([*reversed(chain), minus, op]):
            self.take(maker, reader)
        maker = self.maker[value]
        if (
            self.num_readers[value] != 2
            or maker < 0
            or self.classes[maker].name != _MULTIPLY
            or self.region[maker] != self.region[op]
        ):
            return
        self.take(maker, minus)
        self.take(maker, chain[-1])
        for factor in self.operands[maker]:
            chain = self.chain_to_product(factor)
            for product, reader in pairwise([*reversed(chain), maker]):
                self.take(product, reader)
            if self.is_constant(factor) and 1 in self.graph.type_of(factor).shape:
                self.inside.add((self.maker[factor], maker))

    def chain_to_product(self, value: int) -> list[int]:
        """Returns a product and the views of it, the last of which is `value` and nothing else's.

        The list is empty where there is something else.
        """
        chain: list[int] = []
        op = self.maker[value]
        while op >= 0 and self.num_readers[self.first[op]] == 1:
            chain.append(op)
            if self.classes[op].name == PRODUCT:
                return chain
            op = self.maker[self.operands[op][0]] if self.is_view[op] else -1
        return []

    def chain_to_reduction(self, value: int) -> list[int]:
        """Returns the ops that repeat the result of a reduction, from the last up to it.

        The list is empty where there is something else.
        """
        chain: list[int] = []
        op = self.maker[value]
        while op >= 0 and self.num_readers[self.first[op]] == 1:
            chain.append(op)
            if op in self.library:
                return chain
            operands = self.operands[op]
            if self.classes[op].name == _MAXIMUM:  # with the least number there is
                operands = [one for one in operands if not self.repeats[one]]
            elif not self.is_view[op] and self.classes[op].name not in REPEATS:
                break
            op = self.maker[operands[0]] if len(operands) == 1 else -1
        return []

    def take_gradient(self, op: int) -> None:
        """Takes what comes behind a reduction into its call, with the product that both read.

        The gradient of a softmax has this form.
        """
        behind = [*self.ops_behind(op)]
        call, products, waiting = {op, *behind}, list[int](), [op, *behind]
        while waiting:
            for value in self.operands[waiting.pop()]:
                maker = self.maker[value]
                if maker in call or not self.is_of_call(maker, call, op):
                    continue
                call.add(maker)
                is_product = self.classes[maker].name == PRODUCT
                (products if is_product else waiting).append(maker)
        if behind and products:
            for maker in sorted(call - {behind[-1]}):
                for reader in call.intersection(self.readers[self.first[maker]]):
                    self.take(maker, reader)
            self.library.add(behind[-1])
            self.once.add(self.first[behind[-1]])

    def is_of_call(self, maker: int, call: set[int], op: int) -> bool:
        """Says whether the library computes what makes a value, where all that reads it is in a call that has `op`.

        What divides by it elsewhere does not read it, if it is broadcast, but its inverse.
        """
        if maker < 0 or self.region[maker] != self.region[op]:
            return False
        name = self.classes[maker].name
        if not (name == PRODUCT or self.is_view[maker] or name in REPEATS or name in _IN_LIBRARY):
            return False
        value = self.first[maker]
        return all(reader in call or self.reads_inverse(reader, value) for reader in self.readers[value])

    def constants(self, uses: frozenset[Use]) -> frozenset[Use]:
        """Returns the uses of constants that the library reads from memory."""
        behind = {
            op for first in sorted(self.library) if self.classes[first].name == REDUCE for op in self.ops_behind(first)
        }
        found = [
            (op, number)
            for op in sorted(self.library | behind)
            for number, value in enumerate(self.operands[op])
            if self.is_constant(value) and not self.classes[op].free and (op in behind or (op, number) not in uses)
        ]
        return frozenset(found)

    def ops_behind(self, op: int) -> Iterator[int]:
        """Yields the ops with which a library goes on behind a reduction.

        Each reads the one before, and nothing else does.
        """
        while self.num_readers[self.first[op]] == 1:
            (reader,) = self.readers[self.first[op]]
            if (
                reader == self.graph.num_ops
                or reader in self.library
                or self.region[reader] != self.region[op]
                or not self.goes_on(reader)
            ):
                return
            yield reader
            op = reader

    def goes_on(self, op: int) -> bool:
        """Says whether the library may compute an op behind others."""
        cls = self.classes[op]
        if self.is_view[op] or cls.name in REPEATS or _is_of_ones(cls):
            return True
        elements = [kind.num_bytes // kind.element_bytes for kind in (*cls.operands, *cls.results)]
        return (
            cls.name in _IN_LIBRARY
            and max(elements) >= _LIBRARY_ELEMENTS
            and all(kind.dtype in _FLOATS for kind in cls.results)
        )

    # Loops

    def is_taken_in(self, value: int, op: int) -> bool:
        """Says whether what makes a value could be computed inside a reader, for all that is known of these two."""
        maker = self.maker[value]
        if maker < 0:
            return False
        if (maker, op) in self.inside:
            return True
        if not self.is_loop[maker] or self.region[maker] != self.region[op] or op in self.library:
            return False
        if self.is_view[op] and self.classes[op].rule is None and maker in self.flat:
            return False  # seen as a matrix, it is as it was computed
        name = self.classes[op].name
        if name == PART_UPDATE:
            return self.num_readers[value] == 1 and self.operands[op][0] != value
        reads = self.is_loop[op] or name in (_GATHER, REDUCE)
        return reads and not (self.is_costly[maker] and self.num_readers[value] > 1)

    def find_once(self) -> None:
        """Finds the values that are computed inside all readers or none, and cannot be inside all.

        XLA finds these by `ComputeGloballyUnfusible`.
        """
        single = [self.is_loop[op] and not self.is_unary(op) for op in range(self.graph.num_ops)]
        for value in self.graph.returns:
            if self.maker[value] >= 0 and single[self.maker[value]]:
                self.once.add(value)
        for op, values in enumerate(self.operands):
            for value in values:
                maker = self.maker[value]
                if maker < 0 or not single[maker] or value in self.once:
                    continue
                alone = self.num_readers[value] == 1
                if not (self.is_taken_in(value, op) if alone else self.all_paths(maker, op)):
                    self.once.add(value)

    def find_wide(self) -> None:
        """Finds the values that would read too much from memory, if they were computed inside others."""
        sources: dict[int, frozenset[int]] = {}
        for op, values in enumerate(self.operands):
            made = range(self.first[op], self.first[op + 1])
            if self.is_loop[op] and not self.once.issuperset(made):
                inside = {value: self.is_inside(value, op) and value in sources for value in values}
                found = frozenset().union(*(sources[value] if taken else (value,) for value, taken in inside.items()))
                if len(found) <= _MOST_READ:
                    sources |= dict.fromkeys(made, found)
                else:
                    self.once.update(made)

    def all_paths(self, maker: int, op: int) -> bool:
        """Says whether all that lies between two ops could be computed inside the later one, with the earlier one."""
        seen, stack = {op}, [op]
        while stack:
            reader = stack.pop()
            for value in self.operands[reader]:
                between = self.maker[value]
                if between < maker or between in seen:
                    continue
                needs = True if between == maker else self.needs(between, maker)
                if needs is None or (needs and not self.is_taken_in(value, reader)):
                    return False
                if needs and between != maker:
                    if value in self.once:
                        return False
                    seen.add(between)
                    stack.append(between)
        return True

    def needs(self, op: int, maker: int) -> bool | None:
        """Says whether `op` needs `maker`; None where too much lies between them to say."""
        seen, stack = {op}, [op]
        while stack:
            for value in self.operands[stack.pop()]:
                above = self.maker[value]
                if above == maker:
                    return True
                if above > maker and above not in seen:
                    seen.add(above)
                    stack.append(above)
                    if len(seen) > _MOST_BETWEEN:
                        return None
        return False

    # Memory

    def is_inside(self, value: int, op: int) -> bool:
        """Says whether what makes a value is computed inside a reader."""
        maker = self.maker[value]
        return (value not in self.once or (maker, op) in self.inside) and self.is_taken_in(value, op)

    def in_memory(self, uses: frozenset[Use]) -> list[bool]:
        """Returns which values lie in memory [values].

        Of loops, views and what is in a library's call, those are in memory that are read from there.
        """
        swallowed = {maker for maker, _ in self.inside}
        found = [
            maker < 0
            or not (self.is_loop[maker] or self.is_view[maker] or maker in swallowed or self.classes[maker].is_view)
            for maker in self.maker
        ]
        for value in self.graph.returns:
            found[value] = True
        returned = set(self.graph.returns)
        for op in range(self.graph.num_ops - 1, -1, -1):
            is_view = self.classes[op].is_view
            for number, value in enumerate(self.operands[op]):
                if (op, number) in uses:
                    continue
                seen = self.first[op] + number if is_view else -1
                found[value] |= seen < 0 or found[seen]
                if seen >= 0 and seen not in returned:
                    found[seen] = False
        return found


def _is_copy(cls: OpClass) -> bool:
    """Says whether an op is a copy to another order of dims that the program has for XLA's sake."""
    return cls.name == _COPY and cls.rule is None


def _is_of_ones(cls: OpClass) -> bool:
    """Says whether an op is a reduction over dims of one element, a view to XLA."""
    return cls.name == REDUCE and cls.operands[0].num_bytes == cls.results[0].num_bytes


def _is_large(cls: OpClass) -> bool:
    """Says whether a library computes a reduction."""
    kind = cls.operands[0]
    return not _is_of_ones(cls) and kind.dtype in _FLOATS and kind.num_bytes >= _LIBRARY_ELEMENTS * kind.element_bytes
