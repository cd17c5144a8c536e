"""How far the steps of this process are: of an executor, and of calls of one program.

Looking costs a step nothing. Only when dispatch has stood still from one look to the next are the programs of a step
waited for, each in turn, in threads of their own. These are joined before the process ends: one that is inside XLA when
Python ends aborts the process.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import jax

from rhino.ir.plan.instructions import Copy, Receive, Run
from rhino.runtime.executor.executor import Executor, Progress, describe

_MOST_RANKS: Final = 2
"""Of so many waiting ranks a task tells, the first ones."""


class _Ends:
    """Waits for the programs of a step in threads, one for each rank: `ended[rank]` counts those that have."""

    def __init__(self, runs: dict[int, list[tuple[int, Any]]]) -> None:
        self._runs = runs
        self.ended = dict.fromkeys(runs, 0)
        self.threads = [
            threading.Thread(target=self._wait, args=(rank,), name=f"rhino-ends-{rank}", daemon=True) for rank in runs
        ]
        for one in self.threads:
            one.start()

    def open_runs(self) -> dict[int, int]:
        """Returns the place of the first program of each rank that has not ended."""
        return {rank: runs[self.ended[rank]][0] for rank, runs in self._runs.items() if self.ended[rank] < len(runs)}

    def _wait(self, rank: int) -> None:
        for _, token in self._runs[rank]:
            with suppress(jax.errors.JaxRuntimeError):  # that one failed is the executor's to say
                token.block_until_ready()
            self.ended[rank] += 1


class StageProgress:
    """The steps of an executor: progress is an instruction that is dispatched, or a program that ends."""

    def __init__(self, executor: Executor) -> None:
        self._found = weakref.ref(executor)
        self._seen: Progress | None = None
        self._ends: _Ends | None = None
        self._threads: list[threading.Thread] = []

    def look(self) -> tuple[int, bool, bool, object]:
        """Returns how many are begun, whether one is open, whether that is the first, and what changes by progress."""
        executor = self._found()
        if executor is None:
            return 0, False, False, 0
        progress = executor.progress()
        if progress != self._seen:
            self._seen, self._ends = progress, None
        elif self._ends is None:
            self._ends = _Ends(executor.launched())
            self._threads = [one for one in self._threads if one.is_alive()] + self._ends.threads
        ends = self._ends
        is_open = progress.step >= 0 and (ends is None or progress.running or bool(ends.open_runs()))
        ended = tuple(ends.ended.items()) if ends is not None else ()
        begun = progress.step + 1 if executor.transport is None else 0  # the transport counts for all executors
        return begun, is_open, progress.step == 0, (progress, ended)

    def task(self) -> str:
        """Returns where dispatch is, and what the first waiting ranks wait for."""
        executor = self._found()
        if executor is None:
            return ""
        progress = executor.progress()
        texts = []
        if progress.running and progress.place is not None:
            what = describe(executor.part, executor.instructions[progress.place])
            texts.append(f"dispatch is at instruction {progress.place} of {len(executor.instructions)}, {what}")
        for rank, place in sorted(self._ends.open_runs().items() if self._ends is not None else ()):
            moves = [describe(executor.part, one) for one in _incoming(executor, place)]
            after = f", which takes {' and '.join(moves)}" if moves else ""
            texts.append(f"rank {rank} has not ended {describe(executor.part, executor.instructions[place])}{after}")
        return ", ".join(texts[:_MOST_RANKS])

    def close(self) -> None:
        """Waits for the programs that are waited for."""
        for one in self._threads:
            one.join()


class CallProgress:
    """Calls of programs over the devices of several processes, each in one launch.

    A call is open until its smallest result is there. Holding that one keeps no memory that counts.
    """

    def __init__(self) -> None:
        self._num_programs = 0
        self._begun = 0
        self._ended = 0
        self._is_calling = False
        self._known: set[int] = set()  # programs of which a call has ended
        self._open: deque[tuple[int, Any]] = deque()
        self._dropping = threading.Lock()

    def counted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a program with its calls counted."""
        program = self._num_programs = self._num_programs + 1

        def call(*args: Any) -> Any:  # noqa: ANN401 - what `run` takes and returns
            self._begun, self._is_calling = self._begun + 1, True
            try:
                result = run(*args)
            except BaseException:
                self._begun -= 1
                raise
            finally:
                self._is_calling = False
            leaves = [one for one in jax.tree.leaves(result) if isinstance(one, jax.Array)]
            if leaves:
                self._open.append((program, min(leaves, key=lambda one: one.nbytes)))
            self._drop_ended()
            return result

        return call

    def look(self) -> tuple[int, bool, bool, object]:
        """Returns how many are begun, whether one is open, whether that is the first, and what changes by progress."""
        self._drop_ended()
        programs = [program for program, _ in list(self._open)]
        is_first = any(program not in self._known for program in programs)
        is_open = self._is_calling or bool(programs)
        return self._begun, is_open, is_open and (is_first or not self._known), self._ended

    def task(self) -> str:
        """Returns nothing: all devices are in one program."""
        return ""

    def close(self) -> None:
        """Does nothing: nothing waits for a call."""

    def _drop_ended(self) -> None:
        with self._dropping:
            while self._open and _is_there(self._open[0][1]):
                self._known.add(self._open.popleft()[0])
                self._ended += 1


def _incoming(executor: Executor, place: int) -> list[Copy | Receive]:
    """Returns the transfers that a run at `place` takes."""
    run = executor.instructions[place]
    assert isinstance(run, Run)
    moves = [one for one in executor.instructions[:place] if isinstance(one, Copy | Receive)]
    return [one for one in moves if one.target in run.inputs]


def _is_there(array: Any) -> bool:  # noqa: ANN401 - an array of JAX's
    """Says whether an array is computed; one that was donated meanwhile, or has failed, is waited for by nobody."""
    try:
        return bool(array.is_deleted() or array.is_ready())
    except (RuntimeError, jax.errors.JaxRuntimeError):
        return True
