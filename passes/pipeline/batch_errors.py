"""What is said to the user of a step that does not take its batch in parts."""

from __future__ import annotations

from collections.abc import Mapping

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.program.program import Program
from rhino.strategies.microbatch.micro_batch import BatchParts, NoBatch, Nothing, Outcome, PartStatistics, Sync, Uneven


def refused(outcome: Outcome, program: Program, parts: int) -> RhinoError:
    """Returns the error that says why a step does not take its batch in `parts`."""
    place = place_of(program.entry.location, program.file)
    match outcome:
        case Uneven(batch=batch):
            return _uneven(program, batch, parts)
        case Sync():
            return _not_free(outcome, program)
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


def _uneven(program: Program, batch: Mapping[int, int], parts: int) -> RhinoError:
    graph = program.graph
    number, dim = next(
        (n, d) for n, d in batch.items() if graph.type_of(n).shape[d] % parts or not graph.type_of(n).shape[d]
    )
    size = graph.type_of(number).shape[dim]
    what = f"{parts} micro-batches do not divide the batch: dim {dim} of {program.describe(number)} has size {size}"
    divisors = ", ".join(str(one) for one in range(1, size + 1) if size % one == 0)
    return RhinoError(
        "RHI-BATCH-003",
        what,
        place_of(program.entry.arguments[number].location, program.file),
        fix=f"ask for one of {divisors}",
    )


def _not_free(sync: Sync, program: Program) -> RhinoError:
    graph, meeting = program.graph, sync.meeting
    op = program.ops[meeting.op]
    scope = name_of(op.location)
    what = (
        f"micro-batches would have to synchronize: '{op.name}'{f' in {scope!r}' if scope else ''} reads a part of the "
        "batch and needs "
    )
    notes = []
    if meeting.source >= 0:
        source = program.ops[meeting.source]
        made = program.describe(graph.results(meeting.source).start)
        notes.append(
            f"it is known only after all micro-batches have computed {made} at "
            f"{place_of(source.location, program.file)}"
        )
        what += "a value of the whole batch"
    else:
        what += "all of it"
    notes.append(f"it is operand {meeting.operand}, {program.describe(meeting.value)}")
    heavy = program.ops[sync.waits]
    waits = program.describe(graph.results(sync.waits).start) if graph.results(sync.waits) else heavy.name
    notes.append(f"work of each micro-batch waits for it: {waits} at {place_of(heavy.location, program.file)}")
    notes.append(f"the batch is taken to be {_dims(program, sync.batch)}")
    fix = "" if meeting.source < 0 else "take it of each micro-batch with --batch-statistics=per-part; or "
    fix += (
        "make examples independent of each other: normalize over groups or layers instead of the batch, take negatives "
        "from each micro-batch, or keep the batch whole; if the batch is another dim, name it with --batch"
    )
    return RhinoError("RHI-BATCH-004", what, place_of(op.location, program.file), tuple(notes), fix)
