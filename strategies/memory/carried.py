"""What a loop's body makes where that lies which it takes the place of.

What a loop carries has one buffer in XLA, for each time round. What the body makes for the next time is copied there,
unless nothing reads what is there behind it (`CopyInsertion`; jaxlib 0.10.2 on a CPU, 2026-11-22): so a sum over all
times round is added up where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rhino.ir.graph.graph import MOVES, UPDATES, Graph, Loop


def carried_on(graph: Graph, in_memory: Sequence[bool]) -> set[int]:
    """Returns the values that bodies make in the buffers of what they carry.

    `in_memory` are those that lie anywhere.
    """
    return {value for loop in graph.loops for value in _Body(graph, in_memory, loop).carried_on()}


class _Body:
    def __init__(self, graph: Graph, in_memory: Sequence[bool], loop: Loop) -> None:
        self.graph, self.in_memory, self.loop = graph, in_memory, loop
        uses: list[int] = graph.uses.tolist()
        starts: list[int] = graph.use_start[loop.op : loop.end + 2].tolist()
        self.operands = [uses[a:b] for a, b in pairwise(starts)]
        """What each op reads, from the loop on."""

        self.maker: list[int] = graph.value_op.tolist()
        self.readers: dict[int, list[int]] = {}
        for op in range(loop.op + 1, loop.end):
            for value in self.read_by(op):
                self.readers.setdefault(value, []).append(op)

    def read_by(self, op: int) -> list[int]:
        """Returns what an op of the body reads."""
        return self.operands[op - self.loop.op]

    def carried_on(self) -> Iterator[int]:
        """Yields the values that are made in the buffers of what is carried, the last ones first."""
        seen: set[int] = set()
        for into, value in zip(self.graph.results(self.loop.op), self.read_by(self.loop.end), strict=True):
            while value not in seen and self.goes_into(value, into):
                seen.add(value)
                yield value
                op = self.maker[value]
                before = self.read_by(op)[0] if self.graph.cls(op).name in UPDATES else into
                if before == into or len(self.readers[before]) > 1:
                    break
                value = before  # what is updated lies there as well

    def goes_into(self, value: int, into: int) -> bool:
        """Says whether a value may be made where another lies.

        It must come after all that reads the other, and if it is computed from the other, element by element.
        """
        op, cls = self.maker[value], self.graph.cls(self.maker[value])
        readers = self.readers.get(into, [])
        if (
            op <= self.loop.op
            or cls.free
            or cls.is_view
            or self.graph.type_of(value).num_bytes != self.graph.type_of(into).num_bytes
        ):
            return False
        if op in readers and (not cls.fusible or cls.name in MOVES):
            return False
        others = {reader for reader in readers if reader != op}
        lie = all(self.in_memory[result] for reader in others for result in self.graph.results(reader))
        return lie and others <= self.needed(op, min(others, default=op))

    def needed(self, op: int, first: int) -> set[int]:
        """Returns the ops that `op` needs, from `first` on."""
        found, waiting = set[int](), [op] if first < op else []
        while waiting:
            new = {maker for value in self.read_by(waiting.pop()) if (maker := self.maker[value]) >= first} - found
            found |= new
            waiting += sorted(new)
        return found
