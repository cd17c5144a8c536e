"""Lines through measured times: a fixed time, and a rate.

What counts is how far a line is off as a share of the measured time, summed over all samples: small sizes count as
large ones do, and a sample that a disturbance has spoilt weighs no more than any other. Some line with the least sum
goes through two of the samples, or through one and the origin, or is a constant through one; there are few enough to
try them all. One sample alone is a rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from rhino.ir.cluster.hardware import Line

LEAST_S = 1e-9
"""No fixed time is less: a cluster's numbers are positive."""

_FASTEST = 1e18


@dataclass(frozen=True, slots=True)
class Fit:
    """A line, and by how much it is off the samples, as a share of their times: in the median, and at most."""

    line: Line
    median_error: float
    worst_error: float
    num_samples: int

    @property
    def text(self) -> str:
        """How good the line is, in words."""
        return (
            f"{self.num_samples} sizes, off by {self.median_error:.0%} in the median and {self.worst_error:.0%} at most"
        )


def fit_line(points: Sequence[tuple[float, float]]) -> Fit:
    """Returns the line through (work, seconds) with the least sum of relative errors, neither part of it negative.

    There must be at least one point.
    """
    best = min(_candidates(points), key=lambda line: (sum(errors(line, points)), line.fixed_s, line.per_s))
    found = errors(best, points)
    return Fit(best, median(found), max(found), len(points))


def errors(line: Line, points: Sequence[tuple[float, float]]) -> list[float]:
    """Returns how far a line is off each point, as a share of its seconds."""
    return [abs(line.seconds(work) - seconds) / seconds for work, seconds in points]


def _candidates(points: Sequence[tuple[float, float]]) -> list[Line]:
    lines = [Line(LEAST_S, work / seconds) for work, seconds in points if work > 0]
    lines += [Line(seconds, _FASTEST) for _, seconds in points if len(points) > 1]
    for (w0, s0), (w1, s1) in combinations(sorted(points), 2):
        if w1 > w0 and s1 > s0:
            per_s = (w1 - w0) / (s1 - s0)
            lines.append(Line(max(s0 - w0 / per_s, LEAST_S), per_s))
    return lines
