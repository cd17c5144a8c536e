"""A list of instructions in columns: for each its form, and its numbers one after the other.

Instructions that differ in numbers alone have one form. A list of a hundred thousand is a few arrays, so what looks at
all of it does so with NumPy; who asks for one instruction gets it as a value of `rhino.ir.plan.instructions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, assert_never, cast, overload

import numpy as np

from rhino.ir.arrays import Bools, Ints, ranges
from rhino.ir.plan.instructions import (
    Copy,
    Feed,
    Fetch,
    Free,
    Global,
    Local,
    Phase,
    Receive,
    Run,
    Send,
    Task,
    Transfer,
)

Kind: TypeAlias = Literal["run", "transfer", "copy", "send", "receive", "free", "feed", "fetch"]

SIMPLE: Final[dict[Kind, tuple[int, int, int]]] = {
    "transfer": (1, 1, 1),
    "copy": (1, 1, 1),
    "send": (1, 0, 2),
    "receive": (0, 1, 2),
    "feed": (0, 1, 1),
    "fetch": (1, 0, 1),
}
"""How many numbers of each role (`Form`) an instruction has, where all of a kind have as many."""

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class Form:
    """All of an instruction but its numbers.

    These are the slots that it reads, those that it writes, and `others`: the micro-batch of a run that has one, the
    slots of a free, the number of an argument or a result, and of a transfer its own and then the slot of the far end,
    where that is in another process. A run has a program, and its task's phase and stage.
    """

    kind: Kind
    reads: int = 0
    writes: int = 0
    others: int = 0
    program: int = -1
    phase: Phase | None = None
    stage: int = 0

    @property
    def width(self) -> int:
        """How many numbers there are."""
        return self.reads + self.writes + self.others


@dataclass(frozen=True, slots=True)
class Group:
    """The instructions of one form: their places in the list, ascending, and their numbers [places, width]."""

    form: Form
    places: Ints
    numbers: Ints

    @property
    def reads(self) -> Ints:
        """The slots that each reads [places, reads]."""
        return self.numbers[:, : self.form.reads]

    @property
    def writes(self) -> Ints:
        """The slots that each writes [places, writes]."""
        return self.numbers[:, self.form.reads : self.form.reads + self.form.writes]

    @property
    def others(self) -> Ints:
        """The other numbers of each [places, others]."""
        return self.numbers[:, self.form.reads + self.form.writes :]


class InstructionList(Sequence[One], Generic[One]):
    """A list in columns: instruction i is of form `forms[form_of[i]]`, and its numbers follow those of i - 1."""

    def __init__(self, forms: Sequence[Form], form_of: Ints, numbers: Ints) -> None:
        """Shapes: `form_of` [instructions]; `numbers` [sum of the widths of their forms]."""
        self.forms = tuple(forms)
        self.form_of = form_of
        self.numbers = numbers

    @classmethod
    def of(cls, instructions: Iterable[Global | Local]) -> InstructionList[Any]:
        """Returns a list of values in columns."""
        forms: dict[Form, int] = {}
        form_of: list[int] = []
        numbers: list[int] = []
        for one in instructions:
            form, own = _in_columns(one)
            form_of.append(forms.setdefault(form, len(forms)))
            numbers += own
        return cls(tuple(forms), np.array(form_of, dtype=np.int64), np.array(numbers, dtype=np.int64))

    @cached_property
    def starts(self) -> Ints:
        """Where the numbers of each instruction begin, and those of the last end [instructions + 1]."""
        widths = np.array([form.width for form in self.forms], dtype=np.int64)
        found = np.zeros(len(self.form_of) + 1, dtype=np.int64)
        np.cumsum(widths[self.form_of], out=found[1:])
        return found

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The instructions by form, those forms that occur."""
        order = np.argsort(self.form_of, kind="stable")
        ends = np.searchsorted(self.form_of[order], np.arange(len(self.forms) + 1))
        found = []
        for number, form in enumerate(self.forms):
            places = order[ends[number] : ends[number + 1]]
            if len(places):
                found.append(Group(form, places, self.numbers[self.starts[places][:, None] + np.arange(form.width)]))
        return tuple(found)

    def of_kind(self, *kinds: Kind) -> list[Group]:
        """Returns the groups of some kinds."""
        return [group for group in self.groups if group.form.kind in kinds]

    def is_kind(self, *kinds: Kind) -> Bools:
        """Says of each instruction whether it is of some kinds."""
        return np.array([form.kind in kinds for form in self.forms], dtype=bool)[self.form_of]

    def taken(self, places: Ints) -> InstructionList[One]:
        """Returns the instructions at some places, in that order."""
        starts, ends = self.starts[places], self.starts[places + 1]
        return InstructionList(self.forms, self.form_of[places], self.numbers[ranges(starts, ends - starts)])

    def __len__(self) -> int:
        return len(self.form_of)

    @overload
    def __getitem__(self, at: int) -> One: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[One, ...]: ...

    def __getitem__(self, at: int | slice) -> One | tuple[One, ...]:
        if isinstance(at, slice):
            return tuple([self[one] for one in range(*at.indices(len(self)))])
        at = range(len(self))[at]
        start, end = self.starts[at], self.starts[at + 1]
        return cast(One, _value(self.forms[self.form_of[at]], self.numbers[start:end].tolist()))

    def __iter__(self) -> Iterator[One]:
        numbers, starts = self.numbers.tolist(), self.starts.tolist()
        for at, form in enumerate(self.form_of.tolist()):
            yield cast(One, _value(self.forms[form], numbers[starts[at] : starts[at + 1]]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((len(self), self.numbers.tobytes()))


def in_columns(instructions: Sequence[Global] | Sequence[Local]) -> InstructionList[Any]:
    """Returns a list in columns: itself if it is."""
    return instructions if isinstance(instructions, InstructionList) else InstructionList.of(instructions)


def joined(lists: Sequence[InstructionList[One]]) -> InstructionList[One]:
    """Returns several lists as one."""
    forms: dict[Form, int] = {}
    form_of = [np.zeros(0, dtype=np.int64)]
    for one in lists:
        number = np.array([forms.setdefault(form, len(forms)) for form in one.forms], dtype=np.int64)
        form_of.append(number[one.form_of])
    return InstructionList(tuple(forms), np.concatenate(form_of), np.concatenate([one.numbers for one in lists]))


def _in_columns(one: Global | Local) -> tuple[Form, tuple[int, ...]]:
    match one:
        case Run(program, inputs, outputs, task):
            number = () if task.micro_batch is None else (task.micro_batch,)
            form = Form("run", len(inputs), len(outputs), len(number), program, task.phase, task.stage)
            return form, (*inputs, *outputs, *number)
        case Transfer(uid, source, target):
            return _simple("transfer"), (source, target, uid)
        case Copy(uid, source, target):
            return _simple("copy"), (source, target, uid)
        case Send(uid, source, target):
            return _simple("send"), (source, uid, target)
        case Receive(uid, source, target):
            return _simple("receive"), (target, uid, source)
        case Free(slots):
            return Form("free", others=len(slots)), slots
        case Feed(argument, target):
            return _simple("feed"), (target, argument)
        case Fetch(source, result):
            return _simple("fetch"), (source, result)
        case _:
            assert_never(one)


def _simple(kind: Kind) -> Form:
    return Form(kind, *SIMPLE[kind])


def _value(form: Form, own: list[int]) -> Global | Local:
    match form.kind:
        case "run":
            assert form.phase is not None, "a run has a task"
            task = Task(form.phase, form.stage, own[-1] if form.others else None)
            end = form.reads + form.writes
            return Run(form.program, tuple(own[: form.reads]), tuple(own[form.reads : end]), task)
        case "transfer":
            return Transfer(own[2], own[0], own[1])
        case "copy":
            return Copy(own[2], own[0], own[1])
        case "send":
            return Send(own[1], own[0], own[2])
        case "receive":
            return Receive(own[1], own[2], own[0])
        case "free":
            return Free(tuple(own))
        case "feed":
            return Feed(own[1], own[0])
        case "fetch":
            return Fetch(own[0], own[1])
        case _:
            assert_never(form.kind)
