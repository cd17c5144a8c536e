"""Draw programs out of many ops, and plan each within a budget that binds, as --aot=memory does.

Without a budget, the plan's program is compiled; the budget is a share of what it takes, drawn from 0.6 to 1. What is
planned within it is compiled once more, in this process, by what runs it.
"""

from __future__ import annotations

import functools
from typing import Final

import jax
import numpy as np
from random_programs import program, random_steps

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_bytes
from rhino.passes.planner.aot import Comparer, as_run
from rhino.runtime.aot.compile import compiler_of
from rhino.runtime.executor.executable import compile_module

_SHARES: Final = (0.6, 1.0)


def try_budget(seed: int, size: int, name: str) -> tuple[bool, str]:
    """Returns whether a program's plan on a cluster is within its budget once compiled, and a line about it.

    A budget that no plan keeps to is none.
    """
    text, cluster = program(random_steps(seed, size)).encode(), load_cluster(name)
    compiler_for = functools.cache(functools.partial(compiler_of, cluster))
    free_bytes = int(cluster.device.usable_hbm_bytes)

    def within(budget: int) -> Comparer:
        return Comparer(
            read=lambda: read_module(text, str(seed), make_context()),
            name=str(seed),
            options={"cluster": name},
            cluster=cluster,
            budget_bytes=float(budget),
            compiler_for=compiler_for,
            memory_only=True,
        )

    free = within(free_bytes).run().best
    budget = max(1, int(free.peak_bytes * np.random.default_rng(seed).uniform(*_SHARES)))
    line = f"{format_bytes(budget)} of {format_bytes(free.peak_bytes)}"
    try:
        best = within(budget).run().best
    except RhinoError as error:
        if error.exit_code != ExitCode.DOES_NOT_FIT:
            raise
        return True, f"{line}: no plan fits"
    module = ir.Module.parse(as_run(best.code), make_context())
    devices = jax.devices("cpu")[: best.found.plan.mesh.num_devices]
    taken = compile_module(module, devices).memory_bytes()
    predicted = best.found.plan.predicted.peak_bytes[0]
    return taken <= budget, f"{line}: {format_bytes(taken)}, predicted {format_bytes(predicted)}"
