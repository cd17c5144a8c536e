"""Integers that a kernel computes, as sums over what they follow from.

An integer follows from the place of a program in the grid, from how often a loop has run, and from the place of an
element in a tensor. Where it is a sum of terms, each of which follows from one of these, all is known of it: which
indices of a tensor an address stands for, and what moves with which dim of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
MOST_VALUES: Final = 1 << 18
"""Values of a variable that are told apart: 2 MiB for each integer that follows from it."""


class Variable(NamedTuple):
    """What an integer follows from: a dim of the grid, a loop, or a dim of the tensor whose element it is."""

    kind: Literal["program", "loop", "lane", "thread"]
    number: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The integer `low` plus, for each variable, the entry of its table; the least entry of each table is 0."""

    low: int
    tables: Mapping[Variable, Ints] = field(default_factory=dict[Variable, Ints])

    @staticmethod
    def of(constant: int, tables: Mapping[Variable, Ints]) -> Form:
        """Returns the sum of a constant and of any tables."""
        kept = dict[Variable, Ints]()
        for variable, table in tables.items():
            least = int(table.min())
            constant += least
            if table.max() != least:
                kept[variable] = table - least
        return Form(constant, kept)

    @property
    def high(self) -> int:
        """The largest value."""
        return self.low + sum(int(table.max()) for table in self.tables.values())

    @property
    def mean(self) -> float:
        """The value on average."""
        return self.low + sum(float(table.mean()) for table in self.tables.values())

    def __add__(self, other: Form) -> Form:
        """Returns the sum."""
        made = dict(self.tables)
        for variable, table in other.tables.items():
            made[variable] = made[variable] + table if variable in made else table
        return Form.of(self.low + other.low, made)

    def times(self, factor: int) -> Form:
        """Returns the product with a constant."""
        return Form.of(self.low * factor, {variable: table * factor for variable, table in self.tables.items()})

    def __sub__(self, other: Form) -> Form:
        """Returns the difference."""
        return self + other.times(-1)

    def plus(self, constant: int) -> Form:
        """Returns the sum with a constant."""
        return Form(self.low + constant, self.tables)

    def is_same(self, other: Form) -> bool:
        """Says whether two forms are the same integer everywhere."""
        return (
            self.low == other.low
            and self.tables.keys() == other.tables.keys()
            and all(np.array_equal(table, other.tables[variable]) for variable, table in self.tables.items())
        )

    def divided(self, divisor: int) -> tuple[Form, Form] | None:
        """Returns quotient and remainder, None where they are not known term by term: the integer is not negative."""
        if divisor < 1 or self.low < 0:
            return None
        quotients = {variable: table // divisor for variable, table in self.tables.items()}
        rests = {variable: table % divisor for variable, table in self.tables.items()}
        quotient, rest = Form.of(self.low // divisor, quotients), Form.of(self.low % divisor, rests)
        return (quotient, rest) if rest.low >= 0 and rest.high < divisor else None

    def renamed(self, lanes: Mapping[int, int]) -> Form:
        """Returns the form on a tensor that has dims of this one elsewhere: those that `lanes` has."""
        return Form(
            self.low,
            {
                variable._replace(number=lanes[variable.number]) if variable.kind == "lane" else variable: table
                for variable, table in self.tables.items()
                if variable.kind != "lane" or variable.number in lanes
            },
        )

    def within(self, facts: Iterable[Form]) -> Form | None:
        """Returns the form where `facts` are at most 0 that follow from one loop or lane, None if they never are.

        Only that loop's, or that dim's, entries are left for which the fact holds.
        """
        tables = dict(self.tables)
        for variable, kept in domains(facts).items():
            if not kept.any():
                return None
            if variable in tables:
                tables[variable] = tables[variable][kept]
        return Form.of(self.low, tables)

    def most(self, facts: Iterable[Form]) -> int:
        """Returns what the integer is at most where `facts` are at most 0."""
        best = self.high
        for fact in facts:
            scale = self._scale(fact)
            if scale:
                others = sum(int(t.max()) for variable, t in self.tables.items() if variable not in fact.tables)
                best = min(best, self.low + others - scale * fact.low)
        return best

    def _scale(self, fact: Form) -> int:
        """Returns the factor with which the terms of a fact stand in this form, 0 where they do not."""
        scale = 0
        for variable, table in fact.tables.items():
            own = self.tables.get(variable)
            if own is None or len(own) != len(table):
                return 0
            scale = scale or int(own.max()) // int(table.max())
            if (own != scale * table).any():
                return 0
        return scale


def domains(facts: Iterable[Form]) -> dict[Variable, NDArray[np.bool_]]:
    """Returns for loops and lanes the values at which all facts hold that follow from them alone."""
    found = dict[Variable, NDArray[np.bool_]]()
    for fact in facts:
        for variable, table in fact.tables.items() if len(fact.tables) == 1 else ():
            if variable.kind != "program":
                holds = fact.low + table <= 0
                found[variable] = found[variable] & holds if variable in found else holds
    return found


def on_one_variable(forms: Sequence[Form], made: Callable[..., Any]) -> Form | None:
    """Returns what a function on arrays makes of forms that follow from one variable, None where they do from more."""
    variables = {variable for form in forms for variable in form.tables}
    if len(variables) > 1:
        return None
    arrays = [form.low + next(iter(form.tables.values()), np.zeros(1, np.int64)) for form in forms]
    found = np.asarray(made(*arrays), dtype=np.int64)
    return Form.of(0, dict.fromkeys(variables, found)) if variables else Form(int(found[0]))


def place(form: Form, shape: Sequence[int], facts: Sequence[Form]) -> tuple[Form, ...] | None:
    """Returns the index in each dim of the elements at an address, of a tensor stored one row after the other.

    Returns None where the address may lie elsewhere, if `facts` are at most 0. An index of a dim is then the sum of
    what each term of the address has of that dim, for no sum of these reaches into the next dim.
    """
    if form.low < 0:
        return None
    found = list[Form]()
    for stride, size in zip(strides_of(shape), shape, strict=True):
        is_first = not found
        tables = {v: table // stride if is_first else table // stride % size for v, table in form.tables.items()}
        index = Form.of(form.low // stride if is_first else form.low // stride % size, tables)
        if index.most(facts) >= size:
            return None
        found.append(index)
    return tuple(found)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns how far elements lie apart that are neighbours in each dim."""
    strides, stride = list[int](), 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


def period_of(table: Ints) -> int:
    """Returns the least divisor of a table's length after which it repeats."""
    size = len(table)
    return next(part for part in divisors(size) if (table.reshape(-1, part) == table[:part]).all())


def divisors(size: int) -> list[int]:
    """Returns the divisors of a positive number, the least first."""
    small = [number for number in range(1, int(size**0.5) + 1) if size % number == 0]
    return sorted({*small, *(size // number for number in small)})
