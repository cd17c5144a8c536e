"""Read HLO text: computations and their instructions, shapes, how often loops run.

The text is `LoadedExecutable.hlo_modules()[0].to_string()`, or what `xla_dump_to` writes. Operands carry no shapes
there, so sizes come from the definitions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_COMPUTATION: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
_OPCODE: Final = re.compile(r"(?P<shape>.*?)\s(?P<opcode>[a-z][\w-]*)\((?P<arguments>[^)]*)\)(?P<attributes>.*)")
_ARRAY: Final = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,<= ]*)\](?P<layout>\{[^}]*\})?")
_SPACE: Final = re.compile(r"S\((\d+)\)")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_OPERAND: Final = re.compile(r"%?([A-Za-z_][\w.-]*)\s*(?:,|$)")
_CALLED: Final = re.compile(r"\b(?:calls|to_apply|body|condition)=%?([\w.-]+)")
_BRANCHES: Final = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))"
)
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION: Final = re.compile(r"\bcondition=%?([\w.-]+)")
_BODY: Final = re.compile(r"\bbody=%?([\w.-]+)")
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


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a shape: its element type, its dims, and the memory space in which it lies (0 is the device's)."""

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def num_bytes(self) -> int:
        """Its bytes: booleans and elements under a byte take one, as in StableHLO's count."""
        return math.prod(self.dims) * element_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled module: its computations by name, which is run, and for how many partitions."""

    entry: str
    computations: Mapping[str, Computation]
    num_partitions: int

    def called(self, op: Instruction) -> tuple[str, ...]:
        """Returns the computations that an instruction names."""
        return tuple(name for name in _CALLED.findall(op.attributes) if name in self.computations)

    def inside(self, op: Instruction) -> Computation:
        """Returns the computation of a fusion, or of what is started asynchronously; empty for other instructions."""
        called = self.called(op) if op.opcode in ("fusion", "async-start") else ()
        return self.computations[called[0]] if called else {}

    def branches(self, op: Instruction) -> tuple[str, ...]:
        """Returns the computations of which a `conditional` runs one."""
        found = _BRANCHES.search(op.attributes)
        groups = [group for group in found.groups() if group] if found else []
        return tuple(name.strip().removeprefix("%") for group in groups for name in group.split(","))

    def body(self, loop: Instruction) -> str:
        """Returns the computation that a `while` repeats."""
        found = _BODY.search(loop.attributes)
        assert found, "a while has a body"
        return found[1]

    def trips(self, loop: Instruction) -> int | None:
        """Returns how often a `while` runs its body, None where nothing tells.

        XLA says so where it has found it out; XLA:TPU does not, but leaves `counter < constant` as the condition, and
        XLA's counters begin at 0 and go up by 1 by then (`WhileLoopTripCountAnnotator`).
        """
        if found := _TRIPS.search(loop.attributes):
            return int(found[1])
        named = _CONDITION.search(loop.attributes)
        condition = self.computations.get(named[1], {}) if named else {}
        if not condition:
            return None
        root = list(condition.values())[-1]
        if root.opcode != "compare" or "direction=LT" not in root.attributes:
            return None
        limit = condition.get(root.operands[1])
        return int(limit.arguments) if limit and limit.opcode == "constant" and limit.arguments.isdigit() else None


def arrays(shape: str) -> list[Array]:
    """Returns the arrays of an HLO shape, the leaves of a tuple: "f32[8,64]{1,0:S(1)}", "(bf16[4], u32[])"."""
    return [
        Array(
            found["dtype"],
            tuple(int(dim.strip().removeprefix("<=")) for dim in found["dims"].split(",") if dim.strip()),
            int(space[1]) if (space := _SPACE.search(found["layout"] or "")) else 0,
        )
        for found in _ARRAY.finditer(shape)
    ]


def shape_bytes(shape: str) -> int:
    """Returns the bytes of an HLO shape, the sum of its leaves for a tuple, wherever they lie."""
    return sum(array.num_bytes for array in arrays(shape))


def element_bytes(dtype: str) -> int:
    """Returns the bytes of one element of an HLO type."""
    if dtype in ("token", "opaque"):
        return 0
    # f8e4m3fn and its family: the digits after the first letters are the width in bits.
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return max(int(bits[1]) // 8, 1) if bits else 1


def parse_hlo(text: str) -> Program:
    """Returns the program that an HLO text is."""
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
    partitions = _PARTITIONS.search(text.split("\n", 1)[0])
    return Program(entry, dict(computations), int(partitions[1]) if partitions else 1)
