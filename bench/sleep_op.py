"""Programs whose work is to sleep, so that what overlaps can be seen on a machine with few cores.

JAX ships no op that sleeps. This registers one with XLA's stock FFI, as a Python function behind a C pointer:
`custom_call @rhino_nap` takes a number of microseconds (i32), sleeps so long without Python's lock, and gives the
number back.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import Final

import jax

TARGET: Final = "rhino_nap"

CUSTOM_CALL: Final = f"stablehlo.custom_call @{TARGET}(%us) {{api_version = 4 : i32}} : (tensor<i32>) -> tensor<i32>"
"""The op, its operand being `%us`."""

_METADATA: Final = 1
"""The kind of FFI extension by which XLA asks for the version.

All that follows is `xla/ffi/api/c_api.h` of jaxlib 0.10.2.
"""

_VERSION: Final = (0, 3)


class _Extension(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("version_size", ctypes.c_size_t),
        ("version_extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("traits", ctypes.c_uint32),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.POINTER(ctypes.c_int32)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )


class _CallFrame(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_MetadataExtension)),
        ("api", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
    )


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))  # type: ignore[untyped-decorator]
def _nap(frame: ctypes._Pointer[_CallFrame]) -> None:
    call = frame.contents
    if call.extension and call.extension.contents.base.type == _METADATA:
        metadata = call.extension.contents.metadata.contents
        metadata.major, metadata.minor = _VERSION
        return
    microseconds = call.arguments.buffers[0].contents.data[0]
    time.sleep(microseconds / 1e6)
    call.results.buffers[0].contents.data[0] = microseconds


@cache
def register() -> None:
    """Makes the op known to XLA's CPU backend, for the life of the process."""
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    jax.ffi.register_ffi_target(
        TARGET, capsule(ctypes.cast(_nap, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None), platform="cpu"
    )
