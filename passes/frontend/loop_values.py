"""What goes into a loop and comes out of it as values of their own, so that each place can choose how they lie.

What a loop carries lies in one way from its start to all of its uses. A start that other ops read too could not be what
the loop wants, and of a sum that a loop leaves in parts each reader would join the parts for itself. What a loop
carries only to read it, and depends on constants alone (a mask, say), it need not carry: computed in the body it is
fused into its readers, as it is outside of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import maker_of, walk
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.identity import is_constant
from rhino.ir.program.numerics import FUSIBLE, SOURCES
from rhino.ir.program.program import CARRIED

Value = ir.Value[Any]

_LOOP: Final = "stablehlo.while"


def compute_constants(entry: func.FuncOp) -> None:
    """Makes loops compute in their bodies what they would carry only to read it.

    Only what depends on constants alone is computed there.
    """
    for loop in [op for op in walk(entry.operation) if op.name == _LOOP]:
        _compute_constants(loop)


def own_values(entry: func.FuncOp) -> None:
    """Gives each loop constant starts of its own, and a loop over micro-batches a value of its own after each sum.

    This is for sums that start from zeros.

    A barrier, for it may lie in another way than what goes past it, and XLA (jaxlib 0.10.2) folds a reshape to the same
    shape away and puts its sharding on the loop.
    """
    for loop in [op for op in walk(entry.operation) if op.name == _LOOP]:
        for number, value in enumerate(list(loop.operands)):
            if _is_repeated(value):
                made = maker_of(value)
                assert made is not None
                if len(list(value.uses)) > 1:
                    loop.operands[number] = made.clone(ip=ir.InsertionPoint(loop)).results[0]
                else:
                    made.move_before(loop)  # in one order, whichever of them are the same value to begin with
            result = loop.results[number]
            if MICRO_BATCHES in loop.attributes and _is_zero(value) and len(list(result.uses)) > 1:
                with ir.InsertionPoint.after(loop), loop.location:
                    after = stablehlo.OptimizationBarrierOp([result])
                result.replace_all_uses_except(after.results[0], after.operation)


def _compute_constants(loop: ir.Operation) -> None:
    if CARRIED in loop.attributes:  # its carried values have been planned
        return
    body = loop.regions[1].blocks[0]
    *_, last = (view.operation for view in body.operations)
    made = {n: chain for n in range(len(loop.operands)) if (chain := _only_read(loop, n, last))}
    if not made:
        return
    start = ir.InsertionPoint.at_block_begin(body)
    for number, chain in made.items():
        before = loop.operands[number]
        body.arguments[number].replace_all_uses_with(copied(chain, start)[chain[-1].results[0]])
        loop.results[number].replace_all_uses_with(before)
    without(loop, made)
    for op in reversed(dict.fromkeys(op for chain in made.values() for op in chain)):  # who reads before what is read
        if not any(list(result.uses) for result in op.results):
            op.erase()


def without(loop: ir.Operation, dropped: Collection[int]) -> ir.Operation:
    """Returns a loop without some of what it carries, which its body passes on at most, and nobody reads."""
    kept = [n for n in range(len(loop.operands)) if n not in dropped]
    condition, body = (region.blocks[0] for region in loop.regions)
    *_, last = (view.operation for view in body.operations)
    with ir.InsertionPoint(last), last.location:
        stablehlo.ReturnOp([last.operands[n] for n in kept])
    last.erase()
    with ir.InsertionPoint(loop), loop.location:
        new: ir.Operation = stablehlo.WhileOp(
            [loop.results[n].type for n in kept], [loop.operands[n] for n in kept]
        ).operation
    for name in loop.attributes:
        new.attributes[name] = loop.attributes[name]
    for number, one in enumerate(kept):
        loop.results[one].replace_all_uses_with(new.results[number])
    for block, region in zip((condition, body), new.regions, strict=True):
        for number in sorted(dropped, reverse=True):
            block.erase_argument(number)
        block.append_to(region)
    loop.erase()
    return new


def extended(loop: ir.Operation, starts: Sequence[Value]) -> ir.Operation:
    """Returns a loop that carries more values, behind its own, from these starts: its body passes on each as it is."""
    condition, body = (region.blocks[0] for region in loop.regions)
    *_, last = (view.operation for view in body.operations)
    added = [[block.add_argument(one.type, loop.location) for one in starts] for block in (condition, body)]
    with ir.InsertionPoint(last), last.location:
        stablehlo.ReturnOp([*last.operands, *added[1]])
    last.erase()
    operands = [*loop.operands, *starts]
    with ir.InsertionPoint(loop), loop.location:
        new: ir.Operation = stablehlo.WhileOp([one.type for one in operands], operands).operation
    for name in loop.attributes:
        new.attributes[name] = loop.attributes[name]
    for old, result in zip(loop.results, new.results, strict=False):
        old.replace_all_uses_with(result)
    for block, region in zip((condition, body), new.regions, strict=True):
        block.append_to(region)
    loop.erase()
    return new


def _only_read(loop: ir.Operation, number: int, last: ir.Operation) -> list[ir.Operation]:
    """Returns the ops that make what a loop carries as `number`, each before its readers.

    Returns none unless all of it is constant.
    """
    condition, body = (region.blocks[0].arguments[number] for region in loop.regions)
    if last.operands[number] != body or list(condition.uses) or not _has_dims(body):
        return []
    return fusible_chain(loop.operands[number], lambda _: False)


def fusible_chain(value: Value, is_given: Callable[[Value], bool]) -> list[ir.Operation]:
    """Returns the ops that make a value, element by element, of given ones and constants, each before its readers.

    Returns none if it is not made so.
    """
    chain: dict[ir.Operation, None] = {}
    waiting = [(value, False)]
    while waiting:
        one, are_operands_in = waiting.pop()
        if is_given(one):
            continue
        made = maker_of(one)
        if made is None or (made.name not in SOURCES and made.name not in FUSIBLE):
            return []
        if are_operands_in:
            chain[made] = None
        elif made not in chain:
            waiting += [(one, True), *((operand, False) for operand in reversed(list(made.operands)))]
    return list(chain)


def _has_dims(value: ir.Value[Any]) -> bool:
    """Says whether a value is a tensor with dims: no scalar, nor a token."""
    return isinstance(value.type, ir.RankedTensorType) and bool(value.type.shape)


def copied(
    chain: Iterable[ir.Operation], at: ir.InsertionPoint, known: Mapping[Value, Value] = MappingProxyType({})
) -> dict[Value, Value]:
    """Copies ops to a place; returns what stands there for each of their results, and what is known to."""
    copies = dict(known)
    for op in chain:
        copy = op.clone(ip=at)
        for one in walk(copy) if len(copy.regions) else (copy,):
            for number, operand in enumerate(one.operands):
                one.operands[number] = copies.get(operand, operand)
        copies.update(zip(op.results, copy.results, strict=True))
    return copies


def _source(value: ir.Value[Any]) -> ir.Value[Any]:
    """Returns what a value repeats."""
    made = maker_of(value)
    return made.operands[0] if made is not None and made.name == "stablehlo.broadcast_in_dim" else value


def _is_repeated(value: ir.Value[Any]) -> bool:
    made = maker_of(_source(value))
    return made is not None and made.name == "stablehlo.constant"


def _is_zero(value: ir.Value[Any]) -> bool:
    return _has_dims(value) and is_constant(_source(value), 0)
