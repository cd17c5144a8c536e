"""What `rhino-opt` prints beside the IR.

It prints small tables of what a search did, and of the collectives of a local program.
"""

from __future__ import annotations

from rhino.ir.graph.collective_stats import CollectiveStats
from rhino.ir.program.local_rules import CUSTOM_CALL
from rhino.ir.units import PEAK, format_bytes, format_seconds, peak_text
from rhino.passes.base import Remarks
from rhino.passes.planner.choose_layouts import LayoutChoice
from rhino.passes.sharding.choose_shardings import PhaseTimes, ShardingChoice
from rhino.strategies.cost.candidates import REPLICATE


def statistics_text(remarks: Remarks) -> str:
    """Returns the result, the search and the seconds of each phase that passes recorded, one figure a line."""
    rows: list[tuple[str, str]] = []
    if chosen := remarks.find(ShardingChoice):
        answer = chosen.answer
        rows += [
            ("step", format_seconds(answer.cost)),
            ("step, at least", format_seconds(answer.bound)),
            (f"{PEAK}, device", format_bytes(answer.peak_bytes)),
            ("budget per device", format_bytes(chosen.budget_bytes)),
        ]
        rows += [(name.replace("_", " "), str(value)) for name, value in vars(chosen.solver.statistics).items()]
    if times := remarks.find(PhaseTimes):
        rows += [(f"time: {phase}", format_seconds(seconds)) for phase, seconds in times.seconds.items()]
    lines = [f"  {name:<20} {value:>12}" for name, value in rows]
    return "\n".join(["statistics:", *lines]) if rows else "statistics: none"


def summary_text(chosen: ShardingChoice, layout: LayoutChoice | None = None) -> str:
    """Returns in a line what a search has come to: the step, its bound, the memory, the mesh, and what is in blocks."""
    answer = chosen.answer
    axes = ", ".join(f"{name}={size}" for name, size in chosen.target.mesh.axes)
    seconds = f"step {format_seconds(answer.cost)}, at least {format_seconds(answer.bound)} (gap {answer.gap:.2%})"
    blocks = ""
    if layout is not None and layout.views:
        count, without_s = (
            sum(value < len(chosen.program.graph.arguments) for value in layout.views),
            layout.other.step_s,
        )
        without = "" if without_s is None else f" ({format_seconds(without_s)} without)"
        blocks = f"; blocks in {count} argument{'s' if count != 1 else ''}{without}"
    return f"rhino-opt: {seconds}; {peak_text(answer.peak_bytes, chosen.budget_bytes)}; mesh {axes}{blocks}"


def split_calls_text(chosen: ShardingChoice) -> str:
    """Returns a line on custom calls that are split, of which the annotated module tells XLA nothing; else nothing."""
    graph = chosen.program.graph
    count = sum(
        graph.classes[kind].name == CUSTOM_CALL and max(state.strategy, default=REPLICATE) >= 0
        for kind, state in zip(graph.op_class.tolist(), chosen.plan.ops, strict=True)
    )
    if not count:
        return ""
    calls = f"{count} custom calls are" if count > 1 else "1 custom call is"
    return f"rhino-opt: {calls} split, before which XLA's partitioner would gather: run the local program (--localize)"


def collectives_text(stats: CollectiveStats) -> str:
    """Returns the collectives of a local program by kind."""
    rows = stats.table().splitlines()
    return "\n".join(["collectives per step and device, in the local program:", *(f"  {row}" for row in rows)])
