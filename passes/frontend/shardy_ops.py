"""Put Shardy's own ops in the planner's terms.

What they state about shardings becomes constraints, and the groups that they make of ops are taken apart.

A named computation is what its body computes; the shardings of its operands and results are constraints on them. A
reshard is a constraint. A propagation barrier says nothing here, where nothing is propagated: its operand stands for
it.

On a mesh without axes a closed dim is whole on every device, whatever mesh is planned for. JAX writes such shardings on
its own, on a mesh that it calls `empty_mesh` (jax 0.10.2): on arguments and results that lie on one device or have no
dims, and as constraints on the data of random keys. Those say where the program for one device has a tensor, not how
several are to share it: they are dropped.
"""

from __future__ import annotations

from typing import Any, Final

from rhino.ir.diagnostics import Place
from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.shardings import NO_MESH, SHARDING, module_meshes
from rhino.ir.program.program import argument_name
from rhino.ir.request.patterns import RESULT
from rhino.passes.base import Remarks

_REPLACED: Final = ("sdy.named_computation", "sdy.reshard", "sdy.propagation_barrier")
_ONE_DEVICE: Final = "@empty_mesh"
"""The mesh of what JAX has on one device (`NamedSharding` of jax 0.10.2, for a mesh without axes)."""


def plain_shardy_ops(entry: func.FuncOp, name: str, remarks: Remarks) -> None:
    """Replaces named computations, reshards, propagation barriers and empty constraints in `entry`, outer ones first.

    Shardings on meshes without axes are put on `NO_MESH`, or dropped with a remark of pass `name`.
    """
    empty = _empty_meshes(entry)
    # They are found before one is replaced: what ends a computation is gone with it.
    for op in [op for op in walk(entry.operation) if op.name in _REPLACED]:
        match op.name:
            case "sdy.named_computation":
                _take_out(op)
            case "sdy.reshard":
                with ir.InsertionPoint(op), op.location:
                    replace_op(op, [sdy.ShardingConstraintOp(op.operands[0], op.attributes["sharding"]).result])
            case _:
                replace_op(op, list(op.operands))
    if empty:
        for op in walk(entry.operation):
            if op.name == "sdy.sharding_constraint":
                _keep_constraint(op, empty)
            elif SHARDING in op.attributes:
                every = sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings
                op.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([_on_no_mesh(one, empty) for one in every])
        for side in _SIDES:
            _keep_boundary(entry, side, empty, name, remarks)


_SIDES: Final[tuple[Side, ...]] = ("arg", "res")


def _keep_constraint(op: ir.Operation, empty: set[str]) -> None:
    """Keeps a constraint on a mesh without axes, unless no dim of it is closed or JAX has put it on a random key."""
    given = sdy.TensorShardingAttr(op.attributes["sharding"])
    if str(given.mesh_or_ref) not in empty:
        return
    if not any(_closed(given)) or _is_of_key(given, op.operands[0]):
        replace_op(op, list(op.operands))
    else:
        op.attributes["sharding"] = _on_no_mesh(given, empty)


def _is_of_key(given: sdy.TensorShardingAttr, value: ir.Value[Any]) -> bool:
    """Says whether a constraint keeps whole what is the data of one random key, a last dim of words, as JAX does."""
    *others, last = _closed(given)
    words = str(ir.RankedTensorType(value.type).element_type) == "ui32"
    return str(given.mesh_or_ref) == _ONE_DEVICE and words and last and not any(others)


def _keep_boundary(entry: func.FuncOp, side: Side, empty: set[str], name: str, remarks: Remarks) -> None:
    """Keeps the shardings of an entry's arguments or results that are on meshes without axes.

    Those that JAX gives to what is on one device are dropped.
    """
    found = boundary_attributes(entry, side)
    for number, own in enumerate(found):
        if SHARDING not in own:
            continue
        given = sdy.TensorShardingAttr(own[SHARDING])
        if str(given.mesh_or_ref) != _ONE_DEVICE or _ONE_DEVICE not in empty:
            own[SHARDING] = _on_no_mesh(given, empty)
            continue
        del own[SHARDING]
        if any(_closed(given)):
            remarks.add(name, *_dropped(entry, side, number, len(given.dimension_shardings), remarks.file))
    set_boundary_attributes(entry, side, found)


def _dropped(entry: func.FuncOp, side: Side, number: int, rank: int, file: str) -> tuple[Place, str]:
    """Returns the place and the words of the remark that a sharding of the entry's is dropped."""
    value = entry.arguments[number] if side == "arg" else None
    pattern = f"{RESULT}{number}" if value is None else argument_name(value, number)
    what = f"result {number}" if value is None else f'argument {number} "{pattern}"'
    text = (
        f"the sharding of {what} is dropped: on JAX's mesh without axes it says that the program for one device has "
        "it there; "
        f"to keep it whole on every device, pin it (--pin='{pattern}=[{', '.join(['{}'] * rank)}]')"
    )
    return place_of(entry.location if value is None else value.location, file), text


def _closed(given: sdy.TensorShardingAttr) -> list[bool]:
    return [sdy.DimensionShardingAttr(dim).is_closed for dim in given.dimension_shardings]


def _on_no_mesh(sharding: ir.Attribute, empty: set[str]) -> ir.Attribute:
    """Returns a sharding on a mesh without axes as one on `NO_MESH`, and any other as it is."""
    given = sdy.TensorShardingAttr(sharding)
    if str(given.mesh_or_ref) not in empty:
        return sharding
    return ir.Attribute(sdy.TensorShardingAttr.get(ir.Attribute.parse(NO_MESH), given.dimension_shardings))


def _empty_meshes(entry: func.FuncOp) -> set[str]:
    """Returns how shardings refer to the meshes without axes."""
    assert entry.operation.parent is not None
    return {f"@{name}" for name, axes in module_meshes(entry.operation.parent).items() if not axes}


def inline_body(op: ir.Operation, operands: list[ir.Value[Any]]) -> list[ir.Value[Any]]:
    """Moves the ops in the one block of `op` before it, where they read `operands`, and returns the block's results."""
    block = op.regions[0].blocks[0]
    for argument, value in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(value)
    *body, last = [view.operation for view in block.operations]
    for inner in body:
        inner.move_before(op)
    return list(last.operands)


def replace_op(op: ir.Operation, values: list[ir.Value[Any]]) -> None:
    """Puts `values` in the place of an op's results, and erases it."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _take_out(op: ir.Operation) -> None:
    with ir.InsertionPoint(op), op.location:
        operands = _constrained(list(op.operands), op, "in_shardings")
    given = inline_body(op, operands)
    with ir.InsertionPoint(op), op.location:
        replace_op(op, _constrained(given, op, "out_shardings"))


def _constrained(values: list[ir.Value[Any]], op: ir.Operation, name: str) -> list[ir.Value[Any]]:
    if name not in op.attributes:
        return values
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings
    return [sdy.ShardingConstraintOp(value, sharding).result for value, sharding in zip(values, shardings, strict=True)]
