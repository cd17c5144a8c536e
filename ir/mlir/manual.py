"""Wrap a localized program so that stock XLA compiles it as it is, adding no data movement of its own.

A program of local shapes with explicit collectives is refused by XLA's partitioner when it stands bare. Inside one
`sdy.manual_computation` over all mesh axes, in a function of global shapes, it compiles, and nothing is left to choose.

Reads     `sdy.mesh`, and `sdy.sharding` on the entry's arguments and results (absent: replicated).
Writes    an entry of global types whose body is the manual computation; aliasing and other attributes of arguments and
          results, and the arguments' locations, stay where they were. `sdy.sharding` inside is dropped: its axes are
          all manual there. An argument or result that is a partial sum has a leading dim for each axis that it is a sum
          over, split over that axis: so each device holds its summand, and the array is an ordinary one.
Errors    RHI-LOCAL-001 no mesh, or a sharding that names its mesh in another way; RHI-READ-005.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import func, ir, sdy, stablehlo
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING, module_mesh

LOCAL = "rhino.local"
"""On a module: its entry is the program of one device, and its boundary's shardings say of what it holds the parts."""


def wrap_manual(local_module: ir.Module) -> ir.Module:
    """Returns a copy of the localized `local_module` whose entry takes and gives global tensors.

    Shapes: A dimension of the entry's arguments and results grows by the product of the axes that split it. A partial
        sum over axes of sizes a, b, ... is [a, b, ..., its own dims].

    Raises:
        RhinoError: RHI-LOCAL-001, RHI-READ-005.
    """
    module = copy_module(local_module)
    with module.context, ir.Location.unknown():
        entry = entry_function(module)
        if LOCAL in module.operation.attributes:
            del module.operation.attributes[LOCAL]
        reader = _reader(module, entry)
        inputs = [
            reader.boundary(arg.type, attrs)
            for arg, attrs in zip(entry.arguments, boundary_attributes(entry, "arg"), strict=True)
        ]
        outputs = [
            reader.boundary(kind, attrs)
            for kind, attrs in zip(entry.type.results, boundary_attributes(entry, "res"), strict=True)
        ]
        strip_shardings(module)
        wrapped = _global_function(entry, inputs, outputs)
        _move_body(entry, wrapped, reader.mesh, inputs, outputs)
        module.operation.verify()
    return module


def copy_module(module: ir.Module) -> ir.Module:
    """Returns a copy of `module` in its context, locations included."""
    return ir.Module.parse(bytecode(module), module.context)


def bytecode(module: ir.Module) -> bytes:
    """Returns `module` as MLIR bytecode, locations included: for the same jaxlib."""
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()


def mesh_size(module: ir.Module) -> int:
    """Returns the number of devices of the module's mesh, 1 without one."""
    found = module_mesh(module.operation)
    return found[1].num_devices if found else 1


def has_shardings(module: ir.Module) -> bool:
    """Whether anything in `module` has a Shardy sharding."""
    return any(SHARDING in op.attributes or _boundary_shardings(op) for op in walk(module.operation))


def strip_shardings(module: ir.Module) -> None:
    """Removes every `sdy.sharding` attribute from `module`, in place; other ops and attributes of Shardy stay."""
    with module.context:
        for op in walk(module.operation):
            if SHARDING in op.attributes:
                del op.attributes[SHARDING]
            if isinstance(op.opview, func.FuncOp):
                _strip_function(op.opview)


@dataclass(frozen=True, slots=True)
class _Boundary:
    """An argument or result of the entry: its closed sharding and its global type.

    Both have a leading dim for each axis that the tensor is a partial sum over.
    """

    sharding: sdy.TensorShardingAttr
    global_type: ir.Type
    num_sums: int = 0


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the boundary of `entry` by the module's one mesh."""

    mesh: Mesh
    mesh_ref: ir.Attribute
    entry: func.FuncOp

    def boundary(self, local: ir.Type, attrs: dict[str, ir.Attribute]) -> _Boundary:
        """The closed sharding in `attrs` (replicated if there is none), and the global type of a tensor of `local`."""
        if not isinstance(local, ir.RankedTensorType):
            raise _refuse(f"an argument or result of the entry is no tensor, but {local}", self.entry.operation)
        if SHARDING not in attrs:
            dims = [sdy.DimensionShardingAttr.get([], is_closed=True)] * len(local.shape)
            return _Boundary(sdy.TensorShardingAttr.get(self.mesh_ref, dims), local)
        given = sdy.TensorShardingAttr(attrs[SHARDING])
        if given.mesh_or_ref != self.mesh_ref:
            raise _refuse(f"a boundary sharding must be of mesh {self.mesh_ref}: {given}", self.entry.operation)
        sums = list(given.unreduced_axes)
        axes = [
            *([ref] for ref in sums),
            *(list(sdy.DimensionShardingAttr(dim).axes) for dim in given.dimension_shardings),
        ]
        dims = [sdy.DimensionShardingAttr.get(refs, is_closed=True) for refs in axes]
        local_sizes = [*[1] * len(sums), *local.shape]
        shape = [size * self.parts(refs) for size, refs in zip(local_sizes, axes, strict=True)]
        global_type = ir.RankedTensorType.get(shape, local.element_type, local.encoding)
        return _Boundary(sdy.TensorShardingAttr.get(self.mesh_ref, dims), global_type, len(sums))

    def parts(self, axes: list[ir.Attribute]) -> int:
        """Into how many parts a dimension is split over `axes`, some of which may be parts of a mesh axis."""
        sizes = dict(self.mesh.axes)
        refs = [sdy.AxisRefAttr(axis) for axis in axes]
        return math.prod(
            sdy.SubAxisInfoAttr(ref.sub_axis_info).size if ref.sub_axis_info else sizes[ref.name] for ref in refs
        )


def _reader(module: ir.Module, entry: func.FuncOp) -> _Reader:
    found = module_mesh(module.operation)
    if found is None:
        raise _refuse("a localized module has an sdy.mesh; this one has none", module.operation)
    name, mesh = found
    return _Reader(mesh, ir.FlatSymbolRefAttr.get(name), entry)


def _global_function(entry: func.FuncOp, inputs: list[_Boundary], outputs: list[_Boundary]) -> func.FuncOp:
    """An empty function of global types in `entry`'s place; `entry` gives up its name."""
    kind = ir.FunctionType.get([item.global_type for item in inputs], [item.global_type for item in outputs])
    name = entry.name.value
    entry.attributes["sym_name"] = ir.StringAttr.get(f"{name}.local")
    wrapped = func.FuncOp(name, kind, visibility="public", loc=entry.location, ip=ir.InsertionPoint(entry))
    for attribute in entry.attributes:
        if attribute not in wrapped.attributes:
            wrapped.attributes[attribute] = entry.attributes[attribute]
    wrapped.add_entry_block([arg.location for arg in entry.arguments])
    _set_shardings(wrapped, "arg", inputs)
    _set_shardings(wrapped, "res", outputs)
    return wrapped


def _move_body(
    entry: func.FuncOp, wrapped: func.FuncOp, mesh: Mesh, inputs: list[_Boundary], outputs: list[_Boundary]
) -> None:
    """Moves the body of `entry` into one manual computation in `wrapped`, and erases `entry`."""
    axes = sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in mesh.names])
    with ir.InsertionPoint(wrapped.entry_block), entry.location:
        manual = sdy.ManualComputationOp(
            [item.global_type for item in outputs],
            list(wrapped.arguments),
            sdy.TensorShardingPerValueAttr.get([item.sharding for item in inputs]),
            sdy.TensorShardingPerValueAttr.get([item.sharding for item in outputs]),
            axes,
        )
        func.ReturnOp(list(manual.results))
    block = entry.entry_block
    block.append_to(manual.regions[0])
    end = list(block.operations)[-1]
    _drop_sums(block, inputs)
    returned = list(end.operands)
    with ir.InsertionPoint(end), end.location:
        for number, (value, output) in enumerate(zip(returned, outputs, strict=True)):
            if output.num_sums:
                returned[number] = stablehlo.ReshapeOp(_with_ones(value.type, output.num_sums), value).result
        sdy.ReturnOp(returned)
    end.operation.erase()
    entry.operation.erase()


def _drop_sums(block: ir.Block, inputs: list[_Boundary]) -> None:
    """Gives partial-sum arguments the shape of their arrays on a device, with a leading dim of 1 for each axis.

    Their readers get the summand, reshaped to its own shape.
    """
    for argument, item in zip(block.arguments, inputs, strict=True):
        if item.num_sums:
            kind = argument.type
            argument.set_type(_with_ones(kind, item.num_sums))
            with ir.InsertionPoint.at_block_begin(block), argument.location:
                summand = stablehlo.ReshapeOp(kind, argument)
            argument.replace_all_uses_except(summand.result, summand.operation)


def _with_ones(kind: ir.Type, count: int) -> ir.RankedTensorType:
    tensor = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get([*[1] * count, *tensor.shape], tensor.element_type, tensor.encoding)


def _set_shardings(function: func.FuncOp, side: Side, boundaries: list[_Boundary]) -> None:
    attrs = boundary_attributes(function, side)
    set_boundary_attributes(
        function, side, [{**item, SHARDING: end.sharding} for item, end in zip(attrs, boundaries, strict=True)]
    )


def _strip_function(function: func.FuncOp) -> None:
    for side in ("arg", "res"):
        kept = [
            {name: value for name, value in attrs.items() if name != SHARDING}
            for attrs in boundary_attributes(function, side)
        ]
        set_boundary_attributes(function, side, kept)


def _boundary_shardings(op: ir.Operation) -> bool:
    function = op.opview
    return isinstance(function, func.FuncOp) and any(
        SHARDING in attrs for side in ("arg", "res") for attrs in boundary_attributes(function, side)
    )


def _refuse(what: str, op: ir.Operation) -> RhinoError:
    return RhinoError(
        "RHI-LOCAL-001",
        what,
        place_of(op.location),
        fix="localize the module first, with one mesh and with whole results",
    )
