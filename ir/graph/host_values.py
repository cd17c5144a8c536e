"""Which values of a program lie in host memory while it runs."""

from __future__ import annotations

from rhino.ir.graph.graph import BARRIER, DEVICE, HOST, UPDATES, WHILE, YIELD, Graph

_PARTS = frozenset({"stablehlo.dynamic_slice", "stablehlo.slice"})


def values_on_host(graph: Graph) -> frozenset[int]:
    """Returns the values that lie in host memory: what is moved there, until it is moved to the device.

    A view or a part of such a value does, and so does what such values are written into: the stack that a loop makes
    of them. Of arguments those do that lie there between steps, and that the program itself moves to the device.
    """
    if not any(cls.placed for cls in graph.classes):
        return frozenset()  # as in most programs
    found = _moved_arguments(graph)
    ends = {loop.end: loop.op for loop in graph.loops}
    before = -1
    while before != len(found):  # what a body returns is carried into it
        before = len(found)
        for op in range(graph.num_ops):
            cls, read, results = graph.cls(op), graph.operands(op).tolist(), graph.results(op)
            if cls.placed == HOST:
                found.update(results)
            elif cls.placed == DEVICE:
                continue
            elif cls.name == YIELD and op in ends:
                found.update(into for value, into in zip(read, graph.results(ends[op]), strict=True) if value in found)
            elif cls.name in (WHILE, BARRIER):
                found.update(into for value, into in zip(read, results, strict=False) if value in found)
            elif cls.name in UPDATES:
                found.update(results if found.intersection(read) else ())
            elif (cls.is_view or cls.name in _PARTS) and read[0] in found:
                found.update(results)
    return frozenset(found)


def _moved_arguments(graph: Graph) -> set[int]:
    there = {number for number, one in enumerate(graph.arguments) if one.memories == (HOST,)}
    for op in range(graph.num_ops) if there else ():
        cls = graph.cls(op)
        if cls.placed != DEVICE and cls.name not in (WHILE, BARRIER):
            there.difference_update(graph.operands(op).tolist())
    return there.difference(graph.returns)


def transfers(graph: Graph, on_host: frozenset[int]) -> frozenset[int]:
    """Returns the ops that move something between the memories; `on_host` are the values that lie in host memory."""
    return frozenset(
        [
            op
            for op in range(graph.num_ops)
            if (place := graph.cls(op).placed) == HOST
            or (place == DEVICE and not on_host.isdisjoint(graph.operands(op).tolist()))
        ]
    )


def held_on_host(graph: Graph, on_host: frozenset[int]) -> list[int]:
    """Returns the values that take host memory, of those that lie there: a stack once, not the rows it is made of."""
    stacks = [
        value
        for loop in graph.loops
        for value, kept in zip(graph.results(loop.op), loop.kept, strict=True)
        if value in on_host and not kept
    ]
    rows = {int(graph.operands(op)[1]) for op in range(graph.num_ops) if graph.cls(op).name in UPDATES}
    moved = [
        value
        for op in range(graph.num_ops)
        if graph.cls(op).placed == HOST
        for value in graph.results(op)
        if value not in rows
    ]
    return [*stacks, *moved]
