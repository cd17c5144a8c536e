"""Measure the ops of a program one by one: each that is a kernel of its own, on the shapes that it has there.

The program is that of one device (`rhino-opt --auto-shard --localize`). Every op runs alone on all devices at once, as
a program of its own; ops of the same shapes are measured once. What is computed inside of other ops is not measured: it
takes no time of its own.

Source: Liu et al., "Aceso" (EuroSys 2024), section 3.3, whose model is made of such measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import jax
import numpy as np

from rhino.ir.cluster.hardware import Device, Operator
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.reader import walk
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.profile.measure import LEAST_SHARE, Settings, Timed, launcher

KERNELS: Final = frozenset(
    {
        "stablehlo.convolution",
        "stablehlo.dot",
        "stablehlo.dot_general",
        "stablehlo.fft",
        "stablehlo.reduce_window",
        "stablehlo.select_and_scatter",
        "stablehlo.sort",
    }
)
"""Ops that no compiler computes inside of others, whatever is around them."""


def measure_ops(
    module: ir.Module,
    devices: Sequence[jax.Device],
    device: Device,
    settings: Settings,
    source: str,
    note: Callable[[str], None],
) -> tuple[Operator, ...]:
    """Returns a table of each distinct op of a program of one device, in the order of the program.

    What launching takes on a `device` is left out; `note` gets messages of progress, and `source` says whence the
    figures are.
    """
    distinct: dict[tuple[str, tuple[str, ...], tuple[str, ...]], ir.Operation] = {}
    for op in walk(module.operation):
        if op.name in KERNELS:
            sides = (op.operands, op.results)
            operands, results = (tuple(_inside(value.type) for value in side) for side in sides)
            distinct.setdefault((op.name, operands, results), op)
    timed = []
    for number, op in enumerate(distinct.values(), 1):
        note(f"preparing {number} of {len(distinct)} ops")
        timed.append(_timed(_alone(op), op.name, devices))
    for number in range(settings.rounds):
        note(f"round {number + 1} of {settings.rounds}")
        for one in timed:
            one.round()
    found = []
    for ((name, operands, results), op), one in zip(distinct.items(), timed, strict=True):
        low, high = one.quartiles_s()
        launch_s = (device.launch_s or 0.0) + one.num_arrays * (device.array_s or 0.0)
        seconds = max(low - launch_s, low * LEAST_SHARE)
        spread = f"{source}: timings spread by {(high - low) / low:.0%}"
        dtype = str(ir.ShapedType(op.operands[0].type).element_type)
        found.append(Operator(name, dtype, ((one.work, seconds),), spread, operands, results))
    return tuple(found)


def _inside(kind: ir.Type) -> str:
    """Returns a tensor's type as MLIR writes it between the brackets."""
    return str(kind).removeprefix("tensor<").removesuffix(">")


def _alone(op: ir.Operation) -> ir.Module:
    """Returns a program of an op alone, which takes its operands and gives its results."""
    with op.context, op.location:
        module = ir.Module.create()
        kind = ir.FunctionType.get([one.type for one in op.operands], [one.type for one in op.results])
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", kind, visibility="public")
        block = main.add_entry_block()
        copy = op.clone(ip=ir.InsertionPoint(block))
        for number, argument in enumerate(block.arguments):
            copy.operands[number] = argument
        with ir.InsertionPoint(block):
            func.ReturnOp(list(copy.results))
    return module


def _timed(module: ir.Module, name: str, devices: Sequence[jax.Device]) -> Timed:
    executable = compile_module(module, devices)
    sides = (executable.signature.arguments, executable.signature.results)
    work = float(sum(np.dtype(one.dtype).itemsize * np.prod(one.shape) for side in sides for one in side))
    values = [np.full(one.shape, 0.5).astype(one.dtype) for one in executable.signature.arguments]
    arguments = [executable.put(index, value) for index, value in enumerate(values)]
    count = sum(map(len, sides))
    return Timed(name, 1, work, 1, count, launcher(executable, arguments))
