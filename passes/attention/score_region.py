"""Attention in a program: the ops that compute a number for each query and each key, found by what they read.

A softmax begins with the largest number of each row; what that is taken of goes back, through ops that compute each
element by itself, to a product with the queries on one side and the keys on the other. From there the region is all
that is computed of the product as long as it has a number for each query and key, forward and backward pass alike, and
what these ops read that has so too: masks, dropout, the product of gradients and values. It ends where queries or keys
are summed over. Names play no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from rhino.ir.graph.graph import REDUCE, WHILE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of
from rhino.ir.program.identity import is_uniform
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import FUSIBLE, SOURCES, reduction_of
from rhino.passes.attention.score_dims import At, OpDims, dims_of

Value = ir.Value[Any]

DOT: Final = "stablehlo.dot_general"
CONSTANT: Final = "stablehlo.constant"
BROADCAST: Final = "stablehlo.broadcast_in_dim"
CONCATENATE: Final = "stablehlo.concatenate"
CONVERT: Final = "stablehlo.convert"
RESHAPE: Final = "stablehlo.reshape"
TRANSPOSE: Final = "stablehlo.transpose"
EXPONENTIAL: Final = "stablehlo.exponential"
SHIFTING: Final = frozenset(f"stablehlo.{name}" for name in ("slice", "pad", "concatenate", "reverse", "dynamic_slice"))
_BLOCKWISE: Final = FUSIBLE - SHIFTING
"""Ops beside products that give each block of queries and keys from the blocks that they read."""


class Refused(Exception):  # noqa: N818 - no fault: why attention stays as it is
    """Why a region is not rewritten, and the op at which that is."""

    def __init__(self, op: ir.Operation, reason: str) -> None:
        super().__init__(reason)
        self.op, self.reason = op, reason


@dataclass(eq=False)
class Region:
    """The ops in a block with a number for each query and key.

    `top` takes the largest number of each row, `num_queries` and `num_keys` are how many there are. `at` has the dims
    of each value inside, and `ops` what computes them, in the order of the block; loops among them, which compute
    random bits, have values of their own in `at`. `stored` are values of the kind that come from elsewhere, and `given`
    those that go there: they have fewer numbers than the scores, as the gradient of a bias, or with `gives_all` as many
    as they like. `ends` are the ops that sum over queries, keys or both. What stands around the block, and is cheap, is
    computed inside too.
    """

    block: ir.Block
    top: ir.Operation
    gives_all: bool = False
    num_queries: int = 0
    num_keys: int = 0
    at: dict[Value, At] = field(default_factory=dict)
    ops: dict[ir.Operation, None] = field(default_factory=dict)
    stored: dict[Value, At] = field(default_factory=dict)
    given: dict[Value, At] = field(default_factory=dict)
    ends: dict[ir.Operation, OpDims] = field(default_factory=dict)
    dims: dict[ir.Operation, OpDims] = field(default_factory=dict)
    product: ir.Operation = field(init=False)
    around: set[ir.Block] = field(init=False)
    """The block and those that it stands in."""

    def __post_init__(self) -> None:
        self.around, op = {self.block}, self.block.owner.operation
        while op.parent is not None and op.name == WHILE:
            self.around.add(op.block)
            op = op.parent

    @property
    def is_softmax(self) -> bool:
        """Whether exponentials are taken inside."""
        return any(op.name == EXPONENTIAL for op in self.ops)

    def read(self) -> None:
        """Finds the region. Raises Refused where it cannot be computed in blocks."""
        scores, key = self.top.operands[0], self._reduced_dim()
        product, query = _product_of(scores, key, self.block)
        if product is None or query is None:
            raise Refused(
                product or self.top, "its largest numbers are taken over what is no product of queries and keys"
            )
        self.product = product
        self.num_queries, self.num_keys = shape_of(scores)[query], shape_of(scores)[key]
        self._pull(scores, At(query, key))
        waiting, followed = [product.results[0]], set[Value]()
        while waiting:
            value = waiting.pop()
            if value not in followed:
                followed.add(value)
                waiting += self._readers(value)

    def _reduced_dim(self) -> int:
        (dim,) = ir.DenseI64ArrayAttr(self.top.attributes["dimensions"])
        return int(dim)

    def _readers(self, value: Value) -> Iterator[Value]:
        """Takes in the readers of a value; gives what these compute that is inside."""
        for use in list(value.uses):
            op = use.owner.operation
            if op in self.dims:
                yield from () if op in self.ends else op.results
                continue
            found = self._dims_of_reader(op, value, use.operand_number)
            if found is None:
                self._give(value, op)
            elif found.results[0].is_score:
                self._enter(op, found)
                yield op.results[0]
            else:
                self.dims[op] = self.ends[op] = found
                self._pull_operands(op, found)

    def _dims_of_reader(self, op: ir.Operation, value: Value, operand: int) -> OpDims | None:
        """Returns the dims around a reader that is inside, or sums up; None for others."""
        known = op.name in _BLOCKWISE or op.name in (DOT, REDUCE)
        if op.block != self.block or not known or len(op.results) != 1:
            return None
        found = dims_of(op, at=self.at[value], operand=operand)
        is_sum = op.name == DOT or (op.name == REDUCE and reduction_of(op) is not None)
        return found if found is not None and (found.results[0].is_score or is_sum) else None

    def _give(self, value: Value, op: ir.Operation) -> None:
        """Notes that a value is read outside, where it takes less than the scores."""
        if not self.gives_all and prod(shape_of(value)) >= prod(shape_of(self.product.results[0])):
            name = "what comes after" if op == end_of(self.block) else f"'{op.name}'"
            raise Refused(op, f"{name} reads all of them, so they are stored")
        self.given[value] = self.at[value]

    def set_ends(self) -> None:
        """Puts an end of the region between each value that is given and its readers outside."""
        for value, at in self.given.items():
            made = maker_of(value)
            assert made is not None
            readers = [use for use in value.uses if not self._is_inside(use.owner.operation)]
            with ir.InsertionPoint.after(made), made.location:
                end = stablehlo.ConvertOp(value.type, value)
            for use in readers:
                use.owner.operands[use.operand_number] = end.result
            self.dims[end.operation] = self.ends[end.operation] = OpDims((at,), (at,))
        self.given = {}

    def stays(self, refused: Refused) -> str:
        """Returns that the softmax is not rewritten, and why, in words."""
        return f"a softmax of {self.num_queries} x {self.num_keys} numbers stays as it is: {refused.reason}"

    def concatenations(self) -> dict[ir.Operation, None]:
        """Returns the ops that concatenate a value that is given, along its keys, with other columns."""
        readers = [(use.owner.operation, at) for value, at in self.given.items() for use in value.uses]
        return {op: None for op, at in readers if op.name == CONCATENATE and concatenated_dim(op) == at.key}

    def _is_inside(self, op: ir.Operation) -> bool:
        while op not in self.dims and op.block != self.block and op.parent is not None:
            op = op.parent
        return op in self.dims

    def _enter(self, op: ir.Operation, found: OpDims) -> None:
        self.dims[op], self.ops[op] = found, None
        for value, at in zip(op.results, found.results, strict=True):
            self._place(value, at)
        self._pull_operands(op, found)

    def _pull_operands(self, op: ir.Operation, found: OpDims) -> None:
        for value, at in zip(op.operands, found.operands, strict=True):
            if at.is_score:
                self._pull(value, at)

    def _place(self, value: Value, at: At) -> None:
        if self.at.setdefault(value, at) != at:
            raise Refused(maker_of(value) or self.top, "one value has its queries and keys in several dims")

    def _pull(self, value: Value, at: At) -> None:
        """Takes in a value that is read inside, and what it is computed of, or leaves it stored."""
        waiting = [(value, at)]
        while waiting:
            value, at = waiting.pop()
            if value in self.at or value in self.stored:
                if (self.at.get(value) or self.stored.get(value)) != at:
                    raise Refused(maker_of(value) or self.top, "one value has its queries and keys in several dims")
                continue
            made = maker_of(value)
            if made is None:
                waiting += self._carried(value, at)
                continue
            if made.name == WHILE and self._is_here(made):
                waiting += self._loop_result(value, at)
                continue
            found = self._pulled(made, at)
            if found is None:
                self.stored[value] = at
                continue
            self.dims[made], self.at[value] = found, at
            self.ops[made] = None
            waiting += [pair for pair in zip(made.operands, found.operands, strict=True) if pair[1].is_score]

    def _pulled(self, made: ir.Operation, at: At) -> OpDims | None:
        """Returns the dims around an op whose result is computed in blocks; None if it is stored."""
        if not (self._is_here(made) or made.block in self.around) or len(made.results) != 1:
            return None
        if made.name == CONSTANT and not is_uniform(made):
            return None
        if made.name not in _BLOCKWISE and not (made.name == DOT and made.block == self.block):
            return None
        return dims_of(made, at=at)

    def _is_here(self, op: ir.Operation) -> bool:
        """Says whether an op stands in the block, or in a loop inside of the region."""
        if op.block == self.block:
            return True
        around = op.parent
        return around is not None and around in self.ops

    # Loops over rounds of random bits

    def _loop_result(self, value: Value, at: At) -> list[tuple[Value, At]]:
        """Takes in a loop that computes each element by itself, for one of its results."""
        loop = maker_of(value)
        assert loop is not None
        number = ir.OpResult(value).result_number
        condition, body = (region.blocks[0] for region in loop.regions)
        if shape_of(value) != self._shape_for(value, at) or list(condition.arguments[number].uses):
            self.stored[value] = at
            return []
        self.ops[loop] = None
        self.dims[loop] = OpDims((), ())
        self.at[value] = self.at[body.arguments[number]] = at
        return [(loop.operands[number], at), (end_of(body).operands[number], at)]

    def _carried(self, value: Value, at: At) -> list[tuple[Value, At]]:
        """Takes in what a loop inside of the region carries."""
        argument: ir.BlockArgument[Any] = ir.BlockArgument(value)
        loop = argument.owner.owner.operation
        if loop not in self.ops:
            self.stored[value] = at
            return []
        return self._loop_result(loop.results[argument.arg_number], at)

    def _shape_for(self, value: Value, at: At) -> tuple[int, ...]:
        shape = list(shape_of(value))
        assert at.query is not None
        assert at.key is not None
        shape[at.query], shape[at.key] = self.num_queries, self.num_keys
        return tuple(shape)


def regions_of(block: ir.Block) -> Iterator[Region | Refused]:
    """Yields the attention in a block, or why a softmax stays as it is; a region is one softmax, with its gradient."""
    taken: set[ir.Operation] = set()
    for op in [view.operation for view in block.operations]:
        if op in taken or not is_row_maximum(op):
            continue
        region = Region(block, op)
        try:
            region.read()
        except Refused as refused:
            if region.is_softmax:
                yield Refused(refused.op, region.stays(refused))
            continue
        taken |= region.ends.keys()
        if region.is_softmax and any(end.name == DOT for end in region.ends):
            yield region


def ops_of_softmaxes(block: ir.Block) -> set[ir.Operation]:
    """Returns the ops that softmaxes over products in a block consist of, whoever reads them, and what is as small.

    That is as small as their rows, or as what stands beside their keys, as sinks do, and reduced, computed element by
    element, as the logarithm of a sum, or in a loop, as the key of random bits. What concatenates their keys with other
    columns is one of them.
    """
    found, most = set[ir.Operation](), 0
    for region in softmaxes_of(block):
        joined = region.concatenations()
        found |= region.dims.keys() | joined.keys()
        beside = [
            shape_of(one)[concatenated_dim(op)] for op in joined for one in op.operands if one not in region.given
        ]
        most = max(most, prod(shape_of(region.top.results[0])) * max(beside, default=1))
    ops = [view.operation for view in block.operations]
    return found | {op for op in ops if _is_small(op, most)}


def _is_small(op: ir.Operation, most: int) -> bool:
    """Says whether an op is cheap, and gives at most so many numbers; one that sums up reads no more either."""
    if op.name not in FUSIBLE and op.name not in (WHILE, REDUCE):
        return False
    values: list[Value] = [*op.results]
    values += op.operands if op.name == REDUCE else ()
    return all(prod(shape_of(one)) <= most for one in values)


def softmaxes_of(block: ir.Block) -> Iterator[Region]:
    """Yields the softmaxes over products in a block, whoever reads them."""
    found = set[ir.Operation]()
    for op in [view.operation for view in block.operations]:
        if op not in found and is_row_maximum(op):
            region = Region(block, op, gives_all=True)
            with suppress(Refused):
                region.read()
                if region.is_softmax:
                    found |= region.dims.keys()
                    yield region


def concatenated_dim(op: ir.Operation) -> int:
    """Returns the dim along which an op concatenates."""
    return int(ir.IntegerAttr(op.attributes["dimension"]).value)


def is_row_maximum(op: ir.Operation) -> bool:
    """Says whether an op takes the largest numbers along one dim."""
    if op.name != REDUCE or len(op.results) != 1 or reduction_of(op) != "max":
        return False
    return len(ir.DenseI64ArrayAttr(op.attributes["dimensions"])) == 1


def _product_of(value: Value, key: int, block: ir.Block) -> tuple[ir.Operation | None, int | None]:
    """Returns the product that a value comes from with its keys at a dim, and the dim of the value with the queries.

    The largest dim that only the other side has is that of the queries. Without one the op is where the search ended.
    """
    dims: list[int | None] = list(range(len(shape_of(value))))
    waiting, seen = [(value, tuple(dims))], set[Value]()
    last = maker_of(value)
    while waiting:
        value, here = waiting.pop()
        made = maker_of(value)
        if value in seen or made is None or made.block != block or key not in here:
            continue
        seen.add(value)
        last = made
        if made.name == DOT:
            query = _other_side(made, here, here.index(key))
            if query is not None:
                return made, query
        elif made.name in _BLOCKWISE and made.name not in SOURCES:
            waiting += reversed(list(_sources(made, here)))
    return last, None


def _other_side(product: ir.Operation, here: tuple[int | None, ...], key: int) -> int | None:
    """Returns the dim in which the queries lie that a product joins with its keys."""
    numbers = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    batch = len(numbers.lhs_batching_dimensions)
    left = len(shape_of(product.operands[0])) - batch - len(numbers.lhs_contracting_dimensions)
    sides = (range(batch, batch + left), range(batch + left, len(here)))
    if key < batch:
        return None
    other = sides[key in sides[0]]
    shape = shape_of(product.results[0])
    dims = [dim for dim in other if here[dim] is not None and shape[dim] > 1]
    return here[max(dims, key=lambda dim: (shape[dim], dim))] if dims else None


def _sources(op: ir.Operation, here: tuple[int | None, ...]) -> Iterator[tuple[Value, tuple[int | None, ...]]]:
    """Yields what an op reads, with the dim of the first value that each of its dims is."""
    for number, operand in enumerate(op.operands):
        shape = shape_of(operand)
        if not shape:
            continue
        found: list[int | None] = [None] * len(shape)
        for dim, own in enumerate(here):
            around = None if own is None else dims_of(op, at=At(dim))
            place = around.operands[number].query if around else None
            if place is not None:
                found[place] = own
        yield operand, tuple(found)
