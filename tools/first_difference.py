"""Where two ways to run a program part: the first op whose operands agree and whose result does not.

An annotated module is run as the local program of each device, and on one device without its shardings, both returning what their ops
compute. Rounding differs too, and a difference of two numbers that are nearly equal is nothing but rounding: so the result of an op that
adds is compared by the scale of what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.exposed import OpResult, body_of, exposing, results_inside
from rhino.ir.graph import BARRIER
from rhino.ir.locations import name_of, place_of
from rhino.ir.manual import copy_module, strip_shardings, wrap_manual
from rhino.ir.mlir import ir
from rhino.ir.reader import entry_function, maker_of
from rhino.passes.localize import localized_copy
from rhino.runtime.compare import Difference, check, differences
from rhino.runtime.executable import Executable, Host, compile_module
from rhino.runtime.signature import array_dtype

CHUNK_BYTES: Final = 1 << 30
"""Of values that are compared at once: both ways' copies of them fit on a laptop."""
MOST_CHUNKS: Final = 8
"""Each is two programs to compile."""
_ADDING: Final = frozenset(f"stablehlo.{name}" for name in ("add", "subtract", "reduce", "reduce_window", "scatter", "select_and_scatter"))
_MULTIPLYING: Final = frozenset(f"stablehlo.{name}" for name in ("dot", "dot_general", "convolution"))
"""Ops that add products of what they read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing two ways op by op says. `is_rounding`: the results differ by what rounding has grown to, and no op is at fault."""

    note: str
    is_rounding: bool = False


def check_verified(found: Sequence[Difference], judge: Callable[[], Verdict]) -> str:
    """Returns what to say of a first step whose results are `found` apart; `judge` looks op by op where they differ.

    Raises:
        RhinoError: RHI-RUN-003 where they differ by more than rounding.
    """
    try:
        check(found, 0)
    except RhinoError as error:
        verdict = judge()
        if not verdict.is_rounding:
            fix = "report it with the program: this is a fault of Rhino or of XLA, and the results are not to be trusted"
            raise replace(error, notes=(*error.notes, verdict.note), fix=fix) from None
        return verdict.note
    return ""


def first_difference(annotated: ir.Module, inputs: Sequence[Host], devices: Sequence[jax.Device], tolerance: float | None) -> Verdict:
    """Returns where the local program of an annotated module parts from one device, on arguments `inputs` in their logical shapes.

    Raises:
        RhinoError: what compiling and running the programs raises.
    """
    ops, seen = body_of(annotated), _Seen({}, {})
    for argument, value in zip(entry_function(annotated).arguments, inputs, strict=True):
        seen.add(argument, _largest(value), agrees=True)
    chunks = list(_chunks([one for one in results_inside(annotated) if _is_held(ops[one.op].results[one.position].type)]))
    for chunk in chunks[:MOST_CHUNKS]:
        results, found = _both_ways(exposing(annotated, chunk), len(chunk), inputs, devices, tolerance)
        for one, (difference, scale) in zip(chunk, found, strict=True):
            if seen.is_at_fault(ops[one.op], difference, scale):
                return Verdict(_text(ops[one.op], one.position, difference))
            seen.add(ops[one.op].results[one.position], scale, difference.passes)
        if all(one.passes for one in results):
            return Verdict("with the values of single ops returned as well, no result differs: it is in how XLA compiles the program")
    if len(chunks) > MOST_CHUNKS:
        return Verdict(f"none of the first {chunks[MOST_CHUNKS][0].op} ops of {len(ops)} differs; further ones were not compared")
    return Verdict("no op differs whose operands agree: rounding has grown to this", is_rounding=True)


@dataclass(slots=True)
class _Seen:
    """What is known of values: their largest size, and whether both ways agree on them. Values that are not compared agree."""

    scale: dict[ir.Value[ir.Type], float]
    agrees: dict[ir.Value[ir.Type], bool]

    def add(self, value: ir.Value[ir.Type], scale: float, agrees: bool) -> None:
        self.scale[value], self.agrees[value] = scale, agrees

    def is_at_fault(self, op: ir.Operation, difference: Difference, scale: float) -> bool:
        """Says whether an op's result differs by more than rounding, and its operands do not."""
        operands = [_source(value) for value in op.operands]
        if difference.passes or not all(self.agrees.get(value, True) for value in operands):
            return False
        terms = [self.scale.get(value, 0.0) for value in operands]
        if op.name in _ADDING:
            scale = max(scale, *terms)
        elif op.name in _MULTIPLYING:
            scale = max(scale, terms[0] * terms[1])
        return difference.max_abs > difference.tolerance * scale


def _source(value: ir.Value[ir.Type]) -> ir.Value[ir.Type]:
    """Returns the value that barriers hand on as this one."""
    op = maker_of(value)
    if op is None or op.name != BARRIER:
        return value
    return _source(op.operands[ir.OpResult(value).result_number])


def _chunks(values: Sequence[OpResult]) -> Iterator[list[OpResult]]:
    """Yields the values in order, as many at a time as may be compared at once."""
    chunk: list[OpResult] = []
    size = 0
    for one in values:
        if chunk and size + one.num_bytes > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(one)
        size += one.num_bytes
    if chunk:
        yield chunk


def _both_ways(
    exposed: ir.Module, count: int, inputs: Sequence[Host], devices: Sequence[jax.Device], tolerance: float | None
) -> tuple[tuple[Difference, ...], list[tuple[Difference, float]]]:
    """Returns how far the results are apart, and how far each of `count` values behind them, with its largest size."""
    alone = copy_module(exposed)
    strip_shardings(alone)
    ours = compile_module(wrap_manual(localized_copy(exposed)), devices)
    got, expected = _run(ours, inputs), _run(compile_module(alone, devices[:1]), inputs)
    found = differences(ours.signature, got, expected, tolerance)
    first = len(found) - count
    return found[:first], [(one, _largest(value)) for one, value in zip(found[first:], expected[first:], strict=True)]


def _run(executable: Executable, inputs: Sequence[Host]) -> list[Host]:
    return executable.fetch(executable.run([executable.put(number, value) for number, value in enumerate(inputs)]))


def _largest(value: Host) -> float:
    """Returns the largest size of a number in `value`, 0 where it has none."""
    if not value.size or value.dtype == np.bool_:
        return float(value.size > 0)
    wide = value.astype(np.complex128 if jnp.issubdtype(value.dtype, jnp.complexfloating) else np.float64)
    return float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))


def _is_held(kind: ir.Type) -> bool:
    """Says whether an array can hold a tensor of this type."""
    return array_dtype(str(ir.RankedTensorType(kind).element_type)) is not None


def _text(op: ir.Operation, position: int, difference: Difference) -> str:
    name, place, which = name_of(op.location), place_of(op.location), f" result {position}" if len(op.results) > 1 else ""
    where = f" in {name!r}" if name else f" at {place}" if place.line else ""
    return f"the first op that differs is '{op.name}'{where}{which}, {op.results[position].type}: relative error {difference.max_rel:.2g}"
