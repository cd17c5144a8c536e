"""Sums over micro-batches whose summands are made on several ranks.

Each rank adds up its own summands, and the partial sums are added once, after the loop.

A tied weight's gradient is a sum of what its uses give, which stand in different stages. As one sum it would be added
up on one rank, and what the others give would go there in every micro-batch. Sharded, the summands have to lie as the
sum does: a new sum is stored like it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.ir.mlir.bindings import ir, sdy, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.mlir.shardings import SHARDING, per_value_attribute
from rhino.ir.plan.stages import Stage, VirtualStages
from rhino.ir.program.accumulation import Accumulation, AnyValue
from rhino.ir.program.identity import make_constant
from rhino.ir.program.op_stages import set_stage, set_virtual_stage, virtual_stage_of
from rhino.ir.program.program import CARRIED

_ADD = "stablehlo.add"


@dataclass(frozen=True, slots=True, eq=False)
class _Apart:
    """A sum that the loop carries as `number`, whose summands are made on several ranks.

    `add` accumulates it from the values in `home`, and other ranks accumulate those in `others`.

    Each group of values has the stage in which all of them are there.
    """

    number: int
    add: ir.Operation
    home: tuple[Stage, list[AnyValue]]
    others: list[tuple[Stage, list[AnyValue]]]


def keep_sums_apart(program: Accumulation, num_stages: int, *, is_unlike: bool = False) -> bool:
    """Rewrites the loop such that no sum's summands are sent between ranks in it.

    Where ranks are on unlike meshes (`is_unlike`), what they send is no result of the loop but a copy of it, so that a
    sum may still be accumulated by the devices of each, and is added up on them once before it is sent. Returns whether
    it changed the loop; then `program` is out of date.
    """
    found = list(_apart(program, VirtualStages(num_stages))) if program.num_micro_batches > 1 else []
    if found:
        _Rewriter(program, is_unlike=is_unlike).run(found)
    return bool(found)


def _apart(program: Accumulation, virtual: VirtualStages) -> Iterator[_Apart]:
    """Yields the sums whose summands are made on several ranks, and lie as the sum does."""
    shardings = _carried(program.loop)
    for number, argument, following in program.accumulated():
        add = maker_of(following)
        if add is None or add.name != _ADD or not ir.RankedTensorType(argument.type).shape:
            continue
        added = [operand for operand in add.operands if operand != argument]
        at = virtual_stage_of(add)
        if len(added) != 1 or _num_uses(argument) != 1 or _num_uses(following) != 1 or at is None:
            continue
        groups: dict[int, tuple[Stage, list[AnyValue]]] = {}
        home = virtual.stage(at).device
        for value in _summands(added[0], add):
            made = maker_of(value)
            inside = virtual_stage_of(made) if made is not None and made.block == add.block else None
            stage = virtual.stage(at if inside is None else inside)
            latest, values = groups.get(stage.device, (stage, []))
            groups[stage.device] = max(latest, stage, key=lambda one: one.virtual), [*values, value]
        if len(groups) < 2:
            continue
        if home not in groups:
            home = next(iter(groups))
        others = [group for rank, group in groups.items() if rank != home]
        if shardings is None or all(_are_stored(values, shardings[number]) for _, values in others):
            yield _Apart(number, add, groups[home], others)


def _summands(value: AnyValue, reader: ir.Operation) -> Iterator[AnyValue]:
    """Yields the values whose sum a value is, as far as nothing but `reader` reads it."""
    made = maker_of(value)
    if made is None or made.name != _ADD or made.block != reader.block or _num_uses(value) != 1:
        yield value
        return
    for operand in made.operands:
        yield from _summands(operand, made)


def _num_uses(value: AnyValue) -> int:
    return len(list(value.uses))


def _carried(loop: ir.Operation) -> list[ir.Attribute] | None:
    """Returns how what the loop carries is stored, where the program is sharded."""
    return list(ir.ArrayAttr(loop.attributes[CARRIED])) if CARRIED in loop.attributes else None


def _sharding(value: AnyValue) -> ir.Attribute | None:
    """Returns how a value is stored, None where nothing says so."""
    made = maker_of(value)
    if made is None:
        return None
    at = ir.OpResult(value).result_number
    found: ir.Attribute | None = None
    if CARRIED in made.attributes:
        found = ir.ArrayAttr(made.attributes[CARRIED])[at]
    elif SHARDING in made.attributes:
        found = sdy.TensorShardingPerValueAttr(made.attributes[SHARDING]).shardings[at]
    return found


def _are_stored(values: Sequence[AnyValue], sharding: ir.Attribute) -> bool:
    """Says whether all of these values are stored in one way."""
    found = [_sharding(value) for value in values]
    return all(one is not None and one == sharding for one in found)


class _Rewriter:
    def __init__(self, program: Accumulation, *, is_unlike: bool) -> None:
        self.is_unlike = is_unlike
        self.loop, self.location = program.loop, program.loop.location
        self.shardings = _carried(program.loop)
        self.starts: list[AnyValue] = []
        self.following: list[AnyValue] = []
        self.more_shardings: list[ir.Attribute] = []
        self.joined: list[tuple[_Apart, list[int]]] = []

    def run(self, found: list[_Apart]) -> None:
        """Adds the new sums to the loop, and joins them after it."""
        for one in found:
            self.part(one)
        loop = self.rebuilt()
        for one, numbers in self.joined:
            result: AnyValue = loop.results[one.number]
            users = list(result.uses)
            total = result
            at = ir.InsertionPoint.after(loop)
            for number, (stage, _) in zip(numbers, one.others, strict=True):
                added = self.add(total, self.sent(loop.results[number], stage, at), one.number, at)
                set_stage(added, one.home[0].device)
                total = added.results[0]
            for use in users:
                use.owner.operands[use.operand_number] = total

    def sent(self, value: AnyValue, stage: Stage, at: ir.InsertionPoint) -> AnyValue:
        """Returns what a rank sends of its sum."""
        if not self.is_unlike:
            return value
        with at, self.location:
            copy = stablehlo.ReshapeOp(value.type, value)
        set_stage(copy.operation, stage.device)
        result: AnyValue = copy.result
        return result

    def part(self, one: _Apart) -> None:
        """Lets a sum be added up from what its rank makes, and starts another for each other rank."""
        before = ir.InsertionPoint(one.add)
        stage, values = one.home
        old = next(
            number for number, operand in enumerate(one.add.operands) if not isinstance(operand, ir.BlockArgument)
        )
        unread = maker_of(one.add.operands[old])
        one.add.operands[old] = self.sum(values, stage, one.number, before)
        set_virtual_stage(one.add, stage.virtual)
        numbers = []
        for latest, group in one.others:
            kind = one.add.results[0].type
            with ir.InsertionPoint(self.loop), self.loop.location:
                zero = make_constant(kind, 0)
            self.starts.append(zero)
            made = maker_of(zero)
            if self.shardings is not None and made is not None:
                made.attributes[SHARDING] = per_value_attribute([self.shardings[one.number]])
            for region in self.loop.regions:
                region.blocks[0].add_argument(kind, one.add.location)
            *_, argument = self.loop.regions[1].blocks[0].arguments
            total = self.sum(group, latest, one.number, before)
            numbers.append(len(self.loop.results) + len(self.following))
            self.following.append(self.sum([argument, total], latest, one.number, before))
            if self.shardings is not None:
                self.more_shardings.append(self.shardings[one.number])
        self.joined.append((one, numbers))
        _erase_unread(unread)

    def sum(self, values: list[AnyValue], stage: Stage, number: int, at: ir.InsertionPoint) -> AnyValue:
        """Returns the sum of values of a micro-batch, made in a stage."""
        total, *others = values
        for value in others:
            added = self.add(total, value, number, at)
            set_virtual_stage(added, stage.virtual)
            total = added.results[0]
        return total

    def add(self, left: AnyValue, right: AnyValue, number: int, at: ir.InsertionPoint) -> ir.Operation:
        """Returns the sum of two values, stored as the loop carries `number`."""
        with at, self.location:
            made: ir.Operation = stablehlo.AddOp(left, right).operation
        if self.shardings is not None:
            made.attributes[SHARDING] = per_value_attribute([self.shardings[number]])
        return made

    def rebuilt(self) -> ir.Operation:
        """Returns the loop with the new sums."""
        condition, body = (region.blocks[0] for region in self.loop.regions)
        last = end_of(body)
        with ir.InsertionPoint(last), last.location:
            stablehlo.ReturnOp([*last.operands, *self.following])
        last.erase()
        starts = [*self.loop.operands, *self.starts]
        with ir.InsertionPoint(self.loop), self.loop.location:
            new: ir.Operation = stablehlo.WhileOp([start.type for start in starts], starts).operation
        for name in self.loop.attributes:
            new.attributes[name] = self.loop.attributes[name]
        if self.shardings is not None:
            new.attributes[CARRIED] = ir.ArrayAttr.get([*self.shardings, *self.more_shardings])
        for old, result in zip(self.loop.results, list(new.results)[: len(self.loop.results)], strict=True):
            old.replace_all_uses_with(result)
        for block, region in zip((condition, body), new.regions, strict=True):
            block.append_to(region)
        self.loop.erase()
        return new


def _erase_unread(op: ir.Operation | None) -> None:
    """Erases sums that nothing reads any more."""
    if op is not None and _is_unread_sum(op):
        makers = dict.fromkeys(made for operand in op.operands if (made := maker_of(operand)) is not None)
        op.erase()
        # A sum that another of them reads is erased with that one.
        for made in [made for made in makers if _is_unread_sum(made)]:
            _erase_unread(made)


def _is_unread_sum(op: ir.Operation) -> bool:
    return op.name == _ADD and not any(_num_uses(result) for result in op.results)
