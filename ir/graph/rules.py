"""Shardy's sharding rule of an op as a table of factors.

A rule such as `([i, j, l], [l, k])->([i, j, k]) {i=8, j=32, k=64, l=64} reduction={l}` names, for every dim of every
operand and result, the factors that it is made of, most significant first. Op semantics are Shardy's; nothing about
single ops is written down here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from math import gcd, prod

from rhino.ir.graph.halos import Halo

RULE = "sdy.sharding_rule"
_FACTOR = re.compile(r"[i-z](?:_\d+)?")
_TENSOR = re.compile(r"\[([^\]]*)\]")
_SIZE = re.compile(r"([i-z](?:_\d+)?)=(\d+)")

Mapping = tuple[tuple[int, ...], ...]
"""Factors of each dim of one tensor."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of one op. `operands[t][d]` and `results[t][d]` list the factors of dim `d` of tensor `t`."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    operands: tuple[Mapping, ...]
    results: tuple[Mapping, ...]
    reduction: frozenset[int]
    fixed: frozenset[int]
    """Factors that cannot be split without moving data: Shardy's `need_replication` and `permutation`."""
    halos: tuple[Halo, ...] = ()
    """What blocks of some of the fixed factors read: the factors can be split if each device gets that."""

    def factors_of(self, operand: int) -> frozenset[int]:
        """Returns the factors that an operand has."""
        return frozenset(factor for dim in self.operands[operand] for factor in dim)

    def with_fixed(self, factors: frozenset[int]) -> Rule:
        """Returns the rule in which `factors` cannot be split either."""
        return replace(self, fixed=self.fixed | factors)

    def with_halos(self, halos: Iterable[Halo]) -> Rule:
        """Returns the rule in which the factors of `halos` can be split where each device gets what its block reads.

        Their sizes become such that what divides them divides every dim that they are in. A factor whose blocks would
        not read alike stays as it is.
        """
        given = sorted(halos, key=lambda halo: halo.factor)
        sizes, kept = list(self.sizes), list[Halo]()
        for factor, found in groupby(given, lambda halo: halo.factor):
            own = list(found)
            parts = gcd(*(halo.most_parts for halo in own))
            if parts > 1:
                sizes[factor] = parts
                kept += own
        kept.sort(key=lambda halo: (halo.operand, halo.dim, halo.factor))
        fixed = self.fixed | {halo.factor for halo in given}
        return replace(self, sizes=tuple(sizes), fixed=fixed, halos=tuple(kept))

    def with_free(self, factors: frozenset[int]) -> Rule:
        """Returns the rule in which `factors` can be split."""
        return replace(self, fixed=self.fixed - factors)

    def is_major(self, factor: int) -> bool:
        """Says whether splitting `factor` splits every dim that it is in: no factor of size > 1 is before it there."""
        for mapping in (*self.operands, *self.results):
            for dim in mapping:
                if factor in dim and any(self.sizes[other] > 1 for other in dim[: dim.index(factor)]):
                    return False
        return True


@cache
def parse_rule(text: str) -> Rule:
    """Returns the table for the text of an `#sdy.op_sharding_rule`."""
    body = text[text.index("<") + 1 : text.rindex(">")]
    left, _, right = body.partition("->")
    names = tuple(name for name, _ in _SIZE.findall(right))
    index = {name: number for number, name in enumerate(names)}
    tensors, _, tail = right.partition("{")

    def mappings(part: str) -> tuple[Mapping, ...]:
        return tuple(
            tuple(tuple(index[name] for name in _FACTOR.findall(dim)) for dim in tensor.split(",") if dim.strip())
            for tensor in _TENSOR.findall(part)
        )

    def group(word: str) -> frozenset[int]:
        found = re.search(word + r"=\{([^}]*)\}", tail)
        return frozenset(index[name] for name in _FACTOR.findall(found.group(1))) if found else frozenset()

    sizes = tuple(int(size) for _, size in _SIZE.findall(right))
    return Rule(
        names,
        sizes,
        mappings(left),
        mappings(tensors),
        group("reduction"),
        group("need_replication") | group("permutation"),
    )


def resized_rule(text: str, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> str | None:
    """Returns the text of a rule for operands and results of which some dims are in equal parts; None if it has none.

    A dim in parts has its most significant factor in parts.
    """
    rule = parse_rule(text)
    sizes = dict(enumerate(rule.sizes))
    sides = zip((*rule.operands, *rule.results), (*operands, *results), strict=True)
    dims = [(factors, extent) for mapping, shape in sides for factors, extent in zip(mapping, shape, strict=True)]
    for factors, extent in dims:
        whole = prod(sizes[factor] for factor in factors)
        major = next((factor for factor in factors if rule.sizes[factor] > 1), None)
        if extent and major is not None and whole != extent and whole % extent == 0:
            parts = whole // extent
            sizes[major] = -(-sizes[major] // parts)
    if any(prod(sizes[factor] for factor in factors) != extent for factors, extent in dims):
        return None
    named = {rule.names[factor]: size for factor, size in sizes.items()}
    return _SIZE.sub(lambda found: f"{found[1]}={named[found[1]]}", text)


def elementwise_rule(shape: tuple[int, ...]) -> Rule:
    """Returns the rule of an op with one operand and one result of `shape`, element by element."""
    names = tuple(factor_name(index) for index in range(len(shape)))
    mapping = tuple((index,) for index in range(len(shape)))
    return Rule(names, shape, (mapping,), (mapping,), frozenset(), frozenset())


def factor_name(index: int) -> str:
    """Returns Shardy's name of factor number `index`: i, j, ..., z, z_1, z_2, ..."""
    return chr(ord("i") + index) if index < 18 else f"z_{index - 17}"


def owned_rule(
    operands: Sequence[Sequence[Sequence[tuple[Hashable, int]]]],
    results: Sequence[Sequence[Sequence[tuple[Hashable, int]]]],
    free: Container[Hashable],
) -> tuple[str, dict[Hashable, str]]:
    """Returns Shardy's attribute for an op, marked as its owner's: blocks along `free` factors give blocks.

    For each dim of each tensor, its factors stand with their sizes, the most significant first. What names a factor is
    as one likes; what Shardy calls it is returned too.
    """
    names, sizes = dict[Hashable, str](), list[str]()

    def name(key: Hashable, size: int) -> str:
        if key not in names:
            names[key] = factor_name(len(names))
            sizes.append(f"{names[key]}={size}")
        return names[key]

    def text(side: Sequence[Sequence[Sequence[tuple[Hashable, int]]]]) -> str:
        tensors = [", ".join("".join(name(*factor) for factor in _needed(dim)) for dim in tensor) for tensor in side]
        return "(" + ", ".join(f"[{tensor}]" for tensor in tensors) + ")"

    sides = f"{text(operands)}->{text(results)}"
    fixed = ", ".join(name for key, name in names.items() if key not in free)
    groups = f" need_replication={{{fixed}}}" if fixed else ""
    return f"#sdy.op_sharding_rule<{sides} {{{', '.join(sizes)}}}{groups}, custom>", names


def _needed(dim: Sequence[tuple[Hashable, int]]) -> Sequence[tuple[Hashable, int]]:
    """Returns a dim's factors without those of size 1, which Shardy takes alone and not beside others."""
    return [factor for factor in dim if factor[1] > 1] or dim[:1]


@dataclass(frozen=True, slots=True)
class CallWork:
    """The work of a custom call: `flops` counts all operations, `product_flops` those in products of `product_dtype`.

    `bytes` go between the memories of a device.
    """

    flops: float
    product_flops: float
    product_dtype: str
    bytes: float

    @property
    def costs(self) -> dict[str, int]:
        """The figures, by their names in files of rules."""
        costs = {"flops": round(self.flops), "bytes": round(self.bytes)}
        return costs | {"product_flops": round(self.product_flops)} if self.product_flops else costs


@dataclass(frozen=True, slots=True)
class CallRule:
    """What a custom call shows of itself: `text` is Shardy's rule, `work` is that of the whole op.

    `loads` has, for a factor along which the work is not spread evenly, the operations at each place.
    """

    text: str
    work: CallWork
    loads: tuple[tuple[str, tuple[int, ...]], ...] = ()
