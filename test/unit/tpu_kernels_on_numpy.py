"""Kernels for TPUs, run on NumPy from the text of their calls: the grid, the windows, and each op of the kernel."""

import itertools
import re

import ml_dtypes
import numpy as np

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of
from rhino.ir.mlir.tpu_kernels import read_kernel

DTYPES = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
    "i8": np.int8,
    "i1": np.bool_,
    "index": np.int64,
}
COMPARED = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]
ELEMENTWISE = {
    "addf": np.add,
    "addi": np.add,
    "subf": np.subtract,
    "subi": np.subtract,
    "mulf": np.multiply,
    "muli": np.multiply,
    "divf": np.divide,
    "divsi": lambda a, b: np.trunc(a / b),
    "remsi": np.fmod,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "maximumf": np.maximum,
    "exp": np.exp,
    "log": np.log,
    "select": np.where,
}
CASTS = ("index_cast", "extsi", "extui", "trunci", "extf", "truncf", "sitofp")


def on_numpy(op, arrays):
    """The results of a call of a kernel for operands that are given."""
    kernel = read_kernel(op)
    results = [_empty(value.type) for value in op.results]
    arguments = list(kernel.block.arguments)[len(kernel.bounds) :]
    scalars, tensors = list(arrays)[: kernel.num_scalars], [*list(arrays)[kernel.num_scalars :], *results]
    scratch = [_empty(argument.type) for argument in arguments[kernel.num_scalars + len(tensors) :]]
    windows = [None] * len(tensors)
    for point in itertools.product(*map(range, kernel.bounds)):
        given = [np.int32(number) for number in point]
        for number, (window, tensor) in enumerate(zip(kernel.windows, tensors, strict=True)):
            place = _run(window.place.regions[0].blocks[0], dict(_named(window.place, [*given, *scalars])))
            at = tuple(slice(p * n, p * n + n) for p, n in zip(place, window.shape, strict=True))
            if windows[number] is None or windows[number][0] != at:
                windows[number] = at, tensor[at].copy()
        memory = [*scalars, *(one for _, one in windows), *scratch]
        with np.errstate(divide="ignore", invalid="ignore"):  # of rows that a kernel replaces afterwards
            _run(kernel.block, dict(_named(kernel.body, [*given, *memory])))
        for (at, one), tensor in zip(windows[-len(results) :], results, strict=True):
            tensor[at] = one
    return results


def _named(function, values):
    return zip(list(function.regions[0].blocks[0].arguments), values, strict=True)


def _empty(kind):
    kind = ir.ShapedType(kind)
    return np.full(kind.shape, np.nan if str(kind.element_type) in ("f32", "bf16") else 0, _dtype(kind))


def _dtype(kind):
    return DTYPES[str(kind.element_type if isinstance(kind, ir.ShapedType) else kind)]


def _run(block, known):
    """Runs the ops of a block; returns what its last op yields."""
    for view in block.operations:
        op = view.operation
        made = _one(op, known)
        if len(op.results):
            known[op.results[0]] = made
    return [known[value] for value in end_of(block).operands]


def _one(op, known):
    given = [known[value] for value in op.operands]
    name = op.name.partition(".")[2]
    kind = op.results[0].type if len(op.results) else None
    if op.name in ("func.return", "scf.yield"):
        return None
    if op.name == "scf.if":
        taken = op.regions[0 if given[0] else 1]
        if len(taken.blocks):
            _run(taken.blocks[0], known)
        return None
    if op.name == "arith.constant":
        return _constant(op.attributes["value"], kind)
    if op.name in ("memref.load", "vector.load"):
        shape = list(ir.VectorType(kind).shape) if op.name == "vector.load" else ()
        return given[0][_at(given[1:], shape)].copy()
    if op.name in ("memref.store", "vector.store", "tpu.vector_store"):
        given[1][_at(given[2:], np.shape(given[0]))] = given[0]
        return None
    return np.asarray(_value(op, name, given, kind)).astype(_dtype(kind), copy=False)


def _at(places, shape):
    return tuple(slice(place, place + size) for place, size in zip(places, shape, strict=True)) if shape else (*places,)


def _constant(value, kind):
    if isinstance(kind, ir.VectorType):
        assert value.is_splat
        return np.full(ir.VectorType(kind).shape, value.get_splat_value().value, _dtype(kind))
    return _dtype(kind)(value.value)


def _value(op, name, given, kind):
    if name in ELEMENTWISE:
        return ELEMENTWISE[name](*given)
    if name in CASTS:
        return given[0]
    if name == "cmpi":
        return COMPARED[ir.IntegerAttr(op.attributes["predicate"]).value](*given)
    if name == "shape_cast":
        return given[0].reshape(ir.VectorType(kind).shape)
    if name == "broadcast":
        return np.broadcast_to(given[0], ir.VectorType(kind).shape)
    if name == "iota":
        (dim,) = ir.DenseI32ArrayAttr(op.attributes["dimensions"])
        shape = ir.VectorType(kind).shape
        return np.arange(shape[dim]).reshape([-1 if n == dim else 1 for n in range(len(shape))]) + np.zeros(shape)
    if name == "concatenate":
        return np.concatenate(given, ir.IntegerAttr(op.attributes["dimension"]).value)
    if name == "multi_reduction":
        reduce = np.max if "max" in str(op.attributes["kind"]) else np.sum
        dims = tuple(ir.DenseI64ArrayAttr(op.attributes["reduction_dims"]))
        return (np.maximum if reduce is np.max else np.add)(given[1], reduce(given[0], axis=dims))
    assert name == "matmul", op.name
    lhs, rhs = (int(one) for one in re.findall(r"\[(\d+)\]", str(op.attributes["dimension_numbers"]))[:2])
    return given[2] + np.tensordot(given[0].astype(np.float32), given[1].astype(np.float32), ((lhs,), (rhs,)))
