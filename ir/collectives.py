"""Count what a program sends between devices: collectives by kind, and their payload in bytes per device.

`tally_module` reads a local StableHLO program; `rhino.ir.hlo_collectives.tally_hlo` reads what XLA compiled. Both use the payload of
`payload_bytes`, which the cost model uses too, so that predicted, planned and compiled bytes can be compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rhino.ir.mlir import func, ir
from rhino.ir.reader import entry_function
from rhino.ir.units import format_bytes

KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")


def payload_bytes(kind: str, local_in_bytes: int, local_out_bytes: int) -> int:
    """Returns the payload of one collective, in bytes per device: its result if it gathers, its operands if not."""
    assert kind in KINDS, kind
    return local_out_bytes if kind == "all_gather" else local_in_bytes


class Count(NamedTuple):
    """Collectives of one kind: how many run, and the sum of their payloads per device."""

    num: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """Collectives of a program by kind.

    `exact` is False where a loop's trip count is not a constant (its body counts once), or where branches differ (the one with the
    most bytes counts).
    """

    counts: Mapping[str, Count] = field(default_factory=dict)
    exact: bool = True

    @property
    def total(self) -> Count:
        """All kinds together."""
        return Count(sum(count.num for count in self.counts.values()), sum(count.num_bytes for count in self.counts.values()))

    def __add__(self, other: Tally) -> Tally:
        counts = {}
        for kind in KINDS:
            a, b = self.counts.get(kind, Count()), other.counts.get(kind, Count())
            if a.num or b.num:
                counts[kind] = Count(a.num + b.num, a.num_bytes + b.num_bytes)
        return Tally(counts, self.exact and other.exact)

    def times(self, trips: int | None) -> Tally:
        """Returns the tally of a loop around this one; `trips` is None where nobody knows how often it runs."""
        if trips is None:
            return Tally(self.counts, self.exact and not self.counts)
        return Tally({kind: Count(count.num * trips, count.num_bytes * trips) for kind, count in self.counts.items() if trips}, self.exact)

    def table(self) -> str:
        """Returns a line for each kind and one for the total: kind, number, bytes per device."""
        rows = [*self.counts.items(), ("total" if self.exact else "total (at least)", self.total)]
        return "\n".join(f"{name:<18} {count.num:>6} {format_bytes(count.num_bytes):>10}" for name, count in rows)


EMPTY: Final = Tally()


def one_collective(kind: str, num_bytes: int) -> Tally:
    """Returns the tally of a single collective of `num_bytes` payload."""
    return Tally({kind: Count(1, num_bytes)})


def one_of(branches: Sequence[Tally]) -> Tally:
    """Returns the tally of a choice between `branches`: the one with the most bytes, exact if they all agree."""
    largest = max(branches, key=lambda tally: tally.total.num_bytes, default=EMPTY)
    return Tally(largest.counts, all(tally == largest and tally.exact for tally in branches))


def tally_module(module: ir.Module) -> Tally:
    """Returns the collectives that one device takes part in when it runs the entry function once.

    A collective over groups of one device moves nothing and is left out. Calls are followed.

    Raises:
        RhinoError: RHI-READ-005 where the module has no entry function.
    """
    functions = {op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)}
    return _Walk(functions, {}).function(entry_function(module).name.value)


def tensor_bytes(kind: ir.Type) -> int:
    """Returns the bytes of a tensor of static shape; booleans and sub-byte elements take a byte each, and tokens none."""
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    return math.prod(kind.shape) * _element_bytes(kind.element_type)


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


def _element_bytes(kind: ir.Type) -> int:
    if isinstance(kind, ir.ComplexType):
        return 2 * _element_bytes(kind.element_type)
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
