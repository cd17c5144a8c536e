"""Eight host devices for every test; XLA reads the environment when JAX starts its backend, so this stands before any import of JAX."""

import os

FLAG = "--xla_force_host_platform_device_count"

os.environ["JAX_PLATFORMS"] = "cpu"
if FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}=8".strip()
