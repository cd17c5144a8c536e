"""Write a function, exported by JAX, to argv[1]."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

function = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((16, 16), "float32"))
Path(sys.argv[1]).write_bytes(function.serialize())
