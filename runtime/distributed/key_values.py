"""What one process of a job tells the others through its coordination service: bytes, by their hash.

The service keeps all in the memory of the process that hosts it, and sends a value whole. So data is compressed, is
there once however many ask for it, and goes in chunks that hold no other request up for long.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from rhino.ir.diagnostics import RhinoError

CHUNK_BYTES: Final = 2**22
"""Of one value. The service takes 64 MiB in one (jaxlib 0.10.2, 4.4 s on loopback), in which nothing else is served."""

_WAIT_S: Final = 24 * 3600
"""How long is waited for what another process is to tell; JAX ends all when one has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyValues:
    """The key-value service of a job, by JAX's `client` of it."""

    client: Any
    told: dict[str, int] = field(default_factory=dict)
    """The bytes that this process has put there, by hash."""

    def put(self, data: bytes) -> str:
        """Puts data there, once, and returns its hash."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.told:
            packed = zlib.compress(data)
            starts = range(0, len(packed), CHUNK_BYTES)
            for number, start in enumerate(starts):
                self.set(f"data/{digest}/{number}", packed[start : start + CHUNK_BYTES])
            self.set(f"data/{digest}", str(len(starts)).encode())
            self.told[digest] = len(packed)
        return digest

    def get(self, digest: str) -> bytes:
        """Returns the data of a hash, and waits for it. Raises RHI-JAX-008 where it is other data."""
        count = int(self.wait_for(f"data/{digest}"))
        data = zlib.decompress(b"".join([self.wait_for(f"data/{digest}/{number}") for number in range(count)]))
        if hashlib.sha256(data).hexdigest() != digest:
            what = f"what process 0 has told under hash {digest[:12]}... has another hash"
            raise RhinoError("RHI-JAX-008", what, fix="start the job again, with one coordinator of its own")
        return data

    def set(self, key: str, value: bytes) -> None:
        """Sets the value of a key."""
        self.client.key_value_set_bytes(f"rhino/{key}", value, allow_overwrite=True)

    def wait_for(self, key: str, limit_s: float = _WAIT_S) -> bytes:
        """Returns the value of a key, and waits for it; raises JAX's error where that takes longer."""
        found: bytes = self.client.blocking_key_value_get_bytes(f"rhino/{key}", int(limit_s * 1000))
        return found
