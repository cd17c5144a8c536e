"""The integer program of stages: rows for the edges, the nets, and every device's work and memory (Rhino 5.1).

A node's device is a row of switches: `deeper[i, k]` says that node i is on device k or behind it, for each k that its
window leaves open. Where its way is open, too, there is a switch for each virtual stage instead: `reached[i, v]` says
that node i is in virtual stage v or a later one. Of V + 1 virtual stages, devices and stages follow from one another:

    forward    reached[i, v] = deeper[i, v], none behind the last device
    back       reached[i, v] = 1 - deeper[i, V + 1 - v], all up to the last device
    open       deeper[i, k] = reached[i, k] - reached[i, V + 1 - k]

So along every edge from i to j, whatever their ways, reached[i, v] <= reached[j, v] (`_edge_rows`): rows of two
variables, whose relaxation is as tight as can be. With a switch for the way, which lets go of rows, a GPT of one layer
took 14 s in two stages, and takes 3 so (2026-11-24).

A net is at a device if one of its nodes is (`_presence`), and costs its size for each device that it is at, but one. A
node that is at a device only if another is says nothing and is left out: most nets of two devices then need no variable
(2026-11-22, GPT of 72 layers in 8 stages: 22,327 rows in place of 39,906, and the relaxation takes 2.2 s in place of
15). Work is a row for each device, and so is memory where it could be too much (`_load_rows`). There a device may
recompute (`_remat_switches`): it takes a step only with all nodes of the step, and after the step before. What that
adds is in its row of work; what it frees of each micro-batch, and the most that is there again at once, in that of
memory.

What is least is what the nets cost, under a limit of work; or the most work of a device, under a limit of cost or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from scipy import sparse

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.pipeline.stages.stage_problem import OPEN, ROUNDING, Nets, StageProblem
from rhino.strategies.pipeline.stages.windows import BACK, EITHER, FORWARD, Windows
from rhino.strategies.solver.lp.linear_programs import Point, Rows

Term = dict[int, float]
"""A sum of variables, each times a factor; the variable `ONE` is the number 1."""

ONE = -1


@dataclass(eq=False)
class StageRows:
    """A problem of stages in its windows as rows.

    The cost is least where `limit_s`, the most work of a device, is given, else the most work of a device is, at no
    more than `most_cost`. `unit` is what the objective counts in, a cost or seconds of work; `fixed_cost` is there in
    any case.
    """

    problem: StageProblem
    windows: Windows
    limit_s: float | None
    most_cost: float = np.inf
    switches: list[dict[int, int]] = field(default_factory=list)
    steps: list[dict[int, int]] = field(default_factory=list)
    num_variables: int = 0
    num_integer: int = 0
    entries: tuple[list[int], list[int], list[float]] = field(default_factory=lambda: ([], [], []))
    high: list[float] = field(default_factory=list)
    costs: dict[int, float] = field(default_factory=dict)
    fixed_cost: float = 0.0
    inwards: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for first, last, direction in zip(
            self.windows.first.tolist(), self.windows.last.tolist(), self.windows.direction.tolist(), strict=True
        ):
            if direction == EITHER:
                assert last == self.problem.num_stages - 1, "where ways are open, they meet on the last device"
                last = self.problem.highest - first
            self.switches.append({k: self.variable() for k in range(first + 1, last + 1)})
        self.steps = [self._remat_switches(device) for device in range(self.problem.num_stages)]
        self.num_integer = self.num_variables
        self._directions()
        self._node_rows()
        self._edge_rows()
        self.most_work = self.variable() if self.limit_s is None else None
        if self.limit_s is not None or np.isfinite(self.most_cost):
            self._net_costs()
        self._load_rows()
        self.unit = max(map(abs, self.costs.values()), default=0.0) or 1.0
        self.base = self.fixed_cost
        if np.isfinite(self.most_cost):
            self.at_most(
                _scaled(self.costs, 1 / self.unit), (self.most_cost * (1 + ROUNDING) - self.fixed_cost) / self.unit
            )
        if self.most_work is not None:
            self.costs, self.unit, self.base = {self.most_work: self._all_work()}, self._all_work(), 0.0

    def _all_work(self) -> float:
        """Returns the work of the device that would take longest for all of it."""
        return max([1e-300, *(float(self.problem.most_work(device)) for device in range(self.problem.num_stages))])

    def variable(self) -> int:
        """Returns a new variable."""
        self.num_variables += 1
        return self.num_variables - 1

    def rows(self) -> Rows:
        """Returns the rows for a solver."""
        cost = np.zeros(self.num_variables)
        cost[list(self.costs)] = np.array(list(self.costs.values())) / self.unit
        row, column, factor = self.entries
        matrix = sparse.csr_matrix((factor, (row, column)), shape=(len(self.high), self.num_variables))
        return Rows(cost, matrix, np.full(len(self.high), -np.inf), np.array(self.high), self.num_integer)

    def stages(self, point: Point) -> Ints:
        """Returns the virtual stage of each node at a whole point."""
        on = point.values > 0.5
        reached = self.windows.first + np.array(
            [sum(bool(on[v]) for v in some.values()) for some in self.switches], dtype=np.int64
        )
        return np.where(self.windows.direction == BACK, self.problem.virtual.opposite(reached), reached)

    def bound(self, scaled: float) -> float:
        """Returns a bound on the rows' objective as a cost or in seconds of work."""
        return self.base + scaled * self.unit

    def scaled(self, cost: float) -> float:
        """Returns a cost, or seconds of work, as the rows' objective has it."""
        return (cost - self.base) / self.unit

    def narrowed(self, values: Ints) -> Windows:
        """Returns the windows that are left where switches have these values, 0 or 1 [variables].

        Values other than 0 and 1 mean nothing.
        """
        first, last = self.windows.first.copy(), self.windows.last.copy()
        for node, some in enumerate(self.switches):
            first[node] += sum(values[variable] == 1 for variable in some.values())
            last[node] -= sum(values[variable] == 0 for variable in some.values())
        return replace(self.windows, first=first, last=last)

    def at_most(self, terms: Term, limit: float) -> None:
        """Adds the row that a sum is at most `limit`, unless it is always."""
        limit -= terms.get(ONE, 0.0)
        kept = {variable: factor for variable, factor in terms.items() if factor and variable != ONE}
        if sum(factor for factor in kept.values() if factor > 0) <= limit:
            return
        rows, columns, factors = self.entries
        rows.extend([len(self.high)] * len(kept))
        columns.extend(kept)
        factors.extend(kept.values())
        self.high.append(limit)

    def deeper(self, node: int, device: int) -> Term:
        """Returns whether a node is on this device or one behind it."""
        if self.windows.direction[node] == EITHER:
            if device >= self.problem.num_stages:
                return {}
            return _less(self._switch(node, device), self._switch(node, self.problem.highest + 1 - device))
        return self._switch(node, device)

    def reached(self, node: int, stage: int) -> Term:
        """Returns whether a node is in this virtual stage or a later one."""
        inner = self.problem.num_stages - 1
        match int(self.windows.direction[node]):
            case direction if direction == BACK:
                above = self.deeper(node, self.problem.highest + 1 - stage) if stage > inner else {}
                return _less({ONE: 1.0}, above)
            case direction if direction == FORWARD and stage > inner:
                return {}
        return self._switch(node, stage)

    def _switch(self, node: int, number: int) -> Term:
        """Returns the switch of a node with this number: on before the first open one, off behind the last."""
        variable = self.switches[node].get(number)
        if variable is not None:
            return {variable: 1.0}
        return {ONE: 1.0} if number <= self.windows.first[node] else {}

    def at(self, node: int, device: int) -> Term:
        """Returns whether a node is on this device."""
        return _less(self.deeper(node, device), self.deeper(node, device + 1))

    def _node_rows(self) -> None:
        for some in self.switches:
            switches = list(some.values())
            for nearer, farther in pairwise(switches):
                self.at_most({farther: 1.0, nearer: -1.0}, 0.0)

    def _directions(self) -> None:
        """Notes for each node those that an edge keeps on its device or behind it: on one way, known beforehand."""
        direction = self.windows.direction.tolist()
        for source, target in zip(self.problem.before.tolist(), self.problem.after.tolist(), strict=True):
            if direction[source] == direction[target] != EITHER:
                outer, inner = (source, target) if direction[source] == FORWARD else (target, source)
                self.inwards.setdefault(outer, set()).add(inner)

    def _is_implied(self, source: int, target: int) -> bool:
        """Says whether two edges of one way lead where this one does."""
        outer, inner = (source, target) if self.windows.direction[source] == FORWARD else (target, source)
        between = self.inwards.get(outer, set())
        return inner in between and any(inner in self.inwards.get(node, ()) for node in between)

    def _edge_rows(self) -> None:
        for source, target in zip(self.problem.before.tolist(), self.problem.after.tolist(), strict=True):
            if self._is_implied(source, target):
                continue
            for stage in range(1, self.problem.highest + 1):
                self.at_most(_less(self.reached(source, stage), self.reached(target, stage)), 0.0)

    def _presence(self, nets: Nets, net: int, device: int) -> Term:
        """Returns whether a net has a node on this device, as a new variable where that is open."""
        terms = {node: term for node in nets.nodes(net).tolist() if any((term := self.at(node, device)).values())}
        if any(term == {ONE: 1.0} for term in terms.values()):
            return {ONE: 1.0}
        for node in self._followers(list(terms), device):
            del terms[node]
        if len(terms) <= 1:
            return next(iter(terms.values()), {})
        found: Term = {self.variable(): 1.0}
        # the outermost device: whether all are behind it, so that rows compare two variables
        if all(ONE in term for term in terms.values()):
            found = _less({ONE: 1.0}, found)
        for term in terms.values():
            self.at_most(_less(term, found), 0.0)
        return found

    def _followers(self, nodes: list[int], device: int) -> list[int]:
        """Returns the nodes that are on a device only if another is.

        The device is the outermost that the other may be on, or the innermost.
        """
        some = set(nodes)
        found: dict[int, None] = {}
        for outer in nodes:
            for inner in sorted(self.inwards.get(outer, set()) & some):
                if self.windows.first[outer] == device:
                    found[inner] = None
                elif self.windows.last[inner] == device:
                    found[outer] = None
        return list(found)

    def _net_costs(self) -> None:
        nets = self.problem.nets
        lowest = np.full(len(nets), self.problem.num_stages)
        highest = np.full(len(nets), -1)
        np.minimum.at(lowest, nets.owner, self.windows.first[nets.node])
        np.maximum.at(highest, nets.owner, self.windows.last[nets.node])
        for net in np.flatnonzero(lowest < highest).tolist():
            size = float(nets.size[net])
            self.fixed_cost -= size
            for device in range(int(lowest[net]), int(highest[net]) + 1):
                for variable, factor in self._presence(nets, net, device).items():
                    if variable == ONE:
                        self.fixed_cost += size * factor
                    else:
                        self.costs[variable] = self.costs.get(variable, 0.0) + size * factor

    def _remat_switches(self, device: int) -> dict[int, int]:
        """Returns a switch for each step of rematerialization that a device may take [steps]."""
        problem, remat = self.problem, self.problem.remat
        if problem.budget_bytes is None or self._most_bytes(device) <= problem.budget_bytes[device]:
            return {}
        is_open = (self.windows.first <= device) & (device <= self.windows.last)
        found: dict[int, int] = {}
        for step, previous in enumerate(remat.previous.tolist()):
            if is_open[remat.nets.nodes(step)].all() and (previous == OPEN or previous in found):
                found[step] = self.variable()
        return found

    def _step_rows(self, device: int, work: Term, memory: Term) -> None:
        """Adds the rows of the steps that a device takes, and what they come to, to its work and its memory."""
        problem, remat, steps = self.problem, self.problem.remat, self.steps[device]
        seconds, in_flight = problem.step_seconds(problem.group_of(device)), float(problem.in_flight()[device])
        ratio = problem.step_bytes_ratio(problem.group_of(device))
        most_bytes = max((float(remat.alive_bytes[step]) for step in steps), default=0.0)
        alive = self.variable() if most_bytes else None
        for step, switch in steps.items():
            if (previous := int(remat.previous[step])) != OPEN:
                self.at_most({switch: 1.0, steps[previous]: -1.0}, 0.0)
            for node in remat.nets.nodes(step).tolist():
                self.at_most(_less({switch: 1.0}, self.at(node, device)), 0.0)
            _add(work, {switch: 1.0}, float(seconds[step]))
            _add(memory, {switch: 1.0}, -in_flight * ratio * float(remat.nets.size[step]))
            if alive is not None:
                self.at_most({switch: float(remat.alive_bytes[step]) / most_bytes, alive: -1.0}, 0.0)
        if alive is not None:
            _add(memory, {alive: 1.0}, ratio * most_bytes)

    def _load_rows(self) -> None:
        problem = self.problem
        for device in range(problem.num_stages):
            work = self._sum(problem.work_on(device), device)
            total: Term = {}
            self._step_rows(device, work, total)
            if self.limit_s is not None:
                self.at_most(_scaled(work, 1 / self.limit_s), 1 + ROUNDING)
            elif self.most_work is not None:
                self.at_most(_less(_scaled(work, 1 / self._all_work()), {self.most_work: 1.0}), 0.0)
            if problem.budget_bytes is None or self._most_bytes(device) <= problem.budget_bytes[device]:
                continue
            own = problem.bytes_of_group(problem.group_of(device))
            _add(total, self._sum(own.own, device), 1.0)
            in_flight = float(problem.in_flight()[device])
            for nets, sizes in ((problem.resident, own.resident), (problem.saved, in_flight * own.saved)):
                for net in range(len(nets)):
                    _add(total, self._presence(nets, net, device), float(sizes[net]))
            self.at_most(_scaled(total, 1 / problem.budget_bytes[device]), 1 + ROUNDING)

    def _most_bytes(self, device: int) -> float:
        """Returns what a device would hold if all nodes were there."""
        own = self.problem.bytes_of_group(self.problem.group_of(device))
        saved = float(own.saved.sum()) * float(self.problem.in_flight()[device])
        return float(own.own.sum()) + float(own.resident.sum()) + saved

    def _sum(self, weights: Floats, device: int) -> Term:
        total: Term = {}
        open_here = (self.windows.first <= device) & (device <= self.windows.last) & (weights > 0)
        for node in np.flatnonzero(open_here).tolist():
            _add(total, self.at(node, device), float(weights[node]))
        return total


def _less(left: Term, right: Term) -> Term:
    result = dict(left)
    _add(result, right, -1.0)
    return result


def _add(total: Term, term: Term, times: float) -> None:
    for variable, factor in term.items():
        total[variable] = total.get(variable, 0.0) + times * factor


def _scaled(term: Term, times: float) -> Term:
    return {variable: factor * times for variable, factor in term.items()}
