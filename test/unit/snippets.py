"""Small modules for the tests of one part.

They are parsed, given their rules, read into a graph, or run on StableHLO's interpreter.
"""

import re
from functools import cache

import numpy as np
from mlir_text import function, tensor  # noqa: F401 - tests have their snippets from here

from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.mlir.bindings import ir, make_context, run_pipeline, stablehlo
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.program.program import read_program

RULES = "func.func(sdy-populate-op-sharding-rules)"
DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i1": np.bool_, "f16": np.float16}


@cache
def context():
    """One context for all of a process's tests: making one takes longer than parsing a small module."""
    return make_context()


_KEPT = []


def kept(module):
    """The module, kept for as long as the tests run: an op's handle does not keep its module alive."""
    _KEPT.append(module)
    return module


def parse(text):
    return kept(ir.Module.parse(text, context()))


def ruled(text):
    """The module with Shardy's rules on its ops."""
    module = parse(text)
    run_pipeline(module, RULES)
    return module


def mesh_of(axis, size):
    """One axis of that name and size, or axes x, y, ... of several sizes."""
    return mesh_of_shape(size) if isinstance(size, tuple) else Mesh(((axis, size),))


def program_of(text, axis_size=2, axis="x", file="m.mlir"):
    """The program of a module's entry, read for one axis, or for several if `axis_size` is a tuple."""
    return read_program(entry_function(ruled(text)), mesh_of(axis, axis_size), file)


def ops_of(text, name):
    """The ops of that name, wherever they are, in program order."""
    return [op for op in walk(parse(text).operation) if op.name == name]


def class_of(text, name, axis_size=2):
    """The class of the one op of that name in the entry block."""
    (found,) = [c for c in program_of(text, axis_size).graph.classes if c.name == name]
    return found


def evaluate(text, inputs):
    """What StableHLO's reference interpreter computes, as arrays."""
    with context():
        module = ir.Module.parse(text)
        kinds = module.body.operations[0].type.inputs
        values = [
            ir.DenseElementsAttr.get(np.ascontiguousarray(value), type=kind)
            for value, kind in zip(inputs, kinds, strict=True)
        ]
        return [np.array(result) for result in stablehlo.eval_module(module, values)]


def lying(attribute):
    """How a tensor lies: the axes of each dim, and those along which it is a partial sum."""
    dims, sums = re.search(r"<@\w+, \[(.*?)\](?:, unreduced=\{(.*?)\})?>", str(attribute)).groups()
    return tuple(axes.replace('"', "") for axes in re.findall(r"\{([^{}]*)\}", dims)), sums or ""
