"""A process's list of instructions as functions without arguments.

Each knows its slots, its program and its peer before the first step. They are called in the list's order, but that what
is waited for is received right before its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar, assert_never

import jax

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import (
    Copy,
    Feed,
    Fetch,
    Free,
    Layout,
    Local,
    Receive,
    Run,
    Send,
    rank_of,
    reads,
)
from rhino.ir.plan.parts import Part
from rhino.runtime.executor.executable import same_placement
from rhino.runtime.executor.moves import Move, Parts, bind_giving, bind_taking
from rhino.runtime.executor.rank_program import RankDevices, RankProgram, dtype_of
from rhino.runtime.executor.transport import Transport, bind_copy, bind_piece_copies

Action: TypeAlias = Callable[[], None]
Bound = TypeVar("Bound")
Take: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]


class Observer(Protocol):
    """Sees what an executor does."""

    def attach(self, part: Part, instructions: Sequence[Local]) -> None:
        """Called first: the part of the step that this process runs, and its list."""

    def wrap(self, place: int, action: Action, number: Callable[[], int], started: Callable[[], Any]) -> Action:
        """Returns `action` so that its runs are recorded.

        `number` gives the step's number, and `started` what the action started, as something to wait for.
        """


@dataclass(slots=True, eq=False)
class Memory:
    """What the instructions of a process work on.

    `slots` are indexed as the part's; `tokens` have, for each place in the list, what tells when its run has ended.
    """

    slots: list[Any]
    arguments: list[Any]
    results: list[Any]
    tokens: list[Any]
    step: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class DispatchQueue:
    """What is called in a step: `places[i]` is where action i comes from in the process's list."""

    places: list[int] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def add(self, place: int, action: Action) -> None:
        """Appends an action."""
        self.places.append(place)
        self.actions.append(action)

    def place(self, position: int) -> int | None:
        """Returns where action `position` comes from; None past the end."""
        return self.places[position] if position < len(self.places) else None


@dataclass(frozen=True, slots=True, eq=False)
class Binder:
    """What instructions are bound to.

    `processes` [ranks][devices] says in which process each device of each rank is, where there are several.
    """

    part: Part
    ranks: Mapping[int, RankDevices]
    programs: Mapping[tuple[int, int], RankProgram]
    transport: Transport | None
    processes: Sequence[Sequence[int]]
    memory: Memory
    recorder: Observer | None = None
    bound: dict[object, Any] = field(default_factory=dict)
    """What was compiled for moves that are alike."""

    def bind(self, instructions: Sequence[Local], *, checked: bool) -> DispatchQueue:
        """Returns the actions of a list; if `checked`, every array is checked before it is used."""
        queue = DispatchQueue()
        # By slot: what must be done before its first use, and for which place.
        awaited: dict[int, tuple[int, Action]] = {}
        for place, one in enumerate(instructions):
            for slot in sorted({*reads(one), *(one.slots if isinstance(one, Free) else ())} & awaited.keys()):
                queue.add(*awaited.pop(slot))
            action = self._noted(place, one, self._action(place, one, checked=checked))
            if isinstance(one, Receive) and self._transport.waits:
                awaited[one.target] = place, action
            else:
                queue.add(place, action)
        for place, action in awaited.values():
            queue.add(place, action)
        return queue

    @property
    def _transport(self) -> Transport:
        if self.transport is None:
            raise RhinoError(
                "RHI-RUN-004",
                "the step has ranks that this process has no devices for",
                fix="give devices for all ranks, or a transport",
            )
        return self.transport

    def _layout(self, slot: int) -> Layout:
        return self.part.slots[slot].layout

    def _bound(self, bind: Callable[..., Bound], move: Move, *given: RankDevices | tuple[int, ...]) -> Bound:
        """What `bind` makes of a move, of ranks and numbers of pieces, once for all that are alike."""
        key = bind, move, *(one.rank if isinstance(one, RankDevices) else one for one in given)
        if key not in self.bound:
            self.bound[key] = bind(move, *given)
        found: Bound = self.bound[key]
        return found

    def _move(self, source: int, target: int) -> Move:
        part = self.part
        return Move(self._layout(source), part.mesh_of(source), self._layout(target), part.mesh_of(target))

    def _target(self, slot: int) -> RankDevices:
        return self.ranks[self.part.slots[slot].rank]

    def _action(self, place: int, one: Local, *, checked: bool) -> Action:
        memory, slots = self.memory, self.memory.slots
        match one:
            case Run():
                return self._run(place, one, checked=checked)
            case Copy(uid, source, target):
                action = self._copy(uid, source, target)
                return _then(self._check(source), action) if checked else action
            case Send(uid, source, target):
                action = self._send(uid, source, target)
                return _then(self._check(source), action) if checked else action
            case Receive(uid, source, target):
                return self._receive(uid, source, target)
            case Free(freed):

                def action() -> None:
                    for slot in freed:
                        slots[slot] = None

                return action
            case Feed(argument, target):
                arguments = memory.arguments

                def action() -> None:
                    slots[target], arguments[argument] = arguments[argument], None

                return action
            case Fetch(source, result):
                return lambda: memory.results.__setitem__(result, slots[source])
            case _:
                assert_never(one)

    def _noted(self, place: int, one: Local, action: Action) -> Action:
        """The action, and what it starts, noted by the recorder."""
        memory = self.memory
        match one:
            case Run():
                return (
                    self.recorder.wrap(place, action, lambda: memory.step, lambda: memory.tokens[place])
                    if self.recorder
                    else action
                )
            case Copy(target=slot) | Receive(target=slot) | Send(source=slot):
                return (
                    self.recorder.wrap(place, action, lambda: memory.step, lambda: memory.slots[slot])
                    if self.recorder
                    else action
                )
            case Free() | Feed() | Fetch():
                return action
            case _:
                assert_never(one)

    def _run(self, place: int, one: Run, *, checked: bool) -> Action:
        program = self.programs[one.program, rank_of(self.part, one)]
        slots, tokens = self.memory.slots, self.memory.tokens
        launch, handlers, take, outputs = (
            program.executable.launch,
            list(program.handlers),
            _picker(one.inputs),
            one.outputs,
        )
        gone = tuple(one.inputs[source] for source, _ in self.part.programs[one.program].donated)

        def action() -> None:
            launched = launch(take(slots), True)
            tokens[place] = launched.consume_token()
            for slot, array in zip(outputs, launched.consume_with_handlers(handlers), strict=True):
                slots[slot] = array
            for slot in gone:
                slots[slot] = None

        return _then(lambda: program.executable.check(take(slots)), action) if checked else action

    def _copy(self, uid: int, source: int, target: int) -> Action:
        """Copies what stays in this process, between two ranks that it has devices of; sends and receives the rest."""
        slots, move = self.memory.slots, self._move(source, target)
        if not self._shares(source, target):
            copy = self._bound(bind_copy, move, self._target(source), self._target(target))

            def whole() -> None:
                slots[target] = copy(slots[source])

            return whole
        return _then(self._send(uid, source, target), self._receive(uid, source, target))

    def _shares(self, source: int, target: int) -> dict[tuple[int, int], tuple[int, ...]]:
        """Returns the pieces of a transfer, by number, that go from one process to another, by these.

        Of those within a process are the ones of this process. Returns nothing where all are.
        """
        if self.transport is None:
            return {}
        move = self._move(source, target)
        giving, taking = (self.processes[self.part.slots[slot].rank] for slot in (source, target))
        key = move, tuple(giving), tuple(taking)
        if key not in self.bound:
            found: dict[tuple[int, int], list[int]] = {}
            for number, piece in enumerate(move.pieces()):
                found.setdefault((giving[piece.source], taking[piece.target]), []).append(number)
            own = self.transport.process
            self.bound[key] = {
                pair: tuple(numbers) for pair, numbers in found.items() if own in pair and found.keys() != {(own, own)}
            }
        shares: dict[tuple[int, int], tuple[int, ...]] = self.bound[key]
        return shares

    def _send(self, uid: int, source: int, target: int) -> Action:
        """Sends what other processes take of an array."""
        memory, slots, move, rank = self.memory, self.memory.slots, self._move(source, target), self._target(source)
        own = self._transport.process
        sends = [
            (self._bound(bind_giving, move, rank, numbers), self._transport.sender(uid, taker))
            for (giver, taker), numbers in self._shares(source, target).items()
            if giver == own != taker
        ]

        def action() -> None:
            for cut, send in sends:
                send(memory.step, cut(slots[source]))

        return action

    def _receive(self, uid: int, source: int, target: int) -> Action:
        """Receives what other processes give of an array, and copies what of it is here."""
        memory, slots, own = self.memory, self.memory.slots, self._transport.process
        move = self._move(source, target)
        taking = self._bound(bind_taking, move, self._target(target))
        kinds = dict(zip(taking.numbers, taking.kinds, strict=True))
        takes: list[Callable[[], Parts]] = []
        order: list[int] = []
        for (giver, taker), numbers in self._shares(source, target).items():
            if taker != own:
                continue
            order += numbers
            if giver == own:
                copy = self._bound(bind_piece_copies, move, self._target(source), self._target(target), numbers)
                takes.append(partial(_of_slot, copy, slots, source))
            else:
                receive = self._transport.receiver(uid, giver, [kinds[number] for number in numbers])
                takes.append(partial(_of_step, receive, memory))
        place_of, join = {number: place for place, number in enumerate(order)}, taking.join
        places = [place_of[number] for number in taking.numbers]

        def action() -> None:
            parts = [part for take in takes for part in take()]
            slots[target] = join([parts[place] for place in places])

        return action

    def _check(self, slot: int) -> Action:
        """Checks the array in a slot before it is moved.

        Nothing else checks it, and a wrong array would give wrong numbers elsewhere.
        """
        slots, layout, sharding = (
            self.memory.slots,
            self._layout(slot),
            self._target(slot).placement(self._layout(slot)),
        )

        def action() -> None:
            array = slots[slot]
            if not isinstance(array, jax.Array) or array.is_deleted():
                raise RhinoError(
                    "RHI-RUN-002",
                    f"slot {slot} is read by a transfer, and its array was deleted or never written",
                    fix="do not delete or donate the arguments of a step before its results are there",
                )
            same = (array.shape, array.dtype) == (layout.shape, dtype_of(layout))
            if not same or not same_placement(array.sharding, sharding, array.ndim):
                raise RhinoError(
                    "RHI-RUN-002",
                    f"slot {slot} is moved to another rank: got {array.aval} on {array.sharding}, not {layout}",
                    fix="run the step with the programs that it was planned with",
                )

        return action


def _picker(slots: tuple[int, ...]) -> Take:
    """What picks the arrays of some slots."""
    match slots:
        case ():
            return lambda _: ()
        case (slot,):
            return lambda arrays: (arrays[slot],)
        case _:
            return itemgetter(*slots)


def _of_slot(copy: Callable[[Any], Parts], slots: Sequence[Any], slot: int) -> Parts:
    return copy(slots[slot])


def _of_step(receive: Callable[[int], Parts], memory: Memory) -> Parts:
    return receive(memory.step)


def _then(first: Action, second: Action) -> Action:
    def both() -> None:
        first()
        second()

    return both
