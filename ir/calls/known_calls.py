"""Custom calls that show how they split: kernels for TPUs and GPUs, and cuDNN's attention."""

from __future__ import annotations

from typing import Any

from rhino.ir.calls.cudnn_rules import attention_rule, fit_attention
from rhino.ir.calls.gpu_rules import fit_gpu_kernel, gpu_rule, gpu_work, note_types
from rhino.ir.calls.tpu_places import AskedPlace, asked_places, read_place
from rhino.ir.calls.tpu_rules import fit_kernel, kernel_rule
from rhino.ir.calls.tpu_work import kernel_work
from rhino.ir.graph.rules import CallRule, CallWork
from rhino.ir.mlir.bindings import ir


def call_rule(op: ir.Operation) -> CallRule | None:
    """Returns the rule of a custom call and its work, None where it does not show them."""
    return kernel_rule(op) or gpu_rule(op) or attention_rule(op)


def config_work(config: str) -> CallWork | None:
    """Returns the work of a kernel, given as the text of its call's configuration; None where it cannot be read."""
    return kernel_work(config) or gpu_work(config)


def places_of(op: ir.Operation) -> list[AskedPlace]:
    """Returns the places in its grid that a call has to be given by `give_place` where it is split along them."""
    return asked_places(op)


def give_place(op: ir.Operation, place: AskedPlace, table: ir.Value[Any]) -> ir.Operation:
    """Returns the call that takes the place of `op` and reads where it is in `table`, split as the place's dim is."""
    return read_place(op, place.grid, table)


def note_call(op: ir.Operation) -> None:
    """Notes on a custom call, before its types change, what `fit_call` has to know of them."""
    note_types(op)


def fit_call(op: ir.Operation) -> None:
    """Makes a custom call, made for larger operands and results, one for those that it has; `note_call` saw those.

    Raises ValueError where there is none.
    """
    fit_kernel(op)
    fit_gpu_kernel(op)
    fit_attention(op)
