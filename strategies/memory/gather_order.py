"""The order of dims in which tensors lie that collectives read.

XLA (`LayoutAssignment`; jaxlib 0.10.2 on a CPU, 2026-11-22) wants the dim of a gather, or of a reduce-scatter,
outermost. Where all that read a value agree on that order, it is computed in it: collectives, and ops element by
element whose result lies so too. Where others read it as well, it is copied for the collectives.

What a slice takes of a stack, and collectives alone read, lies in their order, and so does the stack that a loop keeps:
it is copied whole before the first loop that reads it so, and the copy stays for each further loop that does. Where
anything else reads the part too, a view among them, each part is copied within the loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from rhino.ir.graph.graph import MOVES, Loop
from rhino.ir.graph.spec import Spec
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.reshard import LayoutStep, reshard_path

_SLICE: Final = "stablehlo.dynamic_slice"


def outermost_dim(step: LayoutStep) -> int | None:
    """Returns the dim that a step wants outermost, None where it wants none."""
    return step.source if step.kind == "all_gather" else step.target if step.kind == "reduce_scatter" else None


def outermost_dims(plan: ShardingPlan) -> dict[int, int]:
    """Returns, by value of an op or a loop, the dims that its readers want outermost.

    Values whose first dims are outermost are left out.
    """
    return _Orders(plan).found()


class _Orders:
    def __init__(self, plan: ShardingPlan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.classes = [self.graph.classes[number] for number in self.graph.op_class.tolist()]
        self.readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        uses: list[int] = self.graph.uses.tolist()
        for op, (first, last) in enumerate(pairwise(self.graph.use_start.tolist())):
            for position, value in enumerate(uses[first:last]):
                self.readers[value].append((op, position))
        self.returned: dict[int, list[Spec]] = defaultdict(list)
        for value, target in zip(self.graph.returns, plan.returned, strict=True):
            self.returned[value].append(target)
        self.dims: dict[int, int] = {}

    def found(self) -> dict[int, int]:
        """Returns what `outermost_dims` does."""
        found = {}
        for op in range(self.graph.num_ops - 1, -1, -1):
            if self.is_element_by_element(op):
                value, wanted = self.graph.results(op).start, [*self.wanted(op)]
                self.dims[value] = _agreed(wanted)
                if len(wanted) > 1:  # where one alone reads a value, its copy, with the op inside, says as much
                    found[value] = self.dims[value]
        for loop in self.graph.loops:
            carried = zip(self.graph.results(loop.op), loop.kept, strict=True)
            found |= {value: _agreed([*self.wanted_of_stack(loop, value)]) for value, kept in carried if kept}
        return {value: dim for value, dim in found.items() if dim}

    def is_element_by_element(self, op: int) -> bool:
        """Says whether an op computes each element of its result from those at the same place."""
        cls = self.classes[op]
        return cls.fusible and cls.name not in MOVES and not cls.free and not cls.is_view

    def wanted(self, op: int) -> Iterator[int]:
        """Yields the dims that who reads the result of an op wants outermost, 0 for the order of rows."""
        value, (comes, *_) = self.graph.results(op).start, self.plan.ops[op].result_specs
        stored = self.plan.specs[value]
        if comes != stored:
            yield self.dim(value, comes, stored)
            return
        for reader, position in self.readers[value]:
            need = self.plan.ops[reader].operand_specs[position]
            if need != stored:
                yield self.dim(value, stored, need)
            else:
                yield self.dims.get(self.graph.results(reader).start, 0) if self.is_element_by_element(reader) else 0
        yield from (self.dim(value, stored, target) for target in self.returned[value] if target != stored)

    def wanted_of_stack(self, loop: Loop, value: int) -> Iterator[int]:
        """Yields the dims along which a loop's body gathers parts of what it keeps, 0 for what else it does with it."""
        for op, position in self.readers[value]:
            if op == loop.end:
                continue
            if self.classes[op].name == _SLICE and position == 0:
                yield from self.wanted(op)
            else:
                yield 0

    def dim(self, value: int, source: Spec, target: Spec) -> int:
        """Returns the dim that the first step from one spec to another wants outermost, 0 for none."""
        steps = reshard_path(len(self.graph.type_of(value).shape), source, target, len(self.plan.sizes))
        return (outermost_dim(steps[0]) or 0) if steps else 0


def _agreed(wanted: Sequence[int]) -> int:
    """Returns the dim that all want outermost, 0 where they do not agree."""
    return wanted[0] if len(set(wanted)) == 1 else 0
