"""Take one step in several numbers of micro-batches: what the number does not change is found once.

How a step takes its batch in parts (passes/pipeline/micro_batch.py) follows from which sizes of dims and factors the
number of parts divides, and from nothing else of it. So it is decided once for all numbers that divide the same of
them; each then has its own rewriting.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rhino.ir.graph.graph import Graph
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.program import Program, ops_of
from rhino.passes.base import Remarks
from rhino.passes.pipeline.micro_batch import Boundary, MicroBatch, begin
from rhino.strategies.microbatch.micro_batch import BatchParts


@dataclass(frozen=True, slots=True, eq=False)
class _Decided:
    """A step, as bytecode, in which all is copied that has to be, with its boundary and its batch.

    `boundary` is what stood at the step's boundary; `parts` is how it takes its batch in parts.
    """

    step: bytes
    boundary: Boundary
    parts: BatchParts


@dataclass(eq=False)
class Divider:
    """Takes one step, always the same, in numbers of parts, all by passes that say the same of its batch."""

    context: ir.Context
    sizes: tuple[int, ...] = ()
    decided: dict[tuple[int, ...], _Decided] = field(default_factory=dict)

    def divided(self, step: bytes, micro: MicroBatch, remarks: Remarks) -> ir.Module:
        """Returns the step as `micro` makes it.

        Raises:
            RhinoError: as `micro` does.
        """
        with self.context, ir.Location.unknown():
            known = self.decided.get(self._divides(micro.num))
            return self._first(step, micro, remarks) if known is None else self._again(known, micro, remarks)

    def _first(self, step: bytes, micro: MicroBatch, remarks: Remarks) -> ir.Module:
        module = ir.Module.parse(step)
        boundary = begin(module.operation, remarks)

        def read() -> tuple[Program, BatchParts]:
            program, parts = micro.decide(module.operation, remarks)
            self.sizes = self.sizes or _sizes(program.graph)
            self.decided[self._divides(micro.num)] = _Decided(bytecode(module), boundary, parts)
            return program, parts

        micro.divide(module.operation, boundary, read, remarks)
        return module

    def _again(self, known: _Decided, micro: MicroBatch, remarks: Remarks) -> ir.Module:
        module = ir.Module.parse(known.step)

        def read() -> tuple[Program, BatchParts]:
            entry = entry_function(module)
            return Program(known.parts.found.graph, entry, ops_of(entry), remarks.file), known.parts

        micro.divide(module.operation, known.boundary, read, remarks)
        return module

    def _divides(self, num: int) -> tuple[int, ...]:
        """Returns which sizes `num` divides; 1 for itself, for what is in one part is not split."""
        return tuple([size for size in self.sizes if size % num == 0]) if num > 1 else (1,)


def _sizes(graph: Graph) -> tuple[int, ...]:
    """Returns all sizes of dims and factors of a graph, but 0."""
    factors = {size for cls in graph.classes if cls.rule is not None for size in cls.rule.sizes}
    return tuple(sorted(({size for kind in graph.types for size in kind.shape} | factors) - {0}))
