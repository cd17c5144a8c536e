"""Arguments that lie in host memory between steps, and on the device only while they are updated.

Moments of optimizers, and weights of more bits beside those that a step computes with, are read by their update alone:
nothing is given but by way of other updated arguments. So they can wait in host memory while the forward and the
backward pass run. One is brought to the device before what reads it first, and its next value is brought back once it
is made. Whether that is worth the time of the way is for the search to say; here is what may wait, and what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rhino.ir.graph.graph import BARRIER, DEVICE, HOST, WHILE, Graph
from rhino.strategies.structure.loop_nesting import regions

EITHER: Final = (DEVICE, HOST)
"""The memories between which the search may choose."""


def with_host_choice(graph: Graph, barred: Sequence[int] = ()) -> Graph:
    """Returns a graph whose arguments may lie in host memory where they can, but for those `barred`.

    Of those that lie there anyway nothing is left to choose.
    """
    free = waiting_arguments(graph) - set(barred)
    arguments = [
        replace(one, memories=EITHER) if number in free and one.memories == (DEVICE,) else one
        for number, one in enumerate(graph.arguments)
    ]
    return replace(graph, arguments=tuple(arguments))


def on_host(graph: Graph) -> tuple[int, ...]:
    """Returns the arguments that lie in host memory, whatever is chosen."""
    return tuple([number for number, one in enumerate(graph.arguments) if one.memories == (HOST,)])


def waiting_arguments(graph: Graph) -> frozenset[int]:
    """Returns the arguments that only their update reads.

    Results take over their buffers, each one's own, made outside of loops by an op that is no constant; and nothing
    else that the step gives follows from them.
    """
    region = regions(graph)
    home: list[int] = graph.value_op.tolist()
    read_outside = [True] * len(graph.arguments)
    for op in range(graph.num_ops):
        if region[op] >= 0 or graph.cls(op).name in (WHILE, BARRIER):
            for value in graph.operands(op).tolist():
                if value < len(read_outside):
                    read_outside[value] = False
    needed = _needed(graph, [value for n, value in enumerate(graph.returns) if n not in _updates(graph)])
    found = []
    for number, one in enumerate(graph.arguments):
        if one.alias is None or not graph.type_of(number).shape or not read_outside[number] or number in needed:
            continue
        value = graph.returns[one.alias]
        maker = home[value]
        is_made = maker >= 0 and not graph.cls(maker).free and graph.cls(maker).name not in (WHILE, BARRIER)
        if is_made and graph.returns.count(value) == 1:
            found.append(number)
    return frozenset(found)


def _updates(graph: Graph) -> frozenset[int]:
    """Returns the results that take over an argument's buffer."""
    return frozenset([one.alias for one in graph.arguments if one.alias is not None])


def _needed(graph: Graph, targets: list[int]) -> set[int]:
    """Returns the values from which `targets` follow, and these."""
    ends = {loop.op: loop.end for loop in graph.loops}
    found, waiting = set(targets), list(targets)
    seen = set[int]()
    while waiting:
        op = int(graph.value_op[waiting.pop()])
        if op < 0 or op in seen:
            continue
        seen.add(op)
        read = graph.operands(op).tolist() + (graph.operands(ends[op]).tolist() if op in ends else [])
        new = [value for value in read if value not in found]
        found.update(new)
        waiting += new
    return found
