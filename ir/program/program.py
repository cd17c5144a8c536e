"""Read the entry function of a normalized module into the dense graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import DEVICE, HOST, WHILE, Argument, Graph, Loop, OpClass, TensorType
from rhino.ir.graph.rules import RULE, Rule, elementwise_rule, parse_rule
from rhino.ir.graph.spec import REPLICATED, Spec, all_specs, without_unit_axes
from rhino.ir.mlir.bindings import func, ir, sdy, stablehlo
from rhino.ir.mlir.boundary import boundary_attributes, entries
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.fixed_region import MANUAL, FixedSpecs, fixed_specs
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.memory_kinds import is_on_host, placement_of
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.refusals import GSPMD, USE_SHARDY, cannot_honour, refuse_foreign
from rhino.ir.mlir.shardings import FORBIDDEN, MESH_NAME, ROLES, SHARDING, NamedMesh, allowed_specs, module_mesh
from rhino.ir.program.folded_layers import FOLDED, GROUP, mark_of, repeats_of
from rhino.ir.program.identity import is_constant
from rhino.ir.program.local_rules import ADDRESSING, CUSTOM_CALL, PAD, is_custom, localizable
from rhino.ir.program.numerics import FUSIBLE, SOURCES, joined_by, linear_in, reduction_of
from rhino.ir.program.trip_count import trip_count

COST = "rhino.cost"
"""On a custom call: the floating-point operations and bytes moved that its owner says it takes, unsplit."""
CARRIED = "rhino.carried"
"""On a loop: the shardings of what it carries.

`sdy.sharding` there makes XLA's import fail (see passes/sharding/choose_shardings.py).
"""
_KEEPS_ZERO = frozenset(
    f"stablehlo.{name}" for name in ("broadcast", "broadcast_in_dim", "convert", "reshape", "transpose")
)
CONSTANT = "stablehlo.constant"
CONSTRAINT = "sdy.sharding_constraint"
_PRECISION = "precision_config"
"""On a product: the precision of each operand."""
_PRECISIONS = ("default", "high", "highest")
_BY_MORE = frozenset({PAD, CUSTOM_CALL})
"""Ops without regions of which more than their types says what they do to sums, or whether they may be there."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A graph, and the MLIR op behind each of its ops (for names, places and attributes)."""

    graph: Graph
    entry: func.FuncOp
    ops: list[ir.Operation]
    file: str

    def describe(self, value: int) -> str:
        """Returns how to speak of a value to its owner: its pytree path or scope, and what it is."""
        graph = self.graph
        op = int(graph.value_op[value])
        if op < 0:
            return f'argument {value} "{graph.arguments[value].name}" {graph.type_of(value)}'
        name = name_of(self.ops[op].location)
        return f"{self.ops[op].name}{f' in {name!r}' if name else ''} {graph.type_of(value)}"


def argument_name(value: ir.Value[Any], number: int) -> str:
    """Returns the name that argument `number` is known by."""
    return name_of(value.location) or f"arg{number}"


def is_ruled(op: ir.Operation) -> bool:
    """Says whether `op` has its rule from Shardy.

    One on a custom call may be its owner's, and says nothing about the other ops.
    """
    return RULE in op.attributes and op.name != CUSTOM_CALL


def read_program(entry: func.FuncOp, mesh: Mesh, file: str = "") -> Program:
    """Returns the graph of `entry`, whose ops carry Shardy's rules; `mesh` is what existing shardings speak of."""
    module = entry.operation.parent
    found = module_mesh(module) if module is not None else None
    reader = _Reader(NamedMesh(found[0] if found else MESH_NAME, mesh), file)
    arguments = reader.arguments(entry)
    *body, terminator = [op.operation for op in entry.regions[0].blocks[0].operations]
    for op in body:
        reader.op(op)
    graph = reader.graph(entry, arguments, terminator)
    if module is not None and FOLDED in module.attributes:
        marks = [
            [mark_of(one.get(GROUP)) for one in side]
            for side in ([op.attributes for op in reader.ops], boundary_attributes(entry, "arg"))
        ]
        graph = replace(graph, repeats=repeats_of(graph, *marks))
    return Program(graph, entry, reader.ops, file)


def ops_of(entry: func.FuncOp) -> list[ir.Operation]:
    """Returns the ops of `entry` as its graph numbers them."""
    return list(_in_order(entry.regions[0].blocks[0]))[:-1]


def _in_order(block: ir.Block) -> Iterator[ir.Operation]:
    for view in block.operations:
        op = view.operation
        yield op
        if op.name == WHILE:
            yield from _in_order(op.regions[1].blocks[0])


@dataclass
class _Reader:
    mesh: NamedMesh
    file: str
    numbers: dict[ir.Value[Any], int] = field(default_factory=dict)
    types: dict[ir.Type, int] = field(default_factory=dict)
    type_list: list[TensorType] = field(default_factory=list)
    classes: dict[OpClass, int] = field(default_factory=dict)
    class_keys: dict[object, int] = field(default_factory=dict)
    value_type: list[int] = field(default_factory=list)
    value_op: list[int] = field(default_factory=list)
    free: list[bool] = field(default_factory=list)
    op_class: list[int] = field(default_factory=list)
    use_start: list[int] = field(default_factory=lambda: [0])
    uses: list[int] = field(default_factory=list)
    result_start: list[int] = field(default_factory=list)
    fixed: dict[int, frozenset[Spec]] = field(default_factory=dict)
    known_specs: dict[tuple[ir.Attribute, tuple[int, ...]], frozenset[Spec]] = field(default_factory=dict)
    ops: list[ir.Operation] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    fixed_specs: dict[int, FixedSpecs] = field(default_factory=dict)
    zeros: set[int] = field(default_factory=set)

    def arguments(self, entry: func.FuncOp) -> tuple[Argument, ...]:
        attributes = boundary_attributes(entry, "arg")
        result = []
        for number, value in enumerate(entry.arguments):
            attrs = attributes[number]
            self.define(value, -1)
            name = argument_name(value, number)
            alias = ir.IntegerAttr(attrs[ALIAS]).value if ALIAS in attrs else None
            if not isinstance(value.type, ir.RankedTensorType):
                what = f'argument {number} "{name}" is a {value.type}, no tensor'
                raise RhinoError(
                    "RHI-READ-003", what, place_of(value.location, self.file), fix="pass tensors alone to the entry"
                )
            if GSPMD in attrs:
                raise cannot_honour(
                    f'argument {number} "{name}" with a GSPMD sharding', USE_SHARDY, place_of(value.location, self.file)
                )
            if SHARDING in attrs:
                self.fix(number, attrs[SHARDING], value.location, f'argument {number} "{name}"')
            if FORBIDDEN in attrs:
                self.forbid(number, attrs[FORBIDDEN], value.location, f'argument {number} "{name}"')
            result.append(Argument(name, alias, (HOST,) if is_on_host(attrs) else (DEVICE,)))
        return tuple(result)

    def define(self, value: ir.Value[Any], op: int) -> int:
        number = len(self.value_type)
        self.numbers[value] = number
        self.value_type.append(self.type_number(value.type))
        self.value_op.append(op)
        self.free.append(False)
        return number

    def fix(self, value: int, attribute: ir.Attribute, location: ir.Location, what: str) -> None:
        shape = self.type_list[self.value_type[value]].shape
        if (attribute, shape) not in self.known_specs:  # most values of a planned program share a few shardings
            allowed = self.allowed(attribute, shape, place_of(location, self.file), what)
            self.known_specs[attribute, shape] = allowed
        self.fixed[value] = self.known_specs[attribute, shape]

    def allowed(self, attribute: ir.Attribute, shape: tuple[int, ...], place: Place, what: str) -> frozenset[Spec]:
        """Returns the specs that a sharding leaves open, as the planner writes them."""
        return frozenset(
            without_unit_axes(spec, self.mesh.mesh.shape)
            for spec in allowed_specs(attribute, self.mesh, shape, place, what)
        )

    def forbid(self, value: int, shardings: ir.Attribute, location: ir.Location, what: str) -> None:
        """Takes away from how a value may be stored; of what is then left open, an op's result may be a sum too."""
        shape, sizes = self.type_list[self.value_type[value]].shape, self.mesh.mesh.shape
        sums = range(len(sizes)) if self.value_op[value] >= 0 and not self.free[value] else ()
        allowed = self.fixed.get(value, frozenset(all_specs(shape, sizes, tuple(sums))))
        for one in ir.ArrayAttr(shardings):
            allowed -= allowed_specs(one, self.mesh, shape, place_of(location, self.file), what)
        self.fixed[value] = allowed

    def type_number(self, kind: ir.Type) -> int:
        if kind not in self.types:
            self.types[kind] = len(self.type_list)
            self.type_list.append(_tensor_type(kind))
        return self.types[kind]

    def op(self, op: ir.Operation) -> None:
        """Adds an op, and the body of a loop after it."""
        name, attributes, number, first = op.name, op.attributes, len(self.ops), len(self.value_type)
        self.ops.append(op)
        read = [self.numbers[value] for value in op.operands]
        has_operands, has_regions = bool(read), len(op.regions) > 0
        if has_regions and name not in (WHILE, MANUAL):
            read += self.captured(op)
        free = name in SOURCES or (
            has_operands and name in FUSIBLE and all(self.free[v] or self.is_scalar(v) for v in read)
        )
        self.result_start.append(first)
        for result in op.results:
            self.free[self.define(result, number)] = free
        types, results = tuple([self.value_type[v] for v in read]), tuple(self.value_type[first:])
        said = (*[attributes.get(one, None) for one in ADDRESSING.get(name, ())], attributes.get(_PRECISION, None))
        own = (name, types, results, attributes.get(RULE, None), free, attributes.get(COST, None), said)
        by_types = not has_regions and name not in _BY_MORE
        known = self.class_keys.get(own) if by_types and GSPMD not in attributes else None
        if known is None:
            refuse_foreign(op, self.file)
            if name == MANUAL:
                self.fixed_specs[number] = fixed_specs(op, self.mesh, self.file)
            known = self.class_number(op, own)
            if by_types:
                self.class_keys[own] = known
        self.op_class.append(known)
        if (name == CONSTANT and is_constant(op.results[0], 0)) or (name in _KEEPS_ZERO and read[0] in self.zeros):
            self.zeros.add(first)
        self.uses += read
        self.use_start.append(len(self.uses))
        if SHARDING in attributes and name != CONSTRAINT:
            for offset, sharding in enumerate(_shardings(op)[: len(op.results)]):
                self.fix(first + offset, sharding, op.location, f"'{name}' result {offset}")
        elif name == MANUAL:
            for value, spec in enumerate(self.fixed_specs[number][1], first):
                self.fixed[value] = frozenset({spec})
        elif name == CONSTRAINT:
            self.fix(first, attributes["sharding"], op.location, f"'{name}'")
        if FORBIDDEN in attributes:
            for offset, shardings in enumerate(ir.ArrayAttr(attributes[FORBIDDEN])):
                self.forbid(first + offset, shardings, op.location, f"'{name}' result {offset}")
        if name == WHILE:
            self.loop(number, op)

    def is_scalar(self, value: int) -> bool:
        return not self.type_list[self.value_type[value]].shape

    def loop(self, number: int, op: ir.Operation) -> None:
        """Adds the body of a `while`.

        A carried value is one value, inside and outside. The condition reads it whole.
        """
        carried = range(self.result_start[-1], len(self.value_type))
        condition, body = (region.blocks[0] for region in op.regions)
        for block in (condition, body):
            self.numbers.update(zip(block.arguments, carried, strict=True))
        if CARRIED in op.attributes:
            for offset, sharding in enumerate(ir.ArrayAttr(op.attributes[CARRIED])):
                self.fix(carried[offset], sharding, op.location, f"'{op.name}' result {offset}")
        for value in {
            self.numbers[v]: None
            for inner in (op for view in condition.operations for op in walk(view.operation))
            for v in inner.operands
            if v in self.numbers
        }:
            if self.type_list[self.value_type[value]].shape:
                self.fixed[value] = self.fixed.get(value, frozenset({REPLICATED})) & {REPLICATED}
        for inner in body.operations:
            self.op(inner.operation)
        end = len(self.ops) - 1
        kept = tuple(self.numbers[v] == c for v, c in zip(self.ops[end].operands, carried, strict=True))
        self.loops.append(Loop(number, end, trip_count(op.opview), kept))

    def captured(self, op: ir.Operation) -> list[int]:
        inside = [inner for inner in walk(op) if inner is not op]
        for inner in inside:
            refuse_foreign(inner, self.file)
        found = {self.numbers[v]: None for inner in inside for v in inner.operands if v in self.numbers}
        return sorted(found)

    def class_number(
        self,
        op: ir.Operation,
        own: tuple[str, tuple[int, ...], tuple[int, ...], ir.Attribute | None, bool, object, object],
    ) -> int:
        """Returns the class of the last op.

        `own` is what it says itself: name, types of operands and results, rule, whether free, cost, what it addresses
        and with what precision it multiplies.
        """
        _, types, results, rule, free, *_ = own
        specs = self.fixed_specs.get(len(self.ops) - 1)
        key = (*own, reduction_of(op), linear_in(op), joined_by(op), specs, placement_of(op), _unread(op))
        if key not in self.class_keys:
            cls = replace(self.make_class(op, types, results, rule, free), fixed_specs=specs)
            self.class_keys[key] = self.classes.setdefault(cls, len(self.classes))
        return self.class_keys[key]

    def make_class(
        self, op: ir.Operation, types: tuple[int, ...], results: tuple[int, ...], rule: ir.Attribute | None, free: bool
    ) -> OpClass:
        operand_types, result_types = (tuple(self.type_list[t] for t in side) for side in (types, results))
        table = parse_rule(str(rule)) if rule is not None else None
        place = placement_of(op)
        if op.name == CONSTRAINT or place is not None:
            table = elementwise_rule(result_types[0].shape)
        elif table is not None:
            table = localizable(op, table)
        cost = _given_cost(op)
        return OpClass(
            name=op.name,
            operands=operand_types,
            results=result_types,
            rule=table,
            reduction="add"
            if rule is not None and is_custom(rule)
            else reduction_of(op),  # a rule's reductions are sums
            linear=linear_in(op),
            free=free,
            fusible=op.name in FUSIBLE,
            flops=cost.get("flops", _flops(op, table, operand_types, result_types)),
            moved_bytes=cost.get("bytes"),
            precision=_precision(op),
            placed=place,
            products=_given_products(op, cost),
            loads=_given_loads(op, table),
            unread=_unread(op),
        )

    def graph(self, entry: func.FuncOp, arguments: tuple[Argument, ...], terminator: ir.Operation) -> Graph:
        returns = tuple(self.numbers[value] for value in terminator.operands)
        return Graph(
            classes=tuple(self.classes),
            types=tuple(self.type_list),
            op_class=np.array(self.op_class, dtype=np.int64),
            use_start=np.array(self.use_start, dtype=np.int64),
            uses=np.array(self.uses, dtype=np.int64),
            result_start=np.array([*self.result_start, len(self.value_type)], dtype=np.int64),
            value_type=np.array(self.value_type, dtype=np.int64),
            value_op=np.array(self.value_op, dtype=np.int64),
            arguments=arguments,
            returns=returns,
            return_fixed=self.return_fixed(entry, returns),
            fixed=self.fixed,
            loops=tuple(sorted(self.loops, key=lambda loop: loop.op)),
            roles=self.roles(entry.operation.parent),
            zeros=frozenset(self.zeros),
        )

    def roles(self, module: ir.Operation | None) -> tuple[str, ...]:
        if module is None or ROLES not in module.attributes:
            return ()
        given = entries(module.attributes[ROLES])
        return tuple(ir.StringAttr(given[name]).value if name in given else "" for name in self.mesh.mesh.names)

    def return_fixed(self, entry: func.FuncOp, returns: tuple[int, ...]) -> tuple[frozenset[Spec] | None, ...]:
        attributes = boundary_attributes(entry, "res")
        fixed: list[frozenset[Spec] | None] = []
        for number, value in enumerate(returns):
            attrs = attributes[number]
            shape = self.type_list[self.value_type[value]].shape
            place = place_of(entry.location, self.file)
            what = f"result {number}"
            limit = self.allowed(attrs[SHARDING], shape, place, what) if SHARDING in attrs else None
            if FORBIDDEN in attrs:
                limit = limit if limit is not None else frozenset(all_specs(shape, self.mesh.mesh.shape))
                limit -= {
                    spec
                    for one in ir.ArrayAttr(attrs[FORBIDDEN])
                    for spec in allowed_specs(one, self.mesh, shape, place, what)
                }
            fixed.append(limit)
        return tuple(fixed)


def _unread(op: ir.Operation) -> frozenset[int]:
    """Returns which results of a custom call nothing reads: memory that it works in, for one."""
    if op.name != CUSTOM_CALL:
        return frozenset()
    return frozenset(number for number, value in enumerate(op.results) if next(iter(value.uses), None) is None)


def _given_cost(op: ir.Operation) -> dict[str, int]:
    """Returns the "flops", "product_flops" and "bytes" that somebody has written on an op."""
    given = entries(op.attributes[COST]) if COST in op.attributes else {}
    return {key: count.value for key, count in given.items() if isinstance(count, ir.IntegerAttr)}


def _given_products(op: ir.Operation, cost: Mapping[str, int]) -> tuple[str, int] | None:
    """Returns the dtype and the flops of the matrix products in an op, where somebody has written these on it."""
    if "product_flops" not in cost:
        return None
    dtype = entries(op.attributes[COST]).get("product_dtype")
    if dtype is not None:
        return ir.StringAttr(dtype).value, cost["product_flops"]
    return str(ir.RankedTensorType(op.operands[0].type).element_type), cost["product_flops"]


def _given_loads(op: ir.Operation, rule: Rule | None) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns the flops at each place along factors of a rule where somebody has written that they differ."""
    given = entries(op.attributes[COST]).get("loads") if COST in op.attributes else None
    if given is None or rule is None:
        return ()
    return tuple(
        (rule.names.index(name), tuple(ir.DenseI64ArrayAttr(load))) for name, load in sorted(entries(given).items())
    )


def _precision(op: ir.Operation) -> str:
    """Returns the highest precision of an op's operands, which is that in which XLA multiplies both."""
    given = op.attributes.get(_PRECISION, None)
    names = [stablehlo.PrecisionAttr(one).value.lower() for one in ir.ArrayAttr(given)] if given is not None else []
    return max(names, key=_PRECISIONS.index, default=_PRECISIONS[0])


def _shardings(op: ir.Operation) -> list[ir.Attribute]:
    return list(sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings)


def _tensor_type(kind: ir.Type) -> TensorType:
    if not isinstance(kind, ir.RankedTensorType):
        return TensorType((), str(kind), 0)  # a token: nothing to place
    element = kind.element_type
    return TensorType(tuple(kind.shape), str(element), element_bytes(str(element)))


def _flops(
    op: ir.Operation, rule: Rule | None, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]
) -> int:
    """Returns the floating-point operations of one execution.

    A product has two per multiply-add; any other op has one per element that it touches.
    """
    match op.name:
        case "stablehlo.dot_general" | "stablehlo.dot" if rule is not None:
            return 2 * prod(rule.sizes)
        case "stablehlo.convolution":
            kernel = operands[1].shape
            numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
            out_features = kernel[numbers.kernel_output_feature_dimension]
            return 2 * prod(results[0].shape) * prod(kernel) // max(int(out_features), 1)
        case _ if op.name in FUSIBLE:
            return sum(prod(result.shape) for result in results)
    return max((prod(t.shape) for t in (*operands, *results)), default=0)
