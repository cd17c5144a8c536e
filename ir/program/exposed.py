"""A module that returns what ops inside it compute, too, so that two ways to run it can be compared value by value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import BARRIER, WHILE
from rhino.ir.mlir.bindings import func, ir, sdy
from rhino.ir.mlir.boundary import Attributes, boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import end_of, entry_function
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.numerics import SOURCES
from rhino.ir.program.program import CARRIED


@dataclass(frozen=True, slots=True)
class OpResult:
    """A result of an op of the entry: the op's number in the entry, and the result's position.

    `num_bytes` are the bytes of the whole tensor.
    """

    op: int
    position: int
    num_bytes: int


def results_inside(module: ir.Module) -> Iterator[OpResult]:
    """Yields the tensors that ops of the entry compute, in program order.

    Constants and the results of barriers are left out.
    """
    for number, op in enumerate(body_of(module)):
        if op.name in SOURCES or op.name == BARRIER or not op.name.startswith("stablehlo."):
            continue
        for position, result in enumerate(op.results):
            if isinstance(result.type, ir.RankedTensorType):
                kind = ir.RankedTensorType(result.type)
                yield OpResult(number, position, prod(kind.shape) * element_bytes(str(kind.element_type)))


def body_of(module: ir.Module) -> list[ir.Operation]:
    """Returns the ops of the entry's own block, but for the one that ends it."""
    *body, _ = [view.operation for view in entry_function(module).regions[0].blocks[0].operations]
    return body


def exposing(module: ir.Module, values: Sequence[OpResult]) -> ir.Module:
    """Returns a copy of an annotated module whose entry also returns `values`, last, with the shardings of their ops.

    Partial sums are reduced.
    """
    copy = copy_module(module)
    with copy.context, ir.Location.unknown():
        entry, body = entry_function(copy), body_of(copy)
        old = boundary_attributes(entry, "res")
        end = end_of(entry.regions[0].blocks[0])
        with ir.InsertionPoint(end), end.location:
            func.ReturnOp([*end.operands, *(body[one.op].results[one.position] for one in values)])
        end.erase()
        set_function_type(entry)
        set_boundary_attributes(entry, "res", [*old, *(_stored(body[one.op], one.position) for one in values)])
    return copy


def _stored(op: ir.Operation, position: int) -> Attributes:
    """Returns the attributes of an entry result that is sharded as a result of `op` is; a partial sum is reduced."""
    given: list[ir.Attribute] = []
    if op.name == WHILE and CARRIED in op.attributes:
        given = list(ir.ArrayAttr(op.attributes[CARRIED]))
    elif SHARDING in op.attributes:
        given = list(sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings)
    if not given:
        return {}
    sharding: Any = sdy.TensorShardingAttr(given[position])
    return {SHARDING: sdy.TensorShardingAttr.get(sharding.mesh_or_ref, sharding.dimension_shardings)}
