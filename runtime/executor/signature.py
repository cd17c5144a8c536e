"""What a program takes and gives: names, shapes, dtypes, and which result takes over which argument's buffer.

A program may hold an argument or result in another shape than callers know it by (`rhino.view`, `rhino.padded`).
Callers see logical shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.elements import DTYPES
from rhino.ir.graph.graph import DEVICE, HOST, MemoryKind
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Attributes, boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.memory_kinds import is_on_host
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.stored_shapes import interleaved_of, logical_shape, padded_shape

_RESULT_NAME: Final = "jax.result_info"


def array_dtype(mlir_name: str) -> np.dtype[np.generic] | None:
    """Returns the dtype of arrays whose element type MLIR calls `mlir_name`; None where no array has it."""
    return jnp.dtype(DTYPES[mlir_name]) if mlir_name in DTYPES else None


@dataclass(frozen=True, slots=True)
class Value:
    """An argument or result of a program; `name` may be empty.

    Shapes: `shape` is the logical, global one; `padded` has zeros behind it along some dims; `stored` is that in which
    the program holds the elements of `padded`, in the same order but for `interleaved` dims. `memory` is where it lies.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    padded: tuple[int, ...]
    stored: tuple[int, ...]
    memory: MemoryKind = DEVICE
    interleaved: tuple[tuple[int, ...], ...] = ()

    @property
    def label(self) -> str:
        """The name and the index, for messages."""
        return f"{self.index} ({self.name})" if self.name else str(self.index)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A program's arguments and results; `feedback` maps an argument to the result that takes over its buffer."""

    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    feedback: dict[int, int]

    @property
    def losses(self) -> tuple[int, ...]:
        """The float scalar results that are not fed back: what a training step reports."""
        kept = set(self.feedback.values())
        return tuple(
            value.index
            for value in self.results
            if value.shape == () and value.index not in kept and jnp.issubdtype(value.dtype, jnp.floating)
        )


def read_signature(module: ir.Module) -> Signature:
    """Returns the signature of the module's entry function.

    Raises:
        RhinoError: RHI-READ-005; RHI-READ-002 where a logical shape does not fit; RHI-RUN-002 where an argument or
            result is no tensor of a dtype that arrays have.
    """
    with module.context:
        entry = entry_function(module)
        inputs, outputs = boundary_attributes(entry, "arg"), boundary_attributes(entry, "res")
        named = enumerate(zip(entry.arguments, inputs, strict=True))
        arguments = tuple(_value(i, _argument_name(arg.location), arg.type, attrs, entry) for i, (arg, attrs) in named)
        given = enumerate(zip(entry.type.results, outputs, strict=True))
        results = tuple(_value(i, _result_name(attrs), kind, attrs, entry) for i, (kind, attrs) in given)
        feedback = {i: ir.IntegerAttr(attrs[ALIAS]).value for i, attrs in enumerate(inputs) if ALIAS in attrs}
    return Signature(arguments, results, feedback)


def _argument_name(location: ir.Location) -> str:
    return name_of(location).replace('\\"', '"')


def _result_name(attributes: Attributes) -> str:
    return str(ir.StringAttr(attributes[_RESULT_NAME]).value) if _RESULT_NAME in attributes else ""


def _value(index: int, name: str, kind: ir.Type, attributes: Attributes, entry: func.FuncOp) -> Value:
    dtype = array_dtype(str(kind.element_type)) if isinstance(kind, ir.RankedTensorType) else None
    if not isinstance(kind, ir.RankedTensorType) or dtype is None:
        raise RhinoError(
            "RHI-RUN-002",
            f"an argument or result of the entry has type {kind}, which no array has",
            place_of(entry.location),
            fix="keep tokens, tuples and quantized tensors inside the program",
        )
    stored, place = tuple(kind.shape), place_of(entry.location)
    shape, padded = logical_shape(attributes, stored, place), padded_shape(attributes, stored, place)
    memory, interleaved = HOST if is_on_host(attributes) else DEVICE, interleaved_of(attributes, padded, place)
    return Value(index, name, shape, dtype, padded, stored, memory, interleaved)
