"""Time exported programs on the first device of this machine: `python time_exports.py FOLDER OUT.json`.

It needs JAX and nothing of Rhino, so that it runs on a machine where that is not installed, with a newer JAX, too.
FOLDER is what `one_device.py write` wrote. Each program is compiled as `jax.jit` does it, results take the place of the
arguments that they update, and steps are started one behind the other: the least of several rounds is a step's time.
Programs come smallest first, and no new one begins after `--most` seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax import export

_ROUNDS, _STEPS = 5, 10
_MOST_INDEX: Final = 256
"""Integers are drawn below it: they are tokens and labels."""


def drawn(aval: Any, random: np.random.Generator) -> jax.Array:  # noqa: ANN401 - JAX's ShapedArray
    """Returns an array of an argument's shape and type."""
    if aval.dtype == np.bool_ or np.issubdtype(aval.dtype, np.integer):
        return jax.numpy.asarray(random.integers(0, 2 if aval.dtype == np.bool_ else _MOST_INDEX, aval.shape)).astype(
            aval.dtype
        )
    return jax.numpy.asarray(random.random(aval.shape, np.float32) * 0.1).astype(aval.dtype)


def timed(data: bytes, aliases: list[list[int]]) -> dict[str, Any]:
    """Returns seconds of a step and of the compile, and bytes as XLA assigned them, of one exported program."""
    exported = export.deserialize(bytearray(data))
    begin = time.perf_counter()
    donated = tuple(argument for argument, _ in aliases)
    compiled = jax.jit(exported.call, donate_argnums=donated).lower(*exported.in_avals).compile()
    compile_s = time.perf_counter() - begin
    random = np.random.default_rng(0)
    given = [drawn(aval, random) for aval in exported.in_avals]
    rounds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(_STEPS):
            results = jax.tree.leaves(compiled(*given))
            for argument, result in aliases:
                given[argument] = results[result]
        jax.block_until_ready(results)
        rounds.append((time.perf_counter() - begin) / _STEPS)
    memory: Any = compiled.memory_analysis()
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    return {"step_s": min(rounds), "rounds_s": rounds, "compile_s": compile_s, "peak_bytes": peak}


def main(argv: list[str]) -> int:
    """Times what is in a folder, and writes the file after each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=float, default=450.0, help="seconds after which no program begins (%(default)g)")
    options = parser.parse_args(argv)
    device = jax.devices()[0]
    found: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__, "programs": {}}
    begin = time.perf_counter()
    for facts in sorted(json.loads((options.folder / "programs.json").read_text()), key=lambda one: one["compiled_s"]):
        if time.perf_counter() - begin > options.most:
            break
        name = facts["file"]
        try:
            measured = timed((options.folder / name).read_bytes(), facts["aliases"])
        except Exception as error:
            measured = {"why": f"{type(error).__name__}: {error}"[:300]}
        found["programs"][name] = measured
        print(f"{time.perf_counter() - begin:6.1f} s {name} {measured.get('step_s') or measured}", flush=True)
        options.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
