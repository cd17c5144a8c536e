"""From a module to its SPMD plan: what `auto-shard` chooses for it, with what binds the choice to the module and what it costs.

Errors    those of the passes of `auto-shard`; RHI-MESH-002 where the mesh is left open, and some dims must stay whole.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Attributes, Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING, module_mesh
from rhino.ir.plan.spmd_plan import Source, SpmdPlan, Tensor
from rhino.ir.program.collectives import tensor_bytes
from rhino.ir.program.program import argument_name
from rhino.ir.program.stored_shapes import PADDED, logical_shape, padded_shape
from rhino.passes.base import Remarks, make_pass, option_names
from rhino.passes.layout.pad import PadDims, padded_arguments
from rhino.passes.planner.plan_costs import PlanCosts, plan_costs, rivals
from rhino.passes.registry import Item, shard_in_parts
from rhino.passes.sharding.annotations import boundary_dims, read_annotations
from rhino.passes.sharding.choose_shardings import ChooseShardings
from rhino.passes.sharding.problem import AUTO, write_mesh
from rhino.passes.sharding.scopes import scopes_text
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.solver import Solver

Whole = Mapping[Side, Mapping[int, int]]
"""Of arguments and results by number: how many of their last dims must stay whole."""

Sides = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Arguments and results."""

ANNOTATED: Final = "annotated"
"""The form of a program that is compiled as it was, with the shardings on its ops."""

REWRITING: Final = ("num", "remat", "batch", "pad", "parts")
"""Options that change the program for which shardings are chosen."""

RESULT_INFO: Final = "jax.result_info"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A plan, and the choice that it is: for questions that the plan by itself does not answer. `solver` has found it.

    `module` is annotated with it: what `costs` knows of ops lives as long as that.
    """

    module: ir.Module
    plan: SpmdPlan
    costs: PlanCosts
    answer: Answer
    solver: Solver


def search(module: ir.Module, name: str, options: Mapping[str, str], remarks: Remarks, whole: Whole | None = None) -> Found:
    """Returns the best plan for `module`, which is annotated with it; `name` is how it is called.

    `options` are those of the passes, by name: of `auto-shard`, and of micro-batches.
    """
    if padded := padded_arguments(options):  # as a plan holds it: without the file, for parts that are known
        parts = make_pass(PadDims, {name: text for name, text in options.items() if name in option_names(PadDims)})
        assert isinstance(parts, PadDims)
        options = {**options, "pad": padded, "parts": str(parts.num_parts(module.operation, remarks))}
    rewriting, rest = shard_in_parts(options)
    source = normalize(module, name, rewriting, remarks, is_rewritten=any(name in options for name in REWRITING))
    chooser = next(one for one in rest if isinstance(one, ChooseShardings))
    keep_whole(module, name, whole or {}, chooser, remarks)
    build_pass_manager(rest, module.context, remarks).run(module.operation)
    said = remarks.statistics
    costs = plan_costs(said)
    arguments, results = boundary(module, is_annotated=True)
    plan = SpmdPlan(
        source=source,
        cluster=cluster_lines(options["cluster"]),
        mesh=said["target"].mesh.axes,
        form=ANNOTATED,
        asked={key: value for key, value in options.items() if value and key not in ("cluster", "mesh", "budget")},
        versions={},
        predicted=costs.predicted(said["answer"], int(said["budget_bytes"])),
        arguments=arguments,
        results=results,
        works=costs.works(),
        costs=costs.costs(),
        memory=costs.memory(),
        rivals=rivals(said),
        annotations=read_annotations(module),
    )
    return Found(module, plan, costs, said["answer"], said["solver"])


def normalize(module: ir.Module, name: str, passes: Sequence[Item], remarks: Remarks, *, is_rewritten: bool) -> Source:
    """Runs the passes before shardings are chosen, of which the first normalizes; returns what binds a plan to `module`.

    If the others rewrite it, the plan is of what they leave.
    """
    before = digest(module)
    build_pass_manager(passes[:1], module.context, remarks).run(module.operation)
    ops = Counter(op.name for op in walk(entry_function(module).operation))
    source = Source(name, before, digest(module), dict(sorted(ops.items())))
    build_pass_manager(passes[1:], module.context, remarks).run(module.operation)
    return replace(source, normal_sha256=digest(module)) if is_rewritten else source


def boundary(module: ir.Module, *, is_annotated: bool) -> Sides:
    """Returns arguments and results by path, as they lie in an annotated module; whole in another."""
    entry = entry_function(module)
    arguments = [argument_name(value, n).replace('\\"', '"') for n, value in enumerate(entry.arguments)]
    results = [_result_name(one, n) for n, one in enumerate(boundary_attributes(entry, "res"))]
    return _tensors(entry, "arg", arguments, is_annotated), _tensors(entry, "res", results, is_annotated)


def _tensors(entry: func.FuncOp, side: Side, names: Sequence[str], is_annotated: bool) -> tuple[Tensor, ...]:
    kinds = [ir.RankedTensorType(kind) for kind in (entry.type.inputs if side == "arg" else entry.type.results)]
    dims = boundary_dims(entry, side) if is_annotated else [((),) * len(kind.shape) for kind in kinds]
    found = []
    for name, kind, lies, attributes in zip(names, kinds, dims, boundary_attributes(entry, side), strict=True):
        alias = ir.IntegerAttr(attributes[ALIAS]).value if ALIAS in attributes else None
        stored, place = tuple(kind.shape), place_of(entry.location)
        padded = padded_shape(attributes, stored, place) if PADDED in attributes else ()
        own = _kind(kind, logical_shape(attributes, stored, place) if padded else stored)
        found.append(Tensor(name, own, lies, tensor_bytes(kind), alias, padded))
    return tuple(found)


def _result_name(attributes: Attributes, number: int) -> str:
    return str(ir.StringAttr(attributes[RESULT_INFO]).value) if RESULT_INFO in attributes else f"result{number}"


def keep_whole(module: ir.Module, name: str, whole: Whole, chooser: ChooseShardings, remarks: Remarks) -> None:
    """Keeps the last dims of some arguments and results whole. Raises RHI-MESH-002 where the mesh is left open."""
    if not any(whole.values()):
        return
    if chooser.mesh == AUTO and module_mesh(module.operation) is None:
        what = f"{name} takes or gives typed keys, and the mesh is left to the search"
        raise RhinoError("RHI-MESH-002", what, fix="name a mesh, as 8 or 2x4, or pass jax.random.key_data(key)")
    with module.context, ir.Location.unknown():
        target = chooser.target(module.operation, remarks)
        write_mesh(module.operation, target)
        entry = entry_function(module)
        for side, held in whole.items():
            old = boundary_attributes(entry, side)
            ranks = [len(ir.RankedTensorType(kind).shape) for kind in (entry.type.inputs if side == "arg" else entry.type.results)]
            for number, count in held.items():
                dims = ["{?}"] * (ranks[number] - count) + ["{}"] * count
                old[number][SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{target.mesh_name}, [{', '.join(dims)}]>")
            set_boundary_attributes(entry, side, old)


def cluster_lines(cluster: str) -> tuple[str, ...]:
    """Returns the file of a cluster by its lines, as plans keep it."""
    return tuple(cluster_to_text(load_cluster(cluster)).splitlines())


def digest(module: ir.Module) -> str:
    """Returns the hash by which plans know a program; names and places in sources are no part of it, but for scopes."""
    text = f"{module.operation.get_asm(enable_debug_info=False)}{scopes_text(module.operation)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _kind(kind: ir.RankedTensorType, shape: tuple[int, ...]) -> str:
    return f"{kind.element_type}[{','.join(map(str, shape))}]"
