"""Which pipeline stage each node belongs to, as plain data (Rhino 5.1, on stages that turn round).

A stage is a device here, and every node is in a *virtual* stage (rhino.ir.plan.stages). Along every edge the virtual
stage may only grow. No constraint names forward and backward nodes: they follow from the choice.

A *net* is what some nodes share: a tensor with who makes and who reads it, or a parameter with its users. It costs its
size once for each device beyond the first that has one of its nodes, however many read it there, in either direction.
Work is a row for each device, and so is memory where there is a budget: what is held on a node's device, what is held
wherever a net has a node, and what is saved for the backward pass in each micro-batch in flight, of which 1F1B keeps
min(m, d - s) on stage s. What is saved may be recomputed instead, step by step, as far as a device's memory asks for
it: that is work (rhino.strategies.pipeline.stages.stage_remat).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.ir.plan.stages import VirtualStages

OPEN = -1
"""A node without a pin."""


@dataclass(frozen=True, slots=True, eq=False)
class Nets:
    """Sets of nodes, each with a size.

    Shapes: `size` [nets]; the nodes of net n are `node[start[n] : start[n + 1]]`, ascending, each once.
    """

    start: Ints
    node: Ints
    size: Floats

    def __len__(self) -> int:
        return len(self.size)

    @property
    def owner(self) -> Ints:
        """Returns the net of each entry of `node`."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def nodes(self, net: int) -> Ints:
        """Returns the nodes of one net."""
        return self.node[self.start[net] : self.start[net + 1]]

    def present(self, place: Ints, num_places: int) -> Bools:
        """Returns whether a net has a node at each place, where node i is at `place[i]` [nets, places]."""
        found = np.zeros((len(self), num_places), dtype=bool)
        found[self.owner, place[self.node]] = True
        return found


def make_nets(members: Iterable[tuple[Iterable[int], float]], least: int = 2) -> Nets:
    """Returns the nets of these nodes and sizes.

    Equal nets are one, and those with fewer than `least` nodes or no size are left out.
    """
    total: dict[tuple[int, ...], float] = {}
    for nodes, size in members:
        key = tuple(sorted(set(nodes)))
        if size > 0 and len(key) >= least:
            total[key] = total.get(key, 0.0) + size
    start = np.cumsum([0, *map(len, total)])
    node = np.array([node for key in total for node in key], dtype=np.int64)
    return Nets(start, node, np.array(list(total.values()), dtype=np.float64))


def merged_nets(nets: Nets, group: Ints, least: int = 2) -> Nets:
    """Returns the nets between groups of nodes, where node i is in `group[i]`."""
    places, bounds = group[nets.node].tolist(), nets.start.tolist()
    return make_nets(
        ((places[a:b], size) for a, b, size in zip(bounds[:-1], bounds[1:], nets.size.tolist(), strict=True)), least
    )


NO_NETS = make_nets(())


@dataclass(frozen=True, slots=True, eq=False)
class RematSteps:
    """Steps of rematerialization, each of nodes that have to be on one device for it.

    Shapes: `nets` [steps] have the nodes of each step, and as size the bytes that it frees of a micro-batch; `seconds`
    [steps] are added to each; `alive_bytes` [steps] are there again while it is recomputed; `previous` [steps] is the
    step that is taken before, of a smaller number, `OPEN` for none. `stash_bytes` [nodes] is what nodes make of all
    that a micro-batch stashes, of which the steps free a part.
    """

    nets: Nets
    seconds: Floats
    alive_bytes: Floats
    previous: Ints
    stash_bytes: Floats

    def __len__(self) -> int:
        return len(self.seconds)

    def grouped(self, group: Ints) -> RematSteps:
        """Returns the steps where node i is in `group[i]`."""
        if not len(self):
            return self
        nodes = [np.unique(group[self.nets.nodes(step)]) for step in range(len(self))]
        stash_bytes = np.bincount(group, weights=self.stash_bytes).astype(np.float64)
        return replace(self, nets=nets_of(nodes, self.nets.size), stash_bytes=stash_bytes)


def nets_of(nodes: Sequence[Ints], size: Floats) -> Nets:
    """Returns nets of these nodes, each ascending, and sizes, as they are."""
    start = np.cumsum([0, *map(len, nodes)])
    return Nets(start, np.concatenate([np.zeros(0, dtype=np.int64), *nodes]), size)


NO_STEPS = RematSteps(NO_NETS, np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class GroupBytes:
    """What a device of a group holds, where its mesh is another one.

    Shapes: `own` [nodes], and the sizes of nets that are `resident` and `saved` [nets each], as a `StageProblem` has
    them.
    """

    own: Floats
    resident: Floats
    saved: Floats


def time_ratios(works: Sequence[Floats], work: Floats) -> Floats:
    """Returns how many times `work` [nodes] nodes take in each group, of which `works` has the seconds [groups, nodes].

    A node without work takes as many times as all nodes.
    """
    mean = [float(one.sum()) / max(float(work.sum()), 1e-300) for one in works]
    found = [np.where(work > 0, one / np.maximum(work, 1e-300), share) for one, share in zip(works, mean, strict=True)]
    return np.array(found) if found else np.zeros((0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class StageProblem:
    """What is to be cut in stages.

    Shapes: `work` [nodes]; `apart` [nodes], what it takes more on all devices but the last, which alone does both ways
    in one program, and `again` [nodes], what of that is spent in the backward pass of what is forward, both none if
    empty; `before`, `after` [edges]: node `before[e]`, a smaller number, may be in no later virtual stage than
    `after[e]`; `pinned` [nodes], a virtual stage or `OPEN`; `late` [nodes] marks what runs after the step on one device
    holds most: a guess at what is in the backward pass, from which nothing follows but where heuristics begin and what
    counts as saved; `turns` are other such guesses [nodes each]; `own_bytes` [nodes]; `budget_bytes` [devices]. Where a
    step only goes forward, as one of inference, `turns_round` is false, and nothing may be in a virtual stage of the
    backward pass. Units: `work`, `apart` and `again` in seconds per micro-batch; `resident` and `saved` in bytes;
    `nets` in what is to be least, seconds of a link per step if `in_seconds`, else, where none is known, bytes.

    Where what is saved may be recomputed, `remat` has the steps.

    Where devices are unlike, `group` [devices] says of which group each is, and `time_ratio` [groups, nodes] how many
    times the seconds above a node takes there. Where their meshes are unlike too, `group_bytes` [groups] has the bytes
    there, in place of those above.
    """

    num_stages: int
    num_micro_batches: int
    work: Floats
    before: Ints
    after: Ints
    nets: Nets
    pinned: Ints
    late: Bools
    own_bytes: Floats
    resident: Nets = field(default_factory=lambda: NO_NETS)
    saved: Nets = field(default_factory=lambda: NO_NETS)
    budget_bytes: tuple[float, ...] | None = None
    turns: tuple[Bools, ...] = ()
    turns_round: bool = True
    apart: Floats = field(default_factory=lambda: np.zeros(0))
    again: Floats = field(default_factory=lambda: np.zeros(0))
    in_seconds: bool = False
    remat: RematSteps = field(default_factory=lambda: NO_STEPS)
    group: tuple[int, ...] = ()
    time_ratio: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    group_bytes: tuple[GroupBytes, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.work)

    @property
    def virtual(self) -> VirtualStages:
        """The virtual stages that nodes may be in, and the devices that these are on."""
        return VirtualStages(self.num_stages)

    @property
    def highest(self) -> int:
        """The last virtual stage that a node may be in."""
        return self.virtual.last if self.turns_round else self.num_stages - 1

    def in_flight(self) -> Floats:
        """Returns how many micro-batches each device keeps alive [devices]."""
        return np.minimum(self.num_micro_batches, self.num_stages - np.arange(self.num_stages)).astype(np.float64)

    def device(self, stage: Ints) -> Ints:
        """Returns the device of each virtual stage."""
        return self.virtual.device(stage)

    def cost(self, device: Ints) -> float:
        """Returns what crosses between devices in a step, where node i is on `device[i]`, in the unit of `nets`."""
        counts = self.nets.present(device, self.num_stages).sum(axis=1)
        return float(self.nets.size @ np.maximum(counts - 1, 0))

    def device_work(self, device: Ints) -> Floats:
        """Returns the seconds of each device per micro-batch, where nothing is recomputed [devices]."""
        apart = np.where(device < self.num_stages - 1, self.apart, 0.0) if len(self.apart) else 0.0
        seconds = (self.work + apart) * self.time_ratio_at(device)
        return np.bincount(device, weights=seconds, minlength=self.num_stages).astype(np.float64)

    def work_on(self, device: int) -> Floats:
        """Returns the seconds that each node takes on a device, per micro-batch [nodes]."""
        return self.work_of_group(self.group_of(device), is_last=device == self.num_stages - 1)

    def work_of_group(self, group: int, *, is_last: bool) -> Floats:
        """Returns the seconds that each node takes on a device of a group, which may be the last [nodes]."""
        work = self.work if is_last or not len(self.apart) else self.work + self.apart
        return work * self.time_ratio[group] if len(self.time_ratio) else work

    def most_work(self, device: int) -> float:
        """Returns the seconds of a device that has all nodes, and recomputes all that can be."""
        return float(self.work_on(device).sum() + self.step_seconds(self.group_of(device)).sum())

    def group_of(self, device: int) -> int:
        """Returns the group of a device; where all are alike there is one."""
        return self.group[device] if self.group else 0

    @property
    def num_groups(self) -> int:
        """Number of groups of devices."""
        return max(1, len(self.time_ratio))

    def time_ratio_at(self, device: Ints) -> Floats | float:
        """Returns how many times its seconds each node takes where node i is on `device[i]` [nodes], 1 where all do."""
        if not len(self.time_ratio):
            return 1.0
        found: Floats = self.time_ratio[np.array(self.group)[device], np.arange(self.num_nodes)]
        return found

    def rates(self) -> Floats:
        """Returns how much of the work above each device does in the time of a device that takes 1 for 1 [devices]."""
        total = float(self.work.sum())
        rate = np.array([total / max(float(self.work @ one), 1e-300) for one in self.time_ratio] or [1.0])
        found: Floats = rate[[self.group_of(device) for device in range(self.num_stages)]]
        return found

    def shares(self) -> Floats:
        """Returns what each device does of all work in the same time, in even shares [devices]."""
        rates = self.rates()
        found: Floats = rates * (self.num_stages / rates.sum())
        return found

    def step_seconds(self, group: int) -> Floats:
        """Returns the seconds that each step of rematerialization adds on a device of a group [steps]."""
        if not len(self.time_ratio):
            return self.remat.seconds
        nets, ratio = self.remat.nets, self.time_ratio[group]
        work, there = (np.bincount(nets.owner, one[nets.node], len(nets)) for one in (self.work, self.work * ratio))
        mean = np.bincount(nets.owner, ratio[nets.node], len(nets)) / np.maximum(np.diff(nets.start), 1)
        found: Floats = self.remat.seconds * np.where(work > 0, there / np.maximum(work, 1e-300), mean)
        return found

    def bytes_of_group(self, group: int) -> GroupBytes:
        """Returns what a device of a group holds of nodes and nets."""
        if not self.group_bytes:
            return GroupBytes(self.own_bytes, self.resident.size, self.saved.size)
        return self.group_bytes[group]

    def step_bytes_ratio(self, group: int) -> float:
        """Returns how many times the bytes above a step of rematerialization frees on a device of a group.

        Steps are of what is saved, so that is how much more or less of it there is.
        """
        saved = float(self.saved.size.sum())
        return float(self.bytes_of_group(group).saved.sum()) / saved if saved else 1.0

    def kept_memory(self, device: Ints) -> Floats:
        """Returns the bytes on each device throughout a step, where node i is on `device[i]` [devices]."""
        present = self.resident.present(device, self.num_stages)

        def kept(own: GroupBytes) -> Floats:
            found: Floats = np.bincount(device, weights=own.own, minlength=self.num_stages) + own.resident @ present
            return found

        return self._by_device(kept)

    def device_memory(self, device: Ints) -> Floats:
        """Returns the bytes on each device, where nothing is recomputed [devices]."""
        present = self.saved.present(device, self.num_stages)
        saved = self._by_device(lambda own: own.saved @ present)
        result: Floats = self.kept_memory(device) + saved * self.in_flight()
        return result

    def _by_device(self, figures: Callable[[GroupBytes], Floats]) -> Floats:
        """Returns figures [devices], that of each device from those of its group."""
        groups = [self.group_of(device) for device in range(self.num_stages)]
        found = {group: figures(self.bytes_of_group(group)) for group in dict.fromkeys(groups)}
        return np.array([found[group][device] for device, group in enumerate(groups)])

    def is_legal(self, stage: Ints) -> bool:
        """Says whether the virtual stages grow along edges and honour the pins."""
        pinned = self.pinned != OPEN
        in_range = bool(((stage >= 0) & (stage <= self.highest)).all())
        grows = bool((stage[self.before] <= stage[self.after]).all())
        return in_range and grows and bool((stage[pinned] == self.pinned[pinned]).all())


ROUNDING = 1e-9
"""Relative: by how much a sum in floating point may be over a limit that it stands at."""
