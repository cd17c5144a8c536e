"""Cut a training step in stages.

Of all cuts within a tolerance of the best balance, it finds one whose transfers cost least (Rhino 5.1, 5.2).

1. The least that the largest work of a device can be (`least_work`), and from it the limit of work: 1 + tolerance times
   that. What a device recomputes to stay within its budget is work (stage_remat.py), chosen together with the cut.
2. The best cuts of lines through the program (stage_line.py): a choice to begin with, often as good as any.
3. Nodes that can stay together are joined (stage_merge.py), and each is left the stages that balance leaves it
   (stage_windows.py). A small problem is left as it is, with every stage open to every node.
4. The integer program (stage_rows.py): its relaxation, and where that does not prove the choice best, branch and bound.
   In a large problem switches that no choice worth finding has otherwise are fixed first (row_fixing.py): of choices
   half way to the bound, then of all.
5. Among choices that cost as little, one of less work on the device that has the most: the best on lines, else if it is
   found soon.

The bound is one on all choices in the windows, and of joined nodes where nodes were joined: for a small problem, on all
choices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.arrays import Ints
from rhino.strategies.pipeline.schedules import Order
from rhino.strategies.pipeline.stages.balance import WITHOUT_SECONDS, leaves_idle, tolerance_of
from rhino.strategies.pipeline.stages.line import cut, least_limit, lines_of, on_devices, stretches
from rhino.strategies.pipeline.stages.merge import Merged, merge
from rhino.strategies.pipeline.stages.rows import StageRows
from rhino.strategies.pipeline.stages.stage_problem import StageProblem
from rhino.strategies.pipeline.stages.stage_remat import device_loads, fits, stage_remat
from rhino.strategies.pipeline.stages.windows import Windows, balanced_windows, open_windows
from rhino.strategies.solver.answer import Infeasible, Unsolved
from rhino.strategies.solver.lp.linear_programs import Point, solve_rows
from rhino.strategies.solver.lp.variable_fixing import fixed_values

MOST_OPEN = 300
"""Nodes times the square of cuts up to which a problem is left as it is.

With one cut that costs little, with more cuts it soon costs much.
"""

JOINED_SHARE = 1 / 16
"""Joined nodes have at most this share of what the tolerance allows a stage."""

STEP_LIMIT, LP_STEPS, BALANCE_STEPS = 200, 2000, 100
"""Steps of the solver (strategies/solver/lp/linear_programs.py) for branch and bound, for its relaxation, and for the
better balance of a choice found so."""

SHARES = (0.5, 1.0)
"""How far from the bound to the best known cost choices are looked for, in a large problem.

The nearer that is, the more is known beforehand.
"""

MOST_BALANCED = 1000
"""Variables up to which a choice of the integer program is balanced further within the tolerance.

Beyond that, balancing takes seconds.
"""

PROOF, CONTENT = 1e-6, 1e-3
"""Relative: a choice this close to its bound is the best, as far as the solver can tell.

In a large problem a choice within the second share is not worth a longer search, and so much is given for a better
balance.
"""


@dataclass(frozen=True, slots=True, eq=False)
class StageAnswer:
    """A choice of stages.

    Shapes: `stage` [nodes], virtual. Units: `cost` and the `bound` on it in that of the problem's nets; `work_s` is the
    largest work of a device, `limit_s` what it may be, `least_s` the least that it can be as far as is known, in
    seconds per micro-batch.
    """

    stage: Ints
    cost: float
    bound: float
    work_s: float
    limit_s: float
    least_s: float
    method: str

    @property
    def gap(self) -> float:
        """Returns the share of the cost that a better choice could save at most."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost else 0.0

    @property
    def is_optimal(self) -> bool:
        """Says whether the choice is proven to be the best, as far as the solver can tell."""
        return self.gap <= PROOF


def solve_stages(
    problem: StageProblem, tolerance: float | None, order: Order | None = None, step_limit: int = STEP_LIMIT
) -> StageAnswer | Infeasible | Unsolved:
    """Returns the stages of each node; or that no choice is legal and fits, or that none was found within the steps.

    Without a tolerance it is the one of a few within whose cut of a line a step in this order takes least
    (stage_balance.py).
    """
    search = _Search(problem, order, step_limit)
    least = search.least_work(WITHOUT_SECONDS if tolerance is None else tolerance)
    return search.run(least, tolerance) if isinstance(least, float) else least


class _Search:
    def __init__(self, problem: StageProblem, order: Order | None, step_limit: int) -> None:
        self.problem, self.order, self.step_limit = problem, order, step_limit
        self.is_small = problem.num_nodes * (problem.num_stages - 1) ** 2 <= MOST_OPEN
        folded = [replace(problem, late=late) for late in (problem.late, *problem.turns)]
        parts = [(one, line, stretches(one, line)) for one in folded for line in lines_of(one)]
        self.lines = [(one, line, on_devices(one, some)) for one, line, some in parts if some is not None]
        self.even: Ints | None = None
        """What the integer program has found to have the least work on the device with the most, where it was asked."""

        self.best: Ints | None = None
        self.best_cost = np.inf
        self.method = ""
        self.may_idle = True
        """Whether a choice may leave a device without work once there is another: only where a tolerance is given."""

    def least_work(self, tolerance: float) -> float | Infeasible | Unsolved:
        """Returns the least work that the device with the most can have, as far as is known.

        It is proven where the problem is small. Where a large one recomputes, and no line can be cut, it is given up:
        what an integer program finds then after a minute has most of the work on one device (a GPT of 8 layers in 4
        stages at half the memory, 2026-11-27).
        """
        all_work = max(float(self.problem.most_work(device)) for device in range(self.problem.num_stages))
        on_lines = [
            least_limit(self.problem, parts, all_work, np.inf)
            for _, _, parts in self.lines
            if cut(self.problem, parts, all_work)
        ]
        if on_lines and not self.is_small:
            return min(on_lines)
        even = all_work / self.problem.num_stages
        reduced = self.reduced(even * tolerance * JOINED_SHARE)
        rows = StageRows(reduced.problem, self.windows(reduced, _LOOSE * even), None)
        if not self.is_small and len(self.problem.remat):
            relaxed = solve_rows(rows.rows(), integer=False, step_limit=LP_STEPS)
            return relaxed if isinstance(relaxed, Infeasible) else Unsolved(rows.bound(relaxed.bound))
        match solve_rows(rows.rows(), integer=True, step_limit=self.step_limit):
            case Point() as point:
                self.even = rows.stages(point)[reduced.group]
                return min([*on_lines, self.work_s(self.even)])
            case Infeasible() as found:
                return min(on_lines) if on_lines else found
            case Unsolved() as found:
                return min(on_lines) if on_lines else Unsolved(rows.bound(found.bound))

    @property
    def is_pressed(self) -> bool:
        """Whether memory makes devices of the best choice recompute.

        Branch and bound takes a minute then, and finds hardly more than the best cut of a line.
        """
        return self.best is not None and bool(stage_remat(self.problem, self.problem.device(self.best)).taken.any())

    def reduced(self, most_s: float) -> Merged:
        """Returns the problem that the integer program is made of.

        In a large one nodes of up to so much work are joined.
        """
        if self.is_small:
            return Merged(self.problem, np.arange(self.problem.num_nodes))
        return merge(self.problem, most_s)

    def windows(self, reduced: Merged, limit_s: float) -> Windows:
        """Returns where the nodes of a reduced problem may be: where they are in the best choice, too."""
        if self.is_small:
            return open_windows(reduced.problem)
        windows = balanced_windows(reduced.problem, limit_s)
        if self.best is None:
            return windows
        device, first, last = self.problem.device(self.best), windows.first.copy(), windows.last.copy()
        np.minimum.at(first, reduced.group, device)
        np.maximum.at(last, reduced.group, device)
        return replace(windows, first=first, last=last)

    def run(self, least_s: float, tolerance: float | None) -> StageAnswer | Infeasible | Unsolved:
        """Returns the best choice within a tolerance of the least work."""
        if tolerance is None:
            tolerance = tolerance_of(self.problem, self.order, least_s, lambda one: self.on_lines(least_s * (1 + one)))
            self.may_idle = False
        limit_s = least_s * (1 + tolerance)
        self.cut_lines(limit_s)
        if self.even is not None:
            self.offer(self.even, limit_s, _PROGRAM)
        reduced = self.reduced(limit_s * tolerance * JOINED_SHARE)
        windows = self.windows(reduced, limit_s)
        bound = self.branch_and_bound(reduced, windows, limit_s)
        if self.best is None:
            return Unsolved(bound) if np.isfinite(bound) else Infeasible(None)
        if self.method == _PROGRAM:
            self.balance(reduced, windows, limit_s)
        work_s = self.work_s(self.best)
        return StageAnswer(self.best, self.best_cost, min(bound, self.best_cost), work_s, limit_s, least_s, self.method)

    def work_s(self, stage: Ints) -> float:
        """Returns the largest work of a device, with what it recomputes."""
        return float(device_loads(self.problem, self.problem.device(stage)).max())

    def on_lines(self, limit_s: float) -> Ints | None:
        """Returns what `cut_lines` would take, and takes nothing."""
        problem = self.problem
        self.cut_lines(limit_s)
        found, self.best, self.best_cost, self.problem = self.best, None, np.inf, problem
        return found

    def cut_lines(self, limit_s: float) -> None:
        """Takes a cut of each line that costs about as little as its best, in the best balance that it can have.

        Where the backward pass begins is from now on as on the line of the best of them.
        """
        best = self.problem
        for folded, line, parts in self.lines:
            if (found := cut(self.problem, parts, limit_s)) is not None:
                least = least_limit(self.problem, parts, limit_s, found[0] * (1 + self.worth))
                _, ends = cut(self.problem, parts, least) or found
                if self.offer(line.stages(self.problem, ends), limit_s, "a line"):
                    best = folded
        self.problem = best

    @property
    def worth(self) -> float:
        """The least share of its cost by which a choice or its bound must be below the best to be worth anything."""
        return PROOF if self.is_small else CONTENT

    def offer(self, stage: Ints, limit_s: float, method: str) -> bool:
        """Takes a choice if it is legal, fits, and costs less than the best by what is worth it.

        The best has the better balance. Returns whether the choice was taken.
        """
        device = self.problem.device(stage)
        cost = self.problem.cost(device)
        if (
            (self.best is None or cost < self.best_cost * (1 - self.worth))
            and self.problem.is_legal(stage)
            and fits(self.problem, device, limit_s)
            and (self.may_idle or self.best is None or not leaves_idle(self.problem, stage))
        ):
            self.best, self.best_cost, self.method = stage, cost, method
            return True
        return False

    def branch_and_bound(self, reduced: Merged, windows: Windows, limit_s: float) -> float:
        """Takes what the integer program finds, and returns the bound on all choices in the windows.

        The bound is infinite where there are none.
        """
        rows = StageRows(reduced.problem, windows, limit_s, self.best_cost)
        every_row = rows.rows()
        relaxed = solve_rows(every_row, integer=False, step_limit=LP_STEPS)
        if isinstance(relaxed, Infeasible):
            return self.best_cost
        bound = rows.bound(relaxed.bound)
        if isinstance(relaxed, Point):
            self.offer(rows.stages(relaxed)[reduced.group], limit_s, _PROGRAM)
        if isinstance(relaxed, Unsolved) or self.is_small or self.best is None:
            return self.searched(reduced, windows, limit_s, bound)
        for share in () if self.is_pressed else SHARES:
            most = bound + share * (self.best_cost * (1 - self.worth) - bound)
            if most <= bound:
                break
            narrow = rows.narrowed(fixed_values(every_row, relaxed.duals, rows.scaled(most)))
            bound = self.searched(reduced, narrow, limit_s, bound, most)
        return bound

    def searched(
        self, reduced: Merged, windows: Windows, limit_s: float, bound: float, most_cost: float = np.inf
    ) -> float:
        """Takes what branch and bound finds up to this cost, and returns the better bound on all choices."""
        most_cost = min(most_cost, self.best_cost)
        if self.best_cost * (1 - self.worth) <= bound:
            return bound
        rows = StageRows(reduced.problem, windows, limit_s, most_cost)
        solved = solve_rows(rows.rows(), integer=True, step_limit=self.step_limit, rounds=self.best is None)
        if isinstance(solved, Infeasible):
            return most_cost
        if isinstance(solved, Point):
            self.offer(rows.stages(solved)[reduced.group], limit_s, _PROGRAM)
        return max(bound, min(most_cost, rows.bound(solved.bound)))

    def balance(self, reduced: Merged, windows: Windows, limit_s: float) -> None:
        """Takes a choice that costs as little as the best and has less work on the device that has the most."""
        rows = StageRows(reduced.problem, windows, None, self.best_cost)
        if rows.num_variables > MOST_BALANCED:
            return
        point = solve_rows(rows.rows(), integer=True, step_limit=BALANCE_STEPS)
        if not isinstance(point, Point) or self.best is None:
            return
        stage, problem = rows.stages(point)[reduced.group], self.problem
        device = problem.device(stage)
        better = self.work_s(stage) < self.work_s(self.best)
        if (
            better
            and problem.cost(device) <= self.best_cost
            and problem.is_legal(stage)
            and fits(problem, device, limit_s)
        ):
            self.best = stage


_PROGRAM = "integer program"

_LOOSE = 2.0
"""Times its even share: what a device may have at most where nothing is known of the least yet."""
