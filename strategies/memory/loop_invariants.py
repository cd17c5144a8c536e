"""What is the same each time round a loop, and computed before it by compilers that do so.

XLA moves it out of the loop for host devices (`WhileLoopInvariantCodeMotion`): gathers of weights, above all, where a
loop runs over micro-batches. Such a value lies in memory as long as the loop runs. What takes no arithmetic is moved
for others alone. For GPUs it leaves in a loop what that gathers.
"""

from __future__ import annotations

from typing import Final

from rhino.ir.graph.graph import FORWARDS_OPERANDS, REPEATS, Graph, Loop

_STAYS: Final = REPEATS | {
    f"stablehlo.{name}" for name in ("constant", "iota", "reshape", "reverse", "slice", "transpose")
}
"""Ops that are moved for others alone (`NotWorthHoistingIndividually`)."""


def loop_invariants(graph: Graph) -> dict[int, Loop]:
    """Returns the values that are computed before a loop and lie in memory while it runs, with the outermost one."""
    found: dict[int, Loop] = {}
    for loop in graph.loops:  # inner loops come after the outer one
        if loop.trips != 1:
            found = {**dict.fromkeys(_invariants(graph, loop), loop), **found}
    return found


def _invariants(graph: Graph, loop: Loop) -> list[int]:
    """Returns what a loop's body computes from what the loop does not change, and reads where it is another thing."""
    maker: list[int] = graph.value_op.tolist()
    came = {value for value, kept in zip(graph.results(loop.op), loop.kept, strict=True) if kept}
    alike: set[int] = set()
    read: dict[int, None] = {}
    for op in range(loop.op + 1, loop.end + 1):
        cls, operands = graph.cls(op), graph.operands(op).tolist()
        if cls.name not in FORWARDS_OPERANDS and all(
            v in came or maker[v] < loop.op or maker[v] in alike for v in operands
        ):
            alike.add(op)
        if op not in alike or cls.name in _STAYS:
            read |= dict.fromkeys(operands)
    return [
        v for v in read if maker[v] in alike and graph.cls(maker[v]).name not in _STAYS and not graph.cls(maker[v]).free
    ]
