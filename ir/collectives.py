"""Count what a program sends between devices: collectives by kind, and their payload in bytes per device.

`tally_module` reads a local StableHLO program; `rhino.ir.hlo_collectives.tally_hlo` reads what XLA compiled. Both use the payload of
`payload_bytes`, which the cost model uses too, so that predicted, planned and compiled bytes can be compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rhino.ir.mlir import func, ir
from rhino.ir.reader import entry_function
from rhino.ir.tally import EMPTY, KINDS, Tally, one_collective, one_of, payload_bytes


def tally_module(module: ir.Module | ir.Operation) -> Tally:
    """Returns the collectives that one device takes part in when it runs the entry function once.

    A collective over groups of one device moves nothing and is left out. Calls are followed.

    Raises:
        RhinoError: RHI-READ-005 where the module has no entry function.
    """
    functions = {op.name.value: op for op in module.operation.regions[0].blocks[0].operations if isinstance(op, func.FuncOp)}
    return _Walk(functions, {}).function(entry_function(module).name.value)


def tensor_bytes(kind: ir.Type) -> int:
    """Returns the bytes of a tensor of static shape; booleans and sub-byte elements take a byte each, and tokens none."""
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    return math.prod(kind.shape) * element_bytes(kind.element_type)


def trip_count(loop: ir.OpView) -> int | None:
    """Returns how often a `stablehlo.while` runs, or None.

    Recognised: the condition is `compare LT, counter, constant`, the counter starts at a constant, and the body adds the constant 1.
    """
    counter, bound = _compared(loop)
    if counter is None or bound is None:
        return None
    start = _constant(loop.operands[counter])
    step = _step(loop.regions[1].blocks[0], counter)
    return max(bound - start, 0) if start is not None and step == 1 else None


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over a module; `done` keeps each function's tally, for calls repeat."""

    functions: Mapping[str, func.FuncOp]
    done: dict[str, Tally]

    def function(self, name: str) -> Tally:
        if name not in self.done:
            self.done[name] = self.region(self.functions[name].regions[0]) if name in self.functions else EMPTY
        return self.done[name]

    def region(self, region: ir.Region) -> Tally:
        found = EMPTY
        for block in region:
            for op in block.operations:
                found += self.op(op)
        return found

    def op(self, op: ir.OpView) -> Tally:
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


def _collective(op: ir.OpView, kind: str) -> Tally:
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
    # Shardy may write groups as axes of a mesh; only the dense form says the size here, and the others hold several devices.
    return not isinstance(groups, ir.DenseIntElementsAttr) or ir.RankedTensorType(groups.type).shape[-1] != 1


def _rows(attribute: ir.Attribute) -> Iterator[tuple[int, int]]:
    pairs = ir.DenseIntElementsAttr(attribute)
    flat = [int(pairs[i]) for i in range(len(pairs))]
    return zip(flat[::2], flat[1::2], strict=True)


def element_bytes(kind: ir.Type) -> int:
    """Returns the bytes that one element takes in memory."""
    if isinstance(kind, ir.ComplexType):
        return 2 * element_bytes(kind.element_type)
    width = kind.width if isinstance(kind, ir.IntegerType | ir.FloatType) else 0
    return -(-int(width) // 8)


def _compared(loop: ir.OpView) -> tuple[int | None, int | None]:
    """The carried value that the condition compares and the bound it must stay below, each None if of another form."""
    block = loop.regions[0].blocks[0]
    compare = _owner(list(block.operations)[-1].operands[0])
    if compare is None or compare.name != "stablehlo.compare" or "LT" not in str(compare.attributes["comparison_direction"]):
        return None, None
    return _argument_number(compare.operands[0], block), _constant(compare.operands[1])


def _step(body: ir.Block, counter: int) -> int | None:
    """The constant that the body adds to carried value `counter`."""
    add = _owner(list(body.operations)[-1].operands[counter])
    if add is None or add.name != "stablehlo.add":
        return None
    left, right = add.operands
    if _argument_number(left, body) == counter:
        return _constant(right)
    return _constant(left) if _argument_number(right, body) == counter else None


def _owner(value: ir.Value[ir.Type]) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _argument_number(value: ir.Value[ir.Type], block: ir.Block) -> int | None:
    return value.arg_number if isinstance(value, ir.BlockArgument) and value.owner == block else None


def _constant(value: ir.Value[ir.Type]) -> int | None:
    op = _owner(value)
    if op is None or op.name != "stablehlo.constant":
        return None
    attribute = op.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or len(attribute) != 1:
        return None
    return int(attribute[0])
