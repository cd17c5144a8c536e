"""Mix two choices: where they differ in parts that do not touch, each part may follow either.

Parts (`rhino.strategies.solver.repair.difference`) change cost and memory each by itself, so the best mixture under a
budget is a knapsack over them, solved exactly by MILP (equal parts are one integer variable; a time becomes a row when
a mixture breaks the budget at it). A part that is too large to be taken over whole may be cut in two:
`rhino.strategies.solver.repair.graph_cut_repair`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.lp.small_programs import solve_small
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.repair.difference import Difference


def recombination(problem: Problem, base: Ints, other: Ints, budget: float, times: Sequence[int] = ()) -> Ints | None:
    """Returns the cheapest mixture of two choices, by the parts in which they differ, that fits.

    The result is None if only `base` fits. `times` are those at which memory is likely to bind.
    """
    parts = Difference.of(problem, base, other)
    if not parts.count:
        return None
    gain = parts.cost_changes()
    before = problem.memory(base)
    room = {time: budget - float(before[time]) for time in times}
    while True:
        picks = _knapsack(parts, gain, room)
        if picks is None:
            return None
        mixed = np.where((parts.label >= 0) & picks[parts.label], other, base)
        memory = problem.memory(mixed)
        worst = int(memory.argmax())
        if memory[worst] <= budget:
            return mixed
        change = float(memory[worst] - before[worst])
        # A mixture that the solver's tolerance let through: leave it less room than it took, and twice as much less
        # each time.
        room[worst] = 3 * room[worst] - 2 * change if worst in room else budget - float(before[worst])


def _knapsack(parts: Difference, gain: Floats, room: dict[int, float]) -> NDArray[np.bool_] | None:
    """Chooses the parts to take over, by the bytes that they may add at each time in `room`. None where nothing fits.

    Equal parts are one integer variable.
    """
    count = parts.count
    rows = np.array([parts.byte_changes(t) for t in room]).reshape(len(room), count)
    kinds, member = np.unique(np.vstack([gain[None, :], rows]), axis=1, return_inverse=True)
    member = np.asarray(member).reshape(-1)
    size = np.bincount(member, minlength=kinds.shape[1])
    scale = float(np.abs(kinds[0]).max()) or 1.0
    # In units of each row's largest change: small tensors under a large budget are far below the solver's tolerance.
    unit = np.maximum(np.abs(kinds[1:]).max(axis=1, initial=0.0), 1.0)
    most = np.array(list(room.values())) / unit
    found = solve_small(
        kinds[0] / scale,
        kinds[1:] / unit[:, None],
        np.full(len(most), -np.inf),
        most,
        size.astype(np.float64),
        integer=True,
    )
    if found is None:
        return None
    taken = np.round(found.values).astype(np.int64)
    rank = np.zeros(count, dtype=np.int64)
    for kind in range(len(size)):
        members = np.flatnonzero(member == kind)
        rank[members] = np.arange(len(members))
    picks: NDArray[np.bool_] = rank < taken[member]
    return picks
