"""Where two forms of a program first differ.

This is the first op whose result differs from what one device computes from the same operands.

An annotated module is run as the local program of each device, and on one device without its shardings, both returning
what their ops compute. Where a value differs, its op is run by itself on one device, on the operands that the local
program had: rounding that has grown on the way to them is not its fault. What an op adds up is compared by the scale of
what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import BARRIER
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.manual import copy_module, strip_shardings, wrap_manual
from rhino.ir.mlir.reader import captured_by, entry_function, maker_of
from rhino.ir.program.exposed import OpResult, body_of, exposing, results_inside
from rhino.ir.program.numerics import SOURCES
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.compare import Difference, check, difference, differences
from rhino.runtime.executor.executable import Executable, Host, compile_module
from rhino.runtime.executor.signature import Signature, array_dtype

CHUNK_BYTES: Final = 1 << 30
"""Of values that are compared at once: both ways' copies of them fit on a laptop."""
MOST_CHUNKS: Final = 8
"""Each is two programs to compile."""
_MULTIPLYING: Final = frozenset(f"stablehlo.{name}" for name in ("dot", "dot_general", "convolution"))
"""Ops that add products of what they read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comparing two ways op by op says.

    `is_rounding`: the results differ by what rounding has grown to, and no op is at fault. Else `fix` says what to do.
    """

    note: str
    is_rounding: bool = False
    fix: str = "report it with the program: this is a fault of Rhino or of XLA, and the results are not to be trusted"


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
            raise replace(error, notes=(*error.notes, verdict.note), fix=verdict.fix) from None
        return verdict.note
    return ""


def first_difference(
    annotated: ir.Module, inputs: Sequence[Host], devices: Sequence[jax.Device], tolerance: float | None
) -> Verdict:
    """Returns where the local program of an annotated module first differs from one device.

    `inputs` are the arguments, in their logical shapes.

    Raises:
        RhinoError: what compiling and running the programs raises.
    """
    ops, arguments, unjudged = body_of(annotated), list(entry_function(annotated).arguments), ""
    chunks = list(
        _chunks([one for one in results_inside(annotated) if _fits_array(ops[one.op].results[one.position].type)])
    )
    for chunk in chunks[:MOST_CHUNKS]:
        exposed = exposing(annotated, chunk)
        ours, signature = _locally(exposed, inputs, devices)
        found = differences(signature, ours, _alone(exposed, inputs, devices[0]), tolerance)
        first = len(found) - len(chunk)
        values = [ops[one.op].results[one.position] for one in chunk]
        computed = dict(zip([*arguments, *values], [*inputs, *ours[first:]], strict=True))
        for one, apart in zip(chunk, found[first:], strict=True):
            if apart.passes:
                continue
            op = ops[one.op]
            if captured_by(op) or not all(value in computed for value in _read(op)):
                unjudged = (
                    unjudged or f"{_text(op, one.position, apart)}; it cannot be run by itself, so it may be rounding"
                )
            elif wrong := _fault(op, one.position, computed, devices[0], tolerance):
                return Verdict(_text(op, one.position, wrong))
        if all(one.passes for one in found[:first]):
            return Verdict(
                "where values of single ops are returned too, no result differs: "
                "the difference comes from how XLA compiles the program"
            )
    if len(chunks) > MOST_CHUNKS:
        return Verdict(
            f"none of the first {chunks[MOST_CHUNKS][0].op} ops of {len(ops)} differs; further ones were not compared"
        )
    if unjudged:
        return Verdict(unjudged)
    return Verdict(
        "each op agrees with one device on its own operands: the difference is rounding that adds up", is_rounding=True
    )


def _fault(
    op: ir.Operation,
    position: int,
    computed: Mapping[ir.Value[ir.Type], Host],
    device: jax.Device,
    tolerance: float | None,
) -> Difference | None:
    """Returns how far a result is from what one device computes from the same operands.

    Returns None where the difference is no more than rounding.
    """
    given = [computed[value] for value in _read(op)]
    executable = compile_module(_single(op), [device])
    expected = _run(executable, given)[position]
    found = difference(executable.signature.results[position], computed[op.results[position]], expected, tolerance)
    terms = [_largest(value) for value in given]
    scale = max([*terms, _largest(expected)], default=0.0)
    if op.name in _MULTIPLYING:
        scale = max(scale, terms[0] * terms[-1])
    return found if found.max_abs > found.tolerance * scale else None


def _read(op: ir.Operation) -> list[ir.Value[ir.Type]]:
    """Returns the values that an op reads, constants aside, each once."""
    made = [(value, maker_of(value)) for value in map(_source, op.operands)]
    return list(dict.fromkeys(value for value, maker in made if maker is None or maker.name not in SOURCES))


def _single(op: ir.Operation) -> ir.Module:
    """Returns a program of one op alone and the constants that it reads, which takes the other values that it reads."""
    read = _read(op)
    with op.context, op.location:
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            entry = func.FuncOp("main", ([value.type for value in read], [result.type for result in op.results]))
        entry.add_entry_block()
        known = dict(zip(read, entry.arguments, strict=True))
        with ir.InsertionPoint(entry.entry_block):
            operands = [known[value] if value in known else _copied(value) for value in map(_source, op.operands)]
            copy = op.clone()
            for number, value in enumerate(operands):
                copy.operands[number] = value
            func.ReturnOp(list(copy.results))
    strip_shardings(module)
    return module


def _copied(constant: ir.Value[ir.Type]) -> ir.Value[ir.Type]:
    made = maker_of(constant)
    assert made is not None
    copy: ir.Value[ir.Type] = made.clone().results[0]
    return copy


def _source(value: ir.Value[ir.Type]) -> ir.Value[ir.Type]:
    """Returns the value that barriers pass on as this one."""
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


def _locally(module: ir.Module, inputs: Sequence[Host], devices: Sequence[jax.Device]) -> tuple[list[Host], Signature]:
    """Returns the results of an annotated module's local program, and what they are."""
    executable = compile_module(wrap_manual(localized_copy(module)), devices)
    return _run(executable, inputs), executable.signature


def _alone(module: ir.Module, inputs: Sequence[Host], device: jax.Device) -> list[Host]:
    """Returns the results of a module on one device, without its shardings."""
    copy = copy_module(module)
    strip_shardings(copy)
    return _run(compile_module(copy, [device]), inputs)


def _run(executable: Executable, inputs: Sequence[Host]) -> list[Host]:
    return executable.fetch(executable.run([executable.put(number, value) for number, value in enumerate(inputs)]))


def _largest(value: Host) -> float:
    """Returns the largest size of a number in `value`, 0 where it has none."""
    if not value.size or value.dtype == np.bool_:
        return float(value.size > 0)
    wide = value.astype(np.complex128 if jnp.issubdtype(value.dtype, jnp.complexfloating) else np.float64)
    return float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))


def _fits_array(kind: ir.Type) -> bool:
    """Says whether an array can hold a tensor of this type."""
    return array_dtype(str(ir.RankedTensorType(kind).element_type)) is not None


def _text(op: ir.Operation, position: int, found: Difference) -> str:
    name, place, which = (
        name_of(op.location),
        place_of(op.location),
        f" result {position}" if len(op.results) > 1 else "",
    )
    where = f" in {name!r}" if name else f" at {place}" if place.line else ""
    return (
        f"the first op that differs is '{op.name}'{where}{which}, {op.results[position].type}: "
        f"relative error {found.max_rel:.2g}"
    )
