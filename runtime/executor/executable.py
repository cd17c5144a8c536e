"""Compile a module for a row of devices, and launch it: the one place that knows how this jaxlib does both.

A launch on several host devices whose preparation fails ends the process, so `run` checks every argument itself before
it launches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import jax
import numpy as np
from jax._src import compiler
from jax._src.sharding_impls import GSPMDSharding
from jaxlib import lapack, xla_client

from rhino.ir.cluster.hardware import CompileOption
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.blocks import from_view, to_view
from rhino.ir.graph.graph import DEVICE, HOST
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import entry_function, walk
from rhino.runtime.executor.host_form import host_form
from rhino.runtime.executor.signature import Signature, Value, read_signature

Host = np.ndarray[Any, np.dtype[Any]]
Handler = Callable[..., jax.Array]
"""Makes an array of the buffers that each of its devices holds."""

_MAX_MESSAGE_LINES: Final = 8

_PYTHON_CALL: Final = re.compile(r"xla_.*python_\w+_callback")

OPTIONS: Final = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
"""XLA's CPU backend otherwise starts every op as soon as it can (jaxlib 0.10.2).

All weights that are gathered lie whole at once. Backends
of accelerators order ops for memory anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A compiled program, loaded on its devices.

    Shapes: arguments and results are global, on the devices in their stored shape, on the host in the logical one;
    `in_shardings` and `out_shardings`, one for each, are XLA's own of the stored shapes.
    """

    signature: Signature
    devices: tuple[jax.Device, ...]
    in_shardings: tuple[jax.sharding.Sharding, ...]
    out_shardings: tuple[jax.sharding.Sharding, ...]
    _loaded: Any
    _handlers: tuple[Handler, ...]

    @property
    def launch(self) -> Callable[..., Any]:
        """XLA's own entry, which checks nothing: jaxlib's `execute_sharded`."""
        entry: Callable[..., Any] = self._loaded.execute_sharded
        return entry

    def serialize(self) -> bytes:
        """Returns what `load_module` takes back, for any devices of the same kind and number."""
        return bytes(self._loaded.client.serialize_executable(self._loaded))

    def hlo_text(self) -> str:
        """Returns the compiled module as HLO text."""
        return str(self._loaded.hlo_modules()[0].to_string())

    def memory_bytes(self) -> int:
        """Returns the bytes of one device's memory that the program takes: arguments, results and temporaries.

        They are as XLA has assigned its buffers.
        """
        return memory_bytes(self._loaded)

    def temp_bytes(self) -> int:
        """Returns the bytes of one device's memory that the program takes beside its arguments and results.

        They are as XLA has assigned its buffers.
        """
        return int(self._loaded.get_compiled_memory_stats().temp_size_in_bytes)

    def put(self, index: int, value: Host | jax.Array) -> jax.Array:
        """Returns `value`, of the logical shape, as argument `index`: laid out on the devices as the program wants it.

        Raises:
            RhinoError: RHI-RUN-002 where shape or dtype are not the argument's.
        """
        expected = self.signature.arguments[index]
        if tuple(value.shape) != expected.shape or value.dtype != expected.dtype:
            raise _bad_argument(expected, f"{value.dtype}{list(value.shape)}", str(expected))
        stored = value if expected.stored == expected.shape else _to_stored(expected, np.asarray(value))
        return self.move(index, stored)

    def move(self, index: int, value: Host | jax.Array) -> jax.Array:
        """Returns `value`, of the stored shape of argument `index`, laid out on the devices as the program wants it."""
        with jax.enable_x64(True):  # else 64-bit host values would be narrowed
            array: jax.Array = jax.device_put(value, self.in_shardings[index])
        return array

    def fetch(self, results: Sequence[jax.Array]) -> list[Host]:
        """Returns the results of a launch on the host, in their logical shapes."""
        return [
            _to_logical(value, np.asarray(array)) for value, array in zip(self.signature.results, results, strict=True)
        ]

    def run(self, arguments: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Launches the program and returns its results, which may not be computed yet; donated arguments are gone.

        Raises:
            RhinoError: RHI-RUN-002 where an argument is missing, deleted, given twice though donated, or of another
                shape, dtype or sharding than the program's; RHI-RUN-005 where the launch fails.
        """
        self.check(arguments)
        try:
            return tuple(self._loaded.execute_sharded(list(arguments)).consume_with_handlers(list(self._handlers)))
        except jax.errors.JaxRuntimeError as error:
            raise failed_run(error) from None

    def check(self, arguments: Sequence[jax.Array]) -> None:
        """Raises RHI-RUN-002 where the program must not be launched with `arguments`."""
        expected = self.signature.arguments
        if len(arguments) != len(expected):
            raise RhinoError(
                "RHI-RUN-002",
                f"got {len(arguments)} arguments, expected {len(expected)}",
                fix="pass one array per argument",
            )
        for value, array, sharding in zip(expected, arguments, self.in_shardings, strict=True):
            _check_argument(value, array, sharding)
        for index in self.signature.feedback:
            if any(array is arguments[index] for i, array in enumerate(arguments) if i != index):
                raise _bad_argument(
                    expected[index], "an array that is also another argument", "one of its own, for it is donated"
                )


def memory_bytes(compiled: Any) -> int:  # noqa: ANN401 - jaxlib's executable, loaded or not
    """Returns the bytes of one device's memory that a compiled program takes."""
    stats = compiled.get_compiled_memory_stats()
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return int(kept + stats.temp_size_in_bytes)


def _to_stored(value: Value, array: Host) -> Host:
    """Returns an array of the logical shape as the program holds it."""
    behind = [(0, padded - size) for size, padded in zip(value.shape, value.padded, strict=True)]
    stored: Host = to_view(np.pad(array, behind), value.stored, value.interleaved)
    return stored


def _to_logical(value: Value, array: Host) -> Host:
    """Returns an array that the program holds as callers know it."""
    padded: Host = from_view(array, value.padded, value.interleaved)
    return padded[tuple(map(slice, value.shape))]


def wait(results: Sequence[jax.Array]) -> None:
    """Returns when `results` are computed.

    Raises:
        RhinoError: RHI-RUN-005 where the program failed.
    """
    try:
        jax.block_until_ready(results)
    except jax.errors.JaxRuntimeError as error:
        raise failed_run(error) from None


def _with_main(module: ir.Module) -> ir.Module:
    """Returns the module with its entry named as XLA wants it; a copy, where it has another name."""
    if entry_function(module).name.value == "main":
        return module
    renamed = copy_module(module)
    entry_function(renamed).attributes["sym_name"] = ir.StringAttr.get("main", renamed.context)
    return renamed


def _prepare_kernels(module: ir.Module) -> None:
    """Sees to the module's calls of what JAX brings along: without it such a call ends the process.

    LAPACK is loaded; Python functions are refused (RHI-RUN-001), for those that a module calls live in the process that
    lowered it.
    """
    calls = [op for op in walk(module.operation) if op.name == "stablehlo.custom_call"]
    targets = [str(ir.StringAttr(op.attributes["call_target_name"]).value) for op in calls]
    for op, target in zip(calls, targets, strict=True):
        if _PYTHON_CALL.fullmatch(target):
            what = f"the module calls Python (@{target}), and a module does not hold what it calls"
            raise RhinoError(
                "RHI-RUN-001",
                what,
                place_of(op.location),
                fix="take jax.debug.print, io_callback and pure_callback out",
            )
    if any(target.startswith("lapack_") for target in targets):
        lapack.prepare_lapack_call("potrf", np.float32)  # type: ignore[no-untyped-call]


def compile_module(
    module: ir.Module, devices: Sequence[jax.Device], options: Sequence[CompileOption] = ()
) -> Executable:
    """Returns `module` compiled for `devices`, as one program partitioned over all of them.

    `options` are the compiler's own, beside `OPTIONS`.

    Raises:
        RhinoError: RHI-RUN-001 where XLA refuses it, RHI-RUN-002 where no array can be an argument or result.
    """
    row = tuple(devices)

    def load(named: ir.Module) -> Any:  # noqa: ANN401 - jaxlib's LoadedExecutable
        return row[0].client.compile_and_load(
            form_for(named, row), xla_client.DeviceList(row), compile_options(row, options)
        )

    return _loaded(module, row, load)


def form_for(module: ir.Module, devices: Sequence[jax.Device]) -> ir.Module:
    """Returns `module` as XLA gets it for `devices`."""
    return host_form(module, len(devices)) if devices[0].platform == "cpu" else module


def load_module(
    module: ir.Module, devices: Sequence[jax.Device], serialized: bytes, options: Sequence[CompileOption] = ()
) -> Executable:
    """Returns `module` on `devices`, from what `Executable.serialize` gave for as many devices of their kind.

    Nothing is compiled here.

    Raises:
        RhinoError: as `compile_module`, RHI-RUN-001 where XLA does not take the bytes.
    """
    row = tuple(devices)
    return _loaded(
        module,
        row,
        lambda _: row[0].client.deserialize_executable(
            serialized, xla_client.DeviceList(row), compile_options(row, options)
        ),
    )


def compile_options(devices: Sequence[jax.Device], options: Sequence[CompileOption] = ()) -> xla_client.CompileOptions:
    """Returns XLA's options for one program partitioned over `devices`, with more of the compiler's own."""
    overrides: dict[str, Any] = {**OPTIONS, **dict(options)}
    return compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array(devices).reshape(1, -1),
        backend=devices[0].client,
        env_options_overrides=overrides,
    )


def _loaded(module: ir.Module, row: tuple[jax.Device, ...], load: Callable[[ir.Module], Any]) -> Executable:
    signature = read_signature(module)
    module = _with_main(module)
    _prepare_kernels(module)
    try:
        with module.context:
            loaded = load(module)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise RhinoError(
            "RHI-RUN-001",
            f"XLA does not compile the module for {len(row)} devices: {_first_lines(error)}",
            fix=(
                "check that the module compiles for one device without its shardings; if it does, its shardings are "
                "at fault"
            ),
        ) from None
    inputs = _shardings(loaded.get_parameter_shardings(), signature.arguments, row)
    outputs = _shardings(loaded.get_output_shardings(), signature.results, row)
    handlers = tuple(
        array_handler(value.stored, value.dtype, sharding)
        for value, sharding in zip(signature.results, outputs, strict=True)
    )
    return Executable(signature, row, inputs, outputs, loaded, handlers)


def _shardings(
    given: Sequence[xla_client.OpSharding] | None, values: Sequence[Value], devices: tuple[jax.Device, ...]
) -> tuple[jax.sharding.Sharding, ...]:
    """XLA's shardings of the arguments or results as JAX's; on one device XLA names none, and kinds of memory nowhere.

    They always divide the shapes: XLA trims those that do not where the program begins and ends.
    """
    if not values:
        return ()  # XLA names one for the empty tuple, too
    kinds = [None if value.memory == DEVICE else value.memory for value in values]
    if given is None:
        return tuple(jax.sharding.SingleDeviceSharding(devices[0], memory_kind=kind) for kind in kinds)
    return tuple(GSPMDSharding(devices, one, memory_kind=kind) for one, kind in zip(given, kinds, strict=True))


def array_handler(shape: tuple[int, ...], dtype: np.dtype[np.generic], sharding: jax.sharding.Sharding) -> Handler:
    """Returns a function that makes an array of `shape` of one buffer for each device of `sharding`, in its order.

    It does not check the buffers.
    """
    handler: Handler = xla_client.array_result_handler(
        jax.core.ShapedArray(shape, dtype), sharding, committed=True, _skip_checks=True
    )
    return handler


def weakly_typed(array: jax.Array) -> jax.Array:
    """Returns an array of the same buffers with a weak dtype, which gives way to that of other arrays.

    JAX gives such a dtype to what is computed of Python numbers alone.
    """
    aval = jax.core.ShapedArray(array.shape, array.dtype, weak_type=True)
    handler: Handler = xla_client.array_result_handler(aval, array.sharding, committed=True, _skip_checks=True)
    return handler([shard.data for shard in array.addressable_shards])


def _check_argument(value: Value, array: jax.Array, sharding: jax.sharding.Sharding) -> None:
    if not isinstance(array, jax.Array):
        raise _bad_argument(value, f"a {type(array).__name__}", "a jax.Array")
    if array.shape != value.stored or array.dtype != value.dtype:
        raise _bad_argument(value, f"{array.dtype}{list(array.shape)}", f"{value.dtype}{list(value.stored)}")
    if array.is_deleted():
        raise _bad_argument(value, "an array that was deleted or donated", "a live one")
    if not same_placement(array.sharding, sharding, len(value.stored)):
        raise _bad_argument(value, f"sharding {array.sharding}", str(sharding))


def same_placement(got: jax.sharding.Sharding, expected: jax.sharding.Sharding, rank: int) -> bool:
    """Says whether arrays of `rank` dims lie alike under both."""
    # The order of devices is part of equivalence; their number is compared first, for the comparison assumes it.
    return len(got.device_set) == len(expected.device_set) and bool(got.is_equivalent_to(expected, rank))


def put(values: Sequence[Host | jax.Array], shardings: Sequence[jax.sharding.Sharding]) -> list[jax.Array]:
    """Returns copies of `values` laid out so; where devices are of several processes each of these has to call this.

    A value that this process has whole is taken to be the same in all: nothing is compared, for not all processes of a
    job need have a part.
    """
    at_once = [one.is_fully_addressable for one in shardings]
    with jax.enable_x64(True):  # else 64-bit host values would be narrowed
        moved = iter(
            jax.device_put(list(compress(values, at_once)), list(compress(shardings, at_once)), may_alias=False)
        )
        return [
            next(moved) if here else _put_part(value, sharding)
            for value, sharding, here in zip(values, shardings, at_once, strict=True)
        ]


def _put_part(value: Host | jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns a copy of a value on devices of several processes, of which this one places its own part."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        moved: jax.Array = jax.device_put(value, sharding, may_alias=False)
        return moved
    whole = np.asarray(value)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def off_host(array: Host | jax.Array) -> Host | jax.Array:
    """Returns an array in host memory as one in the memory of its devices, any other as it is.

    JAX does not move one from host memory to other devices (0.10.2): it fails where one of these has a part of it.
    """
    if not isinstance(array, jax.Array) or array.sharding.memory_kind != HOST:
        return array
    moved: jax.Array = jax.device_put(array, array.sharding.with_memory_kind(DEVICE))
    return moved


def _bad_argument(value: Value, got: str, expected: str) -> RhinoError:
    return RhinoError(
        "RHI-RUN-002", f"argument {value.label}: got {got}, expected {expected}", fix="pass the expected array"
    )


RUN_FAILED_FIX: Final = "if memory ran out, plan with a smaller budget; otherwise see XLA's message"


def failed_run(error: Exception) -> RhinoError:
    """Returns RHI-RUN-005 for an error of XLA's at run time."""
    return RhinoError("RHI-RUN-005", f"the program failed while it ran: {_first_lines(error)}", fix=RUN_FAILED_FIX)


def _first_lines(error: Exception) -> str:
    return "\n    ".join(str(error).strip().splitlines()[:_MAX_MESSAGE_LINES])
