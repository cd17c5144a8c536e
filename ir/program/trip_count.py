"""How often a loop runs, where its program shows it.

The loop counts from a constant by constant steps until the counter passes a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of, maker_of

_MIRRORED: Final = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def trip_count(loop: ir.OpView) -> int | None:
    """Returns how often a `stablehlo.while` runs, or None.

    Recognised: the condition compares a counter with a bound, in either order, by LT, LE, GT, GE or NE; the counter
    starts at a constant, and the body adds a constant to it or subtracts one; the bound is a constant, or carried round
    as it came from one. (So loops come out of JAX's `scan`, `fori_loop` and `while_loop`.) A counter that would wrap
    round is not looked for.
    """
    test = _test(loop.operation)
    if test is None:
        return None
    start, bound = constant_of(loop.operands[test.counter]), test.bound
    step = step_of(loop.regions[1].blocks[0], test.counter)
    if start is None or step is None or step == 0:
        return None
    return _count(start, bound, step, test.direction)


def counter_of(loop: ir.OpView) -> int | None:
    """Returns the number of the carried value by which a `stablehlo.while` counts how often it runs, or None."""
    test = _test(loop.operation)
    return test.counter if test is not None else None


def _count(start: int, bound: int, step: int, direction: str) -> int | None:
    """Returns the least number of steps after which the test fails; None if it never does."""
    if direction == "NE":
        trips, rest = divmod(bound - start, step)
        return trips if not rest and trips >= 0 else None
    if direction in ("GT", "GE"):
        start, bound, step = -start, -bound, -step
    if direction in ("LE", "GE"):
        bound += 1
    if start >= bound:
        return 0
    return -(-(bound - start) // step) if step > 0 else None


@dataclass(frozen=True, slots=True)
class _Test:
    """A loop goes on while carried value `counter` stands in `direction` to `bound`."""

    counter: int
    direction: str
    bound: int


def _test(loop: ir.Operation) -> _Test | None:
    condition, body = (region.blocks[0] for region in loop.regions)
    compare = maker_of(_returned(condition)[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    direction = (
        str(compare.attributes["comparison_direction"])
        .removeprefix("#stablehlo<comparison_direction ")
        .removesuffix(">")
    )
    left, right = compare.operands
    for side, other, comparison in ((left, right, direction), (right, left, _MIRRORED.get(direction, ""))):
        counter = _argument_number(side, condition)
        bound = _fixed(loop, condition, body, other)
        if counter is not None and bound is not None and comparison in _MIRRORED:
            return _Test(counter, comparison, bound)
    return None


def _fixed(loop: ir.Operation, condition: ir.Block, body: ir.Block, value: ir.Value[ir.Type]) -> int | None:
    """Returns the number that a value of the condition has in every round, if it is known."""
    number = _argument_number(value, condition)
    if number is None:
        return constant_of(value)
    return constant_of(loop.operands[number]) if _returned(body)[number] == body.arguments[number] else None


def step_of(body: ir.Block, counter: int) -> int | None:
    """Returns the constant that the body adds to carried value `counter`."""
    op = maker_of(_returned(body)[counter])
    if op is None or op.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = op.operands
    if _argument_number(left, body) == counter:
        by = constant_of(right)
        return -by if by is not None and op.name == "stablehlo.subtract" else by
    return constant_of(left) if op.name == "stablehlo.add" and _argument_number(right, body) == counter else None


def _returned(block: ir.Block) -> list[ir.Value[ir.Type]]:
    return list(end_of(block).operands)


def _argument_number(value: ir.Value[ir.Type], block: ir.Block) -> int | None:
    return value.arg_number if isinstance(value, ir.BlockArgument) and value.owner == block else None


def constant_of(value: ir.Value[ir.Type]) -> int | None:
    """Returns the integer that a value of one element is known to be, or None."""
    op = maker_of(value)
    if op is None or op.name != "stablehlo.constant":
        return None
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or len(attribute) != 1:
        return None
    return int(attribute[0])
