"""Plans that experts write down by hand, as constraints on arguments and axes: the search completes each.

    dp          batch split, everything carried from step to step whole on every device
    zero-1      as dp, what only the optimizer keeps is split
    zero-3      as dp, parameters are split too
    tp          no batch dim is split: what is, the search finds (Megatron's columns and rows, experts, classes)
    megatron    columns and rows of weights split as Megatron splits them, all other arguments whole
    dp x tp     on two axes, dp or zero-3 along the outer and tp or megatron along the inner one

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
from rhino.strategies.structure.columns_and_rows import column_and_row_dims

Style = Literal["dp", "zero-1", "zero-3", "tp", "megatron"]
_DATA: Final[tuple[Style, ...]] = ("dp", "zero-1", "zero-3")
_MODEL: Final[tuple[Style, ...]] = ("tp", "megatron")

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
    experts = _Experts(graph, sizes)
    for styles in _styles(len(sizes)):
        if "megatron" not in styles or experts.columns_and_rows:
            roles = tuple("model" if style == "tp" else "" for style in styles)
            yield Seed(" x ".join(dict.fromkeys(styles)), roles, experts.arguments(styles))


def _styles(num_axes: int) -> Iterator[tuple[Style, ...]]:
    for style in (*_DATA, *_MODEL):
        if num_axes == 1 or style != "megatron":
            yield (style,) * num_axes
    for outer in (_DATA[0], _DATA[-1]) if num_axes > 1 else ():
        for inner in _MODEL:
            yield (*((outer,) * (num_axes - 1)), inner)


class _Experts:
    """What experts read from a graph. Megatron splits along the innermost axis."""

    def __init__(self, graph: Graph, sizes: Sequence[int]) -> None:
        self.graph, self.sizes, self.roles = graph, sizes, Roles(graph)
        self.parameters = _parameters(graph, self.roles)
        self.columns_and_rows = column_and_row_dims(graph, self.roles, sizes[-1])

    def arguments(self, styles: Sequence[Style]) -> tuple[Dims | None, ...]:
        """Returns how arguments lie."""
        return tuple(self._dims(number, styles) for number in range(len(self.graph.arguments)))

    def _dims(self, number: int, styles: Sequence[Style]) -> Dims | None:
        """Returns how an argument lies: inputs by their batch dim, state by the style of each axis."""
        argument, shape = self.graph.arguments[number], list(self.graph.type_of(number).shape)
        if argument.alias is None and not self.roles.batch_dims(number):
            return None
        if argument.alias is not None and "tp" in styles:
            return None
        dims: list[list[int]] = [[] for _ in shape]
        # Megatron's axis comes first: data parallelism takes what is left.
        for axis, style in sorted(enumerate(styles), key=lambda one: (one[1] not in _MODEL, one[0])):
            dim = self._split(number, style, shape, self.sizes[axis])
            if dim is not None and shape[dim] % self.sizes[axis] == 0:
                shape[dim] //= self.sizes[axis]
                dims[dim].append(axis)
        return tuple(tuple(sorted(axes)) for axes in dims)

    def _split(self, number: int, style: Style, shape: Sequence[int], size: int) -> int | None:
        """Returns the dim of an argument that a style splits, of the shape that other axes leave."""
        if self.graph.arguments[number].alias is None:
            return None if style in _MODEL else min(self.roles.batch_dims(number))
        if style == "megatron":
            return self.columns_and_rows.get(number)
        splits = style == "zero-3" or (style == "zero-1" and number not in self.parameters)
        largest = max(range(len(shape)), key=lambda dim: shape[dim] * (shape[dim] % size == 0), default=None)
        return largest if splits else None


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
