"""Write ops of the forward pass a second time, right before the backward pass reads what they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from rhino.ir.graph.graph import BARRIER, materialized
from rhino.ir.mlir.bindings import ir, sdy, stablehlo
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.reader import maker_of, walk
from rhino.ir.mlir.shardings import SHARDING, module_mesh, per_value_attribute
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import AnyValue, reads_of
from rhino.ir.program.named_tensors import open_attribute
from rhino.ir.program.op_stages import latest_stage_of, set_virtual_stage, virtual_stage_of
from rhino.ir.program.program import CARRIED, Program
from rhino.strategies.remat.remat_graph import Stash
from rhino.strategies.structure.training_phases import TrainingPhases

if TYPE_CHECKING:
    from rhino.strategies.remat.rematerialization import Block


def write_blocks(
    program: Program, parts: TrainingPhases, stash: Stash, blocks: Sequence[Block], virtual: VirtualStages
) -> None:
    """Writes the copies that `blocks` ask for, and points the backward pass at them."""
    if blocks:
        _Writer(program, parts, stash, virtual).write(blocks)


@dataclass(eq=False)
class _Draft:
    """Copies to be made: the ops by number, and the values that go through the barrier.

    `made` has the copies' values once the copies are made.
    """

    virtual: int
    ops: list[int]
    fenced: list[AnyValue]
    made: dict[AnyValue, AnyValue] = field(default_factory=dict)

    def serves(self, virtual: int | None) -> bool:
        """Says whether an op of this virtual stage may read copies.

        An op of an earlier one, as where a later stage turns back, reads the original.
        """
        return virtual is None or virtual >= self.virtual


class _Writer:
    def __init__(self, program: Program, parts: TrainingPhases, stash: Stash, virtual: VirtualStages) -> None:
        self.program, self.graph, self.parts, self.virtual = program, program.graph, parts, virtual
        stands = materialized(self.graph)
        self.units = {unit.op for unit in stash.units}
        tops = self._tops()
        self.early = [number for number in tops if number <= stash.turn]
        self.number: dict[AnyValue, int] = {
            result: number for number in self.early for result in program.ops[number].results
        }
        self.inside = {number for number in self.early if self._is_inside(number)}
        """Ops of the forward pass that are computed inside their readers, and depend on more than constants."""
        self.reads = {number: reads_of(program.ops[number]) for number in self.early}
        self.inner_readers: dict[AnyValue, list[int]] = {}
        """Which of these read each value."""
        for number in sorted(self.inside):
            for value in self.reads[number]:
                self.inner_readers.setdefault(value, []).append(number)
        ops = [view.operation for view in program.ops[tops[0]].block.operations]
        self.late = ops[len(self.early) :]
        self.late_reads = [reads_of(op) for op in self.late]
        self.readers: dict[AnyValue, list[int]] = {}
        """Where in the backward pass each value is read."""
        for at, read in enumerate(self.late_reads):
            for value in read:
                self.readers.setdefault(value, []).append(at)
        self.stands: set[AnyValue] = set()
        """What the backward pass makes in memory, and the same in another form, as what gradients are summed up in."""
        for number in tops[len(self.early) :]:
            op = program.ops[number]
            for value, result in zip(op.results, self.graph.results(number), strict=True):
                if _rank(value) and (stands[result] or self._is_form(op)):
                    self.stands.add(value)
        self.sharding = Shardings(program)
        self.through: dict[AnyValue, AnyValue] = {}
        """What has gone through a barrier, and what it is behind it."""

    def _tops(self) -> list[int]:
        """Returns the numbers of the ops of a micro-batch, without those in its loops."""
        loop, ends = self.parts.loop, {loop.op: loop.end for loop in self.graph.loops}
        number, end = (0, self.graph.num_ops) if loop is None else (loop.op + 1, loop.end)
        found = []
        while number < end:
            found.append(number)
            number = ends.get(number, number) + 1
        return found

    def _is_form(self, op: ir.Operation) -> bool:
        """Says whether an op gives another form to what the backward pass has made.

        XLA's import (jaxlib 0.10.2) joins two such behind a barrier, puts their sharding on it, and fails.
        """
        if len(op.operands) != 1 or op.operands[0] not in self.stands:
            return False
        return _num_elements(op.results[0]) <= _num_elements(op.operands[0])

    def stage_of(self, op: ir.Operation | None) -> int | None:
        return None if op is None else latest_stage_of(op, self.virtual)

    def write(self, blocks: Sequence[Block]) -> None:
        """Goes along the backward pass; at the first op that reads what a block makes, the block is put before it."""
        draft_of: dict[AnyValue, _Draft] = {}
        for block in blocks:
            made_for, values = self._draft(block)
            draft_of.update(dict.fromkeys(values, made_for))
        since = 0
        for at, op in enumerate(self.late):
            for value in self.late_reads[at]:
                draft = draft_of.get(value)
                if draft is not None and not draft.made and draft.serves(self.stage_of(op)):
                    self._put(draft, since, at)
                    since = at
            self._point(op, draft_of)

    def _point(self, op: ir.Operation, draft_of: Mapping[AnyValue, _Draft]) -> None:
        """Lets an op of the backward pass read copies, and what has gone through a barrier since it was made."""
        stage = self.stage_of(op)
        for inner in walk(op) if len(op.regions) else (op,):
            for position, value in enumerate(inner.operands):
                draft = draft_of.get(value)
                if draft is not None and draft.serves(self.stage_of(op)):
                    inner.operands[position] = draft.made[value]
                elif value in self.through and self.stage_of(maker_of(self.through[value])) == stage:
                    inner.operands[position] = self.through[value]

    # What a block needs

    def _draft(self, block: Block) -> tuple[_Draft, list[AnyValue]]:
        """Returns the draft of a block, and the values of which the backward pass reads copies."""
        again = set(block.ops)
        ops: dict[int, None] = {}
        fenced: dict[AnyValue, None] = {}
        for number in block.ops:
            self._need(number, again, ops, fenced)
        for number in block.ops:
            leaves = list(self._leaves(number))
            if not any(value in fenced or self.number.get(value) in again for value in leaves):
                fenced[min(leaves, key=_num_elements)] = None  # one is enough to tell the copy from the original
        wanted = self._wanted(block, again, fenced)
        for value in wanted:
            self._need(self.number[value], again, ops, fenced)
        return _Draft(self.virtual.opposite(block.stage), sorted(ops), list(fenced)), wanted

    def _wanted(self, block: Block, again: set[int], fenced: Mapping[AnyValue, None]) -> list[AnyValue]:
        """Returns the values of which the backward pass reads copies.

        These are the results of ops that run again, and what is computed inside of readers from such results. What
        these readers compute in the block's piece from what is kept is among them: it goes through the barrier, and the
        original must not stay alive.
        """
        own = {
            number
            for number in self.inside
            if block.first <= number <= block.last and not fenced.keys().isdisjoint(self.reads[number])
        }
        found, waiting = set[int](), [*again, *own]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [
                    reader
                    for result in self.program.ops[number].results
                    for reader in self.inner_readers.get(result, ())
                ]
        return [
            value for number in sorted(found) for value in self.program.ops[number].results if value in self.readers
        ]

    def _is_inside(self, number: int) -> bool:
        """Says whether an op is computed inside its readers, and depends on more than constants."""
        cls = self.graph.cls(number)
        return number not in self.units and not cls.free and not self.parts.constant[number] and cls.name != BARRIER

    def _need(self, number: int, again: set[int], ops: dict[int, None], fenced: dict[AnyValue, None]) -> None:
        """Notes that an op is copied, with what is computed inside it, and what it reads of what is kept."""
        waiting = [number]
        while waiting:
            one = waiting.pop()
            if one in ops:
                continue
            ops[one] = None
            for value in self.reads[one]:
                made_by = self.number.get(value)
                if (
                    made_by is None
                    or made_by in again
                    or not _rank(value)
                    or self.parts.constant[made_by]
                    or self.graph.cls(made_by).free
                ):
                    continue
                if made_by in self.inside:
                    waiting.append(made_by)
                else:
                    fenced[value] = None

    def _leaves(self, number: int) -> Iterable[AnyValue]:
        """Yields what an op reads behind the ops that are computed inside it, but for constants."""
        waiting = [number]
        while waiting:
            for value in self.reads[waiting.pop()]:
                made_by = self.number.get(value)
                if made_by is not None and made_by in self.inside:
                    waiting.append(made_by)
                elif made_by is None or not self.parts.constant[made_by]:
                    made = maker_of(value)
                    if made is None or made.operands or made_by is not None:
                        yield value

    # Writing

    def _put(self, draft: _Draft, since: int, at: int) -> None:
        """Puts the copies before op `at` of the backward pass.

        A barrier puts them after all that the backward pass has made from op `since` on and reads later.
        """
        reader = self.late[at]
        before = self.stage_of(reader)
        waiting = self._waiting(since, at)
        made = [
            result
            for number in range(since, at)
            if number not in waiting
            for result in self.late[number].results
            if result in self.stands
            and any(
                (one >= at or one in waiting) and self.stage_of(self.late[one]) in (None, draft.virtual)
                for one in self.readers.get(result, ())
            )
        ]
        with ir.InsertionPoint(reader), reader.location:
            barrier = stablehlo.OptimizationBarrierOp(
                [*(self._now(value, draft) for value in draft.fenced), *made]
            ).operation
        self.sharding.write(barrier)
        if before is not None:
            set_virtual_stage(barrier, draft.virtual)
        results = list(barrier.results)
        fenced = dict(zip(draft.fenced, results, strict=False))
        # No original stays beside it.
        self.through.update((value, new) for value, new in fenced.items() if value in self.number)
        self.through.update(zip(made, results[len(fenced) :], strict=True))
        for number in waiting:
            self.late[number].move_before(reader)
            self._point(self.late[number], {})
        for number in draft.ops:
            self._copy(self.program.ops[number], draft, fenced, reader)

    def _now(self, value: AnyValue, draft: _Draft) -> AnyValue:
        """Returns what a value is behind the last barrier of the draft's stage that it went through."""
        new = self.through.get(value)
        return new if new is not None and self.stage_of(maker_of(new)) in (None, draft.virtual) else value

    def _waiting(self, since: int, at: int) -> list[int]:
        """Returns the ops from `since` on that are computed inside others, none of which stands before `at`."""
        found: set[int] = set()
        for number in range(at - 1, since - 1, -1):
            op = self.late[number]
            read = [one for result in op.results for one in self.readers.get(result, ())]
            if (
                read
                and all(one >= at or one in found for one in read)
                and not any(result in self.stands for result in op.results)
            ):
                found.add(number)
        return sorted(found)

    def _copy(self, op: ir.Operation, draft: _Draft, fenced: Mapping[AnyValue, AnyValue], reader: ir.Operation) -> None:
        copy = op.clone(ip=ir.InsertionPoint(reader))
        for inner in walk(copy) if len(copy.regions) else (copy,):
            for position, value in enumerate(inner.operands):
                new = draft.made.get(value, fenced.get(value))
                if new is not None:
                    inner.operands[position] = new
        if virtual_stage_of(copy) is not None:
            set_virtual_stage(copy, draft.virtual)
        draft.made.update(zip(op.results, copy.results, strict=True))


class Shardings:
    """The shardings of values of a program that has some."""

    def __init__(self, program: Program) -> None:
        module = program.entry.operation.parent
        found = module_mesh(module) if module is not None else None
        self.mesh_name = found[0] if found is not None else None
        self.arguments = [attributes.get(SHARDING) for attributes in boundary_attributes(program.entry, "arg")]
        self.entry = program.entry

    def write(self, barrier: ir.Operation) -> None:
        """Gives a barrier the shardings of its operands, if any has one."""
        found = [self.of(value) for value in barrier.operands]
        if self.mesh_name is not None and any(found):
            every = [
                one or open_attribute(self.mesh_name, _rank(value))
                for one, value in zip(found, barrier.operands, strict=True)
            ]
            barrier.attributes[SHARDING] = per_value_attribute(every)

    def of(self, value: AnyValue) -> ir.Attribute | None:
        """Returns the sharding of a value, or None."""
        if isinstance(value, ir.BlockArgument):
            owner = value.owner.owner
            if owner.operation == self.entry.operation:
                return self.arguments[value.arg_number]
            return ir.ArrayAttr(owner.attributes[CARRIED])[value.arg_number] if CARRIED in owner.attributes else None
        made, at = maker_of(value), ir.OpResult(value).result_number
        assert made is not None
        if CARRIED in made.attributes:
            return ir.ArrayAttr(made.attributes[CARRIED])[at]
        if SHARDING in made.attributes and not isinstance(made.attributes[SHARDING], sdy.TensorShardingAttr):
            sharding: ir.Attribute = sdy.TensorShardingPerValueAttr(made.attributes[SHARDING]).shardings[at]
            return sharding
        return None


def _rank(value: AnyValue) -> int:
    return len(ir.RankedTensorType(value.type).shape) if isinstance(value.type, ir.RankedTensorType) else 0


def _num_elements(value: AnyValue) -> int:
    return prod(ir.RankedTensorType(value.type).shape)
