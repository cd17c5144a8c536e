"""The proof that a list of instructions can run, in arrays: all that touches a slot, one slot after another.

Every check finds the first instruction at which it fails. The error is of the first of these, and where several checks
fail at it, of the one that comes first: what it names is there, what it reads is there, what holds for its kind, what
it writes.

Errors    RHI-STEP-001 to RHI-STEP-007.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instruction_list import Group, InstructionList, in_columns
from rhino.ir.plan.instructions import Global, Layout, Step
from rhino.ir.plan.slot_events import CONSTANT, EMPTY, FETCHED, FREED, GIVE, HELD, READ, STATES, TAKEN, WRITE, Events
from rhino.ir.plan.slot_table import SlotTable, slot_ranks
from rhino.ir.plan.step_words import instruction_text, layout_text

FIX: Final = "plan again; instructions that were written by hand have to be corrected"

_GONE: Final = (EMPTY, FREED, TAKEN)
_NAMES, _READS, _KIND, _WRITES = range(4)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Why the instruction at `place` cannot run; of several reasons that of the least `order`."""

    place: int
    order: tuple[int, ...]
    id: str
    what: Callable[[], str]


def prove_list(step: Step, num_arguments: int, num_results: int) -> None:
    """Proves that a list can run that has so many arguments and results; its slots and programs are in order.

    Raises:
        RhinoError: RHI-STEP-001 to RHI-STEP-007 where it cannot.
    """
    every: InstructionList[Global] = in_columns(step.instructions)
    unknown = min(_unknown_names(step, every), key=_at, default=None)
    known = every if unknown is None else every.taken(np.arange(unknown.place))
    proof = _Proof(step, known, num_arguments, num_results)
    found = [*proof.wrong(), *([unknown] if unknown else [])]
    if found:
        first = min(found, key=_at)
        words = f"instruction {first.place}, {instruction_text(step, every[first.place])}: {first.what()}"
        raise RhinoError(first.id, words, fix=FIX)
    proof.check_end()


def _at(one: _Wrong) -> tuple[int, tuple[int, ...]]:
    return one.place, one.order


def _unknown_names(step: Step, every: InstructionList[Global]) -> Iterator[_Wrong]:
    """The first instruction of each form that names what is not there."""
    for group in every.groups:
        form, place = group.form, int(group.places[0])
        if form.kind == "run" and form.program not in range(len(step.programs)):
            yield _Wrong(place, (_NAMES, 0), "RHI-STEP-001", lambda: f"there are {len(step.programs)} programs")
        touched = _touched(group)
        if not touched.shape[1]:
            yield _Wrong(place, (_NAMES, 1), "RHI-STEP-001", lambda: "it touches no slot")
            continue
        is_wrong = (touched < 0) | (touched >= len(step.slots))
        if is_wrong.any():
            row = int(is_wrong.any(axis=1).argmax())
            what = f"slot {touched[row, is_wrong[row].argmax()]} of {len(step.slots)}"
            yield _Wrong(int(group.places[row]), (_NAMES, 2), "RHI-STEP-001", _always(what))


def _always(what: str) -> Callable[[], str]:
    return lambda: what


def _touched(group: Group) -> Ints:
    return group.others if group.form.kind == "free" else group.numbers[:, : group.form.reads + group.form.writes]


class _Proof:
    """A list whose every name is there; `layout_of` numbers the layouts of slots, `kind_of` those without dims."""

    def __init__(self, step: Step, known: InstructionList[Global], num_arguments: int, num_results: int) -> None:
        self.step = step
        self.known = known
        self.num_arguments = num_arguments
        self.num_results = num_results
        self.ranks = slot_ranks(step)
        meshes = {mesh: number for number, mesh in enumerate(dict.fromkeys(step.meshes))}
        self.mesh_of = np.array([meshes[mesh] for mesh in step.meshes], dtype=np.int64)[self.ranks]
        self.layouts: dict[Layout, int] = {}
        whole: dict[Layout, int] = {}
        slots = SlotTable.of(step.slots)
        number = [self.layouts.setdefault(slot.layout, len(self.layouts)) for slot in slots.kinds]
        kinds = [whole.setdefault(replace(one, dims=()), len(whole)) for one in self.layouts]
        self.layout_of = np.array(number, dtype=np.int64)[slots.kind_of]
        self.kind_of = np.array(kinds, dtype=np.int64)[self.layout_of]
        self.events = Events.of(step, known)

    def wrong(self) -> Iterator[_Wrong]:
        """The first instruction at which each check fails."""
        yield from self.wrong_reads_and_writes()
        yield from self.wrong_ends()
        for group in self.known.of_kind("run"):
            yield from self.wrong_run(group)
        yield from self.wrong_meshes()
        yield from self.wrong_transfers()
        yield from self.wrong_numbers()

    def first(self, chosen: Bools) -> int:
        """The first of some events in the list's order."""
        places = np.flatnonzero(chosen)
        return int(places[self.events.place[places].argmin()])

    def wrong_reads_and_writes(self) -> Iterator[_Wrong]:
        """What is read is written and not gone; what is written was not written before."""
        events = self.events
        gone = np.isin(events.before, _GONE)
        for role, chosen, order, id in (
            (READ, gone, _READS, "RHI-STEP-002"),
            (WRITE, events.before != EMPTY, _WRITES, "RHI-STEP-003"),
        ):
            failed = (events.role == role) & chosen
            if failed.any():
                at = self.first(failed)
                yield _Wrong(int(events.place[at]), (order,), id, _always(self.slot_is(at)))

    def slot_is(self, at: int) -> str:
        """The state of an event's slot before it, and since when."""
        return f"slot {self.events.slot[at]} is {self.story(int(self.events.before[at]), int(self.events.since[at]))}"

    @staticmethod
    def story(state: int, since: int) -> str:
        """A state in words, and since which instruction."""
        return STATES[state] if since < 0 else f"{STATES[state]} since instruction {since}"

    def wrong_ends(self) -> Iterator[_Wrong]:
        """A slot is freed, taken over or fetched: it is held, and what takes it over is all that still needs it."""
        events = self.events
        gives = events.role == GIVE
        fetched = events.after == FETCHED
        sent = self.sent_at()
        is_sent = (events.after == TAKEN) & (sent[events.slot] < events.place)
        gone = np.isin(events.before, _GONE)
        for chosen, id, what in (
            (gone, "RHI-STEP-002", self.slot_is),
            (fetched & (events.before == CONSTANT), "RHI-STEP-004", self.is_constant),
            (~gone & ~fetched & (events.before != HELD), "RHI-STEP-004", self.slot_is),
            (
                is_sent,
                "RHI-STEP-004",
                lambda at: f"slot {events.slot[at]} is sent by instruction {sent[events.slot[at]]}",
            ),
        ):
            failed = gives & chosen
            if failed.any():
                at = self.first(failed)
                order = (_KIND, 8, int(events.column[at]), 1)
                yield _Wrong(int(events.place[at]), order, id, _always(what(at)))

    def is_constant(self, at: int) -> str:
        """Why a constant is no result."""
        return f"slot {self.events.slot[at]} is a constant"

    def sent_at(self) -> Ints:
        """The first instruction that sends each slot."""
        found = np.full(len(self.step.slots), len(self.known), dtype=np.int64)
        for group in self.known.of_kind("transfer"):
            np.minimum.at(found, group.numbers[:, 0], group.places)
        return found

    def wrong_run(self, group: Group) -> Iterator[_Wrong]:
        """A run's slots are what its program takes and gives, on one rank; what it takes over it reads once."""
        program, slots = (
            self.step.programs[group.form.program],
            group.numbers[:, : group.form.width - group.form.others],
        )
        ranks = self.ranks[slots]
        yield from self.rows(
            group,
            (ranks != ranks[:, :1]).any(axis=1),
            0,
            lambda row: f"its slots are on ranks {np.unique(ranks[row]).tolist()}",
        )
        yield from self.wrong_side(group, "input", group.reads, program.inputs, 2)
        yield from self.wrong_side(group, "output", group.writes, program.outputs, 4)
        yield from self.taken_twice(group)

    def wrong_side(
        self, group: Group, words: str, slots: Ints, layouts: Sequence[Layout], order: int
    ) -> Iterator[_Wrong]:
        """The slots of a side of runs are as many as their program has, of its layouts."""
        if slots.shape[1] != len(layouts):
            what = f"{slots.shape[1]} {words}s, the program has {len(layouts)}"
            yield _Wrong(int(group.places[0]), (_KIND, order), "RHI-STEP-006", _always(what))
            return
        expected = np.array([self.layouts.get(layout, -1) for layout in layouts], dtype=np.int64)
        differs = self.layout_of[slots] != expected

        def what_differs(row: int) -> str:
            number = int(differs[row].argmax())
            slot = int(slots[row, number])
            got = layout_text(self.step.slots[slot].layout)
            return f"{words} {number}, slot {slot}, is {got}, expected {layout_text(layouts[number])}"

        yield from self.rows(group, differs.any(axis=1), order + 1, what_differs)

    def taken_twice(self, group: Group) -> Iterator[_Wrong]:
        """What a run takes over it reads once."""
        for number, (taken, _) in enumerate(self.step.programs[group.form.program].donated):
            if taken < group.form.reads:
                own = group.reads[:, taken]
                twice = (group.reads == own[:, None]).sum(axis=1) > 1
                if twice.any():
                    row = int(twice.argmax())
                    what = f"it takes over slot {own[row]}, which it reads twice"
                    yield _Wrong(int(group.places[row]), (_KIND, 8, number, 0), "RHI-STEP-004", _always(what))

    def rows(self, group: Group, failed: Bools, order: int, what: Callable[[int], str]) -> Iterator[_Wrong]:
        """The first instruction of a group for which a check fails."""
        if failed.any():
            row = int(failed.argmax())
            yield _Wrong(int(group.places[row]), (_KIND, order), "RHI-STEP-006", _always(what(row)))

    def wrong_meshes(self) -> Iterator[_Wrong]:
        """A program runs on equal meshes."""
        of_program: dict[int, list[tuple[Ints, Ints]]] = {}
        for group in self.known.of_kind("run"):
            own = self.mesh_of[group.numbers[:, 0]]
            of_program.setdefault(group.form.program, []).append((group.places, own))
        for runs in of_program.values():
            places, meshes = (np.concatenate(side) for side in zip(*runs, strict=True))
            first = meshes[places.argmin()]
            if (meshes != first).any():
                place = int(places[meshes != first].min())
                other = self.step.meshes[self.ranks[self.known.numbers[self.known.starts[place]]]]
                before = self.step.meshes[self.ranks[self.known.numbers[self.known.starts[places.min()]]]]
                what = f"it runs on a mesh {other}, and before on a mesh {before}"
                yield _Wrong(place, (_KIND, 1), "RHI-STEP-006", _always(what))

    def wrong_transfers(self) -> Iterator[_Wrong]:
        """A transfer is between two ranks, and changes no layout; between unlike meshes, no shape and no type."""
        for group in self.known.of_kind("transfer"):
            source, target = group.numbers[:, 0], group.numbers[:, 1]

            def at_home(row: int, source: Ints = source) -> str:
                return f"both slots are on rank {self.ranks[source[row]]}"

            def unlike(row: int, source: Ints = source, target: Ints = target) -> str:
                ends = [layout_text(self.step.slots[one[row]].layout) for one in (source, target)]
                return f"from {ends[0]} to {ends[1]}"

            yield from self.rows(group, self.ranks[source] == self.ranks[target], 0, at_home)
            is_same_mesh = self.mesh_of[source] == self.mesh_of[target]
            same = np.where(
                is_same_mesh,
                self.layout_of[source] == self.layout_of[target],
                self.kind_of[source] == self.kind_of[target],
            )
            yield from self.rows(group, ~same, 1, unlike)
            yield from self.once(group, group.others[:, 0], "transfer", 2)

    def wrong_numbers(self) -> Iterator[_Wrong]:
        """An argument or result is one of those that there are, and there once; an argument, once on a rank."""
        for kind, count, words in (("feed", self.num_arguments, "argument"), ("fetch", self.num_results, "result")):
            for group in self.known.groups:
                if group.form.kind != kind:
                    continue
                numbers = group.others[:, 0]
                is_wrong = (numbers < 0) | (numbers >= count)
                if is_wrong.any():
                    row = int(is_wrong.argmax())
                    what = f"{words} {numbers[row]} of {count}"
                    yield _Wrong(int(group.places[row]), (_KIND, 0), "RHI-STEP-001", _always(what))
                ranks = self.ranks[group.numbers[:, 0]] if kind == "feed" else None
                yield from self.once(group, numbers, words, 1, ranks)

    def once(self, group: Group, numbers: Ints, words: str, order: int, ranks: Ints | None = None) -> Iterator[_Wrong]:
        """No two instructions have one number; of arguments, none on one rank."""
        keys = numbers if ranks is None else numbers * self.step.num_ranks + ranks
        sorted_rows = np.argsort(keys, kind="stable")
        is_again = np.flatnonzero(keys[sorted_rows][1:] == keys[sorted_rows][:-1]) + 1
        if len(is_again):
            at = int(is_again[sorted_rows[is_again].argmin()])
            row, first = sorted_rows[at], sorted_rows[at - 1]
            where = "" if ranks is None else f" on rank {ranks[row]}"
            what = f"{words} {numbers[row]}{where} is instruction {group.places[first]}'s"
            yield _Wrong(int(group.places[row]), (_KIND, order), "RHI-STEP-007", _always(what))

    def check_end(self) -> None:
        """Nothing is left over, and no result is missing."""
        state, since = self.events.at_end(len(self.step.slots))
        left = np.flatnonzero(state == HELD)
        if len(left):
            story = self.story(HELD, int(since[left[0]]))
            what = f"slot {left[0]} is {story}: it is never freed, donated or fetched"
            raise RhinoError("RHI-STEP-005", what, fix=FIX)
        fetched = [group.others[:, 0] for group in self.known.of_kind("fetch")]
        missing = np.setdiff1d(np.arange(self.num_results), np.concatenate(fetched) if fetched else [])
        if len(missing):
            raise RhinoError("RHI-STEP-005", f"no instruction fetches result {missing[0]}", fix=FIX)
