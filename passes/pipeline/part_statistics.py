"""Take statistics of each micro-batch in place of those of the batch.

Such are the mean and the variance that normalize a batch, and how busy each expert is for a balance loss. Each part
takes such a sum for itself, times the number of parts: as if the whole batch were copies of that part. What is read
behind the loop is the mean over parts. So the step is one that is written for a micro-batch, and whose gradients,
losses and moving averages are means over micro-batches. It is not the step of the whole batch, so it is done only where
it is asked for.

In the program of one device two conversions that change nothing stand for this: one where a sum becomes a part's own,
and one where what follows from it becomes a part of a mean (strategies/microbatch/time_axis.py). In the program of a
part they become a product and a quotient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.locations import name_of
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.program.identity import make_constant
from rhino.ir.program.program import Program
from rhino.ir.program.same_values import same_values
from rhino.ir.request.patterns import matches
from rhino.passes.pipeline.batch_program import COPY, value_of
from rhino.strategies.microbatch.time_axis import Marks, Phase, Propagation
from rhino.strategies.structure.loop_nesting import regions

_PER_PART: Final = "per-part"
"""What asks for statistics of each micro-batch; patterns of names of ops may follow a colon."""

_NUM_PARTS: Final = re.compile(r"([1-9][0-9]*)-parts")
"""What asks for those of a number of equal parts of the batch (passes/pipeline/parted_statistics.py)."""

_STATISTIC: Final = "rhino.statistic"
"""On a conversion that changes nothing, what it stands for."""
_SUM, EXTREME, SHARE = "sum", "extreme", "share"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Which sums over the batch each part may take for itself: all, or those of ops with names like these.

    `num_parts` is how many equal parts the batch has, 0 where micro-batches are the parts.
    """

    patterns: tuple[str, ...] | None
    num_parts: int = 0

    @property
    def per_part(self) -> str:
        """The text that asks for the same of each micro-batch."""
        return _PER_PART if self.patterns is None else f"{_PER_PART}:{'; '.join(self.patterns)}"

    def marks(self, program: Program) -> Marks:
        """Returns the ops of a program that are marked, and those that may be statistics."""
        kinds = {number: kind_of(op) for number, op in enumerate(program.ops) if _STATISTIC in op.attributes}
        may_be_own = frozenset(number for number, op in enumerate(program.ops) if self.allows(op))
        return Marks(
            frozenset(number for number, op in enumerate(program.ops) if COPY in op.attributes),
            may_be_own,
            frozenset(number for number, kind in kinds.items() if kind != SHARE),
            frozenset(number for number, kind in kinds.items() if kind == SHARE),
            _twins(program, may_be_own) if may_be_own else {},
        )

    def allows(self, op: ir.Operation) -> bool:
        """Says whether what an op sums up over the batch may be of each micro-batch."""
        if self.num_parts or self.patterns == ():
            return False  # those of parts are taken before
        if self.patterns is None:
            return True
        name = name_of(op.location)
        return any(matches(pattern, name, "/") for pattern in self.patterns)


def parse_statistics(text: str, file: str) -> Statistics:
    """Returns what an option says of statistics; nothing may be of a part if it is empty.

    Raises:
        RhinoError: RHI-BATCH-008.
    """
    how, colon, names = text.partition(":")
    patterns = tuple(name.strip() for name in names.split(";") if name.strip())
    numbered = _NUM_PARTS.fullmatch(how.strip())
    if text and ((how.strip() != _PER_PART and not numbered) or (colon and not patterns)):
        raise RhinoError(
            "RHI-BATCH-008",
            f"batch statistics '{text}' are not known",
            Place(file),
            fix=f"give {_PER_PART}, or N-parts; or one of these and :NAME;NAME, patterns of the names of ops",
        )
    return Statistics(patterns if colon or not text else None, int(numbered[1]) if numbered else 0)


def num_statistics_parts(text: str, file: str = "") -> int:
    """Returns of how many equal parts of the batch an option asks for statistics, 0 where it says nothing of that.

    Raises:
        RhinoError: RHI-BATCH-008.
    """
    return parse_statistics(text, file).num_parts


def _twins(program: Program, among: frozenset[int]) -> dict[int, frozenset[int]]:
    """Returns, by op, the others of its body that compute what it does, where there are any."""
    same, body = same_values(program), regions(program.graph)
    together: dict[tuple[int, ...], set[int]] = {}
    for op in among:
        together.setdefault((body[op], *(same[value] for value in program.graph.results(op))), set()).add(op)
    groups = [frozenset(group) for (_, *results), group in together.items() if results and len(group) > 1]
    return {op: group - {op} for group in groups for op in group}


def mark_statistics(program: Program, found: Propagation) -> None:
    """Puts the conversions of statistics into a program that are wanted for it to be taken in parts."""
    graph = program.graph
    shared: dict[int, list[tuple[ir.Operation, int]]] = {}
    for op in range(graph.num_ops):
        if found.phases[op] == Phase.APPLY:
            for position, value in enumerate(found.reads[op]):
                if found.lays[value].is_own:
                    shared.setdefault(value, []).append((program.ops[op], position))
    end = end_of(program.entry.regions[0].blocks[0])
    for position, value in enumerate(graph.returns):
        if found.lays[value].is_own:
            shared.setdefault(value, []).append((end, position))
    own: dict[int, ir.Value[Any]] = {}
    for op in found.statistics:
        state = found.states[op]
        assert state is not None
        for value in graph.results(op):
            made = value_of(program, value)
            converted = _mark(made, _SUM if state.monoid == "add" else EXTREME)
            made.replace_all_uses_except(converted.results[0], converted)
            own[value] = converted.results[0]
    for value, readers in shared.items():
        share = _mark(own[value] if value in own else value_of(program, value), SHARE).results[0]
        for reader, position in readers:
            reader.operands[position] = share


def settle_statistics(entry: ir.Operation, parts: int) -> tuple[ir.Location, ...]:
    """Writes what the conversions stand for into the program of a part; returns where its own values are made."""
    places = []
    for op in [op for op in walk(entry) if _STATISTIC in op.attributes]:
        value, kind = op.operands[0], kind_of(op)
        if kind != SHARE:
            places.append(op.location)
        with ir.InsertionPoint(op), op.location:
            if kind == SHARE:
                value = stablehlo.DivOp(value, make_constant(value.type, parts)).result
            elif kind == _SUM:
                value = stablehlo.MulOp(value, make_constant(value.type, parts)).result
        op.results[0].replace_all_uses_with(value)
        op.erase()
    return tuple(places)


def kind_of(op: ir.Operation) -> str:
    """Returns what the conversion of a statistic stands for."""
    return str(ir.StringAttr(op.attributes[_STATISTIC]).value)


def _mark(value: ir.Value[Any], kind: str) -> ir.Operation:
    """Returns a conversion of a value to what it is, behind what makes it."""
    made = maker_of(value)
    assert made is not None
    with ir.InsertionPoint.after(made), made.location:
        convert: ir.Operation = stablehlo.ConvertOp(value.type, value).operation
    convert.attributes[_STATISTIC] = ir.StringAttr.get(kind)
    return convert
