"""The process that compiles one module for a target; `compile.py` starts it, and ends it once it knows enough."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any, Final

import jax
import numpy as np
from jax._src import compiler
from jax.experimental import mesh_utils, topologies
from jaxlib import xla_client

from rhino.ir.diagnostics import ExitCode
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executable import OPTIONS, memory_bytes
from rhino.runtime.executor.host_form import host_form

_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "cpu": {**OPTIONS},  # the executor's; jit has none
    "gpu": {
        "xla_gpu_autotune_level": 0,  # tuning runs kernels
        "xla_gpu_enable_triton_gemm": False,  # untuned, it finds no tiles for some products, and fails
        "xla_gpu_enable_analytical_sol_latency_estimator": True,  # else all collectives take as long for the schedule
    },
    "tpu": {},
}
_MAX_LINES: Final = 8
_POLL_S: Final = 0.5


def main(arguments: Sequence[str]) -> int:
    """Compiles: platform, device; mesh, whether jit will run it and options as JSON; the module's and XLA's files."""
    Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    platform, device, mesh, by_jit, own, source, dump = arguments
    shape = tuple(json.loads(mesh))
    if platform == "cpu":
        request_host_devices(prod(shape), os.environ)
    devices = _devices(platform, device, shape)
    module = read_module(Path(source).read_bytes(), source, make_context())
    if platform == "cpu":
        module = host_form(module, prod(shape))
    options: dict[str, Any] = {"xla_dump_to": dump, "xla_dump_hlo_as_text": True}
    if platform != "cpu" or not json.loads(by_jit):
        options |= _OPTIONS[platform]
    options |= json.loads(own)
    row = tuple(devices.flat)
    compile_options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(row),
        device_assignment=np.array([device.id for device in row]).reshape(1, -1),
        env_options_overrides=options,
    )
    build = compile_options.executable_build_options
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    client = row[0].client
    compiles = client.compile_and_load if platform == "cpu" else client.compile
    try:
        with module.context:
            made = compiles(module, xla_client.DeviceList(row), compile_options)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        sys.stdout.write("\n    ".join(str(error).strip().splitlines()[:_MAX_LINES]))
        return int(ExitCode.BAD_INPUT)
    Path(dump, "program.txt").write_text(made.hlo_modules()[0].to_string(), encoding="utf-8")
    print(json.dumps({"peak_bytes": memory_bytes(made)}))
    return int(ExitCode.OK)


def _end_with_parent(parent: int) -> None:
    """Ends the process once the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(1)


def _devices(platform: str, device: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns the devices of a mesh [mesh], which need not be there."""
    match platform:
        case "tpu":
            topology = topologies.get_topology_desc(platform="tpu", topology_name=device)
            if prod(shape) != len(topology.devices):  # a part of the slice, in its own order
                return np.array(topology.devices[: prod(shape)]).reshape(shape)
            return np.array(mesh_utils.create_device_mesh(shape, topology.devices, allow_split_physical_axes=True))
        case "gpu":
            name = f"1x1x{prod(shape)}"
            topology = topologies.get_topology_desc(platform="cuda", target_config=device, topology=name)
            return np.array(topology.devices).reshape(shape)
        case _:
            return np.array(jax.devices("cpu")[: prod(shape)]).reshape(shape)
