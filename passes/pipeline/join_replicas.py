"""Mark what replicas of a step send to each other: arguments before the micro-batches, and what they accumulate after.

Replicas are ranks that each take some of the micro-batches. An argument that results replace lies on one of them, and
goes to the others at the start of each step. What a loop over micro-batches accumulates is joined once, on the replica
that needs it.

Reads     the loop with `rhino.micro_batches` (docs/pipelines.md).
Writes    a custom call `@rhino.send` between an argument that stays and what reads it before the loop and in it, and
          `@rhino.join` between what the loop accumulates and what reads it after; `rhino.how` on the latter says how.
          Both have a sharding rule, element by element, and the price of the link between replicas (`rhino.cost`), so
          that the search of shardings sees what is sent. `rhino.each_replica` on an argument of which each micro-batch
          reads its own part: every replica is fed it. `rhino-split-replicas` takes the calls out.
Errors    RHI-REPLICA-001 no such number of replicas, RHI-REPLICA-002 what the loop carries cannot be joined,
          RHI-SPLIT-001 no loop over micro-batches, RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file,
          RHI-MESH-001 more replicas than devices, RHI-READ-005 no entry function.
Source    Whale, section 3.3 and algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Final

from rhino.ir.cluster.cluster import Cluster, load_cluster, mesh_axes
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.rules import RULE, factor_name
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function, maker_of
from rhino.ir.program.accumulation import Accumulation, AnyValue, Counter, carried_number, read_accumulation
from rhino.ir.program.collectives import tensor_bytes
from rhino.ir.program.identity import identity_of, is_constant
from rhino.ir.program.numerics import FUSIBLE
from rhino.ir.program.program import COST
from rhino.ir.program.replicas import EACH, HOW, JOIN, LAST, SEND, STACK, parse_replicas
from rhino.ir.request.op_rules import OpRule
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER

_REPEATABLE: Final = ("maximum", "minimum", "and", "or")
"""Ops of StableHLO by which replicas are joined as micro-batches are, wherever each has started from."""

_JOINED: Final = ("add", "multiply", "xor")
"""The same of replicas that have started from what changes nothing."""

_ROWS: Final = FUSIBLE | {"stablehlo.reshape", "stablehlo.transpose"}
"""Ops that a batch may go through before the loop takes its rows."""


@dataclass(frozen=True)
class JoinReplicas(Pass):
    """Mark what replicas send to each other, with its price."""

    name: ClassVar[str] = "rhino-join-replicas"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-REPLICA-001",
        "RHI-REPLICA-002",
        "RHI-SPLIT-001",
        "RHI-CLUSTER-001",
        "RHI-CLUSTER-002",
        "RHI-MESH-001",
        "RHI-READ-005",
    )

    replicas: str = opt(
        "", "the number of replicas, or how many micro-batches each takes, as 5;3; empty takes the step whole"
    )
    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Marks `module` in place."""
        entry = entry_function(module, remarks.file)
        found = read_accumulation(entry, remarks.file)
        count = parse_replicas(self.replicas).count
        marks = _Marks(found, sent_price(load_cluster(self.cluster), count), remarks.file)
        marks.join()
        marks.send()


class _Marks:
    """Puts calls into a program. A byte that a device sends takes as long as `price` bytes of its own memory."""

    def __init__(self, program: Accumulation, price: float, file: str) -> None:
        self.program, self.price, self.file = program, price, file
        self.early = {*program.before, program.loop}

    def join(self) -> None:
        """Marks what the loop accumulates, where something after it reads it."""
        after = (
            ir.InsertionPoint(self.program.after[0])
            if self.program.after
            else ir.InsertionPoint.at_block_terminator(self.program.entry.regions[0].blocks[0])
        )
        for number, _, _ in self.program.accumulated():
            result = self.program.loop.results[number]
            uses = list(result.uses)
            if not uses:
                continue
            how = self.how(number)
            with after, self.program.loop.location:
                made = self.call(JOIN, result, fixed=how == STACK)
            made.attributes[HOW] = ir.StringAttr.get(how)
            for use in uses:
                use.owner.operands[use.operand_number] = made.results[0]

    def how(self, number: int) -> str:
        """Returns how an accumulated value is joined: an op of StableHLO, or as rows, or as the last one."""
        body = self.program.loop.regions[1].blocks[0]
        argument, made = body.arguments[number], maker_of(self.program.following[number])
        uses = list(argument.uses)
        if not uses:
            return LAST
        if made is not None and len(uses) == 1 and uses[0].owner.operation == made:
            name = made.name.removeprefix("stablehlo.")
            if name in _REPEATABLE or (name in _JOINED and self.starts_neutral(number, name)):
                return name
            if name == "dynamic_update_slice" and uses[0].operand_number == 0 and self.counts(made.operands[2]):
                return STACK
        raise RhinoError(
            "RHI-REPLICA-002",
            f"value {number} that the loop over micro-batches carries is of all of them in their order, and replicas "
            "take them at the same time",
            place_of(self.program.loop.location, self.file),
            fix="leave replicas out, or accumulate sums from zero, extremes or rows of the micro-batches",
        )

    def starts_neutral(self, number: int, by: str) -> bool:
        """Says whether what is accumulated starts from a constant that changes nothing."""
        start = self.program.loop.operands[number]
        neutral = identity_of(by, ir.RankedTensorType(start.type).element_type)
        return neutral is not None and is_constant(start, neutral)

    def counts(self, value: AnyValue) -> bool:
        """Says whether a value of the body is the number of the micro-batch."""
        number = carried_number(value, self.program.loop)
        return number is not None and self.program.carried[number] == Counter(0, 1)

    def send(self) -> None:
        """Marks arguments that the micro-batches or what is before them reads."""
        attributes = boundary_attributes(self.program.entry, "arg")
        first = ir.InsertionPoint.at_block_begin(self.program.entry.regions[0].blocks[0])
        for number, argument in enumerate(self.program.entry.arguments):
            early = [use for use in argument.uses if self.top(use.owner.operation) in self.early]
            if not early:
                continue
            if ALIAS not in attributes[number] and self.is_batch(argument):
                attributes[number][EACH] = ir.UnitAttr.get()
                continue
            with first, self.program.entry.location:
                made = self.call(SEND, argument, fixed=False)
            for use in early:
                use.owner.operands[use.operand_number] = made.results[0]
        set_boundary_attributes(self.program.entry, "arg", attributes)

    def is_batch(self, argument: AnyValue) -> bool:
        """Says whether each micro-batch reads a part of its own of an argument, and nothing else reads it."""
        return all(self.takes_part(use) for use in argument.uses)

    def takes_part(self, use: ir.OpOperand) -> bool:
        """Says whether a use leads to parts of micro-batches alone."""
        op = use.owner.operation
        if self.top(op) == self.program.loop:
            return op.name == "stablehlo.dynamic_slice" and any(self.counts(index) for index in op.operands[1:])
        return (
            op in self.program.before
            and op.name in _ROWS
            and all(self.takes_part(other) for result in op.results for other in result.uses)
        )

    def call(self, target: str, value: AnyValue, *, fixed: bool) -> ir.Operation:
        """Makes a call that gives back its operand; with `fixed` its first dim is not split."""
        named = ir.StringAttr.get(target)
        made: ir.Operation = stablehlo.CustomCallOp([value.type], [value], named, has_side_effect=False).operation
        shape = tuple(ir.RankedTensorType(value.type).shape)
        names = [factor_name(dim) for dim in range(len(shape))]
        dims = (tuple([(name,) for name in names]),)
        rule = OpRule(dims, dims, (), f"need_replication={{{names[0]}}}" if fixed else "", ())
        made.attributes[RULE] = ir.Attribute.parse(rule.text(dict(zip(names, shape, strict=True))))
        size = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ceil(self.price * tensor_bytes(value.type)))
        made.attributes[COST] = ir.DictAttr.get({"bytes": size})
        return made

    def top(self, op: ir.Operation) -> ir.Operation:
        """Returns the op of the entry function that an op is, or is inside of."""
        while op.parent is not None and op.parent.operation != self.program.entry.operation:
            op = op.parent.operation
        return op


def sent_price(cluster: Cluster, count: int) -> float:
    """Returns how many bytes of its memory a device reads in the time in which it sends one byte to other replicas.

    Tensors lie on all of `count` replicas in turn, so that each sends of a tensor the share that the others need.

    Raises:
        RhinoError: RHI-MESH-001 where the cluster has fewer devices than replicas.
    """
    size = max(1, cluster.num_devices // count)
    link = mesh_axes(cluster, (count, size))[0].link
    return cluster.device.memory_bytes_per_s / link.per_s * (count - 1) / count
