"""Runs a kernel on what is known of its values, and notes what it loads and stores.

Integers are sums over dims of the grid, loops, and dims of tensors (`Form`); of any other value it is known from which
dims of the grid it follows. What is loaded follows from none by itself: it is the same wherever the memory is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from rhino.ir.calls.index_forms import MOST_VALUES, Form, Variable
from rhino.ir.calls.known_values import Known, Periods, counted, merged, unknown
from rhino.ir.graph.rules import CallWork
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of

_ENDS: Final = ("scf.yield", "scf.condition", "tt.return", "gpu.terminator")
"""Ops that hand out the values of a block."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A load or a store at `offset` of argument `root`, `times` in each program on average, if `asked` are at most 0.

    `offset` and `facts` are the offset, and what is asked, of elements that are then accessed. An offset that is not
    known follows from the dims of the grid that `of` has. `decides` has those from which follows what is stored, or
    whether it is.
    """

    op: ir.Operation
    is_store: bool
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
    def is_used(self) -> bool:
        """Says whether memory is written, or what is loaded is read: Pallas loads what it then overwrites."""
        results = [one for one in self.op.results if str(one.type) != "!llvm.void"]
        return self.is_store or not results or any(next(iter(one.uses), None) is not None for one in results)


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
    """The kernel does what is not known here, or what no part of a grid does; in words, where it ends a reading."""


@dataclass(slots=True)
class Machine:
    """Runs a kernel's ops on what is known of their operands."""

    bounds: tuple[int, ...]
    known: dict[ir.Value[Any], Known] = field(default_factory=dict[ir.Value[Any], Known])
    accesses: dict[ir.Operation, Access] = field(default_factory=dict[ir.Operation, Access])
    work: dict[ir.Operation, tuple[float, str]] = field(default_factory=dict[ir.Operation, tuple[float, str]])
    """Operations of each op, and in products of matrices the type of what is multiplied."""
    control: list[Periods] = field(default_factory=list[Periods])
    """What the loops and conditions around an op follow from."""
    facts: list[Form] = field(default_factory=list[Form])
    times: float = 1.0
    loops: dict[ir.Operation, int] = field(default_factory=dict[ir.Operation, int])

    def __post_init__(self) -> None:
        """Raises UnreadableError for grids that have no programs, or too many to tell apart."""
        if not all(1 <= bound <= MOST_VALUES for bound in self.bounds):
            raise UnreadableError(f"its grid is not of 1 to {MOST_VALUES:,} programs along each dim")

    def reading(self) -> Reading:
        """Returns what was found."""
        flops = sum(flops for flops, _ in self.work.values())
        products = sum(flops for flops, dtype in self.work.values() if dtype)
        dtype = next((dtype for _, dtype in self.work.values() if dtype), "")
        return Reading(tuple(self.accesses.values()), self.known, flops, products, dtype)

    def run(self, block: ir.Block) -> list[Known]:
        """Runs the ops of a block, and returns what its last one hands out."""
        for op in (view.operation for view in block.operations):
            operands = [self.known[value] for value in op.operands]
            if op.name in _ENDS:
                return operands
            try:
                results = self.results(op, operands)
            except UnreadableError as error:
                if error.args:
                    raise
                raise UnreadableError(f"it is not known what '{op.name}' in it does, or where") from None
            self.known |= zip(op.results, results, strict=True)
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
        return self.plain(op, operands)

    def plain(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        """Returns what is known of the results of an op that runs no block; raises UnreadableError for unknown ops."""
        raise NotImplementedError

    def access(
        self, op: ir.Operation, pointer: Known, mask: Known, decides: Periods | None, sizes: tuple[int, int]
    ) -> None:
        """Notes an access by an op, of so many elements, and so many bytes each, where `mask` holds.

        It is a store where something `decides` what is stored.
        """
        facts = (*self.facts, *mask.facts)
        kept = [fact.within(facts) for fact in facts]
        if pointer.root is None:
            raise UnreadableError
        if any(fact is None for fact in kept) or mask.most == 0:
            return  # this never happens
        self.accesses[op] = Access(
            op,
            decides is not None,
            pointer.root,
            pointer.form.within(facts) if pointer.form is not None else None,
            pointer.follows,
            facts,
            tuple(fact for fact in kept if fact is not None),
            decides or {},
            self.times,
            *sizes,
        )

    def _for(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        (lower, upper, step), starts = operands[:3], operands[3:]
        block, control = op.regions[0].blocks[0], merged(one.follows for one in operands[:3])
        counter, facts, times = self._counter(op, lower, upper, step)
        if times == 0:
            return starts
        self.known[block.arguments[0]] = counter
        carried = self._carried(list(block.arguments)[1:], starts, block, control, facts, times)
        return [one if one.form is not None else unknown(one, control) for one in carried]

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
        if not most:
            return Known(of=follows), (), 0.0
        if most > MOST_VALUES or low.high + stride * most >= 1 << 31:
            return Known(of=follows), (), 1.0
        number = self.loops.setdefault(op, len(self.loops))
        form = low + counted(Variable("loop", number, most)).times(stride)
        mean = upper.form.mean if upper.form is not None else high
        times = min(most, max(1 / MOST_VALUES, (mean - low.mean) / stride))  # it runs for some
        return Known(form), (form.plus(1 - high),), times

    def _while(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        before, after = (region.blocks[0] for region in op.regions)
        starts, asked = [unknown(one, {}) for one in operands], dict[int, int]()
        while True:
            self.control.append(asked)
            self.known |= zip(before.arguments, starts, strict=True)
            condition, *passed = self.run(before)
            self.known |= zip(after.arguments, passed, strict=True)
            self.control[-1] = condition.follows
            ends = self.run(after)
            self.control.pop()
            grown = [unknown(one, end.follows) for one, end in zip(starts, ends, strict=True)]
            if asked == condition.follows and all(one.of == other.of for one, other in zip(starts, grown, strict=True)):
                return [unknown(one, asked) for one in passed]
            starts, asked = grown, dict(condition.follows)

    def _carried(
        self,
        values: Sequence[ir.Value[Any]],
        starts: Sequence[Known],
        block: ir.Block,
        control: Periods,
        facts: tuple[Form, ...],
        times: float,
    ) -> list[Known]:
        """Runs the body of a loop until nothing new follows from what it carries, which is returned."""
        ends = end_of(block).operands
        is_same = [end == value for end, value in zip(ends, values, strict=True)]
        carried = [one if same else unknown(one, {}) for one, same in zip(starts, is_same, strict=True)]
        outer, self.times = self.times, self.times * times
        self.control.append(control)
        self.facts += facts
        while True:
            self.known |= zip(values, carried, strict=True)
            found = self.run(block)
            grown = [
                one if same else unknown(one, end.follows)
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
