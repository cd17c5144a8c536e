"""Find the devices of a launch: host devices have to be asked for before JAX starts its backend."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Final

import jax

from rhino.ir.diagnostics import RhinoError

_FLAG: Final = "--xla_force_host_platform_device_count"


def request_host_devices(num_devices: int, environ: MutableMapping[str, str]) -> None:
    """Makes `environ` ask XLA for at least `num_devices` host devices, and picks the CPU where nobody chose a platform.

    Works on the process's own environment, before JAX's backend starts; later it changes nothing (`pick_devices` says
    so).
    """
    flags = environ.get("XLA_FLAGS", "")
    requested = re.findall(rf"{_FLAG}=(\d+)", flags)
    if not requested or int(requested[-1]) < num_devices:
        environ["XLA_FLAGS"] = f"{flags} {_FLAG}={num_devices}".strip()
    if not environ.get("JAX_PLATFORMS"):
        environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")  # JAX read the variable when it was imported


def pick_devices(num_devices: int) -> tuple[jax.Device, ...]:
    """Returns the first `num_devices` devices of JAX's default backend, which this starts.

    Raises:
        RhinoError: RHI-RUN-004 where there are fewer.
    """
    devices = tuple(jax.devices()[:num_devices])
    if len(devices) < num_devices:
        raise RhinoError(
            "RHI-RUN-004",
            f"the module needs {num_devices} devices, and {len(devices)} are there ({devices[0].platform})",
            notes=("host devices are made when JAX starts its backend",),
            fix=f"set XLA_FLAGS={_FLAG}={num_devices} before the process starts, or plan for fewer devices",
        )
    return devices
