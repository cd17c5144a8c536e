"""How many tensors a value is in memory at a time, in a graph whose ops stand for several layers each.

A layer passes on to the next what is one tensor at a time. What is still read after others have run, as the backward
pass reads what the forward pass has made, each layer of a group has for itself. Which ops run between is told by the
schedule (strategies/memory/op_order.py).
"""

from __future__ import annotations

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import Graph
from rhino.strategies.memory.op_order import OpOrder


def scheduled_copies(graph: Graph, plan: OpOrder) -> Ints:
    """Returns how many tensors each value is in a schedule [values]."""
    repeats = graph.repeats
    if repeats is None:
        return graph.copies()
    runner = np.zeros(plan.num_times // 3 + 1, dtype=np.int64)  # a slot's last op: the others are computed inside it
    for op, (start, stop) in enumerate(zip(plan.start, plan.stop, strict=True)):
        if stop == start + 1:
            runner[start // 3] = op
    run, group = repeats.run[runner], repeats.group
    turn = np.concatenate(([0], np.cumsum(run[1:] != run[:-1])))  # how often others ran, until a slot
    made, read = (
        np.array(times, dtype=np.int64) // 3 for times in ([plan.start[op] for op in graph.value_op.tolist()], plan.end)
    )
    away = turn[read] - turn[made]
    stays = (away > 1) | ((away == 1) & (group[runner[read]] == group[graph.value_op]))
    stays[: len(graph.arguments)] = True
    stays[list(graph.returns)] = True
    for loop in graph.loops:
        stays[[*graph.results(loop.op), *graph.operands(loop.end).tolist()]] = True
    return np.where(stays, repeats.copies, 1)
