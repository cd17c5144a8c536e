"""Errors for a step that cannot be divided into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.program.program import Program
from rhino.passes.layout.merged_batch import merged
from rhino.passes.layout.shapes import RESHAPE, shape_of
from rhino.strategies.microbatch.micro_batch import (
    BatchParts,
    BatchRequest,
    NoBatch,
    Nothing,
    Outcome,
    PartStatistics,
    Sync,
    Uneven,
)
from rhino.strategies.microbatch.time_axis import Meeting

MICRO_BATCH: Final = "micro-batch"
PART: Final = "part"


def refused(outcome: Outcome, program: Program, request: BatchRequest, part: str) -> RhinoError:
    """Returns the error that says why a step does not take its batch in parts; `part` is the word for one of them."""
    place, parts = place_of(program.entry.location, program.file), request.parts
    match outcome:
        case Uneven(batch=batch):
            return _uneven(program, batch, parts, part)
        case Sync(meeting=meeting):
            return _cut(program, meeting, parts, part) or _not_free(outcome, program, request, part)
        case Nothing(batch=batch):
            what = f"nothing that the step gives depends on {_dims(program, batch)}: there is nothing to accumulate"
            return RhinoError("RHI-BATCH-005", what, place, fix="name the batch with --batch, if it is another")
        case NoBatch() | BatchParts() | PartStatistics():
            carried = sum(argument.alias is not None for argument in program.graph.arguments)
            why = (
                f"of {len(program.graph.arguments)} arguments {carried} are carried from step to step, and no other "
                "has a dim"
            )
            return RhinoError(
                "RHI-BATCH-002", "the step has no batch", place, (why,), "name the batch with --batch=NAME:DIM"
            )


def _dims(program: Program, batch: Mapping[int, int]) -> str:
    return ", ".join(f"dim {dim} of {program.describe(number)}" for number, dim in batch.items())


def _uneven(program: Program, batch: Mapping[int, int], parts: int, part: str) -> RhinoError:
    graph = program.graph
    number, dim = next(
        (n, d) for n, d in batch.items() if graph.type_of(n).shape[d] % parts or not graph.type_of(n).shape[d]
    )
    size = graph.type_of(number).shape[dim]
    what = f"{parts} {_many(part)} do not divide the batch: dim {dim} of {program.describe(number)} has size {size}"
    place = place_of(program.entry.arguments[number].location, program.file)
    return RhinoError("RHI-BATCH-003", what, place, fix=_one_of_the_divisors(size))


def _one_of_the_divisors(size: int) -> str:
    return "ask for one of " + ", ".join(str(one) for one in range(1, size + 1) if size % one == 0)


def _cut(program: Program, meeting: Meeting, parts: int, part: str) -> RhinoError | None:
    """Returns the error of a reshape that cuts the batch in fewer blocks than there are parts, or in others."""
    op, begins = program.ops[meeting.op], _batch_begins(program, meeting)
    if meeting.dim is None or begins is None:
        return None
    blocks = gcd(shape_of(op.operands[0])[meeting.dim], shape_of(op.results[0])[begins])
    if blocks == 1 or blocks % parts == 0:
        return None
    what = f"{parts} {_many(part)} do not divide the {blocks} blocks that {named(op)} cuts the batch in"
    why = f"it makes {program.describe(program.graph.results(meeting.op).start)} of {program.describe(meeting.value)}"
    return RhinoError("RHI-BATCH-003", what, place_of(op.location, program.file), (why,), _one_of_the_divisors(blocks))


def _batch_begins(program: Program, meeting: Meeting) -> int | None:
    """Returns the dim of a reshape's result that begins where the batch does; None where none does."""
    op = program.ops[meeting.op]
    if op.name != RESHAPE or meeting.dim is None:
        return None
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    outer = prod(before[: meeting.dim])
    return next((dim for dim, size in enumerate(after) if size > 1 and prod(after[:dim]) == outer), None)


def _not_free(sync: Sync, program: Program, request: BatchRequest, part: str) -> RhinoError:
    graph, meeting = program.graph, sync.meeting
    op = program.ops[meeting.op]
    in_loop = any(loop.op < meeting.op < loop.end for loop in graph.loops)
    reads = "is in a loop that works on a part of the batch" if in_loop else "reads a part of the batch"
    what = f"{_many(part)} would have to synchronize: {named(op)} {reads} and needs "
    notes = []
    if meeting.source >= 0:
        source = program.ops[meeting.source]
        made = program.describe(graph.results(meeting.source).start)
        made += f" at {place_of(source.location, program.file)}"
        notes.append(f"it is known only after all {_many(part)} have computed {made}")
        what += "a value of the whole batch"
    else:
        what += "all of it"
    notes.append(f"it is operand {meeting.operand}, {program.describe(meeting.value)}")
    heavy = program.ops[sync.waits]
    waits = program.describe(graph.results(sync.waits).start) if graph.results(sync.waits) else heavy.name
    notes.append(f"work of each {part} waits for it: {waits} at {place_of(heavy.location, program.file)}")
    notes.append(f"the batch is taken to be {_dims(program, sync.batch)}")
    is_merged = merged(op, meeting.dim) is not None
    if is_merged:
        notes.append(
            f"it merges dim {meeting.dim}, the batch, with dims before it, and not all that follows can take them apart"
        )
    is_asked = meeting.source < 0 or meeting.source in request.marks.may_be_own
    statistics = "per-part" if part == MICRO_BATCH else f"{request.parts}-parts"
    fix = "" if is_asked else f"take it of each {part} with --batch-statistics={statistics}; or "
    fix += "transpose before it, so that the batch comes first; or " if is_merged else ""
    fix += (
        "make examples independent of each other: normalize over groups or layers instead of the batch, take negatives "
        f"from each {part}, or keep the batch whole; if the batch is another dim, name it with --batch"
    )
    return RhinoError("RHI-BATCH-004", what, place_of(op.location, program.file), tuple(notes), fix)


def _many(part: str) -> str:
    return f"{part}es" if part == MICRO_BATCH else f"{part}s"


def named(op: ir.Operation) -> str:
    """Returns an op's name, with its scope where it has one."""
    scope = name_of(op.location)
    return f"'{op.name}'{f' in {scope!r}' if scope else ''}"
