"""What a plan says of the module that it is for: hashes, arguments and results by name, the file of its cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import DEVICE, HOST
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.donation import ALIAS, KEPT
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.memory_kinds import is_on_host
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import NO_MESH, SHARDING, module_mesh
from rhino.ir.plan.plan import Source, Tensor, kind_of
from rhino.ir.plan.plan_json import digest_of
from rhino.ir.program.collectives import tensor_bytes
from rhino.ir.program.named_tensors import result_name
from rhino.ir.program.program import argument_name
from rhino.ir.program.stored_shapes import PADDED, VIEW, interleaved_of, logical_shape, padded_shape
from rhino.passes.base import Item, Remarks
from rhino.passes.pipeline.shard_ranks import ShardRanks
from rhino.passes.sharding.annotations import boundary_dims
from rhino.passes.sharding.choose_shardings import ChooseShardings
from rhino.passes.sharding.planning_pass import AUTO, write_mesh
from rhino.passes.sharding.scope_constraints import scopes_text
from rhino.passes.textual_pipelines import build_pass_manager

Unsplit = Mapping[Side, Mapping[int, int]]
"""Of arguments and results by number: how many of their last dims must not be split."""

Sides = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Arguments and results."""


def normalize(module: ir.Module, name: str, passes: Sequence[Item], remarks: Remarks, *, is_rewritten: bool) -> Source:
    """Runs the passes that precede the choice of shardings, and returns what binds a plan to `module`.

    The first of them normalizes. If the others rewrite the module, the plan is bound to what they leave.
    """
    before = digest(module)
    build_pass_manager(passes[:1], module.context, remarks).run(module.operation)
    ops = Counter(op.name for op in walk(entry_function(module).operation))
    source = Source(name, before, digest(module), dict(sorted(ops.items())))
    build_pass_manager(passes[1:], module.context, remarks).run(module.operation)
    return replace(source, normal_sha256=digest(module)) if is_rewritten else source


def boundary(module: ir.Module, *, is_annotated: bool) -> Sides:
    """Returns arguments and results by path, with the shardings of an annotated module; replicated in another."""
    entry = entry_function(module)
    arguments = [argument_name(value, n).replace('\\"', '"') for n, value in enumerate(entry.arguments)]
    results = [result_name(one, n) for n, one in enumerate(boundary_attributes(entry, "res"))]
    return _tensors(entry, "arg", arguments, is_annotated), _tensors(entry, "res", results, is_annotated)


def _tensors(entry: func.FuncOp, side: Side, names: Sequence[str], is_annotated: bool) -> tuple[Tensor, ...]:
    kinds = [ir.RankedTensorType(kind) for kind in (entry.type.inputs if side == "arg" else entry.type.results)]
    dims = boundary_dims(entry, side) if is_annotated else [((),) * len(kind.shape) for kind in kinds]
    found = []
    for name, kind, split, attributes in zip(names, kinds, dims, boundary_attributes(entry, side), strict=True):
        alias = ir.IntegerAttr(attributes[ALIAS]).value if ALIAS in attributes else None
        stored, place = tuple(kind.shape), place_of(entry.location)
        padded = padded_shape(attributes, stored, place) if PADDED in attributes else ()
        own = kind_of(kind.element_type, logical_shape(attributes, stored, place))
        found.append(
            Tensor(
                name,
                own,
                split,
                tensor_bytes(kind),
                alias=alias,
                padded=padded,
                is_kept=KEPT in attributes,
                viewed=stored if VIEW in attributes else (),
                interleaved=interleaved_of(attributes, padded_shape(attributes, stored, place), place),
                memory=HOST if is_on_host(attributes) else DEVICE,
            )
        )
    return tuple(found)


def keep_unsplit(
    module: ir.Module, name: str, unsplit: Unsplit, chooser: ChooseShardings | ShardRanks, remarks: Remarks
) -> None:
    """Keeps the last dims of some arguments and results from being split.

    Raises RHI-MESH-002 where the mesh is left open.
    """
    if not any(unsplit.values()):
        return
    if isinstance(chooser, ChooseShardings) and chooser.mesh == AUTO and module_mesh(module.operation) is None:
        what = f"{name} takes or gives typed keys, and the mesh is left to the search"
        raise RhinoError("RHI-MESH-002", what, fix="name a mesh, as 8 or 2x4, or pass jax.random.key_data(key)")
    with module.context, ir.Location.unknown():
        mesh = NO_MESH.removeprefix("#sdy.")
        if isinstance(chooser, ChooseShardings):
            target = chooser.target(module.operation, remarks)
            write_mesh(module.operation, target)
            mesh = f"@{target.mesh_name}"
        entry = entry_function(module)
        for side, counts in unsplit.items():
            old = boundary_attributes(entry, side)
            types = entry.type.inputs if side == "arg" else entry.type.results
            ranks = [len(ir.RankedTensorType(kind).shape) for kind in types]
            for number, count in counts.items():
                dims = ["{?}"] * (ranks[number] - count) + ["{}"] * count
                text = f"#sdy.sharding<{mesh}, [{', '.join(dims)}]>"
                old[number][SHARDING] = ir.Attribute.parse(text)
            set_boundary_attributes(entry, side, old)


def cluster_lines(cluster: str) -> tuple[str, ...]:
    """Returns the file of a cluster by its lines, as plans keep it."""
    return tuple(cluster_to_text(load_cluster(cluster)).splitlines())


def digest(module: ir.Module) -> str:
    """Returns the hash by which plans know a program.

    Names and places in sources are no part of it, but for scopes; nor is what the caller keeps, which a plan says of
    its arguments.
    """
    with module.context:
        entry = entry_function(module)
        given = boundary_attributes(entry, "arg")
        bare = [{name: one for name, one in each.items() if name != KEPT} for each in given]
        set_boundary_attributes(entry, "arg", bare)
        text = f"{module.operation.get_asm(enable_debug_info=False)}{scopes_text(module.operation)}"
        set_boundary_attributes(entry, "arg", given)
    return digest_of(text.encode())


ROW_LIMITS: Final = ("rows", "stage-rows")
"""Options that a plan in stages keeps of how it was found, and that nobody asked for."""


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of passes that a plan keeps.

    Left out are the cluster, what the plan records itself, what follows from these, and what was not to be done.
    """
    own = (
        "cluster",
        "mesh",
        "own-shapes",
        "budget",
        "num",
        "stages",
        "ranks",
        "replicas",
        "schedule",
        "split-backward",
    )
    return {name: text for name, text in options.items() if text not in ("", "false") and name not in own}
