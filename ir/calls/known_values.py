"""What is known of the values of a kernel, and what arithmetic makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any, Final

import numpy as np

from rhino.ir.calls.index_forms import Form, Ints, Variable, on_one_variable, period_of
from rhino.ir.mlir.bindings import ir

_BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
}
_SAME_AS: Final = {
    "llvm.add": "arith.addi",
    "llvm.mul": "arith.muli",
    "llvm.sub": "arith.subi",
    "arith.index_castui": "arith.index_cast",
}
_DIVISIONS: Final = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")
_UNSIGNED: Final = ("arith.divui", "arith.remui", "arith.maxui", "arith.minui")
_CASTS: Final = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
_COMPARED: Final = (np.equal, np.not_equal, *(np.less, np.less_equal, np.greater, np.greater_equal) * 2)
_FIRST_UNSIGNED: Final = 6
"""The number of the first predicate of `arith.cmpi` that takes its operands for unsigned."""
Periods = Mapping[int, int]
"""For each dim of the grid that a value follows from, after how many programs along it the value repeats."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of a value: the integer or the offset that it is, or what it follows from.

    `of` is empty beside a `form`, which says more. `low` and `high` bound an integer that has none. A pointer is into
    the memory of argument `root`. A condition that holds makes `facts` at most 0.
    """

    form: Form | None = None
    of: Periods = field(default_factory=dict[int, int])
    low: int | None = None
    high: int | None = None
    root: int | None = None
    facts: tuple[Form, ...] = ()

    @property
    def follows(self) -> Periods:
        """What it follows from, whether or not it has a form."""
        if self.form is None:
            return self.of
        tables = self.form.tables.items()
        return {variable.number: period_of(table) for variable, table in tables if variable.kind == "program"}

    @property
    def least(self) -> int | None:
        """The least that it can be, None where there is none."""
        return self.form.low if self.form is not None else self.low

    @property
    def most(self) -> int | None:
        """The most that it can be, None where there is none."""
        return self.form.high if self.form is not None else self.high

    def renamed(self, lanes: Mapping[int, int]) -> Known:
        """Returns the same value on a tensor that has the dims of this one elsewhere."""
        form = self.form.renamed(lanes) if self.form is not None else None
        return replace(self, form=form, facts=tuple(fact.renamed(lanes) for fact in self.facts))


def merged(every: Iterable[Periods]) -> Periods:
    """Returns from what a value follows that follows from several others."""
    found = dict[int, int]()
    for periods in every:
        for number, period in periods.items():
            found[number] = lcm(found.get(number, 1), period)
    return found


def unknown(known: Known, more: Periods) -> Known:
    """Returns what stays known of a value that changes, and that follows from `more` as well."""
    return Known(of=merged([known.follows, more]))


def counted(variable: Variable) -> Form:
    """Returns the integer that counts along a variable, from 0."""
    return Form.of(0, {variable: np.arange(variable.size)})


def added(left: Known, right: Known, sign: int) -> Known:
    """Returns the sum of two values, or their difference, with a `sign` of -1."""
    if left.form is not None and right.form is not None:
        return Known(left.form + right.form.times(sign))
    of = merged([left.follows, right.follows])
    if left.least is None or left.most is None or right.least is None or right.most is None:
        return Known(of=of)  # it may wrap around
    low, high = (right.least, right.most) if sign > 0 else (-right.most, -right.least)
    return Known(of=of, low=left.least + low, high=left.most + high)


def constant(value: ir.Attribute) -> Known:
    """Returns the integer that an attribute is everywhere."""
    if isinstance(value, ir.BoolAttr):
        return Known(Form(int(value.value)))
    if isinstance(value, ir.IntegerAttr):
        return Known(Form(value.value))
    if isinstance(value, ir.DenseIntElementsAttr) and value.is_splat:
        return constant(value.get_splat_value())
    return Known()


def computed(op: ir.Operation, operands: Sequence[Known]) -> Known | None:
    """Returns what an op of arithmetic gives, None for other ops."""
    name = _SAME_AS.get(op.name, op.name)
    if name == "arith.addi":
        return added(operands[0], operands[1], 1)
    if name == "arith.subi":
        return added(operands[0], operands[1], -1)
    if name in _CASTS:
        return _cast(op, operands[0])
    if name == "arith.cmpi":
        return _compared(op, *operands)
    if name == "arith.select":
        return _selected(*operands)
    if name not in _BINARY and name not in _DIVISIONS:
        return None
    forms = [one.form for one in operands if one.form is not None]
    if name in _UNSIGNED and not all(one.least is not None and one.least >= 0 for one in operands):
        return Known(of=merged(one.follows for one in operands))
    if len(forms) == len(operands):
        found = _quotient(name, *forms) if name in _DIVISIONS else _combined(name, *forms)
        if found is not None:
            return Known(found, facts=_held(name, operands))
    low, high = _bounds(name, *operands)
    return Known(of=merged(one.follows for one in operands), low=low, high=high, facts=_held(name, operands))


def _combined(name: str, left: Form, right: Form) -> Form | None:
    if name == "arith.muli" and not (left.tables and right.tables):
        return left.times(right.low) if not right.tables else right.times(left.low)
    if name.startswith(("arith.min", "arith.max")):
        for one, other in ((left, right), (right, left)):
            if one.high <= other.low:
                return one if name.startswith("arith.min") else other
    return on_one_variable((left, right), _BINARY[name])


def _quotient(name: str, left: Form, right: Form) -> Form | None:
    """Returns what a division gives, or its remainder."""
    is_rest = name.startswith("arith.rem")
    if not right.tables and (both := left.divided(right.low)) is not None:
        return both[is_rest]
    if right.low <= 0:
        return None

    def divided(dividend: Ints, divisor: Ints) -> Ints:
        quotient: Ints = np.sign(dividend) * (abs(dividend) // divisor)  # towards zero
        rest: Ints = dividend - quotient * divisor
        return rest if is_rest else quotient

    return on_one_variable((left, right), divided)


def _bounds(name: str, left: Known, right: Known) -> tuple[int | None, int | None]:
    """Returns the least and the most that an op gives where no more is known of it."""
    lows, highs = (
        [one for one in ends if one is not None] for ends in ((left.least, right.least), (left.most, right.most))
    )
    if name.startswith("arith.min"):
        return (min(lows) if len(lows) == 2 else None), min(highs, default=None)
    if name.startswith("arith.max"):
        return max(lows, default=None), (max(highs) if len(highs) == 2 else None)
    least, most, divisor = left.least, left.most, right.least
    if name in _DIVISIONS and least is not None and least >= 0 and divisor is not None and divisor > 0:
        if name.startswith("arith.div"):
            return 0, (None if most is None else most // divisor)
        return 0, (None if right.most is None else right.most - 1)
    return None, None


def _held(name: str, operands: Sequence[Known]) -> tuple[Form, ...]:
    return tuple(fact for one in operands for fact in one.facts) if name == "arith.andi" else ()


def _cast(op: ir.Operation, operand: Known) -> Known:
    """Returns an integer in another type: the same where it fits there and none is taken for another."""
    is_truth = _width(op.operands[0].type) == 1
    least, most = operand.least, operand.most
    if op.name == "arith.extsi" and is_truth and operand.form is not None:
        return replace(operand, form=operand.form.times(-1), facts=())
    if op.name in ("arith.extui", "arith.index_castui") and (least is None or least < 0):
        least, most = (0, 1) if is_truth else (None, None)
        return Known(of=operand.follows, low=least, high=most)
    if op.name in ("arith.trunci", "arith.index_cast", "arith.index_castui"):
        is_bounded = least is not None and most is not None
        return fitted(operand, op.results[0].type) if is_bounded else Known(of=operand.follows)
    return replace(operand, facts=())


def _compared(op: ir.Operation, left: Known, right: Known) -> Known:
    kind = ir.IntegerAttr(op.attributes["predicate"]).value
    of = merged([left.follows, right.follows])
    if kind >= _FIRST_UNSIGNED and not all(one.least is not None and one.least >= 0 for one in (left, right)):
        return Known(of=of)
    if left.form is None or right.form is None:
        return Known(of=of)
    apart, compare = left.form - right.form, _COMPARED[kind]
    single = on_one_variable((apart,), lambda values: compare(values, 0))
    if single is not None:
        return Known(single, facts=(single.times(-1).plus(1),) if single.tables else ())
    always = {bool(compare(end, 0)) for end in (apart.low, apart.high)}
    if len(always) == 1 and (kind > 1 or apart.low > 0 or apart.high < 0):
        return Known(Form(int(always.pop())))
    return Known(of=of, low=0, high=1, facts=_facts(compare, apart))


def _facts(compare: Callable[..., Any], apart: Form) -> tuple[Form, ...]:
    """Returns what is at most 0 where a comparison of a form with 0 holds."""
    below, above = apart, apart.times(-1)
    if compare is np.equal:
        return below, above
    if compare in (np.less, np.less_equal):
        return (below.plus(compare is np.less),)
    if compare in (np.greater, np.greater_equal):
        return (above.plus(compare is np.greater),)
    return ()


def _selected(asked: Known, chosen: Known, other: Known) -> Known:
    if asked.form is not None and not asked.form.tables:
        return chosen if asked.form.low else other
    forms = (asked.form, chosen.form, other.form)
    if forms[0] is not None and forms[1] is not None and forms[2] is not None:
        found = on_one_variable((forms[0], forms[1], forms[2]), lambda asked, a, b: np.where(asked != 0, a, b))
        if found is not None:
            return Known(found)
    ends = [(one.least, one.most) for one in (chosen, other)]
    lows, highs = ([end for end in side if end is not None] for side in zip(*ends, strict=True))
    return Known(
        of=merged([asked.follows, chosen.follows, other.follows]),
        low=min(lows) if len(lows) == 2 else None,
        high=max(highs) if len(highs) == 2 else None,
    )


def fitted(known: Known, kind: ir.Type) -> Known:
    """Returns what is known of an integer that wraps around where it does not fit its type."""
    width = _width(kind)
    if not width or known.root is not None:
        return known
    low, high = known.least, known.most
    least, most = (0, 1) if width == 1 else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    if low is not None and high is not None and least <= low and high <= most:
        return known
    if known.form is None and (low is None or low >= least) and (high is None or high <= most):
        return known
    return Known(of=known.follows)


def element_of(kind: ir.Type) -> ir.Type:
    """Returns the type of a tensor's elements, and other types as they are."""
    return ir.RankedTensorType(kind).element_type if isinstance(kind, ir.RankedTensorType) else kind


def shape_of(kind: ir.Type) -> tuple[int, ...]:
    """Returns the sizes of a tensor, none for other types."""
    return tuple(ir.RankedTensorType(kind).shape) if isinstance(kind, ir.RankedTensorType) else ()


def is_integer(kind: ir.Type) -> bool:
    """Says whether a type is of integers."""
    return isinstance(element_of(kind), ir.IntegerType | ir.IndexType)


def _width(kind: ir.Type) -> int:
    element = element_of(kind)
    return ir.IntegerType(element).width if isinstance(element, ir.IntegerType) else 0
