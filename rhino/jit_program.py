"""A planned function on its devices: jit, with the plan's shardings around the plan's program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, tree_flatten_with_path

from rhino.call import Key, leaf_kind
from rhino.embed import Embedded
from rhino.ir.graph.blocks import from_view, to_view
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.plan.plan import Tensor, host_bytes
from rhino.plan import Plan
from rhino.runtime.executor.executable import off_host
from rhino.runtime.executor.host_form import host_form
from rhino.traced import Traced

Getter = Callable[[tuple[Any, ...]], Any]
"""Takes one array out of the arguments of a call."""


class NewShapesError(Exception):
    """A program is asked for arrays that it was not made for."""


@dataclass(frozen=True, slots=True, eq=False)
class JitProgram:
    """One program for the arrays that `key` says; `run` takes them as `Pieces.values` and is what jit gave.

    `call` runs it; in a job of several processes it counts.

    `watched` gives an array of each donated argument. On several host devices XLA ends the process where that was
    donated before (jaxlib 0.10.2; elsewhere JAX raises an error): so each call looks at it.
    """

    key: Key
    plan: Plan
    run: Any
    call: Callable[..., Any]
    in_shardings: tuple[Any, ...]
    watched: tuple[Getter, ...]
    is_on_cpu: bool

    def compiled_bytes(self, values: tuple[Any, ...]) -> int:
        """Returns the bytes of a device's memory that the program takes, compiled for these arguments.

        Returns 0 where XLA does not say. jit keeps what is compiled here for the call itself. A CPU has one memory, and
        what would lie in that of the host on another device is not counted.
        """
        try:
            lowered = self.run.lower(*values)
        except ValueError:  # some of it is committed to another place
            lowered = self.run.lower(*self.place(values))
        stats = lowered.compile().memory_analysis()
        if stats is None:
            return 0
        kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
        facts = self.plan.facts
        waiting = facts.sharding.waiting.num_bytes if facts.sharding and facts.sharding.waiting else 0
        there = host_bytes(facts.arguments, dict(facts.mesh.axes)) + waiting if self.is_on_cpu else 0
        return int(kept + stats.temp_size_in_bytes) - there

    def place(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments with every array that is committed to another place moved to that of the plan.

        In a job of several processes host arrays, which every process has whole, go there too: jit refuses to split
        them.
        """
        return tuple(jax.tree.map(_placed, values, self.in_shardings))


def _placed(leaf: Any, sharding: jax.sharding.NamedSharding) -> Any:  # noqa: ANN401 - a leaf
    if isinstance(leaf, jax.Array):
        is_free = not leaf.committed and sharding.memory_kind in (None, leaf.sharding.memory_kind)
        is_there = is_free or leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        return leaf if is_there else jax.device_put(off_host(leaf), sharding)
    if jax.process_count() == 1 and sharding.memory_kind is not None:
        return jax.device_put(leaf, sharding)
    if jax.process_count() == 1 or sharding.is_fully_replicated:
        return leaf
    whole = np.asarray(leaf, leaf_kind(leaf)[1])
    return jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)


def make_program(traced: Traced, plan: Plan, code: bytes, donated: tuple[int, ...]) -> JitProgram:
    """Returns the program of a plan; `code` is its module, `donated` are arguments by number.

    Raises:
        RhinoError: RHI-RUN-004 where there are too few devices.
    """
    on_cpu = plan.mesh.devices.flat[0].platform == "cpu"
    arguments, results = plan.facts.arguments, plan.facts.results
    stored = tuple(
        aval.update(shape=one.viewed or one.padded) if one.viewed or one.padded else aval
        for aval, one in zip(traced.out_avals, results, strict=True)
    )
    embedded = Embedded(traced.name, in_host_form(code, plan.mesh.size) if on_cpu else code, stored)
    key = traced.key

    def run(*values: Any) -> Any:  # noqa: ANN401 - pytrees
        leaves, tree = jax.tree.flatten(values)
        if tree != key.tree or tuple((one.shape, one.dtype) for one in leaves) != key.leaves:
            raise NewShapesError
        made = embedded(*(as_stored(leaf, one) for leaf, one in zip(leaves, arguments, strict=True)))
        return jax.tree.unflatten(
            traced.out_tree, [as_known(leaf, one) for leaf, one in zip(made, results, strict=True)]
        )

    run.__name__ = run.__qualname__ = traced.name
    shardings, given = plan.program_shardings
    jitted = jax.jit(
        run,
        in_shardings=shardings,
        out_shardings=given,
        donate_argnums=donated,
        compiler_options=dict(plan.own_options) or None,
    )
    return JitProgram(key, plan, jitted, jitted, shardings, tuple(_watched(traced, donated)) if on_cpu else (), on_cpu)


def as_stored(leaf: jax.Array, tensor: Tensor) -> jax.Array:
    """Returns an array as a program stores it: with zeros behind it, and then seen as blocks, as far as it is."""
    if tensor.padded:
        sizes = zip(tensor.shape, tensor.padded, strict=True)
        leaf = jnp.pad(leaf, [(0, larger - size) for size, larger in sizes])
    return to_view(leaf, tensor.viewed, tensor.interleaved) if tensor.viewed else leaf


def as_known(leaf: jax.Array, tensor: Tensor) -> jax.Array:
    """Returns an array that a program stores as callers know it: in its own shape, and without padding."""
    if tensor.viewed:
        leaf = from_view(leaf, tensor.padded or tensor.shape, tensor.interleaved)
    return leaf[tuple(map(slice, tensor.shape))] if tensor.padded else leaf


def in_host_form(code: bytes, num_devices: int) -> bytes:
    """Returns a module as a CPU runs it: barriers order it there, too, or what is recomputed is computed at once."""
    with make_context():
        return bytecode(host_form(ir.Module.parse(code), num_devices))


def _watched(traced: Traced, donated: tuple[int, ...]) -> Iterator[Getter]:
    """Yields a function that gets one array of each donated argument that a result takes over.

    It gets the array that it reaches in the fewest steps.
    """
    values = jax.tree.unflatten(traced.key.tree, range(len(traced.in_avals)))
    paths = tree_flatten_with_path(values)[0]
    for number in donated:
        leaves = [(path, leaf) for path, leaf in paths if path[0].idx == number]
        own = [(path, leaf) for path, leaf in leaves if leaf in traced.alias]
        plain = [path for path, leaf in own if all(map(_step, path)) and _is_plain(_getter(path), values, leaf)]
        if plain:
            yield _getter(min(plain, key=len))
        elif own:
            yield _leaf_getter(number, leaves.index(own[0]))


def _leaf_getter(number: int, place: int) -> Getter:
    """Returns what gives a leaf of an argument whose nodes only JAX can take apart."""
    return lambda values: jax.tree.leaves(values[number])[place]


def _is_plain(get: Getter, values: Any, leaf: int) -> bool:  # noqa: ANN401 - any node
    """Says whether following its path reaches a leaf without running code of the nodes on it.

    The attributes of a node may be properties.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return bool(get(values) == leaf)
        except Exception:
            return False


def _step(key: object) -> Getter | None:
    """Returns what follows one key of a path, None where only its node knows how."""
    match key:
        case DictKey(key=one):
            return itemgetter(one)
        case SequenceKey(idx=number):
            return itemgetter(number)
        case GetAttrKey(name=name):
            return attrgetter(name)
    return None


def _getter(path: tuple[Any, ...]) -> Getter:
    steps = [step for key in path if (step := _step(key)) is not None]

    def get(values: Any) -> Any:  # noqa: ANN401 - any node
        for step in steps:
            values = step(values)
        return values

    return get
