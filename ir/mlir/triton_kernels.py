"""Kernels of Triton inside of custom calls, as Pallas makes them for GPUs: read, and written for other grids.

A kernel is a module of the dialect `tt`, as bytecode in the call's configuration. Its function runs once for each
program of a grid of three dims, takes a pointer for each operand and result of the call, and computes itself where it
loads and stores.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Final

from rhino.ir.mlir.bindings import ir, make_context, triton_dialect
from rhino.ir.mlir.boundary import entries
from rhino.ir.mlir.reader import walk

TARGET: Final = "__gpu$xla.gpu.triton"
_CONFIG: Final = "mhlo.backend_config"
_CODE: Final = "ir"
_GRID: Final = ("grid_x", "grid_y", "grid_z")
_FUNCTION: Final = "tt.func"


@dataclass(frozen=True, slots=True, eq=False)
class TritonKernel:
    """A kernel, in a context of its own: its code, the module of it, its function, and how many programs run."""

    code: bytes
    module: ir.Module
    body: ir.Operation
    bounds: tuple[int, ...]

    @property
    def block(self) -> ir.Block:
        """What the function does."""
        found: ir.Block = self.body.regions[0].blocks[0]
        return found

    @property
    def num_arguments(self) -> int:
        """How many operands and results there are."""
        return len(self.block.arguments)


def is_triton_kernel(op: ir.Operation) -> bool:
    """Says whether an op calls a kernel of Triton."""
    return (
        op.name == "stablehlo.custom_call"
        and ir.StringAttr(op.attributes["call_target_name"]).value == TARGET
        and _CONFIG in op.attributes
    )


def read_triton_kernel(op: ir.Operation) -> TritonKernel | None:
    """Returns the kernel of a custom call, None where it has none of this form."""
    return _configured(op.attributes[_CONFIG]) if is_triton_kernel(op) else None


@cache
def parse_triton_config(text: str) -> TritonKernel | None:
    """Returns the kernel of a call's configuration as text, None where it is of another form."""
    try:
        return _configured(ir.Attribute.parse(text, make_context()))
    except ir.MLIRError:
        return None


def _configured(config: ir.Attribute) -> TritonKernel | None:
    if not isinstance(config, ir.DictAttr):
        return None
    parts = entries(config)
    code = parts.get(_CODE)
    sizes = [size.value for name in _GRID if isinstance(size := parts.get(name), ir.IntegerAttr)]
    if not isinstance(code, ir.StringAttr) or len(sizes) < len(_GRID):
        return None
    return parse_triton_kernel(code.value_bytes, tuple(sizes))


@cache
def parse_triton_kernel(code: bytes, bounds: tuple[int, ...]) -> TritonKernel | None:
    """Returns the kernel that runs `code` on a grid of `bounds`, None where the code is of another form.

    Whoever changes the kernel's module makes a kernel of their own, with `copied_triton`.
    """
    try:
        return _decoded(code, bounds)
    except (ValueError, ir.MLIRError):
        return None  # of another version


def copied_triton(kernel: TritonKernel) -> TritonKernel:
    """Returns the kernel once more, in a context of its own."""
    made = _decoded(kernel.code, kernel.bounds)
    assert made is not None
    return made


def _decoded(code: bytes, bounds: tuple[int, ...]) -> TritonKernel | None:
    context = make_context()
    triton_dialect().register_dialect(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(code)
    functions = [one.operation for one in module.body.operations]
    if len(functions) != 1 or functions[0].name != _FUNCTION or len(functions[0].regions[0].blocks) != 1:
        return None
    return TritonKernel(code, module, functions[0], bounds)


def program_ids(kernel: TritonKernel) -> list[list[ir.Operation]]:
    """Returns for each dim of the grid the ops that ask which program along it runs."""
    ops = [op for op in walk(kernel.body) if op.name == "tt.get_program_id"]
    return [[op for op in ops if ir.IntegerAttr(op.attributes["axis"]).value == axis] for axis in range(len(_GRID))]


def triton_code(kernel: TritonKernel) -> bytes:
    """Returns the code of a kernel as its module is now."""
    code = io.BytesIO()
    kernel.module.operation.write_bytecode(code)
    return code.getvalue()


def write_triton_kernel(op: ir.Operation, code: bytes, bounds: tuple[int, ...]) -> None:
    """Makes a custom call run a kernel's code on a grid of `bounds`."""
    parts = entries(op.attributes[_CONFIG])
    with op.context:
        count = ir.IntegerType.get_signless(32)
        parts[_CODE] = ir.StringAttr.get(code)
        parts |= {name: ir.IntegerAttr.get(count, size) for name, size in zip(_GRID, bounds, strict=True)}
        op.attributes[_CONFIG] = ir.DictAttr.get(parts)


def pointee_bytes(kind: ir.Type) -> int | None:
    """Returns the bytes of an element that a pointer points to; None for other types, and for parts of a byte."""
    pointer = triton_dialect().PointerType
    if not isinstance(kind, pointer):
        return None
    width = int(getattr(pointer(kind).pointee_type, "width", 0))
    return 1 if width == 1 else width // 8 or None
