"""Write the user's constraints on tensors and axes onto the module; the search must keep them.

Reads     arguments and results by name, ops by the names of their locations, which may name scopes already;
          existing shardings, with which constraints must agree.
Writes    `sdy.mesh` if there is none; `sdy.sharding` on what a pin or the ban of an axis names (existing and new
          ones taken together), `rhino.forbidden` where a sharding is banned, `rhino.scopes` on ops in scopes,
          `rhino.provenance` beside these: where they come from, for messages. `rhino.axis_roles` on the module. Without
          constraints nothing is written.
Errors    RHI-CLI-001 a constraint does not parse, RHI-CLI-002 the file cannot be read, RHI-PIN-001 it is malformed,
          RHI-PIN-002 a constraint matches nothing, RHI-SHARD-001 constraints that contradict each other
          or what the mesh can do, RHI-MESH-001 larger than the cluster, RHI-MESH-002 not the module's mesh,
          RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import YIELD
from rhino.ir.graph.spec import REPLICATED, fits, pack, split
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import entries
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import ROLES, NamedMesh, allowed_specs
from rhino.ir.program.named_tensors import (
    NamedTensor,
    argument_tensors,
    both,
    dims_attribute,
    op_tensors,
    result_tensors,
    without_axis,
    write_boundary,
    write_op,
)
from rhino.ir.program.program import Program
from rhino.ir.request.constraints import (
    AxisBan,
    AxisRole,
    Ban,
    Constraint,
    Constraints,
    Pin,
    Scope,
    parse_forbid,
    parse_pin,
    parse_role,
    parse_scope,
    read_constraints,
)
from rhino.ir.request.patterns import RESULT, dotted, matches, nearest
from rhino.passes.base import Remarks, opt
from rhino.passes.sharding.planning_pass import PLANNING_ERRORS, PlanningPass, Target, write_mesh
from rhino.passes.sharding.scope_constraints import FollowedScopes, write_scopes
from rhino.passes.with_rules import with_rules
from rhino.strategies.structure.axis_roles import Roles

SCOPE_TEXTS: Final = (
    "NAME=replicate(N) or NAME=split(N), several with ; between: how devices share the ops in a scope",
    "a TOML file of the same, see docs/constraints.md",
)
"""What the options that ask for scopes say of themselves."""

_PLACE: Final = "loc:"
_MODULE: Final = "the module"
_SHOWN: Final = 5
"""How many of the tensors that a pattern matches a remark names."""


@dataclass(frozen=True)
class PinShardings(PlanningPass):
    """Write the user's constraints onto arguments, results, ops and axes."""

    name: ClassVar[str] = "rhino-pin"
    errors: ClassVar[tuple[str, ...]] = ("RHI-CLI-001", "RHI-CLI-002", "RHI-PIN-001", "RHI-PIN-002", *PLANNING_ERRORS)

    pin: str = opt("", "NAME=SHARDING, several with ; between: shardings that tensors must have")
    forbid: str = opt("", "NAME=AXIS or NAME=SHARDING, several with ; between: shardings that tensors must not have")
    axis_role: str = opt("", "AXIS=batch or AXIS=model, several with ; between: what is split along the axis")
    scope: str = opt("", SCOPE_TEXTS[0])
    constraints: str = opt("", SCOPE_TEXTS[1])
    scope_replicas: int = opt(
        0, "where each outermost scope is a pipeline stage, how many replicas of the pipeline its devices run"
    )
    scope_stages: str = opt("", "of these scopes, follow those alone whose virtual stages are given, as 0;4")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Writes the constraints onto `module`."""
        requested = self.requested()
        if requested.constraints or requested.roles:
            self.write(module, requested, remarks)
        write_scopes(module, requested.scopes, self.followed(), self.name, remarks)

    def write(self, module: ir.Operation, requested: Constraints, remarks: Remarks) -> None:
        """Writes the constraints on tensors and axes."""
        target = self.target(module, remarks)
        _check_axes(requested, target)
        entry_function(module, remarks.file)
        write_mesh(module, target)
        _Boundary(module, target, remarks).write(requested.constraints)
        places = [one for one in requested.constraints if one.pattern.startswith(_PLACE)]
        if places or requested.roles:
            with with_rules(module):
                program = self.read(module, target, remarks)
                _write_ops(program, places, target, remarks)
                _write_roles(module, program, requested.roles, remarks)

    def followed(self) -> FollowedScopes | None:
        """Returns how scopes are followed that are stages; None where they are none."""
        stages = _each(self.scope_stages)
        if not all(stage.isdecimal() for stage in stages):
            what = f"scope-stages: got '{self.scope_stages}', expected virtual stages with ; between"
            raise RhinoError("RHI-CLI-001", what, fix="write for example 0;4")
        return FollowedScopes(self.scope_replicas, frozenset(map(int, stages))) if self.scope_replicas else None

    def requested(self) -> Constraints:
        """Returns the constraints of all options."""
        file = read_constraints(self.constraints) if self.constraints else Constraints()
        own: list[Constraint] = [*map(parse_pin, _each(self.pin)), *map(parse_forbid, _each(self.forbid))]
        roles = (*map(parse_role, _each(self.axis_role)), *file.roles)
        return Constraints((*own, *file.constraints), roles, (*map(parse_scope, _each(self.scope)), *file.scopes))


def requested_scopes(scope: str, constraints: str) -> tuple[Scope, ...]:
    """Returns the scopes that two options of this pass ask for."""
    return PinShardings(scope=scope, constraints=constraints).requested().scopes


def _each(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _check_axes(requested: Constraints, target: Target) -> None:
    used = [(axis, one.provenance) for one in requested.constraints for axis in _axes_of(one)] + [
        (role.axis, role.provenance) for role in requested.roles
    ]
    for axis, words in used:
        if axis not in target.names:
            what = f'{words}: the mesh has no axis "{axis}"; it is {target.mesh}'
            raise RhinoError("RHI-PIN-002", what, fix=f"name one of {', '.join(target.names)}, or say --mesh")
    known: dict[str, AxisRole] = {}
    for role in requested.roles:
        if known.setdefault(role.axis, role).role != role.role:
            what = f"{role.provenance} contradicts {known[role.axis].provenance}"
            raise RhinoError("RHI-SHARD-001", what, fix="leave one out: an axis has one role")


def _axes_of(constraint: Constraint) -> Iterator[str]:
    match constraint:
        case AxisBan(axis=axis):
            yield axis
        case Pin(dims=dims) | Ban(dims=dims):
            yield from (axis for dim in dims for axis in dim.axes)


class _Boundary:
    """The arguments and results of the entry."""

    def __init__(self, module: ir.Operation, target: Target, remarks: Remarks) -> None:
        self.target, self.remarks = target, remarks
        self.entry = entry_function(module, remarks.file)
        self.arguments = argument_tensors(self.entry, remarks.file)
        self.results = result_tensors(self.entry, remarks.file)

    def write(self, constraints: Sequence[Constraint]) -> None:
        for one in constraints:
            if one.pattern.startswith(_PLACE):
                continue
            is_result = one.pattern.startswith(RESULT)
            pattern = dotted(one.pattern.removeprefix(RESULT))
            _constrain(one, pattern, ".", self.results if is_result else self.arguments, self.target, self.remarks)
        write_boundary(self.entry, "arg", self.arguments)
        write_boundary(self.entry, "res", self.results)


def _write_ops(program: Program, constraints: Sequence[Constraint], target: Target, remarks: Remarks) -> None:
    """Writes the constraints on ops.

    Ops that depend on constants alone have no constraints: they have no place of their own.
    """
    graph = program.graph
    numbers = [
        op for op in range(graph.num_ops) if constraints and not graph.cls(op).free and graph.cls(op).name != YIELD
    ]
    tensors = {op: op_tensors(program, op) for op in numbers}
    every = [tensor for op in numbers for tensor in tensors[op]]
    for one in constraints:
        _constrain(one, one.pattern.removeprefix(_PLACE), "/", every, target, remarks)
    for op in numbers:
        if any(tensor.provenance for tensor in tensors[op]):
            write_op(program.ops[op], tensors[op], target.mesh_name)


def _write_roles(module: ir.Operation, program: Program, roles: Sequence[AxisRole], remarks: Remarks) -> None:
    if not roles:
        return
    graph = program.graph
    found = Roles(graph)
    batch = [
        (argument.name, dims) for number, argument in enumerate(graph.arguments) if (dims := found.batch_dims(number))
    ]
    if not batch:
        carried = sum(argument.alias is not None for argument in graph.arguments)
        why = (
            f"of {len(graph.arguments)} arguments {carried} are carried from step to step, and no other has a dim "
            "that these lack"
        )
        fix = "donate the state (tf.aliasing_output tells it from the inputs), or pin arguments instead"
        raise RhinoError(
            "RHI-PIN-002", f"{roles[0].provenance}: the program has no batch dim", Place(remarks.file), (why,), fix
        )
    words = ", ".join(
        f'"{name}" {"dim" if len(dims) == 1 else "dims"} {", ".join(map(str, sorted(dims)))}' for name, dims in batch
    )
    remarks.add(PinShardings.name, Place(remarks.file), f"of the batch are {words}")
    old = entries(module.attributes[ROLES]) if ROLES in module.attributes else {}
    module.attributes[ROLES] = ir.DictAttr.get({**old, **{role.axis: ir.StringAttr.get(role.role) for role in roles}})


def _constrain(
    one: Constraint, pattern: str, separator: str, tensors: Sequence[NamedTensor], target: Target, remarks: Remarks
) -> None:
    """Notes one constraint on all tensors that it matches."""
    found = [tensor for tensor in tensors if any(matches(pattern, name, separator) for name in tensor.names)]
    if not found:
        close = nearest(pattern, (tensor.names[-1 if separator == "." else 0] for tensor in tensors), separator)
        fix = f"did you mean {' or '.join(close)}?" if close else "see docs/constraints.md for what a name is"
        raise RhinoError("RHI-PIN-002", f"{one.provenance} matches no tensor", Place(remarks.file), fix=fix)
    different = list(dict.fromkeys(tensor.what for tensor in found))
    shown = ", ".join(different[:_SHOWN]) + (", ..." if len(different) > _SHOWN else "")
    remarks.add(PinShardings.name, Place(remarks.file), f"{one.provenance} matches {shown} ({len(found)} in all)")
    for tensor in found:
        _note(one, tensor, target)


def _note(one: Constraint, tensor: NamedTensor, target: Target) -> None:
    mesh, rank = NamedMesh(target.mesh_name, target.mesh), len(tensor.shape)
    if not isinstance(one, AxisBan) and len(one.dims) != rank:
        what = (
            f"the sharding of {tensor.what} cannot be honoured: it lists {len(one.dims)} dims, and the tensor has "
            f"{rank}"
        )
        raise RhinoError(
            "RHI-SHARD-001",
            what,
            tensor.place,
            (f"{one.provenance} requires it",),
            "list every dim, or say more exactly which tensors",
        )
    match one:
        case AxisBan(axis=axis):
            if rank:
                _limit(one, without_axis(target.mesh_name, axis, rank), tensor, mesh)
        case Pin(dims=dims):
            _limit(one, dims_attribute(target.mesh_name, dims), tensor, mesh)
        case Ban(dims=dims):
            if _divides(one, tensor, target):
                tensor.forbidden.append(dims_attribute(target.mesh_name, dims))
                tensor.provenance.append(one.provenance)


def _limit(one: Constraint, sharding: ir.Attribute, tensor: NamedTensor, mesh: NamedMesh) -> None:
    """Makes a tensor lie as `sharding` leaves open, and as it had to lie before."""
    try:
        allowed_specs(sharding, mesh, tensor.shape, tensor.place, tensor.what)
    except RhinoError as error:
        error.notes = (f"{one.provenance} requires it",)
        raise
    if tensor.sharding is not None and not tensor.provenance:
        tensor.provenance.append(_MODULE)
    together = sharding if tensor.sharding is None else both(tensor.sharding, sharding, mesh, tensor)
    if together is None:
        notes = (
            f"{one.provenance} asks for {sharding}",
            f"against it stands {tensor.sharding}, of {' and '.join(tensor.provenance)}",
        )
        raise RhinoError(
            "RHI-SHARD-001",
            f"the sharding of {tensor.what} contradicts another constraint on it",
            tensor.place,
            notes,
            "leave one out",
        )
    tensor.sharding = together
    tensor.provenance.append(one.provenance)


def _divides(one: Ban, tensor: NamedTensor, target: Target) -> bool:
    """Says whether a tensor could lie so: if not, there is nothing to forbid."""
    used = {target.names.index(axis): split(number) for number, dim in enumerate(one.dims) for axis in dim.axes}
    return fits(pack(used.get(axis, REPLICATED) for axis in range(len(target.names))), tensor.shape, target.mesh.shape)
