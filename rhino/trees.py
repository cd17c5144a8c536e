"""How a function's arrays stand in what it takes and gives; a file of a plan does not know."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from rhino.ir.diagnostics import RhinoError


@dataclass(frozen=True, slots=True)
class Trees:
    """How a function's arrays stand in its arguments (a tuple of those that are no constants) and in its results.

    Where the program has a loss scale, that is the argument of number `loss_scale`, and the second of two results.
    """

    arguments: jax.tree_util.PyTreeDef
    results: jax.tree_util.PyTreeDef
    loss_scale: int | None = None


def known(trees: Trees | None, function: str) -> Trees:
    """Returns the trees of a plan. Raises RHI-JAX-006 where it came from a file, and no function has taken it yet."""
    if trees is None:
        raise RhinoError(
            "RHI-JAX-006",
            f"a file does not hold the pytrees of {function}: this plan knows shardings by path alone",
            fix="give it to the function, and ask that: rhino.parallelize(step, plan=plan).plan(*shapes).in_shardings",
        )
    return trees
