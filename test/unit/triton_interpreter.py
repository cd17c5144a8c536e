"""Kernels of Triton on host arrays: every program of the grid runs one after the other, on NumPy.

It is written from what the ops mean, and shares nothing with what reads kernels.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import product

import ml_dtypes
import numpy as np

from rhino.ir.mlir.bindings import ir

_DTYPES = {
    "i1": np.bool_,
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_UNSIGNED = {np.dtype(f"int{bits}"): np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
_COMPARED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_FLOAT_COMPARED = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal, 6: np.not_equal}
_FUNCTIONS = {
    "__nv_expf": np.exp,
    "__nv_exp2f": np.exp2,
    "__nv_logf": np.log,
    "__nv_log2f": np.log2,
    "__nv_rsqrtf": lambda x: 1 / np.sqrt(x),
    "__nv_sqrtf": np.sqrt,
    "__nv_fabsf": np.abs,
}
_BINARY = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.maxnumf": np.fmax,
    "arith.maximumf": np.maximum,
    "arith.minnumf": np.fmin,
    "arith.minimumf": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


@dataclass(frozen=True)
class Pointer:
    """Addresses: elements of an array, by number."""

    array: int
    offset: np.ndarray


def run_kernel(kernel, operands, results):
    """Returns what a kernel leaves in `results`, arrays that it may also read, when it runs on `operands`.

    Raises AssertionError where memory is accessed that is none of theirs.
    """
    memory = [np.array(array).reshape(-1) for array in (*operands, *results)]
    for z, y, x in product(*(range(bound) for bound in reversed(kernel.bounds))):
        machine = _Machine(memory, kernel.bounds, (x, y, z), {})
        for number, argument in enumerate(kernel.block.arguments):
            machine.values[argument] = Pointer(number, np.int64(0))
        with np.errstate(all="ignore"):
            machine.run(kernel.block)
    made = memory[len(operands) :]
    return [flat.reshape(np.shape(array)) for flat, array in zip(made, results, strict=True)]


@dataclass
class _Machine:
    memory: list
    bounds: tuple
    point: tuple
    values: dict

    def run(self, block):
        for op in (view.operation for view in block.operations):
            operands = [self.values[value] for value in op.operands]
            if op.name in ("scf.yield", "scf.condition", "tt.return", "tt.reduce.return"):
                return operands
            made = self.made(op, operands)
            for value, one in zip(op.results, made if isinstance(made, list) else [made], strict=True):
                self.values[value] = one
        return []

    def made(self, op, operands):
        if op.name in _BINARY:
            return _BINARY[op.name](*operands)
        name = op.name.split(".", 1)[1].replace(".", "_")
        return getattr(self, f"do_{name}")(op, *operands)

    # values

    def do_constant(self, op):
        value = op.attributes["value"]
        shape, dtype = _kind(op.results[0].type)
        if not isinstance(value, ir.DenseElementsAttr):
            if isinstance(value, ir.FloatAttr):
                return np.asarray(value.value, dtype)[()]
            return np.asarray(value.value).astype(dtype)[()]
        return np.full(shape, value.get_splat_value().value, dtype)

    def do_get_program_id(self, op):
        return np.int32(self.point[op.attributes["axis"].value])

    def do_get_num_programs(self, op):
        return np.int32(self.bounds[op.attributes["axis"].value])

    def do_make_range(self, op):
        return np.arange(op.attributes["start"].value, op.attributes["end"].value, dtype=np.int32)

    # forms

    def shaped(self, value, change):
        return Pointer(value.array, change(value.offset)) if isinstance(value, Pointer) else change(value)

    def do_splat(self, op, value):
        return self.shaped(value, lambda one: np.broadcast_to(one, _kind(op.results[0].type)[0]))

    do_broadcast = do_splat

    def do_expand_dims(self, op, value):
        return self.shaped(value, lambda one: np.expand_dims(one, op.attributes["axis"].value))

    def do_reshape(self, op, value):
        return self.shaped(value, lambda one: np.reshape(one, _kind(op.results[0].type)[0]))

    def do_trans(self, op, value):
        return np.transpose(value, list(op.attributes["order"]))

    def do_addptr(self, op, pointer, offset):
        return Pointer(pointer.array, pointer.offset + np.asarray(offset, np.int64))

    def do_bitcast(self, op, value):
        return value if isinstance(value, Pointer) else value.view(_kind(op.results[0].type)[1])

    # memory

    def do_load(self, op, pointer, mask=None, other=None):
        array = self.memory[pointer.array]
        inside = np.broadcast_to(True if mask is None else mask, np.shape(pointer.offset))
        assert ((pointer.offset >= 0) & (pointer.offset < array.size))[inside].all(), "memory of somebody else"
        found = array[np.where(inside, pointer.offset, 0)] if array.size else np.zeros(np.shape(pointer.offset))
        return np.where(inside, found, 0 if other is None else other).astype(array.dtype)[()]

    def do_store(self, op, pointer, value, mask=None):
        array = self.memory[pointer.array]
        inside = np.broadcast_to(True if mask is None else mask, np.shape(pointer.offset))
        assert ((pointer.offset >= 0) & (pointer.offset < array.size))[inside].all(), "memory of somebody else"
        array[np.asarray(pointer.offset)[inside]] = np.broadcast_to(value, np.shape(pointer.offset))[inside]
        return []

    # arithmetic

    def do_divsi(self, op, left, right):
        quotient = np.floor_divide(np.abs(left), np.abs(right))
        return (np.sign(left) * np.sign(right) * quotient).astype(np.asarray(left).dtype)[()]

    def do_remsi(self, op, left, right):
        return left - self.do_divsi(op, left, right) * right

    def do_divui(self, op, left, right):
        return self.unsigned(operator.floordiv, left, right)

    def do_remui(self, op, left, right):
        return self.unsigned(operator.mod, left, right)

    def unsigned(self, function, left, right):
        dtype = np.asarray(left).dtype
        own = _UNSIGNED[dtype]
        return function(np.asarray(left).astype(own), np.asarray(right).astype(own)).astype(dtype)[()]

    def do_cmpi(self, op, left, right):
        kind = op.attributes["predicate"].value
        if kind < len(_COMPARED):
            return _COMPARED[kind](left, right)
        own = _UNSIGNED[np.asarray(left).dtype]
        return _COMPARED[kind - 4](np.asarray(left).astype(own), np.asarray(right).astype(own))

    def do_cmpf(self, op, left, right):
        return _FLOAT_COMPARED[op.attributes["predicate"].value](left, right)

    def do_select(self, op, asked, chosen, other):
        return np.where(asked, chosen, other).astype(np.asarray(chosen).dtype)[()]

    def converted(self, op, value):
        return np.asarray(value).astype(_kind(op.results[0].type)[1])[()]

    do_truncf = do_extf = do_sitofp = do_fptosi = do_extui = do_trunci = do_index_cast = do_fp_to_fp = converted

    def do_extsi(self, op, value):
        value = np.asarray(value)
        return self.converted(op, -value.astype(np.int8) if value.dtype == np.bool_ else value)

    def do_negf(self, op, value):
        return -value

    def do_exp2(self, op, value):
        return np.exp2(value)

    def do_extern_elementwise(self, op, *operands):
        return _FUNCTIONS[op.attributes["symbol"].value](*operands)

    def do_dot(self, op, left, right, sums):
        return sums + np.matmul(np.asarray(left, np.float32), np.asarray(right, np.float32)).astype(sums.dtype)

    def do_reduce(self, op, *operands):
        axis = op.attributes["axis"].value
        block = op.regions[0].blocks[0]
        parts = [np.moveaxis(np.asarray(one), axis, 0) for one in operands]
        made = [one[0] for one in parts]
        for rest in zip(*(list(one)[1:] for one in parts), strict=True):
            self.values.update(zip(block.arguments, (*made, *rest), strict=True))
            made = self.run(block)
        return made

    # control

    def do_for(self, op, lower, upper, step, *carried):
        block, carried = op.regions[0].blocks[0], list(carried)
        for number in range(int(lower), int(upper), int(step)):
            counter = np.asarray(number, np.asarray(lower).dtype)[()]
            self.values.update(zip(block.arguments, (counter, *carried), strict=True))
            carried = self.run(block)
        return carried

    def do_while(self, op, *carried):
        before, after = (region.blocks[0] for region in op.regions)
        while True:
            self.values.update(zip(before.arguments, carried, strict=True))
            asked, *passed = self.run(before)
            if not asked:
                return passed
            self.values.update(zip(after.arguments, passed, strict=True))
            carried = self.run(after)

    def do_if(self, op, asked):
        region = op.regions[0 if asked else 1]
        return self.run(region.blocks[0]) if len(region.blocks) else []


def _kind(kind):
    shape = tuple(ir.RankedTensorType(kind).shape) if isinstance(kind, ir.RankedTensorType) else ()
    element = str(ir.RankedTensorType(kind).element_type if shape or isinstance(kind, ir.RankedTensorType) else kind)
    return shape, _DTYPES.get(element)
