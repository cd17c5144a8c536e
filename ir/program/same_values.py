"""Which values of a program are one computation that it does more than once.

A front end computes a value again behind an `optimization_barrier`, which keeps a compiler from joining the two: what
`jax.checkpoint` recomputes for the backward pass is what the forward pass has computed. Here they are one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Iterator, MutableMapping
from itertools import count
from typing import Any, Final

from rhino.ir.graph.graph import BARRIER
from rhino.ir.mlir.bindings import ir
from rhino.ir.program.program import Program

_RANDOM: Final = "stablehlo.rng"
"""Gives other numbers each time, on the same operands."""

Key = tuple[Hashable, ...]
Numbers = MutableMapping[ir.Value[Any], int]


def same_values(program: Program) -> list[int]:
    """Returns a number for each value of a program [values]; those that are one computation have the same.

    What a loop gives, and what is computed in its body of what it carries, is taken to be one computation with nothing
    else.
    """
    graph, fresh = program.graph, count()
    found = [next(fresh) for _ in graph.arguments]
    known: dict[Key, list[int]] = {}
    numbers: Numbers = dict(zip(program.entry.arguments, found, strict=True))
    loops = {loop.op for loop in graph.loops}
    for number, op in enumerate(program.ops):
        reads = [found[value] for value in graph.operands(number).tolist()]
        results = graph.results(number)
        if graph.cls(number).name == BARRIER:
            gives = reads
        elif number in loops or op.name == _RANDOM:
            gives = [next(fresh) for _ in results]
        else:
            key = (*_key(op, numbers, count(-1, -1)), *reads)
            gives = known.setdefault(key, [next(fresh) for _ in results])
        found += gives
        numbers.update(zip(op.results, gives, strict=False))
    return found


def _key(op: ir.Operation, numbers: Numbers, fresh: Iterator[int]) -> Key:
    """Returns what an op does to its operands.

    `numbers` are those of the values around its regions; values inside get `fresh` ones, below zero.
    """
    attributes = tuple((name, op.attributes[name]) for name in sorted(op.attributes))
    inside = tuple(_region_key(region, numbers, fresh) for region in op.regions)
    return (op.name, attributes, tuple(one.type for one in op.results), inside)


def _region_key(region: ir.Region, outside: Numbers, fresh: Iterator[int]) -> Key:
    own = dict[ir.Value[Any], int]()
    around = ChainMap(own, outside)  # which is as long as the program
    keys: list[Hashable] = []
    for block in region.blocks:
        keys.append(tuple(one.type for one in block.arguments))
        own.update((one, next(fresh)) for one in block.arguments)
        for view in block.operations:
            op = view.operation
            keys.append((*_key(op, around, fresh), *(around.get(one, one) for one in op.operands)))
            own.update((one, next(fresh)) for one in op.results)
    return tuple(keys)
