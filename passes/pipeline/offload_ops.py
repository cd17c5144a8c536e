"""Write what brings values of the forward pass to host memory, and back where the backward pass reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rhino.ir.graph.graph import BARRIER, DEVICE, HOST, WHILE, MemoryKind
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.memory_kinds import placed
from rhino.ir.mlir.reader import maker_of, walk
from rhino.ir.mlir.shardings import SHARDING, per_value_attribute
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import AnyValue, reads_of
from rhino.ir.program.op_stages import latest_stage_of, set_virtual_stage
from rhino.ir.program.program import Program
from rhino.passes.pipeline.rematerialize_ops import Shardings
from rhino.strategies.remat.remat_graph import Stash
from rhino.strategies.structure.training_phases import TrainingPhases


def write_waiting(
    program: Program, parts: TrainingPhases, stash: Stash, hosted: Collection[int], virtual: VirtualStages
) -> None:
    """Writes the transfers of the values `hosted`, each before its first reader in the backward pass.

    What is computed inside its readers from such a value is computed there again, from what comes back. `program` may
    have got copies of ops for the backward pass since it was read.
    """
    if hosted:
        _Writer(program, parts, stash, virtual).write(sorted(hosted))


class _Writer:
    def __init__(self, program: Program, parts: TrainingPhases, stash: Stash, virtual: VirtualStages) -> None:
        self.program, self.graph, self.parts, self.stash, self.virtual = program, program.graph, parts, stash, virtual
        self.units = {unit.op for unit in stash.units}
        self.sharding = Shardings(program)
        self.there: dict[AnyValue, AnyValue] = {}
        """What each value is in host memory."""
        self.here: dict[tuple[AnyValue, int | None], AnyValue] = {}
        """What each value, and what is computed from it inside its readers, is in the backward pass, by stage."""

    def write(self, hosted: Sequence[int]) -> None:
        ops = self.program.ops
        values = {value: ops[int(self.graph.value_op[value])] for value in hosted}
        late = self._late(next(iter(values.values())).block)
        inside = self._inside()
        for value, op in values.items():
            result = op.results[value - self.graph.results(int(self.graph.value_op[value])).start]
            if op.name == WHILE:
                self._write_rows(op, result)
            else:
                with ir.InsertionPoint(_behind(op)):
                    self.there[result] = self._placed(result, HOST, latest_stage_of(op, self.virtual))
        for op in late if self.there else ():
            for one in walk(op) if len(op.regions) else (op,):
                for position, operand in enumerate(one.operands):
                    found = self._found(operand, op, inside)
                    if found != operand:
                        one.operands[position] = found

    def _late(self, block: ir.Block) -> list[ir.Operation]:
        """Returns the ops of a micro-batch that stand behind the forward pass."""
        ops = [view.operation for view in block.operations]
        last = max(unit.op for unit in self.stash.units)
        return ops[ops.index(self.program.ops[last]) + 1 :]

    def _inside(self) -> set[AnyValue]:
        """Returns the values of the forward pass that are computed inside their readers, from more than constants."""
        first = 0 if self.parts.loop is None else self.parts.loop.op + 1
        return {
            result
            for number in range(first, self.stash.turn + 1)
            if number not in self.units
            and not self.graph.cls(number).free
            and not self.parts.constant[number]
            and self.graph.cls(number).name != BARRIER
            for result in self.program.ops[number].results
        }

    def _found(self, value: AnyValue, reader: ir.Operation, inside: Collection[AnyValue]) -> AnyValue:
        """Returns what an op of the backward pass reads in place of a value: itself where it did not go away."""
        stage = latest_stage_of(reader, self.virtual)
        known = self.here.get((value, stage))
        if known is not None:
            return known
        found = value
        if value in self.there:
            with ir.InsertionPoint(reader):
                found = self._placed(self.there[value], DEVICE, stage)
        elif value in inside and (made := maker_of(value)) is not None:
            read = {one: self._found(one, reader, inside) for one in reads_of(made)}
            if any(one != new for one, new in read.items()):
                copy = made.clone(ip=ir.InsertionPoint(reader))
                for one in walk(copy) if len(copy.regions) else (copy,):
                    for position, operand in enumerate(one.operands):
                        if operand in read:
                            one.operands[position] = read[operand]
                if stage is not None:
                    set_virtual_stage(copy, stage)
                for old, new in zip(made.results, copy.results, strict=True):
                    self.here[old, stage] = new
                return self.here[value, stage]
        self.here[value, stage] = found
        return found

    def _placed(self, value: AnyValue, memory: MemoryKind, stage: int | None) -> AnyValue:
        op = placed(value, memory, value.location)
        sharding = self.sharding.of(value)
        if sharding is not None:
            op.attributes[SHARDING] = per_value_attribute([sharding])
        if stage is not None:
            set_virtual_stage(op, stage)
        result: AnyValue = op.results[0]
        return result

    def _write_rows(self, loop: ir.Operation, stack: AnyValue) -> None:
        """Brings the rows of a stack to host memory where a loop writes them, and back where loops read them."""
        number = ir.OpResult(stack).result_number
        end = loop.regions[1].blocks[0].operations[-1].operation
        writer = maker_of(end.operands[number])
        assert writer is not None, "each iteration writes a row"
        with ir.InsertionPoint(writer):
            writer.operands[1] = self._placed(writer.operands[1], HOST, None)
        for use in list(stack.uses):
            reader = use.owner.operation
            inside = reader.regions[1].blocks[0].arguments[use.operand_number]
            for row in [one.owner.operation for one in inside.uses if one.owner.operation.name != end.name]:
                with ir.InsertionPoint(_behind(row)):
                    here = self._placed(row.results[0], DEVICE, None)
                row.results[0].replace_all_uses_except(here, maker_of(here))


def _behind(op: ir.Operation) -> ir.Operation:
    """Returns the op that follows another one in its block."""
    ops = [view.operation for view in op.block.operations]
    return ops[ops.index(op) + 1]
