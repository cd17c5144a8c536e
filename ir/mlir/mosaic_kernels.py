"""Kernels of Mosaic for GPUs inside of custom calls (`mosaic_gpu_v2`): read, and written for other grids.

A kernel is a module in the call's configuration, serialized. On the host its function describes memory, a descriptor
for each way in which the kernel copies blocks of an operand or result, and launches blocks of threads on a grid.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, make_context, mosaic_gpu_dialect, run_pipeline
from rhino.ir.mlir.boundary import entries
from rhino.ir.mlir.reader import maker_of, walk

TARGET: Final = "mosaic_gpu_v2"
_CONFIG: Final = "mhlo.backend_config"
_CODE: Final = "module"
_COLLECTIVE: Final = "uses_xla_collective_metadata"
"""True of kernels that reach into the memory of other devices."""
_HASH: Final = "kernel_hash"
_VERSION: Final = "stable_mosaic_gpu.version"
_LAUNCH: Final = "gpu.launch"
_DESCRIBE: Final = "mosaic_gpu_init_tma_desc"
ARGUMENT: Final = "mosaic_gpu.from_kernel_arg_idx"
_VIEWS: Final = tuple(
    f"memref.{name}" for name in ("cast", "collapse_shape", "expand_shape", "reinterpret_cast", "transpose")
)


@dataclass(frozen=True, slots=True, eq=False)
class Descriptor:
    """How blocks are copied of the memory of argument `root`: blocks of `box` elements, of tensors of `sizes`.

    `strides` are in elements of `element_bytes`. What stores sizes and strides is there too, to be changed.
    """

    root: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_bytes: int
    size_stores: tuple[ir.Operation, ...]
    stride_stores: tuple[ir.Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MosaicKernel:
    """A kernel, in a context of its own: its code, its module, what launches it, and how many blocks run.

    `descriptors` are by where they lie, and `describes` has the ops that make them. `element_bytes` are of each operand
    and result.
    """

    code: bytes
    module: ir.Module
    launch: ir.Operation
    bounds: tuple[int, ...]
    num_threads: tuple[int, ...]
    descriptors: Mapping[int, Descriptor]
    describes: frozenset[ir.Operation]
    element_bytes: Mapping[int, int]

    @property
    def num_arguments(self) -> int:
        """How many operands and results there are."""
        return len(self.element_bytes)


def is_mosaic_kernel(op: ir.Operation) -> bool:
    """Says whether an op calls a kernel of Mosaic for GPUs."""
    return (
        op.name == "stablehlo.custom_call"
        and ir.StringAttr(op.attributes["call_target_name"]).value == TARGET
        and _CONFIG in op.attributes
    )


def read_mosaic_kernel(op: ir.Operation) -> MosaicKernel | None:
    """Returns the kernel of a custom call, None where it has none of this form."""
    return _configured(op.attributes[_CONFIG]) if is_mosaic_kernel(op) else None


@cache
def parse_mosaic_config(text: str) -> MosaicKernel | None:
    """Returns the kernel of a call's configuration as text, None where it is of another form."""
    try:
        return _configured(ir.Attribute.parse(text, make_context()))
    except ir.MLIRError:
        return None


def _configured(config: ir.Attribute) -> MosaicKernel | None:
    parts = entries(config) if isinstance(config, ir.DictAttr) else {}
    code, others = parts.get(_CODE), parts.get(_COLLECTIVE)
    is_alone = not isinstance(others, ir.BoolAttr) or not others.value
    return parse_mosaic_kernel(code.value_bytes) if is_alone and isinstance(code, ir.StringAttr) else None


@cache
def parse_mosaic_kernel(code: bytes) -> MosaicKernel | None:
    """Returns the kernel of some code, None where it is of another form.

    Whoever changes the kernel's module makes a kernel of their own, with `copied_mosaic`.
    """
    try:
        return _decoded(code)
    except (ValueError, KeyError, ir.MLIRError):
        return None  # of another version


def copied_mosaic(kernel: MosaicKernel) -> MosaicKernel:
    """Returns the kernel once more, in a context of its own."""
    return _decoded(kernel.code)


def block_ids(kernel: MosaicKernel) -> list[list[ir.Operation]]:
    """Returns for each dim of the grid the ops that ask which block along it runs."""
    ops = [op for op in walk(kernel.launch) if op.name == "gpu.block_id"]
    return [[op for op in ops if axis_of(op) == axis] for axis in range(len(kernel.bounds))]


def axis_of(op: ir.Operation) -> int:
    """Returns the number of the dim of a grid that an op asks for."""
    return "xyz".index(str(op.attributes["dimension"]).split()[-1].rstrip(">"))


def with_bounds(kernel: MosaicKernel, bounds: tuple[int, ...]) -> MosaicKernel:
    """Changes how many blocks run, in the kernel's module, and returns the kernel as its module is now."""
    first = next(iter(ir.DenseI32ArrayAttr(kernel.launch.attributes["operandSegmentSizes"])))
    for number, bound in enumerate(bounds):
        kind = kernel.launch.operands[first + number].type
        kernel.launch.operands[first + number] = ir.Operation.create(
            "arith.constant",
            [kind],
            attributes={"value": ir.IntegerAttr.get(kind, bound)},
            loc=kernel.launch.location,
            ip=ir.InsertionPoint(kernel.launch),
        ).results[0]
    return _kernel(kernel.code, kernel.module)


def mosaic_code(kernel: MosaicKernel) -> bytes:
    """Returns the code of a kernel as its module is now, which is changed by this."""
    before = ir.Module.parse(kernel.code, kernel.module.context)
    version = ir.IntegerAttr(before.operation.attributes[_VERSION]).value
    run_pipeline(kernel.module, f"mosaic_gpu-serde{{serialize=true target-version={version}}}")
    code = io.BytesIO()
    kernel.module.operation.write_bytecode(code, desired_version=0)
    return code.getvalue()


def write_mosaic_kernel(op: ir.Operation, code: bytes) -> None:
    """Makes a custom call run a kernel's code."""
    parts = entries(op.attributes[_CONFIG])
    with op.context:
        parts[_CODE] = ir.StringAttr.get(code)
        parts[_HASH] = ir.StringAttr.get(hashlib.sha256(code).digest())
        op.attributes[_CONFIG] = ir.DictAttr.get(parts)


def _decoded(code: bytes) -> MosaicKernel:
    context = make_context()
    context.allow_unregistered_dialects = True
    mosaic_gpu_dialect().register_dialect(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(code)
        run_pipeline(module, "mosaic_gpu-serde{serialize=false}")
    return _kernel(code, module)


def _kernel(code: bytes, module: ir.Module) -> MosaicKernel:
    """Returns the kernel of a module; raises ValueError where it is of another form."""
    ops = walk(module.operation)
    launches = [op for op in ops if op.name == _LAUNCH]
    if len(launches) != 1:
        raise ValueError
    launch = launches[0]
    segments = list(ir.DenseI32ArrayAttr(launch.attributes["operandSegmentSizes"]))
    if any(segments[7:10]) or segments[1:7] != [1] * 6:  # clusters of blocks see each other's memory
        raise ValueError
    sizes = tuple(static(value) for value in list(launch.operands)[segments[0] : segments[0] + 6])
    calls = [op for op in ops if op.name == "func.call" and _calls(op, _DESCRIBE)]
    found = dict(_descriptor(op) for op in calls)
    stores = {store for op in calls for number in (4, 5, 7) for store in _stores(op.operands[number])}
    memory = [op for op in ops if ARGUMENT in op.attributes]
    num_bytes = {ir.IntegerAttr(op.attributes[ARGUMENT]).value: _bytes_in(op.results[0].type) for op in memory}
    return MosaicKernel(code, module, launch, sizes[:3], sizes[3:], found, frozenset({*calls, *stores}), num_bytes)


def _bytes_in(kind: ir.Type) -> int:
    """Returns the bytes of an element of memory; raises ValueError for parts of a byte."""
    bits = int(getattr(ir.MemRefType(kind).element_type, "width", 0))
    if bits % 8 or not bits:
        raise ValueError
    return bits // 8


def _calls(op: ir.Operation, name: str) -> bool:
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value == name


def _descriptor(op: ir.Operation) -> tuple[int, Descriptor]:
    """Returns a descriptor and where it lies; raises ValueError where it is described otherwise than expected."""
    operands = list(op.operands)
    memory = _made(_made(_made(_made(operands[1], "llvm.getelementptr"), "llvm.inttoptr"), "arith.index_cast"), "")
    if memory.name != "memref.extract_aligned_pointer_as_index":
        raise ValueError
    view, kind = memory.operands[0], ir.MemRefType(memory.operands[0].type)
    _, offset = kind.get_strides_and_offset()
    maker = maker_of(view)
    while maker is not None and maker.name in _VIEWS:
        maker = maker_of(maker.operands[0])
    if maker is None or ARGUMENT not in maker.attributes or offset != 0:
        raise ValueError
    sizes, strides, box = (_stores(operands[number]) for number in (4, 5, 7))
    if len({len(sizes), len(strides), len(box), static(operands[3])}) != 1:
        raise ValueError
    numbers = [tuple(static(store.operands[0]) for store in stores) for stores in (sizes, strides, box)]
    root = ir.IntegerAttr(maker.attributes[ARGUMENT]).value
    found = Descriptor(root, numbers[0], numbers[1], numbers[2], _bytes_in(kind), sizes, strides)
    return descriptor_place(operands[0]), found


def _made(found: ir.Value[Any] | ir.Operation, name: str) -> ir.Operation:
    """Returns the op that makes a value, or the first operand of an op, which has to be of this name."""
    maker = maker_of(found.operands[0] if isinstance(found, ir.Operation) else found)
    if maker is None or (name and maker.name != name):
        raise ValueError
    return maker


def _stores(memory: ir.Value[Any]) -> tuple[ir.Operation, ...]:
    """Returns what writes each element of an array, in order."""
    found = dict[int, ir.Operation]()
    for element in (use.owner.operation for use in memory.uses):
        if element.name == "llvm.getelementptr":
            stores = [use.owner.operation for use in element.results[0].uses]
            if len(stores) != 1 or stores[0].name != "llvm.store":
                raise ValueError
            found[_index(element)] = stores[0]
    if sorted(found) != list(range(len(found))):
        raise ValueError
    return tuple(found[number] for number in range(len(found)))


def descriptor_place(pointer: ir.Value[Any]) -> int:
    """Returns where a descriptor lies to which a pointer points; raises ValueError where that is not known."""
    return _index(_made(pointer, "llvm.getelementptr"))


def _index(op: ir.Operation) -> int:
    indices = list(ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"]))
    if len(indices) != 1 or len(op.operands) != 1:
        raise ValueError
    return int(indices[0])


def static(value: ir.Value[Any]) -> int:
    """Returns the integer that a value of the host is in every run; raises ValueError where it is none."""
    op = maker_of(value)
    if op is not None and op.name in ("arith.constant", "llvm.mlir.constant"):
        return int(ir.IntegerAttr(op.attributes["value"]).value)
    if op is not None and op.name == "arith.index_cast":
        return static(op.operands[0])
    if op is None or op.name != "memref.extract_strided_metadata":
        raise ValueError
    kind = ir.MemRefType(op.operands[0].type)
    strides, offset = kind.get_strides_and_offset()
    number = next(number for number, one in enumerate(op.results) if one == value)
    found = [offset, *kind.shape, *strides][number - 1]
    if not number or not kind.has_static_shape or found < 0:
        raise ValueError
    return int(found)
