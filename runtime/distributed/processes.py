"""The processes of a run, and which ranks each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Team:
    """The processes of a run, by number, and the ranks that each holds; none where that differs from step to step.

    Several processes may hold one rank, each some of its devices.
    """

    ranks: tuple[tuple[int, ...], ...]

    def of_devices(self, meshes: Sequence[Mesh]) -> tuple[tuple[int, ...], ...]:
        """Returns the process of each device of ranks of these meshes [ranks][devices], each held by one process."""
        holder = {rank: process for process, ranks in enumerate(self.ranks) for rank in ranks}
        return tuple([(holder[rank],) * mesh.num_devices for rank, mesh in enumerate(meshes)])

    def name(self, process: int) -> str:
        """Returns a process in words."""
        ranks = self.ranks[process]
        if not ranks:
            return f"process {process}"
        return f"process {process} (rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))})"


def share_ranks(sizes: Sequence[int], num_processes: int) -> Team:
    """Returns ranks of `sizes` devices [ranks] dealt to processes in rows, with as few devices to a process as can be.

    The first processes have one rank more where equal ranks do not divide evenly, and as many unlike ones as they may.

    Raises:
        RhinoError: RHI-RUN-004 where a process would have none.
    """
    num_ranks = len(sizes)
    if not 1 <= num_processes <= num_ranks:
        raise RhinoError(
            "RHI-RUN-004", f"{num_processes} processes cannot share {num_ranks} ranks", fix="give each process a rank"
        )
    if len(set(sizes)) > 1:
        ends = list(accumulate(sizes))
        totals = sorted({end - start for start in [0, *ends] for end in ends if end > start})
        rows = next(found for most in totals if (found := _rows(sizes, num_processes, most)))
        return Team(rows)
    size, rest = divmod(num_ranks, num_processes)
    starts = [size * process + min(process, rest) for process in range(num_processes + 1)]
    return Team(tuple(tuple(range(starts[i], starts[i + 1])) for i in range(num_processes)))


def _rows(sizes: Sequence[int], num_processes: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Returns ranks dealt in rows of at most so many devices, each row as long as it may; nothing where they are more.

    Each process gets a rank.
    """
    rows, start = [], 0
    for process in range(num_processes):
        left = num_processes - process - 1
        fit = [end for end in range(start + 1, len(sizes) - left + 1) if sum(sizes[start:end]) <= most]
        if not fit:
            return ()
        rows.append(tuple(range(start, fit[-1])))
        start = fit[-1]
    return tuple(rows) if start == len(sizes) else ()
