"""When each rank runs what, simulated or measured; and as plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rhino.ir.plan.instructions import Phase, Task
from rhino.ir.units import format_seconds


@dataclass(frozen=True, slots=True)
class Span:
    """A rank runs a task from `start_s` to `end_s`, seconds from the start of the step."""

    rank: int
    task: Task
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class TransferSpan:
    """Transfer `uid` is under way from `start_s` to `end_s`, from `source_rank` to `target_rank`."""

    uid: int
    source_rank: int
    target_rank: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step in time: what runs, in any order of ranks but for each in the order of time, and what is moved."""

    num_ranks: int
    spans: tuple[Span, ...]
    moves: tuple[TransferSpan, ...] = ()

    @property
    def end_s(self) -> float:
        """When the last task or transfer ends."""
        return max([0.0, *(span.end_s for span in self.spans), *(move.end_s for move in self.moves)])

    def busy_s(self, rank: int) -> float:
        """How long a rank runs tasks."""
        return math.fsum(span.end_s - span.start_s for span in self.spans if span.rank == rank)

    def idle(self, rank: int) -> float:
        """The share of the step in which a rank runs nothing: its bubbles."""
        return 1 - self.busy_s(rank) / self.end_s if self.end_s else 0.0


_LETTERS: Final[dict[Phase, str]] = {
    "setup": "S",
    "forward": "F",
    "backward": "B",
    "input-gradient": "I",
    "weight-gradient": "W",
    "accumulate": "M",
    "apply": "A",
    "step": "T",
}


def render(timeline: Timeline, width: int = 160) -> str:
    """Returns the timeline as text, one row a rank.

    Time goes to the right in at most about `width` columns, with dots where the rank is idle.

    A task is its letter, its micro-batch and, where a rank holds several stages, a letter for the stage; "-" fills it
    up to its length. What is too short for its label is cut; what takes no time is left out.
    """
    spans = [span for span in timeline.spans if span.end_s > span.start_s]
    if not spans:
        return "nothing takes time\n"
    chunks = _chunks(spans)
    columns = _num_columns(spans, timeline.end_s, max(len(_label(span.task, chunks)) for span in spans), width)
    names = [f"rank {rank} " for rank in range(timeline.num_ranks)]
    lines = []
    for rank, name in enumerate(names):
        row = _row([span for span in spans if span.rank == rank], timeline.end_s, columns, chunks)
        lines.append(f"{name.ljust(len(names[-1]))}|{row}| {100 * timeline.idle(rank):.0f}% idle")
    used = [
        f"{letter} {phase}" for phase, letter in _LETTERS.items() if any(span.task.phase == phase for span in spans)
    ]
    stages = f", {_chunk_letter(0)} {_chunk_letter(1)} ...: the stages of a rank" if max(chunks.values()) else ""
    total = format_seconds(timeline.end_s)
    return "\n".join(
        [
            *lines,
            f"{total} in all, a column is {format_seconds(timeline.end_s / columns)}; {', '.join(used)}{stages}",
            "",
        ]
    )


def _chunks(spans: Sequence[Span]) -> dict[int, int]:
    """For each stage its number among those of its rank."""
    of_rank: dict[int, dict[int, None]] = {}
    for span in sorted(spans, key=lambda span: (span.rank, span.task.stage)):
        of_rank.setdefault(span.rank, {})[span.task.stage] = None
    return {stage: number for stages in of_rank.values() for number, stage in enumerate(stages)}


def _label(task: Task, chunks: dict[int, int]) -> str:
    stage = _chunk_letter(chunks[task.stage]) if max(chunks.values()) else ""
    return f"{_LETTERS[task.phase]}{'' if task.micro_batch is None else task.micro_batch}{stage}"


def _chunk_letter(chunk: int) -> str:
    return chr(ord("a") + chunk % 26)


def _num_columns(spans: Sequence[Span], end_s: float, label: int, width: int) -> int:
    """Number of columns that gives the shortest task of a micro-batch room for the longest label and a gap.

    It is at most `width`, and that where micro-batches have no tasks of their own, but replicas go through them.
    """
    if any(span.task.phase == "accumulate" for span in spans):
        return width
    shortest_s = min([span.end_s - span.start_s for span in spans if span.task.micro_batch is not None] or [end_s])
    return max(1, min(width, math.ceil(end_s / shortest_s * (label + 1) - 1e-6)))


def _row(spans: Sequence[Span], end_s: float, columns: int, chunks: dict[int, int]) -> str:
    cells = ["."] * columns
    for span in spans:
        start, end = (round(time_s / end_s * columns) for time_s in (span.start_s, span.end_s))
        text = _label(span.task, chunks)[: max(end - start - 1, 1)]
        cells[start:end] = [*text.ljust(max(end - start - 1, 0), "-"), " "][: end - start]
    return "".join(cells)
