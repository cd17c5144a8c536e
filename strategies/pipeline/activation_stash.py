"""What a stage's forward pass stashes for its backward pass, which is a program of its own, and what that recomputes.

Within one program a compiler computes cheap values again inside the loops that read them
(`rhino.ir.graph.graph.materialized`). Between two programs every value that is read must be stashed, unless the
second has the ops that make it. It has them where that takes less than to write the value and read it again: a minimum
cut (strategies/remat/min_cut.py) over what the backward pass reads, with

- the bytes of what is kept, on one device;
- for an op that is done again its element operations, so many of which weigh as much as a byte (`_OPS_PER_BYTE`).

Ops that are computed inside their readers can be done again, if they wait for no other device, and not what the
backward pass reads from memory: a product's operand would be written anew. Products, reductions, collectives, random
bits, loops and barriers are never done again. What a stage has received is kept like what it has made. Arguments,
counters and what stands before the micro-batches are at hand; what is summed up over them is another by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.ir.graph.graph import COSTLY, REDUCE, Graph
from rhino.strategies.remat.min_cut import Piece, cheapest
from rhino.strategies.structure.training_phases import TrainingPhases, counters_of, sources_of

_OPS_PER_BYTE: Final = 32.0
"""A byte that is stashed is written and read.

While it moves a byte, a V100 does 17 operations in f32 (15.7 TFLOP/s, 900 GB/s), an H100 20 (67 TFLOP/s, 3.35 TB/s;
NVIDIA's data sheets).
"""

_COSTLY_OPS: Final = 8.0
"""Operations that a function such as an exponential counts.

It is computed by polynomials of that degree, or at a quarter of the rate with a few operations around it.
"""


GRADIENTS: Final = 0.01
"""The share of all bytes of sums over micro-batches that may be made in the forward pass: counts, but no gradients."""


@dataclass(frozen=True, slots=True)
class ActivationStash:
    """What is `kept` for a backward pass, each with the ops that need it, and the values made `again` from that."""

    kept: dict[int, tuple[int, ...]]
    again: frozenset[int]


class SplitMicroBatch:
    """A micro-batch that is split in programs.

    Shapes: `num_bytes` [values] on one device, of all that each stands for; `alone` [ops] says which run without
    waiting for other devices, all where it is None.
    """

    def __init__(
        self, graph: Graph, parts: TrainingPhases, num_bytes: Floats | Ints, alone: Bools | None = None
    ) -> None:
        self.graph, self.parts = graph, parts
        self.num_bytes: list[float] = num_bytes.tolist()
        self.value_op: list[int] = graph.value_op.tolist()
        self.sources = sources_of(graph, parts)
        own = -1 if parts.loop is None else parts.loop.op
        inner = np.zeros(graph.num_ops, dtype=bool)
        for loop in graph.loops:
            inner[loop.op + 1 : loop.end + 1] |= loop.op != own
        alone = np.ones(graph.num_ops, dtype=bool) if alone is None else alone
        fusible = np.array([cls.fusible for cls in graph.classes], dtype=bool)[graph.op_class]
        reduces = np.array([cls.name == REDUCE for cls in graph.classes], dtype=bool)[graph.op_class]
        self.inner, self.fusible = inner, fusible & ~inner
        self.reads_elements: list[bool] = ((fusible | reduces) & ~inner & alone).tolist()
        """Ops inside which what they read can be computed [ops]."""
        self.is_cheap: list[bool] = (fusible & parts.body & ~parts.free & ~inner & alone).tolist()
        self.sums = self._sums()

    def _sums(self) -> set[int]:
        """Returns the values that change from micro-batch to micro-batch, but for counters."""
        if self.parts.loop is None:
            return set()
        loop = self.parts.loop
        carried = zip(self.graph.results(loop.op), loop.kept, strict=True)
        return {value for value, kept in carried if not kept} - counters_of(self.graph, loop)

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The ops of the micro-batch and after it that read each value, through what costs nothing."""
        found: dict[int, list[int]] = {}
        for op in np.flatnonzero((self.parts.body | self.parts.apply) & ~self.parts.free).tolist():
            for source in dict.fromkeys(
                source for value in self.graph.operands(op).tolist() for source in self.sources[value]
            ):
                found.setdefault(source, []).append(op)
        return found

    @cached_property
    def ends(self) -> dict[int, int]:
        """The running sum that each value is the next of."""
        loop = self.parts.loop
        if loop is None:
            return {}
        carried = zip(self.graph.operands(loop.end).tolist(), self.graph.results(loop.op), loop.kept, strict=True)
        return {value: into for value, into, kept in carried if not kept}

    @cached_property
    def turns(self) -> tuple[int, int, int]:
        """The ops after which most of a micro-batch is held, in program order, and most is held for long.

        In large steps the first is where the backward pass begins. It is before gradients are made: layers that compute
        again what they have not kept hold more, one by one. The last is the same wherever that is. In small steps, what
        is soon read can be larger, as in the backward pass of experts; so the second counts a byte by how long it is
        held. What is added to a running sum is held no longer than it takes to make it, wherever the addition stands.
        No op is inside a loop of the model, which is forward or backward as a whole. Where the backward pass begins is
        the program's, however it is sharded.
        """
        adds = {self.value_op[value] for value in self.ends}
        anywhere = np.zeros(self.graph.num_ops, dtype=np.int64)
        last: dict[int, int] = {}
        for op in np.flatnonzero(self.parts.body & ~self.parts.free).tolist():
            if op not in adds:
                last.update(dict.fromkeys(self._made_of(op, anywhere, 0), op))
        total_bytes = (self.graph.value_bytes() * self.graph.copies()).tolist()
        change = np.zeros((2, self.graph.num_ops + 1))
        for value, end in last.items():
            start, size = self.value_op[value], total_bytes[value]
            weights = np.array([size, size * (end - start)])
            change[:, start] += weights
            change[:, end] -= weights
        held = np.cumsum(change, axis=1)
        held[:, np.flatnonzero(self.inner)] = -1.0
        last_peak, turn = np.argmax(held, axis=1).tolist()
        return int(np.argmax(held[0, : self._first_gradient()])), turn, last_peak

    def _first_gradient(self) -> int:
        """Returns the op before which hardly anything is made that is added to running sums, counted in bytes.

        Without running sums it is behind the last op.
        """
        adds = self._adds()
        ready: dict[int, int] = {}
        for op in sorted(adds):
            makers = [self.value_op[value] for value in self.graph.operands(op).tolist()]
            ready[op] = max((ready.get(maker, maker) for maker in makers), default=-1)
        sizes = self.graph.value_bytes()
        made = sorted((ready[op], float(sizes[value])) for value in self.ends if (op := self.value_op[value]) in ready)
        limit, sum_bytes = GRADIENTS * sum(size for _, size in made), 0.0
        for op, size in made:
            sum_bytes += size
            if sum_bytes > limit and op > 0:
                return op
        return self.graph.num_ops + 1

    def _adds(self) -> set[int]:
        """Returns the ops of the micro-batch that add to running sums, and those that fuse and lead to such alone."""
        adds = {op for value in self.ends if (op := self.value_op[value]) >= 0 and self.parts.body[op]}
        for op in np.flatnonzero(self.fusible & self.parts.body & ~self.parts.free)[::-1].tolist():
            readers = [reader for value in self.graph.results(op) for reader in self.readers.get(value, ())]
            if readers and adds.issuperset(readers):
                adds.add(op)
        return adds

    @cached_property
    def halves(self) -> ActivationStash:
        """What crosses if the micro-batch is two programs, which part where most is held."""
        return self.between((np.arange(self.graph.num_ops) > self.turns[0]).astype(np.int64), 0, 1)

    def between(self, stage: Ints, forward: int, backward: int) -> ActivationStash:
        """Returns what crosses from one virtual stage to another of the same device.

        `stage` [ops] are the virtual stages of the body.
        """
        late, from_memory = self._read_late(stage, forward, backward)
        values: list[int] = []
        reads: dict[int, tuple[int, ...]] = {}
        waiting = [-value for value in late]
        heapify(waiting)
        while waiting:  # readers first
            value = -heappop(waiting)
            if values and values[-1] == value:
                continue
            values.append(value)
            op = self.value_op[value]
            is_view = self.graph.cls(op).is_view
            if stage[op] == forward and self._can_repeat(op) and (is_view or value not in from_memory):
                reads[value] = self._made_of(op, stage, forward)
                from_memory.update(reads[value] if is_view and value in from_memory else ())
                for source in reads[value]:
                    heappush(waiting, -source)
        values.reverse()
        return _result(late, reads, self._repeated(values, reads, late))

    def size(self, stash: ActivationStash) -> float:
        """Returns the bytes that are kept."""
        return sum(self.num_bytes[value] for value in stash.kept)

    def _read_late(self, stage: Ints, forward: int, backward: int) -> tuple[dict[int, list[int]], set[int]]:
        """Returns what is read of the forward pass, by which ops, and what of it some op reads from memory."""
        late: dict[int, list[int]] = {}
        from_memory: set[int] = set()
        for op in np.flatnonzero(self.parts.body & ~self.parts.free & (stage == backward)).tolist():
            for value in self._made_of(op, stage, forward):
                late.setdefault(value, []).append(op)
                if not self.reads_elements[op]:
                    from_memory.add(value)
        return late, from_memory

    def _made_of(self, op: int, stage: Ints, forward: int) -> tuple[int, ...]:
        """Returns the values of the forward pass that an op reads, up to this virtual stage."""
        read = (source for value in self.graph.operands(op).tolist() for source in self.sources[value])
        return tuple(
            dict.fromkeys(
                v for v in read if (made := self.value_op[v]) >= 0 and self.parts.body[made] and stage[made] <= forward
            )
        )

    def _can_repeat(self, op: int) -> bool:
        read = (source for value in self.graph.operands(op).tolist() for source in self.sources[value])
        return self.is_cheap[op] and self.sums.isdisjoint(read)

    def _repeated(
        self, values: Sequence[int], reads: dict[int, tuple[int, ...]], late: dict[int, list[int]]
    ) -> frozenset[int]:
        """Returns the values that are made again, as few as can be at the least cost."""
        if not reads:
            return frozenset()
        number = {value: k for k, value in enumerate(values)}
        piece = Piece(
            tuple(self._weight(value) for value in values),
            tuple(value in reads for value in values),
            tuple(tuple(number[source] for source in reads.get(value, ())) for value in values),
            tuple((k,) for k in range(len(values))),
            tuple(round(self.num_bytes[value]) for value in values),
            frozenset(number[value] for value in late),
        )
        return frozenset(values[unit] for unit in cheapest(piece, 1.0).repeated)

    def _weight(self, value: int) -> float:
        """Returns what making a value weighs, in bytes that are stashed."""
        cls, kind = self.graph.cls(self.value_op[value]), self.graph.type_of(value)
        if cls.is_view or not kind.num_bytes:
            return 0.0
        num_elements = prod(kind.shape) * self.num_bytes[value] / kind.num_bytes
        return num_elements * (_COSTLY_OPS if cls.name in COSTLY else 1.0) / _OPS_PER_BYTE


def _result(late: dict[int, list[int]], reads: dict[int, tuple[int, ...]], again: frozenset[int]) -> ActivationStash:
    """Returns what is kept where some values are made again.

    The others that are read late are kept, and so is what the remade values are computed from.
    """
    made_of: dict[int, tuple[int, ...]] = {}
    for value in sorted(again):
        made_of[value] = tuple(dict.fromkeys(one for source in reads[value] for one in made_of.get(source, (source,))))
    kept: dict[int, dict[int, None]] = {}
    for value in sorted(late):
        for one in made_of.get(value, (value,)):
            kept.setdefault(one, {}).update(dict.fromkeys(late[value]))
    return ActivationStash({value: tuple(ops) for value, ops in kept.items()}, again & made_of.keys())
