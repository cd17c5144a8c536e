"""The parts of a training step that stages know: a micro-batch's forward and backward, what comes after all of them, and what is free.

A program without an accumulation loop is one micro-batch. There, what comes after is what updates arguments: behind the last product, what
reads an argument and leads to a result of the argument's type, what follows from such, and what leads to such alone.

An op is *repeated* if each stage that reads it may as well compute it by itself: what the graph calls free, and what depends on constants
and the loop's index alone and takes no longer than reading its result a few times. Who reads it reads in truth what it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhino.ir.graph import WHILE, YIELD, Graph, Loop, materialized
from rhino.strategies.cost import PRODUCTS, CostModel
from rhino.strategies.problem import Floats, Ints

Bools = NDArray[np.bool_]

REPEATED_READS = 4
"""What depends on constants alone is repeated if it takes as long as reading its result from memory this many times: a mask made of
counters does, a matrix product does not."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Which ops are in the micro-batch, and which come after all of them.

    Shapes: `body`, `apply`, `repeated` [ops]; the accumulation loop itself, its return, and what comes before are in neither of the first
    two. `seconds` [ops] is how long each takes, whole, once per micro-batch or, outside the loop, once. `loop` is None where there is none.
    """

    loop: Loop | None
    body: Bools
    apply: Bools
    repeated: Bools
    seconds: Floats


def parts_of(graph: Graph, loop: Loop | None, model: CostModel) -> Parts:
    """Returns the parts of a program with this accumulation loop, on a device of `model`."""
    op = np.arange(graph.num_ops)
    if loop is None:
        apply = _updates(graph)
        body = ~apply
    else:
        body, apply = (op > loop.op) & (op < loop.end), op > loop.end
    seconds = op_seconds(graph, model)
    if loop is not None and loop.trips:
        seconds[body] /= loop.trips
    read_s = graph.value_bytes() / model.device.memory_bytes_per_s
    return Parts(loop, body, apply, _repeated(graph, loop, seconds, read_s), seconds)


def op_seconds(graph: Graph, model: CostModel) -> Floats:
    """Returns the seconds that each op takes in a step, whole on one device; what is computed inside its readers moves no memory [ops]."""
    stands = materialized(graph).tolist()
    seconds = np.zeros(graph.num_ops)
    for op in range(graph.num_ops):
        cls = graph.cls(op)
        if cls.name in (WHILE, YIELD) or cls.free:
            continue
        values = (*graph.operands(op).tolist(), *graph.results(op))
        moved = sum(graph.type_of(value).num_bytes for value in values if stands[value]) if cls.moved_bytes is None else cls.moved_bytes
        seconds[op] = model.compute_s(cls, moved, 1)
    result: Floats = seconds * graph.times()
    return result


def _updates(graph: Graph) -> Bools:
    """Returns which ops update arguments [ops]."""
    forward = _leads_to_work(graph)
    leads = _results_led_to(graph)
    found = np.zeros(graph.num_ops, dtype=bool)
    for op in np.flatnonzero(~forward).tolist():
        for value in graph.operands(op).tolist():
            made_by, kind = int(graph.value_op[value]), int(graph.value_type[value])
            found[op] |= bool(found[made_by]) if made_by >= 0 else bool(graph.types[kind].shape) and kind in leads[op]
    readers = _readers(graph)
    for op in np.flatnonzero(~forward & ~found)[::-1].tolist():
        read_by = [reader for value in graph.results(op) for reader in readers[value]]
        found[op] = bool(read_by) and all(reader >= 0 and bool(found[reader]) for reader in read_by)
    return found


def _leads_to_work(graph: Graph) -> Bools:
    """Returns which ops are products or in loops, or lead to such [ops]."""
    found = np.array([cls.name in PRODUCTS for cls in graph.classes], dtype=bool)[graph.op_class]
    for loop in graph.loops:
        found[loop.op : loop.end + 1] = True
    for op in range(graph.num_ops - 1, -1, -1):
        makers = graph.value_op[graph.operands(op)]
        found[makers[makers >= 0]] |= found[op]
    return found


def _results_led_to(graph: Graph) -> list[set[int]]:
    """Returns the types of the program's results that each op leads to [ops]."""
    of_value: dict[int, set[int]] = {value: {int(graph.value_type[value])} for value in graph.returns}
    found: list[set[int]] = [set() for _ in range(graph.num_ops)]
    for op in range(graph.num_ops - 1, -1, -1):
        found[op] = set().union(*(of_value.get(value, ()) for value in graph.results(op)))
        for value in graph.operands(op).tolist():
            of_value.setdefault(value, set()).update(found[op])
    return found


def _readers(graph: Graph) -> list[list[int]]:
    """Returns the ops that read each value, -1 for the program's end [values]."""
    found: list[list[int]] = [[] for _ in range(graph.num_values)]
    for op in range(graph.num_ops):
        for value in graph.operands(op).tolist():
            found[value].append(op)
    for value in graph.returns:
        found[value].append(-1)
    return found


def _repeated(graph: Graph, loop: Loop | None, seconds: Floats, read_s: Floats) -> Bools:
    """Returns which ops are repeated where they are read; the index is the first that an accumulation loop carries [ops]."""
    index = graph.results(loop.op)[0] if loop is not None else None
    inner = np.zeros(graph.num_ops, dtype=bool)
    for one in graph.loops:
        if one is not loop:
            inner[one.op : one.end + 1] = True
    result = np.zeros(graph.num_ops, dtype=bool)
    constant = np.zeros(graph.num_ops, dtype=bool)
    spent = seconds.copy()
    for op in np.flatnonzero(~inner).tolist():
        cls = graph.cls(op)
        if cls.name in (WHILE, YIELD) or not cls.results:
            continue
        makers = [int(graph.value_op[value]) for value in graph.operands(op).tolist() if value != index]
        constant[op] = all(made_by >= 0 and bool(constant[made_by]) for made_by in makers)
        if constant[op]:
            spent[op] += sum(float(spent[made_by]) for made_by in dict.fromkeys(makers))
            constant[op] = spent[op] <= REPEATED_READS * max(read_s[value] for value in graph.results(op)) or cls.free
        result[op] = cls.free or constant[op]
    return result


def sources_of(graph: Graph, parts: Parts) -> list[Ints]:
    """Returns the values that each value is in truth: itself, or where it is repeated, what it is made of [values]."""
    index = graph.results(parts.loop.op)[0] if parts.loop is not None else None
    found: list[Ints] = [np.array([] if value == index else [value], dtype=np.int64) for value in range(graph.num_values)]
    for op in np.flatnonzero(parts.repeated).tolist():
        read = [found[value] for value in graph.operands(op).tolist()]
        made_of = np.unique(np.concatenate(read)) if read else np.zeros(0, dtype=np.int64)
        for value in graph.results(op):
            found[value] = made_of
    return found
