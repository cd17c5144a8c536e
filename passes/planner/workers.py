"""Processes that evaluate configurations: each a Python of its own, which knows only what it is sent.

Those of `multiprocessing` would not do. Whatever starts them, they run the caller's main module again before they work:
a training script that has no guard would train in each, and a notebook, a prompt or a script on stdin has no file to
run.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.step_programs import MOST_OPS
from rhino.strategies.autotune.base import ROUND, Found, Look, Outcome, PlanConfig, Screening

_SERVE: Final = """\
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from rhino.passes.planner.workers import serve
serve(int(sys.argv[1]))
"""


MOST_PROCESSES: Final = 2 * ROUND
"""How many processes there are at most: a round, and as many to begin with what is foreseen.

Each has the steps that it has read.
"""

COLLECTED: Final = MOST_OPS // 4
"""After how many ops that were read garbage is collected.

There is little of it, and to look for it after each step takes long.
"""

Asked: TypeAlias = PlanConfig | Screening | Look
"""What is asked for."""

Request: TypeAlias = tuple[Asked, float]
"""A configuration, and the seconds that cut it off: all that its outcome depends on. Or a screening, and the same."""


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, this end of the line to it, and what it is at."""

    process: subprocess.Popen[bytes]
    line: Connection[Any, Any]
    request: Request | None = None
    has_read: set[tuple[int, float]] = field(default_factory=set)
    """The steps that the process had to read."""

    has_screened: set[tuple[int, float]] = field(default_factory=set)
    """The steps that the process has screened, which is mostly to shard them."""

    def send(self, request: Request) -> None:
        """Has the process evaluate a configuration."""
        self.line.send(request)
        self.request = request
        (self.has_screened if isinstance(request[0], Screening) else self.has_read).add(_step_of(request))

    def answer(self) -> tuple[Request, Any]:
        """Returns what was asked last, and what that comes to."""
        request, self.request = self.request, None
        assert request is not None, "nothing comes that was not asked for"
        return request, self.line.recv()

    def end(self) -> None:
        """Ends the process, whatever it is at."""
        self.line.close()
        self.process.terminate()
        self.process.wait()


class Workers:
    """Up to so many processes that evaluate configurations.

    With one, or if one of them dies (of lack of memory), this process evaluates them itself. The processes start at
    once, and get `setup`, which may be set until then, with their first request. They have to be closed.
    """

    def __init__(self, setup: Setup, num_processes: int) -> None:
        self.setup = setup
        self.local: Evaluator | None = None
        self.most = min(num_processes, MOST_PROCESSES) if num_processes > 1 and sys.executable else 0
        self.folder = TemporaryDirectory(prefix="rhino-") if self.most else None
        self.workers: list[_Worker] = []
        self.have_setup = False
        self.foreseen: Iterable[PlanConfig] = ()
        self.early: dict[Request, Any] = {}
        """What came of configurations that were not asked for yet."""

        try:
            for _ in range(self.most):
                self.workers.append(_started())
        except OSError:
            self.most = 0

    def foresee(self, configs: Iterable[PlanConfig]) -> None:
        """Takes configurations that are likely to be requested after those of the next round.

        Idle processes begin with them.
        """
        self.foreseen = configs

    def evaluate(self, configs: Sequence[PlanConfig], cutoff_s: float = inf) -> list[Outcome]:
        """Returns the outcomes of configurations, in their order.

        A configuration is cut off once it is proven to take at least `cutoff_s`.
        """
        found: list[Outcome] = self._answers(configs, cutoff_s)
        return found

    def screen(self, requests: Sequence[Screening], cutoff_s: float = inf) -> list[Found]:
        """Returns what each screening finds that takes less than `cutoff_s`.

        Meanwhile nothing is begun that is foreseen: its outcome would be of no use where something better is found.
        """
        self.foreseen = ()
        found: list[Found] = self._answers(requests, cutoff_s)
        return found

    def look(self, configs: Sequence[PlanConfig]) -> list[float]:
        """Returns about what configurations take, 0 for those that have to be planned to tell."""
        self.foreseen = ()
        found: list[float] = self._answers([Look(one) for one in configs], inf)
        return found

    def _answers(self, asked: Sequence[Asked], cutoff_s: float) -> list[Any]:
        if self.most:
            try:
                return self._shared(asked, cutoff_s)
            except (OSError, EOFError):
                self.most = 0
        self.local = self.local or Evaluator(self.setup)
        return [self.local.answer(one, cutoff_s) for one in asked]

    def close(self) -> None:
        """Ends the processes."""
        for worker in self.workers:
            worker.end()
        if self.folder is not None:
            self.folder.cleanup()

    def _shared(self, asked: Sequence[Asked], cutoff_s: float) -> list[Any]:
        """Returns what becomes of configurations and screenings, each evaluated by a process that is free.

        Raises OSError or EOFError where one is gone.
        """
        self._send_setup()
        requests: list[Request] = [(one, cutoff_s) for one in asked]
        found = {one: self.early[one] for one in requests if one in self.early}
        while len(found) < len(requests):
            waiting = [one for one in requests if one not in found]
            for worker in self.workers:
                if worker.request is None and (one := self._next(worker, waiting, cutoff_s)) is not None:
                    worker.send(one)
            busy = {worker.line: worker for worker in self.workers if worker.request is not None}
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                one, outcome = busy[ready].answer()
                (found if one in requests else self.early)[one] = outcome
        return [found[one] for one in requests]

    def _next(self, free: _Worker, waiting: Sequence[Request], cutoff_s: float) -> Request | None:
        """Returns what a process does next.

        Among waiting configurations it prefers those whose step it has read, and takes those whose step another process
        has read last. What is screened again waits for the process that has screened it. If none waits, it takes a
        foreseen configuration with no outcome yet, first one whose step it has read; its outcome is of use while the
        cutoff is the same. For other foreseen configurations it makes and reads the step, and no more: a process must
        not spend long on what may be in vain.
        """
        at = [worker.request for worker in self.workers if worker.request is not None]
        others = [worker for worker in self.workers if worker is not free]
        read_by_others = {step for worker in others for step in worker.has_read}
        screened_by_others = {step for worker in others for step in worker.has_screened} - free.has_screened

        def turn(one: Request) -> int:
            return 0 if _step_of(one) in free.has_read else 2 if _step_of(one) in read_by_others else 1

        open_ = [
            one
            for one in waiting
            if one not in at and not (isinstance(one[0], Screening) and _step_of(one) in screened_by_others)
        ]
        for one in sorted(open_, key=turn):
            return one
        self.foreseen = tuple(self.foreseen)
        running = [config for config, _ in at]
        new = [
            (config, cutoff_s)
            for config in self.foreseen
            if config not in running and (config, cutoff_s) not in self.early
        ]
        for one in sorted(new, key=turn):
            if turn(one) > 0:
                return one[0], 0.0
            if cutoff_s < inf:
                return one
        return None

    def _send_setup(self) -> None:
        """Tells the processes what configurations are evaluated for."""
        if not self.have_setup:
            assert self.folder is not None
            for worker in self.workers:
                worker.line.send((self.setup, Path(self.folder.name)))
            self.have_setup = True


def _started() -> _Worker:
    ours, theirs = Pipe()
    paths = json.dumps([str(path) for path in sys.path])
    command = [sys.executable, "-c", _SERVE, str(theirs.fileno()), paths]
    with theirs, _interrupts_blocked():
        process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
    return _Worker(process, ours)


def serve(descriptor: int) -> None:
    """In a worker process: evaluates what comes on the line of that number, until the line ends."""
    gc.disable()  # as in rhino-opt: much is made while planning, and hardly a cycle
    gc.freeze()  # what is imported stays
    with Connection(descriptor) as line:
        try:
            evaluator, collected = Evaluator(*line.recv()), 0
            while True:
                line.send(evaluator.answer(*line.recv()))
                if evaluator.steps.ops_read >= collected + COLLECTED:
                    gc.collect()  # what MLIR holds for modules that are gone
                    collected = evaluator.steps.ops_read
        except (OSError, EOFError):
            return  # who asked is gone


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """What is started within hears of no Ctrl-C, which is for the process that asked: that one ends the others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _step_of(request: Request) -> tuple[int, float]:
    """Returns what the step depends on that shardings are chosen for."""
    return request[0].micro_batches, request[0].remat
