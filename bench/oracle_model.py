"""The choice problem of a small program: a second reading of docs/costs.md and docs/specs.md.

It is written without the search's code. Nothing of Rhino is imported. A spec is a tuple with an entry for each axis,
outermost first: "R" replicated, "P" a partial sum, or the dim that is split. What the pages say, and where it is here:

- how an op may run: `_Runs`. Along each axis all of it, a block of one factor, or on partial sums where it is linear in
  these;
- what it takes: `Model.run_s`, the longer of arithmetic and memory, as often as loops run it;
- what lies in memory: `_in_memory`. Arguments, results, and what somebody reads who computes nothing inside of a loop;
- the way from spec to spec: `way`, and `Model.move_s` for the seconds of its collectives;
- what is chosen: `problem_of`. How arguments are stored, how ops run, and how what several read, or loops carry, is
  stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray
from small_programs import Op, Shape, SmallProgram

Entry = str | int
Spec = tuple[Entry, ...]
Specs = tuple[Spec, ...]
Floats = NDArray[np.float64]

_COSTLY = ("tanh", "exponential", "divide")
_LINEAR = {
    "add": [{0, 1}],
    "subtract": [{0, 1}],
    "multiply": [{0}, {1}],
    "product": [{0}, {1}],
    "divide": [{0}],
    "negate": [{0}],
    "sum": [{0}],
    "transpose": [{0}],
    "broadcast": [{0}],
    "reshape": [{0}],
}
"""Of which operands together an op is linear: these may be partial sums, and so is then its result."""

_ELEMENTWISE = frozenset(["tanh", "negate", "exponential", "abs", "add", "multiply", "subtract", "maximum", "divide"])
_IN_LOOPS = _ELEMENTWISE | {"transpose", "broadcast", "reshape", "constant"}
"""What is computed inside of its reader's loop."""


@dataclass(frozen=True)
class Axis:
    """Devices in a row: seconds of a step, and bytes per second in rings and where all talk to all.

    `measured` is what was measured by kind of collective.
    """

    size: int
    step_s: float
    ring_per_s: float
    all_per_s: float
    measured: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Rates of one device, its fixed times, and the axes of the mesh, outermost first.

    Rates are operations and bytes per second.
    """

    products_per_s: float
    others_per_s: float
    costly_per_s: float
    memory_per_s: float
    axes: tuple[Axis, ...]
    kernel_s: float = 0.0
    launch_s: float = 0.0
    array_s: float = 0.0


@dataclass
class Node:
    """Something to choose: what each state needs of operands and gives as results, and its seconds [states]."""

    kind: str
    states: list[tuple[Specs, Specs]]
    seconds: Floats


@dataclass
class Problem:
    """Nodes, and the seconds between two of them [states of the first, states of the second].

    The first of the two has the lower number.
    """

    nodes: list[Node]
    edges: dict[tuple[int, int], Floats]


# How ops may run


@dataclass
class _Rule:
    """The factors of each dim of operands and of the result, the most significant first.

    With them come their sizes, which of them are summed, and how.
    """

    operands: list[list[list[int]]]
    result: list[list[int]]
    sizes: list[int]
    summed: set[int]
    by: str = "sum"


def _rule(op: Op, operands: Sequence[Shape]) -> _Rule:
    if op.name in _ELEMENTWISE:
        dims = [[dim] for dim in range(len(op.shapes[0]))]
        return _Rule([dims] * len(operands), dims, list(op.shapes[0]), set())
    if op.name == "product":
        return _product_rule(op, *operands)
    (shape,) = operands
    own = [[dim] for dim in range(len(shape))]
    match op.name:
        case "sum" | "largest":
            left = [[dim] for dim in range(len(shape)) if dim not in op.dims]
            return _Rule([own], left, list(shape), set(op.dims), op.name)
        case "transpose":
            return _Rule([own], [[dim] for dim in op.dims], list(shape), set())
        case "broadcast":
            dims = [[dim] for dim in range(len(op.shapes[0]))]
            return _Rule([[[dim] for dim in op.dims]], dims, list(op.shapes[0]), set())
    return _reshape_rule(shape, op.shapes[0])


def _product_rule(op: Op, left: Shape, right: Shape) -> _Rule:
    pairs = list(zip(op.dims[::2], op.dims[1::2], strict=True))
    sizes: list[int] = []
    a: list[list[int]] = [[] for _ in left]
    b: list[list[int]] = [[] for _ in right]
    for i, j in pairs:
        a[i], b[j] = [len(sizes)], [len(sizes)]
        sizes.append(left[i])
    summed = set(range(op.count, len(sizes)))
    for side, shape in ((a, left), (b, right)):
        for dim, extent in enumerate(shape):
            if not side[dim]:
                side[dim] = [len(sizes)]
                sizes.append(extent)
    first, second = ([one for one in side if one[0] >= len(pairs)] for side in (a, b))
    return _Rule([a, b], [[n] for n in range(op.count)] + first + second, sizes, summed)


def _reshape_rule(before: Shape, after: Shape) -> _Rule:
    """Returns the rule of a reshape: dims on either side that span the same elements share factors.

    Elements stay in order, and the factors are those of the side that has more dims.
    """
    sizes: list[int] = []
    sides: list[list[list[int]]] = [[], []]
    at = [0, 0]
    while at[0] < len(before) or at[1] < len(after):
        parts: list[list[int]] = [[], []]
        while not parts[0] or prod(parts[0]) != prod(parts[1]):
            side = int(bool(parts[0]) and (not parts[1] or prod(parts[1]) < prod(parts[0])))
            parts[side].append((before, after)[side][at[side]])
            at[side] += 1
        assert min(map(len, parts)) == 1, "one dim becomes several, or several one"
        finer = max(parts, key=len)
        factors = list(range(len(sizes), len(sizes) + len(finer)))
        sizes += finer
        for side in (0, 1):
            sides[side] += [factors] if len(parts[side]) == 1 else [[factor] for factor in factors]
    return _Rule([sides[0]], sides[1], sizes, set())


@dataclass(frozen=True)
class _Run:
    """One way to run an op; `is_sum` says that partial results are joined by adding."""

    needs: Specs
    comes: Spec
    shares: int
    is_sum: bool


class _Runs:
    """Every way to run an op on a mesh: along each axis in turn, on what the axes before have left."""

    def __init__(self, op: Op, operands: Sequence[Shape], axes: Sequence[int]) -> None:
        self.op, self.operands, self.rule = op, operands, _rule(op, operands)
        found = [(((),) * len(operands), (), list(self.rule.sizes), 1, True)]
        every: list[tuple[Specs, Spec, list[int], int, bool]] = list(found)
        for size in axes:
            every = [longer for one in every for longer in self.extended(size, *one)]
        self.runs = [_Run(needs, comes, shares, is_sum) for needs, comes, _, shares, is_sum in every]

    def extended(
        self, size: int, needs: Specs, comes: Spec, left: list[int], shares: int, is_sum: bool
    ) -> Iterator[tuple[Specs, Spec, list[int], int, bool]]:
        yield _longer(needs, ["R"] * len(needs)), (*comes, "R"), left, shares, is_sum
        for factor in range(len(left)):
            places = self.places(factor, left)
            if left[factor] % size == 0 and places is not None:
                after = [extent // size if n == factor else extent for n, extent in enumerate(left)]
                joined = is_sum and not (factor in self.rule.summed and self.rule.by == "largest")
                yield _longer(needs, places[:-1]), (*comes, places[-1]), after, shares * size, joined
        if self.op.shapes[0]:
            for together in _LINEAR.get(self.op.name, []):
                if all(self.operands[n] for n in together):
                    yield (
                        _longer(needs, ["P" if n in together else "R" for n in range(len(needs))]),
                        (*comes, "P"),
                        left,
                        shares,
                        is_sum,
                    )

    def places(self, factor: int, left: Sequence[int]) -> list[Entry] | None:
        """Returns the dim that a factor splits of each operand and of the result.

        It is None where the factor does not split a dim in blocks.
        """
        found: list[Entry] = []
        for dims in (*self.rule.operands, self.rule.result):
            at = next((dim for dim, factors in enumerate(dims) if factor in factors), None)
            if at is not None and any(left[other] > 1 for other in dims[at][: dims[at].index(factor)]):
                return None
            found.append("R" if at is None else at)
        if factor in self.rule.summed:
            found[-1] = "P"
        return found


def _longer(specs: Specs, entries: Sequence[Entry]) -> Specs:
    return tuple((*spec, entry) for spec, entry in zip(specs, entries, strict=True))


def storages(shape: Shape, axes: Sequence[int], sums: Sequence[bool]) -> list[Spec]:
    """Returns every spec of a tensor; partial along the axes where that is allowed."""
    found: list[Spec] = []
    for spec in product(*[["R", *(["P"] if may else []), *range(len(shape))] for may in sums]):
        parts = [
            prod(size for size, entry in zip(axes, spec, strict=True) if entry == dim) for dim in range(len(shape))
        ]
        if all(extent % count == 0 for extent, count in zip(shape, parts, strict=True)):
            found.append(spec)
    return found


# Ways

Layout = tuple[tuple[int, ...], ...]


def way(rank: int, have: Spec, want: Spec) -> list[tuple[str, tuple[int, ...], Layout, Layout]] | None:
    """Returns the collectives from one spec to another, each with the axes of each dim before and after it.

    They are those of docs/search.md, Ways.
    """
    axes = range(len(have))
    if any(want[a] == "P" != have[a] for a in axes):
        return None
    dims = tuple(tuple(a for a in axes if have[a] == dim) for dim in range(rank))
    steps: list[tuple[str, tuple[int, ...], Layout, Layout]] = []
    leaving = [a for a in axes if isinstance(have[a], int) and want[a] != have[a]]
    arriving = [a for a in axes if have[a] == "R" and want[a] != "R"]
    scattered = [a for a in axes if have[a] == "P" and isinstance(want[a], int)]
    summed = tuple(a for a in axes if have[a] == "P" and want[a] == "R")

    def go(kind: str, along: tuple[int, ...], after: Layout) -> None:
        nonlocal dims
        steps.append((kind, along, dims, after))
        dims = after

    def reorder(key: set[int]) -> None:
        """Puts the axes of every dim in order, those in `key` behind the others."""
        after = tuple(tuple(sorted(one, key=lambda a: (a in key, a if not key else one.index(a)))) for one in dims)
        moved = [a for one, other in zip(dims, after, strict=True) if one != other for a in one]
        if moved:
            go("collective_permute", tuple(sorted(moved)), after)

    def is_open(axis: int) -> bool:
        """Whether an axis may be put behind the dim where it belongs: nothing has still to leave that."""
        dim = want[axis]
        return isinstance(dim, int) and not set(dims[dim]) & set(leaving)

    def moved(axis: int) -> Layout:
        cleared = [tuple(a for a in one if a != axis) for one in dims]
        dim = want[axis]
        return tuple((*one, axis) if number == dim else one for number, one in enumerate(cleared))

    reorder(set(leaving))
    while True:
        last = [a for a in leaving if any(one and one[-1] == a for one in dims)]
        if ready := [a for a in arriving if is_open(a)]:
            arriving.remove(ready[0])
            go("slice", (ready[0],), moved(ready[0]))
        elif ready := [a for a in scattered if is_open(a)]:
            scattered.remove(ready[-1])
            go("reduce_scatter", (ready[-1],), moved(ready[-1]))
        elif ready := [a for a in last if is_open(a)]:
            leaving.remove(ready[0])
            go("all_to_all", (ready[0],), moved(ready[0]))
        elif summed:
            go("all_reduce", summed, dims)
            summed = ()
        elif last:
            axis = ([a for a in last if want[a] == "R"] or last)[0]
            leaving.remove(axis)
            arriving += [axis] if want[axis] != "R" else []
            go("all_gather", (axis,), tuple(tuple(a for a in one if a != axis) for one in dims))
        else:
            break
    reorder(set())
    return steps


# What lies in memory


def _in_memory(program: SmallProgram) -> tuple[list[bool], list[bool]]:
    """Returns which values have memory of their own, and which are read from memory: these, and views of them."""
    shapes = program.shapes()
    readers: list[list[str]] = [[] for _ in shapes]
    maker: list[Op | None] = [None] * len(program.arguments)
    views: list[tuple[int, int]] = []
    for op in program.ops:
        for value in op.reads:
            readers[value].append(op.name)
        if op.name == "reshape":
            views.append((op.reads[0], len(maker)))
        maker += [op] * len(op.shapes)
    taken = [any(name not in _IN_LOOPS | {"sum", "largest"} for name in names) for names in readers]
    summed = [any(name in ("sum", "largest") for name in names) for names in readers]
    uses = [len(names) for names in readers]
    for value in program.returns:
        taken[value] = True
    for source, view in reversed(views):
        if view not in program.returns:
            taken[source], summed[source] = taken[source] or taken[view], summed[source] or summed[view]
            uses[source] += uses[view] - 1
    own: list[bool] = []
    for value, op_of in enumerate(maker):
        if op_of is None:
            own.append(True)
        elif op_of.name == "reshape" and value not in program.returns:
            own.append(False)
        else:
            again = op_of.name in ("constant", "broadcast", "reshape") or (
                op_of.name not in _COSTLY and not summed[value]
            )
            own.append(op_of.name not in _IN_LOOPS or taken[value] or (uses[value] > 1 and not again))
    lies = list(own)
    for source, view in views:
        lies[view] = lies[view] or lies[source]
    return own, lies


# The problem


class Model:
    """Seconds on a machine, for tensors of elements of so many bytes."""

    def __init__(self, machine: Machine, element_bytes: int) -> None:
        self.machine, self.element_bytes = machine, element_bytes
        self.sizes = [axis.size for axis in machine.axes]
        self.known: dict[tuple[Shape, Spec, Spec], float] = {}

    def bytes_of(self, shape: Shape, spec: Spec) -> float:
        """Returns the bytes of a tensor on one device."""
        parts = prod(size for size, entry in zip(self.sizes, spec, strict=True) if isinstance(entry, int))
        return prod(shape) * self.element_bytes / parts

    def way_s(self, shape: Shape, have: Spec, want: Spec) -> float:
        """Returns the seconds from one spec to another; infinite where there is no way."""
        key = shape, have, want
        if key not in self.known:
            steps = way(len(shape), have, want)
            whole = prod(shape) * self.element_bytes
            self.known[key] = (
                inf if steps is None else sum(self.step_s(kind, along, whole, *ends) for kind, along, *ends in steps)
            )
        return self.known[key]

    def step_s(self, kind: str, along: tuple[int, ...], whole: int, before: Layout, after: Layout) -> float:
        """Returns the seconds of one collective on a tensor of `whole` bytes."""
        sent, got = (whole / prod(self.sizes[axis] for one in dims for axis in one) for dims in (before, after))
        if kind == "slice":
            return self.machine.kernel_s + 2 * got / self.machine.memory_per_s
        axes = [self.machine.axes[axis] for axis in along]
        if kind == "collective_permute":
            rates = [axis.measured.get(kind, (axis.step_s, axis.ring_per_s)) for axis in axes]
            return max(fixed for fixed, _ in rates) + sent / min(rate for _, rate in rates)
        seconds = 0.0
        payload = got if kind == "all_gather" else sent
        for axis in sorted(zip(along, axes, strict=True), reverse=True):
            seconds += self.ring_s(kind, axis[1], payload)
            payload /= axis[1].size
        return seconds

    def ring_s(self, kind: str, axis: Axis, payload: float) -> float:
        """Returns the seconds of a collective along one axis.

        A round has n - 1 steps, in each of which every device sends an n-th.
        """
        if kind in axis.measured:
            fixed, rate = axis.measured[kind]
            return fixed + payload / rate
        rate = axis.all_per_s if kind == "all_to_all" else axis.ring_per_s
        rounds = 2 if kind == "all_reduce" else 1
        return rounds * (axis.size - 1) * (axis.step_s + payload / axis.size / rate)

    def run_s(
        self, op: Op, run: _Run, operands: Sequence[Shape], lies: Sequence[bool], is_kept: bool, work: float
    ) -> float:
        """Returns the seconds of an op; a scalar's sum is taken at once."""
        machine, shape = self.machine, op.shapes[0]
        if op.name == "reshape":
            return 0.0
        rate = (
            machine.products_per_s
            if op.name == "product"
            else machine.costly_per_s
            if op.name in _COSTLY
            else machine.others_per_s
        )
        moved = self.bytes_of(shape, run.comes) * is_kept
        moved += sum(
            self.bytes_of(one, need) for one, need, there in zip(operands, run.needs, lies, strict=True) if there
        )
        seconds = max(work / run.shares / rate, moved / machine.memory_per_s) + machine.kernel_s * is_kept
        return seconds + (0.0 if shape else self.way_s(shape, run.comes, ("R",) * len(self.sizes)))


def _work(op: Op, operands: Sequence[Shape]) -> float:
    """Returns the operations of an op: two for each product that is added, else one for each element."""
    if op.name == "product":
        left = prod(operands[0]) * prod(operands[1])
        pairs = list(zip(op.dims[::2], op.dims[1::2], strict=True))
        return 2 * left / prod(operands[0][i] for i, _ in pairs)
    return float(max(prod(shape) for shape in (*op.shapes, *(operands if op.name in ("sum", "largest") else ()))))


def problem_of(program: SmallProgram, machine: Machine) -> Problem:
    """Returns what is to be chosen for a program on a machine."""
    return _Builder(program, machine).problem


class _Builder:
    def __init__(self, program: SmallProgram, machine: Machine) -> None:
        self.program, self.model = program, Model(machine, program.element_bytes)
        self.sizes, self.shapes = self.model.sizes, program.shapes()
        self.own, self.lies = _in_memory(program)
        self.problem = Problem([], {})
        self.giver: list[tuple[int, int] | None] = []
        """By value: the node that says how it lies, and which of its results it is.

        None where it is computed wherever it is needed.
        """
        self.num_uses = [0] * len(self.shapes)
        for values in (*(op.reads for op in program.ops), program.returns):
            for value in values:
                self.num_uses[value] += 1
        self.zeros = self.find_zeros()
        self.build()

    def find_zeros(self) -> set[int]:
        found, number = set[int](), len(self.program.arguments)
        for op in self.program.ops:
            moved = op.name in ("broadcast", "reshape", "transpose") and op.reads[0] in found
            if moved or (op.name == "constant" and op.count == 0):
                found.add(number)
            number += len(op.shapes)
        return found

    def build(self) -> None:
        program, machine = self.program, self.model.machine
        whole = [False] * len(self.sizes)
        for shape in program.arguments:
            self.giver.append((self.store("argument", shape, whole), 0))
        loops: list[tuple[Op, int]] = []
        free = [not shape for shape in program.arguments]
        for op in program.ops:
            times = prod(one.count for one, _ in loops)
            number = len(self.giver)
            if op.name == "loop":
                self.loop(op)
                loops.append((op, number))
                free += [False] * len(op.shapes)
            elif op.name == "next":
                _, first = loops.pop()
                for place, value in enumerate(op.reads):
                    self.edge(value, self.giver[first + place], 0, times)
            elif op.name == "constant" or (
                op.name in _IN_LOOPS and all(free[v] or not self.shapes[v] for v in op.reads)
            ):
                self.giver.append(None)
                free.append(True)
            else:
                self.op(op, number, times)
                free.append(False)
        for value, taken in zip(program.returns, program.taken_over, strict=True):
            sink = self.giver[taken] if taken is not None else (self.store("return", self.shapes[value], whole), 0)
            self.edge(value, sink, 0, 1)
        launch_s = machine.launch_s + (len(program.arguments) + len(program.returns)) * machine.array_s
        self.problem.nodes[0].seconds = self.problem.nodes[0].seconds + launch_s

    def store(self, kind: str, shape: Shape, sums: Sequence[bool]) -> int:
        specs = storages(shape, self.sizes, sums)
        self.problem.nodes.append(Node(kind, [((spec,), (spec,)) for spec in specs], np.zeros(len(specs))))
        return len(self.problem.nodes) - 1

    def loop(self, op: Op) -> None:
        """Adds a loop: what it carries is stored in one way throughout.

        What begins as zeros of its own may stay a partial sum until after the loop.
        """
        first = len(self.giver)
        for shape, start in zip(op.shapes, op.reads, strict=True):
            is_sum = start in self.zeros and self.num_uses[start] == 1
            node = self.store("value", shape, [is_sum] * len(self.sizes))
            if self.giver[start] is None:  # written once
                specs = [comes[0] for _, comes in self.problem.nodes[node].states]
                self.problem.nodes[node].seconds = np.array(
                    [self.model.bytes_of(shape, s) / self.model.machine.memory_per_s for s in specs]
                )
            self.giver.append((node, 0))
        for place, start in enumerate(op.reads):
            self.edge(start, self.giver[first + place], 0, 1)

    def op(self, op: Op, value: int, times: int) -> None:
        operands = [self.shapes[v] for v in op.reads]
        known = [self.giver[v] is not None for v in op.reads]
        runs = [
            run
            for run in _Runs(op, operands, self.sizes).runs
            if all(there or "P" not in need for need, there in zip(run.needs, known, strict=True))
        ]
        lies, work = [self.lies[v] for v in op.reads], _work(op, operands)
        seconds = np.array([times * self.model.run_s(op, run, operands, lies, self.own[value], work) for run in runs])
        self.problem.nodes.append(Node("op", [(run.needs, (run.comes,)) for run in runs], seconds))
        node = len(self.problem.nodes) - 1
        for place, read in enumerate(op.reads):
            self.edge(read, (node, 0), place, times)
        self.giver.append((node, 0))
        shape = op.shapes[0]
        if shape and (self.num_uses[value] > 1 or not all(run.is_sum for run in runs)):
            sums = [any(run.is_sum and run.comes[axis] == "P" for run in runs) for axis in range(len(self.sizes))]
            stored = self.store("value", shape, sums)
            self.edge(value, (stored, 0), 0, times)
            self.giver[value] = (stored, 0)

    def edge(self, value: int, target: tuple[int, int] | None, place: int, times: int) -> None:
        """Adds the way of a value to a reader's operand."""
        giver, shape = self.giver[value], self.shapes[value]
        if giver is None or target is None or not shape or giver == target:
            return
        nodes, u, v = self.problem.nodes, giver[0], target[0]
        have, want = [comes[0] for _, comes in nodes[u].states], [needs[place] for needs, _ in nodes[v].states]
        table = np.array([[times * self.model.way_s(shape, one, other) for other in want] for one in have])
        pair, table = ((u, v), table) if u < v else ((v, u), table.T)
        self.problem.edges[pair] = self.problem.edges.get(pair, np.zeros(table.shape)) + table
