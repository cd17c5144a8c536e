"""Collectives by kind: how many, and their payload in bytes per device.

The same counts are taken of planned, localized and compiled programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rhino.ir.units import format_bytes

KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")


def payload_bytes(kind: str, local_in_bytes: int, local_out_bytes: int) -> int:
    """Returns the payload of one collective, in bytes per device: its result if it gathers, its operands if not."""
    assert kind in KINDS, kind
    return local_out_bytes if kind == "all_gather" else local_in_bytes


class Count(NamedTuple):
    """Collectives of one kind: how many run, and the sum of their payloads per device."""

    num: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CollectiveStats:
    """Collectives of a program by kind.

    `exact` is False where a loop's trip count is not a constant (its body counts once), or where branches differ (the
    one with the most bytes counts).
    """

    counts: Mapping[str, Count] = field(default_factory=dict)
    exact: bool = True

    @property
    def total(self) -> Count:
        """All kinds together."""
        return Count(
            sum(count.num for count in self.counts.values()), sum(count.num_bytes for count in self.counts.values())
        )

    @property
    def sent_bytes(self) -> int:
        """Bytes of the payloads on the wire, up to a factor (n - 1) / n.

        An all-reduce scatters and gathers, so it counts twice.
        """
        return self.total.num_bytes + self.counts.get("all_reduce", Count()).num_bytes

    def __add__(self, other: CollectiveStats) -> CollectiveStats:
        if other.exact and not other.counts:  # as of most ops
            return self
        counts = {}
        for kind in KINDS:
            a, b = self.counts.get(kind, Count()), other.counts.get(kind, Count())
            if a.num or b.num:
                counts[kind] = Count(a.num + b.num, a.num_bytes + b.num_bytes)
        return CollectiveStats(counts, self.exact and other.exact)

    def times(self, trips: int | None) -> CollectiveStats:
        """Returns the stats of a loop around this one; `trips` is None where nobody knows how often it runs."""
        if trips is None:
            return CollectiveStats(self.counts, self.exact and not self.counts)
        return CollectiveStats(
            {kind: Count(count.num * trips, count.num_bytes * trips) for kind, count in self.counts.items() if trips},
            self.exact,
        )

    def table(self) -> str:
        """Returns a line for each kind and one for the total: kind, number, bytes per device."""
        rows = [*self.counts.items(), ("total" if self.exact else "total (at least)", self.total)]
        return "\n".join(f"{name:<18} {count.num:>6} {format_bytes(count.num_bytes):>10}" for name, count in rows)


EMPTY: Final = CollectiveStats()


def one_collective(kind: str, num_bytes: int) -> CollectiveStats:
    """Returns the stats of a single collective of `num_bytes` payload."""
    return CollectiveStats({kind: Count(1, num_bytes)})


def one_of(branches: Sequence[CollectiveStats]) -> CollectiveStats:
    """Returns the stats of a choice between `branches`: the one with the most bytes, exact if they all agree."""
    largest = max(branches, key=lambda stats: stats.total.num_bytes, default=EMPTY)
    return CollectiveStats(largest.counts, all(stats == largest and stats.exact for stats in branches))
