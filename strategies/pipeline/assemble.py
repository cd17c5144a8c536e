"""A staged step and an order make a `Step`.

It says which slots hold what, when arrays move, what takes over which buffer, and what is freed when.

- Arguments are fed at the start, each to one rank: where the result that it becomes is made, else where an `apply` part
  reads it (there its buffer can be taken over), else the first that reads it. What else reads it gets it by a transfer,
  like any value. One of which each replica reads another part is fed to all of them.
- A value is moved right after it is made, but not before the taking rank is `RECEIVE_AHEAD` launches from its first
  reader (`placed_values.py`): so a rank holds only arrays that it soon needs, however far the giving rank has run
  ahead.
- A program takes over an input's buffer as its `donated` pairs wish if, at every run of it, that run is the last to
  touch the slot, and the slot was neither sent (what is sent may be read later than its place in the list says), nor
  fetched, nor fed from a buffer that is not to be consumed.
- Every slot is freed right after the last instruction that touches it, unless it was taken over or fetched.
- Results are fetched at the end.

All is done for the launches of a part at a time, in arrays. Slots are numbered rank by rank, as they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instruction_list import Form, InstructionList
from rhino.ir.plan.instructions import Global, Slot, Step, StepProgram
from rhino.ir.plan.parts import in_order
from rhino.ir.plan.rank_lists import merged, split
from rhino.ir.plan.slot_table import SlotTable
from rhino.ir.plan.stage_programs import StagedStep
from rhino.strategies.pipeline.placed_values import Placed, place_values
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.pipeline.sequence import default_seconds, queues, sequence


def assemble(staged: StagedStep, order: Order, seconds: Sequence[float] = ()) -> Step:
    """Returns the step that runs `staged` in `order`.

    `seconds` estimate each program, and only move what could stand in either order.

    Raises:
        RhinoError: RHI-SCHED-002 where the order cannot finish.
    """
    launches = sequence(staged, queues(staged, order), seconds or default_seconds(staged))
    placed = place_values(staged, order, launches)
    slots, slot_of = _numbered(placed)
    constants = tuple(sorted([(int(slot_of[slot]), number) for slot, number in placed.constants]))
    for_ever = np.zeros(len(slots), dtype=bool)
    for_ever[[slot for slot, _ in constants]] = True
    is_kept = for_ever.copy()
    is_kept[slot_of[placed.kept]] = True
    found = _renumbered(placed.instructions, slot_of)
    last = _last_touch(found, len(slots))
    programs = _donating(staged.programs, found, last, is_kept)
    instructions = _with_frees(programs, found, last, for_ever)
    step = Step(_meshes(staged, order), programs, slots, instructions, constants)
    return replace(step, instructions=merged(split(step)))


def _meshes(staged: StagedStep, order: Order) -> tuple[Mesh, ...]:
    """Returns the mesh of each rank, which all its stages have."""
    found = dict(zip(order.rank_of, staged.meshes, strict=True))
    own = tuple([found[rank] for rank in range(len(order.tasks))])
    assert staged.meshes == tuple([own[rank] for rank in order.rank_of]), "the stages of a rank have its mesh"
    return own


def _numbered(placed: Placed) -> tuple[SlotTable, Ints]:
    """Returns the slots, by rank and as they are written, constants first; and the number of each that was placed."""
    written = np.full(len(placed.kind_of), -1, dtype=np.int64)
    for group in placed.instructions.groups:
        written[group.writes] = group.places[:, None]
    rank_of = np.array([rank for rank, _ in placed.kinds], dtype=np.int64)[placed.kind_of]
    order = np.lexsort((np.arange(len(written)), written, rank_of))
    slot_of = np.empty_like(order)
    slot_of[order] = np.arange(len(order))
    kinds = [Slot(rank, layout) for rank, layout in placed.kinds]
    return SlotTable(kinds, placed.kind_of).taken(order), slot_of


def _renumbered(found: InstructionList[Global], slot_of: Ints) -> InstructionList[Global]:
    """Returns the list with the numbers of its slots; none is freed yet."""
    numbers = found.numbers.copy()
    for group in found.groups:
        for column in range(group.form.reads + group.form.writes):
            numbers[found.starts[group.places] + column] = slot_of[group.numbers[:, column]]
    return InstructionList(found.forms, found.form_of, numbers)


def _last_touch(found: InstructionList[Global], num_slots: int) -> Ints:
    """For each slot the last instruction that reads or writes it."""
    last = np.full(num_slots, -1, dtype=np.int64)
    for group in found.groups:
        for column in range(group.form.reads + group.form.writes):
            np.maximum.at(last, group.numbers[:, column], group.places)
    return last


def _donating(
    programs: Sequence[StepProgram], found: InstructionList[Global], last: Ints, is_kept: Bools
) -> tuple[StepProgram, ...]:
    """The programs with those of their pairs that hold at each run."""
    needed = is_kept.copy()
    for group in found.of_kind("transfer", "fetch"):
        needed[group.reads] = True
    wrong: set[tuple[int, tuple[int, int]]] = set()
    for group in found.of_kind("run"):
        for pair in programs[group.form.program].donated:
            slots = group.reads[:, pair[0]]
            holds = (last[slots] == group.places) & ~needed[slots]
            holds &= (group.reads == slots[:, None]).sum(axis=1) == 1
            if not holds.all():
                wrong.add((group.form.program, pair))
    return tuple(
        [
            replace(program, donated=tuple([pair for pair in program.donated if (number, pair) not in wrong]))
            for number, program in enumerate(programs)
        ]
    )


def _with_frees(
    programs: Sequence[StepProgram], found: InstructionList[Global], last: Ints, for_ever: Bools
) -> InstructionList[Global]:
    """The list with each slot freed after the last instruction that touches it."""
    gone = for_ever.copy()
    for group in found.of_kind("fetch"):
        gone[group.reads] = True
    for group in found.of_kind("run"):
        gone[group.reads[:, [taken for taken, _ in programs[group.form.program].donated]]] = True
    dying = np.flatnonzero(~gone)
    dying = dying[np.argsort(last[dying], kind="stable")]
    places, starts, counts = np.unique(last[dying], return_index=True, return_counts=True)
    every = [(group.form, 2 * group.places, group.numbers) for group in found.groups]
    for count in np.unique(counts).tolist():
        own = counts == count
        numbers = dying[starts[own][:, None] + np.arange(count)]
        every.append((Form("free", others=count), 2 * places[own] + 1, numbers))
    return in_order(every)
