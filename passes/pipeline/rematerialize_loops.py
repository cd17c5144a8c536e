"""Loops over layers whose backward pass recomputes what the forward pass would stack for it.

JAX's `scan` stacks what the backward pass reads of each layer. A loop that reads such stacks has the layers' weights in
most steps, and can have what goes from layer to layer: of these each round of it computes what it would read. So what
`jax.checkpoint` around a layer does is done to a layer without it, and for as little as memory asks for: which values
of a round are stacked, and which are recomputed, is a minimum cut (strategies/remat/min_cut.py) over the ops of a
body, each value as large as its stack.

A loop whose backward pass has a barrier is left as it is: the user has chosen there what it recomputes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import BARRIER, WHILE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.op_stages import virtual_stage_of
from rhino.ir.program.trip_count import constant_of, step_of, trip_count
from rhino.passes.frontend.loop_stashes import Stack, stacks_of, viewed_as, without_stacks
from rhino.passes.frontend.loop_values import Value, copied, extended, without
from rhino.strategies.remat.min_cut import Piece
from rhino.strategies.remat.remat_graph import ONCE


@dataclass(frozen=True, slots=True)
class LoopChoice:
    """What a loop's backward pass recomputes: `num_ops` ops a round, so that `kept_bytes` of `stash_bytes` stay."""

    location: ir.Location
    stash_bytes: int
    kept_bytes: int
    num_ops: int
    added_s: float


def rematerialize_loops(
    entry: ir.Operation, shares: Sequence[float], seconds: Mapping[ir.Operation, float], num_stages: int
) -> list[LoopChoice]:
    """Writes into loops what they compute again of others, and returns what was written.

    `shares` [stages] are the least shares of the stacks that are gone, `seconds` what ops take in a step.
    """
    from rhino.strategies.remat.rematerialization import choose_pieces  # noqa: PLC0415 - loads LP solvers

    found, virtual = list[LoopChoice](), VirtualStages(num_stages)
    of_stages: dict[int, list[_Pair]] = {}
    for pair in _pairs(entry, virtual):
        of_stages.setdefault(virtual_stage_of(pair.loop) or 0, []).append(pair)
    for stage, pairs in of_stages.items():
        pieces = [pair.piece(seconds) for pair in pairs]
        for pair, piece, label in zip(pairs, pieces, choose_pieces(pieces, shares[stage]), strict=True):
            again = [op for unit in label.repeated if (op := pair.units[unit]) is not None]
            if again:
                added_s = sum(piece.seconds[unit] for unit in label.repeated)
                sizes = piece.kept(()), piece.kept(label.repeated)
                found.append(LoopChoice(pair.loop.location, *sizes, len(again), added_s))
                pair.write(again)
    return found


def loops_by_rounds(entry: ir.Operation, num_stages: int) -> list[ir.Operation]:
    """Returns the loops of which others can compute rounds again."""
    return [pair.loop for pair in _pairs(entry, VirtualStages(num_stages))]


def _pairs(entry: ir.Operation, virtual: VirtualStages) -> list[_Pair]:
    """Returns the loops over layers with those that read their stacks, none of which is part of another.

    In a step in stages both are of one stage.
    """
    found, taken = list[_Pair](), set[ir.Operation]()
    for loop in [op for op in walk(entry) if op.name == WHILE]:
        pair = None if loop in taken else _pair(loop)
        if pair is not None and pair.reader not in taken and _mirrors(pair, virtual):
            found.append(pair)
            taken |= {*walk(pair.loop), *walk(pair.reader)}
    return found


def _mirrors(pair: _Pair, virtual: VirtualStages) -> bool:
    """Says whether a loop and its reader are forward and backward pass of the same stage, where there are stages."""
    stage, other = virtual_stage_of(pair.loop), virtual_stage_of(pair.reader)
    return stage == other if stage is None or other is None else virtual.opposite(stage) == other


def _pair(loop: ir.Operation) -> _Pair | None:
    """Returns a loop with the one that alone reads its stacks; None where there is none that may change."""
    trips = trip_count(loop.opview)
    if trips is None or MICRO_BATCHES in loop.attributes:
        return None
    stacks = [stack for stack in stacks_of(loop) if len(stack.readers) == 1 and stack.readers[0].slices]
    readers = dict.fromkeys(stack.readers[0].loop for stack in stacks)
    slices = [part for stack in stacks for part in stack.readers[0].slices]
    indices = dict.fromkeys(part.operands[1] for part in slices)
    if len(readers) != 1 or len(indices) != 1 or slices[0].operands[1].type != stacks[0].update.operands[2].type:
        return None
    (reader,) = readers
    if any(op.name == BARRIER for op in walk(reader)):
        return None
    return _Pair(loop, trips, reader, tuple(stacks), slices[0].operands[1], slices[0].operands[2])


@dataclass(eq=False)
class _Pair:
    """A loop that fills `stacks`, and the one that reads them at `index`, in other dims at `zero`.

    `units` are the ops of the first body; before these stands None for each value that goes from round to round.
    """

    loop: ir.Operation
    trips: int
    reader: ir.Operation
    stacks: tuple[Stack, ...]
    index: Value
    zero: Value
    units: list[ir.Operation | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.body = self.loop.regions[1].blocks[0]
        returned = list(end_of(self.body).operands)
        self.counters = {one for n, one in enumerate(self.body.arguments) if _counts(self.loop, n)}
        self.starts = {one: self.loop.operands[n] for n, one in enumerate(self.body.arguments) if returned[n] == one}
        """What is the same in all rounds, and what it is outside of the loop."""
        self.carried = [one for one in self.body.arguments if one not in self.counters and one not in self.starts]
        self.units = [*[None] * len(self.carried), *(view.operation for view in self.body.operations)][:-1]
        self.late = dict.fromkeys(stack.element for stack in self.stacks)

    def piece(self, seconds: Mapping[ir.Operation, float]) -> Piece:
        """Returns the body as a piece of a forward pass, of which each value is as large as its stack would be."""
        name: dict[Value, int] = {one: number for number, one in enumerate(self.carried)}
        reads = [tuple[int, ...]() for _ in self.carried]
        makes: list[tuple[int, ...]] = [(number,) for number in name.values()]
        for op in self.units[len(self.carried) :]:
            assert op is not None, "these are the body's"
            reads.append(tuple(dict.fromkeys(name[one] for one in op.operands if one in name)))
            name |= {result: len(name) + place for place, result in enumerate(op.results)}
            makes.append(tuple(name[result] for result in op.results))
        return Piece(
            tuple(0.0 if op is None else seconds.get(op, 0.0) for op in self.units),
            tuple(op is not None and _may_repeat(op) for op in self.units),
            tuple(reads),
            tuple(makes),
            tuple(self.trips * _bytes(value) for value in name),
            frozenset(name[value] for value in self.late if value in name),
        )

    def write(self, again: Sequence[ir.Operation]) -> None:
        """Writes ops of the first body, in its order, into the second, in place of the stacks of what they make."""
        made = {result for op in again for result in op.results}
        read = dict.fromkeys(operand for op in again for operand in op.operands if operand not in made)
        starts = {one: self.starts[one] for one in read if one in self.starts}
        kept = [one for one in read if one not in self.late and one not in self.counters and one not in starts]
        kept = [one for one in kept if _is_made_in(one, self.body)]
        loop, filled = self._fill(kept)
        at = {one: number for one, start in starts.items() if (number := _carried(self.reader, start)) is not None}
        more = [one for one in starts if one not in at]
        old = len(self.reader.operands)
        reader = extended(self.reader, [*filled, *(starts[one] for one in more)])
        at |= {one: old + len(kept) + place for place, one in enumerate(more)}
        arguments = reader.regions[1].blocks[0].arguments
        known = {one: arguments[number] for one, number in at.items()} | dict.fromkeys(self.counters, self.index)
        rows = {stack.element: arguments[stack.readers[0].number] for stack in self.stacks if stack.element in read}
        rows |= {one: arguments[old + place] for place, one in enumerate(kept)}
        dropped = [stack for stack in self.stacks if stack.element in made]
        self._compute(again, dropped, rows, known)
        without(reader, [stack.readers[0].number for stack in dropped])
        without_stacks(loop, dropped)

    def _fill(self, kept: Sequence[Value]) -> tuple[ir.Operation, Sequence[Value]]:
        """Returns the first loop with a stack more for each of these values, and the stacks as it leaves them."""
        if not kept:
            return self.loop, []
        old = len(self.loop.operands)
        kinds = [ir.RankedTensorType(value.type) for value in kept]
        numbers = [value.arg_number if isinstance(value, ir.BlockArgument) else None for value in kept]
        with ir.InsertionPoint(self.loop), self.loop.location:
            starts = [_zeros([self.trips, *kind.shape], kind.element_type) for kind in kinds]
        loop = extended(self.loop, starts)
        body, first = loop.regions[1].blocks[0], self.stacks[0].update.operands[2]
        end, arguments = end_of(body), list(body.arguments)
        with ir.InsertionPoint(end), loop.location:
            for place, (value, number, kind) in enumerate(zip(kept, numbers, kinds, strict=True), old):
                own = value if number is None else arguments[number]
                row = viewed_as(own, ir.RankedTensorType.get([1, *kind.shape], kind.element_type))
                where = [first, *[self.zero] * len(kind.shape)]
                end.operands[place] = stablehlo.DynamicUpdateSliceOp(arguments[place], row, where).result
        return loop, [*loop.results][old:]

    def _compute(
        self,
        again: Sequence[ir.Operation],
        dropped: Sequence[Stack],
        rows: Mapping[Value, Value],
        known: Mapping[Value, Value],
    ) -> None:
        """Computes in the second loop what it would read of `dropped`, from rows of stacks and what is `known`."""
        maker = maker_of(self.index)
        assert maker is not None, "a loop that reads a stack computes where"
        ops = [view.operation for view in maker.block.operations]
        following = ops[ops.index(maker) + 1]
        copies = dict(known)
        with ir.InsertionPoint(following), maker.location:
            for value, whole in rows.items():
                _, *dims = ir.RankedTensorType(whole.type).shape
                where, sizes = [self.index, *[self.zero] * len(dims)], ir.DenseI64ArrayAttr.get([1, *dims])
                copies[value] = viewed_as(stablehlo.DynamicSliceOp(whole, where, sizes).result, value.type)
            found = copied(again, ir.InsertionPoint(following), copies)
            for stack in dropped:
                for part in stack.readers[0].slices:
                    part.results[0].replace_all_uses_with(viewed_as(found[stack.element], part.results[0].type))
        for stack in dropped:
            for part in stack.readers[0].slices:
                part.erase()


def _may_repeat(op: ir.Operation) -> bool:
    """Says whether an op may run again in another loop: it reads what its operands say alone."""
    return op.name not in ONCE and not (len(op.regions) and _reads_around(op))


def _reads_around(op: ir.Operation) -> bool:
    """Says whether regions of an op read values of the body that it is in."""
    inside = (inner for inner in walk(op) if inner != op)
    return any(_is_made_in(value, op.block) for inner in inside for value in inner.operands)


def _is_made_in(value: Value, block: ir.Block) -> bool:
    """Says whether a block itself makes a value, or is given it."""
    if isinstance(value, ir.BlockArgument):
        return bool(value.owner == block)
    made = maker_of(value)
    return made is not None and made.block == block


def _counts(loop: ir.Operation, number: int) -> bool:
    """Says whether a loop counts its rounds in what it carries as `number`."""
    return constant_of(loop.operands[number]) == 0 and step_of(loop.regions[1].blocks[0], number) == 1


def _carried(loop: ir.Operation, start: Value) -> int | None:
    """Returns as which number a loop carries a value only to read it, None where it does not."""
    body = loop.regions[1].blocks[0]
    pairs = zip(loop.operands, end_of(body).operands, body.arguments, strict=True)
    return next((n for n, (value, end, own) in enumerate(pairs) if value == start and end == own), None)


def _zeros(shape: Sequence[int], kind: ir.Type) -> Value:
    zero = ir.FloatAttr.get(kind, 0.0) if isinstance(kind, ir.FloatType) else ir.IntegerAttr.get(kind, 0)
    scalar = stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([], kind), zero))
    whole = ir.RankedTensorType.get(shape, kind)
    value: Value = stablehlo.BroadcastInDimOp(whole, scalar.result, ir.DenseI64ArrayAttr.get([])).result
    return value


def _bytes(value: Value) -> int:
    kind = ir.RankedTensorType(value.type)
    return prod(kind.shape) * element_bytes(str(kind.element_type))
