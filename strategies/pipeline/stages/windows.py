"""In which stages a node may be: bounds from the work before and behind it (Rhino 5.2), on stages that turn round.

In balance, a node of the forward pass that has the share p of that way's work among its ancestors is not before place d
p of 0 .. d, and one with the share q among its descendants and itself not behind d - d q; a node of the backward pass
likewise, from the other end. Where no stage has more than 1 + e times its share, cut k is at most e min(k, d - k) from
place k, if each stage's part of either way is like its part of all work. So a node that is further than that from a cut
stays on its side of it. Where that leaves too much open, a smaller e is taken: as in Rhino, what the search may try is
bounded.

*Branches* are light ends of the backward pass, such as the gradients of weights, and light starts of the forward pass.
Their work counts where they grow; no edge bounds them on one side, but they gain nothing further out than all that they
share nets with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.strategies.pipeline.stages.stage_problem import OPEN, Nets, StageProblem
from rhino.strategies.solver.connected_components import components

FORWARD, BACK, EITHER = 0, 1, 2
"""The ways that a node may be on."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Where each node may be.

    Shapes: `first` and `last` [nodes] are devices; `direction` [nodes] is `FORWARD`, `BACK`, or `EITHER` where that is
    to be found out. On the last device both ways are one stage.
    """

    first: Ints
    last: Ints
    direction: Ints


def open_windows(problem: StageProblem) -> Windows:
    """Returns the windows that pins alone leave.

    A node that no edge leads to need not be in the backward pass; one that leads nowhere need not be forward.
    """
    num, devices = problem.num_nodes, problem.num_stages
    direction = np.full(num, EITHER if problem.turns_round else FORWARD, dtype=np.int64)
    has_before, has_after = _linked(problem)
    if problem.turns_round:
        direction[~has_after] = BACK
        direction[~has_before] = FORWARD
    return _pinned(
        problem, Windows(np.zeros(num, dtype=np.int64), np.full(num, devices - 1, dtype=np.int64), direction)
    )


def balanced_windows(problem: StageProblem, limit_s: float) -> Windows:
    """Returns the windows for at most `limit_s` of work on a device.

    The limit is less where these windows would leave more open than `MOST_OPEN`.
    """
    devices, num = problem.num_stages, problem.num_nodes
    # how far along the model a node is at least, from either end; no edges, no bound
    outer, inner = (
        np.zeros(num),
        np.zeros(num),
    )
    light = np.bincount(np.concatenate([problem.before, problem.after]), minlength=num) == 0
    most = LIGHT * float(problem.work.sum()) / devices
    for back in (False, True):
        side = _Side(problem, back)
        branch = side.branches(most)
        before, behind, work = side.around(branch)
        unit = devices / max(float(work.sum()), 1e-300)
        outer[side.nodes], inner[side.nodes] = before * unit, (behind + work) * unit
        light[side.nodes] |= branch
    shares, rates = problem.shares(), problem.rates()
    excess = limit_s * float(rates.sum()) / max(float(problem.work.sum()), 1e-300) - 1
    while True:
        first, last = (
            np.searchsorted(_cuts(shares, excess), outer, side="right"),
            devices - 1 - np.searchsorted(_cuts(shares[::-1], excess), inner, side="right"),
        )
        first, last = _drawn_in(problem, first, last, light)
        if (last - first).sum() <= MOST_OPEN or excess < LEAST_EXCESS:
            return _pinned(problem, Windows(first, last, np.where(problem.late, BACK, FORWARD)))
        excess /= 2


MOST_OPEN = 4000
"""How many places the windows may leave open, beyond one for each node.

The relaxation of so many takes a few seconds.
"""

LEAST_EXCESS = 0.01
"""Windows for less work than this over the even share do not shrink further."""

LIGHT = 0.25
"""The share of a stage's work up to which the end of a backward pass, or the start of a forward pass, counts as a
branch."""


class _Side:
    """The nodes of one way and the edges among them, turned so that they lead inwards: towards the last device."""

    def __init__(self, problem: StageProblem, back: bool) -> None:
        self.nodes = np.flatnonzero(problem.late == back)
        self.work = problem.work[self.nodes]
        number = np.full(problem.num_nodes, -1, dtype=np.int64)
        number[self.nodes] = np.arange(len(self.nodes))
        ends = number[np.stack([problem.before, problem.after])]
        ends = ends[:, (ends >= 0).all(axis=0)]
        self.outer, self.inner = ends[::-1] if back else ends
        self.inwards = range(len(self.nodes))[::-1] if back else range(len(self.nodes))
        self.work_outside = reached(self.inner, self.outer, self.work, self.inwards)

    def branches(self, most_s: float) -> Bools:
        """Returns which nodes have at most so much work outside of them, theirs included [nodes of the way]."""
        return self.work_outside + self.work <= most_s

    def around(self, branch: Bools) -> tuple[Floats, Floats, Floats]:
        """Returns the work outside and inside of each node, and its own; branches count with what they grow on.

        A weight's gradient leads nowhere, and yet its layer is not done without it.
        """
        work = self.work.copy()
        trunk = np.full(len(work), -1, dtype=np.int64)  # the outermost of what is next inwards
        place = np.zeros(len(work), dtype=np.int64)
        place[np.array(self.inwards, dtype=np.int64)] = np.arange(len(work))
        order = np.argsort(-place[self.inner], kind="stable")
        trunk[self.outer[order]] = self.inner[order]
        for node in self.inwards:
            if branch[node] and trunk[node] >= 0:
                work[trunk[node]] += work[node]
                work[node] = 0.0
        outside = reached(self.inner, self.outer, work, self.inwards)
        return outside, reached(self.outer, self.inner, work, self.inwards[::-1]), work


def _drawn_in(problem: StageProblem, first: Ints, last: Ints, light: Bools) -> tuple[Ints, Ints]:
    """Returns the windows where branches, and nodes without edges, stay with what they share nets with.

    Further out they would gain nothing; a node without edges would gain nothing further in either.
    """
    num, devices = problem.num_nodes, problem.num_stages
    linked = (
        light[problem.before] & light[problem.after] & (problem.late[problem.before] == problem.late[problem.after])
    )
    branch = components(num, np.stack([problem.before[linked], problem.after[linked]], axis=1))
    alone = np.bincount(np.concatenate([problem.before, problem.after]), minlength=num) == 0
    nearest = _net_bound(problem.nets, first, light, branch, np.minimum, devices)
    farthest = _net_bound(problem.nets, last, light, branch, np.maximum, -1)
    drawn = np.where(light & (nearest < devices), np.maximum(first, nearest), first)
    ends = np.where(alone & (farthest >= 0), np.minimum(last, farthest), last)
    return np.minimum(drawn, ends), np.maximum(drawn, ends)


def _net_bound(nets: Nets, bound: Ints, light: Bools, branch: Ints, best: np.ufunc, start: int) -> Ints:
    """Returns the loosest bound of the nodes outside branches that each node's branch shares nets with [nodes].

    It is `start` where there is no such node.
    """
    of_net = np.full(len(nets), start, dtype=np.int64)
    tells = ~light[nets.node]
    best.at(of_net, nets.owner[tells], bound[nets.node[tells]])
    of_branch = np.full(len(bound), start, dtype=np.int64)
    best.at(of_branch, branch[nets.node], of_net[nets.owner])
    found: Ints = of_branch[branch]
    return found


def _linked(problem: StageProblem) -> tuple[Bools, Bools]:
    """Returns which nodes have an edge to them, and which one from them [nodes]."""
    num = problem.num_nodes
    return np.bincount(problem.after, minlength=num) > 0, np.bincount(problem.before, minlength=num) > 0


def _cuts(shares: Floats, excess: float) -> Floats:
    """Returns how far along the model a node must be to be behind each cut for certain [cuts].

    `shares` are what devices do of all work, in even shares [devices]; those from the last device on say how far a node
    must be from the model's end.
    """
    cut = np.cumsum(shares)[:-1]
    result: Floats = np.maximum.accumulate(cut + excess * np.minimum(cut, len(shares) - cut))
    return result


def _pinned(problem: StageProblem, windows: Windows) -> Windows:
    pinned = problem.pinned != OPEN
    device = problem.device(problem.pinned)
    inner = problem.num_stages - 1
    direction = np.where(
        pinned & (problem.pinned < inner), FORWARD, np.where(problem.pinned > inner, BACK, windows.direction)
    )
    return Windows(np.where(pinned, device, windows.first), np.where(pinned, device, windows.last), direction)


_ROWS = 256


def reached(at: Ints, other: Ints, work: Floats, order: range) -> Floats:
    """Returns the work of all that is reached from each node by steps from `at[e]` to `other[e]`.

    `order` has the ends of paths first.
    """
    num = len(work)
    bits = np.zeros((num, (num + 7) // 8), dtype=np.uint8)
    ends: list[list[int]] = [[] for _ in range(num)]
    for node, beside in zip(at.tolist(), other.tolist(), strict=True):
        ends[node].append(beside)
    for node in order:
        for beside in ends[node]:
            bits[node] |= bits[beside]
            bits[node, beside >> 3] |= 0x80 >> (beside & 7)
    total = np.zeros(num)
    for row in range(0, num, _ROWS):
        total[row : row + _ROWS] = np.unpackbits(bits[row : row + _ROWS], axis=1, count=num).astype(
            np.float32
        ) @ work.astype(np.float32)
    return total
