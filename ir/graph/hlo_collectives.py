"""Count the collectives in XLA's compiled HLO text: what a compiled program really sends.

The text is `LoadedExecutable.hlo_modules()[0].to_string()`. Operands carry no shapes there, so sizes come from the
definitions. A payload is the sum of the operands' bytes, times the group's size where the collective gathers: this
holds for combined collectives of tuple shape and for asynchronous `-start` forms alike, whose result shapes also hold
operands and contexts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rhino.ir.graph.collective_stats import EMPTY, CollectiveStats, one_collective, one_of, payload_bytes

_KINDS: Final = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}
_COMPUTATION: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
_OPCODE: Final = re.compile(r"(?P<shape>.*?)\s(?P<opcode>[a-z][\w-]*)\((?P<arguments>[^)]*)\)(?P<attributes>.*)")
_ARRAY: Final = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,<= ]*)\]")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_OPERAND: Final = re.compile(r"%?([A-Za-z_][\w.-]*)\s*(?:,|$)")
_CALLED: Final = re.compile(r"\b(?:calls|to_apply|body|condition)=%?([\w.-]+)")
_BRANCHES: Final = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))"
)
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_GROUPS_LISTED: Final = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_GROUPS_IOTA: Final = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_GROUPS_MESH: Final = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\] ?\{(?P<axes>[^}]*)\}")
_MESH_AXIS: Final = re.compile(r"'([^']+)'=(\d+)")
_GROUP_AXIS: Final = re.compile(r"'([^']+)'(?::\(\d+\)(\d+))?")
_PAIRS: Final = re.compile(r"source_target_pairs=\{(\{.*?\})\}")
_PAIR: Final = re.compile(r"\{(\d+),(\d+)\}")
_PARTITIONS: Final = re.compile(r"\bnum_partitions=(\d+)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of HLO text.

    `arguments` is the text between its parentheses, `operands` are the names in it.
    """

    shape: str
    opcode: str
    arguments: str
    operands: tuple[str, ...]
    attributes: str


Computation = Mapping[str, Instruction]
"""Instructions by name, in the order in which they stand; the last is the root."""


def hlo_stats(text: str) -> CollectiveStats:
    """Returns the collectives that one device takes part in when it runs the compiled module once.

    Loops count as often as XLA's `known_trip_count` says, else once with `exact=False`. Groups of one device are left
    out.
    """
    entry, computations = parse_hlo(text)
    partitions = _PARTITIONS.search(text.split("\n", 1)[0])
    return _Walk(computations, int(partitions[1]) if partitions else 1, {}).computation(entry)


def trips(loop: Instruction) -> int | None:
    """Returns how often a `while` runs its body, None where XLA does not know it."""
    found = _TRIPS.search(loop.attributes)
    return int(found[1]) if found else None


def shape_bytes(shape: str) -> int:
    """Returns the bytes of an HLO shape, the sum of its leaves for a tuple: "f32[8,64]{1,0}", "(bf16[4], u32[])"."""
    return sum(
        math.prod(int(dim.strip().removeprefix("<=")) for dim in found["dims"].split(",") if dim.strip())
        * _element_bytes(found["dtype"])
        for found in _ARRAY.finditer(shape)
    )


def _element_bytes(dtype: str) -> int:
    """The bytes of one element: booleans and elements under a byte take one, as in StableHLO's count."""
    if dtype in ("token", "opaque"):
        return 0
    # f8e4m3fn and its family: the digits after the first letters are the width in bits.
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return max(int(bits[1]) // 8, 1) if bits else 1


def parse_hlo(text: str) -> tuple[str, dict[str, Computation]]:
    """Returns the name of the entry computation, and all computations by name."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = current = ""
    for line in _COMMENT.sub("", text).splitlines():
        if head := _COMPUTATION.match(line):
            current = head["name"]
            computations[current] = {}
            entry = current if head["entry"] else entry
        elif current and (found := _INSTRUCTION.match(line)) and (parts := _OPCODE.match(found["rest"])):
            operands = tuple(_OPERAND.findall(parts["arguments"]))
            computations[current][found["name"]] = Instruction(
                parts["shape"], parts["opcode"], parts["arguments"], operands, parts["attributes"]
            )
    return entry, dict(computations)


@dataclass(frozen=True, slots=True)
class _Walk:
    computations: Mapping[str, Computation]
    num_partitions: int
    done: dict[str, CollectiveStats]

    def computation(self, name: str) -> CollectiveStats:
        if name not in self.done:
            body = self.computations.get(name, {})
            self.done[name] = sum((self.instruction(op, body) for op in body.values()), EMPTY)
        return self.done[name]

    def instruction(self, op: Instruction, body: Computation) -> CollectiveStats:
        kind = _KINDS.get(op.opcode.removesuffix("-start"))
        if kind is not None:
            return self.collective(kind, op, body)
        # The `-update` and `-done` of an asynchronous operation may name its computation again.
        if op.opcode.endswith(("-update", "-done")):
            return EMPTY
        if branches := _BRANCHES.search(op.attributes):
            names = [
                name.strip().removeprefix("%") for group in branches.groups() if group for name in group.split(",")
            ]
            return one_of([self.computation(name) for name in names])
        together = sum((self.computation(name) for name in _CALLED.findall(op.attributes)), EMPTY)
        if op.opcode != "while" or not together.counts:
            return together
        return together.times(trips(op))

    def collective(self, kind: str, op: Instruction, body: Computation) -> CollectiveStats:
        size = self.group_size(op.attributes)
        if size == 1 or not _joins_devices(op.attributes):
            return EMPTY
        sent = sum(shape_bytes(body[name].shape) for name in op.operands if name in body)
        return one_collective(kind, payload_bytes(kind, sent, sent * size))

    def group_size(self, attributes: str) -> int:
        """The devices of one group; without groups, all of them."""
        if listed := _GROUPS_LISTED.search(attributes):
            return len(listed[1].split(","))
        if iota := _GROUPS_IOTA.search(attributes):
            return int(iota[2])
        if named := _GROUPS_MESH.search(attributes):
            sizes = dict(_MESH_AXIS.findall(named["mesh"]))
            return math.prod(int(part or sizes[axis]) for axis, part in _GROUP_AXIS.findall(named["axes"]))
        return self.num_partitions


def _joins_devices(attributes: str) -> bool:
    """Whether a permutation moves something; true of every other collective."""
    pairs = _PAIRS.search(attributes)
    return pairs is None or any(source != target for source, target in _PAIR.findall(pairs[1]))
