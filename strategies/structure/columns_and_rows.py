"""Which dims of weights Megatron splits: the columns of one product's weight, and the rows of the next one's.

What is computed between the two is split alike, without a collective: attention by heads, say. It is read from the
graph, and from no name. Dims that become each other are one *group* (`rhino.strategies.structure.axis_roles`). A
product takes an activation, which has a batch dim, and a weight, which has none. A group is split if the first product
that has it as a factor of its weight makes it: its weight has it, and its activation has not. So the dims that
residuals have, which a product contracts first, stay whole, and so do those of inputs. No tensor is split twice: of two
groups on one weight, the one that is made first is split. The classes of a last layer are made, too, and are split.
Tables that rows are looked up in stay whole, unless they are weights too.

Source    Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from rhino.ir.graph.graph import Graph
from rhino.strategies.structure.axis_roles import Roles

_PRODUCTS: Final = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
_LOOK_UP: Final = "stablehlo.gather"


def column_and_row_dims(graph: Graph, roles: Roles, size: int) -> dict[int, int]:
    """Returns which dim of which argument is split by an axis of `size` devices, for those that have one."""
    dims = defaultdict[int, list[tuple[int, int]]](list)
    for number, argument in enumerate(graph.arguments):
        for dim, place in enumerate(roles.dims(number)) if argument.alias is not None else ():
            dims[roles.group[place]].append((number, dim))
    whole, tables = _indivisible(graph, roles, size), _tables(graph, roles)
    found: dict[int, int] = {}
    for group in _made_first(graph, roles):
        arguments = [number for number, _ in dims[group]]
        if group not in whole and len(set(arguments)) == len(arguments) and not any(one in found for one in arguments):
            found |= {number: dim for number, dim in dims[group] if _groups(roles, number) not in tables}
    return found


def _made_first(graph: Graph, roles: Roles) -> Iterator[int]:
    """Yields the groups that a product with a weight makes before one contracts them, in the program's order."""
    seen: set[int] = set()
    for op in range(graph.num_ops):
        cls = graph.cls(op)
        if cls.name not in _PRODUCTS or cls.rule is None:
            continue
        lhs, rhs = graph.operands(op).tolist()[:2]
        if bool(roles.batch_dims(lhs)) == bool(roles.batch_dims(rhs)):
            continue  # two activations, or two weights
        weight = 1 if roles.batch_dims(lhs) else 0
        activation = cls.rule.factors_of(1 - weight)
        for factor, places in enumerate(roles.places(op, cls.rule)):
            group = roles.group[places[0]] if places else None
            if group is None or factor not in cls.rule.factors_of(weight) or group in seen:
                continue
            seen.add(group)
            if factor not in activation and factor not in cls.rule.reduction:
                yield group


def _tables(graph: Graph, roles: Roles) -> frozenset[frozenset[int]]:
    """Returns the groups of each tensor that rows are looked up in, and that no product takes."""
    read = {name: set[frozenset[int]]() for name in (*_PRODUCTS, _LOOK_UP)}
    for op in range(graph.num_ops):
        name, operands = graph.cls(op).name, graph.operands(op).tolist()
        if name in read:
            read[name].update(_groups(roles, one) for one in operands[: 1 if name == _LOOK_UP else 2])
    return frozenset(read.pop(_LOOK_UP).difference(*read.values()))


def _groups(roles: Roles, value: int) -> frozenset[int]:
    return frozenset(roles.group[place] for place in roles.dims(value))


def _indivisible(graph: Graph, roles: Roles, size: int) -> frozenset[int]:
    """Returns the groups that cannot be split by an axis at some op."""
    found: set[int] = set()
    for op in range(graph.num_ops):
        rule = graph.cls(op).rule
        if rule is not None and any(extent % size for extent in rule.sizes):
            places = roles.places(op, rule)
            found.update(
                roles.group[one[0]] for extent, one in zip(rule.sizes, places, strict=True) if extent % size and one
            )
    return frozenset(found)
