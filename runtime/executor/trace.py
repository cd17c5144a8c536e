"""The measured times of a step's programs and transfers, and the trace file that shows them beside the expected ones.

The file is for chrome://tracing and Perfetto.

Ends are seen by threads that wait for each program and each array that comes in, so a recorded executor holds incoming
arrays longer than others do. Starts are not seen: a program starts when it is dispatched, its rank is free and what
comes in for it is there.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeAlias

import jax

from rhino.ir.plan.instructions import Copy, Local, Receive, Run, Send, rank_of
from rhino.ir.plan.parts import Part
from rhino.ir.plan.timeline import Span, Timeline, TransferSpan
from rhino.runtime.executor.binding import Action

Event: TypeAlias = dict[str, Any]
"""An event of the trace format, times in microseconds."""

MEASURED: Final = "measured"
SIMULATED: Final = "simulated"

DISPATCH: Final = "dispatch"

_GROUPS: Final = {
    name: i for i, name in enumerate((SIMULATED, MEASURED, f"{SIMULATED}, moved", f"{MEASURED}, moved", DISPATCH))
}
"""What stands below what in the viewer."""

_MICROSECONDS: Final = 1e6


@dataclass(slots=True, eq=False)
class _Record:
    """One instruction of one step: when it was dispatched, and when what it started ended. Seconds since the epoch."""

    step: int
    place: int
    start_s: float
    dispatched_s: float
    end_s: float | None = None


@dataclass(slots=True, eq=False)
class _Queue:
    """Waits for things in the order in which they were given, in a thread, and notes when each was there."""

    clock: Callable[[], float]
    given: queue.SimpleQueue[tuple[_Record, Any] | threading.Event | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._loop, name="rhino-trace", daemon=True)
        self.thread.start()

    def reached(self) -> threading.Event:
        """Returns what is set once all that was given until now is there."""
        event = threading.Event()
        self.given.put(event)
        return event

    def _loop(self) -> None:
        while (one := self.given.get()) is not None:
            if isinstance(one, threading.Event):
                one.set()
                continue
            record, thing = one
            # A failed program is the executor's to report; an array that was taken over had come before.
            with contextlib.suppress(jax.errors.JaxRuntimeError, RuntimeError):
                thing.block_until_ready()
                record.end_s = self.clock()
            del one, thing


class Recorder:
    """Notes what an executor does; made for one executor, and given to it."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.perf_counter()  # clocks of several processes have only the epoch in common
        self._records: defaultdict[int, list[_Record]] = defaultdict(list)
        self._queues: dict[tuple[int, str], _Queue] = {}
        self._part: Part | None = None
        self._instructions: Sequence[Local] = ()

    def attach(self, part: Part, instructions: Sequence[Local]) -> None:
        """Called by the executor: what it runs."""
        self._part, self._instructions = part, instructions

    def wrap(self, place: int, action: Action, number: Callable[[], int], started: Callable[[], Any]) -> Action:
        """Returns `action` so that its runs are recorded.

        `number` gives the step's number, and `started` what the action started, as something to wait for.
        """
        one = self._instructions[place]
        waiter = self._waiter(one)

        def noted() -> None:
            start_s = self._now_s()
            action()
            record = _Record(number(), place, start_s, self._now_s())
            self._records[record.step].append(record)
            if waiter is not None:
                waiter.given.put((record, started()))

        return noted

    def close(self) -> None:
        """Waits for all that was started, and ends: what was noted can be read then."""
        for one in self._queues.values():
            one.given.put(None)
        for one in self._queues.values():
            one.thread.join()

    def taken(self, step: int) -> Timeline:
        """Returns the timeline of a step whose programs have ended on this process, and forgets it."""
        waiting = [one.reached() for one in self._queues.values()]
        for reached in waiting:
            reached.wait()
        timeline = self.timeline(step)
        del self._records[step]
        return timeline

    def timeline(self, step: int) -> Timeline:
        """Returns what the ranks of this process did in a step.

        Times are in seconds from the start of its first program or transfer.
        """
        assert self._part is not None
        return _from_zero(self._part.num_ranks, *self._measured(step))

    def events(self) -> list[Event]:
        """Returns all that was measured as plain data, with times since the epoch.

        Events of several processes can be put together.
        """
        events: list[Event] = []
        for step in sorted(self._records):
            spans, moves = self._measured(step)
            events += timeline_events(MEASURED, spans, moves, step)
        assert self._part is not None
        for record in chain.from_iterable(self._records[step] for step in sorted(self._records)):
            one = self._instructions[record.place]
            name = str(one.task) if isinstance(one, Run) else type(one).__name__.lower()
            events.append(_event(DISPATCH, self._rank(one), name, record.start_s, record.dispatched_s, record.step))
        return events

    def _measured(self, step: int) -> tuple[list[Span], list[TransferSpan]]:
        assert self._part is not None
        arrived: dict[int, float] = {}
        free_s: defaultdict[int, float] = defaultdict(float)
        spans, moves = [], []
        ended = [record for record in self._records[step] if record.end_s is not None]
        for record in sorted(ended, key=lambda record: record.place):
            one, end_s = self._instructions[record.place], record.end_s
            assert end_s is not None
            if isinstance(one, Run):
                rank = self._rank(one)
                start_s = max(record.start_s, free_s[rank], *(arrived.get(slot, 0.0) for slot in one.inputs), 0.0)
                free_s[rank] = end_s = max(end_s, start_s)
                spans.append(Span(rank, one.task, start_s, end_s))
            elif isinstance(one, Copy | Receive):
                arrived[one.target] = end_s
                source = self._part.slots[one.source].rank
                moves.append(TransferSpan(one.uid, source, self._rank(one), record.start_s, end_s))
        return spans, moves

    def _rank(self, one: Local) -> int:
        assert self._part is not None
        match one:
            case Run():
                return rank_of(self._part, one)
            case Copy(target=slot) | Receive(target=slot) | Send(source=slot):
                return self._part.slots[slot].rank
            case _:
                raise AssertionError(one)

    def _waiter(self, one: Local) -> _Queue | None:
        """Runs of a rank end in their order; arrays come in beside them."""
        if isinstance(one, Send):
            return None
        key = self._rank(one), "runs" if isinstance(one, Run) else "arrays"
        if key not in self._queues:
            self._queues[key] = _Queue(self._now_s)
        return self._queues[key]

    def _now_s(self) -> float:
        return self._offset_s + time.perf_counter()


def timeline_events(group: str, spans: Iterable[Span], moves: Iterable[TransferSpan], step: int = 0) -> list[Event]:
    """Returns a timeline as events of two groups: what runs, `MEASURED` or `SIMULATED`, and what is moved."""
    runs = [_event(group, span.rank, str(span.task), span.start_s, span.end_s, step) for span in spans]
    return runs + [
        _event(f"{group}, moved", move.target_rank, f"transfer {move.uid}", move.start_s, move.end_s, step)
        for move in moves
    ]


def chrome_trace(measured: Sequence[Event], simulated: Timeline | None = None) -> str:
    """Returns the trace file of what was measured, from 0 on, and of what was expected above it."""
    expected = timeline_events(SIMULATED, simulated.spans, simulated.moves) if simulated else []
    first = min((event["ts"] for event in measured), default=0.0)
    events = [*expected, *({**event, "ts": event["ts"] - first} for event in measured)]
    return json.dumps({"traceEvents": [*_names(events), *events], "displayTimeUnit": "ms"})


def _event(group: str, rank: int, name: str, start_s: float, end_s: float, step: int) -> Event:
    times = {"ts": start_s * _MICROSECONDS, "dur": (end_s - start_s) * _MICROSECONDS}
    return {"ph": "X", "pid": _GROUPS[group], "tid": rank, "name": name, "cat": group, "args": {"step": step}, **times}


def _names(events: Sequence[Mapping[str, Any]]) -> list[Event]:
    """What the viewer calls the groups and the rows in them."""
    groups = {number: name for name, number in _GROUPS.items()}
    used = sorted({(event["pid"], event["tid"]) for event in events})
    rows = [
        {"ph": "M", "pid": group, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}}
        for group, rank in used
    ]
    heads = [
        {"ph": "M", "pid": group, "name": "process_name", "args": {"name": groups[group]}}
        for group in sorted({pid for pid, _ in used})
    ]
    order = [
        {"ph": "M", "pid": head["pid"], "name": "process_sort_index", "args": {"sort_index": head["pid"]}}
        for head in heads
    ]
    return [*heads, *order, *rows]


def _from_zero(num_ranks: int, spans: Sequence[Span], moves: Sequence[TransferSpan]) -> Timeline:
    first = min([*(span.start_s for span in spans), *(move.start_s for move in moves)], default=0.0)
    return Timeline(
        num_ranks,
        tuple(Span(one.rank, one.task, one.start_s - first, one.end_s - first) for one in spans),
        tuple(
            TransferSpan(one.uid, one.source_rank, one.target_rank, one.start_s - first, one.end_s - first)
            for one in moves
        ),
    )
