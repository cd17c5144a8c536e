"""What processes tell each other: whole, once, in chunks, and nothing else than what its hash says."""

import numpy as np
import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.key_values import CHUNK_BYTES, KeyValues


class Service:
    """A key-value service in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.num_sets = 0

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        assert allow_overwrite or key not in self.values
        self.num_sets += 1
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key: str, timeout_ms: int) -> bytes:
        assert timeout_ms > 0
        return self.values[key]


@pytest.mark.parametrize("count", [0, 1, 3 * CHUNK_BYTES])
def test_data_is_got_as_it_was_put_and_put_once(count: int):
    service = Service()
    one, other = KeyValues(service), KeyValues(service)
    data = np.random.default_rng(0).bytes(count)  # cannot be compressed
    digest = one.put(data)
    assert other.get(digest) == data
    assert max(map(len, service.values.values())) <= CHUNK_BYTES
    before = service.num_sets
    assert one.put(data) == digest
    assert service.num_sets == before
    assert one.told == {digest: sum(len(value) for key, value in service.values.items() if f"{digest}/" in key)}


def test_other_data_is_refused():
    service = Service()
    values = KeyValues(service)
    digests = [values.put(text) for text in (b"one", b"two")]
    service.values[f"rhino/data/{digests[0]}/0"] = service.values[f"rhino/data/{digests[1]}/0"]
    with pytest.raises(RhinoError, match="RHI-JAX-008"):
        values.get(digests[0])
