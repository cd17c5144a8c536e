"""Pad dims of arguments so that the devices divide them, as a vocabulary of 50257 to 50264 for eight devices.

Reads     a normalized module; which arguments, by name.
Writes    the types of these arguments and of the results that take over their buffers, with `rhino.padded`, the logical
          shape, on both; the ops to which the padding spreads, masked where they would read it, and cut or padded where
          they cannot follow. Then `tidy`. A second run changes nothing.
Errors    RHI-CLI-001 an option does not parse, RHI-CLI-002 the file cannot be read, RHI-PIN-001 it is malformed,
          RHI-PIN-002 a name or dim that is not there, RHI-PASS-001 no number of parts, RHI-SHARD-001 a sharding that
          the module's mesh does not have, RHI-MESH-001 larger than the cluster, RHI-MESH-002 not the module's mesh,
          RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function.
Source    How far padding spreads: strategies/layout/padding.py. What it holds, and where that would change an answer:
          strategies/layout/padding_values.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, prod
from typing import Any, ClassVar

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import WHILE, YIELD, Graph
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.program.program import CONSTANT, Program, read_program
from rhino.ir.program.stored_shapes import PADDED, VIEW, view_attribute
from rhino.ir.request.constraints import Pad, parse_pad, read_constraints
from rhino.ir.request.patterns import dotted, matches, nearest
from rhino.ir.units import format_bytes
from rhino.passes.base import Remarks, opt
from rhino.passes.frontend.tidy import tidy
from rhino.passes.layout.nested_reads import read_inside
from rhino.passes.layout.padded_ops import can_pad, is_made_anew, masked, resized, rewrite
from rhino.passes.layout.shapes import make_in, retype, retype_loop
from rhino.passes.sharding.planning_pass import AUTO, PLANNING_ERRORS, PlanningPass
from rhino.passes.with_rules import renew_rules, with_rules
from rhino.strategies.layout.padding import Pads, Seed, Shape, find_pads
from rhino.strategies.layout.padding_values import Masks, find_masks
from rhino.strategies.structure.factor_links import Place as Dim
from rhino.strategies.structure.factor_links import tensors_of


@dataclass(frozen=True)
class PadDims(PlanningPass):
    """Store dims of arguments larger than they are, so that devices divide them."""

    name: ClassVar[str] = "rhino-pad"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-CLI-001",
        "RHI-CLI-002",
        "RHI-PASS-001",
        "RHI-PIN-001",
        "RHI-PIN-002",
        *PLANNING_ERRORS,
    )

    pad: str = opt("", "NAME or NAME:DIM, several with ; between: arguments whose dims, or that dim, may be padded")
    parts: int = opt(0, "what padded dims are to be divisible by; 0: the number of devices")
    constraints: str = opt("", "a TOML file of the same, see docs/constraints.md")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Pads dims of `module`, in place."""
        requested = self.requested()
        if not requested:
            return
        parts = self.num_parts(module, remarks)
        found = module_mesh(module)
        # Split dims are not asked for their sizes yet: they are to be divisible by then.
        mesh = Mesh(tuple((name, 1) for name in found[1].names)) if found is not None else mesh_of_shape((1,))
        with with_rules(module):
            program = read_program(entry_function(module, remarks.file), mesh, remarks.file)
            able = [_is_able(program, number) for number in range(len(program.ops))]
            made_anew = [op >= 0 and is_made_anew(program.ops[op]) for op in program.graph.value_op.tolist()]
            pads = find_pads(program.graph, able, made_anew, _blocked(program), _seeds(program, requested, parts))
            if pads.values:
                masks = find_masks(program.graph, pads, made_anew, _numbers(program))
                rewriter = _Rewriter(program, pads, masks, made_anew)
                _remark(rewriter, remarks)
                rewriter.run()
                del rewriter
            _remark_useless(program, pads, remarks)
            del program  # no handle of an op outlives the passes below
        if pads.values:
            tidy(module, entry_function(module, remarks.file))
            renew_rules(module)
        remarks.record(pads)

    def requested(self) -> tuple[Pad, ...]:
        """Returns the pads that the options ask for."""
        file = read_constraints(self.constraints).pads if self.constraints else ()
        return (*(parse_pad(part.strip()) for part in self.pad.split(";") if part.strip()), *file)

    def num_parts(self, module: ir.Operation, remarks: Remarks) -> int:
        """Returns what padded dims are to be divisible by."""
        if self.parts < 0:
            raise RhinoError(
                "RHI-PASS-001", f"pass '{self.name}' takes 0 parts or more, not {self.parts}", fix="give 0 or more"
            )
        if self.parts or self.mesh != AUTO or module_mesh(module) is not None:
            return self.parts or self.targets(module, Remarks(remarks.file))[0].mesh.num_devices
        return load_cluster(self.cluster).num_devices


def _is_able(program: Program, number: int) -> bool:
    op = program.ops[number]
    return len(op.operands) == len(program.graph.operands(number)) and can_pad(op, program.graph.cls(number))


def _blocked(program: Program) -> frozenset[Dim]:
    """Returns the places that stay: of what nested regions read, and of arguments that are seen as blocks already."""
    graph = program.graph
    seen = [number for number, attributes in enumerate(boundary_attributes(program.entry, "arg")) if VIEW in attributes]
    return frozenset(
        (value, dim) for value in (*read_inside(program), *seen) for dim in range(len(graph.type_of(value).shape))
    )


def _seeds(program: Program, requested: Sequence[Pad], parts: int) -> Iterator[Seed]:
    """Yields the dims to be padded that `parts` does not divide.

    Where a pad names no dim of its argument, dims of fewer than `parts` elements are left out.
    """
    graph = program.graph
    names = [dotted(argument.name) for argument in graph.arguments]
    for one in requested:
        found = [number for number, name in enumerate(names) if matches(dotted(one.pattern), name, ".")]
        if not found:
            close = nearest(dotted(one.pattern), names, ".")
            fix = f"did you mean {' or '.join(close)}?" if close else "see docs/constraints.md for what a name is"
            raise RhinoError("RHI-PIN-002", f"{one.provenance} matches no argument", Place(program.file), fix=fix)
        for number in found:
            shape = graph.type_of(number).shape
            if one.dim is not None and one.dim >= len(shape):
                what = f"{one.provenance}: {program.describe(number)} has no dim {one.dim}"
                raise RhinoError("RHI-PIN-002", what, Place(program.file), fix="dims count from 0: NAME:DIM")
            for dim, size in enumerate(shape):
                if size % parts and size > 1 and (dim == one.dim or (one.dim is None and size > parts)):
                    yield Seed((number, dim), -(-size // parts) * parts, one.dim is not None)


def _numbers(program: Program) -> dict[int, float]:
    """Returns the values all of whose elements are one number that is known: constants, and what repeats them."""
    graph: Graph = program.graph
    found: dict[int, float] = {}
    for number, op in enumerate(program.ops):
        if op.name == CONSTANT and is_made_anew(op):
            splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
            if isinstance(splat, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr) and not isnan(splat.value):
                found[graph.results(number).start] = float(splat.value)
        elif is_made_anew(op) and len(op.operands) and (source := int(graph.operands(number)[0])) in found:
            found[graph.results(number).start] = found[source]
    return found


def _remark(rewriter: _Rewriter, remarks: Remarks) -> None:
    program, pads, masks, graph = rewriter.program, rewriter.pads, rewriter.masks, rewriter.program.graph
    for seed, places in pads.regions:
        value, dim = seed.place
        size = graph.type_of(value).shape[dim]
        arguments = sorted({place[0] for place in places if place[0] < len(graph.arguments)})
        more = sum(
            prod(pads.values[n]) * graph.type_of(n).element_bytes - graph.type_of(n).num_bytes for n in arguments
        )
        what = (
            f"dim {dim} of {program.describe(value)} is stored with {seed.size} elements, {seed.size - size} of them "
            "padding, as are "
            f"{len(arguments)} of {len(graph.arguments)} arguments: {format_bytes(more)} more in all"
        )
        remarks.add(PadDims.name, place_of(program.entry.arguments[value].location, remarks.file), what)
    cut = [op for op in pads.ops if rewriter.is_border(op)]
    count = len(masks.stored) + len(masks.returned) + sum(map(len, masks.read.values()))
    names = ", ".join(sorted({program.ops[op].name for op in cut})) or "none"
    remarks.add(
        PadDims.name,
        Place(remarks.file),
        f"{count} masks keep padding out of answers; {len(cut)} ops read or give dims cut: {names}",
    )


def _remark_useless(program: Program, pads: Pads, remarks: Remarks) -> None:
    for seed in pads.useless:
        value, dim = seed.place
        place = place_of(program.entry.arguments[value].location, remarks.file)
        what = f"dim {dim} of {program.describe(value)} stays: no product, gather or scatter takes it padded"
        remarks.add(PadDims.name, place, what)


@dataclass(frozen=True, slots=True, eq=False)
class _Rewriter:
    """Rewrites ops in place, in program order, then the boundary of the entry."""

    program: Program
    pads: Pads
    masks: Masks
    made_anew: Sequence[bool]

    def run(self) -> None:
        """Brings the program into its padded shapes."""
        entry, graph = self.program.entry, self.program.graph
        *_, terminator = (op.operation for op in entry.regions[0].blocks[0].operations)
        for number, argument in enumerate(entry.arguments):
            retype(argument, self.stored(number))
        for number in self.pads.ops:
            self.op(number, self.program.ops[number])
        taken_over = {argument.alias: number for number, argument in enumerate(graph.arguments)}
        alike = [taken_over.get(position) for position in range(len(graph.returns))]
        shapes = [
            self.own(value) if other is None else self.stored(other)
            for value, other in zip(graph.returns, alike, strict=True)
        ]
        self.read(terminator, graph.returns, shapes)
        for position in sorted(self.masks.returned):
            self.mask(terminator, position, self.own(graph.returns[position]), None, 0)
        self.boundary(
            "arg", range(len(graph.arguments)), [self.stored(number) for number in range(len(graph.arguments))]
        )
        self.boundary("res", graph.returns, shapes)
        set_function_type(entry)

    def own(self, value: int) -> Shape:
        return self.program.graph.type_of(value).shape

    def stored(self, value: int) -> Shape:
        return self.pads.values.get(value, self.own(value))

    def is_border(self, number: int) -> bool:
        """Says whether an op has a value in another shape than it is stored in, and than it can be made in."""
        # A loop's end has no results.
        tensors = zip(tensors_of(self.program.graph, number), self.pads.ops[number], strict=False)
        return any(self.stored(value) != shape and not self.made_anew[value] for value, shape in tensors)

    def op(self, number: int, op: ir.Operation) -> None:
        """Makes an op read its operands, and give its results, in the shapes that it has them in.

        Its results are then stored in the shapes of their values.
        """
        graph, shapes = self.program.graph, self.pads.ops[number]
        operands, results = graph.operands(number).tolist(), graph.results(number)
        self.read(op, operands, shapes)
        if op.name == WHILE:
            retype_loop(op, [self.stored(carried) for carried in results])
        if op.name in (WHILE, YIELD):
            return
        for mask in self.masks.read.get(number, ()):
            start = op.operands[len(op.operands) // 2 + mask.position] if mask.number is None else mask.number
            self.mask(op, mask.position, self.own(operands[mask.position]), mask.dims, start)
        own = [self.own(value) for value in (*operands, *results)]
        if shapes != tuple(own):
            rewrite(op, shapes, own)
        for number, result, shape in zip(results, list(op.results), shapes[len(operands) :], strict=True):
            self.store(op, number, result, shape)

    def store(self, op: ir.Operation, value: int, result: ir.Value[Any], shape: Shape) -> None:
        """Makes all readers of a result read it in its stored shape, and masked where it has to be."""
        stored, is_masked = self.stored(value), value in self.masks.stored
        if stored == shape and not is_masked:
            return
        uses = list(result.uses)
        with ir.InsertionPoint.after(op), op.location:
            last = resized(result, stored)
            if is_masked:
                last = masked(last, _padded(self.own(value), stored), self.own(value), 0)
        for use in uses:
            use.owner.operands[use.operand_number] = last

    def mask(
        self, op: ir.Operation, position: int, own: Shape, dims: Sequence[int] | None, fill: float | ir.Value[Any]
    ) -> None:
        """Makes an op read an operand masked, along all padded dims where none are given."""
        value = op.operands[position]
        padded = _padded(own, tuple(ir.RankedTensorType(value.type).shape)) if dims is None else dims
        with ir.InsertionPoint(op), op.location:
            op.operands[position] = masked(value, padded, own, fill)

    def read(self, op: ir.Operation, operands: Sequence[int], shapes: Sequence[Shape]) -> None:
        """Makes `op` read its operands in these shapes."""
        for position, (value, shape) in enumerate(zip(operands, shapes, strict=False)):
            if self.stored(value) == shape:
                continue
            if self.made_anew[value]:
                op.operands[position] = make_in(self.program.ops[int(self.program.graph.value_op[value])], shape)
            else:
                with ir.InsertionPoint(op), op.location:
                    op.operands[position] = resized(op.operands[position], shape)

    def boundary(self, side: Side, values: Sequence[int], shapes: Sequence[Shape]) -> None:
        """Gives each padded argument or result its logical shape."""
        attributes = boundary_attributes(self.program.entry, side)
        for value, shape, given in zip(values, shapes, attributes, strict=True):
            if shape != self.own(value):
                given.setdefault(PADDED, view_attribute(self.own(value)))
        set_boundary_attributes(self.program.entry, side, attributes)


def _padded(own: Shape, shape: Shape) -> tuple[int, ...]:
    return tuple(dim for dim, (a, b) in enumerate(zip(own, shape, strict=True)) if a != b)


def refuse_pads(options: Mapping[str, str]) -> None:
    """Raises RHI-CLI-001 where `options` allow padding, for a step that may be cut in stages.

    Programs of stages take and give arrays in their own shapes.
    """
    if padded_arguments(options):
        what = (
            "padding is allowed, and the step may be cut in stages, whose programs take and give arrays in their own "
            "shapes"
        )
        raise RhinoError(
            "RHI-CLI-001", what, fix="plan one program, with --auto-shard, or leave --pad out and pad the model"
        )


def padded_arguments(options: Mapping[str, str]) -> str:
    """Returns the arguments that `options` of passes allow to be padded, in the syntax of the option `pad`.

    Those that the file of constraints allows are among them, so the pass needs no file.
    """
    return "; ".join(
        one.text for one in PadDims(pad=options.get("pad", ""), constraints=options.get("constraints", "")).requested()
    )
