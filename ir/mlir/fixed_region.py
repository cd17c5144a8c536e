"""Regions that somebody has made parallel by hand: `sdy.manual_computation`, what JAX's `shard_map` lowers to.

Its body is the program of one device already, and stays as it is. The shardings of its operands and results are what
the plan around it has to give and gets. For Shardy's conversion to local shapes, which takes no region of local types,
it is set aside, with a call of no meaning in its place; afterwards its ops stand where the call stood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.diagnostics import Place
from rhino.ir.graph.spec import Spec, without_unit_axes
from rhino.ir.mlir.bindings import func, ir, sdy, stablehlo
from rhino.ir.mlir.channels import CHANNEL, last_channel, set_channel
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.refusals import cannot_honour
from rhino.ir.mlir.shardings import NamedMesh, allowed_specs

MANUAL: Final = "sdy.manual_computation"
_CALL: Final = "rhino.manual"

FixedSpecs = tuple[tuple[Spec, ...], tuple[Spec, ...]]
"""The specs that operands must have, and those that results come in."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """The body of a region, in a module of its own, and the name of the call in its place."""

    call: str
    module: ir.Module


def fixed_specs(op: ir.Operation, mesh: NamedMesh, file: str) -> FixedSpecs:
    """Returns the specs of the operands and results of a manual computation.

    Raises:
        RhinoError: RHI-SHARD-001 where it is manual over some axes alone, or a sharding is not one of the plan's.
    """
    place = place_of(op.location, file)
    axes = {str(axis) for axis in sdy.ManualAxesAttr(op.attributes["manual_axes"])}
    if axes != set(mesh.mesh.names):
        over = ", ".join(f'"{axis}"' for axis in sorted(axes)) or "no axis"
        what = f"a manual computation over {over}, on a mesh of {mesh.mesh},"
        raise cannot_honour(what, "make it manual over all axes of the mesh first, with --rhino-normalize", place)
    return _specs(op, "in", [v.type for v in op.operands], mesh, place), _specs(
        op, "out", [v.type for v in op.results], mesh, place
    )


def _specs(op: ir.Operation, side: str, kinds: list[ir.Type], mesh: NamedMesh, place: Place) -> tuple[Spec, ...]:
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[f"{side}_shardings"]).shardings
    shapes = [tuple(ir.RankedTensorType(kind).shape) for kind in kinds]
    described = [
        f"{'operand' if side == 'in' else 'result'} {number} of a manual computation" for number in range(len(kinds))
    ]
    # All axes are manual: a dim that is open is not split by those that it does not name.
    given = [
        min(allowed_specs(one, mesh, shape, place, what))
        for one, shape, what in zip(shardings, shapes, described, strict=True)
    ]
    return tuple([without_unit_axes(spec, mesh.mesh.shape) for spec in given])


def set_aside(op: ir.Operation, number: int) -> tuple[SetAside, ir.Operation]:
    """Puts a call in the place of a region; returns the region, and the call."""
    aside = SetAside(f"{_CALL}.{number}", ir.Module.create(op.location))
    with ir.InsertionPoint(aside.module.body), op.location:
        function = func.FuncOp(aside.call, ([], []))
    op.regions[0].blocks[0].append_to(function.regions[0])
    with ir.InsertionPoint(op), op.location:
        call = stablehlo.CustomCallOp(
            [r.type for r in op.results], list(op.operands), call_target_name=aside.call
        ).operation
    for before, after in zip(op.results, call.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()
    return aside, call


def put_back(module: ir.Operation, asides: list[SetAside]) -> None:
    """Puts the ops of the regions where their calls stand; their collectives get channels that no other has."""
    if not asides:
        return
    calls = {_target(op): op for op in walk(module) if op.name == "stablehlo.custom_call"}
    channel = last_channel(module)
    for aside in asides:
        call = calls[aside.call]
        block = aside.module.body.operations[0].regions[0].blocks[0]
        values: dict[ir.Value[Any], ir.Value[Any]] = dict(zip(block.arguments, call.operands, strict=True))
        *body, last = [view.operation for view in block.operations]
        for op in body:
            copy = op.clone(ip=ir.InsertionPoint(call))
            for inner in walk(copy):
                for index, operand in enumerate(inner.operands):
                    inner.operands[index] = values.get(operand, operand)
                if CHANNEL in inner.attributes:
                    channel += 1
                    set_channel(inner, channel)
            values.update(zip(op.results, copy.results, strict=True))
        for result, value in zip(call.results, last.operands, strict=True):
            result.replace_all_uses_with(values[value])
        call.erase()


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)
