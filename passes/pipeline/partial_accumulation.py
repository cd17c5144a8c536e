"""Sums over micro-batches whose summands are made on several ranks.

Each rank adds up its own summands, and the partial sums are added once, after the loop.

A tied weight's gradient is a sum of what its uses give, which stand in different stages. As one sum it would be added
up on one rank, and what the others give would go there in every micro-batch. Sharded, the summands have to lie as the
sum does: a new sum is stored like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rhino.ir.mlir.bindings import ir, sdy, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.mlir.shardings import SHARDING, per_value_attribute
from rhino.ir.program.accumulation import STAGE, Accumulation, AnyValue
from rhino.ir.program.identity import make_constant
from rhino.ir.program.program import CARRIED

_ADD = "stablehlo.add"


@dataclass(frozen=True, slots=True, eq=False)
class _Apart:
    """A sum that the loop carries as `number`, whose summands are made on several ranks.

    `add` accumulates it from the values in `home`, and other ranks accumulate those in `others`.

    Each group of values has the virtual stage in which all of them are there.
    """

    number: int
    add: ir.Operation
    home: tuple[int, list[AnyValue]]
    others: list[tuple[int, list[AnyValue]]]


def keep_sums_apart(program: Accumulation, num_stages: int) -> bool:
    """Rewrites the loop such that no sum's summands are sent between ranks in it.

    Returns whether it changed the loop; then `program` is out of date.
    """
    found = list(_apart(program, 2 * num_stages - 2)) if program.num_micro_batches > 1 else []
    if found:
        _Rewriter(program, 2 * num_stages - 2).run(found)
    return bool(found)


def _apart(program: Accumulation, last: int) -> Iterator[_Apart]:
    """Yields the sums whose summands are made on several ranks, and lie as the sum does."""
    shardings = _carried(program.loop)
    for number, argument, following in program.accumulated():
        add = maker_of(following)
        if add is None or add.name != _ADD or not ir.RankedTensorType(argument.type).shape:
            continue
        added = [operand for operand in add.operands if operand != argument]
        if len(added) != 1 or _num_uses(argument) != 1 or _num_uses(following) != 1 or STAGE not in add.attributes:
            continue
        groups: dict[int, tuple[int, list[AnyValue]]] = {}
        home = _rank(_stage(add), last)
        for value in _summands(added[0], add):
            made = maker_of(value)
            inside = made is not None and made.block == add.block and STAGE in made.attributes
            stage = _stage(made) if inside and made is not None else _stage(add)
            latest, values = groups.get(_rank(stage, last), (0, []))
            groups[_rank(stage, last)] = max(latest, stage), [*values, value]
        if len(groups) < 2:
            continue
        if home not in groups:
            home = next(iter(groups))
        others = [group for rank, group in groups.items() if rank != home]
        if shardings is None or all(_sharding(value) == shardings[number] for _, values in others for value in values):
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


def _stage(op: ir.Operation) -> int:
    return int(ir.IntegerAttr(op.attributes[STAGE]).value)


def _rank(stage: int, last: int) -> int:
    return min(stage, last - stage)


def _carried(loop: ir.Operation) -> list[ir.Attribute] | None:
    """Returns how what the loop carries is stored, where the program is sharded."""
    return list(ir.ArrayAttr(loop.attributes[CARRIED])) if CARRIED in loop.attributes else None


def _sharding(value: AnyValue) -> ir.Attribute | None:
    made = maker_of(value)
    if made is None or SHARDING not in made.attributes:
        return None
    found: ir.Attribute = sdy.TensorShardingPerValueAttr(made.attributes[SHARDING]).shardings[
        ir.OpResult(value).result_number
    ]
    return found


class _Rewriter:
    def __init__(self, program: Accumulation, last: int) -> None:
        self.loop, self.last, self.location = program.loop, last, program.loop.location
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
            for number in numbers:
                total = self.add(total, loop.results[number], _rank(one.home[0], self.last), one.number, at)
            for use in users:
                use.owner.operands[use.operand_number] = total

    def part(self, one: _Apart) -> None:
        """Lets a sum be added up from what its rank makes, and starts another for each other rank."""
        before = ir.InsertionPoint(one.add)
        stage, values = one.home
        old = next(
            number for number, operand in enumerate(one.add.operands) if not isinstance(operand, ir.BlockArgument)
        )
        unread = maker_of(one.add.operands[old])
        one.add.operands[old] = self.sum(values, stage, one.number, before)
        one.add.attributes[STAGE] = _number(stage)
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
            self.following.append(self.add(argument, total, latest, one.number, before))
            if self.shardings is not None:
                self.more_shardings.append(self.shardings[one.number])
        self.joined.append((one, numbers))
        _erase_unread(unread)

    def sum(self, values: list[AnyValue], stage: int, number: int, at: ir.InsertionPoint) -> AnyValue:
        total, *others = values
        for value in others:
            total = self.add(total, value, stage, number, at)
        return total

    def add(self, left: AnyValue, right: AnyValue, stage: int, number: int, at: ir.InsertionPoint) -> AnyValue:
        """Returns the sum of two values, in a stage, stored as the loop carries `number`."""
        with at, self.location:
            made = stablehlo.AddOp(left, right)
        made.operation.attributes[STAGE] = _number(stage)
        if self.shardings is not None:
            made.operation.attributes[SHARDING] = per_value_attribute([self.shardings[number]])
        result: AnyValue = made.result
        return result

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
    if op is not None and op.name == _ADD and not any(_num_uses(result) for result in op.results):
        makers = [maker_of(operand) for operand in op.operands]
        op.erase()
        for made in makers:
            _erase_unread(made)


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
