"""Which values of the forward pass may wait in host memory for the backward pass, and how they go there.

A value goes there as a whole once it is made. A stack that a loop makes, as `jax.lax.scan` does of what its backward
loop reads, goes there row by row: so may it where the loop writes a row in each iteration and nothing else reads the
stack but loops of the backward pass, a row at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rhino.ir.graph.graph import PART_UPDATE, WHILE, Graph, Loop

_ROW: Final = "stablehlo.dynamic_slice"


def waiting_values(graph: Graph, values: Iterable[int], turn: int) -> dict[int, int]:
    """Returns in how many parts each of `values` would go to host memory, of those that may wait there.

    `turn` is the last op of the forward pass.
    """
    readers: dict[int, list[tuple[int, int]]] = {}
    for op in range(graph.num_ops):
        for position, value in enumerate(graph.operands(op).tolist()):
            readers.setdefault(value, []).append((op, position))
    loops = {loop.op: loop for loop in graph.loops}
    returned = set(graph.returns)
    found = {}
    for value in values:
        maker = int(graph.value_op[value])
        if value in returned or not graph.type_of(value).num_bytes:
            continue
        if graph.cls(maker).name != WHILE:
            found[value] = 1
        elif (trips := loops[maker].trips) and _is_written_by_rows(graph, loops[maker], value, readers):
            rows = [*_rows_read(graph, value, readers, loops, turn)]
            if rows and None not in rows:
                found[value] = trips
    return found


def _is_written_by_rows(graph: Graph, loop: Loop, value: int, readers: dict[int, list[tuple[int, int]]]) -> bool:
    """Says whether each iteration of a loop writes a row of what it carries as `value`, and does nothing else to it.

    It starts with constants, which need not be brought to host memory.
    """
    position = graph.results(loop.op).index(value)
    last = int(graph.operands(loop.end)[position])
    writer, initial = int(graph.value_op[last]), int(graph.value_op[graph.operands(loop.op)[position]])
    is_row = loop.op < writer < loop.end and graph.cls(writer).name == PART_UPDATE
    if not is_row or initial < 0 or not graph.cls(initial).free:
        return False
    inside = [(op, at) for op, at in readers.get(value, ()) if loop.op < op <= loop.end]
    row = graph.cls(writer).operands[1]
    return (
        inside == [(writer, 0)]
        and readers.get(last) == [(loop.end, position)]
        and row.num_bytes * (loop.trips or 0) == graph.type_of(value).num_bytes
    )


def _rows_read(
    graph: Graph, value: int, readers: dict[int, list[tuple[int, int]]], loops: dict[int, Loop], turn: int
) -> Iterator[int | None]:
    """Yields the ops of the backward pass that read a row of a stack, and None for all else that reads it."""
    maker = int(graph.value_op[value])
    end = loops[maker].end if maker in loops else maker
    for op, position in readers.get(value, ()):
        if maker < op <= end:
            continue  # what makes it
        if op in loops and op > turn and loops[op].kept[position]:
            inside = graph.results(op)[position]
            rows = [(one, at) for one, at in readers.get(inside, ()) if one != loops[op].end]
            yield from (
                one if graph.cls(one).name == _ROW and at == 0 and op < one < loops[op].end else None
                for one, at in rows
            )
        else:
            yield None
