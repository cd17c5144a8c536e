"""What each rank of a planned step does while it runs, in `logging`: beside what was predicted.

The loggers `rhino.rank0` and so on, one for each rank of this process, have a line at level DEBUG for each step that
has ended. They look at nothing unless they are at that level when the step is called first: to see when a program ends
a thread waits for it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final

import jax

from rhino.ir.plan.timeline import Timeline
from rhino.ir.units import format_bytes, format_seconds
from rhino.jit_program import JitProgram
from rhino.plan import Plan
from rhino.runtime.executor.trace import Recorder
from rhino.stage_programs import StagePrograms
from rhino.traced import Traced

_LOGGERS: Final = "rhino.rank"


def logger_of(rank: int) -> logging.Logger:
    """Returns the logger of a rank."""
    return logging.getLogger(f"{_LOGGERS}{rank}")


def logged_ranks(plan: Plan) -> tuple[int, ...]:
    """Returns the ranks of this process whose steps are logged; one of several processes is logged by the first."""
    own = jax.process_index()
    return tuple(
        [
            one.rank
            for one in plan.ranks
            if one.devices[0].process_index == own and logger_of(one.rank).isEnabledFor(logging.DEBUG)
        ]
    )


class StepLog:
    """A program whose steps are logged: `run` is the program's, and a thread waits for what it has started."""

    def __init__(
        self, traced: Traced, plan: Plan, program: JitProgram | StagePrograms, ranks: Sequence[int], compiled_bytes: int
    ) -> None:
        """`ranks` are those of `logged_ranks`, of which there are some.

        `compiled_bytes` is what a program that is not in stages takes of a device, as it was compiled.
        """
        self._traced, self._plan, self._program, self._ranks = traced, plan, program, tuple(ranks)
        self._examples, self._compiled_bytes = num_examples(traced), compiled_bytes
        self._busy_s = program.busy_seconds() if isinstance(program, StagePrograms) else ()
        self._num_steps, self._last_end_s = 0, 0.0
        self._given: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        thread = threading.Thread(target=_each, args=(self._given,), name="rhino-step-log", daemon=True)
        thread.start()
        recorder = program.recorder if isinstance(program, StagePrograms) else None
        weakref.finalize(self, _end, self._given, thread, recorder)

    def run(self, *values: Any) -> Any:  # noqa: ANN401 - pytrees
        """Runs a step, and returns its results as the program does."""
        start_s = perf_counter()
        result = self._program.call(*values)
        self._given.put(partial(self._ended, self._num_steps, start_s, *self._waits(result)))
        self._num_steps += 1
        return result

    def _waits(self, result: Any) -> tuple[Any, Any]:  # noqa: ANN401 - a pytree
        """Returns what is there when the step just started has ended, and its number in a recording."""
        if isinstance(self._program, StagePrograms):
            return self._program.last_runs(), self._program.step_number
        state = set(self._traced.alias.values())  # the next step takes that
        return [leaf for number, leaf in enumerate(jax.tree.leaves(result)) if number not in state], None

    def _ended(self, number: int, start_s: float, waits: Any, recorded: int | None) -> None:  # noqa: ANN401 - arrays
        """Logs a step once it has ended, which it waits for."""
        with suppress(jax.errors.JaxRuntimeError, RuntimeError):  # the caller is told, where it reads the result
            jax.block_until_ready(waits)
            end_s = perf_counter()
            took_s, self._last_end_s = end_s - max(start_s, self._last_end_s), end_s
            recorder = self._program.recorder if isinstance(self._program, StagePrograms) else None
            self._log(number, took_s, None if recorder is None or recorded is None else recorder.taken(recorded))

    def _log(self, number: int, took_s: float, measured: Timeline | None) -> None:
        facts = self._plan.facts
        expected_s = facts.predicted.step_s
        rate = f", {self._examples / took_s:.4g} examples/s" if self._examples else ""
        for rank in self._ranks:
            idle = ""
            if measured is not None:
                share, predicted = 1 - measured.busy_s(rank) / took_s, 1 - self._busy_s[rank] / expected_s
                idle = f", {max(share, 0):.0%} idle ({predicted:.0%} predicted)"
            logger_of(rank).debug(
                "step %d: %s (%s predicted)%s%s, memory %s of %s",
                number,
                format_seconds(took_s),
                format_seconds(expected_s),
                rate,
                idle,
                format_bytes(self._memory_bytes(rank)),
                format_bytes(facts.predicted.budget_bytes),
            )

    def _memory_bytes(self, rank: int) -> int:
        """Returns the most that a device of a rank has held, or that its compiled programs take if no platform says."""
        stats = self._plan.ranks[rank].devices[0].memory_stats() or {}
        if peak := stats.get("peak_bytes_in_use"):
            return int(peak)
        if isinstance(self._program, StagePrograms):
            return self._program.rank_bytes()[rank]
        return self._compiled_bytes


def _each(given: SimpleQueue[Callable[[], None] | None]) -> None:
    """Calls one after the other, until there is None."""
    while (work := given.get()) is not None:
        work()
        del work


def _end(given: SimpleQueue[Callable[[], None] | None], thread: threading.Thread, recorder: Recorder | None) -> None:
    """Waits for the steps that were started: a thread that is inside XLA when Python ends aborts the process."""
    given.put(None)
    if thread is not threading.current_thread():  # which may have dropped the last reference to the program
        thread.join()
    if recorder is not None:
        recorder.close()


def num_examples(traced: Traced) -> int:
    """Returns how many examples a step takes: dim 0 of all its arrays that are no state; 0 where these differ."""
    sizes = {one.shape[0] for number, one in enumerate(traced.in_avals) if number not in traced.alias and one.shape}
    return sizes.pop() if len(sizes) == 1 else 0
