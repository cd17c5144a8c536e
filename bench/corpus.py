"""Plan programs that others wrote, and say which ended in an answer, in a refusal, or in neither.

    python bench/corpus.py FOLDER... [--cluster=cpu8] [--limit=60] [--jobs=2] [--shown=20]

Takes all .mlir files of the folders, cut at lines `// -----`. Where a part has several public functions, each is the
entry in turn. Every entry goes through `rhino-opt --auto-shard`, and again with `--localize`, in a worker process; one
that dies, or takes longer than the limit (seconds of the wall), is ended, named, and replaced.

    answer      exit code 0
    refusal     an error with its id; how many of each id, and how many without a line
    traceback   exit code 70
    signal      the process ended
    too long    the limit passed

Exit code: 1 if there is any of the last three.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.mlir.bindings import func, ir, make_context
from rhino.ir.mlir.reader import functions_of, read_module
from rhino.tools.opt import run as run_opt
from rhino.tools.opt import split_input

FAULTS: Final = ("traceback", "signal", "too long")
KINDS: Final = ("answer", "refusal", *FAULTS)
_ERROR: Final = re.compile(r"^(?P<place>.*?)error: \[(?P<id>RHI-[A-Z]+-\d+)\]", re.MULTILINE)
_LINE: Final = re.compile(r":\d+:\d+: $")
_FORMS: Final[tuple[tuple[str, ...], ...]] = ((), ("--localize",))


@dataclass(frozen=True, slots=True)
class Job:
    """A part of a file, and which of its runs come next."""

    file: str
    number: int
    text: bytes
    first: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended.

    `kind` is one of `KINDS`; `what` is the error's id, or the last line of the output. `is_placed` tells whether the
    error names a line.
    """

    kind: str
    what: str = ""
    is_placed: bool = True
    spent_s: float = 0.0


@dataclass
class Report:
    """All outcomes, by the folder that a file was found in."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    num_unplaced: int = 0
    faults: list[str] = field(default_factory=list)
    longest: tuple[float, str] = (0.0, "")

    def add(self, folder: str, label: str, outcome: Outcome) -> None:
        """Notes how a run ended."""
        self.counts.setdefault(folder, Counter())[outcome.kind] += 1
        if outcome.kind == "refusal":
            self.refusals[outcome.what] += 1
            self.num_unplaced += not outcome.is_placed
        elif outcome.kind in FAULTS:
            self.faults.append(f"{outcome.kind}: {label}: {outcome.what}")
        self.longest = max(self.longest, (outcome.spent_s, label))

    def render(self) -> str:
        """Returns the tables."""
        lines = [["folder", *KINDS], ["---", *["---:"] * len(KINDS)]]
        lines += [[folder, *(f"{count[kind]:,}" for kind in KINDS)] for folder, count in self.counts.items()]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        ids = ", ".join(f"{id} {count:,}" for id, count in self.refusals.most_common())
        longest, label = self.longest
        return (
            f"{table}\n\nrefusals: {ids or 'none'}; {self.num_unplaced:,} of them without a line\n"
            f"longest: {longest:.1f} s, {label}"
        )


def parts_of(folder: Path) -> Iterator[Job]:
    """Yields the parts of all files of a folder, in the order of their names."""
    for file in sorted(folder.rglob("*.mlir")):
        for number, text in enumerate(split_input(file.read_bytes())):
            yield Job(str(file), number, text)


def entries(text: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the programs of a part: itself, or a copy for each public function with a body, which is its entry."""
    try:
        module = read_module(text, "-", make_context())
    except RhinoError:
        module = None
    public = [] if module is None else [f for f in functions_of(module) if not f.is_external and _is_public(f)]
    if module is None or len(public) < 2:
        yield "", text
        return
    with module.context:
        for entry in public:
            for function in public:
                function.attributes["sym_visibility"] = ir.StringAttr.get("public" if function == entry else "private")
            yield f" @{entry.name.value}", str(module).encode()


def _is_public(function: func.FuncOp) -> bool:
    attributes = function.operation.attributes
    return "sym_visibility" not in attributes or ir.StringAttr(attributes["sym_visibility"]).value == "public"


def outcome_of(text: bytes, words: Sequence[str]) -> Outcome:
    """Returns how `rhino-opt` ends with these words on a program."""
    stdout, stderr, since = io.BytesIO(), io.StringIO(), time.perf_counter()
    code = run_opt([*words, "-"], io.BytesIO(text), stdout, stderr)
    spent_s, said = time.perf_counter() - since, stderr.getvalue()
    if code == ExitCode.OK:
        return Outcome("answer", spent_s=spent_s)
    found = _ERROR.search(said)
    if code == ExitCode.BUG or found is None:
        told = [line for line in said.splitlines() if line and not line.startswith(" ")]
        return Outcome("traceback", " | ".join(told[-3:]), spent_s=spent_s)
    return Outcome("refusal", found["id"], bool(_LINE.search(found["place"])), spent_s)


def work(connection: Connection, cluster: str) -> None:
    """Runs the parts that come, and says of each run that it begins, and how it ended.

    A number alone says that a part is done.
    """
    while True:
        job: Job = connection.recv()
        count = 0
        for name, text in entries(job.text):
            for form in _FORMS:
                if count >= job.first:
                    connection.send((count, f"{name} {' '.join(form)}".rstrip()))
                    connection.send(outcome_of(text, ("--auto-shard", f"--cluster={cluster}", *form)))
                count += 1
        connection.send(count)


class Worker:
    """A process, the part that it is at, and since when it has said nothing."""

    def __init__(self, cluster: str) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, cluster), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.at, self.label, self.since = -1, "", 0.0

    def give(self, job: Job) -> None:
        """Sends a part."""
        self.job, self.at, self.label, self.since = job, job.first - 1, " (reading)", time.monotonic()
        self.connection.send(job)

    def end(self) -> int:
        """Ends the process, and returns its exit code: the negative signal, if one ended it before."""
        if self.process.is_alive():
            self.process.join(1)
        self.process.kill()
        self.process.join()
        return self.process.exitcode or 0


class Corpus:
    """The run over all parts, by several workers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.report = options, Report()
        self.waiting = deque((str(folder), job) for folder in options.folders for job in parts_of(folder))
        self.folder: dict[str, str] = {job.file: folder for folder, job in self.waiting}
        self.workers: list[Worker] = []

    def run(self) -> Report:
        """Runs all, and returns what became of them."""
        self.workers = [Worker(self.options.cluster) for _ in range(self.options.jobs)]
        while True:
            for worker in self.workers:
                if worker.job is None and self.waiting:
                    worker.give(self.waiting.popleft()[1])
            busy = {worker.connection: worker for worker in self.workers if worker.job is not None}
            if not busy:
                break
            for ready in wait(list(busy), timeout=1):
                self.hear(busy[ready])  # type: ignore[index]
            for worker in busy.values():
                if worker.job is not None and time.monotonic() - worker.since > self.options.limit:
                    worker.process.kill()
                    self.replace(
                        worker, Outcome("too long", f"{self.options.limit} s passed", spent_s=self.options.limit)
                    )
        for worker in self.workers:
            worker.process.kill()
        return self.report

    def hear(self, worker: Worker) -> None:
        """Takes up what a worker says, or that it is gone."""
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            self.replace(worker, Outcome("signal", f"the process ended with {worker.end()}"))
            return
        worker.since = time.monotonic()
        if isinstance(said, Outcome):
            self.note(worker, said)
        elif isinstance(said, int):
            worker.job = None
        else:
            worker.at, worker.label = said

    def note(self, worker: Worker, outcome: Outcome) -> None:
        """Reports an outcome of what a worker is at."""
        job = worker.job
        assert job is not None
        self.report.add(self.folder[job.file], f"{job.file} part {job.number}{worker.label}", outcome)

    def replace(self, worker: Worker, outcome: Outcome) -> None:
        """Notes what a worker died of, and lets a new one go on behind it."""
        job, at = worker.job, worker.at
        assert job is not None
        self.note(worker, outcome)
        worker.end()
        fresh = self.workers[self.workers.index(worker)] = Worker(self.options.cluster)
        if at >= job.first:  # or it died of reading the part: nothing of it can be run
            fresh.give(Job(job.file, job.number, job.text, at + 1))


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--cluster", default="cpu8", help="what to plan for (default cpu8)")
    parser.add_argument("--limit", type=float, default=60, help="seconds for a run (default 60)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--shown", type=int, default=20, help="faults that are named (default 20)")
    options = parser.parse_args(argv)
    report = Corpus(options).run()
    print(report.render())
    for line in report.faults[: options.shown]:
        print(line)
    return int(bool(report.faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
