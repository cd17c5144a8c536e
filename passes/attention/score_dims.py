"""Where the queries and the keys of attention lie in each tensor of an op, by its sharding rule."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cmp_to_key
from typing import Final, NamedTuple

from rhino.ir.graph.rules import RULE, Mapping, Rule, parse_rule
from rhino.ir.mlir.bindings import ir
from rhino.ir.program.numerics import SOURCES


class At(NamedTuple):
    """The dims of a tensor along which its queries and its keys lie; None where it has none."""

    query: int | None = None
    key: int | None = None

    @property
    def is_score(self) -> bool:
        """Whether the tensor has a value for each query and key."""
        return self.query is not None and self.key is not None


NO_DIMS: Final = At()


class OpDims(NamedTuple):
    """Where queries and keys lie in each operand and each result of an op."""

    operands: tuple[At, ...]
    results: tuple[At, ...]


def dims_of(op: ir.Operation, *, at: At, operand: int | None = None, result: int = 0) -> OpDims | None:
    """Returns where queries and keys lie around an op that has them `at` dims of one of its operands, or of a result.

    Returns None where the op does not compute each block of them by itself, or nobody knows.
    """
    if op.name in SOURCES:
        return OpDims((), (at,))
    if RULE not in op.attributes:
        return None
    rule = parse_rule(str(op.attributes[RULE]))
    given = rule.results[result] if operand is None else rule.operands[operand]
    query, key = (None if dim is None else _factor(given, dim) for dim in at)
    if -1 in (query, key) or rule.fixed & {query, key}:
        return None
    found = [_places(rule, mapping, query, key) for mapping in (*rule.operands, *rule.results)]
    if any(one is None for one in found):
        return None
    known = [one for one in found if one is not None]
    return OpDims(tuple(known[: len(rule.operands)]), tuple(known[len(rule.operands) :]))


def in_order(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Returns ops of one block in the order in which they stand."""
    return sorted(ops, key=cmp_to_key(_compare))


def _compare(one: ir.Operation, other: ir.Operation) -> int:
    return -1 if one.is_before_in_block(other) else int(one != other)


def moved(op: ir.Operation, operand: int, dims: tuple[int | None, ...]) -> tuple[int | None, ...] | None:
    """Returns at which dims of an op's first result the `dims` of an operand are; None where one is in none."""
    rule = parse_rule(str(op.attributes[RULE]))
    found: list[int | None] = []
    for dim in dims:
        if dim is None:
            found.append(None)
            continue
        place = _place(rule.results[0], _factor(rule.operands[operand], dim))
        if place is None or place < 0:
            return None
        found.append(place)
    return tuple(found)


def _factor(mapping: Mapping, dim: int) -> int:
    """Returns the one factor that a dim is made of, -1 where it is made of several."""
    return mapping[dim][0] if len(mapping[dim]) == 1 else -1


def _place(mapping: Mapping, factor: int | None) -> int | None:
    """Returns the dim that is a factor; None where there is none, -1 where it is part of one."""
    for number, dim in enumerate(mapping):
        if factor is not None and factor in dim:
            return number if dim == (factor,) else -1
    return None


def _places(rule: Rule, mapping: Mapping, query: int | None, key: int | None) -> At | None:
    at = At(_place(mapping, query), _place(mapping, key))
    return None if -1 in at else at
