"""A function's first step computed in a second way, and compared: by JAX alone, on one device where that fits.

Nothing of Rhino is in the second way but, where one device does not hold the step, where arguments and results lie:
JAX's own partitioner then does the rest. So what one of them gets wrong, the other tells.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from rhino.call import Pieces, shapes_of
from rhino.embed import Embedded
from rhino.entry import Entry
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.plan.leaves import leaf_tensors
from rhino.jit_program import in_host_form
from rhino.planner import annotated_module, rewritten_step
from rhino.runtime.executor.compare import coarsest_tolerance, difference
from rhino.runtime.executor.executable import Host, off_host
from rhino.runtime.executor.signature import Value
from rhino.split_array import SplitArray, whole
from rhino.tools.first_difference import Verdict, check_verified, first_difference
from rhino.traced import Traced

_FIX_IN_STAGES: Final = (
    "verify the step without stages, where ops are compared; if that passes, see whether some steps give the losses of "
    "one device: a first step of Adam makes small gradients as large as others, with their rounding; if not, report it"
)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """A step's arguments and results on the host, leaf by leaf.

    The arguments are those of the call, the results those of the second computation, by JAX alone.
    """

    arguments: list[Host]
    results: list[Host]


def expected_step(fn: Callable[..., Any], pieces: Pieces, entry: Entry) -> Expected:
    """Returns what a step is to give; the arrays of the call stay as they are.

    Raises:
        RhinoError: RHI-JAX-009 where a plan in stages has no second way: one device does not hold the step, or it
            speaks of a mesh.
    """
    plan = entry.plan
    assert plan.traced is not None, "a plan that was made for a call has its program"

    def step(*values: Any) -> Any:  # noqa: ANN401 - pytrees
        args, kwargs = replace(pieces, values=values).all_arguments()
        return fn(*args, **kwargs)

    step = _rewritten(entry) or step
    names_a_mesh = _names_a_mesh(plan.traced)
    made = None if names_a_mesh or jax.process_count() > 1 else _on_one_device(step, pieces.values, entry)
    if made is None and plan.facts.is_staged:
        what = (
            f"{plan.traced.name} cannot be verified: in one program it does not run on one device, "
            "and its plan is in stages"
        )
        raise RhinoError("RHI-JAX-009", what, fix="verify it with a smaller batch or fewer layers, or leave verify out")
    if made is None:
        places = _dividing(plan.program_shardings[0], pieces.values)
        with jax.sharding.set_mesh(plan.mesh) if names_a_mesh else nullcontext():
            made = jax.jit(step, in_shardings=places)(*jax.device_put(jax.tree.map(off_host, pieces.values), places))
    return Expected(_hosts(pieces.values), _hosts(made))


def _rewritten(entry: Entry) -> Callable[..., Any] | None:
    """Returns the step in the types that a plan was asked to compute in; None where these are the function's own."""
    traced = entry.plan.traced
    assert traced is not None
    code = rewritten_step(traced, entry.plan.facts)
    if not code:
        return None
    if _first_device(entry).platform == "cpu":
        code = in_host_form(code, 1)
    embedded = Embedded(traced.name, code, traced.out_avals)
    return lambda *values: jax.tree.unflatten(traced.out_tree, embedded(*jax.tree.leaves(values)))


def check_step(expected: Expected, result: Any, entry: Entry, op_rules: str) -> None:  # noqa: ANN401 - a pytree
    """Compares the results of a step with those of the second way.

    Raises:
        RhinoError: RHI-RUN-003 where they differ by more than rounding, with the first op that does where there is one
            program.
    """
    plan = entry.plan
    assert plan.traced is not None
    code = rewritten_step(plan.traced, plan.facts) or plan.traced.code
    tolerance = coarsest_tolerance(read_module(code, plan.traced.name, make_context()))
    names = [one.path for one in leaf_tensors(plan.facts.arguments, plan.facts.results)[1]]
    found = [
        difference(Value(number, name, want.shape, want.dtype, want.shape, want.shape), got, want, tolerance)
        for number, (name, got, want) in enumerate(zip(names, _hosts(result), expected.results, strict=True))
    ]

    def judge() -> Verdict:
        if plan.facts.is_staged:
            note = "the plan is in stages, so single ops were not compared, and rounding may have grown to this"
            return Verdict(note, fix=_FIX_IN_STAGES)
        assert plan.traced is not None
        module = annotated_module(plan.traced, plan.facts, op_rules)
        return first_difference(module, expected.arguments, tuple(plan.mesh.devices.flat), tolerance)

    check_verified(found, judge)


def _names_a_mesh(traced: Traced) -> bool:
    """Says whether a function speaks of a mesh itself, as `shard_map` does: so it runs on that mesh alone."""
    return module_mesh(read_module(traced.code, traced.name, make_context()).operation) is not None


def _on_one_device(step: Callable[..., Any], values: tuple[Any, ...], entry: Entry) -> Any:  # noqa: ANN401 - a pytree, or None
    """Returns what a step gives on the first device of its plan; None where it does not fit beside what lies there."""
    device = _first_device(entry)
    place = jax.sharding.SingleDeviceSharding(device)
    leaves, tree = jax.tree.flatten(values)
    # what is committed to other devices cannot be lowered for this one
    kinds = jax.tree.unflatten(tree, shapes_of(leaves))
    compiled = jax.jit(step, in_shardings=place, out_shardings=place).lower(*kinds).compile()
    stats, needed = device.memory_stats(), compiled.memory_analysis()
    if needed is not None and stats and "bytes_limit" in stats:
        size = needed.argument_size_in_bytes + needed.output_size_in_bytes + needed.temp_size_in_bytes
        if size > stats["bytes_limit"] - stats.get("bytes_in_use", 0):
            return None
    return compiled(*jax.device_put(jax.tree.map(off_host, whole(values)), place))


def _first_device(entry: Entry) -> jax.Device:
    plan = entry.plan
    return plan.ranks[0].devices[0]


def _dividing(shardings: Any, values: tuple[Any, ...]) -> Any:  # noqa: ANN401 - pytrees
    """Returns the shardings of a plan, replicated for arrays that they do not divide: those are stored padded.

    All of them are in device memory.
    """

    def one(leaf: Any, sharding: jax.sharding.NamedSharding) -> jax.sharding.NamedSharding:  # noqa: ANN401 - a leaf
        try:
            sharding.shard_shape(jnp.shape(leaf))
        except ValueError:
            return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
        return jax.sharding.NamedSharding(sharding.mesh, sharding.spec)

    return jax.tree.map(one, values, shardings)


def _hosts(tree: Any) -> list[Host]:  # noqa: ANN401 - a pytree
    """Returns the leaves of a tree on the host, keys as their words."""
    return [_host(leaf) for leaf in jax.tree.leaves(tree)]


def _host(leaf: Any) -> Host:  # noqa: ANN401 - a leaf
    if isinstance(leaf, SplitArray):
        return np.asarray(leaf)
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        array = jax.random.key_data(array)
    if not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.array(array)
