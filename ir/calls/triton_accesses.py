"""What the programs of a Triton kernel load and store, and what decides what they store.

The kernel is run on integers that are sums over dims of the grid, loops, and dims of tensors (`Form`); of any other
value it is known from which dims of the grid it follows. What is loaded follows from none by itself: it is the same
wherever the memory is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, lcm, prod
from typing import Any, Final

import numpy as np

from rhino.ir.calls.index_forms import MOST_VALUES, Form, Ints, Variable, on_one_variable, period_of
from rhino.ir.graph.rules import CallWork
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.triton_kernels import TritonKernel, pointee_bytes

_PURE: Final = ("arith.", "math.")
_PURE_OPS: Final = frozenset(
    f"tt.{name}"
    for name in (
        "bitcast",
        "cat",
        "clampf",
        "dot",
        "fp_to_fp",
        "gather",
        "join",
        "mulhiui",
        "precise_divf",
        "precise_sqrt",
        "reduce",
        "reduce.return",
        "scan",
        "scan.return",
        "split",
    )
)
"""Ops whose results follow from their operands alone."""
_DOT: Final = "tt.dot"
_OUTSIDE: Final = ("tt.extern_elementwise", "tt.elementwise_inline_asm")
_REGISTER: Final = "%"
"""What names of registers start with in PTX; some of these say which program runs."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A load or a store at `offset` of argument `root`, `times` in each program on average, if `asked` are at most 0.

    `offset` and `facts` are the offset, and what is asked, of elements that are then accessed. An offset that is not
    known follows from the dims of the grid that `of` has. `decides` has those from which follows what is stored, or
    whether it is.
    """

    op: ir.Operation
    root: int
    offset: Form | None
    of: Periods
    asked: tuple[Form, ...]
    facts: tuple[Form, ...]
    decides: Periods
    times: float
    num_elements: int
    element_bytes: int

    @property
    def is_store(self) -> bool:
        """Says whether memory is written."""
        return self.op.name == "tt.store"

    @property
    def is_used(self) -> bool:
        """Says whether memory is written, or what is loaded is read: Pallas loads what it then overwrites."""
        return self.is_store or next(iter(self.op.results[0].uses), None) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The accesses of a kernel, what is known of its values, and its work.

    The work is that of a program on average: all operations, and those in products of `product_dtype`.
    """

    accesses: tuple[Access, ...]
    known: Mapping[ir.Value[Any], Known]
    flops: float
    product_flops: float
    product_dtype: str

    def work(self, num_programs: int) -> CallWork:
        """Returns the work of so many programs. What several load, or one again, is near by then, and counted once."""
        flops, products = round(self.flops * num_programs), round(self.product_flops * num_programs)
        return CallWork(flops, products, self.product_dtype, round(self._num_bytes(num_programs)))

    def _num_bytes(self, num_programs: int) -> float:
        found = 0.0
        for root in sorted({access.root for access in self.accesses}):
            own = [access for access in self.accesses if access.root == root and access.is_used]
            ends = [access.offset.most(access.facts) + 1 if access.offset is not None else inf for access in own]
            moved = sum(access.num_elements * access.times for access in own) * num_programs
            found += min(moved, max(ends, default=0)) * max((access.element_bytes for access in own), default=0)
        return found


class UnreadableError(Exception):
    """The kernel does what is not known here, or what no part of a grid does."""


def read_accesses(kernel: TritonKernel) -> Reading:
    """Returns what the programs of a kernel load and store.

    Raises UnreadableError where an op is not known, or is known not to leave parts alone: atomic ones, and volatile
    loads.
    """
    if max(kernel.bounds) > MOST_VALUES or min(kernel.bounds) < 1:
        raise UnreadableError
    machine = _Machine(kernel.bounds)
    for number, argument in enumerate(kernel.block.arguments):
        machine.known[argument] = Known(Form(0), root=number)
    machine.run(kernel.block)
    flops = sum(flops for flops, _ in machine.work.values())
    products = sum(flops for flops, is_product in machine.work.values() if is_product)
    first = next((op for op, (_, is_product) in machine.work.items() if is_product), None)
    dtype = str(ir.RankedTensorType(first.operands[0].type).element_type) if first is not None else ""
    return Reading(tuple(machine.accesses.values()), machine.known, flops, products, dtype)


def merged(every: Iterable[Periods]) -> Periods:
    """Returns from what a value follows that follows from several others."""
    found = dict[int, int]()
    for periods in every:
        for number, period in periods.items():
            found[number] = lcm(found.get(number, 1), period)
    return found


@dataclass(slots=True)
class _Machine:
    """Runs a kernel's ops on what is known of their operands."""

    bounds: tuple[int, ...]
    known: dict[ir.Value[Any], Known] = field(default_factory=dict[ir.Value[Any], Known])
    accesses: dict[ir.Operation, Access] = field(default_factory=dict[ir.Operation, Access])
    work: dict[ir.Operation, tuple[float, bool]] = field(default_factory=dict[ir.Operation, tuple[float, bool]])
    control: list[Periods] = field(default_factory=list[Periods])
    """What the loops and conditions around an op follow from."""
    facts: list[Form] = field(default_factory=list[Form])
    times: float = 1.0
    loops: dict[ir.Operation, int] = field(default_factory=dict[ir.Operation, int])

    def run(self, block: ir.Block) -> list[Known]:
        """Runs the ops of a block, and returns what its last one hands out."""
        for op in (view.operation for view in block.operations):
            operands = [self.known[value] for value in op.operands]
            if op.name in ("scf.yield", "scf.condition", "tt.return"):
                return operands
            for value, known in zip(op.results, self.results(op, operands), strict=True):
                self.known[value] = known
        return []

    def results(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        """Returns what is known of the results of an op."""
        match op.name:
            case "scf.for":
                return self._for(op, operands)
            case "scf.while":
                return self._while(op, operands)
            case "scf.if":
                return self._if(op, operands[0])
            case "tt.load":
                return [self._load(op, operands)]
            case "tt.store":
                self._store(op, operands)
                return []
        self._count(op)
        if len(op.results) == 1 and (known := self._known(op, operands)) is not None:
            return [_fitted(known, op.results[0].type)]
        _refuse_impure(op)
        return [Known(of=merged(one.follows for one in operands))] * len(op.results)

    def _known(self, op: ir.Operation, operands: Sequence[Known]) -> Known | None:
        """Returns what is known of the result of an op on integers, or on pointers; None for other ops."""
        match op.name:
            case "tt.get_program_id":
                axis = ir.IntegerAttr(op.attributes["axis"]).value
                return Known(_counted(Variable("program", axis, self.bounds[axis])))
            case "tt.get_num_programs":
                axis = ir.IntegerAttr(op.attributes["axis"]).value
                return Known(of={axis: self.bounds[axis]}, low=self.bounds[axis], high=self.bounds[axis])
            case "tt.make_range":
                start, end = (ir.IntegerAttr(op.attributes[name]).value for name in ("start", "end"))
                return Known(_counted(Variable("lane", 0, end - start)).plus(start))
            case "arith.constant":
                return _constant(op.attributes["value"])
            case "tt.addptr":
                return replace(_sum(operands[0], operands[1], 1), root=operands[0].root)
            case "tt.bitcast" if pointee_bytes(_element(op.results[0].type)):
                is_same = pointee_bytes(_element(op.results[0].type)) == pointee_bytes(_element(op.operands[0].type))
                return operands[0] if is_same else replace(operands[0], root=None)
            case "tt.splat" | "tt.broadcast" | "tt.expand_dims" | "tt.trans" | "tt.reshape":
                return _reshaped(op, operands[0])
        return _computed(op, operands) if _is_integer(op.results[0].type) else None

    def _load(self, op: ir.Operation, operands: Sequence[Known]) -> Known:
        if ir.BoolAttr(op.attributes["isVolatile"]).value:
            raise UnreadableError
        self._access(op, operands[0], operands[1] if len(operands) > 1 else None, {})
        return Known(of=merged(one.follows for one in operands[1:]))  # what replaces elements that are not loaded

    def _store(self, op: ir.Operation, operands: Sequence[Known]) -> None:
        decides = merged([*self.control, *(one.follows for one in operands[1:])])
        self._access(op, operands[0], operands[2] if len(operands) > 2 else None, decides)

    def _access(self, op: ir.Operation, pointer: Known, mask: Known | None, decides: Periods) -> None:
        kind = op.operands[0].type
        num_bytes = pointee_bytes(_element(kind))
        if pointer.root is None or num_bytes is None:
            raise UnreadableError
        facts = (*self.facts, *(mask.facts if mask is not None else ()))
        kept = [fact.within(facts) for fact in facts]
        offset = pointer.form.within(facts) if pointer.form is not None else None
        if any(fact is None for fact in kept) or (mask is not None and mask.most == 0):
            return  # this never happens
        self.accesses[op] = Access(
            op,
            pointer.root,
            offset,
            pointer.follows,
            facts,
            tuple(fact for fact in kept if fact is not None),
            decides,
            self.times,
            prod(_shape(kind)),
            num_bytes,
        )

    def _for(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        (lower, upper, step), starts = operands[:3], operands[3:]
        block, control = op.regions[0].blocks[0], merged(one.follows for one in operands[:3])
        counter, facts, times = self._counter(op, lower, upper, step)
        if times == 0:
            return starts
        self.known[block.arguments[0]] = counter
        carried = self._carried(list(block.arguments)[1:], starts, (block,), control, facts, times)
        return [one if one.form is not None else _unknown(one, control) for one in carried]

    def _counter(
        self, op: ir.Operation, lower: Known, upper: Known, step: Known
    ) -> tuple[Known, tuple[Form, ...], float]:
        """Returns the integer that counts in a loop, facts of it, and how often the loop runs on average."""
        stride = step.form.low if step.form is not None and not step.form.tables else 0
        low, high = lower.form, upper.most
        follows = merged(one.follows for one in (lower, upper, step))
        if low is None or high is None or stride < 1:
            return Known(of=follows), (), 1.0
        most = max(0, -(-(high - low.low) // stride))
        if most > MOST_VALUES or low.high + stride * most >= 1 << 31:
            return Known(of=follows), (), 1.0
        number = self.loops.setdefault(op, len(self.loops))
        form = low + _counted(Variable("loop", number, max(1, most))).times(stride)
        mean = upper.form.mean if upper.form is not None else high
        times = min(most, max(0.0, (mean - low.mean) / stride))
        return Known(form), (form.plus(1 - high),), times if most else 0.0

    def _while(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        before, after = (region.blocks[0] for region in op.regions)
        condition = Known()
        passed: list[Known] = []
        starts = [_unknown(one, {}) for one in operands]
        while True:
            for value, known in zip(before.arguments, starts, strict=True):
                self.known[value] = known
            condition, *passed = self.run(before)
            for value, known in zip(after.arguments, passed, strict=True):
                self.known[value] = known
            self.control.append(condition.follows)
            ends = self.run(after)
            self.control.pop()
            grown = [_unknown(one, end.follows) for one, end in zip(starts, ends, strict=True)]
            if all(one.of == other.of for one, other in zip(starts, grown, strict=True)):
                return [_unknown(one, condition.follows) for one in passed]
            starts = grown

    def _carried(
        self,
        values: Sequence[ir.Value[Any]],
        starts: Sequence[Known],
        blocks: tuple[ir.Block],
        control: Periods,
        facts: tuple[Form, ...],
        times: float,
    ) -> list[Known]:
        """Runs the body of a loop until nothing new follows from what it carries, which is returned."""
        (block,) = blocks
        ends = [view.operation for view in block.operations][-1].operands
        is_same = [end == value for end, value in zip(ends, values, strict=True)]
        carried = [one if same else _unknown(one, {}) for one, same in zip(starts, is_same, strict=True)]
        outer, self.times = self.times, self.times * times
        self.control.append(control)
        self.facts += facts
        while True:
            for value, known in zip(values, carried, strict=True):
                self.known[value] = known
            found = self.run(block)
            grown = [
                one if same else _unknown(one, end.follows)
                for one, end, same in zip(carried, found, is_same, strict=True)
            ]
            if all(one.follows == other.follows for one, other in zip(carried, grown, strict=True)):
                break
            carried = grown
        self.times = outer
        self.control.pop()
        del self.facts[len(self.facts) - len(facts) :]
        return carried

    def _if(self, op: ir.Operation, asked: Known) -> Sequence[Known]:
        share = asked.form.mean if asked.form is not None else None
        ends = list[list[Known]]()
        outer = self.times
        for region, part in zip(op.regions, (share, None if share is None else 1 - share), strict=False):
            if part == 0 or not len(region.blocks):
                continue
            facts = asked.facts if region == op.regions[0] else ()
            self.times = outer * (1 if part is None else part)
            self.control.append(asked.follows)
            self.facts += facts
            ends.append(self.run(region.blocks[0]))
            self.control.pop()
            del self.facts[len(self.facts) - len(facts) :]
        self.times = outer
        if len(ends) == 1:
            return ends[0]
        return [Known(of=merged([asked.follows, *(one.follows for one in every)])) for every in zip(*ends, strict=True)]

    def _count(self, op: ir.Operation) -> None:
        """Notes the work of an op: an operation for each element, or those of a product of matrices."""
        if op.name == _DOT:
            rows, columns = _shape(op.results[0].type)[-2:]
            inner = _shape(op.operands[0].type)[-1]
            batch = prod(_shape(op.results[0].type)[:-2])
            self.work[op] = (2.0 * batch * rows * columns * inner * self.times, True)
        elif op.name.startswith((*_PURE, "tt.reduce", "tt.scan", *_OUTSIDE)) and len(op.operands):
            sizes = [prod(_shape(value.type)) for value in (*op.operands, *op.results) if _shape(value.type)]
            self.work[op] = (max(sizes, default=0) * self.times, False)


def _unknown(known: Known, more: Periods) -> Known:
    """Returns what stays known of a value that changes, and that follows from `more` as well."""
    return Known(of=merged([known.follows, more]))


def _counted(variable: Variable) -> Form:
    return Form.of(0, {variable: np.arange(variable.size)})


def _sum(left: Known, right: Known, sign: int) -> Known:
    if left.form is not None and right.form is not None:
        return Known(left.form + right.form.times(sign))
    ends = (right.least, right.most) if sign > 0 else (right.most, right.least)
    low, high = (
        own + sign * other if own is not None and other is not None else None
        for own, other in zip((left.least, left.most), ends, strict=True)
    )
    return Known(of=merged([left.follows, right.follows]), low=low, high=high)


def _constant(value: ir.Attribute) -> Known:
    if isinstance(value, ir.BoolAttr):
        return Known(Form(int(value.value)))
    if isinstance(value, ir.IntegerAttr):
        return Known(Form(value.value))
    if isinstance(value, ir.DenseIntElementsAttr) and value.is_splat:
        return _constant(value.get_splat_value())
    return Known()


def lanes_after(op: ir.Operation) -> dict[int, int] | None:
    """Returns which dim of its result each dim of an op's operand becomes, None where elements change their order."""
    given, made = _shape(op.operands[0].type), _shape(op.results[0].type)
    if op.name == "tt.expand_dims":
        axis = ir.IntegerAttr(op.attributes["axis"]).value
        return {lane: lane + (lane >= axis) for lane in range(len(given))}
    if op.name == "tt.trans":
        order = list(ir.DenseI32ArrayAttr(op.attributes["order"]))
        return {lane: order.index(lane) for lane in range(len(given))}
    if op.name != "tt.reshape":
        return {lane: lane for lane in range(len(given))}
    lanes, others = ([lane for lane, size in enumerate(shape) if size > 1] for shape in (given, made))
    if [given[lane] for lane in lanes] != [made[lane] for lane in others] or "allow_reorder" in op.attributes:
        return None
    return dict(zip(lanes, others, strict=True))


def _reshaped(op: ir.Operation, operand: Known) -> Known:
    """Returns what is known of a tensor that has its operand's elements elsewhere, or several times."""
    lanes = lanes_after(op)
    if lanes is not None:
        return operand.renamed(lanes)
    forms = [*operand.facts, *([operand.form] if operand.form is not None else [])]
    if any(variable.kind == "lane" for form in forms for variable in form.tables):
        return Known(of=operand.follows, low=operand.least, high=operand.most)
    return operand


def _computed(op: ir.Operation, operands: Sequence[Known]) -> Known | None:
    """Returns what an op of arithmetic gives, None for other ops."""
    if op.name == "arith.addi":
        return _sum(operands[0], operands[1], 1)
    if op.name == "arith.subi":
        return _sum(operands[0], operands[1], -1)
    if op.name in _CASTS:
        return _cast(op, operands[0])
    if op.name == "arith.cmpi":
        return _compared(op, *operands)
    if op.name == "arith.select":
        return _selected(*operands)
    if op.name not in _BINARY and op.name not in _DIVISIONS:
        return None
    forms = [one.form for one in operands if one.form is not None]
    if op.name in _UNSIGNED and not all(one.least is not None and one.least >= 0 for one in operands):
        return Known(of=merged(one.follows for one in operands))
    if len(forms) == len(operands):
        found = _quotient(op.name, *forms) if op.name in _DIVISIONS else _combined(op.name, *forms)
        if found is not None:
            return Known(found, facts=_held(op.name, operands))
    low, high = _bounds(op.name, *operands)
    return Known(of=merged(one.follows for one in operands), low=low, high=high, facts=_held(op.name, operands))


def _combined(name: str, left: Form, right: Form) -> Form | None:
    if name == "arith.muli" and not (left.tables and right.tables):
        return left.times(right.low) if not right.tables else right.times(left.low)
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
    if op.name == "arith.extui" and (least is None or least < 0):
        least, most = (0, 1) if is_truth else (None, None)
        return Known(of=operand.follows, low=least, high=most)
    if op.name == "arith.trunci":
        return _fitted(operand, op.results[0].type)
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


def _fitted(known: Known, kind: ir.Type) -> Known:
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


def _element(kind: ir.Type) -> ir.Type:
    return ir.RankedTensorType(kind).element_type if isinstance(kind, ir.RankedTensorType) else kind


def _shape(kind: ir.Type) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(kind).shape) if isinstance(kind, ir.RankedTensorType) else ()


def _is_integer(kind: ir.Type) -> bool:
    return isinstance(_element(kind), ir.IntegerType | ir.IndexType)


def _width(kind: ir.Type) -> int:
    element = _element(kind)
    return ir.IntegerType(element).width if isinstance(element, ir.IntegerType) else 0


def _refuse_impure(op: ir.Operation) -> None:
    """Raises UnreadableError where more than its operands may decide what an op gives, or it does more than give it."""
    for one in walk(op):
        is_pure = one.name.startswith(_PURE) or one.name in _PURE_OPS
        if one.name in _OUTSIDE and ir.BoolAttr(one.attributes["pure"]).value:
            code = one.attributes.get("asm_string", None)
            is_pure = not isinstance(code, ir.StringAttr) or _REGISTER not in code.value
        if not is_pure:
            raise UnreadableError
