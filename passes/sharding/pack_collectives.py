"""Join small collectives of a device's program into few.

Reads     a localized program, and `rhino.packing` on its mesh: the most bytes of a collective that is joined, and of a
          bucket. Without it, or without options, nothing is joined.
Writes    for each bucket one collective of what its members send, laid out as rows one after the other, and what each
          member gave, taken out of the result. Ops are reordered where a bucket stands before what was read before.
          Joined are all-reduces, reduce-scatters and all-gathers of one element type, reduction and groups.
Errors    RHI-READ-005 no entry function
Source    `rhino.strategies.cost.buckets` says which ones; Whale (arXiv:2011.09208) and TAP fuse gradients so.

A row is what goes to one device, or comes from one: of an all-gather all that a device sends is one row, and there is
one for each device in what comes. So members of any shape and dim are concatenated along their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Final

from rhino.ir.graph.collective_stats import payload_bytes
from rhino.ir.mlir.bindings import ir, sdy, stablehlo
from rhino.ir.mlir.reader import walk
from rhino.ir.program.collectives import module_stats, tensor_bytes
from rhino.passes.base import Pass, Remarks, opt
from rhino.strategies.cost.buckets import Packing, buckets

PACKING: Final = "rhino.packing"
"""On a mesh: how collectives along its axes are joined, as two numbers of `Packing`."""
_DIMS: Final = {
    "stablehlo.all_reduce": ("", ""),
    "stablehlo.reduce_scatter": ("scatter_dimension", ""),
    "stablehlo.all_gather": ("", "all_gather_dim"),
}
"""The collectives of `rhino.strategies.cost.target.JOINED`, and which dims rows are cut from and put together at.

These are names of attributes, empty where all that a device sends, or gets, is one row.
"""
_ALIKE: Final = ("replica_groups", "use_global_device_ids")
"""Attributes in which those that are joined agree."""
_CHANNEL: Final = "channel_handle"
"""With it groups are of other devices than without, so both have it or none."""
_ROWS, _COLUMNS = 0, 1
Value = ir.Value[Any]


@dataclass(frozen=True)
class PackCollectives(Pass):
    """Join small collectives of a device's program into few."""

    name: ClassVar[str] = "rhino-pack-collectives"
    errors: ClassVar[tuple[str, ...]] = ("RHI-READ-005",)

    item_bytes: int = opt(0, "the most bytes of a collective that is joined; 0 takes what the mesh says")
    bucket_bytes: int = opt(0, "the most bytes of a bucket; 0 takes what the mesh says")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Joins collectives in place."""
        planned = packing_on(module)
        item_bytes = self.item_bytes or (planned.item_bytes if planned else 0)
        bucket_bytes = self.bucket_bytes or (planned.bucket_bytes if planned else item_bytes)
        if not item_bytes:
            return
        packing = Packing(item_bytes, bucket_bytes)
        blocks = {block: None for op in walk(module) if op.name in _DIMS and (block := op.block) is not None}
        for block in blocks:
            _Packer(block, packing).run()
        write_packing(module, None)  # what is left is not to be joined again
        remarks.record(module_stats(module))


def write_packing(module: ir.Operation, packing: Packing | None) -> None:
    """Says on the mesh of a module how collectives are joined; None takes away what it says."""
    for op in _meshes(module):
        if packing is None:
            if PACKING in op.attributes:
                del op.attributes[PACKING]
        else:
            op.attributes[PACKING] = ir.DenseI64ArrayAttr.get([packing.item_bytes, packing.bucket_bytes])


def packing_on(module: ir.Operation) -> Packing | None:
    """Returns what a module says of joining collectives; None where it says nothing."""
    sizes = next((op.attributes[PACKING] for op in _meshes(module) if PACKING in op.attributes), None)
    return None if sizes is None else Packing(*ir.DenseI64ArrayAttr(sizes))


def _meshes(module: ir.Operation) -> Iterator[ir.Operation]:
    for op in module.regions[0].blocks[0].operations:
        if isinstance(op, sdy.MeshOp):
            yield op.operation


class _Packer:
    """Joins the collectives of one block."""

    def __init__(self, block: ir.Block, packing: Packing) -> None:
        *ops, self.end = [view.operation for view in block.operations]
        self.ops = ops
        number = {op: place for place, op in enumerate(ops)}
        self.makers = [sorted({number[maker] for maker in _makers(op) if maker in number}) for op in ops]
        last_effect = -1
        for place, op in enumerate(ops):
            if _has_effect(op):  # what is done to the world stays in order
                self.makers[place] += [last_effect] if last_effect >= 0 else []
                last_effect = place
        readers: list[list[int]] = [[] for _ in ops]
        for place, makers in enumerate(self.makers):
            for maker in makers:
                readers[maker].append(place)
        keys = [_key(op) for op in ops]
        sizes = [0 if key is None else _payload(op) for op, key in zip(ops, keys, strict=True)]
        self.buckets = buckets(keys, sizes, readers, packing)
        self.bucket_of = {place: bucket for bucket in self.buckets for place in bucket}
        self.is_placed = [False] * len(ops)

    def run(self) -> None:
        """Writes buckets where their last members stand, or before the first op that reads one of them."""
        if not self.buckets:
            return
        for place in range(len(self.ops)):
            bucket = self.bucket_of.get(place)
            if bucket is None or place == bucket[-1]:
                self.place(place)

    def place(self, wanted: int) -> None:
        """Moves an op to the end of what is placed, behind all that it waits for."""
        open_ones = [wanted]
        while open_ones:
            place = open_ones[-1]
            members = self.bucket_of.get(place, (place,))
            makers = [maker for one in members for maker in self.makers[one]]
            missing = [maker for maker in makers if not self.is_placed[maker]]
            if self.is_placed[place]:
                open_ones.pop()
            elif missing:
                open_ones += reversed(missing)
            else:
                if len(members) > 1:
                    join([self.ops[one] for one in members], self.end)
                else:
                    self.ops[place].move_before(self.end)
                for one in members:
                    self.is_placed[one] = True


def _makers(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops whose results an op reads, in its regions too."""
    for one in walk(op):
        for operand in one.operands:
            if not isinstance(owner := operand.owner, ir.Block):
                yield owner.operation


def _has_effect(op: ir.Operation) -> bool:
    """Says whether an op may do more than give results: only what says so, and what carries tokens."""
    return any("has_side_effect" in one.attributes or one.name in _EFFECTS for one in walk(op))


_EFFECTS: Final = frozenset({f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv")})


def _key(op: ir.Operation) -> tuple[str, ...] | None:
    """Returns what two collectives have in common that may be one; None for any other op."""
    if op.name not in _DIMS or len(op.operands) != 1 or not _is_static(op.operands[0].type):
        return None
    body = [inner.operation for region in op.regions for inner in region.blocks[0].operations]
    if body and not _is_plain(body, op.regions[0].blocks[0]):
        return None  # a reduction of its own, whose order of arguments may count
    element = str(ir.RankedTensorType(op.operands[0].type).element_type)
    groups = [str(op.attributes[name]) for name in _ALIKE if name in op.attributes]
    return op.name, element, *(inner.name for inner in body), *groups, str(_CHANNEL in op.attributes)


def _is_plain(body: Sequence[ir.Operation], block: ir.Block) -> bool:
    """Says whether a reduction is by one op of its two arguments."""
    return (
        len(body) == 2
        and list(body[0].operands) == list(block.arguments)
        and list(body[1].operands) == list(body[0].results)
    )


def _is_static(kind: ir.Type) -> bool:
    return isinstance(kind, ir.RankedTensorType) and kind.has_static_shape


def _payload(op: ir.Operation) -> int:
    sent, received = tensor_bytes(op.operands[0].type), tensor_bytes(op.results[0].type)
    return payload_bytes(op.name.removeprefix("stablehlo."), sent, received)


def join(members: Sequence[ir.Operation], before: ir.Operation) -> None:
    """Writes one collective for several of one kind, whose results it gives, before an op; they are erased."""
    first = members[0]
    groups = ir.RankedTensorType(first.attributes["replica_groups"].type).shape[-1]
    cut, put = _DIMS[first.name]
    with ir.InsertionPoint(before), first.location:
        sent = [_as_rows(op.operands[0], _number(op, cut), groups) for op in members]
        joined = stablehlo.concatenate(sent, _COLUMNS) if len(sent) > 1 else sent[0]
        received = _send(first, joined, groups if put else 1)
        start = 0
        for op in members:
            size = prod(ir.RankedTensorType(op.results[0].type).shape) // (groups if put else 1)
            own = _columns(received, start, start + size)
            op.results[0].replace_all_uses_with(_from_rows(own, op.results[0].type, _number(op, put), groups))
            start += size
    for op in members:
        op.erase()


def _number(op: ir.Operation, name: str) -> int | None:
    return ir.IntegerAttr(op.attributes[name]).value if name else None


def _send(first: ir.Operation, value: Value, num_rows: int) -> Value:
    """Writes the collective of rows; it is as the first member is."""
    kind = ir.RankedTensorType(value.type)
    columns = kind.shape[_COLUMNS]
    result = ir.RankedTensorType.get([num_rows, columns], kind.element_type)
    attributes = {name: first.attributes[name] for name in first.attributes}
    attributes |= {
        name: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ROWS) for name in _DIMS[first.name] if name
    }
    made = ir.Operation.create(first.name, [result], [value], attributes, regions=len(first.regions))
    for old, new in zip(first.regions, made.regions, strict=True):
        old.blocks[0].append_to(new)
    received: Value = made.results[0]
    return received


def _as_rows(value: Value, dim: int | None, groups: int) -> Value:
    """Returns a tensor as rows [rows, elements]: the blocks along a dim, or all in one."""
    shape = list(ir.RankedTensorType(value.type).shape)
    if dim is None:
        return _reshaped(value, [1, prod(shape)])
    value = _reshaped(value, [*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]])
    value = _transposed(value, [dim, *(one for one in range(len(shape) + 1) if one != dim)])
    return _reshaped(value, [groups, prod(shape) // groups])


def _from_rows(value: Value, kind: ir.Type, dim: int | None, groups: int) -> Value:
    """Returns rows as a tensor of a type, put together along a dim, or from the only one."""
    shape = list(ir.RankedTensorType(kind).shape)
    if dim is not None:
        part = [*shape[:dim], shape[dim] // groups, *shape[dim + 1 :]]
        value = _reshaped(value, [groups, *part])
        value = _transposed(value, [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)])
    return _reshaped(value, shape)


def _reshaped(value: Value, shape: Sequence[int]) -> Value:
    kind = ir.RankedTensorType(value.type)
    if list(kind.shape) == list(shape):
        return value
    made: Value = stablehlo.reshape(ir.RankedTensorType.get(list(shape), kind.element_type), value)
    return made


def _transposed(value: Value, order: Sequence[int]) -> Value:
    if list(order) == sorted(order):
        return value
    made: Value = stablehlo.transpose(value, ir.DenseI64ArrayAttr.get(list(order)))
    return made


def _columns(value: Value, start: int, end: int) -> Value:
    rows = ir.RankedTensorType(value.type).shape[_ROWS]
    made: Value = stablehlo.slice(
        value,
        start_indices=ir.DenseI64ArrayAttr.get([0, start]),
        limit_indices=ir.DenseI64ArrayAttr.get([rows, end]),
        strides=ir.DenseI64ArrayAttr.get([1, 1]),
    )
    return made
