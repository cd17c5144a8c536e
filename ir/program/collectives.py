"""Count what a program sends between devices: collectives by kind, and their payload in bytes per device.

`module_stats` reads a local StableHLO program; `rhino.ir.hlo.collectives.hlo_stats` reads what XLA compiled. Both
use the payload of `payload_bytes`, which the cost model uses too, so that predicted, planned and compiled bytes can be
compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rhino.ir.graph.collective_stats import EMPTY, KINDS, CollectiveStats, one_collective, one_of, payload_bytes
from rhino.ir.graph.elements import element_bytes
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.trip_count import trip_count


def module_stats(module: ir.Module | ir.Operation) -> CollectiveStats:
    """Returns the collectives that one device takes part in when it runs the entry function once.

    A collective over groups of one device moves nothing and is left out. Calls are followed.

    Raises:
        RhinoError: RHI-READ-005 where the module has no entry function.
    """
    functions = {
        op.name.value: op for op in module.operation.regions[0].blocks[0].operations if isinstance(op, func.FuncOp)
    }
    return _Walk(functions, {}).function(entry_function(module).name.value)


def tensor_bytes(kind: ir.Type) -> int:
    """Returns the bytes of a tensor of static shape.

    Booleans and sub-byte elements take a byte each, and tokens none.
    """
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    return math.prod(kind.shape) * element_bytes(str(kind.element_type))


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over a module; `done` keeps each function's stats, for calls repeat."""

    functions: Mapping[str, func.FuncOp]
    done: dict[str, CollectiveStats]

    def function(self, name: str) -> CollectiveStats:
        if name not in self.done:
            self.done[name] = self.region(self.functions[name].regions[0]) if name in self.functions else EMPTY
        return self.done[name]

    def region(self, region: ir.Region) -> CollectiveStats:
        found = EMPTY
        for block in region:
            for op in block.operations:
                found += self.op(op)
        return found

    def op(self, op: ir.OpView) -> CollectiveStats:
        name = op.operation.name
        kind = name.removeprefix("stablehlo.")
        if kind in KINDS:
            return _collective(op, kind)
        if name == "func.call":
            return self.function(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        inner = [self.region(region) for region in op.regions]
        if name in ("stablehlo.case", "stablehlo.if"):
            return one_of(inner)
        together = sum(inner, EMPTY)
        return together.times(trip_count(op)) if name == "stablehlo.while" and together.counts else together


def _collective(op: ir.OpView, kind: str) -> CollectiveStats:
    if not _crosses_devices(op):
        return EMPTY
    sent = sum(tensor_bytes(value.type) for value in op.operands)
    received = sum(tensor_bytes(value.type) for value in op.results)
    return one_collective(kind, payload_bytes(kind, sent, received))


def _crosses_devices(op: ir.OpView) -> bool:
    """Whether some device sends to another: a group holds at least two, or a pair joins two."""
    if "source_target_pairs" in op.attributes:
        return any(source != target for source, target in _rows(op.attributes["source_target_pairs"]))
    groups = op.attributes["replica_groups"]
    # Shardy may write groups as axes of a mesh; only the dense form says the size here, and the others hold several
    # devices.
    return not isinstance(groups, ir.DenseIntElementsAttr) or ir.RankedTensorType(groups.type).shape[-1] != 1


def _rows(attribute: ir.Attribute) -> Iterator[tuple[int, int]]:
    pairs = ir.DenseIntElementsAttr(attribute)
    flat = [int(pairs[i]) for i in range(len(pairs))]
    return zip(flat[::2], flat[1::2], strict=True)
