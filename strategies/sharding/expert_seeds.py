"""Plans that experts write down by hand, as constraints on arguments and axes: the search completes each.

    dp          batch split, everything carried from step to step whole on every device
    zero-1      as dp, what only the optimizer keeps is split
    zero-3      as dp, parameters are split too
    tp          no batch dim is split: what is, the search finds (Megatron's columns and rows, experts, classes)
    dp x tp     on two axes, dp or zero-3 along the outer and tp along the inner one

Which arguments are which is read from the graph (`rhino.strategies.structure.axis_roles`), not from names: inputs are
those that a step only reads, parameters those carried ones that meet a batch dim, all other carried ones are the
optimizer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rhino.ir.graph.graph import Graph
from rhino.strategies.structure.axis_roles import Roles

Style = Literal["dp", "zero-1", "zero-3", "tp"]
_DATA: Final[tuple[Style, ...]] = ("dp", "zero-1", "zero-3")
_MODEL: Final[Style] = "tp"

Dims = tuple[tuple[int, ...], ...]
"""For each dim of an argument, the numbers of the axes that split it, outermost first."""


@dataclass(frozen=True, slots=True)
class Seed:
    """An expert's plan: its name, the role of each axis, and how arguments lie, None where the search says.

    The role of an axis is "model" where no batch dim may be split along it, else empty: where the batch and the state
    lie is all that data parallelism asks for.
    """

    name: str
    roles: tuple[str, ...]
    arguments: tuple[Dims | None, ...]


def expert_seeds(graph: Graph, sizes: Sequence[int]) -> Iterator[Seed]:
    """Yields experts' plans for a graph on a mesh of axes of these sizes, outermost first."""
    roles = Roles(graph)
    parameters = _parameters(graph, roles)
    for styles in _styles(len(sizes)):
        dims = tuple(_dims(graph, roles, number, parameters, styles, sizes) for number in range(len(graph.arguments)))
        names = dict.fromkeys(styles)
        yield Seed(" x ".join(names), tuple("model" if style == _MODEL else "" for style in styles), dims)


def _styles(num_axes: int) -> Iterator[tuple[Style, ...]]:
    for style in (*_DATA, _MODEL):
        yield (style,) * num_axes
    for outer in (_DATA[0], _DATA[-1]) if num_axes > 1 else ():
        yield (*((outer,) * (num_axes - 1)), _MODEL)


def _parameters(graph: Graph, roles: Roles) -> frozenset[int]:
    """Returns the carried arguments on which something with a batch dim depends."""
    readers: list[list[int]] = [[] for _ in range(graph.num_values)]
    for op in range(graph.num_ops):
        for value in graph.operands(op).tolist():
            readers[value].append(op)
    found = set()
    for number, argument in enumerate(graph.arguments):
        if argument.alias is None:
            continue
        seen, open_values = {number}, [number]
        while open_values:
            value = open_values.pop()
            if roles.batch_dims(value):
                found.add(number)
                break
            for op in readers[value]:
                for result in graph.results(op):
                    if result not in seen:
                        seen.add(result)
                        open_values.append(result)
    return frozenset(found)


def _dims(
    graph: Graph, roles: Roles, number: int, parameters: frozenset[int], styles: Sequence[Style], sizes: Sequence[int]
) -> Dims | None:
    """Returns how an argument lies: inputs by their batch dim, state by the style of each axis."""
    argument, shape = graph.arguments[number], list(graph.type_of(number).shape)
    dims: list[list[int]] = [[] for _ in shape]
    if argument.alias is None:
        batch = sorted(roles.batch_dims(number))
        if not batch:
            return None
        for axis, style in enumerate(styles):
            if style != "tp" and shape[batch[0]] % sizes[axis] == 0:
                shape[batch[0]] //= sizes[axis]
                dims[batch[0]].append(axis)
        return tuple(map(tuple, dims))
    if "tp" in styles:
        return None
    for axis, style in enumerate(styles):
        splits = style == "zero-3" or (style == "zero-1" and number not in parameters)
        largest = max(range(len(shape)), key=lambda dim: shape[dim] * (shape[dim] % sizes[axis] == 0), default=None)
        if splits and largest is not None and shape[largest] % sizes[axis] == 0:
            shape[largest] //= sizes[axis]
            dims[largest].append(axis)
    return tuple(map(tuple, dims))
