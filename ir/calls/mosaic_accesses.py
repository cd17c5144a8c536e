"""What the blocks of a Mosaic kernel copy from and to the memory of operands and results, and what decides it.

Threads work on memory of their block. Of all that is in it, as of values in flight, it is known from which dims of the
grid it follows: from what any thread has put there, and whether it has. What is copied in follows from none by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from rhino.ir.calls.index_forms import Form, Variable, on_one_variable
from rhino.ir.calls.known_values import Known, Periods, added, computed, constant, counted, fitted, is_integer, merged
from rhino.ir.calls.machine import Machine, Reading, UnreadableError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.mosaic_kernels import ARGUMENT, Descriptor, MosaicKernel, axis_of, descriptor_place
from rhino.ir.mlir.reader import maker_of

LOAD: Final = "nvvm.cp.async.bulk.tensor.shared.cluster.global"
STORE: Final = "nvvm.cp.async.bulk.tensor.global.shared.cta"
_ASM: Final = "llvm.inline_asm"
_COPY_IN: Final = "@$0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [$1], [$2], $3, [$4];"
_COPY_OUT: Final = "@$0 cp.async.bulk.global.shared::cta.bulk_group [$1], [$2], $3;"
_PURE: Final = ("arith.", "math.", "vector.")
_MEMORY: Final = ("llvm.load", "llvm.store", "memref.load", "memref.store", "vector.load", "vector.store")
_IMPURE: Final = re.compile(r"vector\.(masked|transfer|gather|scatter|expand|compress)")
_LLVM: Final = frozenset(
    f"llvm.{name}"
    for name in (
        *("add", "alloca", "and", "ashr", "bitcast", "extractelement", "extractvalue", "fadd", "fcmp", "fdiv", "fmul"),
        *("fneg", "fsub", "getelementptr", "icmp", "insertelement", "insertvalue", "inttoptr", "lshr", "mul", "or"),
        *(f"intr.{name}" for name in ("fabs", "fma", "maximum", "maxnum", "minimum", "minnum")),
        *(f"mlir.{name}" for name in ("constant", "poison", "undef", "zero")),
        *("ptrtoint", "select", "sext", "shl", "sub", "trunc", "xor", "zext"),
    )
)
_OTHERS: Final = frozenset(
    [
        "builtin.unrealized_conversion_cast",
        "gpu.dynamic_shared_memory",
        "nvvm.elect.sync",
        "nvvm.shfl.sync",
        *(f"memref.{name}" for name in ("alloca", "cast", "collapse_shape", "expand_shape", "reinterpret_cast")),
        *(f"memref.{name}" for name in ("subview", "transpose", "view")),
    ]
)
_IN_THE_BLOCK: Final = re.compile(
    r"gpu\.barrier|nvvm\.(barrier|fence|mbarrier|setmaxregister|stmatrix|ldmatrix|wgmma"
    r"|cp\.async\.bulk\.(commit|wait)[._]group)"
)
"""Ops that only see memory and threads of their block."""
_ASM_OPS: Final = re.compile(
    r"\.reg|setp|selp|bar\.sync|wgmma\.|mbarrier\.[\w.]*shared::cta|(ld|st)matrix|prmt|lop3|mov\.b"
    r"|(abs|add|and|cvt|ex2|fma|lg2|max|min|mul|neg|not|or|rcp|rsqrt|shl|shr|sqrt|sub|tanh|xor)\."
)
_PRODUCT: Final = re.compile(r"wgmma\.mma_async\.[\w.]*?m(\d+)n(\d+)k(\d+)\.\w+\.(\w+)\.")
_SHARED: Final = "#gpu.address_space<workgroup>"
_ON_HOST: Final = re.compile(
    r"arith\.|builtin\.unrealized|memref\.(?!load|store|copy|atomic)|func\.return"
    r"|llvm\.(alloca|getelementptr|insertvalue|inttoptr|load|mlir\.\w+|ptrtoint)$"
)
"""Ops that only describe memory."""
_WARP: Final = 32
_WARPGROUP: Final = 128


def read_mosaic(kernel: MosaicKernel) -> Reading:
    """Returns what the blocks of a kernel copy from operands and to results.

    Raises UnreadableError where an op is not known, or memory of an operand or result is used in place.
    """
    machine = _MosaicMachine(kernel.bounds, kernel=kernel)
    host = kernel.launch.block
    machine.known |= dict.fromkeys((*host.arguments, *kernel.launch.regions[0].blocks[0].arguments), Known())
    before: Periods | None = None
    while machine.memory != before:  # what one thread puts there, any other may have seen
        before = machine.memory
        machine.run(host)
    return machine.reading()


@dataclass(slots=True)
class _MosaicMachine(Machine):
    """Knows the ops of Mosaic's kernels."""

    kernel: MosaicKernel = field(kw_only=True)
    memory: Periods = field(default_factory=dict[int, int])
    """From what follows what is in memory of a block."""
    is_launched: bool = False

    def plain(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        """Returns what is known of the results of an op that runs no block; raises UnreadableError for unknown ops."""
        if op.name == "gpu.launch":
            return self._launch(op)
        if not self.is_launched:
            return self._on_host(op, operands)
        if op.name in (LOAD, STORE):
            self._copy_block(op, operands)
            return []
        if op.name == _ASM and _asm_of(op) in (_COPY_IN, _COPY_OUT):
            self._copy_row(op, operands, is_store=_asm_of(op) == _COPY_OUT)
            return [Known()]
        if op.name == "scf.index_switch":
            return self._switch(op, operands[0])
        if op.name == "memref.extract_strided_metadata":
            return _metadata(op, operands[0])
        if len(op.results) == 1 and (known := self._known(op, operands)) is not None:
            return [fitted(known, op.results[0].type)]
        of = merged(one.follows for one in operands)
        if op.name == _ASM:
            self._asm(op)
        elif op.name in _MEMORY or _IN_THE_BLOCK.match(op.name):
            _refuse_outside(op)
        else:
            is_pure = op.name.startswith(_PURE) and not _IMPURE.match(op.name) and not len(op.regions)
            if not is_pure and op.name not in _LLVM | _OTHERS:
                raise UnreadableError
            self._count(op)
            return [Known(of=of)] * len(op.results)
        self.memory = merged([self.memory, of, *self.control])
        return [Known(of=self.memory)] * len(op.results)

    def _on_host(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        """Returns what is known of the results of an op that runs once, before the blocks do."""
        if len(op.results) == 1 and op.name in ("arith.constant", "llvm.mlir.constant"):
            return [constant(op.attributes["value"])]
        if ARGUMENT in op.attributes:
            return [Known(Form(0), root=ir.IntegerAttr(op.attributes[ARGUMENT]).value)]
        is_described = op.name in ("llvm.store", "func.call") and op in self.kernel.describes
        if not is_described and not _ON_HOST.match(op.name):
            raise UnreadableError
        return [Known()] * len(op.results)

    def _launch(self, op: ir.Operation) -> Sequence[Known]:
        block = op.regions[0].blocks[0]
        if any(next(iter(argument.uses), None) is not None for argument in block.arguments):
            raise UnreadableError
        self.is_launched = True
        self.run(block)
        self.is_launched = False
        return [Known()] * len(op.results)

    def _known(self, op: ir.Operation, operands: Sequence[Known]) -> Known | None:
        """Returns what is known of an integer, of memory of an operand or result, and of pointers; None for others."""
        match op.name:
            case "gpu.block_id":
                axis = axis_of(op)
                return Known(counted(Variable("program", axis, self.kernel.bounds[axis])))
            case "gpu.thread_id":
                axis = axis_of(op)
                return Known(counted(Variable("thread", axis, self.kernel.num_threads[axis])))
            case "gpu.block_dim":
                return Known(Form(self.kernel.num_threads[axis_of(op)]))
            case "gpu.grid_dim":
                axis = axis_of(op)
                return Known(of={axis: self.kernel.bounds[axis]})
            case "nvvm.shfl.sync" if "idx" in str(op.attributes["kind"]):
                return self._of_lane(operands)
            case "arith.constant" | "llvm.mlir.constant" if is_integer(op.results[0].type):
                return constant(op.attributes["value"])
            case "arith.minui" if (least := self._lesser(operands)) is not None:
                return least
            case "arith.shrui" if operands[1].form is not None and not operands[1].form.tables:
                return _shifted(operands[0], operands[1].form.low)
        return _of_argument(op, operands) or (computed(op, operands) if is_integer(op.results[0].type) else None)

    def _lesser(self, operands: Sequence[Known]) -> Known | None:
        """Returns which of two numbers is never the larger one here, None where either may be."""
        forms = [one.form.within(self.facts) if one.form is not None else None for one in operands]
        for (one, other), known in zip((forms, forms[::-1]), operands, strict=True):
            if one is not None and other is not None and one.low >= 0 and one.high <= other.low:
                return known
        return None

    def _of_lane(self, operands: Sequence[Known]) -> Known:
        """Returns what each thread of a warp gets of one of them."""
        _, value, lane, _ = operands
        is_row = self.kernel.num_threads[1:] == (1, 1)
        if is_row and value.form is not None and lane.form is not None and not lane.form.tables:
            first, variables = lane.form.low, list(value.form.tables)
            if not variables:
                return Known(value.form)
            if [one.kind for one in variables] == ["thread"]:
                threads = np.arange(variables[0].size)
                found = on_one_variable((value.form,), lambda one: one[threads // _WARP * _WARP + first])
                return Known(found)
        return Known(of=merged(one.follows for one in operands))

    def _copy_block(self, op: ir.Operation, operands: Sequence[Known]) -> None:
        """Notes a copy of a block that a descriptor describes."""
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        try:
            descriptor = self.kernel.descriptors[descriptor_of(op)]
        except (KeyError, ValueError):
            raise UnreadableError from None
        if segments[2] != len(descriptor.sizes) or (op.name == LOAD and any(segments[4:7])):
            raise UnreadableError
        coordinates, others = operands[2 : 2 + segments[2]], (*operands[:2], *operands[2 + segments[2] :])
        of = merged([*(one.follows for one in others), *self.control])
        offset, mask = _block(coordinates, descriptor)
        place = replace(offset, root=descriptor.root)
        decides = merged([of, self.memory]) if op.name == STORE else None
        num_elements = round(
            prod(descriptor.box) * prod(self.kernel.num_threads) / _WARPGROUP
        )  # one thread of each asks
        self.access(op, place, Known(facts=mask), decides, (num_elements, descriptor.element_bytes))
        if op.name == LOAD:
            self.memory = merged([self.memory, of])

    def _asm(self, op: ir.Operation) -> None:
        """Notes what products cost; raises UnreadableError for code that does more than compute within a block."""
        code = _asm_of(op)
        _refuse_outside(op)
        statements = [one.strip(" {}\n\t") for one in re.split(r"[;\n]", code)]
        if "%" in code or any(one and not _ASM_OPS.match(one) for one in statements):
            raise UnreadableError
        if match := _PRODUCT.search(code):
            rows, columns, inner = (int(match[number]) for number in (1, 2, 3))
            warpgroups = prod(self.kernel.num_threads) / _WARPGROUP
            self.work[op] = (2.0 * rows * columns * inner * warpgroups * self.times, match[4])

    def _copy_row(self, op: ir.Operation, operands: Sequence[Known], *, is_store: bool) -> None:
        pointer, size = operands[1 if is_store else 2], operands[3]
        if pointer.root is None or size.form is None or size.form.tables or size.form.low < 1:
            raise UnreadableError
        num_bytes = self.kernel.element_bytes[pointer.root]
        num_elements, rest = divmod(size.form.low, num_bytes)
        both = pointer.form.divided(num_bytes) if pointer.form is not None else None
        if rest or (both is not None and not both[1].is_same(Form(0))):
            raise UnreadableError
        of = merged([*(one.follows for one in operands if one is not pointer), *self.control])
        where = replace(pointer, form=both[0] + counted(Variable("lane", 0, num_elements))) if both else pointer
        self.access(op, where, Known(), merged([of, self.memory]) if is_store else None, (num_elements, num_bytes))
        if not is_store:
            self.memory = merged([self.memory, of])

    def _switch(self, op: ir.Operation, asked: Known) -> Sequence[Known]:
        """Runs each block of a choice by number."""
        cases = list(ir.DenseI64ArrayAttr(op.attributes["cases"]))
        ends = list[list[Known]]()
        outer = self.times
        for region, case in zip(op.regions, (None, *cases), strict=True):  # the first is for all other numbers
            facts, share = _chosen(asked, case, cases)
            if share == 0:
                continue
            self.times = outer * share
            self.control.append(asked.follows)
            self.facts += facts
            ends.append(self.run(region.blocks[0]))
            self.control.pop()
            del self.facts[len(self.facts) - len(facts) :]
        self.times = outer
        return [Known(of=merged([asked.follows, *(one.follows for one in every)])) for every in zip(*ends, strict=True)]

    def _count(self, op: ir.Operation) -> None:
        """Notes the work of an op on numbers: an operation for each of them and each thread."""
        if op.name.startswith(("arith.", "math.", "vector.reduction")) and len(op.operands):
            kind = op.results[0].type
            sizes = list(ir.VectorType(kind).shape) if isinstance(kind, ir.VectorType) else []
            if not is_integer(kind):
                self.work[op] = (prod(sizes) * prod(self.kernel.num_threads) * self.times, "")


def descriptor_of(op: ir.Operation) -> int:
    """Returns where the descriptor lies of a copy of a block; raises ValueError where that is not known."""
    return descriptor_place(op.operands[0 if op.name == STORE else 1])


def _asm_of(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["asm_string"]).value.strip()


def _shifted(known: Known, bits: int) -> Known:
    """Returns a number without its last bits."""
    if known.form is not None and known.form.low >= 0:
        both = known.form.divided(1 << bits)
        found = both[0] if both else on_one_variable((known.form,), lambda one: one >> bits)
        if found is not None:
            return Known(found)
    return Known(of=known.follows)


def _block(coordinates: Sequence[Known], descriptor: Descriptor) -> tuple[Known, tuple[Form, ...]]:
    """Returns the offsets of the elements of a block, and what is at most 0 for those that are not left out."""
    total, facts = Known(Form(0)), list[Form]()
    for lane, (coordinate, size, stride, box) in enumerate(
        zip(reversed(coordinates), descriptor.sizes, descriptor.strides, descriptor.box, strict=True)
    ):
        if coordinate.form is not None:
            index = coordinate.form + counted(Variable("lane", lane, box))
        elif not coordinate.follows:
            index = counted(Variable("lane", lane, size))  # anywhere: what lies outside is left out
        else:
            return Known(of=merged(one.follows for one in coordinates)), ()
        facts.append(index.plus(1 - size))
        total = added(total, Known(index.times(stride)), 1)
    return total, tuple(facts)


def _chosen(asked: Known, case: int | None, cases: Sequence[int]) -> tuple[tuple[Form, ...], float]:
    """Returns what is at most 0 where a number is `case`, or none of `cases`, and how often that is."""
    if asked.form is None:
        return (), 1.0
    taken = on_one_variable(
        (asked.form,), lambda one: np.isin(one, list(cases), invert=True) if case is None else one == case
    )
    return ((taken.times(-1).plus(1),), taken.mean) if taken is not None else ((), 1.0)


def _refuse_outside(op: ir.Operation) -> None:
    """Raises UnreadableError where an op has pointers to memory that may be of an operand or result."""
    for value in op.operands:
        maker = maker_of(value)
        is_own = maker is not None and maker.name in ("memref.alloca", "llvm.alloca")
        if isinstance(value.type, ir.MemRefType):
            is_own |= _SHARED in str(ir.MemRefType(value.type).memory_space)
        elif not str(value.type).startswith("!llvm.ptr") or str(value.type) == "!llvm.ptr<3>":
            continue
        if not is_own:
            raise UnreadableError


def _metadata(op: ir.Operation, memory: Known) -> list[Known]:
    """Returns what is known of where memory lies, of its offset, sizes and strides."""
    kind = ir.MemRefType(op.operands[0].type)
    strides, _ = kind.get_strides_and_offset()
    sizes = [Known(Form(size)) if size >= 0 else Known(of=memory.follows) for size in (*kind.shape, *strides)]
    return [Known(of=memory.follows), replace(memory, root=None), *sizes]


def _of_argument(op: ir.Operation, operands: Sequence[Known]) -> Known | None:
    """Returns what is known of memory of an operand or result, or of a pointer to it; None for others.

    Memory and offsets in it count elements; a pointer that is an integer counts bytes.
    """
    roots = [one.root for one in operands if one.root is not None]
    if not roots:
        return None
    first = operands[0]
    match op.name:
        case "memref.transpose" | "memref.expand_shape" | "memref.collapse_shape" | "memref.cast":
            return first
        case "memref.reinterpret_cast":
            is_same = list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"])) == [0] and len(operands) == 1
            return Known(Form(0), root=first.root) if is_same else Known(of=first.follows)
        case "memref.subview":
            return _subview(op, operands)
        case "builtin.unrealized_conversion_cast" | "llvm.inttoptr" | "llvm.ptrtoint":
            return first
        case "llvm.extractvalue":
            position = list(ir.DenseI64ArrayAttr(op.attributes["position"]))
            if position == [1]:
                return Known(Form(0), root=first.root)
            return Known(first.form, of=first.of) if position == [2] else Known()
        case "llvm.add":
            return replace(added(operands[0], operands[1], 1), root=roots[0]) if len(roots) == 1 else None
    return None


def _subview(op: ir.Operation, operands: Sequence[Known]) -> Known:
    strides, _ = ir.MemRefType(op.operands[0].type).get_strides_and_offset()
    fixed = list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"]))
    moving, total = iter(operands[1:]), replace(operands[0], root=None)
    for offset, stride in zip(fixed, strides, strict=True):
        index = next(moving) if offset == ir.ShapedType.get_dynamic_stride_or_offset() else Known(Form(offset))
        scaled = Known(index.form.times(stride)) if index.form is not None else Known(of=index.follows)
        total = added(total, scaled, 1)
    return replace(total, root=operands[0].root)
