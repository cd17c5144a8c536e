"""Compare two runs of one program, result by result.

The relative error is norm-wise: the largest absolute difference over the largest absolute value of the expected tensor.
An entry-wise one would blame entries that cancel to almost nothing, which differ in any two orders of summation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.signature import Signature, Value

# A few hundred roundings: sums over devices are added in another order. Not in the table: integers and booleans, which
# must be equal.
TOLERANCES: Final[dict[str, float]] = {
    "float64": 1e-10,
    "complex128": 1e-10,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 5e-3,
    "bfloat16": 2e-2,
    "float8_e4m3fn": 0.25,
    "float8_e5m2": 0.5,
}

_ELEMENTS: Final = {
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
}
"""MLIR's names of float types, coarse ones first."""

# Tensors below this are rounding noise of sums whose terms are near 1: exact zeros, computed in another order.
_SMALLEST_SCALE: Final = 1e-8


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a result is from the expected one; infinite where one has a NaN (or an infinity) and the other has not.

    `has_nan` says that the expected one has a NaN: that the other has it too proves little.
    """

    value: Value
    max_abs: float
    max_rel: float
    tolerance: float
    has_nan: bool = False

    @property
    def passes(self) -> bool:
        """Whether the relative error is within the tolerance."""
        return self.max_rel <= self.tolerance

    @property
    def badness(self) -> float:
        """The relative error in units of the tolerance."""
        return 0.0 if self.max_rel == 0 else self.max_rel / self.tolerance if self.tolerance else np.inf


def difference(value: Value, got: Host, expected: Host, tolerance: float | None = None) -> Difference:
    """Returns how far `got` is from `expected`.

    If `tolerance` is None, it is that of the dtype. Integers and booleans must be equal.
    """
    limit = TOLERANCES.get(str(value.dtype), 0.0)
    if tolerance is not None and limit:
        limit = tolerance
    max_abs, max_rel = _errors(*_widened(got, expected))
    return Difference(value, max_abs, max_rel, limit, bool(np.any(expected != expected)))


def differences(
    signature: Signature, got: Sequence[Host], expected: Sequence[Host], tolerance: float | None = None
) -> tuple[Difference, ...]:
    """Returns the difference of each result."""
    return tuple(
        difference(value, a, b, tolerance) for value, a, b in zip(signature.results, got, expected, strict=True)
    )


def coarsest_tolerance(module: ir.Module) -> float:
    """Returns the tolerance of the coarsest float type that something in a module computes in.

    Results of wider types are no better.
    """
    present = {
        str(ir.ShapedType(result.type).element_type)
        for op in walk(module.operation)
        for result in op.results
        if _is_tensor(result)
    }
    return next((TOLERANCES[name] for element, name in _ELEMENTS.items() if element in present), TOLERANCES["float64"])


def _is_tensor(value: ir.Value[ir.Type]) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def worst(found: Iterable[Difference]) -> Difference | None:
    """Returns the first of the differences that are largest in units of their tolerance; None if there are none."""
    return max(found, key=lambda item: item.badness, default=None)


def check(found: Sequence[Difference], step: int) -> None:
    """Raises RHI-RUN-003 if a difference of this step is past its tolerance; names the worst."""
    failing = [item for item in found if not item.passes]
    item = worst(failing)
    if item is None:
        return
    raise RhinoError(
        "RHI-RUN-003",
        f"step {step}, result {item.value.label}, {item.value}: relative error {item.max_rel:.2g}, at most "
        f"{item.tolerance:.2g} allowed",
        notes=(
            f"largest absolute error {item.max_abs:.2g}",
            f"{len(failing)} of {len(found)} results are past their tolerance",
        ),
        fix="if the program computes in a narrower type inside, say what is tolerable with --tolerance",
    )


def check_same_signature(got: Signature, expected: Signature) -> None:
    """Raises RHI-RUN-002 if two programs differ in shapes or dtypes of arguments or results, or in what is fed back."""
    for kind, ours, theirs in (
        ("argument", got.arguments, expected.arguments),
        ("result", got.results, expected.results),
    ):
        if len(ours) != len(theirs):
            raise RhinoError(
                "RHI-RUN-002",
                f"the module has {len(ours)} {kind}s, the one to compare with has {len(theirs)}",
                fix="compare with the module that this one was planned from",
            )
        for a, b in zip(ours, theirs, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise RhinoError(
                    "RHI-RUN-002",
                    f"{kind} {a.label} is {a} in the module, {b} in the one to compare with",
                    fix="compare with the module that this one was planned from",
                )
    if got.feedback != expected.feedback:
        raise RhinoError(
            "RHI-RUN-002",
            "the module and the one to compare with feed different results back (tf.aliasing_output)",
            fix="compare with the module that this one was planned from",
        )


def _widened(got: Host, expected: Host) -> tuple[Host, Host]:
    if jnp.issubdtype(expected.dtype, jnp.complexfloating):
        return got.astype(np.complex128), expected.astype(np.complex128)
    if jnp.issubdtype(expected.dtype, jnp.floating):
        return got.astype(np.float64), expected.astype(np.float64)
    # Python integers: no 64-bit difference wraps round.
    return (got, expected) if np.array_equal(got, expected) else (got.astype(object), expected.astype(object))


def _errors(got: Host, expected: Host) -> tuple[float, float]:
    """The largest absolute and relative error; entries that are equal, or NaN in both, differ by nothing."""
    same = (got == expected) | ((got != got) & (expected != expected))
    if bool(np.all(same)):
        return 0.0, 0.0
    apart = np.abs(np.where(same, 0, got) - np.where(same, 0, expected)).astype(np.float64)
    max_abs = float(np.max(np.where(np.isnan(apart), np.inf, apart)))
    sizes = np.abs(expected).astype(np.float64)
    scale = max(float(np.max(np.where(np.isfinite(sizes), sizes, 0))), _SMALLEST_SCALE)
    return max_abs, max_abs / scale
