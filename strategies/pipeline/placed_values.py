"""Where each value of a staged step is: what runs, moves, is fed and fetched, before anything is freed or taken over.

Launches of a part differ in their micro-batch alone, so what they read and give is worked out for all of them at once,
in arrays by micro-batch. A value has *versions* on the rank that makes it: one for each micro-batch, or for an
accumulator one for each time that it is given; the last one, and any other that is not an accumulator's, is moved to
the ranks that read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.plan.instruction_list import SIMPLE, Form, InstructionList
from rhino.ir.plan.instructions import Global, Layout
from rhino.ir.plan.stage_programs import MICRO_BATCH, ONCE, StagedStep
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.pipeline.sequence import Launch

RECEIVE_AHEAD: Final = 2
"""Launches of the taking rank before its first reader at which a transfer may start.

There is one to cover the transfer with, and one for what comes earlier.
"""

_FED: Final = -1
"""What stands for a launch where there was none yet."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The instructions in order, and their slots by provisional numbers.

    Slot i is on the rank, and has the layout, of `kinds[kind_of[i]]`. Of `constants`, slots and integers, nothing is
    written; the buffers of `kept` belong to the caller.
    """

    instructions: InstructionList[Global]
    kinds: tuple[tuple[int, Layout], ...]
    kind_of: Ints
    constants: tuple[tuple[int, int], ...]
    kept: Ints


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions of a value on a rank, in time: the launch that gives each, and its slot."""

    launches: Ints
    slots: Ints

    def at(self, launches: Ints) -> Ints:
        """The slot that each launch finds, of what was given before it."""
        found: Ints = self.slots[np.searchsorted(self.launches, launches) - 1]
        return found


def place_values(staged: StagedStep, order: Order, launches: Sequence[Launch]) -> Placed:
    """Returns what the launches of a staged step in their order read and give, where, and what moves when."""
    placing = _Placing(staged, order, launches)
    placing.run()
    return placing.placed()


class _Placing:
    """The launches in arrays: `at[part]` has the places of a part's launches by micro-batch, or its one place."""

    def __init__(self, staged: StagedStep, order: Order, launches: Sequence[Launch]) -> None:
        self.staged = staged
        self.order = order
        self.num_launches = len(launches)
        part_of = np.array([launch.part for launch in launches], dtype=np.int64)
        number = np.array([launch.micro_batch or 0 for launch in launches], dtype=np.int64)
        by_part = np.lexsort((number, part_of))
        ends = np.searchsorted(part_of[by_part], np.arange(len(staged.parts) + 1))
        self.at = [by_part[ends[part] : ends[part + 1]] for part in range(len(staged.parts))]
        rank_of = np.array([order.rank_of[part.stage] for part in staged.parts], dtype=np.int64)[part_of]
        self.of_rank = [np.flatnonzero(rank_of == rank) for rank in range(len(order.tasks))]
        self.turn = np.empty(len(launches), dtype=np.int64)
        """How many launches of its rank stand before each."""
        for own in self.of_rank:
            self.turn[own] = np.arange(len(own))
        self.layouts = _layouts(staged, order)
        self.kinds: dict[tuple[int, Layout], int] = {}
        self.kind_of: list[Ints] = []
        self.num_slots = 0
        self.groups: list[tuple[Form, Ints, Ints]] = []
        self.constants: dict[int, Ints] = {}
        self.kept: list[int] = []
        self.local: dict[tuple[int, str], _Versions | Ints] = {}
        self.num_moves = 0

    @cached_property
    def readers(self) -> Mapping[str, Mapping[int, list[int]]]:
        """The parts that read each value, by rank."""
        found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, part in enumerate(self.staged.parts):
            for name in dict.fromkeys(part.reads):
                found[name][self.rank(number)].append(number)
        return found

    @cached_property
    def givers(self) -> Mapping[str, list[tuple[int, int]]]:
        """The parts that give each value, with its place among what they give."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, part in enumerate(self.staged.parts):
            for place, name in enumerate(part.gives):
                found[name].append((number, place))
        return found

    def rank(self, part: int) -> int:
        """The rank that a part is on."""
        return self.order.rank_of[self.staged.parts[part].stage]

    def is_each(self, name: str) -> bool:
        """Whether a value is given anew in each micro-batch, for that alone."""
        phases = [self.staged.parts[part].phase for part, _ in self.givers.get(name, ())]
        return bool(phases) and not any(phase in ONCE for phase in phases)

    def source_rank(self, name: str) -> int:
        """The rank on which a value is made or fed."""
        ranks = {self.rank(part) for part, _ in self.givers.get(name, ())}
        assert len(ranks) <= 1, f"{name!r} is given on several ranks"
        return ranks.pop() if ranks else self.home(name)

    def home(self, name: str) -> int:
        """The rank to which an argument is fed.

        It is where the argument's result is made, else where a part applies it, else where the first part reads it.
        """
        becomes = self.arguments[name]
        new = self.staged.results[becomes] if becomes is not None else name
        if new in self.givers:
            return self.rank(self.givers[new][0][0])
        readers = sorted(part for own in self.readers.get(name, {}).values() for part in own)
        chosen = [part for part in readers if self.staged.parts[part].phase == "apply"] or readers
        return self.rank(chosen[0]) if chosen else 0

    @cached_property
    def arguments(self) -> Mapping[str, int | None]:
        """What each argument becomes."""
        return {argument.name: argument.becomes for argument in self.staged.arguments}

    def run(self) -> None:
        """Places all values, in the order in which one is needed for another."""
        for number in range(len(self.staged.arguments)):
            self.feed(number)
        for name, givers in self.givers.items():
            if self.is_each(name):
                self.give_each(name, *givers[0])
            else:
                self.give_versions(name)
        for part in range(len(self.staged.parts)):
            self.launch(part)
        for number, name in enumerate(self.staged.results):
            slot = self.found(self.source_rank(name), name, np.array([self.num_launches]))
            key = np.array([[self.num_launches, 0, number, 0]])
            self.add(Form("fetch", *SIMPLE["fetch"]), key, np.array([[int(slot[0]), number]]))

    def feed(self, number: int) -> None:
        """Feeds an argument that is read or returned."""
        argument = self.staged.arguments[number]
        name, readers = argument.name, self.readers.get(argument.name, {})
        if not readers and name not in self.staged.results:
            return
        first = {rank: min(int(self.at[part].min()) for part in parts) for rank, parts in readers.items()}
        ranks = sorted(first, key=first.__getitem__) if argument.fed_to_each else []
        for rank in ranks or [self.home(name)]:
            slots = self.new_slots(rank, name, 1)
            self.local[rank, name] = _Versions(np.array([_FED]), slots)
            key = np.array([[_FED, _FED, number, 0]])
            self.add(Form("feed", *SIMPLE["feed"]), key, np.array([[int(slots[0]), number]]))
            self.kept += [] if argument.consumed else [int(slots[0])]
        if not ranks:
            self.move(name, slots, np.array([_FED]), np.array([number]))

    def give_each(self, name: str, part: int, place: int) -> None:
        """Gives a value anew in each micro-batch."""
        assert len(self.givers[name]) == 1, f"{name!r} is given by several parts of a micro-batch"
        slots = self.new_slots(self.rank(part), name, len(self.at[part]))
        self.local[self.rank(part), name] = slots
        self.move(name, slots, self.at[part], np.full(len(slots), place))

    def give_versions(self, name: str) -> None:
        """Gives a value once, or as an accumulator again and again; what is final is moved."""
        givers, rank = self.givers[name], self.source_rank(name)
        launches = np.concatenate([self.at[part] for part, _ in givers])
        places = np.concatenate([np.full(len(self.at[part]), place) for part, place in givers])
        is_update = np.concatenate(
            [np.full(len(self.at[part]), self.staged.parts[part].phase not in ONCE) for part, _ in givers]
        )
        order = np.argsort(launches, kind="stable")
        launches, places, is_update = launches[order], places[order], is_update[order]
        slots = self.new_slots(rank, name, len(order))
        before = self.local.get((rank, name))
        assert before is None, f"{name!r} is an argument, and given"
        self.local[rank, name] = _Versions(launches, slots)
        left = self.staged.num_micro_batches * bool(is_update.any()) - np.cumsum(is_update)
        final = left <= 0
        self.move(name, slots[final], launches[final], places[final])

    def found(self, rank: int, name: str, launches: Ints) -> Ints:
        """The slots in which launches of a rank find a value; one for each of all micro-batches."""
        assert (rank, name) in self.local, f"{name!r} is not on rank {rank}"
        own = self.local[rank, name]
        return own.at(launches) if isinstance(own, _Versions) else own

    def move(self, name: str, slots: Ints, made: Ints, places: Ints) -> None:
        """Moves versions of a value to each other rank that reads it, when they are made or soon read."""
        for rank, parts in self.readers.get(name, {}).items():
            if rank == self.source_rank(name) or not len(slots):
                continue
            if len(slots) > 1 and self.is_each(name):
                first = np.min([self.at[part] for part in parts], axis=0)
            else:
                first = np.full(len(slots), min(int(self.at[part].min()) for part in parts))
            due = self.turn[first] - RECEIVE_AHEAD
            soon = np.where(due > 0, self.of_rank[rank][np.maximum(due, 1) - 1], _FED)
            targets, start = self.new_slots(rank, name, len(slots)), np.maximum(made, soon)
            uids = np.arange(self.num_moves, self.num_moves + len(slots))
            self.num_moves += len(slots)
            keys = np.stack([start, made, places, first + 1], axis=1)
            self.add(Form("transfer", *SIMPLE["transfer"]), keys, np.stack([slots, targets, uids], axis=1))
            is_each = self.is_each(name)
            self.local[rank, name] = targets if is_each else _Versions(made, targets)

    def launch(self, part: int) -> None:
        """Runs the program of a part, in all of its launches."""
        one, at, rank = self.staged.parts[part], self.at[part], self.rank(part)
        is_once = one.phase in ONCE
        reads = [self.read(rank, name, at, is_once=is_once) for name in one.reads]
        gives = [self.given(rank, name, at) for name in one.gives]
        numbers = [] if is_once else [np.arange(len(at))]
        form = Form("run", len(reads), len(gives), len(numbers), one.program, one.phase, one.stage)
        keys = np.zeros((len(at), 4), dtype=np.int64)
        keys[:, 0], keys[:, 1] = at, _FED - 1
        self.add(form, keys, np.stack([*reads, *gives, *numbers], axis=1))

    def given(self, rank: int, name: str, at: Ints) -> Ints:
        """The slots that launches at some places give a value in."""
        own = self.local[rank, name]
        return own.at(at + 1) if isinstance(own, _Versions) else own

    def read(self, rank: int, name: str, at: Ints, *, is_once: bool) -> Ints:
        """The slots in which the launches of a part find a value."""
        if name != MICRO_BATCH:
            return self.found(rank, name, at)
        assert not is_once, "a part outside the micro-batches reads their number"
        if rank not in self.constants:
            self.constants[rank] = self.new_slots(rank, name, self.staged.num_micro_batches)
        return self.constants[rank]

    def new_slots(self, rank: int, name: str, count: int) -> Ints:
        """Slots that hold versions of a value on a rank."""
        kind = rank, self.layout(rank, name)
        self.kind_of.append(np.full(count, self.kinds.setdefault(kind, len(self.kinds))))
        self.num_slots += count
        return np.arange(self.num_slots - count, self.num_slots)

    def layout(self, rank: int, name: str) -> Layout:
        """How a value lies on a rank.

        Where no part of the rank reads or gives an argument, it lies as the result that it becomes, or as it is
        declared.
        """
        if (rank, name) in self.layouts:
            return self.layouts[rank, name]
        argument = next(one for one in self.staged.arguments if one.name == name)
        becomes = self.staged.results[argument.becomes] if argument.becomes is not None else name
        return self.layouts.get((rank, becomes), argument.layout)

    def add(self, form: Form, keys: Ints, numbers: Ints) -> None:
        """Adds instructions, which stand in the order of their keys: at which launch, then as they were asked for."""
        self.groups.append((form, keys, numbers))

    def placed(self) -> Placed:
        """All in order."""
        keys = np.concatenate([keys for _, keys, _ in self.groups])
        order = np.lexsort(keys.T[::-1])
        forms: dict[Form, int] = {}
        number = [forms.setdefault(form, len(forms)) for form, _, _ in self.groups]
        form_of = np.repeat(number, [len(keys) for _, keys, _ in self.groups])
        mixed: InstructionList[Global] = InstructionList(
            tuple(forms), form_of, np.concatenate([numbers.ravel() for _, _, numbers in self.groups])
        )
        constants = [(slot, number) for slots in self.constants.values() for number, slot in enumerate(slots.tolist())]
        kept = np.array(self.kept, dtype=np.int64)
        return Placed(mixed.taken(order), tuple(self.kinds), np.concatenate(self.kind_of), tuple(constants), kept)


def _layouts(staged: StagedStep, order: Order) -> dict[tuple[int, str], Layout]:
    """The layout that each value has on each rank whose parts read it or give it; these agree."""
    layouts = dict[tuple[int, str], Layout]()
    for part in staged.parts:
        program, rank = staged.programs[part.program], order.rank_of[part.stage]
        layouts |= {(rank, name): layout for name, layout in zip(part.reads, program.inputs, strict=True)}
        layouts |= {(rank, name): layout for name, layout in zip(part.gives, program.outputs, strict=True)}
    return layouts
