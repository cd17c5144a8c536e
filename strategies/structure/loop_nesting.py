"""In which loop each op of a graph is, and what comes before what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rhino.ir.graph.graph import Graph


def regions(graph: Graph) -> list[int]:
    """Returns the innermost loop around each op, by its op, -1 where there is none; a loop's end is in it [ops]."""
    found = [-1] * graph.num_ops
    for loop in graph.loops:  # inner loops come after the outer one
        found[loop.op + 1 : loop.end + 1] = [loop.op] * (loop.end - loop.op)
    return found


def level_reader(region: Sequence[int], op: int, home: int) -> int:
    """Returns what reads a value that `home` makes, at the level of that: `op`, or the loop around it.

    The result is -1 in a loop that carries the value.
    """
    while op >= 0 and region[op] != region[home]:
        op = region[op]
    return -1 if op == home else op


def post_order(root: int, below: Callable[[int], Iterable[int]]) -> list[int]:
    """Returns `root` and all nodes below it, each after those below it, in the order in which they are visited."""
    result: list[int] = []
    seen = {root}
    stack = [(root, iter(below(root)))]
    while stack:
        node, rest = stack[-1]
        for child in rest:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(below(child))))
                break
        else:
            result.append(node)
            stack.pop()
    return result
