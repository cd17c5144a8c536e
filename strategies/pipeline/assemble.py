"""A staged step and an order make a `Step`.

It says which slots hold what, when arrays move, what takes over which buffer, and what is freed when.

- Arguments are fed at the start, each to one rank: where the result that it becomes is made, else where an `apply` part
  reads it (there its buffer can be taken over), else the first that reads it. What else reads it gets it by a transfer,
  like any value. One of which each replica reads another part is fed to all of them.
- A value is moved right after it is made, but not before the taking rank is `RECEIVE_AHEAD` launches from its first
  reader: so a rank holds only arrays that it soon needs, however far the giving rank has run ahead.
- A program takes over an input's buffer as its `donated` pairs wish if, at every run of it, that run is the last to
  touch the slot, and the slot was neither sent (what is sent may be read later than its place in the list says), nor
  fetched, nor fed from a buffer that is not to be consumed.
- Every slot is freed right after the last instruction that touches it, unless it was taken over or fetched.
- Results are fetched at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import (
    Feed,
    Fetch,
    Free,
    Global,
    Layout,
    Run,
    Slot,
    Step,
    StepProgram,
    Transfer,
    reads,
    writes,
)
from rhino.ir.plan.stage_programs import MICRO_BATCH, ONCE, StagedStep
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.pipeline.sequence import Launch, default_seconds, queues, sequence, task_of

RECEIVE_AHEAD: Final = 2
"""Launches of the taking rank before its first reader at which a transfer may start.

There is one to cover the transfer with, and one for what comes earlier.
"""

_Key: TypeAlias = tuple[str, int | None]
"""A value: its name, and its micro-batch if it is given in each anew."""


def assemble(staged: StagedStep, order: Order, seconds: Sequence[float] = ()) -> Step:
    """Returns the step that runs `staged` in `order`.

    `seconds` estimate each program, and only move what could stand in either order.

    Raises:
        RhinoError: RHI-SCHED-002 where the order cannot finish.
    """
    launches = sequence(staged, queues(staged, order), seconds or default_seconds(staged))
    assembly = _Assembly(staged, order, launches)
    assembly.run()
    constants = tuple([(slot, number) for (_, number), slot in assembly.constants.items()])
    kept = frozenset(assembly.kept).union([slot for slot, _ in constants])
    programs = _donating(staged.programs, assembly.instructions, kept)
    instructions = _with_frees(programs, assembly.instructions, frozenset([slot for slot, _ in constants]))
    return Step(_meshes(staged, order), programs, tuple(assembly.slots), instructions, constants)


def _meshes(staged: StagedStep, order: Order) -> tuple[Mesh, ...]:
    """Returns the mesh of each rank, which all its stages have."""
    found = dict(zip(order.rank_of, staged.meshes, strict=True))
    own = tuple([found[rank] for rank in range(len(order.tasks))])
    assert staged.meshes == tuple([own[rank] for rank in order.rank_of]), "the stages of a rank have its mesh"
    return own


@dataclass(slots=True, eq=False)
class _Assembly:
    """Everything but takeovers and frees. `kept` are the slots whose buffers belong to the caller."""

    staged: StagedStep
    order: Order
    launches: Sequence[Launch]
    slots: list[Slot] = field(default_factory=list)
    instructions: list[Global] = field(default_factory=list)
    constants: dict[tuple[int, int], int] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    layouts: dict[tuple[int, str], Layout] = field(init=False)
    each: frozenset[str] = field(init=False)
    updates_left: dict[str, int] = field(init=False)
    wanted: dict[_Key, dict[int, int]] = field(init=False)
    where: dict[tuple[int, _Key], int] = field(default_factory=dict)
    num_runs: list[int] = field(init=False)
    num_moves: int = 0
    waiting: list[list[tuple[int, int, _Key]]] = field(init=False)

    def __post_init__(self) -> None:
        once = [name for part in self.staged.parts if part.phase in ONCE for name in part.gives]
        often = [name for part in self.staged.parts if part.phase not in ONCE for name in part.gives]
        self.layouts = _layouts(self.staged, self.order)
        self.each = frozenset(often).difference(once)
        self.updates_left = {name: self.staged.num_micro_batches for name in often if name not in self.each}
        self.wanted = self.first_readers()
        self.num_runs = [0] * len(self.order.tasks)
        self.waiting = [[] for _ in self.order.tasks]

    def run(self) -> None:
        """Writes the list."""
        for number in range(len(self.staged.arguments)):
            self.feed(number)
        for launch in self.launches:
            self.launch(launch)
        for number, name in enumerate(self.staged.results):
            self.instructions.append(Fetch(self.where[self.source_rank(name), (name, None)], number))

    def rank_of(self, launch: Launch) -> int:
        """The rank that runs a launch."""
        return self.order.rank_of[self.staged.parts[launch.part].stage]

    def key(self, name: str, launch: Launch) -> _Key:
        """The value that `name` means in a launch."""
        return (name, launch.micro_batch if name in self.each else None)

    def first_readers(self) -> dict[_Key, dict[int, int]]:
        """For each value, the ranks that read it and how many launches of theirs stand before the first that does."""
        seen = [0] * len(self.order.tasks)
        first: dict[_Key, dict[int, int]] = defaultdict(dict)
        for launch in self.launches:
            rank = self.rank_of(launch)
            for name in self.staged.parts[launch.part].reads:
                first[self.key(name, launch)].setdefault(rank, seen[rank])
            seen[rank] += 1
        return first

    def source_rank(self, name: str) -> int:
        """The rank on which a value is made or fed."""
        producers = [self.order.rank_of[part.stage] for part in self.staged.parts if name in part.gives]
        assert len(set(producers)) <= 1, f"{name!r} is given on several ranks"
        return producers[0] if producers else self.home(name)

    def home(self, name: str) -> int:
        """The rank to which an argument is fed.

        It is where the argument's result is made, else where a part applies it, else where the first part reads it.
        """
        becomes = next(argument.becomes for argument in self.staged.arguments if argument.name == name)
        new = self.staged.results[becomes] if becomes is not None else name
        makers = [self.order.rank_of[part.stage] for part in self.staged.parts if new in part.gives]
        if makers:
            return makers[0]
        readers = [part for part in self.staged.parts if name in part.reads]
        chosen = [part for part in readers if part.phase == "apply"] or readers
        return self.order.rank_of[chosen[0].stage] if chosen else 0

    def feed(self, number: int) -> None:
        """Feeds an argument that is read or returned."""
        argument = self.staged.arguments[number]
        key = (argument.name, None)
        if key not in self.wanted and argument.name not in self.staged.results:
            return
        ranks = list(self.wanted.get(key, {})) if argument.fed_to_each else []
        for rank in ranks or [self.home(argument.name)]:
            slot = self.new_slot(rank, key)
            self.instructions.append(Feed(number, slot))
            if not argument.consumed:
                self.kept.append(slot)
        if not ranks:
            self.hand_on(slot, key)

    def launch(self, launch: Launch) -> None:
        """Runs a program, and moves what it gives and what may now be received."""
        part, rank = self.staged.parts[launch.part], self.rank_of(launch)
        inputs = [self.read(rank, name, launch) for name in part.reads]
        keys = [self.key(name, launch) for name in part.gives]
        outputs = [self.new_slot(rank, key) for key in keys]
        self.instructions.append(Run(part.program, tuple(inputs), tuple(outputs), task_of(self.staged, launch)))
        self.num_runs[rank] += 1
        self.receive(rank)
        for slot, key in zip(outputs, keys, strict=True):
            if self.is_final(key[0], launch):
                self.hand_on(slot, key)

    def is_final(self, name: str, launch: Launch) -> bool:
        """Whether what a launch gives is what others read: not a sum in the making."""
        if name not in self.updates_left:
            return True
        self.updates_left[name] -= launch.micro_batch is not None
        return not self.updates_left[name]

    def read(self, rank: int, name: str, launch: Launch) -> int:
        """The slot in which a launch finds a value."""
        if name != MICRO_BATCH:
            key = (rank, self.key(name, launch))
            assert key in self.where, f"{name!r} is not on rank {rank} for {task_of(self.staged, launch)}"
            return self.where[key]
        assert launch.micro_batch is not None, "a part outside the micro-batches reads their number"
        at = (rank, launch.micro_batch)
        if at not in self.constants:
            self.constants[at] = len(self.slots)
            self.slots.append(Slot(rank, self.layouts[rank, MICRO_BATCH]))
        return self.constants[at]

    def new_slot(self, rank: int, key: _Key) -> int:
        """A slot that holds a value from now on."""
        self.where[rank, key] = len(self.slots)
        self.slots.append(Slot(rank, self.layout(rank, key[0])))
        return self.where[rank, key]

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

    def hand_on(self, slot: int, key: _Key) -> None:
        """Moves a value to each other rank that reads it, now or when it may."""
        for rank, first in self.wanted.get(key, {}).items():
            if rank != self.slots[slot].rank:
                self.waiting[rank].append((first - RECEIVE_AHEAD, slot, key))
                self.receive(rank)

    def receive(self, rank: int) -> None:
        """Moves to a rank what waits and is soon read there."""
        for _, source, key in [one for one in self.waiting[rank] if one[0] <= self.num_runs[rank]]:
            self.instructions.append(Transfer(self.num_moves, source, self.new_slot(rank, key)))
            self.num_moves += 1
        self.waiting[rank] = [one for one in self.waiting[rank] if one[0] > self.num_runs[rank]]


def _layouts(staged: StagedStep, order: Order) -> dict[tuple[int, str], Layout]:
    """The layout that each value has on each rank whose parts read it or give it; these agree."""
    layouts = dict[tuple[int, str], Layout]()
    for part in staged.parts:
        program, rank = staged.programs[part.program], order.rank_of[part.stage]
        layouts |= {(rank, name): layout for name, layout in zip(part.reads, program.inputs, strict=True)}
        layouts |= {(rank, name): layout for name, layout in zip(part.gives, program.outputs, strict=True)}
    return layouts


def _last_touch(instructions: Sequence[Global]) -> dict[int, int]:
    """For each slot the last instruction that reads or writes it."""
    return {slot: at for at, one in enumerate(instructions) for slot in (*writes(one), *reads(one))}


def _donating(
    programs: Sequence[StepProgram], instructions: Sequence[Global], kept: frozenset[int]
) -> tuple[StepProgram, ...]:
    """The programs with those of their pairs that hold at each run."""
    last = _last_touch(instructions)
    needed = kept.union([one.source for one in instructions if isinstance(one, Transfer | Fetch)])
    valid = {(number, pair): True for number, program in enumerate(programs) for pair in program.donated}
    for at, one in enumerate(instructions):
        if isinstance(one, Run):
            for pair in programs[one.program].donated:
                slot = one.inputs[pair[0]]
                valid[one.program, pair] &= last[slot] == at and slot not in needed and one.inputs.count(slot) == 1
    return tuple(
        [
            replace(program, donated=tuple([pair for pair in program.donated if valid[number, pair]]))
            for number, program in enumerate(programs)
        ]
    )


def _with_frees(
    programs: Sequence[StepProgram], instructions: Sequence[Global], for_ever: frozenset[int]
) -> tuple[Global, ...]:
    """The list with each slot freed after the last instruction that touches it."""
    gone = for_ever.union([slot for one in instructions for slot in _ends(programs, one)])
    dying: dict[int, list[int]] = defaultdict(list)
    for slot, at in sorted(_last_touch(instructions).items()):
        if slot not in gone:
            dying[at].append(slot)
    found: list[Global] = []
    for at, one in enumerate(instructions):
        found += [one, Free(tuple(dying[at]))] if at in dying else [one]
    return tuple(found)


def _ends(programs: Sequence[StepProgram], one: Global) -> Iterator[int]:
    """The slots that need no free behind an instruction: fetched, or taken over."""
    if isinstance(one, Fetch):
        yield one.source
    elif isinstance(one, Run):
        yield from (one.inputs[taken] for taken, _ in programs[one.program].donated)
