"""Take statistics of each of several equal parts of the batch, in a step that stays one for the whole batch.

Reads     a step on one device; its batch is found as for micro-batches, unless it is named.
Writes    the same step, but what parts have of their own has a leading dim, the number of the part: a mean over the
          batch is one over each part, and what is computed of it for the examples of that part. What is read of such
          values behind them is the mean over parts.
Errors    as rhino-micro-batch has them: RHI-BATCH-001, RHI-BATCH-002, RHI-BATCH-003, RHI-BATCH-004, RHI-BATCH-005,
          RHI-BATCH-006, RHI-BATCH-007, RHI-BATCH-008; RHI-BATCH-009 an op on statistics that is not known to run for
          parts, RHI-READ-005 no entry function, RHI-READ-006 recursive calls, RHI-READ-007 calls of too many ops,
          RHI-READ-008 a callee without a body.
Source    Statistics of each device's share of the batch are what data parallelism by hand takes (Ioffe and Szegedy,
          arXiv:1502.03167, section 3.1, has them of each mini-batch).

The step is that of `rhino-micro-batch{batch-statistics=per-part}` with as many micro-batches, without the loop: one
definition, by `rhino.strategies.microbatch.time_axis`, says what is of a part. The number of parts is given, and so is
the answer: whatever the devices and micro-batches are, it is the same. Where parts lie on as many devices, or
micro-batches, no statistic is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import BARRIER
from rhino.ir.graph.spec import PARTIAL, REPLICATED, split_dim
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.identity import make_constant
from rhino.ir.program.program import Program
from rhino.passes.base import Pass, Remarks, opt, option_texts
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.pipeline.batch_errors import PART, named
from rhino.passes.pipeline.batch_program import unmark
from rhino.passes.pipeline.micro_batch import MicroBatch, begin
from rhino.passes.pipeline.part_numbers import drop_dead
from rhino.passes.pipeline.part_statistics import EXTREME, SHARE, kind_of, parse_statistics
from rhino.passes.pipeline.parted_ops import Operand, Shape, Value, for_parts
from rhino.passes.with_rules import run_on_functions
from rhino.strategies.microbatch.time_axis import Phase, Propagation

_ABOUT: Final = option_texts(MicroBatch)


@dataclass(frozen=True)
class PartedStatistics(Pass):
    """Take statistics of each of several equal parts of the batch, in a step for the whole batch."""

    name: ClassVar[str] = "rhino-parted-statistics"
    errors: ClassVar[tuple[str, ...]] = (*MicroBatch.errors, "RHI-BATCH-009")

    batch: str = opt(*_ABOUT["batch"])
    no_batch: str = opt(*_ABOUT["no-batch"])
    batch_statistics: str = opt(*_ABOUT["batch-statistics"])

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place, where statistics of parts are asked for that are no micro-batches."""
        statistics = parse_statistics(self.batch_statistics, remarks.file)
        if not statistics.num_parts:
            return
        micro = MicroBatch(statistics.num_parts, self.batch, self.no_batch, statistics.per_part)
        boundary = begin(module, remarks)
        for place in dict.fromkeys(_take(micro, module, remarks)):
            what = f"a statistic of each of {statistics.num_parts} parts of the batch, not of the batch"
            remarks.add(self.name, place, what)
        entry = entry_function(module)
        unmark(entry)
        drop_dead(entry.regions[0].blocks[0])
        run_on_functions(module, "sdy-drop-sharding-rules,cse")
        Normalize().run(module, remarks)
        boundary.put_back(module, entry_function(module))


def _take(micro: MicroBatch, module: ir.Operation, remarks: Remarks) -> list[Place]:
    """Writes for parts what works on their statistics; returns where these are taken.

    No handle of an op is left, for what is not read any more is to be erased.
    """
    program, parts = micro.decide(module, remarks, PART)
    places = [place_of(program.ops[one].location, remarks.file) for one in sorted(parts.found.marks.owns)]
    _Parts(program, parts.found, micro.num).run()
    return places


class _Parts:
    """A program in which some values get a leading dim."""

    def __init__(self, program: Program, found: Propagation, parts: int) -> None:
        self.program, self.graph, self.found, self.parts = program, program.graph, found, parts
        self.own = [lay.is_own for lay in found.lays]
        self.whole = list(self._values())
        """Each value of the whole batch [values]."""
        self.parted: dict[int, Value] = {}
        """What parts have of their own, as [parts, ...]."""
        self.blocks: dict[tuple[int, int], Value] = {}
        """Values that are split along a dim, as [parts, ...]."""

    def _values(self) -> Iterator[Value]:
        yield from self.program.entry.arguments
        for op in self.program.ops:
            yield from op.results

    def run(self) -> None:
        """Rewrites what works on a part's own values, and what makes them."""
        wanted = self.wanted()
        for op in range(self.graph.num_ops):
            values = (*self.found.reads[op], *self.found.gives[op])
            if any(self.own[value] for value in values) or any(value in wanted for value in self.found.gives[op]):
                with ir.InsertionPoint(self.program.ops[op]), self.program.ops[op].location:
                    self.write(op, wanted)

    def wanted(self) -> set[int]:
        """Returns the partial sums that are read with a part's own values, and those that they follow from."""
        wanted = set[int]()
        for op in range(self.graph.num_ops - 1, -1, -1):
            reads, gives = self.found.reads[op], self.found.gives[op]
            if self.found.classes[op].name == BARRIER:
                wanted.update(value for value, result in zip(reads, gives, strict=True) if result in wanted)
            elif any(self.own[value] for value in (*reads, *gives)) or any(value in wanted for value in gives):
                wanted.update(value for value in reads if self.is_partial(value))
        return wanted

    def is_partial(self, value: int) -> bool:
        """Says whether a value is a sum of those of parts."""
        lay = self.found.lays[value]
        return lay.phase == Phase.LOOP and lay.spec == PARTIAL

    def write(self, number: int, wanted: set[int]) -> None:
        """Writes an op for parts, in place of one that reads what is of parts."""
        reads, gives = self.found.reads[number], self.found.gives[number]
        if self.found.classes[number].name == BARRIER:
            self.hand_on(reads, gives)
            return
        reads_own = any(self.own[value] for value in reads)
        for value, made in zip(gives, self.made(number), strict=True):
            dim = split_dim(self.found.lays[value].spec)
            if self.own[value] or value in wanted:
                self.parted[value] = made
            if dim is not None:
                self.replace(value, self.merged(made, dim))
            elif reads_own and not self.own[value]:
                self.replace(value, self.summed(made, number, value))

    def made(self, number: int) -> list[Value]:
        """Writes an op for parts, and returns its results as [parts, ...]."""
        op, reads, marks = self.program.ops[number], self.found.reads[number], self.found.marks
        if number in marks.owns or number in marks.shares:
            kind, value = kind_of(op), self.parted[reads[0]]
            if kind == EXTREME:
                return [value]
            number_of_parts = make_constant(value.type, self.parts)
            scaled = stablehlo.DivOp if kind == SHARE else stablehlo.MulOp
            return [scaled(value, number_of_parts).result]
        shapes = [self.shape_of_part(value) for value in self.found.gives[number]]
        made = for_parts(op, self.operands(number), shapes, self.parts) if self.is_plain(number) else None
        if made is None:
            raise self.unknown(op)
        return made

    def is_plain(self, number: int) -> bool:
        """Says whether an op stands in the program itself, and not in a loop of it."""
        is_inside = any(loop.op <= number <= loop.end for loop in self.graph.loops)
        return not is_inside and self.found.phases[number] == Phase.LOOP

    def unknown(self, op: ir.Operation) -> RhinoError:
        """Returns the error about an op that is not known to run for parts."""
        return RhinoError(
            "RHI-BATCH-009",
            f"{named(op)} works on statistics of parts of the batch, which is not known for such an op, nor in a loop",
            place_of(op.location, self.program.file),
            fix="take them of each micro-batch, with --micro-batches and --batch-statistics=per-part; or name the ops "
            f"whose sums are of a part: --batch-statistics={self.parts}-parts:NAME",
        )

    def operands(self, number: int) -> list[Operand]:
        """Returns what an op reads, as its parts do."""
        found = []
        for value, need in zip(self.found.reads[number], self.found.needs(number), strict=True):
            dim = split_dim(need)
            if value in self.parted and (need == PARTIAL or self.own[value]) and dim is None:
                found.append(Operand(self.parted[value], is_parted=True))
            elif dim is not None:
                found.append(Operand(self.block(value, dim), is_parted=True))
            else:
                assert need == REPLICATED, "a partial sum is of parts"
                found.append(Operand(self.whole[value], is_parted=False))
        return found

    def hand_on(self, reads: Sequence[int], gives: Sequence[int]) -> None:
        """Writes a barrier: what parts have passes it as they have it."""
        values = [self.parted[value] if value in self.parted else self.whole[value] for value in reads]
        made = stablehlo.OptimizationBarrierOp(values).results
        for value, result, one in zip(reads, gives, made, strict=True):
            if value in self.parted:
                self.parted[result] = one
            else:
                self.replace(result, one)

    def replace(self, value: int, by: Value) -> None:
        """Puts a value in place of one of the whole batch."""
        self.whole[value].replace_all_uses_with(by)
        self.whole[value] = by

    def shape_of_part(self, value: int) -> Shape:
        """Returns the shape of what one part has of a value."""
        shape, dim = list(self.graph.type_of(value).shape), split_dim(self.found.lays[value].spec)
        if dim is not None:
            shape[dim] //= self.parts
        return shape

    def block(self, value: int, dim: int) -> Value:
        """Returns a value that is split along a dim as [parts, ...]."""
        key = (value, dim)
        if key not in self.blocks:
            shape = list(self.graph.type_of(value).shape)
            cut = [*shape[:dim], self.parts, shape[dim] // self.parts, *shape[dim + 1 :]]
            self.blocks[key] = _moved(_reshaped(self.whole[value], cut), dim, 0)
        return self.blocks[key]

    def merged(self, value: Value, dim: int) -> Value:
        """Returns what is split along a dim, of [parts, ...]."""
        shape = list(ir.RankedTensorType(value.type).shape)
        whole = [*shape[1 : dim + 1], shape[0] * shape[dim + 1], *shape[dim + 2 :]]
        return _reshaped(_moved(value, 0, dim), whole)

    def summed(self, value: Value, op: int, result: int) -> Value:
        """Returns the sum over parts of what they have of a result of an op."""
        if self.found.lays[result].monoid != "add":
            raise self.unknown(self.program.ops[op])
        kind = ir.RankedTensorType(value.type)
        scalar = ir.RankedTensorType.get([], kind.element_type)
        own = ir.RankedTensorType.get(list(kind.shape)[1:], kind.element_type)
        dims = ir.DenseI64ArrayAttr.get([0])
        made = ir.Operation.create(
            "stablehlo.reduce", [own], [value, make_constant(scalar, 0)], {"dimensions": dims}, regions=1
        )
        body = made.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(body):
            stablehlo.ReturnOp([stablehlo.AddOp(*body.arguments).result])
        total: Value = made.results[0]
        return total


def _reshaped(value: Value, shape: Shape) -> Value:
    made: Value = stablehlo.ReshapeOp(
        ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type), value
    ).result
    return made


def _moved(value: Value, source: int, target: int) -> Value:
    """Returns a tensor with one dim at another place."""
    if source == target:
        return value
    order = list(range(ir.RankedTensorType(value.type).rank))
    order.insert(target, order.pop(source))
    made: Value = stablehlo.TransposeOp(value, ir.DenseI64ArrayAttr.get(order)).result
    return made
