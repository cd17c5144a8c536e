"""What one loop stacks for another to read, and that one could as well compute, is not stacked.

JAX's `scan` stacks for its backward pass each value that the backward pass reads: results of products, and beside them
what is computed from these element by element. Layers that are not in a loop compute such values again where they are
read. Out of a loop they go over stacks, which are written as zeros, written, and read: so a value that follows by cheap
ops, element by element, from other stacks that the same loop reads is computed there, and its stack is gone. It is the
same program, with the same roundings.

Where more is to be computed twice, as attention in blocks, it may follow too from what the first loop reads and leaves
as it is, as masks and the keys of random bits: then the other loop carries that as well.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.graph.graph import COSTLY, MOVES, REPEATS, WHILE
from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import captured_by, maker_of, walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.numerics import FUSIBLE
from rhino.ir.program.program import CARRIED
from rhino.ir.program.trip_count import constant_of, trip_count
from rhino.passes.frontend.loop_reads import SLICE, ReadOnly, carried_as, counts, num_bytes, read_only_values
from rhino.passes.frontend.loop_values import Value, copied, extended, without

_UPDATE, _DIVIDE, _RESHAPE = (
    "stablehlo.dynamic_update_slice",
    "stablehlo.divide",
    "stablehlo.reshape",
)
_CUSTOM_CALL: Final = "stablehlo.custom_call"
_CHEAP: Final = FUSIBLE - COSTLY - (MOVES - REPEATS)
_MOST_READ: Final = 2
"""So many times a value's own bytes may be read instead of it: its stack is written twice and read once."""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """A loop that carries a stack as `number` only to read parts of it, by `slices`."""

    loop: ir.Operation
    number: int
    slices: tuple[ir.Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """What a loop carries to put an `element` of each round in its place; `update` does it."""

    number: int
    element: Value
    update: ir.Operation
    readers: tuple[Reader, ...]

    def reader(self, loop: ir.Operation) -> Reader | None:
        """Returns how a loop reads the stack."""
        return next((one for one in self.readers if one.loop == loop), None)


Leaf = Stack | ReadOnly
"""What the elements of a stack may be computed of."""


def shrink_stashes(entry: func.FuncOp, repeated: Collection[ir.Operation] = ()) -> bool:
    """Takes the stacks out of loops whose elements the loops that read them can compute from other stacks.

    They do so by cheap ops, and by those that are to be `repeated`: these also from what the first loop only reads.
    Says whether there were any.
    """
    found = False
    for loop in reversed([op for op in walk(entry.operation) if op.name == WHILE]):
        # Readers come later in the program, and are made anew.
        if stacks := stacks_of(loop):
            found |= _shrink(loop, stacks, repeated)
    return found


def _shrink(loop: ir.Operation, stacks: list[Stack], repeated: Collection[ir.Operation]) -> bool:
    """Takes those stacks out of a loop that follow from its others, the last made first; says whether any do."""
    given = read_only_values(loop) if repeated else {}
    kept, dropped = stacks, list[Stack]()
    for stack in reversed(stacks):
        others = [one for one in kept if one is not stack]
        if _follows(stack, _leaves(stack, others, given), repeated):
            kept = others
            dropped.append(stack)
    if not dropped:
        return False
    if given:
        _carry(dropped, kept, given, repeated)
        found = {stack.number: stack for stack in stacks_of(loop)}
        kept, dropped = ([found[one.number] for one in old] for old in (kept, dropped))
    unread: dict[ir.Operation, list[int]] = {}
    for stack in dropped:
        leaves = _leaves(stack, kept, given)
        chain = _chain(stack.element, leaves, repeated)
        assert chain is not None
        for reader in stack.readers:
            _compute(stack, reader, chain, leaves)
            unread.setdefault(reader.loop, []).append(reader.number)
    for other, numbers in unread.items():
        without(other, numbers)
    without_stacks(loop, dropped)
    return True


def _carry(
    dropped: Sequence[Stack], kept: list[Stack], given: Mapping[Value, ReadOnly], repeated: Collection[ir.Operation]
) -> None:
    """Lets the readers of stacks carry what they are to compute the elements of, and do not carry yet."""
    missing: dict[ir.Operation, dict[Value, None]] = {}
    for stack in dropped:
        for value in _read(stack, _leaves(stack, kept, given), repeated) or [stack.element]:
            for reader in stack.readers if value in given else ():
                if carried_as(reader.loop, given[value].start) is None:
                    missing.setdefault(reader.loop, {})[given[value].start] = None
    for loop, starts in missing.items():
        extended(loop, list(starts))


def without_stacks(loop: ir.Operation, dropped: Sequence[Stack]) -> ir.Operation:
    """Returns a loop without stacks that nobody reads any more; what was computed for them alone is erased."""
    for stack in dropped:
        stack.update.results[0].replace_all_uses_with(loop.regions[1].blocks[0].arguments[stack.number])
        erase_unread([stack.update])
    starts = [maker_of(loop.operands[stack.number]) for stack in dropped]
    found = without(loop, [stack.number for stack in dropped])
    erase_unread([start for start in dict.fromkeys(starts) if start is not None and not _is_needed(start)])
    return found


# What is stacked


def stacks_of(loop: ir.Operation) -> list[Stack]:
    """Returns the stacks that a loop fills, one element per trip, and that others only read.

    They are in the order in which the loop makes their elements.
    """
    body, trips = loop.regions[1].blocks[0], trip_count(loop.opview)
    *_, last = (view.operation for view in body.operations)
    order: dict[ir.Operation | None, int] = {view.operation: place for place, view in enumerate(body.operations)}
    found = []
    for number, value in enumerate(last.operands):
        update = maker_of(value)
        if update is None or update.name != _UPDATE or len(update.operands) < 3 or trips is None or not _is_open(loop):
            continue
        kind = ir.RankedTensorType(value.type)
        is_own = (
            update.operands[0] == body.arguments[number]
            and len(list(body.arguments[number].uses)) == len(list(value.uses)) == 1
        )
        is_element = kind.shape[0] == trips and list(ir.RankedTensorType(update.operands[1].type).shape) == [
            1,
            *kind.shape[1:],
        ]
        element = _element(update.operands[1])
        if not (is_own and is_element and counts(loop, list(update.operands[2:]))):
            continue
        readers = [_reader(use.owner.operation, use.operand_number) for use in loop.results[number].uses]
        known = tuple(one for one in readers if one is not None)
        if readers and len(known) == len(readers) and not list(loop.regions[0].blocks[0].arguments[number].uses):
            found.append(Stack(number, element, update, known))
    return sorted(found, key=lambda stack: order.get(maker_of(stack.element), -1))


def _is_open(loop: ir.Operation) -> bool:
    """Says whether nobody has yet said how what a loop carries lies."""
    return CARRIED not in loop.attributes and SHARDING not in loop.attributes


def _element(value: Value) -> Value:
    """Returns what an update adds dims of one element to."""
    made = maker_of(value)
    while made is not None and (made.name == _RESHAPE or _adds_dims(made)):
        value = made.operands[0]
        made = maker_of(value)
    return value


def _adds_dims(op: ir.Operation) -> bool:
    """Says whether an op is a broadcast that repeats nothing, and leaves dims in their order."""
    if (
        op.name not in REPEATS
        or num_bytes(op.operands[0]) != num_bytes(op.results[0])
        or "broadcast_dimensions" not in op.attributes
    ):
        return False
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return dims == sorted(dims)


def _reader(loop: ir.Operation, number: int) -> Reader | None:
    """Returns how a loop reads a stack that it carries, None where it does more, or is no loop."""
    if loop.name != WHILE or not _is_open(loop) or list(loop.results[number].uses):
        return None
    condition, body = (region.blocks[0].arguments[number] for region in loop.regions)
    *_, last = (view.operation for view in body.owner.operations)
    if last.operands[number] != body or list(condition.uses):
        return None
    slices = [use.owner.operation for use in body.uses if use.owner.operation != last]
    return Reader(loop, number, tuple(slices)) if all(_reads_one(op, body) for op in slices) else None


def _reads_one(op: ir.Operation, stack: ir.BlockArgument[Any]) -> bool:
    """Says whether an op of a loop's body takes one element of a stack, where the body itself says."""
    if op.name != SLICE or op.operands[0] != stack or op.block != stack.owner or len(op.operands) < 3:
        return False
    place, zero = maker_of(op.operands[1]), maker_of(op.operands[2])
    if place is None or place.block != stack.owner or zero is None or zero.block == stack.owner:
        return False
    shape, part = (list(ir.RankedTensorType(value.type).shape) for value in (stack, op.results[0]))
    return part == [1, *shape[1:]] and all(constant_of(one) == 0 for one in op.operands[2:])


# What follows from what


def _follows(stack: Stack, leaves: Mapping[Value, Leaf], repeated: Collection[ir.Operation]) -> bool:
    """Says whether whoever reads a stack could compute its elements from leaves, and reads little for it."""
    if _chain(stack.element, leaves, repeated) is None:
        return False
    read = _read(stack, leaves, repeated) or [stack.element]
    return sum(map(num_bytes, read)) <= _MOST_READ * num_bytes(stack.element)


def _read(stack: Stack, leaves: Mapping[Value, Leaf], repeated: Collection[ir.Operation]) -> list[Value]:
    """Returns the leaves that the elements of a stack are computed of; none where it is one itself, or of constants."""
    chain = _chain(stack.element, leaves, repeated) or []
    return list(dict.fromkeys(value for op in chain for value in _operands(op) if value in leaves))


def _operands(op: ir.Operation) -> list[Value]:
    """Returns what an op reads, and the ops in it."""
    return [*op.operands, *(captured_by(op) if len(op.regions) else ())]


def _leaves(stack: Stack, others: list[Stack], given: Mapping[Value, ReadOnly]) -> dict[Value, Leaf]:
    """Returns by its value what whoever reads `stack` can read instead: other stacks that it reads, and what stays."""
    stacks = {one.element: one for one in others if all(one.reader(reader.loop) for reader in stack.readers)}
    return {**given, **stacks}


def _chain(value: Value, leaves: Container[Value], repeated: Collection[ir.Operation]) -> list[ir.Operation] | None:
    """Returns the ops that compute a value from leaves and constants, each before its readers.

    Returns None where the value depends on an argument that is no leaf, or on an op that is not to be repeated.
    """
    chain: dict[ir.Operation, None] = {}
    wanted = [value]
    while wanted:  # a body may be long: no recursion
        made = maker_of(wanted[-1])
        if wanted[-1] in leaves or made in chain:
            wanted.pop()
        elif made is None or not (_is_cheap(made) or made in repeated):
            return None
        elif missing := [
            operand for operand in _operands(made) if operand not in leaves and maker_of(operand) not in chain
        ]:
            wanted += reversed(missing)
        else:
            chain[made] = None
    return list(chain)


def _is_cheap(op: ir.Operation) -> bool:
    """Says whether an op may be computed twice.

    A division by a broadcast is cheap: XLA (`AlgebraicSimplifier`) multiplies by the inverse of what is broadcast.
    """
    divisor = maker_of(op.operands[1]) if op.name == _DIVIDE else None
    return op.name in _CHEAP or (divisor is not None and divisor.name in REPEATS)


# What is written


def _compute(stack: Stack, reader: Reader, chain: list[ir.Operation], leaves: Mapping[Value, Leaf]) -> None:
    """Computes in a loop what it reads of a stack."""
    read = {operand for op in chain for operand in _operands(op)} | {stack.element}
    used = {element: one for element, one in leaves.items() if element in read}
    for part in reader.slices:
        place = maker_of(part.operands[1])
        assert place is not None
        parts = [_part(one, reader.loop, part, place) for one in used.values()]
        at = ir.InsertionPoint(part)
        with at, part.location:
            known = {element: viewed_as(value, element.type) for element, value in zip(used, parts, strict=True)}
            found = copied(chain, at, known)[stack.element]
            _put(found, part)
        part.erase()


def _put(value: Value, part: ir.Operation) -> None:
    """Lets what reads an element of a stack read a value instead: without reshapes where it only dropped dims of 1."""
    for use in list(part.results[0].uses):
        op = use.owner.operation
        if op.name == _RESHAPE and op.results[0].type == value.type:
            op.results[0].replace_all_uses_with(value)
            op.erase()
    if list(part.results[0].uses):
        part.results[0].replace_all_uses_with(viewed_as(value, part.results[0].type))


def _part(leaf: Leaf, loop: ir.Operation, like: ir.Operation, place: ir.Operation) -> Value:
    """Returns what a loop reads of a leaf at the index of `like`, which reads an element of a stack.

    The op that reads it is placed after `place`, where that index is known.
    """
    if isinstance(leaf, ReadOnly):
        return leaf.part(loop, place, like.operands[2])
    reader = leaf.reader(loop)
    assert reader is not None
    found = next((op for op in reader.slices if op.operands[1] == like.operands[1]), None)
    if found is None:
        return ReadOnly(loop.operands[reader.number], is_row=True).part(loop, place, like.operands[2])
    found.move_after(place)
    part: Value = found.results[0]
    return part


def viewed_as(value: Value, kind: ir.Type) -> Value:
    """Returns a value in a type of as many elements."""
    viewed: Value = value if value.type == kind else stablehlo.ReshapeOp(kind, value).results[0]
    return viewed


def erase_unread(unused: list[ir.Operation]) -> None:
    """Erases ops, and what was computed for them alone."""
    while unused:
        one = unused.pop()
        makers = dict.fromkeys(maker for operand in one.operands if (maker := maker_of(operand)) is not None)
        one.erase()
        unused += [maker for maker in makers if not _is_needed(maker)]


def _is_needed(op: ir.Operation) -> bool:
    """Says whether an op is read, or might do more than compute."""
    return op.name == _CUSTOM_CALL or any(list(result.uses) for result in op.results)
