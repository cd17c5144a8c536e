"""Put Shardy's own ops in the planner's terms: what they say about shardings becomes constraints, and what they group is taken apart.

A named computation is what its body computes; the shardings of its operands and results are constraints on them. A reshard is a
constraint. A propagation barrier says nothing here, where nothing is propagated: its operand stands for it. Nor does a constraint on a
mesh without axes (JAX puts such ones where a program for one device splits a random key), or such a sharding of an argument or result
(JAX gives scalars those, once a mesh is known).
"""

from __future__ import annotations

from typing import Any

from rhino.ir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir import func, ir, sdy
from rhino.ir.reader import walk
from rhino.ir.shardings import SHARDING, module_meshes


def plain_shardy_ops(entry: func.FuncOp) -> None:
    """Replaces named computations, reshards, propagation barriers and empty constraints in `entry`, outer ones first."""
    empty = _empty_meshes(entry)
    for op in [op for op in walk(entry.operation) if op.name.startswith("sdy.")]:
        match op.name:
            case "sdy.named_computation":
                _take_out(op)
            case "sdy.reshard":
                with ir.InsertionPoint(op), op.location:
                    replace_op(op, [sdy.ShardingConstraintOp(op.operands[0], op.attributes["sharding"]).result])
            case "sdy.propagation_barrier":
                replace_op(op, list(op.operands))
            case "sdy.sharding_constraint" if str(sdy.TensorShardingAttr(op.attributes["sharding"]).mesh_or_ref) in empty:
                replace_op(op, list(op.operands))
    if empty:
        _drop_empty(entry, "arg", empty)
        _drop_empty(entry, "res", empty)


def _drop_empty(entry: func.FuncOp, side: Side, empty: set[str]) -> None:
    """Drops shardings on meshes without axes from an entry's arguments or results."""
    found = boundary_attributes(entry, side)
    for own in found:
        if SHARDING in own and str(sdy.TensorShardingAttr(own[SHARDING]).mesh_or_ref) in empty:
            del own[SHARDING]
    set_boundary_attributes(entry, side, found)


def _empty_meshes(entry: func.FuncOp) -> set[str]:
    """Returns how shardings refer to the meshes without axes."""
    assert entry.operation.parent is not None
    return {f"@{name}" for name, axes in module_meshes(entry.operation.parent).items() if not axes}


def inline_body(op: ir.Operation, operands: list[ir.Value[Any]]) -> list[ir.Value[Any]]:
    """Moves the ops in the one block of `op` before it, where they read `operands`; returns what the block's last op gives."""
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
