"""Compile many modules at once, and none twice: by content, in memory and in JAX's persistent compilation cache.

A program is known by its text, XLA's options, the number and kind of its devices, and the compiler. What is compiled
for some devices is loaded for others of the same number and kind without compiling again. The persistent cache is
JAX's, under JAX's settings (`jax_compilation_cache_dir` and those beside it). JAX's keys name the devices, and only
process 0 writes; keys here do not, and every process writes its own, so that a stage is found wherever it runs next.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from time import perf_counter
from typing import Final

import jax
from jax._src import compilation_cache, config
from jax._src.compilation_cache_interface import CacheInterface
from jaxlib.version import __version__ as jaxlib_version

from rhino.ir.cluster.hardware import CompileOption
from rhino.ir.mlir.bindings import ir
from rhino.ir.units import format_seconds
from rhino.runtime.executor.executable import Executable, compile_module, compile_options, form_for, load_module

_CPU_INFO: Final = Path("/proc/cpuinfo")
_COMPILER_DIGITS: Final = 16
"""Hexadecimal digits that tell compilers of one program apart."""

_LOG: Final = logging.getLogger("rhino")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A module to compile for a row of devices with more of the compiler's options; `name` is what messages call it."""

    module: ir.Module
    devices: tuple[jax.Device, ...]
    name: str
    options: tuple[CompileOption, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """What a program is known by: its content, and what compiles it."""

    content: str
    compiler: str

    @property
    def entry(self) -> str:
        """The name of its entry in the persistent cache."""
        return f"rhino-{self.content}-{hashlib.sha256(self.compiler.encode()).hexdigest()[:_COMPILER_DIGITS]}"

    @property
    def first(self) -> str:
        """The name of the entry that says which compiler compiled this content first."""
        return f"rhino-{self.content}-compiler"


class CompileCache:
    """Compiled programs, by content and devices.

    `num_compiled` counts the programs that were compiled, `num_loaded` those that were loaded instead, and `num_stored`
    those of them that came from the persistent cache.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        """`num_threads` None is one for each core."""
        self.num_compiled = 0
        self.num_loaded = 0
        self.num_stored = 0
        self._num_threads = num_threads or os.cpu_count() or 1
        self._serialized: dict[_Key, bytes] = {}
        self._executables: dict[tuple[_Key, tuple[int, ...]], Executable] = {}

    def compile(self, requests: Sequence[Request]) -> list[Executable]:
        """Returns an executable for each request, equal requests sharing one.

        Raises:
            RhinoError: as `compile_module`, for the first request that does not compile.
        """
        start_s = perf_counter()
        before = self.num_compiled, self.num_stored
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
                for place, (executable, origin) in zip(
                    wave, pool.map(lambda place: self._build(place[0], missing[place]), wave), strict=True
                ):
                    self._executables[place] = executable
                    self.num_compiled += origin == _Origin.COMPILED
                    self.num_loaded += origin != _Origin.COMPILED
                    self.num_stored += origin == _Origin.STORED
        compiled, stored = self.num_compiled - before[0], self.num_stored - before[1]
        took = format_seconds(perf_counter() - start_s)
        _LOG.info("%d programs after %s: %d compiled, %d from %s", len(first), took, compiled, stored, _folder())
        return [self._executables[place] for place in places]

    def _build(self, key: _Key, request: Request) -> tuple[Executable, _Origin]:
        """Returns the executable, and where it is from."""
        if (known := self._serialized.get(key)) is not None:
            return load_module(request.module, request.devices, known, request.options), _Origin.SHARED
        store = compilation_cache._get_cache(request.devices[0].client)
        if store is not None and (stored := _read(store, key, request.name)) is not None:
            self._serialized[key] = stored
            return load_module(request.module, request.devices, stored, request.options), _Origin.STORED
        start_s = perf_counter()
        executable = compile_module(request.module, request.devices, request.options)
        if (made := _serialize(executable)) is not None:
            self._serialized[key] = made
            if store is not None:
                _write(store, key, made, perf_counter() - start_s, request.name)
        return executable, _Origin.COMPILED


class _Origin(Enum):
    """Where an executable comes from: XLA, other devices of this process, or the persistent cache."""

    COMPILED = auto()
    SHARED = auto()
    STORED = auto()


def _folder() -> str:
    """Returns the name of the persistent cache, in words."""
    enabled = compilation_cache.is_persistent_cache_enabled()
    return (
        f"the compilation cache {config.compilation_cache_dir.value}"
        if enabled
        else "a compilation cache, which is off"
    )


def _read(store: CacheInterface, key: _Key, name: str) -> bytes | None:
    """Returns what the persistent cache has of a program; None where it has nothing, or nothing that is whole.

    It is told where another compiler's is there.
    """
    try:
        if (found := _unpacked(store.get(key.entry))) is not None:
            return found
        first = _unpacked(store.get(key.first))
    except Exception as error:  # of the file system, a bucket, or a decompressor
        _LOG.warning("the compilation cache's entry %s cannot be read, %s is compiled: %s", key.entry, name, error)
        return None
    if first is not None and first.decode() != key.compiler:
        _LOG.info("%s is compiled again: it was cached by %s, this is %s", name, first.decode(), key.compiler)
    return None


def _write(store: CacheInterface, key: _Key, serialized: bytes, took_s: float, name: str) -> None:
    """Keeps a program in the persistent cache, if it took as long to compile as JAX's settings ask for."""
    if took_s < config.persistent_cache_min_compile_time_secs.value:
        return
    try:
        store.put(key.entry, _packed(serialized, took_s))
        store.put(key.first, _packed(key.compiler.encode(), 0))
    except Exception as error:
        _LOG.warning("the compilation cache cannot keep %s: %s", name, error)


def _packed(content: bytes, took_s: float) -> bytes:
    """Returns an entry of JAX's form."""
    packed: bytes = compilation_cache.compress_executable(
        compilation_cache.combine_executable_and_time(content, int(took_s))
    )
    return packed


def _unpacked(entry: bytes | None) -> bytes | None:
    if entry is None:
        return None
    content: bytes = compilation_cache.extract_executable_and_time(compilation_cache.decompress_executable(entry))[0]
    return content


def _serialize(executable: Executable) -> bytes | None:
    """The executable as bytes; None where XLA cannot write it (it calls back into Python, say)."""
    try:
        return executable.serialize()
    except jax.errors.JaxRuntimeError:
        return None


def _key(request: Request) -> _Key:
    first = request.devices[0]
    # Which devices they are is no part of the content; they are counted from 0 in the options that are hashed.
    same_kind = [device for device in jax.devices(first.platform) if device.device_kind == first.device_kind][
        : len(request.devices)
    ]
    parts = (
        str(form_for(request.module, request.devices)).encode(),
        compile_options(same_kind, request.options).SerializeAsString(),
        repr([device.device_kind for device in request.devices]).encode(),
        _cpu().encode(),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return _Key(digest.hexdigest(), f"jaxlib {jaxlib_version}, {' '.join(first.client.platform_version.split())}")


def _cpu() -> str:
    """What code compiled for this machine's CPU may rely on."""
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.exists() else ()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
