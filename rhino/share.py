"""What one of several processes needs of a plan in stages, beside its head: process 0 makes it, the others are told.

A share has the part of the step that a process runs, the programs of that, and what it has to know of the rest: which
arguments other ranks are fed, and how results of other ranks lie there.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.plan.instruction_list import InstructionList, in_columns, joined
from rhino.ir.plan.instructions import Fetch, Global, Slot, Step, Transfer
from rhino.ir.plan.json_values import list_of, number_of, numbers_of, words_of
from rhino.ir.plan.parts import Part, parts_of
from rhino.ir.plan.plan import Execution
from rhino.ir.plan.slot_table import SlotTable, slot_ranks
from rhino.ir.plan.step_json import part_text, read_part
from rhino.ir.plan.verify import verify
from rhino.passes.planner.plan_rows import busy_seconds
from rhino.runtime.distributed.key_values import KeyValues

Placement = Sequence[Sequence[int]]
"""The process of each device of each rank [ranks][devices]."""


@dataclass(frozen=True, slots=True)
class Share:
    """A process's share of a plan in stages.

    `modules` are the texts of the part's programs. `copies` say under which number a process has a result that all
    read. `fed` are the arguments that any rank is fed, `returned` those that are results as they are, and `lasting`
    those whose arrays a step must not delete: they are results too, or another process may still fetch them.
    `busy_s` is how long each rank is predicted to run programs in a step [ranks].
    """

    part: Part
    modules: Mapping[str, str]
    copies: Mapping[int, int]
    fed: frozenset[int]
    returned: frozenset[int]
    lasting: frozenset[int]
    busy_s: tuple[float, ...]


class Shares:
    """Makes the shares of a plan's execution; processes with the same ranks have one."""

    def __init__(
        self, execution: Execution, read_by_all: Container[int], ranks: Sequence[Sequence[int]], devices: Placement
    ) -> None:
        """Raises as `verify` where the step cannot run.

        Args:
            execution: what is executed.
            read_by_all: the results that every process gets.
            ranks: those of each process.
            devices: the process of each device of each rank [ranks][devices].
        """
        readers = tuple(dict.fromkeys(own[0] for own in ranks))
        self.execution = execution
        self.ranks = ranks
        self.step, self.copies = with_copies(execution.step, read_by_all, readers)
        feeds = _pairs(execution.step, "feed")
        verify(self.step, 1 + max((number for _, number in feeds), default=-1), len(_pairs(self.step, "fetch")))
        self.fed = frozenset(number for _, number in feeds)
        fetched = frozenset(slot for slot, _ in _pairs(execution.step, "fetch"))
        self.returned = frozenset(number for slot, number in feeds if slot in fetched)
        read_later = fetched | _crossing(execution.step, devices)
        self.lasting = frozenset(number for slot, number in feeds if slot in read_later)
        self.busy_s = busy_seconds(execution)
        alike = tuple(dict.fromkeys(map(tuple, ranks)))
        parts = parts_of(self.step, alike)
        self.made = {own: self._share(own, part) for own, part in zip(alike, parts, strict=True)}

    def share(self, process: int) -> Share:
        """Returns the share of a process."""
        return self.made[tuple(self.ranks[process])]

    def told(self, service: KeyValues) -> list[str]:
        """Returns the hash of the share of each process, which the process finds at the service."""
        hashes = {own: tell_share(share, service) for own, share in self.made.items()}
        return [hashes[tuple(own)] for own in self.ranks]

    def _share(self, own: tuple[int, ...], part: Part) -> Share:
        modules = {one.module: self.execution.modules[one.module] for one in part.programs}
        copies = {number: copy for (number, rank), copy in self.copies.items() if rank == own[0]}
        return Share(part, modules, copies, self.fed, self.returned, self.lasting, self.busy_s)


def tell_share(share: Share, service: KeyValues) -> str:
    """Puts a share where the other processes find it, and returns its hash."""
    modules = {name: service.put(text.encode()) for name, text in share.modules.items()}
    part = service.put(part_text(share.part).encode())
    numbers = {name: sorted(getattr(share, name)) for name in ("fed", "returned", "lasting")}
    copies = [list(pair) for pair in share.copies.items()]
    found = {"part": part, "modules": modules, "copies": copies, "busy_s": share.busy_s, **numbers}
    return service.put(json.dumps(found).encode())


def told_share(digest: str, service: KeyValues) -> Share:
    """Returns the share of that hash, and nothing else of the plan."""
    data = json.loads(service.get(digest))
    modules = {name: service.get(one).decode() for name, one in words_of(data["modules"]).items()}
    copies = {number_of(number): number_of(copy) for number, copy in list_of(data["copies"])}
    fed, returned, lasting = (frozenset(numbers_of(data[name])) for name in ("fed", "returned", "lasting"))
    busy_s = tuple(map(float, list_of(data["busy_s"])))
    return Share(read_part(json.loads(service.get(data["part"]))), modules, copies, fed, returned, lasting, busy_s)


def with_copies(step: Step, results: Container[int], ranks: Sequence[int]) -> tuple[Step, dict[tuple[int, int], int]]:
    """Returns a step that gives the results `results` to several ranks, and a number for each copy.

    The numbers go by the result's own number and the rank.
    """
    every: InstructionList[Global] = in_columns(step.instructions)
    uids = [group.others[:, 0].max() for group in every.of_kind("transfer")]
    fetches = _pairs(step, "fetch")
    uid, next_result = 1 + int(max(uids, default=-1)), len(fetches)
    slots, numbers, added = list[Slot](), dict[tuple[int, int], int](), list[Global]()
    for source, number in sorted(fetches, key=lambda pair: pair[1]):
        if number not in results:
            continue
        own = step.slots[source]
        numbers[number, own.rank] = number
        for rank in ranks:
            if rank != own.rank:
                target = len(step.slots) + len(slots)
                slots.append(Slot(rank, own.layout))
                added += [Transfer(uid, source, target), Fetch(target, next_result)]
                numbers[number, rank] = next_result
                uid, next_result = uid + 1, next_result + 1
    instructions: InstructionList[Global] = joined([every, InstructionList.of(added)])
    return replace(step, slots=SlotTable.of(step.slots).extended(slots), instructions=instructions), numbers


def _pairs(step: Step, kind: str) -> list[tuple[int, int]]:
    """Returns the slots that are fed, or fetched, each with the number of the argument or result."""
    every = in_columns(step.instructions)
    return [
        (slot, number) for group in every.groups if group.form.kind == kind for slot, number in group.numbers.tolist()
    ]


def _crossing(step: Step, devices: Placement) -> frozenset[int]:
    """Returns the slots that are sent between ranks which do not both lie in one process."""
    places = [frozenset(own) for own in devices]
    are_apart = np.array([[len(giving | taking) > 1 for taking in places] for giving in places])
    ranks: Ints = slot_ranks(step)
    found: set[int] = set()
    for group in in_columns(step.instructions).of_kind("transfer"):
        source, target = group.numbers[:, 0], group.numbers[:, 1]
        found.update(source[are_apart[ranks[source], ranks[target]]].tolist())
    return frozenset(found)
