"""See dims that are cut into blocks as two, so that splitting each block is an ordinary split.

A fused projection [D, 3D] cut in three, its gradients put together again, its optimizer state: all of it becomes [D, 3,
D], and a split of the last dim goes through the slices. Blocks that differ in size interleave for the devices: [D,
parts, 3D / parts], with a part of each block in every part. `sdy` cannot say a stride; a view needs none.

Reads     a normalized module; existing shardings, whose split dims stay as they are.
Writes    the ops of each region on the viewed shapes, with reshapes at its borders; the types of the entry's arguments
          and results, and on those that changed `rhino.view`, the logical shape, and `rhino.blocks`, what interleaves;
          on a module with such `rhino.interleaved`.
          A sharding gets an unsplit dim where its tensor gets a dim. Runs `cse`. A second run changes nothing.
Errors    RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have, RHI-PASS-001 no
          number of parts.
Source    Rhino 4.1; which regions, and why: strategies/layout/blocked_views.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.blocks import Blocks, View, interleaved_dims, viewed_shape, whole
from rhino.ir.graph.graph import WHILE, YIELD
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import FORBIDDEN, SHARDING, module_mesh
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.identity import is_uniform
from rhino.ir.program.op_stages import STAGE, VIRTUAL_STAGE
from rhino.ir.program.program import Program, read_program
from rhino.ir.program.stored_shapes import BLOCKS, INTERLEAVED, VIEW, blocks_attribute, view_attribute
from rhino.ir.units import format_bytes
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.layout.nested_reads import read_inside
from rhino.passes.layout.shapes import CONSTRAINT, RESHAPE, element_of, make_in, retype, retype_loop
from rhino.passes.layout.viewed_ops import (
    Seen,
    can_rewrite,
    cut_of,
    read_as,
    rewrite,
    split_dims,
    store,
    viewed_sharding,
)
from rhino.passes.with_rules import renew_rules, run_on_functions, with_rules
from rhino.strategies.layout.blocked_views import Region, Views, find_views, views_of
from rhino.strategies.structure.factor_links import Cut, Place


@dataclass(frozen=True)
class MaterializeStrides(Pass):
    """See dims that are cut into blocks as two: a split of each block is then an ordinary one."""

    name: ClassVar[str] = "rhino-materialize-strides"
    errors: ClassVar[tuple[str, ...]] = ("RHI-READ-005", "RHI-SHARD-001", "RHI-PASS-001")

    parts: int = opt(
        1, "view only by blocks that this number divides: the devices of the mesh axis that is to split them"
    )

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites the regions of `module` in which a view saves communication, in place."""
        if self.parts < 1:
            raise RhinoError(
                "RHI-PASS-001", f"pass '{self.name}' takes 1 part or more, not {self.parts}", fix="give 1 or more"
            )
        entry_function(module, remarks.file)
        with with_rules(module):
            step = Viewable.of(module, remarks.file)
            views = step.find(self.parts)
            for region in views.regions:
                _remark(step.program, region, remarks)
            step.write(views)
            del step  # no handle of an op outlives the passes below
        _tidy(module, views)
        remarks.record(views)


@dataclass(frozen=True, slots=True, eq=False)
class Viewable:
    """A step whose ops have sharding rules, with what each op cuts, and whether it can be written in views."""

    module: ir.Operation
    program: Program
    cuts: Mapping[int, Cut]
    able: Sequence[bool]

    @classmethod
    def of(cls, module: ir.Operation, file: str) -> Viewable:
        """Returns the step of a module. Raises RHI-READ-005, RHI-SHARD-001."""
        found = module_mesh(module)
        # It matters which dims are split, and not into how many parts.
        mesh = found[1] if found is not None else mesh_of_shape((1,))
        program = read_program(entry_function(module, file), mesh, file)
        cuts = {number: cut for number, op in enumerate(program.ops) if (cut := cut_of(op)) is not None}
        return cls(module, program, cuts, [_is_able(program, number) for number in range(len(program.ops))])

    def find(self, parts: int) -> Views:
        """Returns the views that save communication where `parts` devices split each block.

        A step in which blocks interleave has none.
        """
        if INTERLEAVED in self.module.attributes:
            return Views({}, {}, ())
        return find_views(self.program.graph, self.cuts, self.able, _blocked(self.program), parts)

    def fixed(self) -> frozenset[Place]:
        """Returns the places that stay as they are where those of arguments and results do."""
        graph = self.program.graph
        values = (*range(len(graph.arguments)), *graph.returns)
        return _blocked(self.program) | {
            (value, dim) for value in values for dim in range(len(graph.type_of(value).shape))
        }

    def write(self, views: Views) -> None:
        """Rewrites the step in views."""
        if views.values:
            _Rewriter(self.program, views, self.cuts).run()
        if any(blocks.parts > 1 for view in views.values.values() for blocks in view):
            with self.module.context:
                self.module.attributes[INTERLEAVED] = ir.UnitAttr.get()


def may_cut(op: ir.Operation) -> bool:
    """Says whether an op may cut a dim of a tensor in blocks; without such an op there are no views."""
    return cut_of(op) is not None and isinstance(element_of(op.operands[0]), ir.FloatType | ir.ComplexType)


def write_views(module: ir.Operation, values: Mapping[int, View], file: str) -> None:
    """Rewrites a step in the views that were found for an equal one: those of its `values`, by number.

    Raises RHI-PLAN-001 where they are of no such step.
    """
    with with_rules(module):
        step = Viewable.of(module, file)
        graph = step.program.graph
        for value, view in values.items():
            shape = graph.type_of(value).shape if value < graph.num_values else ()
            if tuple(one.size for one in view) != shape:
                what = f"not a plan that can be read: value {value} is no {list(viewed_shape(view))} in blocks"
                raise RhinoError("RHI-PLAN-001", what, fix="plan again, and save the new plan")
        views = views_of(graph, step.cuts, step.able, values)
        step.write(views)
        del step
    _tidy(module, views)


def _tidy(module: ir.Operation, views: Views) -> None:
    if views.values:
        run_on_functions(module, "cse")
    renew_rules(module)


def _remark(program: Program, region: Region, remarks: Remarks) -> None:
    value, dim = region.seed
    num_arguments = len(program.graph.arguments)
    num_viewed = len({value for value, _ in region.blocks if value < num_arguments})
    free, moved = format_bytes(region.cut_bytes), format_bytes(region.border_bytes)
    what = (
        f"dim {dim} of {program.describe(value)} is seen as {_words(region.blocks[region.seed])}, as are "
        f"{num_viewed} of {num_arguments} "
        f"arguments: {free} of cuts per step can follow a split of each block, {moved} at borders cannot"
    )
    remarks.add(MaterializeStrides.name, place_of(program.ops[region.op].location, remarks.file), what)


def _words(blocks: Blocks) -> str:
    sizes = blocks.sizes
    if blocks.parts > 1:
        return f"{len(sizes)} blocks of {', '.join(map(str, sizes))}, interleaved in {blocks.parts} parts"
    return f"{len(sizes)} blocks of {sizes[0]}"


def _is_able(program: Program, number: int) -> bool:
    """Says whether an op may be rewritten.

    It may not if an annotation refers to its present shapes, or if its regions read values.
    """
    op = program.ops[number]
    free = op.name == CONSTRAINT or not _is_annotated(op)
    return (
        free and len(op.operands) == len(program.graph.operands(number)) and can_rewrite(op, program.graph.cls(number))
    )


_SHAPELESS: Final = (MICRO_BATCHES, STAGE, VIRTUAL_STAGE)
"""Annotations that hold in whatever shapes an op is."""


def _is_annotated(op: ir.Operation) -> bool:
    return any(name == SHARDING or (name.startswith("rhino.") and name not in _SHAPELESS) for name in op.attributes)


def _blocked(program: Program) -> frozenset[Place]:
    """Returns the places that stay as they are.

    These are dims that a sharding splits, and all dims of what has shardings that it must not have, of the results of
    annotated ops and of what nested regions read.
    """
    graph = program.graph
    sides: tuple[tuple[Side, Sequence[int]], ...] = (("arg", range(len(graph.arguments))), ("res", graph.returns))
    unchanged = read_inside(program)
    found = set[Place]()
    for side, values in sides:
        for value, attributes in zip(values, boundary_attributes(program.entry, side), strict=True):
            found |= {(value, dim) for dim in (split_dims(attributes[SHARDING]) if SHARDING in attributes else ())}
            unchanged += [value] if FORBIDDEN in attributes else []
    for number, op in enumerate(program.ops):
        if op.name == CONSTRAINT:
            found |= {(value, dim) for value in graph.results(number) for dim in split_dims(op.attributes["sharding"])}
        elif _is_annotated(op):
            unchanged += graph.results(number)
    return frozenset(found | {(value, dim) for value in unchanged for dim in range(len(graph.type_of(value).shape))})


@dataclass(frozen=True, slots=True, eq=False)
class _Rewriter:
    """Rewrites ops in place, in program order, then the boundary of the entry."""

    program: Program
    views: Views
    cuts: Mapping[int, Cut]

    def run(self) -> None:
        """Brings the program into the views."""
        entry, graph = self.program.entry, self.program.graph
        *_, terminator = (op.operation for op in entry.regions[0].blocks[0].operations)
        arguments = [self.seen(value, value) for value in range(len(graph.arguments))]
        for argument, one in zip(entry.arguments, arguments, strict=True):
            retype(argument, one.viewed)
        for number in self.views.ops:
            self.op(number, self.program.ops[number])
        taken_over = {argument.alias: number for number, argument in enumerate(graph.arguments)}
        results = [self.seen(value, taken_over.get(position, value)) for position, value in enumerate(graph.returns)]
        self.read(terminator, graph.returns, results)
        _set_boundary(self.program, "arg", arguments)
        _set_boundary(self.program, "res", results)
        set_function_type(entry)

    def seen(self, value: int, alike: int) -> Seen:
        """Returns a value as it is seen in the view in which `alike` is stored."""
        return Seen(self.views.values.get(alike) or whole(self.program.graph.type_of(value).shape))

    def op(self, number: int, op: ir.Operation) -> None:
        """Makes an op see its operands and results in their views, and stores the results in theirs."""
        operands, results = self.program.graph.operands(number).tolist(), self.program.graph.results(number)
        if op.name in (WHILE, YIELD):
            self.loop(number, op, operands)
            return
        seen = [Seen(view) for view in self.views.ops[number]]
        self.read(op, operands, seen[: len(operands)])
        if any(one.viewed != one.shape for one in seen):
            op = rewrite(op, seen, self.cuts.get(number))
        for value, result, given in zip(results, list(op.results), seen[len(operands) :], strict=True):
            store(op, result, given, self.seen(value, value))
        if op.name == RESHAPE and op.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])

    def loop(self, number: int, op: ir.Operation, operands: Sequence[int]) -> None:
        """Makes a loop take what it carries, where it begins and where its body ends, as that is stored."""
        (loop,) = (loop for loop in self.program.graph.loops if number in (loop.op, loop.end))
        carried = self.program.graph.results(loop.op)
        self.read(op, operands, [self.seen(value, result) for value, result in zip(operands, carried, strict=True)])
        if op.name == WHILE:
            retype_loop(op, [self.seen(result, result).viewed for result in carried])

    def read(self, op: ir.Operation, operands: Sequence[int], seen: Sequence[Seen]) -> None:
        """Makes `op` read its operands as they are to be seen, moved where they are stored otherwise."""
        for position, (value, one) in enumerate(zip(operands, seen, strict=True)):
            stored = self.seen(value, value)
            if stored.view != one.view:
                made_by = int(self.program.graph.value_op[value])
                if made_by >= 0 and self.program.graph.cls(made_by).free and is_uniform(self.program.ops[made_by]):
                    op.operands[position] = make_in(self.program.ops[made_by], one.viewed)
                else:
                    op.operands[position] = read_as(op.operands[position], stored, one, op)


def _set_boundary(program: Program, side: Side, seen: Sequence[Seen]) -> None:
    """Gives each viewed argument or result its logical shape, and its sharding the new dims."""
    attributes = boundary_attributes(program.entry, side)
    for given, one in zip(attributes, seen, strict=True):
        if one.viewed != one.shape:
            given.setdefault(VIEW, view_attribute(one.shape))
            if interleaved := interleaved_dims(one.view):
                given[BLOCKS] = blocks_attribute(interleaved)
            if SHARDING in given:
                given[SHARDING] = viewed_sharding(given[SHARDING], one)
    set_boundary_attributes(program.entry, side, attributes)
