"""Say who waits for what when a step makes no progress, and end the process.

Progress is an instruction that is dispatched or a program that ends. A thread looks at the first now and then, which
costs the step nothing; only when dispatch has stood still for a while does it look at programs, by waiting for each in
turn.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Copy, Receive, Run
from rhino.runtime.distributed.processes import ProcessJob, end_process
from rhino.runtime.executor.executor import Executor, Progress, describe

_REPORT_LIMIT_S: Final = 5.0
_STALL: Final = "stall"
_FIX: Final = "see what the first waiting rank waits for; if it is only slow, raise --stall-limit"


@dataclass(slots=True, eq=False)
class _Ends:
    """Waits for the programs of a step in threads, one for each rank: `ended[rank]` counts those that have."""

    runs: dict[int, list[tuple[int, Any]]]
    ended: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        for rank, runs in self.runs.items():
            self.ended[rank] = 0
            threading.Thread(target=self._wait, args=(rank, runs), name=f"rhino-ends-{rank}", daemon=True).start()

    def open_runs(self) -> dict[int, int]:
        """The place of the first program of each rank that has not ended."""
        return {rank: runs[self.ended[rank]][0] for rank, runs in self.runs.items() if self.ended[rank] < len(runs)}

    def _wait(self, rank: int, runs: Sequence[tuple[int, Any]]) -> None:
        for _, token in runs:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # that one failed is the executor's to say
                token.block_until_ready()
            self.ended[rank] += 1


class Watchdog:
    """Watches an executor until it is closed; with a `job`, in each of its processes, one report tells of all."""

    def __init__(
        self,
        executor: Executor,
        limit_s: float,
        job: ProcessJob | None = None,
        leave: Callable[[RhinoError], None] | None = None,
    ) -> None:
        """Starts to watch an executor; `leave` is called with RHI-RUN-008 after `limit_s` without progress.

        If `leave` is None, the error is printed and the process ends.
        """
        self._executor = executor
        self._limit_s = limit_s
        self._job = job
        self._leave = leave or end_process
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rhino-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self) -> None:
        seen: Progress | None = None
        ended: dict[int, int] = {}
        ends: _Ends | None = None
        since_s = time.monotonic()
        while not self._closed.wait(min(1.0, self._limit_s / 8)):
            now_s, progress = time.monotonic(), self._executor.progress()
            if progress != seen:
                seen, ends, since_s = progress, None, now_s
            elif ends is None and now_s - since_s >= self._limit_s / 4:
                ends = _Ends(self._executor.launched())
                ends.start()
            elif ends is not None and (ends.ended != ended or not (progress.running or ends.open_runs())):
                ended, since_s = dict(ends.ended), now_s
            if self._job is not None and self._job.peek(_STALL) is not None:
                self._answer(ends)
                return
            if ends is not None and now_s - since_s >= self._limit_s:
                self._stall(ends)
                return

    def _report(self, ends: _Ends | None) -> list[str]:
        if ends is None:
            ends = _Ends(self._executor.launched())
            ends.start()
            time.sleep(_REPORT_LIMIT_S / 10)  # for those that have ended to be counted
        name = self._job.team.name(self._job.process) if self._job else "this process"
        return [f"{name}: {line}" for line in report(self._executor, ends.open_runs())]

    def _stall(self, ends: _Ends) -> None:
        """Asks all for a report, and leaves with all of them; if another process asks, answers."""
        lines = self._report(ends)
        if self._job is not None:
            try:
                self._job.publish(_STALL, str(self._job.process))
            except jax.errors.JaxRuntimeError:
                self._answer(ends)
                return
            for process in range(len(self._job.team.ranks)):
                if process != self._job.process:
                    lines += self._report_of(self._job, process)
        self._leave(
            RhinoError(
                "RHI-RUN-008",
                f"the step has made no progress for {self._limit_s:.0f} s",
                notes=tuple(lines),
                fix=_FIX,
            )
        )

    def _report_of(self, job: ProcessJob, process: int) -> list[str]:
        try:
            return job.lookup(f"report/{process}", _REPORT_LIMIT_S).splitlines()
        except RhinoError:
            return [f"{job.team.name(process)}: gives no report"]

    def _answer(self, ends: _Ends | None) -> None:
        """Reports to the process that asked, and leaves after it."""
        assert self._job is not None
        lines = self._report(ends)
        self._job.publish(f"report/{self._job.process}", "\n".join(lines))
        caller = int(self._job.lookup(_STALL))
        self._closed.wait(2 * _REPORT_LIMIT_S)
        self._leave(
            RhinoError(
                "RHI-RUN-008",
                f"the step makes no progress, as {self._job.team.name(caller)} reports",
                notes=tuple(lines),
                fix=_FIX,
            )
        )


def report(executor: Executor, open_runs: dict[int, int]) -> list[str]:
    """Returns, a line each, where an executor's dispatch is, and which program of each rank has not ended.

    `open_runs` is the first such program's place in the list, by rank.
    """
    progress = executor.progress()
    lines = []
    if not progress.running:
        lines.append(
            f"all of step {progress.step} is dispatched"
            if open_runs
            else f"between steps, {progress.step + 1} are done"
        )
    for place in progress.places:
        if progress.running and place is not None:
            what = describe(executor.part, executor.instructions[place])
            lines.append(
                f"step {progress.step}: dispatch is at instruction {place} of {len(executor.instructions)}, {what}"
            )
    for rank, place in sorted(open_runs.items()):
        waits = [describe(executor.part, one) for one in _incoming(executor, place)]
        after = f", which takes {' and '.join(waits)}" if waits else ""
        lines.append(f"rank {rank} has not ended {describe(executor.part, executor.instructions[place])}{after}")
    return lines


def _incoming(executor: Executor, place: int) -> list[Copy | Receive]:
    """The transfers that a run at `place` takes."""
    run = executor.instructions[place]
    assert isinstance(run, Run)
    moves = [one for one in executor.instructions[:place] if isinstance(one, Copy | Receive)]
    return [one for one in moves if one.target in run.inputs]
