"""What an op takes on one device: what it reads of memory and writes there, beside its arithmetic.

What lies in memory is the program's: a value that is computed inside who reads it is neither written nor read
(`rhino.ir.graph.graph.materialized`). Where a device has a nearer memory, the compiler keeps there what fits, but for
what the program takes and gives and what its loops carry. A value fits that takes two thirds of it: attention's
scores of 64 MiB lie there in programs for v5e and v6e, which have 112 and 96 MiB for values. XLA:TPU brings out what
stays for long, and back, beside products that leave the memory idle, so that costs nothing here (libtpu 0.0.51: GPT,
BERT, MoE and T5 for v5e-8, 2026-11-24).

Seconds come from three sources: what was measured of an op on these very shapes, a table of the op by its work, and
else a roofline; the last two are the cost model's (`cost_model.py`).

What a product takes of the program's own arguments is brought into that memory by a copy, and is so whether the product
would leave the memory idle or not: of whole weights, such copies are waited for in the steps of optimizers, where all
that is done is to read and write (the same, GPT, BERT and ViT). A weight that is gathered comes there by the gather. A
result that is gathered is written from there.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from rhino.ir.cluster.hardware import Operator
from rhino.ir.graph.graph import Graph, OpClass, TensorType
from rhino.ir.graph.host_values import transfers, values_on_host
from rhino.ir.graph.spec import REPLICATED, Spec, num_parts
from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.cost_model import PRODUCTS, CostModel, reshard_seconds
from rhino.strategies.cost.halo_exchange import halo_moves, local_shape
from rhino.strategies.cost.overlap import Windows

READS_PART: Final = frozenset({"stablehlo.gather", "stablehlo.slice", "stablehlo.dynamic_slice"})
"""Ops that read as much of their first operand as they write."""


class OpCosts:
    """What ops take in a program where some values are `in_memory` [values] and some are written `in_place`.

    A value that is written in place goes into a larger one. `reads` [uses] says how often an op reads each operand from
    memory: once what lies there, unless it is given.
    """

    def __init__(
        self,
        graph: Graph,
        model: CostModel,
        in_memory: Sequence[bool],
        in_place: Set[int],
        reads: Sequence[int] | None = None,
    ) -> None:
        self.graph, self.model, self.sizes = graph, model, model.sizes
        self.in_memory, self.in_place = in_memory, in_place
        self.on_host = values_on_host(graph)
        self.transfers = transfers(graph, self.on_host)
        from_memory = values_from_memory(graph, in_memory)
        self.reads = [int(from_memory[value]) for value in graph.uses.tolist()] if reads is None else list(reads)
        self.use_start: list[int] = graph.use_start.tolist()
        self.near_bytes = model.device.near_bytes
        self.by_shape = {one.key: one for one in model.device.operators if one.operands}
        self.is_given, self.is_kept = _at_ends(graph) if self.near_bytes else ([False] * graph.num_values,) * 2

    def state_s(self, op: int, state: State) -> float:
        """Returns the seconds of an op in one state, with those of what it reads of other devices."""
        cls = self.graph.cls(op)
        if op in self.transfers:
            return self.model.host_s(self.local_bytes(cls.results[0], state.result_specs[0]))
        if cls.is_view or cls.placed or self.on_host.intersection(self.graph.results(op)):
            return 0.0
        if self.by_shape and (table := self.table(cls, state)) is not None:
            _, seconds = table.points[-1]
        else:
            moved = self.moved_bytes(op, state)
            is_kernel = any(self.in_memory[value] for value in self.graph.results(op))
            shares = state.num_even_shares(cls, self.sizes)
            seconds = self.model.compute_s(cls, moved, shares, is_kernel=is_kernel)
        return seconds + sum(self.model.move_s(move) for _, move in halo_moves(cls, state, self.sizes))

    def scalar_sum_s(self, value: int, spec: Spec, windows: Windows | None) -> float:
        """Returns the seconds in which the sum of a scalar over devices is taken that comes in a spec.

        It is taken at once, as scalars are whole on every device. Other values take nothing here.
        """
        kind = self.graph.type_of(value)
        if spec == REPLICATED or kind.shape:
            return 0.0
        window = windows.window(value, None) if windows else None
        return float(reshard_seconds(self.model, kind, [spec], [REPLICATED], window=window)[0, 0])

    def table(self, cls: OpClass, state: State) -> Operator | None:
        """Returns what was measured of an op whose part on a device has the shapes of a state, if it was."""
        operands = self.local_types(cls.operands, state.operand_specs)
        results = self.local_types(cls.results, state.result_specs)
        dtype = cls.operands[0].dtype if cls.operands else ""
        return self.by_shape.get((cls.name, dtype, operands, results))

    def local_types(self, kinds: Sequence[TensorType], specs: Sequence[Spec]) -> tuple[str, ...]:
        """Returns the types of tensors' parts on one device, as MLIR writes them between the brackets."""
        shapes = [local_shape(kind, spec, self.sizes) for kind, spec in zip(kinds, specs, strict=True)]
        return tuple(["x".join([*map(str, shape), kind.dtype]) for shape, kind in zip(shapes, kinds, strict=True)])

    def moved_bytes(self, op: int, state: State) -> int:
        """Returns the bytes that an op reads and writes on one device.

        Of a tensor that is updated in place, only the updated part is counted.

        An operand that is computed inside the op is not read: what it is computed from is read by what computes it. A
        part of a stack is computed inside loops, and copied for products (docs/search.md, Loops).
        """
        graph, cls = self.graph, self.graph.cls(op)
        if cls.moved_bytes is not None:
            return cls.moved_bytes // state.num_shares(self.sizes)
        values, reads = graph.results(op), self.reads[self.use_start[op] : self.use_start[op + 1]]
        operands = list(zip(graph.operands(op).tolist(), cls.operands, state.operand_specs, reads, strict=True))
        if values and values[0] in self.in_place:
            sizes = [(value, self.local_bytes(kind, spec), times) for value, kind, spec, times in operands[1:]]
            return sum(size + times * self.read_bytes(value, size) for value, size, times in sizes)
        results = [self.local_bytes(kind, spec) for kind, spec in zip(cls.results, state.result_specs, strict=True)]
        moved = sum(
            size
            for value, size in zip(values, results, strict=True)
            if self.in_memory[value] and (self.is_kept[value] or size > self.near_bytes)
        )
        for position, (value, kind, spec, times) in enumerate(operands):
            if times and not self.is_fetched(value, op):
                partly = position == 0 and cls.name in READS_PART
                whole = self.read_bytes(value, self.local_bytes(kind, spec))
                size = min(*results, whole) if partly else whole
                moved += size if partly and size <= self.near_bytes else times * size
        return moved

    def read_bytes(self, value: int, size: int) -> int:
        """Returns the bytes of the device's own memory that reading a value takes that has `size` bytes on it."""
        return size if self.is_given[value] or size > self.near_bytes else 0

    def is_fetched(self, value: int, op: int) -> bool:
        """Says whether a value comes to an op by a copy of its own, whose time depends on how the value is stored."""
        return self.near_bytes > 0 and self.is_given[value] and self.graph.cls(op).name in PRODUCTS

    def fetch_s(self, kind: TensorType, given: Spec, needed: Spec) -> float:
        """Returns the seconds of bringing a value into the nearer memory: none if a collective does, and it fits."""
        size = self.local_bytes(kind, needed)
        return size / self.model.device.memory_bytes_per_s if given == needed or size > self.near_bytes else 0.0

    def write_s(self, kind: TensorType, given: Spec, needed: Spec) -> float:
        """Returns the seconds of bringing a result out of the nearer memory, if a collective has gathered it there."""
        before, after = self.local_bytes(kind, given), self.local_bytes(kind, needed)
        return after / self.model.device.memory_bytes_per_s if self.near_bytes and after > before else 0.0

    def local_bytes(self, kind: TensorType, spec: Spec) -> int:
        """Returns the bytes of a tensor on one device."""
        return kind.num_bytes // num_parts(spec, self.sizes)


def _at_ends(graph: Graph) -> tuple[list[bool], list[bool]]:
    """Returns which values a program is given, or which view those, and which it is given, gives or carries in loops.

    Shapes: both [values].
    """
    given = values_from_memory(graph, [op < 0 for op in graph.value_op.tolist()])
    kept = list(given)
    for value in (*graph.returns, *(value for loop in graph.loops for value in graph.results(loop.op))):
        kept[value] = True
    return given, kept


def values_from_memory(graph: Graph, in_memory: Sequence[bool]) -> list[bool]:
    """Returns which values are read from memory: those that have memory of their own, and views of these [values]."""
    found = list(in_memory)
    for op in range(graph.num_ops):
        if graph.cls(op).is_view:
            for source, viewed in zip(graph.operands(op).tolist(), graph.results(op), strict=True):
                found[viewed] |= found[source]
    return found
