"""What the kernels of a compiled program read and write, from XLA's HLO text.

A kernel is a fusion, a library's call, or an op by itself, as often as the loops around it run. Of an operand it reads
what it slices or gathers, else all of it, once; it writes its results, of an update in place the part that is updated.
Of tuples that libraries give, the first is the result, the others are their workspace.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rhino.ir.graph.hlo_collectives import Computation, Instruction, parse_hlo, shape_bytes, trips

_CALLED: Final = re.compile(r"\b(?:calls|to_apply|body)=%?([\w.-]+)")
_FREE: Final = frozenset(
    ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "partition-id", "after-all"]
)
_LAYOUT: Final = frozenset({"copy", "transpose", "bitcast", "reshape"})
_INDEX: Final = frozenset({"add", "subtract", "compare", "select", "clamp"})
"""What is done to an index, in fusions that do nothing else to numbers."""
_SLICE, _UPDATE, _GATHER = "dynamic-slice", "dynamic-update-slice", "gather"

KINDS: Final = (
    "products",
    "copies into stacks",
    "zeros",
    "copies of parts of stacks",
    "transposes and copies",
    "all else",
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that runs `times` in a step; bytes are those of one run."""

    kind: str
    read_bytes: int
    written_bytes: int
    times: int

    @property
    def num_bytes(self) -> int:
        """Bytes read and written in a step."""
        return self.times * (self.read_bytes + self.written_bytes)


def kernels(text: str) -> list[Kernel]:
    """Returns the kernels of a compiled program, loops by XLA's `known_trip_count`."""
    entry, computations = parse_hlo(text)
    return list(_walk(computations, entry, 1))


def _walk(computations: Mapping[str, Computation], name: str, times: int) -> Iterator[Kernel]:
    body = computations[name]
    for op in body.values():
        called = _CALLED.findall(op.attributes)
        if op.opcode in ("while", "call", "async-start"):
            yield from _walk(computations, called[0], times * (trips(op) or 1 if op.opcode == "while" else 1))
        elif op.opcode not in _FREE and not op.opcode.endswith("-done"):
            inside = computations[called[0]] if op.opcode.startswith("fusion") else _alone(op, body)
            read, written = _moved(inside)
            yield Kernel(_kind(inside, read), read, written, times)


def _alone(op: Instruction, body: Computation) -> Computation:
    """Returns an op by itself as a fusion would have it."""
    parameters = {
        name: Instruction(body[name].shape, "parameter", str(k), (), "")
        for k, name in enumerate(op.operands)
        if name in body
    }
    return {**parameters, "": op}


def _moved(inside: Computation) -> tuple[int, int]:
    """Returns the bytes that a kernel reads and writes."""
    readers: dict[str, list[tuple[Instruction, int]]] = defaultdict(list)
    for op in inside.values():
        for position, name in enumerate(op.operands):
            readers[name].append((op, position))
    roots = _roots(inside)

    def read(name: str, whole: int) -> int:
        found = 0
        for op, position in readers[name]:
            if op.opcode in ("bitcast", "tuple"):
                found += read(op_name[id(op)], whole) if op.opcode == "bitcast" else 0
            elif position == 0 and op.opcode in (_SLICE, _GATHER, "slice"):
                found += shape_bytes(op.shape)
            elif position or op.opcode != _UPDATE or all(op is not root for root in roots):
                found += whole
        return min(found, whole)

    op_name = {id(op): name for name, op in inside.items()}
    sizes = {name: shape_bytes(op.shape) for name, op in inside.items() if op.opcode == "parameter"}
    written = sum(
        shape_bytes(inside[op.operands[1]].shape) if op.opcode == _UPDATE else _result_bytes(op) for op in roots
    )
    return sum(read(name, size) for name, size in sizes.items()), written


def _result_bytes(op: Instruction) -> int:
    """Returns the bytes that an op writes."""
    shape = op.shape
    return shape_bytes(shape[: shape.index("]") + 1] if op.opcode == "custom-call" and shape.startswith("(") else shape)


def _roots(inside: Computation) -> list[Instruction]:
    """Returns what makes the results of a kernel."""
    last = list(inside.values())[-1]
    found = [inside[name] for name in last.operands] if last.opcode == "tuple" else [last]
    for number, op in enumerate(found):
        while op.opcode == "bitcast":
            op = inside[op.operands[0]]
        found[number] = op
    return found


def _kind(inside: Computation, read_bytes: int) -> str:
    """Returns what a kernel does, of KINDS."""
    does = {op.opcode for op in inside.values()} - _FREE
    if "dot" in does or any(
        "gemm" in op.attributes or "matmul" in op.attributes for op in inside.values() if op.opcode == "custom-call"
    ):
        return "products"
    if any(op.opcode == _UPDATE for op in _roots(inside)):
        return "copies into stacks"
    if does <= {"broadcast", "copy"} and read_bytes < 1024:
        return "zeros"
    if does <= _LAYOUT:
        return "transposes and copies"
    return "copies of parts of stacks" if _SLICE in does and does <= _LAYOUT | _INDEX | {_SLICE} else "all else"
