"""Cut an accumulation program into programs of replicas: each runs its share of the micro-batches, and all are joined.

Replica r has a program that runs the loop for its own micro-batches (phase `accumulate`), with the numbers that they
have in the whole step, so that random bits are those of one device. What follows the loop runs once, in parts: each
tensor is joined and updated on one replica, as the stage of that number (`rhino-split-stages`).

Reads     what `rhino-join-replicas` writes; `sdy.mesh`, `sdy.sharding` and `rhino.carried` where the program is
          sharded.
Writes    the module as `rhino.ir.program.staged_module` describes it, with `rhino.shares`: the micro-batches of each
          replica. Where nobody says them, they are such that all replicas end at about the same time.
Errors    RHI-REPLICA-001 the micro-batches cannot be divided so, RHI-SPLIT-001 no loop over micro-batches,
          RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function, RHI-SHARD-001
          a sharding that the module's mesh does not have, RHI-LOCAL-001 an op that cannot run between the shardings
          around it, RHI-MESH-001 more devices than the cluster has.
Source    Whale, section 3.3 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.groups import rank_groups
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.boundary import set_boundary_attributes, set_function_type
from rhino.ir.mlir.reader import end_of, entry_function, maker_of
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.accumulation import (
    MICRO_BATCHES,
    AnyValue,
    Counter,
    carried_number,
    read_accumulation,
    reads_of,
)
from rhino.ir.program.collectives import tensor_bytes
from rhino.ir.program.identity import make_constant
from rhino.ir.program.local_rules import CUSTOM_CALL
from rhino.ir.program.op_stages import set_stage
from rhino.ir.program.replicas import HOW, JOIN, LAST, SEND, SHARES, STACK, parse_replicas
from rhino.ir.program.staged_module import (
    NUM_STAGES,
    STAGE_GROUPS,
    StagedPart,
    declare_step,
    program_boundary,
    write_staged,
)
from rhino.ir.program.trip_count import constant_of, trip_count
from rhino.ir.units import format_seconds
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.pipeline.part_numbers import drop_dead, is_used
from rhino.passes.pipeline.sharded_step import SHARDED_ERRORS, micro_batch_seconds, rank_mesh, sharded_step
from rhino.passes.pipeline.split_stages import Draft, Splitter, Writer, share_equal, sum_name
from rhino.passes.sharding.choose_shardings import STRATEGY
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.pipeline.replicas import owners, shares


@dataclass(frozen=True)
class SplitReplicas(Pass):
    """Cut an accumulation program into programs of replicas, each with its share of the micro-batches."""

    name: ClassVar[str] = "rhino-split-replicas"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-REPLICA-001",
        "RHI-SPLIT-001",
        "RHI-CLUSTER-001",
        "RHI-CLUSTER-002",
        *UNSHARDED_ERRORS,
        *SHARDED_ERRORS,
    )

    replicas: str = opt(
        "", "the number of replicas, or how many micro-batches each takes, as 5;3; empty takes the step whole"
    )
    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Splits `module` in place."""
        asked = parse_replicas(self.replicas)
        cluster = load_cluster(self.cluster)
        entry = entry_function(module, remarks.file)
        num = read_accumulation(entry, remarks.file).num_micro_batches
        if num < asked.count or sum(asked.shares or (num,)) != num:
            words = ";".join(map(str, asked.shares)) or f"{asked.count} replicas"
            raise RhinoError(
                "RHI-REPLICA-001",
                f"{num} micro-batches are not {words}" if asked.shares else f"{num} micro-batches for {words}",
                Place(remarks.file),
                fix="give each replica one micro-batch at least, and as many in all as there are",
            )
        with unsharded_program(module, remarks) as program:
            sharded = sharded_step(program, module, cluster, asked.count)
            each_s = micro_batch_seconds(sharded, cluster, rank_mesh(module), asked.count)
        parts = asked.shares or shares(each_s, num)
        for rank, (count, seconds) in enumerate(zip(parts, each_s, strict=True)):
            words = f"replica {rank} takes {count} of {num} micro-batches, of {format_seconds(seconds)} each"
            remarks.add(self.name, Place(remarks.file), words)
        groups = rank_groups(cluster, (rank_mesh(module).num_devices,) * asked.count)[1]
        if len(set(groups)) > 1:
            module.attributes[STAGE_GROUPS] = ir.DenseI64ArrayAttr.get(groups)
        split(module, parts, remarks)


def split(module: ir.Operation, parts: tuple[int, ...], remarks: Remarks) -> None:
    """Makes of `module` a module in stages whose replicas take so many micro-batches each [replicas]."""
    entry = entry_function(module, remarks.file)
    program = read_accumulation(entry, remarks.file)
    count = ir.IntegerType.get_signless(64)
    module.attributes[NUM_STAGES] = ir.IntegerAttr.get(count, len(parts))
    module.attributes[SHARES] = ir.DenseI64ArrayAttr.get(parts)
    splitter = _Replicas(module, program, remarks.file, parts)
    splitter.place()
    found, results = splitter.build(splitter.drafts(split_backward=False))
    declare_step(entry, splitter.names)
    num = program.num_micro_batches
    del splitter, program
    entry.operation.erase()
    write_staged(module, share_equal(module, found), len(parts), num, results)


@dataclass(eq=False)
class _Replicas(Splitter):
    """Cuts the part after the loop as stages are cut, and makes a program of the loop for each replica."""

    shares: tuple[int, ...] = ()

    def place(self) -> None:
        """Writes on each op after the loop the replica that runs it, as its stage."""
        ops = [op for op in self.program.after if not self.is_anywhere(op)]
        number: dict[AnyValue, int] = {result: at for at, op in enumerate(ops) for result in op.results}
        reads = [[number[one] for value in reads_of(op) for one in self.made_of(value) if one in number] for op in ops]
        sizes = [sum(tensor_bytes(result.type) for result in op.results) for op in ops]
        joins = [at for at, op in enumerate(ops) if _target(op) == JOIN]
        for op, owner in zip(ops, owners(sizes, reads, joins, self.num_stages), strict=True):
            set_stage(op, owner)

    def drafts(self, *, split_backward: bool) -> list[Draft]:
        """Returns the parts after the loop, each after those that it reads."""
        found: dict[tuple[int, int], Draft] = {}
        self.apply(found)
        return [found[place] for place in sorted(found)]

    def accumulate(self) -> None:
        """Does nothing: the loop stays whole, in programs of its own."""

    def build(self, drafts: list[Draft]) -> tuple[list[StagedPart], list[str]]:
        """Makes the functions of the loop on each replica, and of what is before and after it.

        Returns the parts, and the names of the step's results.
        """
        loops = [self.loop_of(replica) for replica in range(len(self.shares))]
        parts, results = super().build(drafts)
        return [*loops, *parts], results

    def joins(self) -> list[ir.Operation]:
        """Returns the calls that join what the loop accumulates."""
        return [op for op in self.program.after if _target(op) == JOIN]

    def loop_of(self, replica: int) -> StagedPart:
        """Makes the function that runs the micro-batches of a replica, which gives what it has accumulated."""
        label = f"accumulate_{replica}"
        at = ir.InsertionPoint(self.program.entry)
        function: func.FuncOp = self.program.entry.operation.clone(ip=at).opview
        function.attributes["sym_name"] = ir.StringAttr.get(label)
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        block = function.regions[0].blocks[0]
        ops = [view.operation for view in block.operations]
        place = next(number for number, op in enumerate(ops) if MICRO_BATCHES in op.attributes)
        joins = self.joins()
        numbers = [self.accumulated_number(op) for op in joins]
        with ir.InsertionPoint(ops[-1]), ops[-1].location:
            func.ReturnOp([ops[place].results[number] for number in numbers])
        for op in reversed(ops[place + 1 :]):
            op.erase()
        first = sum(self.shares[:replica])
        _count_from(ops[place], self.program.carried, first, self.shares[replica])
        for op in reversed(ops[:place]):
            if _target(op) == SEND:
                op.results[0].replace_all_uses_with(_as_stored(op))
            if _target(op) == SEND or (op.name != CUSTOM_CALL and not any(map(is_used, op.results))):
                op.erase()
        read = [number for number, value in enumerate(block.arguments) if is_used(value)]
        for number in sorted(set(range(len(self.names))).difference(read), reverse=True):
            block.erase_argument(number)
        set_function_type(function)
        given = [self.argument_attributes[number].get(SHARDING) for number in read]
        set_boundary_attributes(function, "arg", [program_boundary(one) for one in given])
        set_boundary_attributes(function, "res", [program_boundary(self.sharding_of(op.results[0])) for op in joins])
        names = tuple([self.names[number] for number in read])
        return StagedPart("accumulate", replica, label, names, tuple([_of(number, replica) for number in numbers]))

    def accumulated_number(self, op: ir.Operation) -> int:
        """Returns the number of the loop's value that a call joins."""
        number = carried_number(op.operands[0], self.program.loop)
        assert number is not None, "a join reads what the loop accumulates"
        return number

    def stands_for(self, op: ir.Operation, writer: Writer) -> bool:
        """Writes what a call of replicas stands for: an argument as it is, or the values of all replicas joined."""
        target = _target(op)
        if target == SEND:
            writer.values[op.results[0]] = writer.value(op.operands[0])
        elif target == JOIN:
            writer.values[op.results[0]] = self.joined(op, writer)
        return target in (SEND, JOIN)

    def joined(self, op: ir.Operation, writer: Writer) -> AnyValue:
        """Writes the join of what replicas have accumulated, each step of it stored as the call's result is."""
        result, number = op.results[0], self.accumulated_number(op)
        sharding, how = self.sharding_of(result), str(ir.StringAttr(op.attributes[HOW]).value)
        first = len(self.shares) - 1 if how == LAST else 0
        every = [writer.read(_of(number, replica), result.type, sharding) for replica in range(first, len(self.shares))]
        with writer.end, op.location:
            if how == STACK:
                ends = accumulate(self.shares)
                made = [_rows(value, end - n, end) for value, end, n in zip(every, ends, self.shares, strict=True)]
                made.append(stablehlo.ConcatenateOp(made, 0).result)
            else:
                made = [every[0]]
                for value in every[1:]:
                    joined = ir.Operation.create(f"stablehlo.{how}", [result.type], [made[-1], value])
                    made.append(joined.results[0])
        for one in made:
            if SHARDING in op.attributes and (maker := maker_of(one)) is not None:
                maker.attributes[SHARDING] = op.attributes[SHARDING]
        return made[-1]


def _of(number: int, replica: int) -> str:
    """Returns the name of what a replica has accumulated as the loop's value `number`."""
    return f"{sum_name(number)} of {replica}"


def _rows(value: AnyValue, start: int, end: int) -> AnyValue:
    """Returns the rows of a stack from `start` to behind `end`."""
    shape = list(ir.RankedTensorType(value.type).shape)
    rest = len(shape) - 1
    rows: AnyValue = stablehlo.SliceOp(value, [start, *[0] * rest], [end, *shape[1:]], [1] * (rest + 1)).result
    return rows


def _as_stored(sent: ir.Operation) -> AnyValue:
    """Returns an argument as the call that sends it gives it: stored as that is, once for all micro-batches."""
    value: AnyValue = sent.operands[0]
    kept = {name: sent.attributes[name] for name in (SHARDING, STRATEGY) if name in sent.attributes}
    if kept:
        with ir.InsertionPoint(sent), sent.location:
            made = stablehlo.ConvertOp(value.type, value)
        for name, one in kept.items():
            made.operation.attributes[name] = one
        value = made.result
    return value


def _count_from(loop: ir.Operation, kinds: Sequence[Counter | AnyValue | None], first: int, count: int) -> None:
    """Lets a loop over micro-batches run for `count` of them from number `first` on."""
    for number, kind in enumerate(kinds):
        if isinstance(kind, Counter):
            loop.operands[number] = _constant(loop.operands[number], kind.start + kind.step * first)
    compare = maker_of(end_of(loop.regions[0].blocks[0]).operands[0])
    assert compare is not None, "a comparison ends the loop"
    for operand, bound in enumerate(list(compare.operands)):
        if constant_of(bound) is not None:
            compare.operands[operand] = _constant(bound, first + count)
    drop_dead(loop.regions[0].blocks[0])
    loop.attributes[MICRO_BATCHES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)
    assert trip_count(loop.opview) == count, "the loop runs its micro-batches"


def _constant(value: AnyValue, number: int) -> AnyValue:
    """Returns an integer in the place of a constant one, stored alike."""
    old = maker_of(value)
    assert old is not None, "a constant is made by an op"
    with ir.InsertionPoint(old), old.location:
        made = make_constant(value.type, number)
    new = maker_of(made)
    if SHARDING in old.attributes and new is not None:
        new.attributes[SHARDING] = old.attributes[SHARDING]
    return made


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value) if op.name == CUSTOM_CALL else ""
