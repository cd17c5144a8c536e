"""Which dims are the batch, and whether a step can take it in parts.

A candidate is a group of dims that become each other (strategies/structure/axis_roles.py), of which arguments have
some: those that the step only reads first, and of these the group that touches most of the work, then the one whose
dims come first. The first that can be taken in parts is the batch. Groups of other arguments (a second loss with data
of its own) join it where both can be taken in parts at once.

It cannot where a heavy op runs in APPLY on blocks that had to be put together before it: the work of a micro-batch
waits for all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from rhino.ir.graph.graph import BARRIER, WHILE, YIELD, Graph
from rhino.ir.graph.spec import PARTIAL, REPLICATED, Spec
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.candidates import State, replicate
from rhino.strategies.microbatch.accumulation_border import settle_border, settle_means
from rhino.strategies.microbatch.batch_slices import slice_early
from rhino.strategies.microbatch.time_axis import HEAVY, Marks, Meeting, Phase, Propagation
from rhino.strategies.structure.axis_roles import Roles

LEAST_SHARE: Final = 0.5
"""What touches less of the work, in units of what touches most, is not the batch."""

Batch = Mapping[int, int]
"""Of each batch argument the dim that is the batch."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Why a step is not free of synchronisation.

    It is where blocks and a whole value meet, and a heavy op that waits for that.
    """

    batch: Batch
    meeting: Meeting
    waits: int


@dataclass(frozen=True, slots=True)
class Uneven:
    """The dims of a batch that the number of parts does not divide."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class NoBatch:
    """No argument has a dim that could be the batch."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing that the step gives depends on the batch."""

    batch: Batch


@dataclass(frozen=True, slots=True, eq=False)
class BatchParts:
    """A step that takes its batch in parts."""

    batch: Batch
    found: Propagation


@dataclass(frozen=True, slots=True, eq=False)
class PartStatistics:
    """A step that takes its batch in parts if each part takes the statistics of `found` for itself."""

    batch: Batch
    found: Propagation


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What is asked for.

    `parts` is how many parts, `batch` the dims of the batch where they are given, `no_batch` the arguments that have
    none. `marks` are the marked ops of the graph, and `tested` what the condition of each loop reads.
    """

    parts: int
    batch: Batch
    no_batch: frozenset[int]
    marks: Marks
    tested: Mapping[int, frozenset[int]]


Outcome = BatchParts | PartStatistics | Sync | Uneven | NoBatch | Nothing


def take_in_parts(graph: Graph, request: BatchRequest) -> Outcome:
    """Returns how `graph` takes its batch in parts, or why it cannot."""
    roles = Roles(graph)
    if request.batch:
        groups = {roles.group[roles.start[argument] + dim] for argument, dim in request.batch.items()}
        tied = {argument: dim for group in sorted(groups) for argument, dim in _members(roles, group, request).items()}
        return _attempt(graph, request, {**tied, **request.batch})
    every = _candidates(roles, request)
    first: Outcome | None = None
    for one in every:
        if one.carried == every[0].carried and one.work >= every[0].work * LEAST_SHARE:
            outcome = _attempt(graph, request, one.batch)
            if isinstance(outcome, BatchParts):
                return _with_others(graph, request, every, outcome)
            if isinstance(outcome, PartStatistics):
                return outcome
            first = first or outcome
    return first or NoBatch()


def _with_others(graph: Graph, request: BatchRequest, every: Sequence[_Candidate], outcome: BatchParts) -> BatchParts:
    """Adds the batches of other inputs, where it is known which arguments are inputs."""
    if any(argument.alias is not None for argument in graph.arguments):
        for other in every:
            if not other.carried and not outcome.batch.keys() & other.batch.keys():
                both = _attempt(graph, request, {**outcome.batch, **other.batch})
                outcome = both if isinstance(both, BatchParts) else outcome
    return outcome


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Dims that may be the batch, the floating-point operations they share in, and whether the step carries some."""

    batch: Batch
    work: int
    carried: bool


def _candidates(roles: Roles, request: BatchRequest) -> list[_Candidate]:
    """Returns what may be the batch, best first."""
    graph = roles.graph
    work = group_work(roles)
    inputs = [
        number
        for number, argument in enumerate(graph.arguments)
        if argument.alias is None and number not in request.no_batch
    ]
    found = []
    for group in dict.fromkeys(roles.group[dim] for number in inputs for dim in roles.dims(number)):
        batch = _members(roles, group, request)
        carried = any(graph.arguments[number].alias is not None for number in batch)
        found.append(_Candidate(batch, work.get(group, 0), carried))
    busy = [one for one in found if one.work] or found
    return sorted(busy, key=lambda one: (one.carried, -one.work, min(one.batch.values()), min(one.batch)))


def _members(roles: Roles, group: int, request: BatchRequest) -> Batch:
    found: dict[int, int] = {}
    for number in range(len(roles.graph.arguments)):
        if number not in request.no_batch:
            for offset, dim in enumerate(roles.dims(number)):
                if roles.group[dim] == group:
                    found.setdefault(number, offset)
    return found


def group_work(roles: Roles) -> dict[int, int]:
    """Returns the floating-point operations that each group of dims has a share in."""
    graph, work = roles.graph, dict[int, int]()
    for op, times in enumerate(graph.times().tolist()):
        cls = graph.cls(op)
        if cls.rule is not None:
            for group in {roles.group[dim] for dims in roles.places(op, cls.rule) for dim in dims}:
                work[group] = work.get(group, 0) + times * cls.flops
    return work


def _attempt(graph: Graph, request: BatchRequest, batch: Batch) -> Outcome:
    sizes = [graph.type_of(argument).shape[dim] for argument, dim in batch.items()]
    even = all(size % request.parts == 0 and size for size in sizes)
    parts = request.parts if even else _least_divisor(gcd(*sizes))
    if parts == 1 and not even:
        return Uneven(batch)
    marks = replace(request.marks, may_be_own=frozenset())
    found = Propagation(graph, parts, batch, marks, request.tested)
    settle_border(found)
    sync = _sync(found, batch)
    if sync is not None and request.marks.may_be_own:
        found = Propagation(graph, parts, batch, request.marks, request.tested)
        sync = _sync(found, batch)
    if sync is not None:
        return sync
    if not even:
        return Uneven(batch)
    if found.statistics:
        settle_means(found)
        return PartStatistics(batch, found)
    if not any(_leaves_the_loop(found)):
        return Nothing(batch)
    slice_early(found)
    return BatchParts(batch, found)


def _least_divisor(number: int) -> int:
    return next((factor for factor in range(2, number + 1) if number % factor == 0), 1)


def _leaves_the_loop(found: Propagation) -> Iterator[int]:
    graph = found.graph
    yield from (value for value in graph.returns if found.lays[value].phase == Phase.LOOP)
    for op in range(graph.num_ops):
        if found.phases[op] == Phase.APPLY:
            yield from (value for value in found.reads[op] if found.lays[value].phase == Phase.LOOP)


def _sync(found: Propagation, batch: Batch) -> Sync | None:
    """Returns the first heavy op of APPLY that follows from blocks put together, and where they were."""
    graph = found.graph
    root: dict[int, int] = {}
    op = 0
    while op < graph.num_ops:
        loop = found.loops.get(op)
        last = op if loop is None else loop.end
        if found.classes[op].name == BARRIER:
            pairs = zip(found.reads[op], found.gives[op], strict=True)
            root.update((result, root[value]) for value, result in pairs if value in root)
        elif max(found.phases[op : last + 1]) == Phase.APPLY:
            reads = {value for one in range(op, last + 1) for value in found.reads[one]}
            roots = [root[value] for value in reads if value in root]
            if (
                any(found.lays[value].phase == Phase.LOOP and found.lays[value].is_split for value in reads)
                and op in found.meetings
            ):
                roots.append(op)
            heavy = [
                one
                for one in range(op, last + 1)
                if found.classes[one].name in HEAVY and found.phases[one] == Phase.APPLY
            ]
            if roots and heavy:
                return Sync(batch, found.meetings[min(roots)], heavy[0])
            if roots:
                root.update((value, min(roots)) for one in range(op, last + 1) for value in found.gives[one])
        op = last + 1
    return None


def as_plan(found: Propagation) -> ShardingPlan:
    """Returns the plan along the time axis, as if it were an axis of devices.

    What leaves the loop is all-reduced or gathered.

    A single part is no block of the batch but all of it: nothing is split then.
    """
    graph = found.graph
    needs = [found.needs(op) for op in range(graph.num_ops)]
    reads = [
        (value, need) for op in range(graph.num_ops) for value, need in zip(found.reads[op], needs[op], strict=True)
    ]
    reads += [(value, REPLICATED) for value in graph.returns]
    summed = {value for value, need in reads if need == PARTIAL} | {
        value for loop in graph.loops for value in found.gives[loop.op]
    }
    joined = {value for value, need in reads if need == REPLICATED} - summed
    specs = [
        REPLICATED if lay.phase != Phase.LOOP or (lay.is_partial and v in joined) else lay.spec
        for v, lay in enumerate(found.lays)
    ]
    states = [_state(found, op, needs[op]) for op in range(graph.num_ops)]
    if found.sizes == (1,):
        specs = [_unsplit(spec) for spec in specs]
        states = [
            replace(
                s,
                operand_specs=tuple(map(_unsplit, s.operand_specs)),
                result_specs=tuple(map(_unsplit, s.result_specs)),
            )
            for s in states
        ]
    return ShardingPlan(graph, found.sizes, tuple(states), tuple(specs), (REPLICATED,) * len(graph.returns))


def _unsplit(spec: Spec) -> Spec:
    return spec if spec == PARTIAL else REPLICATED


def _state(found: Propagation, op: int, needs: tuple[Spec, ...]) -> State:
    cls, state = found.classes[op], found.states[op]
    if cls.name in (WHILE, YIELD, BARRIER):
        return State((), needs, tuple(found.lays[value].spec for value in found.gives[op]))
    if state is None:
        return replicate(cls, 1)
    return State(state.strategy, needs, state.result_specs, state.monoid)
