"""Read HLO text: computations and their instructions, shapes, how often loops run.

The text is `LoadedExecutable.hlo_modules()[0].to_string()`, or what `xla_dump_to` writes. Operands carry no shapes
there, so sizes come from the definitions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_COMPUTATION: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)$")
_OPCODE: Final = re.compile(r"(?P<shape>.*?)\s(?P<opcode>[a-z][\w-]*)\((?P<arguments>[^)]*)\)(?P<attributes>.*)")
_ARRAY: Final = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,<= ]*)\](?P<layout>\{[^}]*\})?")
_SPACE: Final = re.compile(r"S\((\d+)\)")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_OPERAND: Final = re.compile(r"%?([A-Za-z_][\w.-]*)\s*(?:,|$)")
_CALLED: Final = re.compile(r"\b(?:calls|to_apply|body|condition|called_computations)=\{?%?([\w.-]+)")
_BRANCHES: Final = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+))"
)
_TRIPS: Final = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION: Final = re.compile(r"\bcondition=%?([\w.-]+)")
_BODY: Final = re.compile(r"\bbody=%?([\w.-]+)")
_INDEX: Final = re.compile(r"\bindex=(\d+)")
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

        XLA says so where it has found it out. XLA:TPU does not; there it is read from a condition `counter < limit`,
        with a counter that begins with a constant and goes up by one.
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
        counter, limit = (condition.get(name) for name in root.operands)
        index = _INDEX.search(counter.attributes) if counter else None
        if limit is None or index is None:
            return None
        first, step = self._first(loop, int(index[1])), self._step(loop, int(index[1]))
        last = _constant(limit)
        if first is None or last is None or not step:
            return None
        return max(0, -(-(last - first) // step))

    def _first(self, loop: Instruction, index: int) -> int | None:
        """Returns the constant with which a value that a loop carries begins."""
        home = next((body for body in self.computations.values() if any(one is loop for one in body.values())), {})
        carried = home.get(loop.operands[0])
        if carried is None or carried.opcode != "tuple":
            return None
        return _constant(_behind_copies(home, carried.operands[index]))

    def _step(self, loop: Instruction, index: int) -> int | None:
        """Returns the constant that a loop adds to a value that it carries."""
        body = self.computations[self.body(loop)]
        root = list(body.values())[-1]
        if root.opcode != "tuple":
            return None
        made = _behind_copies(body, root.operands[index])
        if made is None or made.opcode != "add":
            return None
        found = [_constant(_behind_copies(body, name)) for name in made.operands]
        return next((one for one in found if one is not None), None)


def _behind_copies(body: Computation, name: str) -> Instruction | None:
    """Returns what makes a value, behind copies of it."""
    found = body.get(name)
    while found is not None and found.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
        found = body.get(found.operands[0])
    return found


def _constant(op: Instruction | None) -> int | None:
    """Returns the whole number that an instruction is."""
    return int(op.arguments) if op and op.opcode == "constant" and re.fullmatch(r"-?\d+", op.arguments) else None


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


def _whole_lines(text: str) -> Iterator[str]:
    """Yields the lines of a text, each instruction as one: a user's attribute may have line breaks."""
    whole = ""
    for line in text.splitlines():
        if whole and line.strip() not in ("", "}") and not (_INSTRUCTION.match(line) or _COMPUTATION.match(line)):
            whole = f"{whole} {line}"
            continue
        if whole:
            yield whole
        whole = line if _INSTRUCTION.match(line) else ""
        if not whole:
            yield line
    if whole:
        yield whole


def parse_hlo(text: str) -> Program:
    """Returns the program that an HLO text is."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = current = ""
    for line in _whole_lines(_COMMENT.sub("", text)):
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
