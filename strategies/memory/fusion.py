"""Which values of a device's program lie in memory: those that compilers do not compute inside all that reads them.

Ops element by element, moves of elements and reductions are kernels that take in what they read, and what that reads.
What somebody reads from memory lies there: a product, a collective, a loop. What several kernels read is computed in
each of them where the compiler thinks that it is cheap:

- "cheap", of XLA:CPU (`InstructionFusion`): a costly op is not, a pad is not, nor is what a reduction reads. Division
  by what is broadcast is cheap, for it is multiplication by the inverse.
- "products", of XLA:TPU: costly ops are recomputed, for reductions too. Kernels hold products and convolutions, too,
  one each, with what the product reads and what reads it: of a GELU between two products one tensor lies in memory, not
  two (libtpu 0.0.51: steps of products of random sizes, 2026-11-24; softmax and its gradient, 2026-11-26).
- "all", of XLA:GPU (`PriorityFusion`): everything, as far as fewer bytes are moved so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools
from rhino.ir.graph.graph import BARRIER, COSTLY, PART_UPDATE, REDUCE, REPEATS, Graph, OpClass
from rhino.strategies.cost.cost_model import PRODUCTS
from rhino.strategies.cost.target import Fusion

_MOST_KERNELS: Final = 64
"""What more kernels would compute lies in memory."""

_PAD: Final = "stablehlo.pad"
_ONCE: Final[Mapping[Fusion, Set[str]]] = {"cheap": COSTLY | {_PAD}, "products": {_PAD}, "all": set()}
_ALSO: Final[Mapping[Fusion, Set[str]]] = {"cheap": set(), "products": set(), "all": {"stablehlo.gather"}}
"""What is computed element by element beside ops that are so everywhere: of a gather, an element is looked up."""

_DIVIDE: Final = "stablehlo.divide"


def in_memory(
    graph: Graph, stored: Collection[int], fusion: Fusion, *, by_bytes: bool = False, inside: Bools | None = None
) -> list[bool]:
    """Returns which values lie in memory [values]; `stored` are some that do for reasons of their own.

    With `inside` [ops], the program has these ops alone, and its arguments are what it does not compute.

    A view of what lies in memory lies there, and is none by itself. `by_bytes` says that several kernels compute only
    that for which they read no more than it takes to store it, as `PriorityFusion` does: of layers that are added to a
    residual stream each sum lies in memory, and is not added up from all before it in each kernel behind it.
    """
    found = [True] * graph.num_values
    from_memory = {*graph.returns, *stored}
    kernels: list[set[int]] = [set() for _ in found]
    """By value, the kernels that compute what reads it."""
    products = set[int]()
    """Kernels with a product in them."""
    multiplied = set[int]()
    """What products read in memory, and what that is a view of: for products there is one layout."""
    ops = range(graph.num_ops) if inside is None else np.flatnonzero(inside).tolist()
    for op in reversed(ops):
        cls, results = graph.cls(op), graph.results(op)
        own = {op}
        is_product = fusion == "products" and cls.name in PRODUCTS
        is_kernel = _is_kernel(cls, fusion)
        if len(results) == 1 and is_kernel and results.start not in from_memory:
            read_by = kernels[results.start]
            if is_product:
                is_inside = len(read_by) == 1 and not read_by & products
            else:
                may_be = _is_repeated(graph, op, read_by, fusion) and (
                    not by_bytes or _saves_bytes(graph, op, len(read_by))
                )
                is_inside = cls.free or len(read_by) <= 1 or may_be
            if is_inside:
                found[results.start] = False
                own = read_by
        if is_product:
            products |= own
        for position, value in enumerate(graph.operands(op).tolist()):
            if takes_in(cls, position, fusion):
                kernels[value] |= own
            else:
                from_memory.add(value)
        if fusion == "all" and (cls.name in PRODUCTS or (cls.is_view and multiplied.intersection(results))):
            multiplied.update(graph.operands(op).tolist())
            from_memory.update(graph.operands(op).tolist())
    views, returned = set[int](), set(graph.returns)
    for op in ops:
        if graph.cls(op).is_view:
            for value, operand in zip(graph.results(op), graph.operands(op).tolist(), strict=True):
                if found[value] and value not in returned and (found[operand] or operand in views):
                    found[value] = False
                    views.add(value)
    return found


def takes_in(cls: OpClass, position: int, fusion: Fusion) -> bool:
    """Says whether an op may compute an operand inside its kernel, and need not read it from memory."""
    part = cls.name == PART_UPDATE and position == 1
    return cls.name != BARRIER and (_is_kernel(cls, fusion) or cls.name == REDUCE or part)


def _is_kernel(cls: OpClass, fusion: Fusion) -> bool:
    is_product = fusion == "products" and cls.name in PRODUCTS
    return cls.fusible or cls.is_view or is_product or cls.name in _ALSO[fusion]


def is_cheap(name: str, fusion: Fusion) -> bool:
    """Says whether ops of a name are duplicated into each kernel that reads them."""
    return name not in _ONCE[fusion]


def _is_repeated(graph: Graph, op: int, kernels: Collection[int], fusion: Fusion) -> bool:
    """Says whether an op is computed in each of several kernels."""
    if len(kernels) > _MOST_KERNELS:
        return False
    name = graph.cls(op).name
    cheap = is_cheap(name, fusion) or (name == _DIVIDE and _is_broadcast(graph, int(graph.operands(op)[1])))
    return cheap and (fusion != "cheap" or not any(graph.cls(kernel).name == REDUCE for kernel in kernels))


def _saves_bytes(graph: Graph, op: int, num_kernels: int) -> bool:
    """Says whether kernels that compute an op read no more than it takes to compute it once, store it and read that."""
    read = sum([_bytes_read(graph, value) for value in dict.fromkeys(graph.operands(op).tolist())])
    stored = graph.type_of(graph.results(op).start).num_bytes
    return num_kernels * read <= read + stored + num_kernels * stored


def _bytes_read(graph: Graph, value: int) -> int:
    """Returns the bytes of a value, or of what it repeats; none of what depends on constants alone."""
    op = int(graph.value_op[value])
    if op < 0:
        return graph.type_of(value).num_bytes
    cls = graph.cls(op)
    if cls.name in REPEATS:
        return _bytes_read(graph, int(graph.operands(op)[0]))
    return 0 if cls.free else graph.type_of(value).num_bytes


def _is_broadcast(graph: Graph, value: int) -> bool:
    """Says whether a value is broadcast, or depends on constants alone."""
    op = int(graph.value_op[value])
    if op < 0:
        return False
    cls = graph.cls(op)
    viewed = cls.is_view and cls.name != BARRIER and _is_broadcast(graph, int(graph.operands(op)[0]))
    return cls.free or viewed or (cls.name in REPEATS and not cls.is_view)
