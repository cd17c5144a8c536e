"""What the kernels of a compiled program compute, read and write.

A kernel is a fusion, a library's call, or an op by itself. Of an operand it reads what it slices or gathers, else all
of it, once. It writes its results, of an update in place the part that is updated. Only the device's own memory counts:
XLA:TPU prefetches into a nearer one. Of tuples that libraries give, the first is the result, the others are workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from rhino.ir.hlo.text import Computation, Instruction, Program, arrays, parse_hlo

FREE: Final = frozenset(
    ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "partition-id", "after-all"]
)
"""Opcodes that neither compute nor move anything."""

HOST_SPACE: Final = 5
"""XLA's number of the host's memory."""
_LAYOUT: Final = frozenset({"copy", "transpose", "bitcast", "reshape"})
_INDEX: Final = frozenset({"add", "subtract", "compare", "select", "clamp"})
"""What is done to an index, in fusions that do nothing else to numbers."""
_SLICE, _UPDATE, _GATHER = "dynamic-slice", "dynamic-update-slice", "gather"
_SLICES: Final = (_SLICE, _GATHER, "slice")
_CONTRACTING: Final = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^}\]]*)[}\]]')
_CONFIG: Final = "backend_config="
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')
"""What braces are found by: they, and texts in quotes, which may have others."""
_OWN_KERNELS: Final = ("tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu_v2")
"""Targets of calls whose configuration is a kernel."""
_LABELS: Final = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW: Final = re.compile(r"window=\{([^}]*)\}")
_PRECISION: Final = re.compile(r'operand_precision(?:=\{|":\[)"?(\w+)')

KINDS: Final = (
    "products",
    "copies into stacks",
    "zeros",
    "copies of parts of stacks",
    "transposes and copies",
    "all else",
)


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product or a convolution: its FLOP, the HLO type of what it multiplies, and its operands' precision."""

    flops: int
    dtype: str
    precision: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one run of a kernel does; `kind` is one of KINDS."""

    kind: str
    read_bytes: int
    written_bytes: int
    products: tuple[Product, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the device's memory that are read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True)
class HostTransfer:
    """A copy between a device's memory and its host's: which way it goes, and its bytes."""

    to_host: bool
    num_bytes: int


def host_transfer(op: Instruction, body: Computation) -> HostTransfer | None:
    """Returns the transfer that an instruction of `body` is, or begins; None for any other."""
    if op.opcode == "dynamic-slice-start":  # a row of a stack: behind the operands in the result
        stack, row = arrays(body[op.operands[0]].shape)[0], arrays(op.shape)[len(op.operands)]
        return HostTransfer(False, row.num_bytes) if stack.space == HOST_SPACE != row.space else None
    if op.opcode == "dynamic-update-slice-start":
        stack, row = (arrays(body[name].shape)[0] for name in op.operands[:2])
        return HostTransfer(True, row.num_bytes) if stack.space == HOST_SPACE != row.space else None
    if op.opcode not in ("copy", "copy-start"):
        return None
    (source, *_), (target, *_) = arrays(body[op.operands[0]].shape), arrays(op.shape)
    if (source.space == HOST_SPACE) == (target.space == HOST_SPACE):
        return None
    return HostTransfer(target.space == HOST_SPACE, target.num_bytes)


def kernels(text: str) -> Iterator[tuple[Kernel, int]]:
    """Yields the kernels of a compiled program, and how often each runs in a step."""
    program = parse_hlo(text)
    yield from _walk(program, program.entry, 1)


def kernel_of(program: Program, op: Instruction, body: Computation) -> Kernel:
    """Returns the kernel that an instruction of `body` is."""
    inside = program.inside(op) or _alone(op, body)
    read, written = _moved(program, inside)
    return Kernel(_kind(inside, read), read, written, tuple(_products(program, inside)))


def _walk(program: Program, name: str, times: int) -> Iterator[tuple[Kernel, int]]:
    body = program.computations[name]
    for op in body.values():
        if op.opcode == "while":
            yield from _walk(program, program.body(op), times * (1 if (trips := program.trips(op)) is None else trips))
        elif op.opcode in ("call", "async-start"):
            yield from _walk(program, program.called(op)[0], times)
        elif op.opcode not in FREE and not op.opcode.endswith(("-done", "-update")):
            yield kernel_of(program, op, body), times


def _alone(op: Instruction, body: Computation) -> Computation:
    """Returns an op by itself as a fusion would have it."""
    parameters = {
        name: Instruction(body[name].shape, "parameter", str(k), (), "")
        for k, name in enumerate(op.operands)
        if name in body
    }
    return {**parameters, "": op}


def _moved(program: Program, inside: Computation) -> tuple[int, int]:
    """Returns the bytes of the device's memory that a kernel reads and writes."""
    roots = _roots(inside)
    read = _Reads(program, roots)
    parameters = [name for name, op in inside.items() if op.opcode == "parameter"]
    written = sum(
        memory_bytes(inside[op.operands[1]].shape, space_of=op.shape) if op.opcode == _UPDATE else _result_bytes(op)
        for op in roots
    )
    return sum(read.of(inside, name) for name in parameters), written


@dataclass(eq=False)
class _Reads:
    """What a kernel reads of its operands, through the fusions in it."""

    program: Program
    roots: list[Instruction]

    def of(self, inside: Computation, name: str) -> int:
        """Returns the bytes that are read of a value of `inside`."""
        whole, found = memory_bytes(inside[name].shape), 0
        if not whole:
            return 0
        for reader, op in inside.items():
            for position, operand in enumerate(op.operands):
                if operand == name and found < whole:
                    found += self.by(inside, reader, op, position, whole)
        return min(found, whole)

    def by(self, inside: Computation, reader: str, op: Instruction, position: int, whole: int) -> int:
        """Returns the bytes that one op reads of its operand at `position`."""
        if op.opcode == "bitcast":
            return self.of(inside, reader)
        if op.opcode == "tuple" or (not position and op.opcode == _UPDATE and any(op is root for root in self.roots)):
            return 0
        if not position and op.opcode in _SLICES:
            return memory_bytes(op.shape, space_of=inside[op.operands[0]].shape)
        if op.opcode == "fusion" and (called := self.program.called(op)):
            nested = self.program.computations[called[0]]
            own = [name for name, one in nested.items() if one.opcode == "parameter" and one.arguments == str(position)]
            return self.of(nested, own[0]) if own else whole
        return whole


def memory_bytes(shape: str, space_of: str = "") -> int:
    """Returns the bytes of a shape that lie in the device's own memory.

    `space_of` is the shape whose memory space counts instead: of a slice, that of what it is cut from.
    """
    found = arrays(shape)
    if space_of:
        return sum(array.num_bytes for array in found) if arrays(space_of)[0].space == 0 else 0
    return sum(array.num_bytes for array in found if array.space == 0)


def kernel_config(op: Instruction) -> str:
    """Returns the configuration of a call of a kernel that the program brings along; nothing for other ops."""
    start = op.attributes.find(_CONFIG)
    brings = any(f'custom_call_target="{target}"' in op.attributes for target in _OWN_KERNELS)
    if op.opcode != "custom-call" or start < 0 or not brings:
        return ""
    start += len(_CONFIG)
    depth = 0
    for token in _TOKENS.finditer(op.attributes, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return op.attributes[start : token.end()]
    return ""


def _result_bytes(op: Instruction) -> int:
    """Returns the bytes that an op writes."""
    if op.opcode in ("custom-call", "copy-start"):
        first = arrays(op.shape)[:1]
        return sum(array.num_bytes for array in first if array.space == 0)
    return memory_bytes(op.shape)


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
    does = {op.opcode for op in inside.values()} - FREE
    if "dot" in does or any(_is_library_product(op) for op in inside.values()):
        return "products"
    if any(op.opcode == _UPDATE for op in _roots(inside)):
        return "copies into stacks"
    if does <= {"broadcast", "copy"} and read_bytes < 1024:
        return "zeros"
    if does <= _LAYOUT:
        return "transposes and copies"
    return "copies of parts of stacks" if _SLICE in does and does <= _LAYOUT | _INDEX | {_SLICE} else "all else"


# Products


def _is_library_product(op: Instruction) -> bool:
    return op.opcode == "custom-call" and any(name in op.attributes for name in ("gemm", "matmul", "__cudnn$conv"))


def _products(program: Program, inside: Computation) -> Iterator[Product]:
    """Yields the products that a kernel computes, those of nested fusions among them."""
    for op in inside.values():
        if op.opcode == "fusion":
            for name in program.called(op):
                yield from _products(program, program.computations[name])
        elif op.opcode in ("dot", "convolution") or _is_library_product(op):
            shapes = [arrays(inside[name].shape) for name in op.operands[:2] if name in inside]
            result = arrays(op.shape)
            if len(shapes) == 2 and all(shapes) and result:
                precision = _PRECISION.search(op.attributes)
                lhs, rhs = shapes[0][0], shapes[1][0]
                flops = _flops(op, lhs.dims, rhs.dims, result[0].dims)
                yield Product(flops, lhs.dtype, precision[1].lower() if precision else "default")


def _flops(op: Instruction, lhs: tuple[int, ...], rhs: tuple[int, ...], result: tuple[int, ...]) -> int:
    if labels := _LABELS.search(op.attributes):
        if "convBackwardInput" in op.attributes:  # a library's call has labels and window of the forward convolution
            lhs, result = result, lhs
        elif "convBackwardFilter" in op.attributes:
            rhs, result = result, rhs
        return _convolution_flops(op.attributes, (labels[1], labels[2], labels[3]), lhs, rhs, result)
    contracting = _CONTRACTING.search(op.attributes)
    dims = [int(dim) for dim in re.findall(r"\d+", contracting[1])] if contracting else []
    return 2 * prod(result) * prod(lhs[dim] for dim in dims)


def _convolution_flops(
    attributes: str, labels: tuple[str, str, str], lhs: tuple[int, ...], rhs: tuple[int, ...], result: tuple[int, ...]
) -> int:
    """Returns the FLOP of a convolution: of each spatial dim, only taps that meet an element of the operand count.

    So padding and dilation cost nothing, and a batched product that XLA:TPU writes as a dilated convolution counts as
    what it is.
    """
    operand, kernel, output = labels
    window = _window(attributes)
    taps = 1
    for number in range(len(output) - 2):
        dim = str(number)
        sizes = (lhs[operand.index(dim)], rhs[kernel.index(dim)], result[output.index(dim)])
        taps *= _taps(*sizes, *(window[key][number] if key in window else default for key, default in _DEFAULTS))
    return 2 * result[output.index("b")] * result[output.index("f")] * rhs[kernel.index("i")] * taps


_DEFAULTS: Final = (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))


def _window(attributes: str) -> dict[str, list[int]]:
    """Returns the numbers of a window by key, one for each spatial dim; of a padding, the one before the first."""
    found = _WINDOW.search(attributes)
    pairs = (part.split("=") for part in found[1].split() if "=" in part) if found else ()
    return {key: [int(one.split("_")[0]) for one in text.split("x")] for key, text in pairs if key != "rhs_reversal"}


def _taps(operand: int, kernel: int, output: int, stride: int, pad: int, dilation: int, spread: int) -> int:
    """Returns how many pairs of an output and a tap meet an element of the operand, along one dim."""
    at = np.arange(output)[:, None] * stride + np.arange(kernel)[None, :] * spread - pad
    return int(((at >= 0) & (at <= (operand - 1) * dilation) & (at % dilation == 0)).sum())
