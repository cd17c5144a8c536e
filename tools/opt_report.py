"""What `rhino-opt` prints beside the IR.

It prints small tables of what a search did, and of the collectives of a local program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rhino.ir.graph.collective_stats import CollectiveStats
from rhino.ir.units import PEAK, format_bytes, format_seconds, peak_text
from rhino.strategies.solver.answer import Answer


def statistics_text(statistics: Mapping[str, Any]) -> str:
    """Returns the result, the search and the seconds of each phase from the passes' `statistics`, one figure a line."""
    rows: list[tuple[str, str]] = []
    answer = statistics.get("answer")
    if isinstance(answer, Answer):
        rows += [
            ("step", format_seconds(answer.cost)),
            ("step, at least", format_seconds(answer.bound)),
            (f"{PEAK}, device", format_bytes(answer.peak_bytes)),
            ("budget per device", format_bytes(statistics["budget_bytes"])),
        ]
    if "search" in statistics:
        rows += [(name.replace("_", " "), str(value)) for name, value in vars(statistics["search"]).items()]
    rows += [(f"time: {phase}", format_seconds(seconds)) for phase, seconds in statistics.get("phases", {}).items()]
    return (
        "\n".join(["statistics:", *(f"  {name:<20} {value:>12}" for name, value in rows)])
        if rows
        else "statistics: none"
    )


def summary_text(statistics: Mapping[str, Any]) -> str:
    """Returns in a line what a search has come to: the step, its bound, the memory, the mesh."""
    answer, mesh = statistics["answer"], statistics["target"].mesh
    axes = ", ".join(f"{name}={size}" for name, size in mesh.axes)
    seconds = f"step {format_seconds(answer.cost)}, at least {format_seconds(answer.bound)} (gap {answer.gap:.2%})"
    return f"rhino-opt: {seconds}; {peak_text(answer.peak_bytes, statistics['budget_bytes'])}; mesh {axes}"


def collectives_text(stats: CollectiveStats) -> str:
    """Returns the collectives of a local program by kind."""
    rows = stats.table().splitlines()
    return "\n".join(["collectives per step and device, in the local program:", *(f"  {row}" for row in rows)])
