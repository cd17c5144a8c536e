"""What an op can do on a mesh: its strategies, and for each how its operands have to lie and how its results may.

Along one axis a strategy is *replicate* (every device does all of it), *split f* (each device does one block of factor
`f` of Shardy's rule) or *partial* (every device does all of it on operands that are partial sums: legal where the op is
linear in them, so that the sum is taken later, or never). Splitting a reduction factor leaves a partial result. A
factor with halos can be split too: each device first gets what its block reads of the others
(`rhino.strategies.cost.halo_exchange`). On
several axes there is one such choice for each, outermost first, on what the choices before it left of the op; along an
axis of size 1 all would be the same, so *replicate* is the only one. Illegal strategies are not in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from rhino.ir.graph.graph import REPEATS, Choices, MemoryKind, OpClass
from rhino.ir.graph.rules import Mapping, Rule
from rhino.ir.graph.spec import PARTIAL, REPLICATED, Spec, at, fits, partial_axes, split, unpack, without_partial

REPLICATE = -1
"""The choice *replicate* along one axis; *split f* is `f`, *partial* with the k-th linear operand set is `-2 - k`."""


@dataclass(frozen=True, slots=True)
class State:
    """One way to run an op: its choice along each axis, the specs its operands need, and the specs its results have.

    `monoid` joins the parts of a partial result ("add", or "max" / "min", which never flow on). `memory` is where an
    argument lies between steps.
    """

    strategy: tuple[int, ...]
    operand_specs: tuple[Spec, ...]
    result_specs: tuple[Spec, ...]
    monoid: str = "add"
    memory: MemoryKind = "device"

    def num_shares(self, sizes: Sequence[int]) -> int:
        """Returns among how many devices the work is shared."""
        return prod(size for size, choice in zip(sizes, self.strategy, strict=True) if choice >= 0)

    def num_even_shares(self, cls: OpClass, sizes: Sequence[int]) -> float:
        """Returns among how many devices the work would be shared if each had as much as the busiest one has.

        What differs along several factors is taken to differ along each by itself.
        """
        shares = float(self.num_shares(sizes))
        for factor, loads in cls.loads:
            parts = prod(size for size, choice in zip(sizes, self.strategy, strict=True) if choice == factor)
            places = len(loads) // parts
            busiest = max(sum(loads[at : at + places]) for at in range(0, len(loads), places))
            shares *= sum(loads) / (busiest * parts)
        return shares


def keeps(strategy: Sequence[int], choices: Choices) -> bool:
    """Says whether a strategy is among what an op may do along each axis."""
    return all(may is None or choice in may for choice, may in zip(strategy, choices, strict=True))


def strategy_name(cls: OpClass, strategy: tuple[int, ...]) -> str:
    """Returns how a strategy is written in the IR, axis by axis.

    It is "replicate", the name of the split factor, or "partial" with the numbers of the operands that are sums.
    """
    return ", ".join(_choice_name(cls, choice) for choice in strategy)


def _choice_name(cls: OpClass, choice: int) -> str:
    if choice == REPLICATE:
        return "replicate"
    if choice >= 0:
        assert cls.rule is not None
        return cls.rule.names[choice]
    return "partial" + "".join(f" {operand}" for operand in sorted(cls.linear[-2 - choice]))


@lru_cache(maxsize=65536)
def strategies(cls: OpClass, sizes: tuple[int, ...], *, over_units: bool = False) -> tuple[State, ...]:
    """Returns every strategy of an op of class `cls` on axes of `sizes`; *replicate* first.

    `over_units` has axes of size 1 split, too: what is split in one part tells what could be in more.
    """
    if cls.fixed_specs is not None:
        return (State((REPLICATE,) * len(sizes), *cls.fixed_specs),)
    states = [replicate(cls, 0)]
    alone = _choices(cls)
    for axis in range(len(sizes)):
        states = [
            longer for state in states for longer in _extended(cls, alone, state, axis, sizes, over_units=over_units)
        ]
    return tuple(states)


def replicate(cls: OpClass, num_axes: int) -> State:
    """Returns the state in which every device does all of the op."""
    operands, results = _replicated(len(cls.operands)), _replicated(len(cls.results))
    return State((REPLICATE,) * num_axes, operands, results)


def reads_halos(cls: OpClass, strategy: Sequence[int]) -> bool:
    """Says whether an op that runs so splits a factor whose blocks read more than the blocks of its operands."""
    return cls.rule is not None and any(halo.factor in strategy for halo in cls.rule.halos)


def following(cls: OpClass, wanted: Spec, sizes: tuple[int, ...]) -> State:
    """Returns how a free op runs for users who all want `wanted`.

    It is split where its rule allows that, and otherwise whole on every device. Only zeros are ever wanted as a partial
    sum: they are one as they are.
    """
    replicated = replicate(cls, len(sizes))
    if wanted == REPLICATED:
        return replicated
    if partial_axes(wanted):
        state = following(cls, without_partial(wanted), sizes)
        sums = wanted - without_partial(wanted)
        return replace(state, result_specs=tuple(Spec(spec | sums) for spec in state.result_specs))
    if cls.name == "stablehlo.iota":  # each device counts from where its block starts
        legal = fits(wanted, cls.results[0].shape, sizes)
        return (
            State(tuple(max(one - 2, REPLICATE) for one in unpack(wanted, len(sizes))), (), (wanted,))
            if legal
            else replicated
        )
    return next(
        (
            s
            for s in strategies(cls, sizes)
            if min(s.strategy) >= REPLICATE and s.result_specs == (wanted,) and not reads_halos(cls, s.strategy)
        ),
        replicated,
    )


def _replicated(count: int) -> tuple[Spec, ...]:
    return (REPLICATED,) * count


def _choices(cls: OpClass) -> tuple[State, ...]:
    """Returns what can be chosen along one axis beside *replicate*, whatever sizes allow.

    Splits come first, factor by factor, then partial sums.
    """
    if cls.rule is None:
        return ()
    splits = (_split(cls, cls.rule, factor) for factor in range(len(cls.rule.sizes)))
    return tuple(
        one for one in (*splits, *(_partial(cls, number) for number in range(len(cls.linear)))) if one is not None
    )


def _extended(
    cls: OpClass, alone: Sequence[State], state: State, axis: int, sizes: tuple[int, ...], *, over_units: bool
) -> Iterator[State]:
    """Yields `state` with each choice along one more axis, of those that `alone` has."""
    yield replace(state, strategy=(*state.strategy, REPLICATE))
    if cls.rule is None or (sizes[axis] == 1 and not over_units):
        return
    rule, left = cls.rule, list(cls.rule.sizes)
    for size, choice in zip(sizes, state.strategy, strict=False):
        if choice >= 0:
            left[choice] //= size
    local = replace(rule, sizes=tuple(left))
    for one in alone:
        factor = one.strategy[0]
        if factor < 0 or (_divides(local, factor, sizes[axis]) and not _clash(rule, factor, state.strategy)):
            yield State(
                (*state.strategy, *one.strategy),
                _with_entries(state.operand_specs, one.operand_specs, axis),
                _with_entries(state.result_specs, one.result_specs, axis),
                one.monoid if one.monoid != "add" else state.monoid,
            )


def _with_entries(specs: tuple[Spec, ...], entries: tuple[Spec, ...], axis: int) -> tuple[Spec, ...]:
    return tuple(Spec(spec | at(one, axis)) for spec, one in zip(specs, entries, strict=True))


def _divides(rule: Rule, factor: int, axis_size: int) -> bool:
    """Says whether an axis divides a factor that leads its dims; `rule` has the sizes that the axes before left."""
    size = rule.sizes[factor]
    return size >= axis_size and size % axis_size == 0 and rule.is_major(factor)


def _clash(rule: Rule, factor: int, strategy: Sequence[int]) -> bool:
    """Says whether an axis before splits another factor that reads a dim which `factor` reads, or leads, too."""
    read = {(halo.operand, halo.dim) for halo in rule.halos if halo.factor == factor}
    return any(
        (halo.operand, halo.dim) in read for halo in rule.halos if halo.factor != factor and halo.factor in strategy
    )


def _split(cls: OpClass, rule: Rule, factor: int) -> State | None:
    """Returns the state that splits a factor along one axis, if an op like this can run so."""
    halos = {halo.operand: split(halo.dim) for halo in rule.halos if halo.factor == factor}
    if factor in rule.fixed and not halos:
        return None
    if not any(factor in dim for mapping in rule.operands for dim in mapping) and cls.name not in REPEATS:
        return None  # a block of a result alone: only what repeats its operand gives the same values for it
    needs = tuple(halos.get(number, _spec(mapping, factor)) for number, mapping in enumerate(rule.operands))
    needs += _replicated(len(cls.operands) - len(needs))  # values captured by a region
    comes = tuple(_spec(mapping, factor) for mapping in rule.results)
    if factor in rule.reduction:
        if cls.reduction is None or len(comes) != 1:
            return None
        return State((factor,), needs, (PARTIAL,), cls.reduction)
    if any(spec == REPLICATED and number not in cls.unread for number, spec in enumerate(comes)):
        return None  # a factor of operands alone that is no reduction: nothing says how its parts combine
    return State((factor,), needs, comes)


def _spec(mapping: Mapping, factor: int) -> Spec:
    return next((split(number) for number, dim in enumerate(mapping) if factor in dim), REPLICATED)


def _partial(cls: OpClass, number: int) -> State | None:
    chosen = cls.linear[number]
    if not cls.results[0].shape or any(not cls.operands[operand].shape for operand in chosen):
        return None  # a scalar's sum is taken where it arises
    needs = tuple(PARTIAL if operand in chosen else REPLICATED for operand in range(len(cls.operands)))
    return State((-2 - number,), needs, (PARTIAL,) * len(cls.results))
