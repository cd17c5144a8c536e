"""The collectives in a compiled program: what it really sends, and between which devices.

A payload is the sum of the operands' bytes, times the group's size where the collective gathers: this holds for
combined collectives of tuple shape and for asynchronous `-start` forms alike, whose result shapes also hold operands
and contexts. A broadcast counts as a gather of what one device has, for it takes as long; a `send` as a permutation,
whose other side is its `recv`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.collective_stats import EMPTY, CollectiveStats, one_collective, one_of, payload_bytes
from rhino.ir.hlo.text import Computation, Instruction, Program, arrays, parse_hlo

_KINDS: Final = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "all_gather",
    "send": "collective_permute",
}
_SENT_ONCE: Final = "collective-broadcast"
"""Gathers of which one device has all of what is sent."""
_TO_HOST: Final = "is_host_transfer=true"
_GROUPS_LISTED: Final = re.compile(r"replica_groups=\{(\{[\d,{}]*\})\}")
_GROUPS_IOTA: Final = re.compile(
    r"replica_groups=\[(?P<shape>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
)
_GROUPS_MESH: Final = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\] ?\{(?P<axes>[^}]*)\}")
_MESH_AXIS: Final = re.compile(r"'([^']+)'=(\d+)")
_GROUP_AXIS: Final = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_CONTINUED: Final = re.compile(r'"async_collective_fusion_config":\{[^}]*"flag_start":"\d')
"""XLA:TPU fuses parts of one collective with what computes meanwhile: all but the first have a flag to wait for."""
_STARTS, _ENDS = "AsyncCollectiveStart", "AsyncCollectiveDone"
"""What it calls in the first and in the last of these fusions."""
_CHANNEL: Final = re.compile(r"channel_id=(\d+)")
_PAIRS: Final = re.compile(r'source_target_pairs="?\{(\{.*?\})\}')
_PAIR: Final = re.compile(r"\{(\d+),(\d+)\}")


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One collective: its kind (of `collective_stats.KINDS`), payload in bytes per device, and the type on the wire.

    `is_async` says that something else may run until it is waited for; all its parts name its `channel`.

    Shapes: `groups` are the devices that take part together [groups, devices]; of a permutation, pairs of a source and
    a target.
    """

    kind: str
    num_bytes: int
    dtype: str
    groups: Ints
    is_async: bool
    channel: str


def collectives_of(program: Program, name: str) -> dict[str, list[Collective]]:
    """Returns the collectives that begin in a computation, by the instruction that is one, or that runs it inside.

    Collectives in the bodies of loops, in branches and in calls are not among them; neither are groups of one device.
    """
    body, found, seen = program.computations[name], dict[str, list[Collective]](), dict[str, None]()
    for own, at in body.items():
        if (op := _started(at, body)) is None:
            continue
        inside = program.inside(op)
        starts = any(_STARTS in one.attributes for one in inside.values())
        is_async = starts or op.opcode == "send" or op.opcode.endswith("-start")
        for one, home in ((op, body), *_within(program, inside)):
            continues = bool(_CONTINUED.search(one.attributes))
            collective = _collective(one, home, program.num_partitions, is_async=is_async or continues)
            if collective is None or (continues and collective.channel in seen):
                continue
            seen[collective.channel] = None
            found.setdefault(own, []).append(collective)
    return found


def _started(op: Instruction, body: Computation) -> Instruction | None:
    """Returns what begins with an instruction, None where nothing does.

    What runs on a SparseCore begins at the `async-update` that has its operands: its `async-start` loads the program.
    """
    if op.opcode == "async-start" and not op.operands:
        return None
    if op.opcode == "async-update" and not body[op.operands[0]].operands:
        return body[op.operands[0]]
    return op


def _within(program: Program, inside: Computation) -> Iterator[tuple[Instruction, Computation]]:
    """Yields what a fusion or an asynchronous computation does, calls and fusions in it included."""
    for op in inside.values():
        yield op, inside
        called = program.called(op) if op.opcode in ("call", "custom-call", "fusion", "async-start") else ()
        for name in called[:1]:
            yield from _within(program, program.computations[name])


def channel_of(op: Instruction) -> str:
    """Returns the channel that an instruction names; empty where it names none."""
    found = _CHANNEL.search(op.attributes)
    return found[1] if found else ""


def awaited_channel(program: Program, op: Instruction) -> str:
    """Returns the channel of the collective that a fusion waits for to its end; empty where it does not."""
    inside = program.inside(op)
    if not any(_ENDS in one.attributes for one in inside.values()):
        return ""
    return next((found for one in inside.values() if (found := channel_of(one))), "")


def _collective(op: Instruction, body: Computation, num_partitions: int, *, is_async: bool) -> Collective | None:
    kind = _KINDS.get(op.opcode.removesuffix("-start"))
    if kind is None or _TO_HOST in op.attributes:
        return None
    groups = _groups(op.attributes, num_partitions)
    if groups.shape[1] == 1 or not groups.size or (kind == "collective_permute" and not _moves(groups)):
        return None
    sent = [array for name in op.operands if name in body for array in arrays(body[name].shape)]
    num_bytes = sum(array.num_bytes for array in sent)
    largest = max(sent, key=lambda array: array.num_bytes, default=None)
    gathered = num_bytes if op.opcode.startswith(_SENT_ONCE) else num_bytes * groups.shape[1]
    payload = payload_bytes(kind, num_bytes, gathered)
    return Collective(kind, payload, largest.dtype if largest else "", groups, is_async, channel_of(op))


def hlo_stats(text: str) -> CollectiveStats:
    """Returns the collectives that one device takes part in when it runs the compiled module once.

    Loops count as often as they are known to run, else once with `exact=False`. Groups of one device are left out.
    """
    program = parse_hlo(text)
    return _Walk(program, {}).computation(program.entry)


@dataclass(frozen=True, slots=True)
class _Walk:
    program: Program
    done: dict[str, CollectiveStats]

    def computation(self, name: str) -> CollectiveStats:
        if name not in self.done:
            begun = [one for found in collectives_of(self.program, name).values() for one in found]
            own = sum((one_collective(one.kind, one.num_bytes) for one in begun), EMPTY)
            self.done[name] = sum(map(self.inner, self.program.computations[name].values()), own)
        return self.done[name]

    def inner(self, op: Instruction) -> CollectiveStats:
        """Returns the collectives of a loop, a conditional or a call."""
        match op.opcode:
            case "while":
                body = self.computation(self.program.body(op))
                return body.times(self.program.trips(op)) if body.counts else body
            case "conditional":
                return one_of([self.computation(name) for name in self.program.branches(op)])
            case "call":
                return sum(map(self.computation, self.program.called(op)), EMPTY)
            case _:
                return EMPTY


def _groups(attributes: str, num_partitions: int) -> Ints:
    """Returns the groups that a collective names [groups, devices]; without any, one of all devices."""
    if pairs := _PAIRS.search(attributes):
        return np.array([[int(source), int(target)] for source, target in _PAIR.findall(pairs[1])]).reshape(-1, 2)
    if listed := _GROUPS_LISTED.search(attributes):
        groups = [_numbers(group) for group in listed[1].strip("{}").split("},{")]
        largest = max(map(len, groups))  # the others of unequal groups wait for it
        return np.array([group for group in groups if len(group) == largest])
    if iota := _GROUPS_IOTA.search(attributes):
        dims = _numbers(iota["dims"])
        devices = np.arange(prod(dims)).reshape(dims)
        order = _numbers(iota["order"]) if iota["order"] else range(devices.ndim)
        return devices.transpose(list(order)).reshape(_numbers(iota["shape"]))
    if named := _GROUPS_MESH.search(attributes):
        return _mesh_groups(dict(_MESH_AXIS.findall(named["mesh"])), _GROUP_AXIS.findall(named["axes"]))
    return np.arange(num_partitions).reshape(1, -1)


def _mesh_groups(mesh: Mapping[str, str], axes: list[tuple[str, str, str]]) -> Ints:
    """Returns the groups over some axes of a mesh, or over parts of them: "'x':(2)4" is 4 in x behind a part of 2."""
    shape: list[int] = []
    chosen: list[int] = []
    for name, extent in mesh.items():
        parts = {int(before): int(before) * int(part) for axis, before, part in axes if axis == name and part}
        cuts = sorted({1, int(extent), *parts.keys(), *parts.values()})
        is_chosen = any(axis == name and not part for axis, _, part in axes)
        for low, high in pairwise(cuts):
            if is_chosen or any(start <= low and high <= end for start, end in parts.items()):
                chosen.append(len(shape))
            shape.append(high // low)
    devices = np.arange(prod(shape)).reshape(shape)
    others = [dim for dim in range(len(shape)) if dim not in chosen]
    found: Ints = devices.transpose([*others, *chosen]).reshape(-1, prod(shape[dim] for dim in chosen))
    return found


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def _moves(pairs: Ints) -> bool:
    """Says whether a permutation moves something."""
    return bool((pairs[:, 0] != pairs[:, 1]).any())
