"""A step in stages, as a module.

It has a function for each program and a declaration of the whole step, and lists which part runs which program.

    module attributes {rhino.parts = [{phase = "forward", stage = 0 : i64, program = @forward_0,
                                       reads = [...], gives = [...]}, ...],
                       rhino.num_stages = 2 : i64, rhino.micro_batches = 4 : i64, rhino.results = [...]} {
      func.func private @step(tensor<..> {rhino.name = "x"}, ...) -> (tensor<..>, ...)     whole step: no body
      func.func private @forward_0(...) -> (...) { ... }

Names of values are as in `rhino.ir.plan.stage_programs`. An argument with `tf.aliasing_output` may give its buffer to
that result. The shardings on a program's boundary are those of its arrays on a rank. An array that is a partial sum
there has a leading dim for each axis that it is a sum over, split over that axis: each device has its summand, and the
array is an ordinary one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.graph.graph import DEVICE, HOST
from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.boundary import Attributes, Side, boundary_attributes, entries, set_boundary_attributes
from rhino.ir.mlir.donation import ALIAS, KEPT
from rhino.ir.mlir.memory_kinds import is_on_host
from rhino.ir.mlir.shardings import SHARDING, mesh_name, module_mesh, module_meshes
from rhino.ir.plan.instructions import Layout, Phase, StepProgram
from rhino.ir.plan.plan import rows_text
from rhino.ir.plan.stage_programs import PARTS, Argument, StagedStep, StageProgram
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.leaf_rows import leaf_numbers, rows_in
from rhino.ir.program.program import argument_name
from rhino.ir.program.replicas import EACH, SHARES

STAGE_MESHES: Final = "rhino.stage_meshes"
"""On a module whose stages are on unlike meshes: the name of the mesh of each stage."""

STAGE_GROUPS: Final = "rhino.stage_groups"
"""On a module whose stages run on unlike devices: the group of devices of each stage."""

REMAT: Final = "rhino.remat"
"""On a module whose ops have stages: the share of its activation stash that each stage is to recompute."""

NUM_STAGES: Final = "rhino.num_stages"
RESULTS: Final = "rhino.results"
NAME: Final = "rhino.name"
STEP: Final = "step"
"""The declaration of the whole step."""

ONE_DEVICE: Final = Mesh((("x", 1),))
"""The mesh of a rank where the module has none."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A stage program by the name of its function."""

    phase: Phase
    stage: int
    function: str
    reads: tuple[str, ...]
    gives: tuple[str, ...]

    def attribute(self) -> ir.Attribute:
        """Returns how the module says it."""
        return ir.DictAttr.get(
            {
                "phase": ir.StringAttr.get(self.phase),
                "stage": _number(self.stage),
                "program": ir.FlatSymbolRefAttr.get(self.function),
                "reads": _texts(self.reads),
                "gives": _texts(self.gives),
            }
        )


def is_staged(module: ir.Operation) -> bool:
    """Says whether a module is a step in stages."""
    return PARTS in module.attributes


def argument_names(entry: func.FuncOp) -> list[str]:
    """Returns the names of the step's arguments, each of its own; those of rows of a leaf end with these."""
    every = [rows_in(attributes) for attributes in boundary_attributes(entry, "arg")]
    names = [
        argument_name(value, leaf) + (rows_text(rows) if rows else "")
        for value, rows, leaf in zip(entry.arguments, every, leaf_numbers(every), strict=True)
    ]
    count = Counter(names)
    return [name if count[name] == 1 else f"{name} #{number}" for number, name in enumerate(names)]


def declare_step(entry: func.FuncOp, names: Sequence[str]) -> None:
    """Declares the whole step before its function: types, shardings, names and aliases of its arguments and results."""
    arguments = boundary_attributes(entry, "arg")
    step = func.FuncOp(STEP, entry.type, visibility="private", ip=ir.InsertionPoint(entry), loc=entry.location)
    named = [{**attributes, NAME: ir.StringAttr.get(name)} for attributes, name in zip(arguments, names, strict=True)]
    set_boundary_attributes(step, "arg", named)
    set_boundary_attributes(step, "res", boundary_attributes(entry, "res"))


def program_boundary(sharding: ir.Attribute | None, alias: int | None = None) -> Attributes:
    """Returns what a program says of an argument or result: how it lies, and which output may take over its buffer."""
    attributes: Attributes = {}
    if sharding is not None:
        attributes[SHARDING] = sharding
    if alias is not None:
        attributes[ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), alias)
    return attributes


def write_staged(
    module: ir.Operation, parts: list[StagedPart], num_stages: int, num_micro_batches: int, results: list[str]
) -> None:
    """Writes on the module what its functions are for."""
    module.attributes[PARTS] = ir.ArrayAttr.get([part.attribute() for part in parts])
    module.attributes[NUM_STAGES] = _number(num_stages)
    module.attributes[MICRO_BATCHES] = _number(num_micro_batches)
    module.attributes[RESULTS] = _texts(results)


def read_staged(module: ir.Operation) -> StagedStep:
    """Returns the step that a module in stages is; the `module` of a program is the name of its function."""
    meshes = {name: Mesh(axes) for name, axes in module_meshes(module).items() if axes}
    functions = {op.name.value: op for op in module.regions[0].blocks[0].operations if isinstance(op, func.FuncOp)}
    step = functions.pop(STEP)
    numbers = {name: number for number, name in enumerate(functions)}
    parts = [_part(entries(one), numbers) for one in ir.ArrayAttr(module.attributes[PARTS])]
    own = [meshes[name] if name else ONE_DEVICE for name in stage_mesh_names(module)]
    return StagedStep(
        meshes=tuple(own),
        num_micro_batches=_int(module.attributes[MICRO_BATCHES]),
        programs=tuple(_program(function, meshes) for function in functions.values()),
        parts=tuple(parts),
        arguments=tuple(
            Argument(
                _text(attributes[NAME]),
                layout,
                ALIAS in attributes and KEPT not in attributes,
                _int(attributes[ALIAS]) if ALIAS in attributes else None,
                EACH in attributes,
            )
            for attributes, layout in zip(boundary_attributes(step, "arg"), layouts(step, "arg", meshes), strict=True)
        ),
        results=tuple(map(_text, ir.ArrayAttr(module.attributes[RESULTS]))),
        shares=tuple(ir.DenseI64ArrayAttr(module.attributes[SHARES])) if SHARES in module.attributes else (),
    )


def stage_mesh_names(module: ir.Operation) -> list[str]:
    """Returns the name of each stage's mesh, which is empty where the module has none [stages]."""
    if STAGE_MESHES in module.attributes:
        return [_text(name) for name in ir.ArrayAttr(module.attributes[STAGE_MESHES])]
    found = module_mesh(module)
    return [found[0] if found else ""] * _int(module.attributes[NUM_STAGES])


def function_meshes(module: ir.Operation) -> dict[str, str]:
    """Returns the name of the mesh of each program of a module in stages, by the program's name."""
    meshes = stage_mesh_names(module)
    parts = [entries(one) for one in ir.ArrayAttr(module.attributes[PARTS])]
    return {str(ir.FlatSymbolRefAttr(one["program"]).value): meshes[_int(one["stage"])] for one in parts}


def layouts(function: func.FuncOp, side: Side, meshes: Mapping[str, Mesh]) -> tuple[Layout, ...]:
    """Returns how the arguments or results of a function lie on a rank; `meshes` are those of the module by name."""
    types = function.type.inputs if side == "arg" else function.type.results
    return tuple(
        _layout(kind, attributes, meshes)
        for kind, attributes in zip(types, boundary_attributes(function, side), strict=True)
    )


def _layout(kind: ir.Type, attributes: Attributes, meshes: Mapping[str, Mesh]) -> Layout:
    tensor = ir.RankedTensorType(kind)
    shape, dtype = tuple(tensor.shape), str(tensor.element_type)
    memory = HOST if is_on_host(attributes) else DEVICE
    if SHARDING not in attributes:
        return Layout(shape, dtype, ((),) * len(shape), memory)
    sharding = sdy.TensorShardingAttr(attributes[SHARDING])
    dims = tuple(
        tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(dim).axes)
        for dim in sharding.dimension_shardings
    )
    sums = tuple(sdy.AxisRefAttr(axis).name for axis in sharding.unreduced_axes)
    sizes = dict(meshes[mesh_name(sharding)].axes) if sums else {}
    return Layout((*(sizes[axis] for axis in sums), *shape), dtype, (*((axis,) for axis in sums), *dims), memory)


def _program(function: func.FuncOp, meshes: Mapping[str, Mesh]) -> StepProgram:
    donated = [
        (number, _int(attributes[ALIAS]))
        for number, attributes in enumerate(boundary_attributes(function, "arg"))
        if ALIAS in attributes
    ]
    name = str(function.name.value)
    return StepProgram(name, name, layouts(function, "arg", meshes), layouts(function, "res", meshes), tuple(donated))


def _part(part: Attributes, numbers: dict[str, int]) -> StageProgram:
    reads, gives = (tuple(map(_text, ir.ArrayAttr(part[key]))) for key in ("reads", "gives"))
    return StageProgram(
        cast(Phase, _text(part["phase"])),
        _int(part["stage"]),
        numbers[ir.FlatSymbolRefAttr(part["program"]).value],
        reads,
        gives,
    )


def _number(number: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def _texts(texts: list[str] | tuple[str, ...]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.StringAttr.get(text) for text in texts])


def _int(attribute: ir.Attribute) -> int:
    return int(ir.IntegerAttr(attribute).value)


def _text(attribute: ir.Attribute) -> str:
    return str(ir.StringAttr(attribute).value)
