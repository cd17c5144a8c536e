"""The parts of a training step that stages know.

They are a micro-batch's forward and backward, what comes after all of them, and what is free.

A program without an accumulation loop is one micro-batch. There, what comes after is what updates arguments: behind the
last product, what joins an argument to what follows from a product and leads to a result of the argument's type, what
follows from such, and what leads to such alone. Arguments are those whose buffers results take over, if there are such.

What follows from constants and counters of the loop alone is computed wherever it is read. Scalar arithmetic, and what
spreads a scalar over a tensor, costs nothing either: who reads it reads in truth what it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Floats
from rhino.ir.graph.graph import Graph, Loop
from rhino.strategies.cost.cost_model import PRODUCTS


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPhases:
    """Which ops are in the micro-batch, and which come after all of them.

    Shapes: `body`, `apply` [ops]; the accumulation loop itself, its return, and what comes before are in neither.
    `constant`, `free` [ops]: what follows from constants and counters alone; that, and what else costs nothing.
    `seconds` [ops] is how long each takes, once per micro-batch or, outside the loop, once. `loop` is None where there
    is none.
    """

    loop: Loop | None
    body: Bools
    apply: Bools
    constant: Bools
    free: Bools
    seconds: Floats


def parts_of(graph: Graph, loop: Loop | None, seconds: Floats) -> TrainingPhases:
    """Returns the parts of a program with this accumulation loop.

    `seconds` [ops] is how long each op takes in a step.
    """
    op = np.arange(graph.num_ops)
    if loop is None:
        apply = _updates(graph)
        body = ~apply
    else:
        body, apply = (op > loop.op) & (op < loop.end), op > loop.end
    seconds = seconds.copy()
    if loop is not None and loop.trips:
        seconds[body] /= loop.trips
    constant, free = _costless(graph, loop)
    seconds[free] = 0.0
    return TrainingPhases(loop, body, apply, constant, free, seconds)


def _updates(graph: Graph) -> Bools:
    """Returns which ops update arguments [ops]."""
    forward, follows = _leads_to_work(graph), _follows_work(graph)
    leads = _results_led_to(graph)
    given = {number for number, argument in enumerate(graph.arguments) if argument.alias is not None} or set(
        range(len(graph.arguments))
    )
    found = np.zeros(graph.num_ops, dtype=bool)
    for op in np.flatnonzero(~forward & follows).tolist():
        for value in graph.operands(op).tolist():
            made_by, kind = int(graph.value_op[value]), int(graph.value_type[value])
            kept = value in given if made_by < 0 else not follows[made_by] and not graph.cls(made_by).free
            found[op] |= (made_by >= 0 and bool(found[made_by])) or (
                kept and bool(graph.types[kind].shape) and kind in leads[op]
            )
    readers = _readers(graph)
    for op in np.flatnonzero(~forward & ~found)[::-1].tolist():
        read_by = [reader for value in graph.results(op) for reader in readers[value]]
        found[op] = bool(read_by) and all(reader >= 0 and bool(found[reader]) for reader in read_by)
    return found


def _does_work(graph: Graph) -> Bools:
    """Returns which ops are products, or in loops [ops]."""
    found = np.array([cls.name in PRODUCTS for cls in graph.classes], dtype=bool)[graph.op_class]
    for loop in graph.loops:
        found[loop.op : loop.end + 1] = True
    return found


def _follows_work(graph: Graph) -> Bools:
    """Returns which ops follow from products or loops [ops]."""
    found, work = np.zeros(graph.num_ops, dtype=bool), _does_work(graph)
    for op in range(graph.num_ops):
        makers = graph.value_op[graph.operands(op)]
        makers = makers[makers >= 0]
        found[op] = bool(found[makers].any() or work[makers].any())
    return found


def _leads_to_work(graph: Graph) -> Bools:
    """Returns which ops are products or in loops, or lead to such [ops]."""
    found = _does_work(graph)
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


def _costless(graph: Graph, loop: Loop | None) -> tuple[Bools, Bools]:
    """Returns which ops follow from constants and counters alone, and which cost nothing [ops].

    Ops in loops of their own are neither.
    """
    outside = np.ones(graph.num_ops, dtype=bool)
    for one in graph.loops:
        if loop is None or one.op != loop.op:
            outside[one.op : one.end + 1] = False
    known = counters_of(graph, loop)
    constant, free = np.zeros(graph.num_ops, dtype=bool), np.zeros(graph.num_ops, dtype=bool)
    for op in np.flatnonzero(outside).tolist():
        cls = graph.cls(op)
        if cls.fusible and all(value in known for value in graph.operands(op).tolist()):
            constant[op] = True
            known.update(graph.results(op))
        free[op] = constant[op] or cls.free
    return constant, free


def counters_of(graph: Graph, loop: Loop | None) -> set[int]:
    """Returns the carried scalars of which the body makes the next from themselves and constants."""
    if loop is None:
        return set()
    found = set()
    for value, following in zip(graph.results(loop.op), graph.operands(loop.end).tolist(), strict=True):
        op = int(graph.value_op[following])
        if loop.op < op < loop.end and not graph.type_of(value).shape and graph.cls(op).fusible:
            others = [int(graph.value_op[other]) for other in graph.operands(op).tolist() if other != value]
            if value in graph.operands(op) and all(
                other >= 0 and graph.cls(other).free and not len(graph.operands(other)) for other in others
            ):
                found.add(value)
    return found


def sources_of(graph: Graph, parts: TrainingPhases) -> list[tuple[int, ...]]:
    """Returns the values that each value is in truth [values].

    That is the value itself, or where it costs nothing, what it is made of.
    """
    counters = counters_of(graph, parts.loop)
    found: list[tuple[int, ...]] = [() if value in counters else (value,) for value in range(graph.num_values)]
    for op in np.flatnonzero(parts.free).tolist():
        made_of = tuple(dict.fromkeys(source for value in graph.operands(op).tolist() for source in found[value]))
        for value in graph.results(op):
            found[value] = () if parts.constant[op] else made_of
    return found
