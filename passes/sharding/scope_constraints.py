"""Scopes between IR and search.

Scopes are written on the ops that are in them, and limit the strategies of these ops and of the arguments they read.

On an op stands `rhino.scopes = ["replicate(2)", "split(4)"]`, outermost first, and no axis: which axes a scope gets is
settled for each mesh that is planned for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import BARRIER, WHILE, YIELD, Choices, Graph
from rhino.ir.graph.rules import RULE
from rhino.ir.graph.spec import REPLICATED, all_specs, entry
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import PROVENANCE
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.loop_conditions import condition_reads
from rhino.ir.program.named_tensors import provenance_of
from rhino.ir.program.numerics import SOURCES
from rhino.ir.program.op_stages import stage_of, virtual_stage_of
from rhino.ir.program.program import Program
from rhino.ir.program.scope_paths import SCOPES, ScopeAround, names_scopes, scope_path, scopes_around
from rhino.ir.request.constraints import Scope
from rhino.ir.request.patterns import nearest
from rhino.ir.request.scope_sharding import (
    REPLICATE,
    SPLIT,
    ScopeSharding,
    parse_scope_sharding,
)
from rhino.passes.base import Remarks
from rhino.strategies.choice.scope_axes import (
    Axes,
    is_product,
    mesh_for,
    meshes_for,
    op_choices,
    possible_counts,
    stored_entries,
    take_axes,
    unbatched_arguments,
)
from rhino.strategies.microbatch.batch_dims import batch_roles
from rhino.strategies.structure.axis_roles import Roles

_MOVES: Final = (WHILE, YIELD, BARRIER)
"""Ops that pass on what they read: nothing is shared in them."""

_UNFIT: Final = {REPLICATE: "model", SPLIT: "batch"}
"""The role of an axis that a scope cannot have."""
_SHOWN: Final = 5

Chain = tuple[ScopeSharding, ...]
"""The shardings of the scopes that an op is in, outermost first."""


@dataclass(frozen=True, slots=True)
class FollowedScopes:
    """How scopes are followed that are stages: around each is data parallelism over so many `replicas`.

    Those of other (virtual) `stages` are on other meshes, and do not count; without any, all count.
    """

    replicas: int
    stages: frozenset[int]

    def counts(self, op: ir.Operation) -> bool:
        """Says whether the scopes of an op count."""
        return not self.stages or _stage_around(op) in self.stages


def write_scopes(
    module: ir.Operation, scopes: Sequence[Scope], followed: FollowedScopes | None, name: str, remarks: Remarks
) -> None:
    """Writes on every op the scopes that it is in.

    These are `scopes`, and those of `rhino.replicate`, `rhino.split` and `rhino.default_strategy` in its location.

    Raises:
        RhinoError: RHI-PIN-002 where one of `scopes` finds no op.
    """
    if not scopes and not names_scopes(module):
        return
    count = dict.fromkeys([one.provenance for one in scopes], 0)
    paths: dict[tuple[str, ...], None] = {}
    for op in _ops(entry_function(module, remarks.file).regions[0].blocks[0]):
        path = scope_path(op.location)
        paths[path] = None
        found = scopes_around(path, scopes)
        for one in found:
            count[one.provenance] = count.get(one.provenance, 0) + 1
        if followed is not None and found and not found[0].is_default:
            found = (*_nested(followed.replicas), *found) if followed.counts(op) else ()
        if found:
            op.attributes[SCOPES] = _texts(str(one.sharding) for one in found)
            words = dict.fromkeys([*provenance_of(op.attributes), *(one.provenance for one in found)])
            op.attributes[PROVENANCE] = _texts(words)
    for requested in scopes:
        if not count[requested.provenance]:
            raise _finds_nothing(requested, paths, remarks.file)
    for matching, number in count.items():
        remarks.add(name, Place(remarks.file), f"{matching} matches {number} ops")


def scopes_text(module: ir.Operation) -> str:
    """Returns which ops of `module` are in `rhino.replicate` and `rhino.split` by their locations.

    Two programs may differ in that alone.
    """
    if not names_scopes(module):
        return ""
    shardings = (
        (number, tuple(one.sharding for one in scopes_around(scope_path(op.location))))
        for number, op in enumerate(walk(module))
    )
    return "".join(f"{number} {_listed(found)}\n" for number, found in shardings if found)


def scope_meshes(module: ir.Operation, num_devices: int) -> tuple[Mesh, ...]:
    """Returns the meshes of so many devices that the scopes on the ops of `module` need.

    Each has axes for all of them.
    """
    chains = dict.fromkeys(_chain(op) for op in walk(module) if SCOPES in op.attributes)
    return tuple(mesh_of_shape(shape) for shape in meshes_for(list(chains), num_devices))


@dataclass(frozen=True, slots=True)
class Scoped:
    """A graph with what scopes leave open.

    `by` has, for the values whose specs they limit, an op of theirs that reads or gives each.
    """

    graph: Graph
    by: dict[int, int]


def scoped_graph(program: Program, mesh: Mesh) -> Scoped:
    """Returns the graph of a program, with what scopes leave its ops and arguments on a mesh.

    Raises:
        RhinoError: RHI-PIN-002 where a number of devices is of no axes, or scopes find nothing to share; RHI-SHARD-001
            where they contradict each other or the roles of axes.
    """
    graph = program.graph
    chains = {number: _chain(op) for number, op in enumerate(program.ops) if SCOPES in op.attributes}
    chains = {op: chain for op, chain in chains.items() if not graph.cls(op).free and graph.cls(op).name not in _MOVES}
    if not chains:
        return Scoped(graph, {})
    first = {chain: op for op, chain in reversed(chains.items())}
    in_order = sorted(first, key=lambda chain: first[chain])
    axes_of = {chain: _axes(program, mesh, chain, first[chain], in_order) for chain in in_order}
    kinds = {
        chain: {axis: sharding.kind for sharding, axes in zip(chain, taken, strict=True) for axis in axes}
        for chain, taken in axes_of.items()
    }
    roles = batch_roles(Roles(graph), condition_reads(program))
    choices = {
        op: op_choices(graph.cls(op), kinds[chain], roles.batch_factors(op), mesh.shape) for op, chain in chains.items()
    }
    for sharding in dict.fromkeys(
        sharding for chain in chains.values() for sharding in chain if sharding.kind in kinds[chain].values()
    ):
        _check_shared(program, roles, sharding, {op: choices[op] for op, chain in chains.items() if sharding in chain})
    limits = _Limits(graph, mesh)
    for axis in range(len(mesh.axes)):
        read = unbatched_arguments(roles, [op for op, chain in chains.items() if kinds[chain].get(axis) == REPLICATE])
        for value, op in read.items():
            limits.add(value, op, axis, frozenset({REPLICATED}))
        for op, chain in chains.items():
            if choices[op][axis] is not None and is_product(graph.cls(op)):
                value = graph.results(op).start
                entries = stored_entries(kinds[chain][axis], len(graph.type_of(value).shape), roles.batch_dims(value))
                if entries is not None:
                    limits.add(value, op, axis, entries)
    return Scoped(replace(graph, choices=choices, fixed=limits.fixed), limits.by)


class _Limits:
    """The specs that are left of values, and an op by which each is limited."""

    def __init__(self, graph: Graph, mesh: Mesh) -> None:
        self.graph, self.mesh = graph, mesh
        self.fixed, self.by = dict(graph.fixed), dict[int, int]()

    def add(self, value: int, op: int, axis: int, entries: frozenset[int]) -> None:
        """Leaves of the specs of a value those with one of `entries` along an axis."""
        sums = range(len(self.mesh.axes)) if self.graph.value_op[value] >= 0 else ()
        every = self.fixed.get(value, all_specs(self.graph.type_of(value).shape, self.mesh.shape, tuple(sums)))
        self.fixed[value] = frozenset(spec for spec in every if entry(spec, axis) in entries)
        self.by.setdefault(value, op)


def limit_notes(program: Program, scoped: Scoped, value: int) -> tuple[str, ...]:
    """Returns why scopes limit how a value is stored, in a line if they do."""
    if value not in scoped.by:
        return ()
    op = scoped.by[value]
    how = "keeps whole what is read by" if value < len(program.graph.arguments) else "keeps split what is given by"
    return (f"{_listed(_chain(program.ops[op]))} {how} {_words(program, op)}",)


def cannot_run(program: Program, scoped: Scoped, mesh: Mesh, op: int) -> RhinoError:
    """Returns the error for an op that can be run in no way within its scopes."""
    cls, choices = program.graph.cls(op), scoped.graph.choices[op]
    rule = cls.rule
    assert rule is not None
    notes = []
    for (name, size), may in zip(mesh.axes, choices, strict=True):
        if may is not None:
            sizes = [f"{rule.names[factor]} of {rule.sizes[factor]}" for factor in sorted(may) if factor >= 0]
            notes.append(f'along "{name}" ({size}) it may be split by {", ".join(sizes) or "nothing"}')
    notes.append(f"its rule is {program.ops[op].attributes[RULE]}")
    notes += [f"{words} requires it" for words in provenance_of(program.ops[op].attributes)]
    roles = ", ".join(f"{name}={role}" for (name, _), role in zip(mesh.axes, program.graph.roles, strict=False) if role)
    notes += [f"axis-role {roles} says what is split along these"] if roles else []
    what = f"{_words(program, op)} cannot be shared as {_listed(_chain(program.ops[op]))} says"
    place = place_of(program.ops[op].location, program.file)
    fewer = " (fewer --micro-batches have more examples each)" if accumulation_loop(program) else ""
    fix = f"choose sizes that the axes divide{fewer}, or take the op out of the scope"
    return RhinoError("RHI-SHARD-001", what, place, tuple(notes), fix)


def _ops(block: ir.Block) -> Iterator[ir.Operation]:
    """Yields the ops of a block and of the loops in it that have a place of their own."""
    for view in block.operations:
        op = view.operation
        if op.name not in SOURCES and len(op.results):
            yield op
        if op.name == WHILE:
            yield from _ops(op.regions[1].blocks[0])


def _nested(replicas: int) -> tuple[ScopeAround, ...]:
    """Returns the scope around all others that are stages; none of one replica."""
    sharding = ScopeSharding(REPLICATE, replicas)
    words = f"sharing each micro-batch among {replicas} replicas of the pipeline"
    return (ScopeAround("", sharding, words),) if replicas > 1 else ()


def _stage_around(op: ir.Operation) -> int | None:
    """Returns the virtual stage of an op or of the loop that it is in; of one after the micro-batches, its stage."""
    around: ir.Operation | None = op
    while around is not None:
        for found in (virtual_stage_of(around), stage_of(around)):
            if found is not None:
                return found
        around = around.parent.operation if around.parent is not None else None
    return None


def _finds_nothing(one: Scope, paths: Iterable[tuple[str, ...]], file: str) -> RhinoError:
    names = dict.fromkeys("/".join(path[:count]) for path in paths for count in range(1, len(path) + 1))
    close = nearest(one.pattern, names, "/")
    fix = f"did you mean {' or '.join(close)}?" if close else "see docs/constraints.md for what a scope is"
    return RhinoError("RHI-PIN-002", f"{one.provenance} matches no scope", Place(file), fix=fix)


def _texts(words: Iterable[str]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.StringAttr.get(one) for one in words])


def _chain(op: ir.Operation) -> Chain:
    texts = [ir.StringAttr(one).value for one in ir.ArrayAttr(op.attributes[SCOPES])]
    shardings = [sharding for text in texts if (sharding := parse_scope_sharding(text))]
    if len(shardings) != len(texts):
        what = f"{SCOPES} of '{op.name}' says {op.attributes[SCOPES]}"
        raise RhinoError(
            "RHI-SHARD-001", what, place_of(op.location), fix='write it as ["replicate(2)", "split"], outermost first'
        )
    return tuple(shardings)


def _axes(program: Program, mesh: Mesh, chain: Chain, op: int, every: Sequence[Chain]) -> tuple[Axes, ...]:
    """Returns the axes of each scope of a chain, one of `every`, which is around `op`."""
    roles = program.graph.roles
    barred = [frozenset(axis for axis, role in enumerate(roles) if role == _UNFIT[sharding.kind]) for sharding in chain]
    found = take_axes(mesh.shape, chain, barred)
    if found is not None:
        return found
    place, none = place_of(program.ops[op].location, program.file), [frozenset[int]()]
    shapes = meshes_for(every, mesh.num_devices)
    as_mesh = f", as {'x'.join(map(str, shapes[0]))}" if shapes else ""
    for sharding in chain:
        num, there = sharding.num or 1, mesh.num_devices
        if there % num:
            what = f"{sharding} around {_words(program, op)}: {num} does not divide the devices of the mesh {mesh}"
            counts = ", ".join(str(count) for count in range(1, there + 1) if there % count == 0)
            fix = f"say {counts}, or no number for all of them"
            raise RhinoError("RHI-PIN-002", what, place, (f"it has {there} devices",), fix)
        if take_axes(mesh.shape, [sharding], none) is None:
            counts = ", ".join(map(str, possible_counts(mesh.shape)))
            what = f"{sharding} around {_words(program, op)}: no axes of the mesh {mesh} have {sharding.num} devices"
            fix = f"say one of these, or name a mesh with such axes{as_mesh}"
            raise RhinoError("RHI-PIN-002", what, place, (f"there are axes of {counts}",), fix)
    notes = [f"{words} requires it" for words in provenance_of(program.ops[op].attributes)]
    what = f"{_listed(chain)} around {_words(program, op)}: the mesh {mesh} has no axes for each"
    other = f"name another mesh{as_mesh}"
    fix = (
        f"scopes in each other have axes of their own: {other}, say fewer devices, or close one scope before the other"
    )
    is_barred = take_axes(mesh.shape, chain, none * len(chain)) is not None
    if is_barred:
        what += " that have no other role"
        notes += [
            f"axis-role {name}={role} requires it" for (name, _), role in zip(mesh.axes, roles, strict=True) if role
        ]
        fix = "leave the role out, or the scope"
    is_possible = not is_barred and mesh_for(chain, mesh.num_devices) is not None
    raise RhinoError("RHI-PIN-002" if is_possible else "RHI-SHARD-001", what, place, tuple(notes), fix)


def _check_shared(program: Program, roles: Roles, sharding: ScopeSharding, within: Mapping[int, Choices]) -> None:
    """Refuses a scope that has nothing to share; `within` are its ops, with what they may do."""
    first, arguments, why = next(iter(within)), program.graph.arguments, tuple[str, ...]()
    if sharding.kind == SPLIT and not any(
        is_product(program.graph.cls(op)) and any(choices) for op, choices in within.items()
    ):
        what = "has no product in it that has another dim than the batch: nothing is there to be split"
    elif sharding.kind == REPLICATE and not any(roles.batch_factors(op) for op in within):
        batch = [f'dim {dim} of "{one.name}"' for n, one in enumerate(arguments) for dim in sorted(roles.batch_dims(n))]
        what = "has nothing in it with a dim of the batch"
        why = (f"of the batch are {', '.join(batch[:_SHOWN]) or 'no dims that were found'}",)
    else:
        return
    place, fix = place_of(program.ops[first].location, program.file), "see docs/constraints.md for what a scope asks"
    raise RhinoError("RHI-PIN-002", f"{sharding} around {_words(program, first)} {what}", place, why, fix)


def _words(program: Program, op: int) -> str:
    operation = program.ops[op]
    return f"'{operation.name}' in '{name_of(operation.location)}'"


def _listed(chain: Chain) -> str:
    return " and ".join(map(str, chain))
