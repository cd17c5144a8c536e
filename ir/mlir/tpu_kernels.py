"""Kernels inside of custom calls for TPUs (`tpu_custom_call`, as Pallas makes them): read, and written for other grids.

A kernel is a module of the dialect `tpu`, serialized inside of the call's `backend_config`. Its function runs once for
each point of a grid, on windows of the call's operands and results; for each of these, a function gives the place of
the window from the point.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, make_context, run_pipeline, tpu_dialect
from rhino.ir.mlir.boundary import entries

TARGET: Final = "tpu_custom_call"
_CONFIG: Final = "backend_config"
_CALL: Final = "custom_call_config"
_BOUNDS: Final = "iteration_bounds"
_SEMANTICS: Final = "dimension_semantics"
_PARALLEL: Final = "parallel"
_VERSION: Final = "stable_mosaic.version"
_COST: Final = "cost_estimate"


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What a kernel sees of an operand or result: `place` takes a point of the grid and gives the number of the window.

    `shape` is that of the window. Where it is no block, `place` gives its first element, or is of another form.
    """

    place: ir.Operation
    shape: tuple[int, ...]
    is_block: bool


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel, in a context of its own.

    `config` is the call's, `bounds` the sizes of the grid's dims, the last of which changes fastest, `parallel` says
    which of these the kernel's author says are independent. The function `body` takes the point, then the `num_scalars`
    operands that are there whole and beforehand, the other operands, the results, and scratch memory. `windows` are
    those of the other operands and of the results, None where the kernel reads memory itself.
    """

    module: ir.Module
    config: Mapping[str, Any]
    body: ir.Operation
    bounds: tuple[int, ...]
    parallel: tuple[bool, ...]
    num_scalars: int
    windows: tuple[Window | None, ...]

    @property
    def block(self) -> ir.Block:
        """What the function does."""
        found: ir.Block = self.body.regions[0].blocks[0]
        return found


def is_kernel(op: ir.Operation) -> bool:
    """Says whether an op calls a kernel for TPUs."""
    return (
        op.name == "stablehlo.custom_call"
        and ir.StringAttr(op.attributes["call_target_name"]).value == TARGET
        and _CONFIG in op.attributes
    )


def read_kernel(op: ir.Operation) -> Kernel | None:
    """Returns the kernel of a custom call, None where it has none of this form: a grid, and windows on it."""
    text = op.attributes[_CONFIG] if is_kernel(op) else None
    return parse_kernel(ir.StringAttr(text).value) if isinstance(text, ir.StringAttr) else None


@cache
def parse_kernel(text: str) -> Kernel | None:
    """Returns the kernel of a call's configuration, None where it is of another form."""
    try:
        kernel = _decoded(json.loads(text))
        if kernel is not None:
            run_pipeline(kernel.module, "inline")  # some integer arithmetic is in functions that the kernel calls
        return kernel
    except (ValueError, KeyError, TypeError, ir.MLIRError):
        return None  # another form, or another version


def _decoded(config: Mapping[str, Any]) -> Kernel | None:
    context = make_context()
    context.allow_unregistered_dialects = True
    tpu_dialect().register_dialect(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(base64.b64decode(config[_CALL]["body"]))
        run_pipeline(module, "mosaic-serde{serialize=false}")
        return _kernel(module, config)


def _kernel(module: ir.Module, config: Mapping[str, Any]) -> Kernel | None:
    functions = {ir.StringAttr(one.attributes["sym_name"]).value: one.operation for one in module.body.operations}
    body = next((one for one in functions.values() if _BOUNDS in one.attributes), None)
    if body is None or "window_params" not in body.attributes:
        return None
    bounds = tuple(ir.DenseI64ArrayAttr(body.attributes[_BOUNDS]))
    given = list(ir.ArrayAttr(body.attributes[_SEMANTICS])) if _SEMANTICS in body.attributes else []
    parallel = tuple(number < len(given) and _PARALLEL in str(given[number]) for number in range(len(bounds)))
    windows = [_window(one, functions) for one in ir.ArrayAttr(body.attributes["window_params"])]
    scalars = ir.IntegerAttr(body.attributes["scalar_prefetch"]).value
    return Kernel(module, config, body, bounds, parallel, scalars, tuple(windows))


def _window(given: ir.Attribute, functions: Mapping[str, ir.Operation]) -> Window | None:
    """Returns a window, None where there is none and the kernel reads the memory itself."""
    parts = entries(given)
    if "transform_indices" not in parts:
        return None
    name = ir.FlatSymbolRefAttr(parts["transform_indices"]).value
    is_block = parts.keys() - {"pipeline_mode"} == {"transform_indices", "window_bounds"}
    return Window(functions[name], tuple(ir.DenseI64ArrayAttr(parts["window_bounds"])), is_block)


def written(kernel: Kernel, bounds: Sequence[int], scalars: Sequence[tuple[int, ...]]) -> str:
    """Returns the `backend_config` of the kernel on another grid, with scalar operands of these shapes.

    Costs that its author has given are scaled with the grid.
    """
    with decoded(kernel) as again:
        again.body.attributes[_BOUNDS] = ir.DenseI64ArrayAttr.get(list(bounds))
        for function in functions_of(again):
            for argument, shape in zip(_arguments(function)[len(bounds) :], scalars, strict=False):
                old = ir.MemRefType(argument.type)
                argument.set_type(ir.MemRefType.get(list(shape), old.element_type, memory_space=old.memory_space))
            retype(function)
        config = encoded(again)
    call = config[_CALL]
    if _COST in call:
        call[_COST] = {key: value * prod(bounds) // prod(kernel.bounds) for key, value in call[_COST].items()}
    return json.dumps(config)


@contextmanager
def decoded(kernel: Kernel) -> Iterator[Kernel]:
    """Gives a copy of a kernel, to be changed, in whose context ops can be made."""
    again = _decoded(kernel.config)
    assert again is not None
    with again.module.context, ir.Location.unknown():
        yield again


def functions_of(kernel: Kernel) -> list[ir.Operation]:
    """Returns the function of a kernel, then those that place its windows."""
    return [kernel.body, *(window.place for window in kernel.windows if window is not None)]


def encoded(kernel: Kernel) -> dict[str, Any]:
    """Returns the configuration of a call of a kernel whose module was changed, which then cannot be read any more."""
    version = ir.IntegerAttr(kernel.module.operation.attributes[_VERSION]).value
    run_pipeline(kernel.module, f"mosaic-serde{{serialize=true target-version={version}}}")
    code = io.BytesIO()
    kernel.module.operation.write_bytecode(code, desired_version=0)
    config: dict[str, Any] = json.loads(json.dumps(kernel.config))
    config[_CALL]["body"] = base64.b64encode(code.getvalue()).decode()
    return config


def retype(function: ir.Operation) -> None:
    """Gives a function the type of its arguments."""
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    types = [argument.type for argument in _arguments(function)]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, kind.results))


def _arguments(function: ir.Operation) -> list[Any]:
    return list(function.regions[0].blocks[0].arguments)
