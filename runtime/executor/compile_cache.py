"""Compile many modules at once, and none twice: by content, in memory and, if a folder is given, on disk.

A program is known by its text, XLA's options, the number and kind of its devices, and the compiler. What is compiled
for some devices is loaded for others of the same number and kind without compiling again. The folder must be the user's
own: what is loaded from it is code.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jax
from jaxlib.version import __version__ as jaxlib_version

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.runtime.executor.executable import Executable, compile_module, compile_options, form_for, load_module

_CPU_INFO: Final = Path("/proc/cpuinfo")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A module to compile for a row of devices."""

    module: ir.Module
    devices: tuple[jax.Device, ...]


class CompileCache:
    """Compiled programs, by content and devices.

    `num_compiled` counts the programs that were compiled, `num_loaded` those that were loaded instead.
    """

    def __init__(self, folder: Path | None = None, num_threads: int | None = None) -> None:
        """`folder` is made where it is missing; `num_threads` None is one for each core."""
        self.num_compiled = 0
        self.num_loaded = 0
        self._folder = folder
        self._num_threads = num_threads or os.cpu_count() or 1
        self._serialized: dict[str, bytes] = {}
        self._executables: dict[tuple[str, tuple[int, ...]], Executable] = {}

    def compile(self, requests: Sequence[Request]) -> list[Executable]:
        """Returns an executable for each request, equal requests sharing one.

        Raises:
            RhinoError: as `compile_module`, for the first request that does not compile.
        """
        keys = [_key(one) for one in requests]
        places = [(key, tuple(device.id for device in one.devices)) for key, one in zip(keys, requests, strict=True)]
        missing = {place: one for place, one in zip(places, requests, strict=True) if place not in self._executables}
        first = {key: (key, ids) for key, ids in reversed(missing)}
        # The first of each content compiles; then the others load what it gave.
        for wave in (
            [place for place in missing if first[place[0]] == place],
            [place for place in missing if first[place[0]] != place],
        ):
            with ThreadPoolExecutor(self._num_threads) as pool:
                for place, (executable, compiled) in zip(
                    wave, pool.map(lambda place: self._build(place[0], missing[place]), wave), strict=True
                ):
                    self._executables[place] = executable
                    self.num_compiled += compiled
                    self.num_loaded += not compiled
        return [self._executables[place] for place in places]

    def _build(self, key: str, request: Request) -> tuple[Executable, bool]:
        """The executable, and whether it had to be compiled."""
        serialized = self._serialized.get(key) or self._read(key)
        if serialized is not None:
            self._serialized[key] = serialized
            return load_module(request.module, request.devices, serialized), False
        executable = compile_module(request.module, request.devices)
        if (written := _serialize(executable)) is not None:
            self._serialized[key] = written
            self._write(key, written)
        return executable, True

    def _read(self, key: str) -> bytes | None:
        """What the folder holds for a key; None where it holds nothing, or not what was written."""
        if self._folder is None:
            return None
        try:
            data = (self._folder / key).read_bytes()
        except OSError:
            return None
        digest, serialized = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return serialized if hashlib.sha256(serialized).digest() == digest else None

    def _write(self, key: str, serialized: bytes) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(hashlib.sha256(serialized).digest() + serialized)
            os.replace(file.name, self._folder / key)  # at once: other processes read the folder too
        except OSError as error:
            raise RhinoError(
                "RHI-CLI-003",
                f"cannot keep a compiled program in {self._folder}: {error.strerror}",
                fix="name a folder that can be written",
            ) from None


def _serialize(executable: Executable) -> bytes | None:
    """The executable as bytes; None where XLA cannot write it (it calls back into Python, say)."""
    try:
        return executable.serialize()
    except jax.errors.JaxRuntimeError:
        return None


def _key(request: Request) -> str:
    first = request.devices[0]
    # Which devices they are is no part of the content; they are counted from 0 in the options that are hashed.
    same_kind = [device for device in jax.devices(first.platform) if device.device_kind == first.device_kind][
        : len(request.devices)
    ]
    parts = (
        str(form_for(request.module, request.devices)).encode(),
        compile_options(same_kind).SerializeAsString(),
        repr([device.device_kind for device in request.devices]).encode(),
        f"{jaxlib_version} {first.client.platform_version} {_cpu()}".encode(),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _cpu() -> str:
    """What code compiled for this machine's CPU may rely on."""
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.exists() else ()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
