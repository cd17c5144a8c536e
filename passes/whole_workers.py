"""Processes that evaluate shapes: each a Python of its own, which knows of its caller nothing but what it is sent.

Those of `multiprocessing` would not do. Whatever starts them, they run the caller's main module again before they work: a training script
that has no guard would train in each, and a notebook, a prompt or a script on stdin has no file to run.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rhino.passes.whole_search import Evaluator, Setup
from rhino.strategies.whole.base import Outcome, Shape

_SERVE: Final = """\
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from rhino.passes.whole_workers import serve
serve(int(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Worker:
    """A process, and this end of the line to it."""

    process: subprocess.Popen[bytes]
    line: Connection[Any, Any]

    def end(self) -> None:
        """Ends the process, whatever it is at."""
        self.line.close()
        self.process.terminate()
        self.process.wait()


class Workers:
    """Up to so many processes that evaluate shapes; with one, or where one of them dies (of lack of memory), this process does.

    To be closed.
    """

    def __init__(self, setup: Setup, num_processes: int) -> None:
        self.setup = setup
        self.local: Evaluator | None = None
        self.most = num_processes if num_processes > 1 and sys.executable else 0
        self.folder = TemporaryDirectory(prefix="rhino-") if self.most else None
        self.workers: list[_Worker] = []

    def evaluate(self, shapes: Sequence[Shape], cutoff_s: float = inf) -> list[Outcome]:
        """Returns the outcomes of shapes, in their order; a shape is cut off where it is proven to take no less than `cutoff_s`."""
        if self.most:
            try:
                return self._shared(shapes, cutoff_s)
            except (OSError, EOFError):
                self.most = 0
        self.local = self.local or Evaluator(self.setup)
        return [self.local.outcome(shape, cutoff_s) for shape in shapes]

    def close(self) -> None:
        """Ends the processes."""
        for worker in self.workers:
            worker.end()
        if self.folder is not None:
            self.folder.cleanup()

    def _shared(self, shapes: Sequence[Shape], cutoff_s: float) -> list[Outcome]:
        """Returns the outcomes of shapes, each evaluated by a process that is free. Raises OSError or EOFError where one is gone."""
        while len(self.workers) < min(self.most, len(shapes)):
            self._start()
        free = [worker.line for worker in self.workers]
        given: dict[Any, int] = {}
        found: dict[int, Outcome] = {}
        left = _scattered(shapes)
        while left or given:
            for line, number in zip(list(free), list(left), strict=False):
                line.send((shapes[number], cutoff_s))
                given[line] = number
                free.remove(line)
                left.remove(number)
            for ready in wait(list(given)):
                assert isinstance(ready, Connection)
                found[given.pop(ready)] = ready.recv()
                free.append(ready)
        return [found[number] for number in range(len(shapes))]

    def _start(self) -> None:
        assert self.folder is not None
        ours, theirs = Pipe()
        paths = json.dumps([str(path) for path in sys.path])
        command = [sys.executable, "-c", _SERVE, str(theirs.fileno()), paths]
        with theirs, _interrupts_held():
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.workers.append(_Worker(process, ours))
        ours.send((self.setup, Path(self.folder.name)))


def serve(descriptor: int) -> None:
    """In a worker process: evaluates what comes on the line of that number, until the line ends."""
    gc.disable()  # as in rhino-opt: much is made while planning, and hardly a cycle
    with Connection(descriptor) as line:
        try:
            evaluator = Evaluator(*line.recv())
            while True:
                line.send(evaluator.outcome(*line.recv()))
                gc.collect()  # what MLIR holds for the module of the shape
        except (OSError, EOFError):
            return  # who asked is gone


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """What is started within hears of no Ctrl-C, which is for the process that asked: that one ends the others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _scattered(shapes: Sequence[Shape]) -> list[int]:
    """Returns the shapes by number, those with one step before the choice of shardings far apart: the second finds what the first made."""
    seen: dict[tuple[int, float], int] = {}
    place = []
    for number, shape in enumerate(shapes):
        key = (shape.micro_batches, shape.keep)
        place.append((seen.get(key, 0), number))
        seen[key] = seen.get(key, 0) + 1
    return [number for _, number in sorted(place)]
