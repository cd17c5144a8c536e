"""Nodes that can stay together at no more cost.

A node with one node before it can always join that, and one with one node behind it can join that: along the edges
nothing becomes illegal, as all others stand on the same side of both. If besides the two share at least the size, in
nets of their own, that the nets of the node without the other have, then joining costs no more: it takes the first away
and adds the second at most, and a net of both and others is at no further device. A node without edges can join any.

What joining changes is balance. So a node of work joins only as long as what comes out is a small share of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.pipeline.stages.stage_problem import OPEN, GroupBytes, StageProblem, merged_nets, time_ratios


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """A problem of fewer nodes, and which node of it each of the whole problem's is [nodes]."""

    problem: StageProblem
    group: Ints


def merge(problem: StageProblem, most_work_s: float) -> Merged:
    """Returns the problem with nodes joined, those of work up to `most_work_s` together."""
    joining = _Joining(problem, most_work_s)
    joining.run()
    return merged(problem, joining.head())


def merged(problem: StageProblem, head: Ints) -> Merged:
    """Returns `problem` with all nodes of the same `head` [nodes] joined.

    The head says what the other nodes are like.
    """
    heads, group = np.unique(head, return_inverse=True)
    num = len(heads)
    ends = group[np.stack([problem.before, problem.after])]
    order = _topological(num, ends)
    heads, group, ends = heads[order], np.argsort(order)[group], np.argsort(order)[ends]
    distinct = np.unique(ends[:, ends[0] != ends[1]], axis=1) if ends.size else ends
    pinned = np.full(num, OPEN, dtype=np.int64)
    pinned[group[problem.pinned != OPEN]] = problem.pinned[problem.pinned != OPEN]
    work = _summed(problem.work, group, num)
    joined = replace(
        problem,
        work=work,
        before=distinct[0],
        after=distinct[1],
        nets=merged_nets(problem.nets, group),
        pinned=pinned,
        late=problem.late[heads],
        turns=(),
        apart=_summed(problem.apart, group, num) if len(problem.apart) else problem.apart,
        again=_summed(problem.again, group, num) if len(problem.again) else problem.again,
        own_bytes=_summed(problem.own_bytes, group, num),
        time_ratio=time_ratios([_summed(problem.work * one, group, num) for one in problem.time_ratio], work),
        resident=merged_nets(problem.resident, group, least=1),
        saved=merged_nets(problem.saved, group, least=1),
        remat=problem.remat.grouped(group),
        group_bytes=tuple([_merged_bytes(problem, own, group, num) for own in problem.group_bytes]),
    )
    return Merged(joined, group.astype(np.int64))


def _merged_bytes(problem: StageProblem, own: GroupBytes, group: Ints, num: int) -> GroupBytes:
    """Returns what joined nodes take on a device of a group of devices."""
    resident, saved = (
        merged_nets(replace(nets, size=size), group, least=1).size
        for nets, size in ((problem.resident, own.resident), (problem.saved, own.saved))
    )
    return GroupBytes(_summed(own.own, group, num), resident, saved)


def _summed(values: Floats, group: Ints, num: int) -> Floats:
    return np.bincount(group, weights=values, minlength=num).astype(np.float64)


def _topological(num: int, ends: Ints) -> Ints:
    """Returns the nodes such that edges lead forward, else by number."""
    after: list[list[int]] = [[] for _ in range(num)]
    waiting = [0] * num
    for source, target in np.unique(ends[:, ends[0] != ends[1]], axis=1).T.tolist() if ends.size else ():
        after[source].append(target)
        waiting[target] += 1
    ready = [node for node in range(num) if not waiting[node]][::-1]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in after[node][::-1]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    assert len(order) == num, "joined nodes have a cycle"
    return np.array(order, dtype=np.int64)


class _Joining:
    def __init__(self, problem: StageProblem, most_work_s: float) -> None:
        num = problem.num_nodes
        self.parent = list(range(num))
        self.work: list[float] = problem.work.tolist()
        self.most_work_s = most_work_s
        self.free: list[bool] = (problem.pinned == OPEN).tolist()
        self.before: list[set[int]] = [set() for _ in range(num)]
        self.after: list[set[int]] = [set() for _ in range(num)]
        for source, target in zip(problem.before.tolist(), problem.after.tolist(), strict=True):
            self.before[target].add(source)
            self.after[source].add(target)
        nets = problem.nets
        self.members = [set(nets.nodes(net).tolist()) for net in range(len(nets))]
        self.size: list[float] = nets.size.tolist()
        self.nets: list[set[int]] = [set() for _ in range(num)]
        for net, nodes in enumerate(self.members):
            for node in nodes:
                self.nets[node].add(net)

    def head(self) -> Ints:
        """Returns the node that each has joined in the end [nodes]."""
        for node in range(len(self.parent)):
            while self.parent[node] != self.parent[self.parent[node]]:
                self.parent[node] = self.parent[self.parent[node]]
        return np.array(self.parent, dtype=np.int64)

    def run(self) -> None:
        """Joins nodes until none can."""
        queue = list(range(len(self.parent)))
        while queue:
            changed: dict[int, None] = {}
            for node in queue:
                if self.parent[node] == node and (other := self._partner(node)) is not None:
                    self._join(node, other)
                    changed[other] = None
                    changed.update(dict.fromkeys(sorted(self.before[other] | self.after[other])))
                    changed.update(dict.fromkeys(sorted({mate for net in self.nets[other] for mate in self._few(net)})))
            queue = list(changed)

    def _few(self, net: int) -> set[int]:
        """Returns the nodes of a net that ties few."""
        return self.members[net] if len(self.members[net]) <= 2 else set()

    def _partner(self, node: int) -> int | None:
        """Returns the node that this one can join."""
        if not self.free[node]:
            return None
        own: dict[int, float] = {}
        for net in sorted(self.nets[node]):
            if len(self.members[net]) == 2:
                (other,) = self.members[net] - {node}
                own[other] = own.get(other, 0.0) + self.size[net]
        if not self.before[node] and not self.after[node]:
            legal = sorted(own)
        else:
            legal = [next(iter(side)) for side in (self.before[node], self.after[node]) if len(side) == 1]
        for other in legal:
            light = not self.work[node] or self.work[node] + self.work[other] <= self.most_work_s
            if light and own.get(other, 0.0) >= sum(
                self.size[net] for net in sorted(self.nets[node] - self.nets[other])
            ):
                return other
        return None

    def _join(self, node: int, other: int) -> None:
        self.parent[node] = other
        self.work[other] += self.work[node]
        for mine, theirs, back in ((self.before, self.after, node), (self.after, self.before, node)):
            for beside in sorted(mine[node]):
                theirs[beside].discard(back)
                if beside != other:
                    theirs[beside].add(other)
                    mine[other].add(beside)
        self.before[other].discard(node)
        self.after[other].discard(node)
        for net in sorted(self.nets[node]):
            members = self.members[net]
            members.discard(node)
            members.add(other)
            if len(members) > 1:
                self.nets[other].add(net)
            else:
                self.nets[other].discard(net)
