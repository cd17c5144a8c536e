"""What padding holds, and where it has to be masked so that it changes no answer.

A *filling* says what is in the padding of a value: one known number; something finite, as far as the program's own
values are; or anything, an infinity or what is not a number included. Arguments are padded with zeros. From there
fillings go forward through the ops: linear ones keep zeros, a product with zeros on one side is zero where the other is
finite, `exp` of zeros is ones, most else is anything. Around a loop what it carries holds what it begins with, if its
body gives that back.

An op that joins the elements along a padded dim has to read its identity there: products along what they contract
zeros, reductions what they start from. Where the filling is another, the op reads the dim masked; before a product the
value is masked where it arises, for all of its readers, so that it lies in memory once. What is returned in padded
storage is masked to zeros: they are what the next step relies on.

Zero times an infinity is no zero: where a program overflows, padding may turn an infinity of its answer into what is
not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf, isfinite
from typing import Final

from rhino.ir.graph.graph import WHILE, Graph
from rhino.strategies.layout.padding import Pads, Shape


class Unknown(Enum):
    """A filling that is no known number."""

    FINITE = "finite"
    ANYTHING = "anything"


Filling = float | Unknown


@dataclass(frozen=True, slots=True)
class Mask:
    """Operand `position` of an op is read with `number` in the padding of `dims`.

    Where `number` is None, it is what the reduction starts from.
    """

    position: int
    dims: tuple[int, ...]
    number: float | None


@dataclass(frozen=True, slots=True)
class Masks:
    """What is masked: `stored` values where they arise, operands where ops read them, and `returned` results.

    Stored values are masked with zeros.
    """

    stored: frozenset[int]
    read: Mapping[int, tuple[Mask, ...]]
    returned: frozenset[int]


def find_masks(graph: Graph, pads: Pads, made_anew: Sequence[bool], numbers: Mapping[int, float]) -> Masks:
    """Returns what has to be masked.

    `numbers` are those that all elements of a value are known to be; `made_anew` as for `find_pads`.
    """
    plain = _Fillings(graph, pads, made_anew, numbers)
    wanted = frozenset(
        value
        for op in pads.ops
        if graph.cls(op).name == _PRODUCT
        for mask in plain.masks(op)
        if plain.can_be_masked(value := int(graph.operands(op)[mask.position]), pads.ops[op][mask.position])
    )
    found = _Fillings(graph, pads, made_anew, numbers, wanted)
    read = {op: masks for op in pads.ops if (masks := tuple(found.masks(op)))}
    taken_over = {
        arg.alias: number
        for number, arg in enumerate(graph.arguments)
        if arg.alias is not None and number in pads.values
    }
    returned = frozenset(
        p for p, number in taken_over.items() if found.read(graph.returns[p], pads.values[number]) != 0
    )
    return Masks(frozenset(value for value in wanted if found.given[value] != 0), read, returned)


@dataclass(eq=False)
class _Fillings:
    graph: Graph
    pads: Pads
    made_anew: Sequence[bool]
    numbers: Mapping[int, float]
    masked: frozenset[int] = frozenset()
    stored: dict[int, Filling] = field(default_factory=dict)
    """Of every value that is stored padded."""
    given: dict[int, Filling] = field(default_factory=dict)
    """The same before masks."""

    def __post_init__(self) -> None:
        graph = self.graph
        self.stored |= {value: 0.0 for value in self.pads.values if value < len(graph.arguments)}
        ends = {loop.end: loop.op for loop in graph.loops}
        before: dict[int, Filling] = {}
        while before != self.stored:  # what a loop carries can only become less known
            before = dict(self.stored)
            for op in self.pads.ops:
                if op in ends:
                    self.carry(op, graph.results(ends[op]))
                elif graph.cls(op).name == WHILE:
                    self.carry(op, graph.results(op))
                else:
                    self.run(op)

    def carry(self, op: int, carried: range) -> None:
        """Joins what a loop begins with, or what its body ends with, to what it carries."""
        for value, anchor in zip(self.graph.operands(op).tolist(), carried, strict=True):
            if anchor in self.pads.values:
                new = self.read(value, self.pads.values[anchor])
                self.stored[anchor] = new if anchor not in self.stored else _join(self.stored[anchor], new)

    def run(self, op: int) -> None:
        """Notes what is in the padding of an op's results."""
        shapes = self.pads.ops[op][-len(self.graph.results(op)) :] if self.graph.results(op) else ()
        for number, (value, shape) in enumerate(zip(self.graph.results(op), shapes, strict=True)):
            if value not in self.pads.values:
                continue
            filling: Filling = 0.0
            if shape != self.own(value):
                filling = self.result(op, number)
                if filling is Unknown.ANYTHING and not self.graph.type_of(value).dtype.startswith(_INEXACT):
                    filling = Unknown.FINITE
                filling = filling if shape == self.pads.values[value] else _join(filling, 0.0)
            self.given[value] = filling
            self.stored[value] = 0.0 if value in self.masked else filling

    def own(self, value: int) -> Shape:
        return self.graph.type_of(value).shape

    def content(self, value: int) -> Filling:
        """Returns what a value is, outside of any padding."""
        return self.numbers.get(value, Unknown.FINITE)

    def read(self, value: int, shape: Shape) -> Filling:
        """Returns what an op reads in the padding of a value that it has in a shape.

        Where the shape is the value's own, that is the filling of the value.
        """
        stored = self.pads.values.get(value, self.own(value))
        if shape == self.own(value) or self.made_anew[value]:
            return self.content(value)
        if stored == self.own(value):
            return 0.0
        filling = self.stored.get(value, Unknown.ANYTHING)
        return filling if all(a <= b for a, b in zip(shape, stored, strict=True)) else _join(filling, 0.0)

    def can_be_masked(self, value: int, shape: Shape) -> bool:
        """Says whether a value is made by an op that can mask it, in the shape in which it is to be read."""
        op = int(self.graph.value_op[value])
        carried = op < 0 or self.graph.cls(op).name == WHILE
        return not carried and not self.made_anew[value] and self.pads.values.get(value) == shape

    def factors(self, op: int, tensor: int) -> dict[int, int]:
        """Returns the padded dims of a tensor of an op, by the factors that lead them."""
        graph, rule = self.graph, self.graph.cls(op).rule
        value = [*graph.operands(op).tolist(), *graph.results(op)][tensor]
        if rule is None:
            return {}
        dims = (*rule.operands, *rule.results)[tensor] if tensor < len(rule.operands) + len(rule.results) else ()
        shape, own = self.pads.ops[op][tensor], self.own(value)
        leads = ((next((f for f in factors if rule.sizes[f] > 1), None), dim) for dim, factors in enumerate(dims))
        return {factor: dim for factor, dim in leads if factor is not None and shape[dim] != own[dim]}

    def operand(self, op: int, position: int) -> Filling:
        return self.read(int(self.graph.operands(op)[position]), self.pads.ops[op][position])

    def part(self, op: int, position: int, kept: frozenset[int]) -> Filling:
        """Returns what of an operand goes into the padding along the factors `kept` of the result."""
        padded = self.factors(op, position).keys()
        filling = self.operand(op, position)
        return filling if not padded or kept <= padded else _join(filling, Unknown.FINITE)

    def result(self, op: int, number: int) -> Filling:
        """Returns what an op gives in the padding of a result, as it has that."""
        graph, cls = self.graph, self.graph.cls(op)
        num_operands = len(graph.operands(op))
        kept = frozenset(self.factors(op, num_operands + number))
        name = cls.name.rpartition(".")[2]
        match name:
            case "optimization_barrier" | "sort":
                return self.operand(op, number)
            case "dot_general":
                return (
                    0.0
                    if all(self.operand(op, t) == 0 for t in (0, 1) if self.factors(op, t).keys() & kept)
                    else Unknown.ANYTHING
                )
            case "reduce":
                filling = self.operand(op, number)
                keeps = (cls.reduction == "add" and filling == 0) or cls.reduction in ("max", "min")
                return filling if keeps and isinstance(filling, float) else Unknown.ANYTHING
            case "gather":
                return self.part(op, 0, kept)
            case "scatter":
                filling = self.operand(op, 0)
                is_added = cls.reduction == "add" and filling == 0 and self.operand(op, 2) == 0
                return filling if is_added or not self.factors(op, 2).keys() & kept else Unknown.ANYTHING
            case _ if name in _MOVING:
                data = range(num_operands)[: _MOVING[name]]
                found = [self.part(op, position, kept) for position in data]
                return _join(*found)
        parts = [self.part(op, position, kept) for position in range(num_operands)]
        return _apply(name, parts)

    def masks(self, op: int) -> Iterator[Mask]:
        """Yields what an op must read masked."""
        cls, operands = self.graph.cls(op), self.graph.operands(op).tolist()
        if cls.name == _PRODUCT:
            fillings = self.operand(op, 0), self.operand(op, 1)
            for position, (own, other) in enumerate((fillings, fillings[::-1])):
                dims = self.joined_dims(op, position)
                if dims and own != 0 and not (other == 0 and _is_finite(own)):
                    yield Mask(position, dims, 0.0)
        elif cls.name == _REDUCE:
            half = len(operands) // 2
            for position in range(half):
                start = self.content(operands[half + position])
                if (dims := self.joined_dims(op, position)) and (
                    isinstance(start, Unknown) or self.operand(op, position) != start
                ):
                    yield Mask(position, dims, None)

    def joined_dims(self, op: int, position: int) -> tuple[int, ...]:
        """Returns the padded dims of an operand that the op joins: no result has them."""
        rule = self.graph.cls(op).rule
        assert rule is not None
        given = {factor for dims in rule.results for dim in dims for factor in dim}
        return tuple(dim for factor, dim in self.factors(op, position).items() if factor not in given)


def _join(*fillings: Filling) -> Filling:
    """Returns what is known where any of these may lie."""
    first, *others = fillings
    if all(other == first for other in others):
        return first
    return Unknown.FINITE if all(map(_is_finite, fillings)) else Unknown.ANYTHING


def _is_finite(filling: Filling) -> bool:
    return isfinite(filling) if isinstance(filling, float) else filling is Unknown.FINITE


def _apply(name: str, parts: Sequence[Filling]) -> Filling:
    """Returns what an op that works element by element gives."""
    if name == "select":
        test, yes, no = parts
        return _join(yes, no) if isinstance(test, Unknown) else yes if test else no
    if name in ("multiply", "and") and 0.0 in parts and all(map(_is_finite, parts)):
        return 0.0
    numbers = [part for part in parts if isinstance(part, float)]
    if name in _EXACT and len(numbers) == len(parts) and (found := _exact(name, numbers)) is not None:
        return found
    if name in _BOUNDED or (name in _KEEPING and all(map(_is_finite, parts))):
        return Unknown.FINITE
    return Unknown.ANYTHING


def _exact(name: str, numbers: Sequence[float]) -> float | None:
    """Returns what an op gives for numbers, where that is one which every type of numbers holds exactly."""
    if not all(map(isfinite, numbers)) or (name == "divide" and numbers[1] == 0):
        return None
    result = _EXACT[name](*numbers)
    return result if result in (0.0, 1.0, -1.0) else None


_PRODUCT: Final = "stablehlo.dot_general"
_REDUCE: Final = "stablehlo.reduce"
_INEXACT: Final = ("f", "bf", "complex")
_ROUNDING: Final = ("convert", "reduce_precision", "floor", "ceil", "round_nearest_afz", "round_nearest_even")
_MOVING: Final[dict[str, int]] = {
    **dict.fromkeys(("reshape", "transpose", "broadcast_in_dim", "slice", "dynamic_slice", "sharding_constraint"), 1),
    **dict.fromkeys(("pad", "dynamic_update_slice"), 2),
    "concatenate": 1 << 30,
}
"""Ops that give the elements of so many of their first operands, in other places."""

_EXACT: Final[dict[str, Callable[..., float]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": max,
    "minimum": min,
    "negate": lambda a: 0.0 - a,
    "abs": abs,
    **dict.fromkeys(_ROUNDING, lambda a: a),
    **dict.fromkeys(("sine", "tanh", "exponential_minus_one"), lambda a: 0.0 if a == 0 else inf),
    **dict.fromkeys(("sqrt", "cbrt", "sign"), lambda a: a if a in (0.0, 1.0) else inf),
    **dict.fromkeys(("exponential", "cosine"), lambda a: 1.0 if a == 0 else inf),
    "log_plus_one": lambda a: 0.0 if a == 0 else inf,
    "log": lambda a: 0.0 if a == 1 else inf,
    "rsqrt": lambda a: 1.0 if a == 1 else inf,
}
"""Ops on numbers; an infinity where the result would be none that is exact."""

_BOUNDED: Final = frozenset({"compare", "is_finite", "iota"})
_KEEPING: Final = frozenset(
    (
        *_ROUNDING,
        "maximum",
        "minimum",
        "clamp",
        "abs",
        "negate",
        "sign",
        "real",
        "imag",
        "not",
        "tanh",
        "logistic",
        "sine",
        "cosine",
    )
)
"""Ops that are finite where their operands are."""
