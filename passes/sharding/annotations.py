"""The search's annotations of a module as data, to be written onto another module that is equal without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.boundary import Attributes, Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING, layout_attribute
from rhino.ir.plan.plan import Annotations, Dims
from rhino.ir.program.program import CARRIED
from rhino.passes.sharding.choose_shardings import STRATEGY

_WRITTEN = (SHARDING, STRATEGY, CARRIED)


def read_annotations(module: ir.Module) -> Annotations:
    """Returns what stands on the ops of the entry of an annotated module."""
    words: dict[str, int] = {}
    ops = []
    for op in _ops(module):
        found = {name: op.attributes[name] for name in _WRITTEN if name in op.attributes}
        word = str(ir.DictAttr.get(found, op.context))
        ops.append(words.setdefault(word, len(words)))
    return Annotations(tuple(words), tuple(ops))


def write_annotations(module: ir.Module, annotations: Annotations) -> None:
    """Writes onto the ops of the entry what `read_annotations` gave for an equal module.

    Raises:
        RhinoError: RHI-PLAN-001 where they are not attributes, or not of so many ops.
    """
    ops = list(_ops(module))
    if len(ops) != len(annotations.ops):
        raise _bad(f"its annotations are of {len(annotations.ops)} ops, and the program has {len(ops)}")
    with module.context:
        words = [_attributes(word) for word in annotations.words]
        for op, number in zip(ops, annotations.ops, strict=True):
            if not 0 <= number < len(words):
                raise _bad(f"an op has annotation {number} of {len(words)}")
            for name, value in words[number].items():
                op.attributes[name] = value


def boundary_dims(entry: func.FuncOp, side: Side) -> list[Dims]:
    """Returns the axes that split each dim of each argument or result of an annotated module."""
    return [_dims(attributes) for attributes in boundary_attributes(entry, side)]


def write_boundary_dims(entry: func.FuncOp, side: Side, mesh_name: str, mesh: Mesh, dims: Sequence[Dims]) -> None:
    """Writes shardings onto arguments or results. Raises RHI-PLAN-001 where they are of other axes."""
    unknown = [axis for one in dims for axes in one for axis in axes if axis not in mesh.names]
    if unknown:
        raise _bad(
            f"{'an argument' if side == 'arg' else 'a result'} is split along {unknown[0]!r}, and its mesh is {mesh}"
        )
    old = boundary_attributes(entry, side)
    shardings = [
        layout_attribute(mesh_name, mesh.names, [[mesh.names.index(axis) for axis in axes] for axes in one])
        for one in dims
    ]
    set_boundary_attributes(entry, side, [{**attrs, SHARDING: one} for attrs, one in zip(old, shardings, strict=True)])


def check_annotated(module: ir.Module, file: str) -> None:
    """Raises RHI-PLAN-001 where annotations do not fit the module that they were written onto.

    Examples are an axis that its mesh does not have, and a sharding of too few dims.
    """
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        first = error.error_diagnostics[0]
        raise replace(_bad(first.message), place=place_of(first.location, file)) from None


def _ops(module: ir.Module) -> Iterator[ir.Operation]:
    for block in entry_function(module).regions[0]:
        for op in block.operations:
            yield from walk(op.operation)


def _attributes(word: str) -> Attributes:
    try:
        found = ir.DictAttr(ir.Attribute.parse(word))
        read = {found[n].name: found[n].attr for n in range(len(found))}
    except (ir.MLIRError, ValueError) as error:
        raise _bad(f"{word!r:.80} is no annotation: {error}".splitlines()[0]) from None
    if not set(read) <= set(_WRITTEN):
        raise _bad(f"{word!r:.80} is no annotation")
    return read


def _dims(attributes: Attributes) -> Dims:
    given = sdy.TensorShardingAttr(attributes[SHARDING])
    each = [sdy.DimensionShardingAttr(one) for one in given.dimension_shardings]
    return tuple(tuple(str(sdy.AxisRefAttr(axis).name) for axis in one.axes) for one in each)


def _bad(why: str) -> RhinoError:
    return RhinoError("RHI-PLAN-001", f"not a plan that can be read: {why}", fix="plan again, and save the new plan")
