"""The only door to jaxlib's MLIR bindings: contexts, parsing, pass managers, and the version they were tested with.

Everything else imports `ir`, `passmanager` and the dialects from here, so that a new jaxlib is tried in one place.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import jax
from jax.extend.mlir import deserialize_portable_artifact, ir, passmanager, serialize_portable_artifact
from jax.extend.mlir.dialects import func, sdy, stablehlo
from jax.interpreters import mlir as jax_mlir

TESTED_JAX: Final = ("0.10.2", "0.11")
"""First tested version, and the first that is not."""

__all__ = [
    "TESTED_JAX",
    "deserialize_portable_artifact",
    "func",
    "ir",
    "make_context",
    "passmanager",
    "require_tested_version",
    "run_pipeline",
    "sdy",
    "serialize_portable_artifact",
    "stablehlo",
]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def require_tested_version(version: str = jax.__version__) -> None:
    """Raises ImportError when jax lies outside the range that the passes were tested with."""
    if not _version(TESTED_JAX[0]) <= _version(version) < _version(TESTED_JAX[1]):
        raise ImportError(f"rhino was tested with jax >= {TESTED_JAX[0]}, < {TESTED_JAX[1]}, and this is jax {version}")


@cache
def _register_passes() -> None:
    stablehlo.register_stablehlo_passes()  # process-wide, and an error the second time


def make_context() -> ir.Context:
    """Returns a context with StableHLO, CHLO, func, Shardy and MPMD registered."""
    require_tested_version()
    _register_passes()
    return jax_mlir.make_ir_context()


def run_pipeline(module: ir.Module, pipeline: str) -> None:
    """Runs a textual pipeline of registered MLIR passes, anchored on `builtin.module`, on `module` in place."""
    with module.context:
        passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
