"""Run the dispatch queues of a step.

One queue runs in the caller's thread, each other in a thread that lives as long as the executor.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rhino.runtime.executor.binding import DispatchQueue, Memory, Stopped


@dataclass(slots=True, eq=False)
class Failure:
    """The first thing that went wrong in a step, and the place in the list where it did."""

    place: int
    error: Exception


@dataclass(slots=True, eq=False)
class _Worker:
    """A thread that runs one queue whenever it is told to."""

    start: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Lock = field(default_factory=threading.Lock)
    work: Callable[[], None] | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.start.acquire()
        self.done.acquire()
        self.thread = threading.Thread(target=self.loop, name="rhino-dispatch", daemon=True)
        self.thread.start()

    def loop(self) -> None:
        while True:
            self.start.acquire()
            if self.work is None:
                return
            self.work()
            self.done.release()


class DispatchThreads:
    """The threads of an executor. `positions[i]` is how many actions of its queue thread i has started in this step."""

    def __init__(self, num_queues: int, memory: Memory) -> None:
        self.positions = [0] * num_queues
        self._memory = memory
        self._failures: list[Failure] = []
        self._workers = [_Worker() for _ in range(num_queues - 1)]

    def run(self, queues: Sequence[DispatchQueue], locks: Sequence[threading.Lock]) -> Failure | None:
        """Runs all actions; returns the first failure in the list's order, after which nothing may be run again.

        `locks` are those that the queues wait at: opened when one fails, so that the others end.
        """
        self.positions[:] = [0] * len(queues)
        for number, (worker, queue) in enumerate(zip(self._workers, queues[1:], strict=True), 1):
            worker.work = lambda number=number, queue=queue: self._run(number, queue, locks)
            worker.start.release()
        try:
            self._run(0, queues[0], locks)
            for worker in self._workers:
                worker.done.acquire()
        except BaseException:  # the user's interrupt: no queue may be left waiting
            self._stop(locks)
            raise
        return min(self._failures, key=lambda one: one.place, default=None)

    def close(self) -> None:
        """Ends the threads."""
        for worker in self._workers:
            worker.work = None
            worker.start.release()
        for worker in self._workers:
            worker.thread.join()
        self._workers = []

    def _run(self, number: int, queue: DispatchQueue, locks: Sequence[threading.Lock]) -> None:
        positions = self.positions
        position = 0
        try:
            for position, action in enumerate(queue.actions):
                positions[number] = position
                action()
            positions[number] = len(queue.actions)
        except Stopped:
            return
        except Exception as error:
            self._failures.append(Failure(queue.places[position], error))
            self._stop(locks)

    def _stop(self, locks: Sequence[threading.Lock]) -> None:
        self._memory.stopped = True
        for lock in locks:
            with contextlib.suppress(RuntimeError):  # open already
                lock.release()
