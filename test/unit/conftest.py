"""What every test runs on, and the processes that it starts: eight host devices, and an XLA that compiles fast.

XLA and JAX read the environment when they start, so this stands before any import of JAX.
"""

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    # Compiling takes most of the time, and how XLA writes its loops is not tested here: a training step in a fifth of
    # the time (jaxlib 0.10.2, 2 s to 0.4 s). Lit tests compile as users do.
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # LLVM's; those of XLA's partitioner and fusion stay
os.environ["XLA_FLAGS"] = " ".join((*FLAGS, os.environ.get("XLA_FLAGS", ""))).strip()

# Python looks through all objects for garbage each time some hundred are new, which is a fifth of the tests' time.
gc.set_threshold(200_000, 10, 10)


def pytest_collection_finish(session: Any) -> None:
    """Takes what tests have imported out of what is looked through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def one_by_one() -> Iterator[None]:
    """The compiler for hosts joins no collectives: each is launched by itself."""
    from rhino.strategies.cost.target import TARGETS  # noqa: PLC0415 - XLA reads the environment first

    with patch.dict(TARGETS, cpu=replace(TARGETS["cpu"], joined=frozenset(), joined_bytes=0)):
        yield
