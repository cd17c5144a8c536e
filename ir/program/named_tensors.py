"""Tensors that a user can name, with the constraints on them: arguments, results, and the results of ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.diagnostics import Place
from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.boundary import Attributes, Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.shardings import FORBIDDEN, PROVENANCE, SHARDING, NamedMesh, allowed_specs, per_value_attribute
from rhino.ir.program.program import CARRIED, CONSTRAINT, Program, argument_name
from rhino.ir.request.constraints import Dim
from rhino.ir.request.patterns import dotted

RESULT_INFO: Final = "jax.result_info"


def result_name(attributes: Attributes, number: int) -> str:
    """Returns the name that result `number` is known by."""
    return str(ir.StringAttr(attributes[RESULT_INFO]).value) if RESULT_INFO in attributes else f"result{number}"


@dataclass(eq=False)
class NamedTensor:
    """A tensor, its names, and the constraints on it.

    These are its sharding, if it has one, the shardings that it must not have, and the options or lines of files that
    these come from (`provenance`).
    """

    names: tuple[str, ...]
    what: str
    shape: tuple[int, ...]
    place: Place
    sharding: ir.Attribute | None
    forbidden: list[ir.Attribute] = field(default_factory=list)
    provenance: list[str] = field(default_factory=list)


def provenance_of(attributes: Attributes | ir.OpAttributeMap) -> list[str]:
    """Returns where the constraints on an argument, a result or an op come from, as the user wrote them."""
    return (
        [ir.StringAttr(words).value for words in ir.ArrayAttr(attributes[PROVENANCE])]
        if PROVENANCE in attributes
        else []
    )


def provenance_of_value(program: Program, value: int) -> list[str]:
    """Returns where the constraints on a value come from, as the user wrote them.

    They are on the argument or the op, and on the results where the value is returned.
    """
    op = int(program.graph.value_op[value])
    words = provenance_of(boundary_attributes(program.entry, "arg")[value] if op < 0 else program.ops[op].attributes)
    if value in program.graph.returns:
        results = boundary_attributes(program.entry, "res")
        words += [
            one
            for number, attrs in zip(program.graph.returns, results, strict=True)
            if number == value
            for one in provenance_of(attrs)
        ]
    return list(dict.fromkeys(words))


def argument_tensors(entry: func.FuncOp, file: str) -> list[NamedTensor]:
    """Returns the arguments of the entry; their names are pytree paths, with dots."""
    attributes = boundary_attributes(entry, "arg")
    tensors = []
    for number, (value, attrs) in enumerate(zip(entry.arguments, attributes, strict=True)):
        name = argument_name(value, number)
        what = f'argument {number} "{name}"'
        tensors.append(_boundary_tensor((dotted(name),), what, value.type, place_of(value.location, file), attrs))
    return tensors


def result_tensors(entry: func.FuncOp, file: str) -> list[NamedTensor]:
    """Returns the results of the entry; their names are their numbers, and the paths that JAX writes on them."""
    tensors = []
    for number, (kind, attrs) in enumerate(zip(entry.type.results, boundary_attributes(entry, "res"), strict=True)):
        info = (dotted(ir.StringAttr(attrs[RESULT_INFO]).value),) if RESULT_INFO in attrs else ()
        tensors.append(
            _boundary_tensor((str(number), *info), f"result {number}", kind, place_of(entry.location, file), attrs)
        )
    return tensors


def write_boundary(entry: func.FuncOp, side: Side, tensors: Sequence[NamedTensor]) -> None:
    """Writes the constraints on arguments or results."""
    old = boundary_attributes(entry, side)
    set_boundary_attributes(
        entry, side, [{**attrs, **_attributes_of(tensor)} for attrs, tensor in zip(old, tensors, strict=True)]
    )


def op_tensors(program: Program, op: int) -> list[NamedTensor]:
    """Returns the results of an op.

    Their names are the name in the op's location (a scope), alone and followed by a colon and the op's name.
    """
    operation, values = program.ops[op], program.graph.results(op)
    scope = name_of(operation.location)
    names = (scope, f"{scope}:{operation.name.rpartition('.')[2]}")
    forbidden = list(ir.ArrayAttr(operation.attributes[FORBIDDEN])) if FORBIDDEN in operation.attributes else []
    shardings = _op_shardings(operation)
    tensors = []
    for offset, value in enumerate(values):
        what = f"'{operation.name}' in '{scope}'" + (f" result {offset}" if len(values) > 1 else "")
        place = place_of(operation.location, program.file)
        tensor = NamedTensor(
            names, what, program.graph.type_of(value).shape, place, shardings[offset] if shardings else None
        )
        tensor.forbidden += list(ir.ArrayAttr(forbidden[offset])) if forbidden else []
        tensors.append(tensor)
    return tensors


def write_op(op: ir.Operation, tensors: Sequence[NamedTensor], mesh_name: str) -> None:
    """Writes the constraints on the results of an op; results without one stay open."""
    if any(tensor.sharding is not None for tensor in tensors):
        every = [tensor.sharding or open_attribute(mesh_name, len(tensor.shape)) for tensor in tensors]
        match op.name:
            case _ if op.name == CONSTRAINT:
                op.attributes["sharding"] = every[0]
            case _ if op.name == WHILE:
                op.attributes[CARRIED] = ir.ArrayAttr.get(every)
            case _:
                op.attributes[SHARDING] = per_value_attribute(every)
    if any(tensor.forbidden for tensor in tensors):
        op.attributes[FORBIDDEN] = ir.ArrayAttr.get(
            [ir.ArrayAttr.get(list(dict.fromkeys(tensor.forbidden))) for tensor in tensors]
        )
    if any(tensor.provenance for tensor in tensors):
        op.attributes[PROVENANCE] = _words(
            [*provenance_of(op.attributes), *(words for tensor in tensors for words in tensor.provenance)]
        )


def dims_attribute(mesh_name: str, dims: Sequence[Dim]) -> ir.Attribute:
    """Returns the `#sdy.sharding` with these dims."""
    return _attribute(mesh_name, [(dim.axes, dim.is_open) for dim in dims], (), ())


def without_axis(mesh_name: str, axis: str, rank: int) -> ir.Attribute:
    """Returns the `#sdy.sharding` that leaves every dim open, and is replicated along `axis`."""
    return _attribute(mesh_name, [((), True)] * rank, (axis,), ())


def open_attribute(mesh_name: str, rank: int, partial: Sequence[str] = ()) -> ir.Attribute:
    """Returns the `#sdy.sharding` that leaves every dim open, of a sum over the axes `partial`."""
    return _attribute(mesh_name, [((), True)] * rank, (), partial)


def both(first: ir.Attribute, second: ir.Attribute, target: NamedMesh, tensor: NamedTensor) -> ir.Attribute | None:
    """Returns the sharding that leaves open what both do; None where that is nothing.

    Axes only ever split a dim outer ones first, so the axes of both, in the mesh's order, are what is common where
    anything is.
    """
    sets = [allowed_specs(one, target, tensor.shape, tensor.place, tensor.what) for one in (first, second)]
    if not sets[0] & sets[1]:
        return None
    sides = [sdy.TensorShardingAttr(one) for one in (first, second)]
    names = target.mesh.names

    def axes(references: Sequence[ir.Attribute]) -> tuple[str, ...]:
        return tuple(sorted({str(sdy.AxisRefAttr(one).name) for one in references}, key=names.index))

    dims = [
        (axes([*a.axes, *b.axes]), not (a.is_closed or b.is_closed))
        for a, b in zip(
            *([sdy.DimensionShardingAttr(dim) for dim in side.dimension_shardings] for side in sides), strict=True
        )
    ]
    replicated = axes([one for side in sides for one in side.replicated_axes])
    return _attribute(target.name, dims, replicated, axes([one for side in sides for one in side.unreduced_axes]))


def _attribute(
    mesh_name: str, dims: Sequence[tuple[Sequence[str], bool]], replicated: Sequence[str], unreduced: Sequence[str]
) -> ir.Attribute:
    inner = ", ".join(_braced(axes, is_open=is_open) for axes, is_open in dims)
    groups = [
        f", {word}={_braced(axes)}" for word, axes in (("replicated", replicated), ("unreduced", unreduced)) if axes
    ]
    return ir.Attribute.parse(f"#sdy.sharding<@{mesh_name}, [{inner}]{''.join(groups)}>")


def _braced(axes: Sequence[str], *, is_open: bool = False) -> str:
    return "{" + ", ".join([*(f'"{axis}"' for axis in axes), *(["?"] if is_open else [])]) + "}"


def _boundary_tensor(names: tuple[str, ...], what: str, kind: ir.Type, place: Place, attrs: Attributes) -> NamedTensor:
    shape = tuple(kind.shape) if isinstance(kind, ir.RankedTensorType) else ()
    forbidden = list(ir.ArrayAttr(attrs[FORBIDDEN])) if FORBIDDEN in attrs else []
    return NamedTensor(names, what, shape, place, attrs.get(SHARDING), forbidden, provenance_of(attrs))


def _attributes_of(tensor: NamedTensor) -> Attributes:
    found: Attributes = {} if tensor.sharding is None else {SHARDING: tensor.sharding}
    if tensor.forbidden:
        found[FORBIDDEN] = ir.ArrayAttr.get(list(dict.fromkeys(tensor.forbidden)))
    if tensor.provenance:
        found[PROVENANCE] = _words(tensor.provenance)
    return found


def _words(texts: Sequence[str]) -> ir.Attribute:
    """Returns the attribute that holds texts, each once."""
    return ir.ArrayAttr.get([ir.StringAttr.get(words) for words in dict.fromkeys(texts)])


def _op_shardings(op: ir.Operation) -> list[ir.Attribute]:
    match op.name:
        case _ if op.name == CONSTRAINT:
            return [op.attributes["sharding"]]
        case _ if op.name == WHILE:
            return list(ir.ArrayAttr(op.attributes[CARRIED])) if CARRIED in op.attributes else []
        case _:
            return (
                list(sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings)
                if SHARDING in op.attributes
                else []
            )
