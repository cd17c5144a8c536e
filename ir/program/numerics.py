"""What an op does to sums: the monoid that joins the parts of a split reduction, and its linear operands.

Shardy's rules say which factors can be split; they do not say how the parts combine (its partitioner always adds), nor
where a partial sum may flow on unreduced. Both follow from the op's definition in the StableHLO specification, section
"Ops".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.program.identity import identity_of, is_constant

Linear = tuple[frozenset[int], ...]

_BINARY = (
    "add atan2 divide maximum minimum multiply power remainder subtract and or xor shift_left shift_right_arithmetic "
    "shift_right_logical"
)
_UNARY = (
    "abs cbrt ceil convert cosine count_leading_zeros exponential exponential_minus_one floor imag is_finite log "
    "log_plus_one logistic negate not popcnt real round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh "
    "bitcast_convert reduce_precision"
)
_OTHER = (
    "clamp compare complex select broadcast_in_dim broadcast reshape transpose slice reverse pad concatenate iota "
    "constant dynamic_slice"
)
FUSIBLE: Final = frozenset(f"stablehlo.{name}" for name in f"{_BINARY} {_UNARY} {_OTHER}".split())
"""Ops that a compiler computes inside the loop of their consumer."""

SOURCES: Final = frozenset({"stablehlo.constant", "stablehlo.iota"})
"""Ops without operands whose result is the same wherever it is computed."""

_BODY_MONOIDS: Final = {"stablehlo.add": "add", "stablehlo.maximum": "max", "stablehlo.minimum": "min"}

_BOOLEAN_MONOIDS: Final = {
    "stablehlo.or": "max",
    "stablehlo.maximum": "max",
    "stablehlo.and": "min",
    "stablehlo.minimum": "min",
}
"""Of two booleans the larger is whether either is true, the smaller whether both are."""


def reduction_of(op: ir.Operation) -> str | None:
    """Returns the monoid ("add", "max", "min") that joins partial results when a reduction factor of `op` is split.

    Returns None where there is none.
    """
    match op.name:
        case "stablehlo.dot_general" | "stablehlo.dot" | "stablehlo.convolution":
            return "add"
        case "stablehlo.gather":
            return "add" if _adds(op.results[0].type) else None  # absent rows read as zero
        case "stablehlo.scatter" if len(op.results) == 1:
            return "add" if _body_monoid(op, _body_op(op)) == "add" else None
        case "stablehlo.reduce" if len(op.results) == 1:
            # What it starts from enters once per part, or where XLA takes it for the identity not at all.
            by = _body_op(op)
            return None if _other_start(op, by) else _body_monoid(op, by)
    return None


def joined_by(op: ir.Operation) -> tuple[str, ...]:
    """Returns the ops by which windows are joined, for each result one, where all start from their identities.

    Empty for other ops, and where that is not known: then what lies outside of a dim may count, or may not.
    """
    if op.name != "stablehlo.reduce_window":
        return ()
    count = len(op.results)
    found = [_body_op(op, number) for number in range(count)]
    starts = [_starts_at_identity(start, by) for start, by in zip(op.operands[count:], found, strict=True)]
    return tuple(by for by in found if by is not None) if all(starts) else ()


def needless_start(op: ir.Operation) -> tuple[str, float] | None:
    """Returns the op that a reduction is by, and its identity, where the reduction starts from something else."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1:
        return None
    return _other_start(op, _body_op(op))


def _other_start(op: ir.Operation, by: str | None) -> tuple[str, float] | None:
    """Returns what `needless_start` does of a reduction by an op."""
    start = op.operands[1]
    identity = _identity_at(start, by)
    return None if by is None or identity is None or is_constant(start, identity) else (by, identity)


def _identity_at(start: ir.Value[Any], by: str | None) -> float | None:
    """Returns the identity of the op called `by` on elements like `start`, or None."""
    return None if by is None else identity_of(by, ir.RankedTensorType(start.type).element_type)


def _starts_at_identity(start: ir.Value[Any], by: str | None) -> bool:
    identity = _identity_at(start, by)
    return identity is not None and is_constant(start, identity)


def linear_in(op: ir.Operation) -> Linear:
    """Returns the operand sets over which `op` commutes with addition, each jointly and the other operands held."""
    rule = _LINEAR.get(op.name)
    if rule is None or not op.results or not all(_adds(result.type) for result in op.results):
        return ()
    return rule(op)


def _always(*sets: frozenset[int]) -> Callable[[ir.Operation], Linear]:
    return lambda op: sets


def _all_operands(op: ir.Operation) -> Linear:
    return (frozenset(range(len(op.operands))),)


def _exact(op: ir.Operation) -> Linear:
    source, target = (value.type.element_type for value in (op.operands[0], op.results[0]))
    if source == target:
        return (frozenset({0}),)
    both = isinstance(source, ir.FloatType) and isinstance(target, ir.FloatType)
    # Of one width, neither holds the other: bf16 reaches further, f16 is finer.
    return (frozenset({0}),) if both and source.width < target.width else ()


def _float_division(op: ir.Operation) -> Linear:
    return (frozenset({0}),) if isinstance(op.results[0].type.element_type, ir.FloatType | ir.ComplexType) else ()


def _sum(op: ir.Operation) -> Linear:
    return (frozenset({0}),) if reduction_of(op) == "add" else ()


def _zero_padding(op: ir.Operation) -> Linear:
    return (frozenset({0}),) if is_constant(op.operands[1], 0) else ()


def _adding_scatter(op: ir.Operation) -> Linear:
    return (frozenset({0, 2}),) if reduction_of(op) == "add" else ()


_FIRST, _SECOND, _BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})
_RULES: Final[dict[str, Callable[[ir.Operation], Linear]]] = {
    **dict.fromkeys(("add", "subtract", "dynamic_update_slice"), _always(_BOTH)),
    **dict.fromkeys(
        ("negate", "reshape", "transpose", "broadcast_in_dim", "reverse", "slice", "real", "imag", "gather"),
        _always(_FIRST),
    ),
    **dict.fromkeys(("multiply", "dot_general", "dot", "convolution"), _always(_FIRST, _SECOND)),
    "dynamic_slice": _always(_FIRST),
    "select": _always(frozenset({1, 2})),
    "concatenate": _all_operands,
    "convert": _exact,
    "divide": _float_division,
    "reduce": _sum,
    "pad": _zero_padding,
    "scatter": _adding_scatter,
}
_LINEAR: Final = {f"stablehlo.{name}": rule for name, rule in _RULES.items()}


def _adds(kind: ir.Type) -> bool:
    """Says whether `kind` is a group under addition that an all-reduce computes: numbers are, booleans are not."""
    if not isinstance(kind, ir.RankedTensorType):
        return False
    element = kind.element_type
    return isinstance(element, ir.FloatType | ir.ComplexType) or (
        isinstance(element, ir.IntegerType) and element.width > 1
    )


def _body_monoid(op: ir.Operation, by: str | None) -> str | None:
    """Returns the monoid that an op whose region joins its arguments `by` an op is."""
    kind = op.results[0].type
    if by is None or not isinstance(kind, ir.RankedTensorType):
        return None
    if _adds(kind):
        return _BODY_MONOIDS.get(by)
    element = kind.element_type
    return _BOOLEAN_MONOIDS.get(by) if isinstance(element, ir.IntegerType) and element.width == 1 else None


def _body_op(op: ir.Operation, number: int = 0) -> str | None:
    """Returns the one op by which the region of `op` joins its two arguments for result `number`."""
    block = op.regions[0].blocks[0]
    own = {block.arguments[number], block.arguments[len(block.arguments) // 2 + number]}
    made = maker_of(end_of(block).operands[number])
    return made.name if made is not None and set(made.operands) == own else None
