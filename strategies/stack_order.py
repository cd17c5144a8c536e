"""The order of dims in which stacks lie whose parts loops gather.

XLA (`LayoutAssignment`; jaxlib 0.10.2 on a CPU, 2026-11-22) wants the dim of a gather outermost. Where gathers alone read what a slice
takes of a stack, that lies in their order, and so does the stack: it is copied whole before the first loop that reads it so, and the copy
stays for each further loop that does. Where anything else reads the part too, a view among them, each part is copied within the loop.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from rhino.ir.graph import Loop
from rhino.ir.spec import Spec
from rhino.strategies.plan import Plan
from rhino.strategies.reshard import way

_SLICE: Final = "stablehlo.dynamic_slice"


def gathered_dims(plan: Plan) -> dict[int, int]:
    """Returns, by the value that a loop keeps, the dim along which its body gathers all parts that it takes of it."""
    return _Reads(plan).gathered() if plan.graph.loops else {}


class _Reads:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        uses: list[int] = self.graph.uses.tolist()
        for op, (first, last) in enumerate(pairwise(self.graph.use_start.tolist())):
            for position, value in enumerate(uses[first:last]):
                self.readers[value].append((op, position))

    def gathered(self) -> dict[int, int]:
        """Returns what `gathered_dims` does."""
        found = {}
        for loop in self.graph.loops:
            for value, kept in zip(self.graph.results(loop.op), loop.kept, strict=True):
                dims = self.dims(loop, value) if kept else set()
                if len(dims) == 1 and (dim := dims.pop()):
                    found[value] = dim
        return found

    def dims(self, loop: Loop, value: int) -> set[int]:
        """Returns the dims along which parts of a value are gathered, 0 for what else is done with it."""
        return {dim for op, position in self.readers[value] if op != loop.end for dim in self.dims_of_part(op, position)}

    def dims_of_part(self, op: int, position: int) -> set[int]:
        """Returns the dims along which the part that a slice takes is gathered, 0 for what else is done with it."""
        if self.graph.cls(op).name != _SLICE or position:
            return {0}
        part = self.graph.results(op).start
        (comes,), stored = self.plan.ops[op].comes, self.plan.specs[part]
        if comes != stored:
            return {self.dim(part, comes, stored)}
        return {self.dim(part, stored, self.plan.ops[reader].needs[number]) for reader, number in self.readers[part]}

    def dim(self, value: int, source: Spec, target: Spec) -> int:
        """Returns the dim along which the first step from one spec to another gathers, 0 if it does something else."""
        first = next(iter(way(len(self.graph.type_of(value).shape), source, target, len(self.plan.sizes)) or ()), None)
        return first.source or 0 if first is not None and first.kind == "all_gather" else 0
