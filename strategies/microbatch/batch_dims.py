"""Which dims are the batch, for data parallelism: one group of dims that become each other, or one of each input.

Candidates have a share in at least half of the work that any group has a share in. First come those that lead every
argument that they are in, as JAX's users write it; of these the ones that no argument carries from step to step; of
these the ones with the most work. The first along which the step can be taken in parts is the batch, or the first of
all where none can (a batch norm ties its parts together), or none of those that are carried alike.

Inputs that nothing ties to it, as a second tower's, have a batch of their own, where the program says what it carries.
Where a batch is cut in micro-batches, [m * b] to [m, b], the part that the work is done along counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rhino.strategies.microbatch.micro_batch import (
    LEAST_SHARE,
    Batch,
    BatchParts,
    BatchRequest,
    group_work,
    take_in_parts,
)
from rhino.strategies.microbatch.time_axis import Marks
from rhino.strategies.structure.axis_roles import Roles


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A group of dims: the arguments that have it, the group that its work is done along, and how much work that is.

    The latter group is another one where the dim is cut.
    """

    members: Batch
    group: int
    work: int
    is_carried: bool
    is_cut: bool

    @property
    def leads(self) -> bool:
        return not any(self.members.values())


def batch_roles(roles: Roles, tested: Mapping[int, frozenset[int]]) -> Roles:
    """Returns `roles` with the batch found; without any where there is none.

    `tested` is what the condition of each loop reads.
    """
    every = _candidates(roles)
    most = max((one.work for one in every), default=0)
    able = [one for one in every if one.work and one.work >= most * LEAST_SHARE]
    able.sort(key=lambda one: (not one.leads, one.is_carried, -one.work))
    alike = [one for one in able if one.is_carried == able[0].is_carried]
    chosen = next(
        (one for one in alike if one.is_cut or _is_free(roles, one, tested)),
        able[0] if able and able[0].leads else None,
    )
    return roles.of_groups({one.group for one in _with_others(roles, chosen, every)} if chosen else set())


def _is_free(roles: Roles, one: _Candidate, tested: Mapping[int, frozenset[int]]) -> bool:
    request = BatchRequest(2, one.members, frozenset(), Marks(), tested)
    return isinstance(take_in_parts(roles.graph, request), BatchParts)


def _with_others(roles: Roles, chosen: _Candidate, every: list[_Candidate]) -> list[_Candidate]:
    """Adds the batches of other inputs, where it is known which arguments are inputs."""
    found = [chosen]
    if not chosen.is_carried and any(argument.alias is not None for argument in roles.graph.arguments):
        for other in sorted(every, key=lambda one: -one.work):
            taken = {number for one in found for number in one.members}
            if other.work and other.leads and not other.is_carried and not taken & other.members.keys():
                found.append(other)
    return found


def _candidates(roles: Roles) -> list[_Candidate]:
    arguments = roles.graph.arguments
    work, inner = group_work(roles), _inner_parts(roles)
    every: dict[int, dict[int, int]] = {}
    for number in range(len(arguments)):
        for offset, dim in enumerate(roles.dims(number)):
            every.setdefault(roles.group[dim], {}).setdefault(number, offset)
    found = []
    for group, members in every.items():
        finest = max((group, *inner.get(group, ())), key=lambda one: work.get(one, 0))
        carried = any(arguments[number].alias is not None for number in members)
        found.append(_Candidate(members, finest, work.get(finest, 0), carried, finest != group))
    return found


def _inner_parts(roles: Roles) -> dict[int, dict[int, None]]:
    """Returns, for each group of dims, the inner parts of its cut dims that are of no argument.

    An inner part is a group of dims too.
    """
    graph, found = roles.graph, dict[int, dict[int, None]]()
    given = {roles.group[dim] for number in range(len(graph.arguments)) for dim in roles.dims(number)}
    for op in range(graph.num_ops):
        rule = graph.cls(op).rule
        cuts = (
            [[f for f in factors if rule.sizes[f] > 1] for mapping in rule.operands for factors in mapping]
            if rule
            else []
        )
        for first, *others in (cut for cut in cuts if len(cut) > 1):
            assert rule is not None
            led = roles.places(op, rule)
            parts = sorted({roles.group[dim] for factor in others for dim in led[factor]} - given)
            for dim in led[first]:
                found.setdefault(roles.group[dim], {}).update(dict.fromkeys(parts))
    return found
