"""Describe the card for which XLA compiles, from the figures in `gpus.toml`."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Final

_FILE: Final = "gpus.toml"
_RESERVED_BYTES: Final = 1024
"""What CUDA keeps of a block's shared memory on cards that let a block have nearly all (8.0 on)."""


def cards() -> dict[str, dict[str, Any]]:
    """Returns the figures of every card by name."""
    return tomllib.loads(files("rhino.runtime.aot").joinpath(_FILE).read_text(encoding="utf-8"))


def target_config(name: str) -> str:
    """Returns the `GpuTargetConfigProto` of a card, as text. Limits of blocks and registers are alike on all."""
    card = cards()[name]
    major = card["capability"].split(".")[0]
    feature = "ACCELERATED_FEATURES" if card["capability"].endswith("a") else "NONE"
    per_core = card["shared_memory_per_core"]
    optin = per_core if int(major) < 8 else per_core - _RESERVED_BYTES
    figures = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 49152,
        "shared_memory_per_block_optin": optin,
        "shared_memory_per_core": per_core,
        "registers_per_block_limit": 65536,
        "registers_per_core_limit": 65536,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "core_count": card["cores"],
        "fpus_per_core": card["fpus_per_core"],
        "clock_rate_ghz": card["clock_ghz"],
        "device_memory_size": card["memory_bytes"],
        "memory_bandwidth": card["memory_bytes_per_s"],
        "l2_cache_size": card["l2_bytes"],
    }
    lines = [f"  {key}: {value}" for key, value in figures.items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} feature_extension: {feature} }}")
    info = "\n".join(lines)
    return (
        f"gpu_device_info {{\n{info}\n}}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        f'device_description_str: "{card["description"]}"\n'
    )
