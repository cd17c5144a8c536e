"""What an op can do along one mesh axis: its strategies, and for each how its operands have to lie and how its results may.

A strategy is *replicate* (every device does all of it), *split f* (each device does one block of factor `f` of Shardy's rule) or *partial*
(every device does all of it on operands that are partial sums: legal where the op is linear in them, so that the sum is taken later, or
never). Splitting a reduction factor leaves a partial result. Illegal strategies are not in the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rhino.ir.graph import OpClass
from rhino.ir.rules import Mapping, Rule
from rhino.ir.spec import PARTIAL, REPLICATED, Spec, all_specs, split

REPLICATE = -1
"""Strategy number of *replicate*; *split f* is `f`, *partial* with the k-th linear operand set is `-2 - k`."""


_REPEATS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.broadcast"})


@dataclass(frozen=True, slots=True)
class State:
    """One way to run an op: its strategy, the specs that its operands must have, and those that its results come in.

    `monoid` joins the parts of a partial result ("add", or "max" / "min", which never flow on).
    """

    strategy: int
    needs: tuple[Spec, ...]
    comes: tuple[Spec, ...]
    monoid: str = "add"


def strategy_name(cls: OpClass, strategy: int) -> str:
    """Returns how a strategy is written in the IR: "replicate", the split factor's name, or "partial" and the operands that are sums."""
    if strategy == REPLICATE:
        return "replicate"
    if strategy >= 0:
        assert cls.rule is not None
        return cls.rule.names[strategy]
    return "partial" + "".join(f" {operand}" for operand in sorted(cls.linear[-2 - strategy]))


@lru_cache(maxsize=65536)
def strategies(cls: OpClass, axis_size: int) -> tuple[State, ...]:
    """Returns every strategy of an op of class `cls`; *replicate* first."""
    states = [replicate(cls)]
    if cls.rule is not None:
        states += filter(None, (_split(cls, cls.rule, factor, axis_size) for factor in range(len(cls.rule.sizes))))
        states += filter(None, (_partial(cls, number) for number in range(len(cls.linear))))
    return tuple(states)


def replicate(cls: OpClass) -> State:
    """Returns the state in which every device does all of the op."""
    operands, results = _replicated(len(cls.operands)), _replicated(len(cls.results))
    return State(REPLICATE, operands, results)


def following(cls: OpClass, wanted: Spec, axis_size: int) -> State:
    """Returns how a free op runs for users who all want `wanted`: split, where its rule allows that, or else whole on every device."""
    if cls.name == "stablehlo.iota" and wanted in all_specs(cls.results[0].shape, axis_size) and wanted != REPLICATED:
        return State(wanted - 2, (), (wanted,))  # each device counts from where its block starts
    return next((s for s in strategies(cls, axis_size) if s.strategy >= 0 and s.comes == (wanted,)), replicate(cls))


def _replicated(count: int) -> tuple[Spec, ...]:
    return (REPLICATED,) * count


def _split(cls: OpClass, rule: Rule, factor: int, axis_size: int) -> State | None:
    size = rule.sizes[factor]
    if size < axis_size or size % axis_size or factor in rule.fixed or not rule.is_major(factor):
        return None
    if not any(factor in dim for mapping in rule.operands for dim in mapping) and cls.name not in _REPEATS:
        return None  # a block of a result alone: only what repeats its operand gives the same values for it
    needs = tuple(_spec(mapping, factor) for mapping in rule.operands)
    needs += _replicated(len(cls.operands) - len(needs))  # values captured by a region
    comes = tuple(_spec(mapping, factor) for mapping in rule.results)
    if factor in rule.reduction:
        if cls.reduction is None or len(comes) != 1:
            return None
        return State(factor, needs, (PARTIAL,), cls.reduction)
    if REPLICATED in comes:  # a factor of operands alone that is no reduction: nothing says how its parts combine
        return None
    return State(factor, needs, comes)


def _spec(mapping: Mapping, factor: int) -> Spec:
    return next((split(number) for number, dim in enumerate(mapping) if factor in dim), REPLICATED)


def _partial(cls: OpClass, number: int) -> State | None:
    chosen = cls.linear[number]
    if not cls.results[0].shape or any(not cls.operands[operand].shape for operand in chosen):
        return None  # a scalar's sum is taken where it arises
    needs = tuple(PARTIAL if operand in chosen else REPLICATED for operand in range(len(cls.operands)))
    return State(-2 - number, needs, (PARTIAL,) * len(cls.results))
