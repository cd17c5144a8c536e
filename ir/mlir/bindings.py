"""The only door to jaxlib's MLIR bindings: contexts, parsing, pass managers, and the version they were tested with.

Everything else imports `ir`, `passmanager` and the dialects from here, so that a new jaxlib is tried in one place. They
come from jaxlib itself: `jax.extend.mlir` has the same and loads all of JAX, more than half of the time that
`rhino-opt` takes to start.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final

from jaxlib import _jax
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _mlirHlo
from jaxlib.mlir.dialects import chlo, func, mpmd, sdy, stablehlo
from jaxlib.version import __version__

TESTED_JAX: Final = ("0.10.2", "0.11")
"""First tested version, and the first that is not."""

__all__ = [
    "TESTED_JAX",
    "deserialize_portable_artifact",
    "func",
    "ir",
    "make_context",
    "mosaic_gpu_dialect",
    "passmanager",
    "require_tested_version",
    "run_pipeline",
    "sdy",
    "serialize_portable_artifact",
    "stablehlo",
    "tpu_dialect",
    "triton_dialect",
]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


deserialize_portable_artifact = _jax.mlir.deserialize_portable_artifact
serialize_portable_artifact = _jax.mlir.serialize_portable_artifact


def require_tested_version(version: str = __version__) -> None:
    """Raises ImportError when jaxlib lies outside the range that the passes were tested with."""
    if not _version(TESTED_JAX[0]) <= _version(version) < _version(TESTED_JAX[1]):
        raise ImportError(f"rhino was tested with jax >= {TESTED_JAX[0]}, < {TESTED_JAX[1]}, and this is jax {version}")


@cache
def _register_passes() -> None:
    stablehlo.register_stablehlo_passes()  # process-wide, and an error the second time


@cache
def _upstream_dialects() -> ir.DialectRegistry:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry


@cache
def _thread_pool() -> ir.ThreadPool:
    return ir.ThreadPool()


class _Context(ir.Context):
    """A context without the dialects that the bindings would load unasked, as JAX makes its own."""

    def __init__(self) -> None:
        super(ir.Context, self).__init__()


def make_context() -> ir.Context:
    """Returns a context with what JAX writes and we do: StableHLO, CHLO, MHLO's attributes, func, Shardy and MPMD."""
    require_tested_version()
    _register_passes()
    context = _Context()
    context.append_dialect_registry(_upstream_dialects())
    context.load_all_available_dialects()
    context.set_thread_pool(_thread_pool())
    for dialect in (sdy, mpmd, chlo, stablehlo):
        dialect.register_dialect(context)
    _mlirHlo.register_mhlo_dialect(context)
    return context


@cache
def tpu_dialect() -> ModuleType:
    """Returns the dialect of kernels for TPUs, whose loading registers its passes."""
    return _named(import_module("jaxlib.mosaic.python.tpu"), "tpu")


def _named(dialect: ModuleType, name: str) -> ModuleType:
    """Returns the module of a dialect that is now also where the bindings look for it.

    They look whenever they make an object of an op of it, and forget when they found none: that takes longer than all
    else that is done with the op.
    """
    sys.modules.setdefault(f"jaxlib.mlir.dialects.{name}", dialect)
    return dialect


@cache
def triton_dialect() -> ModuleType:
    """Returns the dialect of kernels of Triton."""
    return _named(import_module("jaxlib.triton.dialect"), "tt")


@cache
def mosaic_gpu_dialect() -> ModuleType:
    """Returns the dialect of kernels of Mosaic for GPUs, whose loading registers its passes."""
    return _named(import_module("jaxlib.mosaic.python.mosaic_gpu"), "mosaic_gpu")


def run_pipeline(module: ir.Module, pipeline: str) -> None:
    """Runs a textual pipeline of registered MLIR passes, anchored on `builtin.module`, on `module` in place."""
    with module.context:
        passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
