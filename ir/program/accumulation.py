"""A step in the form of an accumulation program, with a loop over micro-batches.

Its parts are what comes before the loop, what the loop carries, and what follows.

Whoever wrote the loop, what it carries is of three kinds: *counters*, which go from a constant by a constant in each
round (the number of the micro-batch among them); *kept* values, which go round as they came, and are read as what they
came from; and what is accumulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import captured_by, end_of, maker_of
from rhino.ir.program.numerics import FUSIBLE, SOURCES
from rhino.ir.program.trip_count import constant_of, step_of, trip_count

if TYPE_CHECKING:
    from rhino.ir.graph.graph import Loop
    from rhino.ir.program.program import Program

MICRO_BATCHES: Final = "rhino.micro_batches"
"""On a `stablehlo.while`: it runs once for each of so many micro-batches."""

AnyValue = ir.Value[Any]


def accumulation_loop(program: Program) -> Loop | None:
    """Returns the loop over micro-batches of a program as a graph, None where there is none."""
    return next((loop for loop in program.graph.loops if MICRO_BATCHES in program.ops[loop.op].attributes), None)


@dataclass(frozen=True, slots=True)
class Counter:
    """A carried integer that is `start + step * i` in micro-batch i."""

    start: int
    step: int


@dataclass(frozen=True, eq=False)
class Accumulation:
    """The parts of an accumulation program.

    `carried[k]` says what the loop's k-th value is: a counter, kept, or accumulated (None); `following[k]` is what the
    body makes of it.
    """

    entry: func.FuncOp
    loop: ir.Operation
    before: list[ir.Operation]
    body: list[ir.Operation]
    after: list[ir.Operation]
    returned: list[AnyValue]
    carried: list[Counter | AnyValue | None]
    following: list[AnyValue]
    num_micro_batches: int
    free: frozenset[AnyValue] = field(repr=False)

    def accumulated(self) -> Iterator[tuple[int, AnyValue, AnyValue]]:
        """Yields for each accumulated value its number, its argument of the body, and what the body makes of it."""
        for number, (kind, argument) in enumerate(
            zip(self.carried, self.loop.regions[1].blocks[0].arguments, strict=True)
        ):
            if kind is None:
                yield number, argument, self.following[number]


def read_accumulation(entry: func.FuncOp, file: str = "") -> Accumulation:
    """Returns the parts of `entry`.

    Raises:
        RhinoError: RHI-SPLIT-001 where it has no loop over micro-batches, or several, or one that runs another number
            of times.
    """
    ops = [view.operation for view in entry.regions[0].blocks[0].operations]
    loops = [number for number, op in enumerate(ops) if MICRO_BATCHES in op.attributes]
    if len(loops) != 1:
        raise RhinoError(
            "RHI-SPLIT-001",
            f"the program needs one loop over micro-batches; it has {len(loops) or 'none'}",
            place_of(entry.location, file) if loops else Place(file),
            fix="divide it first, for example with rhino-micro-batch{num=4}",
        )
    at = loops[0]
    loop = ops[at]
    body = loop.regions[1].blocks[0]
    inner = [view.operation for view in body.operations][:-1]
    following = list(end_of(body).operands)
    carried = [_kind(loop, number, value) for number, value in enumerate(following)]
    count = ir.IntegerAttr(loop.attributes[MICRO_BATCHES]).value
    if trip_count(loop.opview) != count:
        raise RhinoError(
            "RHI-SPLIT-001",
            f"the loop says that it runs for {count} micro-batches, and it is not seen to run so often",
            place_of(loop.location, file),
            fix="count from 0 by 1 up to that number",
        )
    free = _free_values([*ops[:at], *inner, *ops[at + 1 : -1]], loop, carried)
    returned = list(end_of(entry.regions[0].blocks[0]).operands)
    return Accumulation(
        entry, loop, ops[:at], inner, ops[at + 1 : -1], returned, carried, following, count, frozenset(free)
    )


def _kind(loop: ir.Operation, number: int, result: AnyValue) -> Counter | AnyValue | None:
    body = loop.regions[1].blocks[0]
    if result == body.arguments[number]:
        kept: AnyValue = loop.operands[number]
        return kept
    start, step = constant_of(loop.operands[number]), step_of(body, number)
    return Counter(start, step) if start is not None and step is not None else None


def _free_values(
    ops: list[ir.Operation], loop: ir.Operation, carried: list[Counter | AnyValue | None]
) -> set[AnyValue]:
    """The values that follow from constants and counters alone: they are computed wherever they are read."""
    counters = [number for number, kind in enumerate(carried) if isinstance(kind, Counter)]
    free: set[AnyValue] = {side[k] for side in (loop.regions[1].blocks[0].arguments, loop.results) for k in counters}
    for op in ops:
        if op.name in SOURCES or (
            op.name in FUSIBLE and op.operands and all(_is_free(value, loop, carried, free) for value in op.operands)
        ):
            free.update(op.results)
    return free


def _is_free(
    value: AnyValue, loop: ir.Operation, carried: list[Counter | AnyValue | None], free: set[AnyValue]
) -> bool:
    kept = outside(value, loop, carried)
    return (value if kept is None else kept) in free


def outside(value: AnyValue, loop: ir.Operation, carried: list[Counter | AnyValue | None]) -> AnyValue | None:
    """Returns what a kept value of the loop came from, or None for any other value."""
    number = carried_number(value, loop)
    kind = carried[number] if number is not None else None
    return kind if kind is not None and not isinstance(kind, Counter) else None


def carried_number(value: AnyValue, loop: ir.Operation) -> int | None:
    """Returns which of the loop's values `value` is, in its body or after it, or None."""
    if isinstance(value, ir.BlockArgument):
        return value.arg_number if value.owner == loop.regions[1].blocks[0] else None
    return ir.OpResult(value).result_number if maker_of(value) == loop.operation else None


def reads_of(op: ir.Operation) -> list[AnyValue]:
    """Returns the values that an op and its regions read from around it, in order, each once."""
    return list(dict.fromkeys([*op.operands, *(captured_by(op) if len(op.regions) else ())]))
