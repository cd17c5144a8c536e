"""Channels of collectives: those of one program have different ones."""

from __future__ import annotations

import re
from typing import Final

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk

CHANNEL: Final = "channel_handle"
_HANDLE: Final = re.compile(r"handle = (\d+)")


def channel(number: int) -> ir.Attribute:
    """Returns the channel of a number, between devices."""
    return ir.Attribute.parse(f"#stablehlo.channel_handle<handle = {number}, type = 1>")


def last_channel(module: ir.Operation) -> int:
    """Returns the largest number of a channel in a module; 0 where there is none."""
    return max((_number(op) for op in walk(module)), default=0)


def set_channel(op: ir.Operation, number: int) -> None:
    """Gives a collective another number."""
    text = _HANDLE.sub(f"handle = {number}", str(op.attributes[CHANNEL]))
    op.attributes[CHANNEL] = ir.Attribute.parse(text)


def _number(op: ir.Operation) -> int:
    found = _HANDLE.search(str(op.attributes[CHANNEL])) if CHANNEL in op.attributes else None
    return int(found[1]) if found else 0
