"""A program as a problem of stages: nodes for its ops, nets for what they share, and back.

A node is an op of the micro-batch, or a whole loop in it. Of what comes after, ops that share tensors are one node, and
if they start from one value of the accumulation loop, they are of the node that makes it: a parameter's update goes
where its gradient is summed. Where they start from several, each op is a node. A scalar that is a node's own, such as a
norm of one gradient, ties nothing together.

A tensor of the micro-batch is a net that is sent once per micro-batch; what comes out of the accumulation loop, and an
argument with its users, once per step. What is made of one argument alone before the loop stands for the argument. A
transfer costs the seconds that it takes of a link between stages: so many for itself, and so many for its bytes. Where
no link is known, it costs its bytes.

A running sum is of the node that makes what is added, unless a pin says where either is: elsewhere that would cross in
every micro-batch, where the sum's parameter crosses once in a step. What is larger than all that is added to it in a
step, and what several nodes add to, is a node of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.ir.cluster.hardware import Line
from rhino.ir.graph.graph import Graph
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.pipeline.split_backward_cost import SplitBackwardCost
from rhino.strategies.pipeline.stages.stage_problem import OPEN, GroupBytes, Nets, StageProblem, make_nets, time_ratios
from rhino.strategies.solver.connected_components import components
from rhino.strategies.structure.training_phases import TrainingPhases, sources_of

NO_NODE = -1

_STACKS = "stablehlo.dynamic_update_slice"


@dataclass(frozen=True, slots=True, eq=False)
class Staging:
    """A problem of stages, and where the ops of the program are in it.

    Shapes: `node` [ops], `NO_NODE` for what has none: what costs nothing, and what comes before the accumulation loop;
    `net_bytes` and `net_transfers` [nets of the problem], what a net sends per step to each device beyond the first,
    and how often. `readers` are the ops of the micro-batch and after it that read each value. Where devices have meshes
    of their own, `group_net_bytes` [groups], each [nets], is what a net sends there, and the problem's nets are of the
    group where that is most.
    """

    graph: Graph
    parts: TrainingPhases
    problem: StageProblem
    node: Ints
    net_bytes: Floats
    net_transfers: Floats
    readers: Mapping[int, Sequence[int]]
    group_net_bytes: tuple[Floats, ...] = ()

    def nets_between(self, groups: Collection[int], link: Line) -> Nets:
        """Returns the problem's nets, in seconds of a link, if they are sent between devices of these groups alone."""
        if not self.group_net_bytes:
            return self.problem.nets
        size = np.max([self.group_net_bytes[group] for group in groups], axis=0)
        return replace(self.problem.nets, size=self.net_transfers * link.fixed_s + size / link.per_s)

    def moved(self, device: Ints) -> tuple[float, int]:
        """Returns the bytes and the transfers between devices in a step where node i is on `device[i]`."""
        beyond = np.maximum(self.problem.nets.present(device, self.problem.num_stages).sum(axis=1) - 1, 0)
        return float(self.net_bytes @ beyond), round(float(self.net_transfers @ beyond))


@dataclass(frozen=True, slots=True, eq=False)
class UnlikeDevices:
    """How devices differ.

    Shapes: `group` [devices] is that of each device, and `time_ratio` [groups, ops] how many times its seconds an op
    takes there. Where groups have meshes of their own, `value_bytes` [groups], each [values], is what each copy of a
    value takes on a device.
    """

    group: tuple[int, ...]
    time_ratio: Floats
    value_bytes: tuple[Floats, ...] = ()

    def rates(self, seconds: Floats) -> list[float]:
        """Returns how many of the `seconds` of ops [ops] each device does in one [devices]."""
        taken: list[float] = (self.time_ratio @ seconds).tolist()
        total = float(seconds.sum())
        return [total / taken[group] if total else 1.0 for group in self.group]


def make_staging(
    graph: Graph,
    parts: TrainingPhases,
    num_stages: int,
    num_micro_batches: int,
    pins: Mapping[int, int] | None = None,
    budget_bytes: Sequence[float] | None = None,
    value_bytes: Floats | None = None,
    link: Line | None = None,
    split: SplitMicroBatch | None = None,
    apart: SplitBackwardCost | None = None,
    unlike: UnlikeDevices | None = None,
) -> Staging:
    """Returns the problem of cutting a program in stages; `pins` are (virtual) stages of ops that have nodes.

    `value_bytes` [values] is what each value takes, each copy of it, where that is not its whole size. `link` is what
    one array takes from a stage to another: with it transfers cost seconds, without it bytes. `split` is what the
    program stashes in its forward pass for its backward pass, if that is known already, and `apart` what it takes
    more where these are two programs, if that is to count. `budget_bytes` [devices] is what each device may hold, and
    `unlike` says how devices differ, if they do.
    """
    sizes = graph.value_bytes() if value_bytes is None else value_bytes
    split = split or SplitMicroBatch(graph, parts, sizes * graph.copies())
    return _Builder(
        split, num_stages, num_micro_batches, pins or {}, budget_bytes, sizes.tolist(), link, apart, unlike
    ).build()


def _in_all_nets(sizes: Sequence[Floats]) -> list[Floats]:
    """Returns the bytes of values on each of some meshes, each [values], so that nets are of the same values on all.

    A net without a size is left out. So what lies in host memory on one of them, and takes nothing, counts a byte.
    """
    takes = np.any([own > 0 for own in sizes], axis=0)
    return [np.where(takes & (own == 0), 1.0, own) for own in sizes]


_Sent = tuple[list[int], int, int]
"""The nodes of a net, the value that is sent, and how often in a step."""

_Held = tuple[list[int], int]
"""The nodes of a net, and the value that is held where they are."""


class _Builder:
    def __init__(
        self,
        split: SplitMicroBatch,
        num_stages: int,
        num_micro_batches: int,
        pins: Mapping[int, int],
        budget_bytes: Sequence[float] | None,
        value_bytes: list[float],
        link: Line | None,
        apart: SplitBackwardCost | None,
        unlike: UnlikeDevices | None,
    ) -> None:
        graph, parts = split.graph, split.parts
        self.split, self.link, self.apart, self.unlike = split, link, apart, unlike
        self.graph, self.parts, self.pins = graph, parts, pins
        # Between unlike meshes a device of that on which more of a value lies has as much to send, or to receive.
        every = [value_bytes, *(own.tolist() for own in unlike.value_bytes)] if unlike else [value_bytes]
        self.value_bytes = [max(sizes) for sizes in zip(*every, strict=True)]
        self.num_stages, self.num_micro_batches, self.budget_bytes = num_stages, num_micro_batches, budget_bytes
        own, *of_groups = _in_all_nets([np.array(sizes) * graph.copies() for sizes in every])
        self.total_bytes: list[float] = own.tolist()
        self.group_bytes: list[list[float]] = [sizes.tolist() for sizes in of_groups]
        self.value_op: list[int] = graph.value_op.tolist()
        self.ranked: list[bool] = np.array([bool(kind.shape) for kind in graph.types])[graph.value_type].tolist()
        self.carried: dict[int, int] = {}
        if parts.loop is not None:
            self.carried = dict(zip(graph.results(parts.loop.op), graph.operands(parts.loop.end).tolist(), strict=True))
        self.sources = sources_of(graph, parts)
        self.roots = self._roots()
        self.reads = self._reads()

    def _roots(self) -> list[int]:
        """Returns the argument that each value from outside the loop stands for, or itself [values]."""
        root = list(range(self.graph.num_values))
        if self.parts.loop is None:
            return root
        before = np.flatnonzero(~self.parts.body & ~self.parts.apply).tolist()
        for op in (op for op in before if op < self.parts.loop.op):
            made_of = {root[source] for value in self.graph.operands(op).tolist() for source in self.sources[value]}
            for value in self.graph.results(op):
                root[value] = next(iter(made_of)) if len(made_of) == 1 else value
        for value, kept, start in zip(
            self.carried, self.parts.loop.kept, self.graph.operands(self.parts.loop.op).tolist(), strict=True
        ):
            root[value] = root[start] if kept else value
        return root

    def _reads(self) -> list[list[int]]:
        """Returns the values that each op reads in truth [ops].

        It looks through what costs nothing and what stands for arguments.
        """
        found: list[list[int]] = [[] for _ in range(self.graph.num_ops)]
        for op in np.flatnonzero((self.parts.body | self.parts.apply) & ~self.parts.free).tolist():
            read = [source for value in self.graph.operands(op).tolist() for source in self.sources[value]]
            found[op] = list(dict.fromkeys(self.roots[value] for value in read))
        return found

    def maker(self, value: int, after: bool) -> int:
        """Returns the op of the micro-batch or after it that makes a value, as it is read in or after the loop.

        The result is -1 where there is none.
        """
        op = self.value_op[value]
        if after and value in self.carried:
            op = self.value_op[self.carried[value]]
        return op if op >= 0 and (self.parts.body[op] or self.parts.apply[op]) and not self.parts.free[op] else -1

    def build(self) -> Staging:
        """Returns the problem."""
        node = self._nodes()
        before, after = self._edges(node)
        num_nodes = int(node.max(initial=-1)) + 1
        placed = np.flatnonzero(node >= 0)
        body = placed[self.parts.body[placed]]
        work = np.zeros(num_nodes)
        np.add.at(work, node[body], self.parts.seconds[body])
        pinned = np.full(num_nodes, OPEN, dtype=np.int64)
        for op, stage in self.pins.items():
            pinned[node[op]] = stage
        sent, outside = self._nets(node)
        resident = [*outside, *self._made_before(node)]
        turns_round = self._turns_round()
        late, others, saved = self._saved(node) if turns_round else _never(num_nodes)

        def bytes_of(sizes: Sequence[float]) -> Floats:
            return make_nets((users, times * sizes[value]) for users, value, times in sent).size

        def nets_of(members: Iterable[_Held], sizes: Sequence[float]) -> Nets:
            return make_nets(((nodes, float(sizes[value])) for nodes, value in members), least=1)

        more, again = np.zeros(num_nodes), np.zeros(num_nodes)
        if turns_round and self.apart is not None:
            np.add.at(more, node[body], self.apart.more_s[body])
            np.add.at(again, node[body], self.apart.again_s[body])
        problem = StageProblem(
            num_stages=self.num_stages,
            num_micro_batches=self.num_micro_batches,
            work=work,
            before=before,
            after=after,
            nets=make_nets(
                (users, times * (self.link.seconds(self.value_bytes[value]) if self.link else self.value_bytes[value]))
                for users, value, times in sent
            ),
            pinned=pinned,
            late=late,
            own_bytes=self._own_bytes(node, num_nodes, self.total_bytes),
            resident=nets_of(resident, self.total_bytes),
            saved=nets_of(saved, self.total_bytes),
            budget_bytes=None if self.budget_bytes is None else tuple(self.budget_bytes),
            turns=tuple(others),
            turns_round=turns_round,
            in_seconds=self.link is not None,
            apart=np.maximum(more + again, -work) if more.any() or again.any() else np.zeros(0),
            again=again if again.any() else np.zeros(0),
            group=self.unlike.group if self.unlike else (),
            time_ratio=self._time_ratio(node, body, work),
            group_bytes=tuple(
                [
                    GroupBytes(
                        self._own_bytes(node, num_nodes, own), nets_of(resident, own).size, nets_of(saved, own).size
                    )
                    for own in self.group_bytes
                ]
            ),
        )
        net_bytes = bytes_of(self.value_bytes)
        of_groups = tuple([bytes_of(own.tolist()) for own in (self.unlike.value_bytes if self.unlike else ())])
        net_transfers = make_nets((users, float(times)) for users, _, times in sent).size
        return Staging(self.graph, self.parts, problem, node, net_bytes, net_transfers, self._readers(), of_groups)

    def _own_bytes(self, node: Ints, num_nodes: int, total_bytes: Sequence[float]) -> Floats:
        """Returns the bytes of the sums that each node makes [nodes], where values take `total_bytes` [values]."""
        found: Floats = np.zeros(num_nodes)
        for value, returned in self.carried.items():
            if (op := self.value_op[returned]) >= 0 and node[op] >= 0 and self.roots[value] == value:
                found[node[op]] += total_bytes[value]
        return found

    def _time_ratio(self, node: Ints, body: Ints, work: Floats) -> Floats:
        """Returns how many times `work` [nodes] nodes take in each group [groups, nodes]."""
        works = []
        for ratio in self.unlike.time_ratio if self.unlike else ():
            works.append(np.zeros(len(work)))
            np.add.at(works[-1], node[body], self.parts.seconds[body] * ratio[body])
        return time_ratios(works, work)

    def _readers(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for op in np.flatnonzero(self.parts.body | self.parts.apply).tolist():
            for value in self.graph.operands(op).tolist():
                found.setdefault(value, []).append(op)
        return found

    def _nodes(self) -> Ints:
        """Returns the node of each op [ops].

        Nodes are numbered in program order. Those after the loop are last, or are the node of what they belong to.
        """
        key = np.full(self.graph.num_ops, NO_NODE, dtype=np.int64)
        body = np.flatnonzero(self.parts.body & ~self.parts.free)
        key[body] = body
        for loop in self.graph.loops[::-1]:  # outer loops last
            if self.parts.body[loop.op]:
                key[loop.op : loop.end + 1] = loop.op
        self._join_sums(key)
        self._join_updates(key)
        used, node = np.unique(key, return_inverse=True)
        return node.astype(np.int64) - int(bool(len(used)) and used[0] == NO_NODE)

    def _join_sums(self, key: Ints) -> None:
        """Gives what adds to a value that the loop carries the key of the one node that makes what is added."""
        for value, returned in self.carried.items():
            op = self.value_op[returned]
            if (
                op < 0
                or not self.parts.body[op]
                or self.parts.free[op]
                or value not in self.reads[op]
                or op in self.pins
            ):
                continue
            added = [other for other in self.reads[op] if other not in self.carried]
            makers = {self.maker(other, after=False) for other in added}
            if -1 in makers or len({int(key[maker]) for maker in makers}) != 1 or not makers.isdisjoint(self.pins):
                continue
            if self.num_micro_batches * sum(self.value_bytes[other] for other in added) >= self.value_bytes[value]:
                key[op] = key[min(makers)]

    def _join_updates(self, key: Ints) -> None:
        """Gives the ops after the loop that share tensors one key.

        It is the key of the op in the loop that they start from, if there is one alone.
        """
        ops = np.flatnonzero(self.parts.apply & ~self.parts.free)
        in_body = {value for op in np.flatnonzero(self.parts.body).tolist() for value in self.reads[op]}
        users: dict[int, list[int]] = {}
        starts: dict[int, set[int]] = {}
        for op in ops.tolist():
            for value in self.reads[op]:
                made_by = self.maker(value, after=True)
                if not self.ranked[value] or (made_by < 0 and value in in_body):
                    continue
                users.setdefault(value, [made_by] if made_by >= 0 and self.parts.apply[made_by] else []).append(op)
                if made_by >= 0 and self.parts.body[made_by]:
                    starts.setdefault(op, set()).add(int(key[made_by]))
        pairs = [(group[0], other) for group in users.values() for other in group[1:]]
        member = components(self.graph.num_ops, pairs)
        from_body: dict[int, set[int]] = {}
        for op, anchors in starts.items():
            from_body.setdefault(int(member[op]), set()).update(anchors)
        pinned = {int(member[op]) for op in self.pins if self.parts.apply[op]}
        first: dict[int, int] = {}
        for op in ops.tolist():
            group = int(member[op])
            anchors = from_body.get(group, set())
            if len(anchors) > 1 or group in pinned:
                key[op] = op
            else:
                key[op] = next(iter(anchors)) if anchors else first.setdefault(group, op)

    def _edges(self, node: Ints) -> tuple[Ints, Ints]:
        """Returns the nodes of the micro-batch before and after each edge."""
        pairs = {
            (int(node[made_by]), int(node[op])): None
            for op in np.flatnonzero(self.parts.body & ~self.parts.free).tolist()
            for value in self.reads[op]
            if (made_by := self.maker(value, after=False)) >= 0
            and self.parts.body[made_by]
            and node[made_by] != node[op]
        }
        ends = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]

    def _nets(self, node: Ints) -> tuple[list[_Sent], Iterable[_Held]]:
        """Returns the nets with what each sends per step, and those that are held wherever they have a node."""
        in_loop: dict[int, list[int]] = {}
        per_step: dict[int, list[int]] = {}
        for op in np.flatnonzero(node >= 0).tolist():
            after = bool(self.parts.apply[op])
            for value in self.reads[op]:
                made_by = self.maker(value, after)
                if after and not self.ranked[value]:
                    continue
                once = after or (made_by < 0 and value not in self.carried)
                users = per_step if once else in_loop
                users.setdefault(value, []).append(int(node[op]))
                if value in self.carried and not after:
                    # a sum is where it is made from one micro-batch to the next
                    made_by = self.maker(value, after=True)
                if made_by >= 0:
                    users[value].append(int(node[made_by]))
        if self.parts.loop is None:  # a tensor that is read in both parts is sent once
            per_step = {value: users + in_loop.pop(value, []) for value, users in per_step.items()}
        times = 1 if self.parts.loop is None else self.num_micro_batches
        once_sent = self._summands()
        sent = [(users, value, 1 if value in once_sent else times) for value, users in in_loop.items()]
        sent += [(users, value, 1) for value, users in per_step.items()]
        outside = {
            value: users for value, users in per_step.items() if value not in self.carried and not self._is_made(value)
        }
        return [one for one in sent if self.value_bytes[one[1]]], ((users, value) for value, users in outside.items())

    def _made_before(self, node: Ints) -> Iterator[_Held]:
        """Yields what is made before the loop, such as casts of parameters.

        Each stage that reads it has its own, beside the argument.
        """
        loop = self.parts.loop
        if loop is None:
            return
        starts = self.graph.operands(loop.op).tolist()
        came_from = {value: start for value, start, kept in zip(self.carried, starts, loop.kept, strict=True) if kept}
        users: dict[int, list[int]] = {}
        for op in np.flatnonzero(node >= 0).tolist():
            for value in (source for operand in self.graph.operands(op).tolist() for source in self.sources[operand]):
                start = came_from.get(value, value)
                made_by = self.value_op[start]
                if 0 <= made_by < loop.op and not self.parts.free[made_by]:
                    users.setdefault(start, []).append(int(node[op]))
        for value, nodes in users.items():
            yield nodes, value

    def _summands(self) -> set[int]:
        """Returns the values that are added up to a sum over micro-batches, and nothing else.

        Each rank adds up its own.
        """
        found: set[int] = set()
        if self.parts.loop is None:
            return found
        bounds = self.graph.use_start[[self.parts.loop.op + 1, self.parts.loop.end + 1]]
        num_uses = np.bincount(self.graph.uses[slice(*bounds)], minlength=self.graph.num_values)
        for value, returned in self.carried.items():
            op = self.value_op[returned]
            if self.ranked[value] and self._adds(op) and num_uses[value] == num_uses[returned] == 1:
                waiting = [other for other in self.graph.operands(op).tolist() if other != value]
                if len(waiting) != 1:
                    continue
                while waiting:
                    one = waiting.pop()
                    if self._adds(self.value_op[one]) and num_uses[one] == 1:
                        waiting += (summands := self.graph.operands(self.value_op[one]).tolist())
                        found.update(other for other in summands if num_uses[other] == 1)
        return found

    def _adds(self, op: int) -> bool:
        return op >= 0 and bool(self.parts.body[op]) and self.graph.cls(op).name == "stablehlo.add"

    def _is_made(self, value: int) -> bool:
        op = self.value_op[value]
        return op >= 0 and bool(self.parts.body[op] or self.parts.apply[op])

    def _turns_round(self) -> bool:
        """Says whether a micro-batch may have a backward pass.

        A step without one sums scalars alone, and stacks what it gives.
        """
        if self.parts.loop is None or any(stage >= self.num_stages for stage in self.pins.values()):
            return True
        ends = [(value, self.value_op[returned]) for value, returned in self.carried.items() if self.ranked[value]]
        return any(self.roots[value] == value and op >= 0 and self.graph.cls(op).name != _STACKS for value, op in ends)

    def _saved(self, node: Ints) -> tuple[Bools, list[Bools], Sequence[_Held]]:
        """Returns which nodes run after most of a micro-batch is stored, other guesses of that, and what is saved.

        What is saved would be stashed if the step were split into two programs where most is stored. It comes with
        the nodes that need it.
        """
        saved = [([int(node[op]) for op in ops], value) for value, ops in self.split.halves.kept.items()]
        ops = np.flatnonzero(self.parts.body & (node >= 0)).tolist()
        late, *others = [_behind(turn, ops, node) for turn in dict.fromkeys(self.split.turns)]
        return late, [one for one in others if not np.array_equal(one, late)], saved


def _never(num_nodes: int) -> tuple[Bools, list[Bools], Sequence[_Held]]:
    """Returns what `_saved` does for a step without a backward pass."""
    return np.zeros(num_nodes, dtype=bool), [], ()


def _behind(turn: int, ops: list[int], node: Ints) -> Bools:
    """Returns which nodes are behind an op alone: a loop that stands there is not [nodes]."""
    late = np.zeros(int(node.max(initial=-1)) + 1, dtype=bool)
    late[node[[op for op in ops if op > turn]]] = True
    late[node[[op for op in ops if op <= turn]]] = False
    return late
