"""In which loop over the blocks each sum of attention is computed, and how those of the first loop are put right.

A loop over the blocks computes, for each, what is inside of the region, and sums it up. What reads such a sum comes
after the loop, and what is computed of that inside of the region in a loop of its own, which recomputes what it
reads. So a softmax would take three loops: for the largest number of each row, for the sum of the exponentials of what
is left when it is subtracted, and for the products with what these are divided by.

One loop is enough, for the first two are put right behind: with another largest number all exponentials of a row change
by one factor, and so do sums over products of one of them with anything that does not depend on it; and a factor of the
row can as well be applied to the sum. The *form* of a value says that it is of this kind: how many exponentials are in
each product, and which factors of rows are not applied to it yet.

Source    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Rabe and Staats, "Self-attention
          does not need O(n^2) memory" (2021), section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rhino.ir.graph.graph import REDUCE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import captured_by, maker_of
from rhino.ir.program.identity import is_constant
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import FUSIBLE, reduction_of
from rhino.passes.attention.score_dims import At, dims_of, in_order, moved
from rhino.passes.attention.score_region import BROADCAST, CONVERT, DOT, EXPONENTIAL, RESHAPE, Region

Value = ir.Value[Any]
Dims = tuple[int | None, ...]

_KEEPING: Final = frozenset({BROADCAST, RESHAPE, "stablehlo.transpose", CONVERT})
"""Ops of one operand that give ones of ones, and commute with factors of rows."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of rows that a value lacks: `row` from outside, whose dims are at `dims` of the value.

    The value is to be divided by it if `divides`. A boolean row says where the value is zero: where it is `zero_where`.
    None stands for a dim of `row` that has one element.
    """

    row: Value
    dims: Dims
    divides: bool = False
    zero_where: bool | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """What a value of the first loop is, beside its factors of rows.

    `largest` are the dims at which it has those of the rows' largest numbers if it has one exponential in each product,
    None if it has none. `is_one` says that it is nothing but its factors, `is_shifted` that it is what exponentials
    are taken of.
    """

    factors: tuple[Factor, ...] = ()
    largest: Dims | None = None
    is_one: bool = False
    is_shifted: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the value is what the program says."""
        return not self.factors and self.largest is None and not self.is_one and not self.is_shifted


PLAIN: Final = Form()

_MOST_LOOKED_AT: Final = 2000
"""Ops outside of a region that are followed to what they are computed of; a layer has some hundreds."""


@dataclass(eq=False)
class Loops:
    """Which ends of a region each loop computes, `ends` [loops], and the forms of what the first one computes.

    `first` is the loop that takes the largest numbers: those before it give what they are taken of. `largest` is what
    is subtracted, and `row_ops` compute it from the largest numbers; `row_at` has the dims of what they read.
    """

    region: Region
    ends: list[list[ir.Operation]] = field(default_factory=list)
    forms: dict[Value, Form] = field(default_factory=dict)
    first: int = 0
    largest: Value | None = None
    row_ops: list[ir.Operation] = field(default_factory=list)
    row_at: dict[Value, At] = field(default_factory=dict)
    kept: dict[ir.Operation, Value] = field(default_factory=dict)
    """By choice between zero and a value by rows that are known behind the first loop, that value."""
    available: dict[Value, int] = field(default_factory=dict)
    """By value outside of the region, how many loops come before it; none where it does not stand here."""
    looked_at: int = 0
    begin: ir.Operation = field(init=False)
    """The end that stands first: nothing before it comes after a loop."""
    levels: dict[Value, int] = field(default_factory=dict)
    """By value inside, how many loops come before it, computed as the program says."""

    def read(self) -> Loops:
        """Finds the loops."""
        region = self.region
        region.set_ends()
        self.begin = in_order(region.ends)[0]
        found: dict[ir.Operation, int] = {}
        for op in in_order(one for one in region.dims if one.block == region.block):
            self._read_inside(op)
            if op in region.ends:
                found[op] = self._loop_of(op)
                self.available[op.results[0]] = found[op] + 1
            if op == region.top:
                self.first = found[op]
        self.ends = [[] for _ in range(max(found.values()) + 1)]
        for op, loop in found.items():
            self.ends[loop].append(op)
        return self

    def _loop_of(self, op: ir.Operation) -> int:
        return self.first if op.results[0] in self.forms else self._level(op)

    def _level(self, op: ir.Operation) -> int:
        return max(map(self._level_of, op.operands), default=0)

    def _level_of(self, value: Value) -> int:
        """Returns how many loops come before a value."""
        waiting = [value]
        while waiting:
            made = self._unknown(waiting[-1])
            if made is None:
                waiting.pop()
                continue
            read = (*made.operands, *(captured_by(made) if len(made.regions) else ()))
            missing = [one for one in read if self._unknown(one) is not None]
            if missing and self.looked_at < _MOST_LOOKED_AT:
                waiting += missing
                continue
            # Whoever is not followed to its beginnings comes after all that stands before it.
            level = max(self.available.values()) if missing else max(map(self._known, read), default=0)
            self.available.update((one, level) for one in made.results)
            self.looked_at += 1
        return self._known(value)

    def _known(self, value: Value) -> int:
        return self.levels.get(value, self.available.get(value, 0))

    def _unknown(self, value: Value) -> ir.Operation | None:
        """Returns what makes a value outside of the region, if that might come after a loop, and is not known yet."""
        made = maker_of(value)
        if value in self.levels or value in self.available or made is None or made.block != self.region.block:
            return None
        return None if made.is_before_in_block(self.begin) else made

    def _read_inside(self, op: ir.Operation) -> None:
        """Notes the level of what an op inside computes, and its form."""
        level = self._level(op)
        if op not in self.region.ends:
            self.levels.update((value, level) for value in op.results)
        if self.region.top in self.region.ends and self.region.top.results[0] in self.available:
            form = self._form(op, level)
            is_given = op in self.region.ends and self.region.ends[op].results[0].is_score
            if form is not None and (form.is_plain or not is_given):
                self.forms[op.results[0]] = form

    def _form(self, op: ir.Operation, level: int) -> Form | None:
        """Returns the form of what an op gives in the first loop; None where it is of a later one."""
        if level <= self.first:
            return PLAIN
        if len(op.results) != 1:
            return None
        forms = [self._operand_form(op, number) for number in range(len(op.operands))]
        if any(form is None for form in forms):
            return None
        return self._joined(op, [form for form in forms if form is not None])

    def _operand_form(self, op: ir.Operation, number: int) -> Form | None:
        value = op.operands[number]
        if value in self.levels:
            return PLAIN if self.levels[value] <= self.first else self.forms.get(value)
        level = self.available.get(value, 0)
        if level <= self.first:
            return PLAIN
        if level > self.first + 1 or op.name != BROADCAST:
            return None
        dims = tuple(None if size == 1 else dim for dim, size in enumerate(shape_of(value)))
        if self._is_largest(value, self.region.dims[op].operands[number]):
            return Form(largest=dims, is_one=True)
        return Form((Factor(value, dims),), is_one=True)

    def _is_largest(self, row: Value, at: At) -> bool:
        """Says whether a row is computed of the largest numbers alone; it is what is subtracted, from then on."""
        if self.largest is not None:
            return bool(self.largest == row)
        dims, chain, waiting = {row: at}, dict[ir.Operation, None](), [row]
        while waiting:
            value = waiting.pop()
            made = maker_of(value)
            if value == self.region.top.results[0] or self.available.get(value, 0) <= self.first:
                continue
            if made is None or made.name not in FUSIBLE or made.block != self.region.block:
                return False
            found = dims_of(made, at=dims[value])
            if found is None or any(
                dims.setdefault(value, at) != at for value, at in zip(made.operands, found.operands, strict=True)
            ):
                return False
            chain[made] = None
            waiting += made.operands
        if dims.get(self.region.top.results[0]) != self.region.dims[self.region.top].results[0]:
            return False
        self.largest, self.row_ops, self.row_at = row, in_order(chain), dims
        return True

    def _joined(self, op: ir.Operation, forms: Sequence[Form]) -> Form | None:
        if all(form.is_plain for form in forms):
            return PLAIN
        match op.name:
            case "stablehlo.subtract" if forms[0].is_plain and forms[1].is_one and forms[1].largest is not None:
                return replace(forms[1], is_one=False, is_shifted=True)
            case name if name == EXPONENTIAL and forms[0].is_shifted:
                return replace(forms[0], is_shifted=False)
        if any(form.is_shifted or (form.is_one and form.largest is not None) for form in forms):
            return self._moved(op, 0, forms[0]) if op.name in _KEEPING and forms[0].is_one else None
        return self._linear(op, forms)

    def _linear(self, op: ir.Operation, forms: Sequence[Form]) -> Form | None:
        """Returns the form of what an op gives that is linear in what it reads, as it was before factors of rows."""
        match op.name:
            case name if name in _KEEPING and (keeps_numbers(op) or _is_boolean(op.operands[0])):
                return self._moved(op, 0, forms[0])
            case "stablehlo.negate":
                return replace(forms[0], is_one=False)
            case "stablehlo.multiply" | "stablehlo.dot_general":
                moved = [self._moved(op, number, form) for number, form in enumerate(forms)]
                return _times(moved[0], moved[1])
            case "stablehlo.divide":
                if forms[1].is_plain:
                    return replace(forms[0], is_one=False)
                is_zeroed = any(one.zero_where is not None for one in forms[1].factors)
                if forms[1].largest is not None or not forms[1].is_one or is_zeroed:
                    return None
                inverse = tuple(replace(one, divides=not one.divides) for one in forms[1].factors)
                return _times(forms[0], Form(inverse, is_one=True))
            case "stablehlo.add" | "stablehlo.subtract":
                return forms[0] if forms[0] == forms[1] and not forms[0].is_one else None
            case "stablehlo.select" if forms[0].is_plain:
                return self._selected(op, forms[1:])
            case "stablehlo.select" if forms[0].is_one:
                return self._zeroed(op, forms)
            case "stablehlo.reduce" if reduction_of(op) == "add":
                return self._moved(op, 0, forms[0])
        return None

    def _selected(self, op: ir.Operation, forms: Sequence[Form]) -> Form | None:
        """Returns the form of a choice between a value and zero, or between two of one form."""
        kept = [form for form, value in zip(forms, list(op.operands)[1:], strict=True) if not is_zero(value)]
        if not kept:
            return PLAIN
        return kept[0] if all(form == kept[0] for form in kept) and not kept[0].is_one else None

    def _zeroed(self, op: ir.Operation, forms: Sequence[Form]) -> Form | None:
        """Returns the form of what is zero in some rows, which are known behind the loop."""
        zeros = [is_zero(value) for value in list(op.operands)[1:]]
        if sum(zeros) != 1 or len(forms[0].factors) != 1:
            return None
        kept, (row,) = 1 + zeros.index(False), forms[0].factors
        self.kept[op] = op.operands[kept]
        return replace(forms[kept], factors=(*forms[kept].factors, replace(row, zero_where=zeros[0])))

    def _moved(self, op: ir.Operation, operand: int, form: Form) -> Form | None:
        """Returns the form of an operand with the dims of an op's result; None where a row is summed over."""
        if form.is_plain:
            return form
        factors = []
        for one in form.factors:
            dims = moved(op, operand, one.dims)
            if dims is None:
                return None
            factors.append(replace(one, dims=dims))
        largest = None if form.largest is None else moved(op, operand, form.largest)
        if form.largest is not None and largest is None:
            return None
        return replace(
            form, factors=tuple(factors), largest=largest, is_one=form.is_one and op.name not in (DOT, REDUCE)
        )


def _times(first: Form | None, second: Form | None) -> Form | None:
    """Returns the form of a product; None where it has several exponentials."""
    if first is None or second is None or (first.largest is not None and second.largest is not None):
        return None
    largest = first.largest if first.largest is not None else second.largest
    return Form((*first.factors, *second.factors), largest, first.is_one and second.is_one)


def keeps_numbers(op: ir.Operation) -> bool:
    """Says whether an op of one operand gives floating-point numbers for such, so that it rounds them at most."""
    kinds = (ir.RankedTensorType(value.type).element_type for value in (op.operands[0], op.results[0]))
    return all(isinstance(kind, ir.FloatType) for kind in kinds)


def _is_boolean(value: Value) -> bool:
    element = ir.RankedTensorType(value.type).element_type
    return isinstance(element, ir.IntegerType) and element.width == 1


def is_zero(value: Value) -> bool:
    """Says whether all elements of a value are zero, through conversions."""
    made = maker_of(value)
    while made is not None and made.name in (BROADCAST, CONVERT):
        value = made.operands[0]
        made = maker_of(value)
    return is_constant(value, 0)
