"""Sharding rules that users give for custom calls: a TOML file with a table for each target.

    [flash_attention]
    rule = "([i, j, k, l], [i, j, m, l], [i, j, m, l])->([i, j, k, l]) need_replication={k, m}"
    flops = "4 * i * j * k * l * m"
    bytes = "4 * i * j * l * (2 * k + 2 * m)"

The rule is Shardy's text. Sizes of factors may be left out where the shapes of an op say them. `flops`,
`product_flops` (those of them that are in matrix products of the first operand's dtype) and `bytes` are optional, of
the sizes of factors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import add, floordiv, mul, pow, sub, truediv
from typing import Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.request.constraints import read_toml

_RULE: Final = re.compile(
    r"\s*\((?P<operands>[^()]*)\)\s*->\s*\((?P<results>[^()]*)\)\s*(?:\{(?P<sizes>[^{}]*)\})?(?P<groups>[^(){]*(?:\{[^{}]*\}[^(){}]*)*)"
)
_TENSOR: Final = re.compile(r"\[([^\[\]]*)\]")
_FACTOR: Final = re.compile(r"[i-z](?:_\d+)?")
_SIZE: Final = re.compile(r"\s*([i-z](?:_\d+)?)\s*=\s*(\d+)\s*")
_GROUP: Final = re.compile(r"\s*(reduction|need_replication|permutation|blocked_propagation)\s*=\s*\{[^{}]*\}\s*,?")
_OPERATORS: Final = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.FloorDiv: floordiv, ast.Pow: pow}
_MOST: Final = 2.0**63
_COSTS: Final = ("flops", "product_flops", "bytes")
_KEYS: Final = ("rule", *_COSTS)

Factors = tuple[tuple[tuple[str, ...], ...], ...]
"""The factors of each dim of each tensor."""


@dataclass(frozen=True, slots=True)
class OpRule:
    """The rule for one target: factors of operands and results, given sizes, groups of factors as text, and costs."""

    operands: Factors
    results: Factors
    given: tuple[tuple[str, int], ...]
    groups: str
    costs: tuple[tuple[str, ast.expr], ...]

    def fitted(self, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Returns the size of every factor, for an op with operands and results of these shapes.

        Raises:
            ValueError: where the shapes are others than the rule's, or do not say the size of a factor.
        """
        sizes = dict(self.given)
        dims = []
        for word, mappings, shapes in (("operand", self.operands, operands), ("result", self.results, results)):
            if len(mappings) != len(shapes):
                raise ValueError(f"the rule has {len(mappings)} {word}s, and the op {len(shapes)}")
            for number, (mapping, shape) in enumerate(zip(mappings, shapes, strict=True)):
                if len(mapping) != len(shape):
                    raise ValueError(f"{word} {number} has {len(mapping)} dims in the rule, and {len(shape)} in the op")
                dims += [(f"{word} {number} dim {dim}", factors, shape[dim]) for dim, factors in enumerate(mapping)]
        for _ in range(len(dims)):
            for _, factors, extent in dims:
                unknown = [factor for factor in factors if factor not in sizes]
                known = prod(sizes[factor] for factor in factors if factor in sizes)
                if len(unknown) == 1 and known and extent % known == 0:
                    sizes[unknown[0]] = extent // known
        for place, factors, extent in dims:
            if missing := [factor for factor in factors if factor not in sizes]:
                raise ValueError(
                    f"the size of factor {missing[0]} does not follow from the op's shapes: write {{{missing[0]}=SIZE}}"
                )
            if prod(sizes[factor] for factor in factors) != extent:
                got = " x ".join(f"{factor}={sizes[factor]}" for factor in factors) or "1"
                raise ValueError(f"{place} has size {extent} in the op, and {got} in the rule")
        return sizes

    def text(self, sizes: Mapping[str, int]) -> str:
        """Returns Shardy's attribute for factors of these sizes, marked as its op's owner's."""
        sides = [
            "(" + ", ".join(_tensor_text(mapping) for mapping in side) + ")" for side in (self.operands, self.results)
        ]
        order = sorted(sizes, key=_position)
        listed = ", ".join(f"{factor}={sizes[factor]}" for factor in order)
        groups = f" {self.groups}" if self.groups else ""
        return f"#sdy.op_sharding_rule<{'->'.join(sides)} {{{listed}}}{groups}, custom>"

    def cost(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Returns "flops", "product_flops" and "bytes", as far as they are given.

        Raises ValueError where one cannot be computed.
        """
        return {key: _value(expression, key, sizes) for key, expression in self.costs}


def read_op_rules(file: str) -> dict[str, OpRule]:
    """Returns the rules of a TOML file, by target. Raises RHI-CLI-002 where it cannot be read, RHI-RULE-001."""
    rules = {}
    for target, row in read_toml(file, "RHI-RULE-001").items():
        try:
            rules[target] = _op_rule(row)
        except ValueError as error:
            raise RhinoError(
                "RHI-RULE-001", f"[{target}]: {error}", Place(file), fix="see docs/constraints.md"
            ) from None
    return rules


def _op_rule(row: object) -> OpRule:
    if not isinstance(row, dict) or "rule" not in row:
        raise ValueError("expected a table with a rule")
    for key, value in row.items():
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(_KEYS)}")
        if not isinstance(value, str):
            raise ValueError(f"got {key} = {value!r}, expected text")
    match = _RULE.fullmatch(row["rule"])
    if match is None or _GROUP.sub("", match["groups"]).strip(" ,"):
        raise ValueError(
            f"got rule {row['rule']!r}, expected ([i, j], [j, k])->([i, k]), "
            "then sizes and groups as Shardy writes them"
        )
    sizes = [_SIZE.fullmatch(part) for part in (match["sizes"] or "").split(",") if part.strip()]
    if not all(sizes):
        raise ValueError(f"got sizes {{{match['sizes']}}}, expected {{i=8, j=4}}")
    costs = tuple((key, _expression(key, row[key])) for key in _COSTS if key in row)
    given = tuple((size[1], int(size[2])) for size in sizes if size)
    return OpRule(_factors(match["operands"]), _factors(match["results"]), given, match["groups"].strip(" ,"), costs)


def _factors(text: str) -> Factors:
    tensors = tuple(
        tuple(_dim(dim) for dim in tensor.split(",")) if tensor.strip() else () for tensor in _TENSOR.findall(text)
    )
    if _TENSOR.sub("", text).strip(" ,"):
        raise ValueError(f"got ({text}), expected tensors as [i, jk]")
    return tensors


def _dim(text: str) -> tuple[str, ...]:
    if _FACTOR.sub("", text).strip() or not text.strip():
        raise ValueError(f"got dim {text.strip()!r}, expected factors named i to z, z_1, ...")
    return tuple(_FACTOR.findall(text))


def _tensor_text(mapping: tuple[tuple[str, ...], ...]) -> str:
    return "[" + ", ".join("".join(factors) for factors in mapping) + "]"


def _position(factor: str) -> tuple[str, int]:
    letter, _, number = factor.partition("_")
    return letter, int(number or 0)


def _expression(key: str, text: str) -> ast.expr:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"got {key} = {text!r}, expected sums and products of factors") from None
    _value(body, key, {node.id: 1 for node in ast.walk(body) if isinstance(node, ast.Name)})
    return body


def _value(expression: ast.expr, key: str, sizes: Mapping[str, int]) -> int:
    def of(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as value):
                return float(value)
            case ast.Name(id=name) if name in sizes:
                return float(sizes[name])
            case ast.Name(id=name):
                raise ValueError(f"{key} speaks of {name}, which is no factor of the rule")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return float(_OPERATORS[type(op)](of(left), of(right)))
        raise ValueError(f"{key}: {ast.unparse(node)!r} is no sum or product of factors")

    try:
        value = of(expression)
    except (OverflowError, ZeroDivisionError):
        value = -1.0
    if not 0 <= value < _MOST:
        raise ValueError(f"{key} is no number from 0 to 2^63 for factors {dict(sizes)}")
    return int(value)
