"""Take the batch of a training step in parts, by a loop over micro-batches that accumulates.

What follows from the sums comes after the loop.

Reads     a step on one device; its batch is found by propagation (strategies/microbatch/micro_batch.py), unless it is
          named.
Writes    the form of docs/pipelines.md: a `stablehlo.while` with attribute `rhino.micro_batches`, setup before it,
          apply after it.
Errors    RHI-BATCH-001 the number is no number of micro-batches, RHI-BATCH-002 no batch, RHI-BATCH-003 the number does
          not divide it, RHI-BATCH-004 the step is not free of synchronisation, RHI-BATCH-005 nothing to accumulate,
          RHI-BATCH-006 shardings inside the step, RHI-BATCH-007 a name of the batch is of no argument, RHI-BATCH-008
          what is asked of statistics is not known, RHI-READ-005 no entry function, RHI-READ-006 recursive calls,
          RHI-READ-007 calls of too many ops, RHI-READ-008 a callee without a body.
Source    Rhino 6.1 (compute-gradients, accumulation, apply-gradients).

A micro-batch is a device of a mesh axis that is time. The program of one part comes from the rewriting of
passes/sharding/localize.py, which counts offsets (dropout masks are those of the whole batch), and
passes/pipeline/accumulation.py makes the loop of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import ClassVar, Final

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import Graph
from rhino.ir.graph.spec import split
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Attributes, Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.fixed_region import MANUAL
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING, sharding_attribute
from rhino.ir.program.loop_conditions import condition_reads
from rhino.ir.program.program import CONSTRAINT, Program, argument_name, read_program
from rhino.ir.request.patterns import dotted, matches, nearest
from rhino.ir.units import format_bytes
from rhino.passes.base import Pass, Remarks, make_pass, opt
from rhino.passes.frontend.inline import INLINE_ERRORS
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.layout.merged_batch import unmerge_inputs
from rhino.passes.pipeline.accumulation import make_loop
from rhino.passes.pipeline.batch_errors import MICRO_BATCH, refused
from rhino.passes.pipeline.batch_program import make_copies, start_from_zero, unmark
from rhino.passes.pipeline.owned_rules import owned_rules
from rhino.passes.pipeline.part_numbers import count_parts, drop_dead
from rhino.passes.pipeline.part_slices import take_slices
from rhino.passes.pipeline.part_statistics import mark_statistics, parse_statistics, settle_statistics
from rhino.passes.pipeline.time_loop import Carried
from rhino.passes.sharding.localize import rewrite
from rhino.passes.with_rules import run_on_functions
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.microbatch.micro_batch import (
    BatchParts,
    BatchRequest,
    PartStatistics,
    Sync,
    as_plan,
    take_in_parts,
)

BATCH: Final = ("batch", "no-batch", "batch-statistics")
"""Options that say what the batch is, and what may be taken of a part of it."""

_SIDES: Final[tuple[Side, Side]] = ("arg", "res")
_AXIS: Final = MICRO_BATCH
_MESH: Final = "rhino.time"


@dataclass(frozen=True, slots=True)
class CarriedValues:
    """What the loop over micro-batches carries: results and how each is accumulated."""

    values: tuple[Carried, ...]


@dataclass(frozen=True)
class MicroBatch(Pass):
    """Take the batch in parts: a loop over micro-batches that accumulates, and then what follows from the sums."""

    name: ClassVar[str] = "rhino-micro-batch"
    errors: ClassVar[tuple[str, ...]] = (
        *(f"RHI-BATCH-00{number}" for number in range(1, 9)),
        "RHI-READ-005",
        *INLINE_ERRORS,
    )

    num: int = opt(1, "how many micro-batches; 1 leaves a loop of one trip")
    batch: str = opt(
        "", "NAME or NAME:DIM, several with ; between: arguments with the batch at that dim (0); empty finds them"
    )
    no_batch: str = opt("", "NAME, several with ; between: arguments that have no batch")
    batch_statistics: str = opt(
        "",
        "per-part: sums over the batch that examples need may be of each micro-batch; N-parts: of each of N equal "
        "parts of the batch, whatever the micro-batches are; per-part:NAME or N-parts:NAME, several with ; between: "
        "those of ops with such names",
    )
    widen: bool = opt(True, "accumulate sums of 16-bit floats in f32")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        if self.num < 1:
            raise RhinoError("RHI-BATCH-001", f"{self.num} micro-batches", Place(remarks.file), fix="ask for 1 or more")
        boundary = begin(module, remarks)
        self.divide(module, boundary, lambda: self.decide(module, remarks), remarks)

    def divide(
        self, module: ir.Operation, boundary: Boundary, read: Callable[[], tuple[Program, BatchParts]], remarks: Remarks
    ) -> None:
        """Rewrites a module that was begun with, as `read` says: its program, and how that takes its batch in parts."""
        mesh = Mesh(((_AXIS, self.num),))
        decided: list[BatchParts] = []

        def planned() -> tuple[ShardingPlan, Program]:
            program, parts = read()
            decided.append(parts)
            _write_batch(module, program, mesh, parts.batch)
            return replace(as_plan(parts.found), sizes=mesh.shape), program

        with owned_rules(module):
            rewrite(module, _MESH, mesh.names, planned, remarks)
        entry = entry_function(module)
        if decided[0].found.marks.copies:
            unmark(entry)
        statistics = settle_statistics(entry.operation, self.num) if decided[0].found.marks.owns else ()
        take_slices(entry, decided[0].batch, self.num)
        count_parts(entry.operation)
        drop_dead(entry.regions[0].blocks[0])
        run_on_functions(module, "cse")
        entry = entry_function(module)
        carried = make_loop(entry, self.num, widen=self.widen)
        boundary.put_back(module, entry)
        _remark(entry, decided[0].batch, carried, self.num, remarks)
        for place in dict.fromkeys(place_of(one, remarks.file) for one in statistics):
            what = "a statistic of each micro-batch, not of the batch"
            remarks.add(self.name, place, what)

    def decide(self, module: ir.Operation, remarks: Remarks, part: str = MICRO_BATCH) -> tuple[Program, BatchParts]:
        """Returns the program and how it takes its batch in parts, each of which an error calls `part`.

        What has to be known whole early is copied in the program. Dims of inputs that it merges with dims before them
        are kept apart, where that is in the way.
        """
        mesh = Mesh(((_AXIS, self.num),))
        batch: Mapping[int, int] = {}
        is_apart = False
        while True:
            run_on_functions(module, "sdy-populate-op-sharding-rules")
            program = read_program(entry_function(module, remarks.file), mesh, remarks.file)
            request = self.request(program, remarks)
            outcome = take_in_parts(program.graph, replace(request, batch=batch or request.batch))
            if isinstance(outcome, Sync) and start_from_zero(program, outcome.meeting):
                continue
            if isinstance(outcome, Sync) and not is_apart:
                is_apart = True
                if unmerge_inputs(module, remarks.file):
                    continue
            if isinstance(outcome, PartStatistics):
                mark_statistics(program, outcome.found)
                continue
            if not isinstance(outcome, BatchParts):
                raise refused(outcome, program, request, part)
            if not make_copies(program, outcome.found):
                return program, outcome
            batch = outcome.batch

    def request(self, program: Program, remarks: Remarks) -> BatchRequest:
        """Returns the request that the options and the program make."""
        graph = program.graph
        batch: dict[int, int] = {}
        for text in _each(self.batch):
            pattern, dim = _named_dim(text)
            for number in _matching(graph, pattern, f"batch '{text}'", remarks.file):
                rank = len(graph.type_of(number).shape)
                if dim >= rank:
                    what = f"batch '{text}': {program.describe(number)} has no dim {dim}"
                    raise RhinoError("RHI-BATCH-007", what, Place(remarks.file), fix="dims count from 0: NAME:DIM")
                batch[number] = dim
        no_batch = frozenset(
            number
            for text in _each(self.no_batch)
            for number in _matching(graph, text, f"no-batch '{text}'", remarks.file)
        )
        marks = parse_statistics(self.batch_statistics, remarks.file).marks(program)
        return BatchRequest(
            self.num, {n: d for n, d in batch.items() if n not in no_batch}, no_batch, marks, condition_reads(program)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """What stood at the boundary of a step, and is put back when its batch is taken in parts.

    `sides` are the attributes of arguments and results; `meshes` are the module's meshes.
    """

    sides: Mapping[Side, list[Attributes]]
    meshes: Sequence[str]

    def put_back(self, module: ir.Operation, entry: func.FuncOp) -> None:
        """Puts it back, in the place of what there is."""
        _take_meshes(module)
        for mesh in self.meshes:
            ir.Operation.parse(mesh).clone(ip=ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]))
        for side, attributes in self.sides.items():
            set_boundary_attributes(entry, side, attributes)


def begin(module: ir.Operation, remarks: Remarks) -> Boundary:
    """Normalizes a step, and takes off what its boundary says of shardings.

    Raises:
        RhinoError: RHI-BATCH-006, RHI-READ-005, RHI-READ-006 to RHI-READ-008.
    """
    Normalize().run(module, remarks)
    entry = entry_function(module, remarks.file)
    _refuse_shardings(entry, remarks.file)
    sides = {side: boundary_attributes(entry, side) for side in _SIDES}
    for side, attributes in sides.items():
        unsharded = [{name: one for name, one in given.items() if not name.startswith("sdy.")} for given in attributes]
        set_boundary_attributes(entry, side, unsharded)
    return Boundary(sides, _take_meshes(module))


def batch_size(module: ir.Operation, options: Mapping[str, str]) -> int:
    """Returns the largest number of parts that a normalized step's batch can be taken in.

    `options` are those of `MicroBatch` that tell what the batch is.

    Raises:
        RhinoError: as `MicroBatch` does.
    """
    micro = make_pass(MicroBatch, {**options, "num": "1"})
    assert isinstance(micro, MicroBatch)
    program, parts = micro.decide(module, Remarks())
    return gcd(*(program.graph.type_of(number).shape[dim] for number, dim in parts.batch.items()))


def _each(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _named_dim(text: str) -> tuple[str, int]:
    name, colon, dim = text.rpartition(":")
    return (name, int(dim)) if colon and dim.isdigit() else (text, 0)


def _matching(graph: Graph, pattern: str, given: str, file: str) -> list[int]:
    names = [dotted(argument.name) for argument in graph.arguments]
    found = [number for number, name in enumerate(names) if matches(dotted(pattern), name, ".")]
    if not found:
        close = nearest(dotted(pattern), names, ".")
        fix = (
            f"did you mean {' or '.join(close)}?" if close else "name an argument, as a pattern of docs/constraints.md"
        )
        raise RhinoError("RHI-BATCH-007", f"{given} matches no argument", Place(file), fix=fix)
    return found


def _refuse_shardings(entry: func.FuncOp, file: str) -> None:
    for op in walk(entry.operation):
        if op.name == MANUAL:
            raise RhinoError(
                "RHI-BATCH-006",
                "a part that is parallel by hand (shard_map) is written for the whole batch",
                place_of(op.location, file),
                fix=(
                    "leave --micro-batches and --stages out, or write the part as one device would run it: the "
                    "search splits it"
                ),
            )
        if op.name == CONSTRAINT or SHARDING in op.attributes:
            raise RhinoError(
                "RHI-BATCH-006",
                f"'{op.name}' has a sharding of the whole batch",
                place_of(op.location, file),
                fix=(
                    "divide the batch first, and then pin ops with --pin=loc:...; shardings of arguments and "
                    "results may stay"
                ),
            )


def _take_meshes(module: ir.Operation) -> list[str]:
    """Removes the meshes of a module, and returns their texts."""
    meshes = [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == "sdy.mesh"]
    texts = [str(mesh) for mesh in meshes]
    for mesh in meshes:
        mesh.erase()
    return texts


def _write_batch(module: ir.Operation, program: Program, mesh: Mesh, batch: Mapping[int, int]) -> None:
    """Says on the boundary which arguments come in parts."""
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.axes)
    made = ir.Operation.parse(f"sdy.mesh @{_MESH} = <[{axes}]>")
    made.clone(ip=ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]))
    graph = program.graph
    split_dims = batch.items() if mesh.shape != (1,) else ()
    shardings = {
        number: sharding_attribute(_MESH, mesh.names, split(dim), len(graph.type_of(number).shape))
        for number, dim in split_dims
    }
    arguments = [{SHARDING: shardings[number]} if number in shardings else {} for number in range(len(graph.arguments))]
    set_boundary_attributes(program.entry, "arg", arguments)
    set_boundary_attributes(program.entry, "res", [{} for _ in graph.returns])


def _remark(
    entry: func.FuncOp, batch: Mapping[int, int], carried: tuple[Carried, ...], parts: int, remarks: Remarks
) -> None:
    name, place = MicroBatch.name, Place(remarks.file)
    dims = ", ".join(
        f'dim {dim} of "{argument_name(entry.arguments[number], number)}"' for number, dim in batch.items()
    )
    remarks.add(name, place, f"{parts} micro-batches; the batch is {dims}")
    for how in dict.fromkeys(one.how for one in carried):
        same = [one for one in carried if one.how == how]
        remarks.add(
            name, place, f"the loop carries {len(same)} x {how}, {format_bytes(sum(one.num_bytes for one in same))}"
        )
    remarks.record(CarriedValues(carried))
