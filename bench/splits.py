"""Which dims of each op's operands and results split among two devices, and why the others do not.

The ops are those of every_op.py, in all their forms. Dims are written `s` where blocks are computed as they are, `h`
where a device first gets what its block reads of others, `a` where only a result is a sum of what devices have, and `-`
where the dim is whole on every device. Ops that the planner reads alike stand in one row. The exit code is 1 where a
dim is whole without a reason, or a reason stands here for a dim that splits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from drawn_plans import drawable
from every_op import CHLO, STABLEHLO, VARIANTS
from report import Options, Question, run

from rhino.ir.graph.graph import FORWARDS_OPERANDS, OpClass
from rhino.ir.graph.spec import partial_axes, split
from rhino.strategies.cost.candidates import State, reads_halos, strategies

CASES: Final = {
    **{f"stablehlo.{name}": case for name, case in (STABLEHLO | VARIANTS).items()},
    **{f"chlo.{name}": case for name, case in CHLO.items()},
}
_WHOLE: Final = "-"
_ALL: Final = "it depends on all elements along the dim"
_UNRULED: Final = "not yet: no sharding rule, and no front end writes it"
REASONS: Final = {
    "stablehlo.batch_norm_grad": "not yet: no sharding rule; front ends write its sums",
    "stablehlo.batch_norm_training": "not yet: no sharding rule; front ends write its sums",
    "stablehlo.bitcast_convert": "the parts of one element",
    "stablehlo.cholesky": "each row needs those before",
    "stablehlo.convolution": "features of one group, of which each device has whole groups",
    "stablehlo.custom_call": "nobody says what it does (`--op-rules` can)",
    "stablehlo.dynamic_slice": "not yet: where it begins is known when it runs",
    "stablehlo.dynamic_update_slice": "not yet: where it begins is known when it runs",
    "stablehlo.einsum": _UNRULED,
    "stablehlo.fft": _ALL,
    "stablehlo.get_dimension_size": "it reads no element",
    "stablehlo.map": _UNRULED,
    "stablehlo.reduce": "not yet: no collective joins by the body, or joins pairs",
    "stablehlo.reduce_window": "windows that pad, and do not start from the identity of one op",
    "stablehlo.reshape": "inside of a block: the outer part of what it came from splits",
    "stablehlo.rng_bit_generator": "not yet: where a block begins in the sequence is the backend's",
    "stablehlo.scatter": "not yet: updates that are not added are written in their order, on one device",
    "stablehlo.select_and_scatter": "not yet: windows that overlap, or are padded",
    "stablehlo.sort": _ALL,
    "stablehlo.torch_index_select": _UNRULED,
    "stablehlo.triangular_solve": "each row needs those before",
}
"""Why a dim of an even size is whole, by op."""
_ODD: Final = "an odd size has no two equal blocks"
_EMPTY: Final = "without elements there are no blocks"


@dataclass(frozen=True, slots=True)
class Row:
    """Ops with the same `pattern` of dims and the same reasons why some are whole.

    `missing` are the ops among them of which a dim is whole without a reason.
    """

    ops: tuple[str, ...]
    pattern: str
    reasons: tuple[str, ...]
    missing: tuple[str, ...] = ()


def rows(options: Options) -> Iterator[Row]:
    """Tell which dims of each op split among two devices, and why the others do not."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, case in CASES.items():
        key = ("refused", ()) if case.refused else _read(name, case.text)
        found.setdefault(key, []).append(name)
    for (pattern, reasons), ops in found.items():
        missing = tuple(ops) if "" in reasons else ()
        yield Row(tuple(ops), pattern, tuple(reason for reason in reasons if reason), missing)


def _read(name: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Returns the pattern of dims of an op in a program, and the reasons why some are whole."""
    program = drawable(text, "2").program
    op = name.partition(":")[0]
    classes = [program.graph.cls(number) for number, made in enumerate(program.ops) if made.name == op]
    if not classes:
        return "as other ops", ()
    cls = classes[0]
    if cls.name in FORWARDS_OPERANDS:
        return "as what it passes on", ()
    if cls.free:
        return "as its readers", ()
    return _pattern(cls), tuple(dict.fromkeys(_reasons(cls)))


def _pattern(cls: OpClass) -> str:
    sides = [
        " ".join(f"[{''.join(_ways(cls, is_result, number))}]" for number in range(len(kinds)))
        for is_result, kinds in ((False, cls.operands), (True, cls.results))
    ]
    return " -> ".join(sides)


def _ways(cls: OpClass, is_result: bool, tensor: int) -> list[str]:
    """Returns how each dim of a tensor of an op splits."""
    kind = (cls.results if is_result else cls.operands)[tensor]
    states = strategies(cls, (2,))
    return [
        _way(cls, [one for one in states if _spec(one, is_result, tensor) == split(dim)])
        for dim in range(len(kind.shape))
    ]


def _spec(state: State, is_result: bool, tensor: int) -> int:
    return (state.result_specs if is_result else state.operand_specs)[tensor]


def _way(cls: OpClass, states: Sequence[State]) -> str:
    """Returns how the op runs in the best of the states that split a dim."""
    alone = [state for state in states if not reads_halos(cls, state.strategy)]
    if any(not any(map(partial_axes, state.result_specs)) for state in alone):
        return "s"
    return "a" if alone else "h" if states else _WHOLE


def _reasons(cls: OpClass) -> Iterator[str]:
    """Yields why each dim is whole that is; "" where nothing says so."""
    for is_result, kinds in ((False, cls.operands), (True, cls.results)):
        for tensor in range(len(kinds)):
            for dim, way in enumerate(_ways(cls, is_result, tensor)):
                if way == _WHOLE:
                    sizes = _sizes(cls, is_result, tensor, dim)
                    odd = _ODD if any(size % 2 for size in sizes) else ""
                    yield (_EMPTY if 0 in sizes else odd) or REASONS.get(cls.name, "")


def _sizes(cls: OpClass, is_result: bool, tensor: int, dim: int) -> set[int]:
    """Returns the sizes of a dim, and of all that would be split with it."""
    kinds = (*cls.operands, *cls.results)
    own = kinds[tensor + is_result * len(cls.operands)].shape[dim]
    if cls.rule is None:
        return {own}
    mappings = (*cls.rule.operands, *cls.rule.results)
    factors = set(mappings[tensor + is_result * len(cls.operands)][dim])
    found = {
        kind.shape[place]
        for kind, mapping in zip(kinds, mappings, strict=True)
        for place, inside in enumerate(mapping)
        if factors & set(inside)
    }
    return {own} | found


def faults(records: Sequence[Row]) -> Iterator[str]:
    """Yields the ops of which a dim is whole without a reason, and reasons that no op needs."""
    for row in records:
        yield from (f"{op}: a dim is whole, and nothing says why" for op in row.missing)
    needed = {reason for row in records for reason in row.reasons}
    yield from (f"{op}: its reason is not needed" for op, reason in REASONS.items() if reason not in needed)


QUESTION: Final = Question(
    str(__doc__),
    rows,
    {
        "op": lambda row: ", ".join(f"`{op.removeprefix('stablehlo.')}`" for op in row.ops),
        "operands and results": lambda row: row.pattern if "[" not in row.pattern else f"`{row.pattern}`",
        "why dims are whole": lambda row: "; ".join(row.reasons),
    },
    text=("operands and results", "why dims are whole"),
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTION, sys.argv[1:]))
