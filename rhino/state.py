"""State made where a plan wants it: each device makes its own shards, with the numbers that one device would make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from rhino.call import CallShape, Tree, kind_name
from rhino.entry import Entry
from rhino.ir.diagnostics import RhinoError
from rhino.split_array import SplitArray, SplitSharding


def make_state(
    entry: Entry,
    shape: CallShape,
    argnums: int | tuple[int, ...],
    init_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Tree:
    """Returns what `init_fn` gives, laid out as the arguments `argnums` of a planned function.

    JAX's counter-based generators give the same numbers however they are split (`jax_threefry_partitionable`, its
    default).

    Raises:
        RhinoError: RHI-JAX-004 where that is not what the function takes there, RHI-JAX-002 where it has no such
            argument.
    """
    single = isinstance(argnums, int)
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    key = entry.traced.key
    kinds = jax.tree.unflatten(key.tree, [jax.ShapeDtypeStruct(*leaf) for leaf in key.leaves])
    places = [where for where, _ in key.static if isinstance(where, int)]
    free = [number for number in range(len(kinds) + len(places)) if number not in places]
    for number in numbers:
        if number not in free:
            raise RhinoError(
                "RHI-JAX-002", f"argument {number} of {shape.name} is none of its arrays", fix="count arguments from 0"
            )
    chosen = [free.index(number) for number in numbers]
    made = jax.eval_shape(init_fn, *args, **kwargs)
    parts = (made,) if single else made
    if not isinstance(parts, tuple) or len(parts) != len(numbers):
        what = (
            f"{_name(init_fn)} is to give a tuple of {len(numbers)} arguments of {shape.name}, "
            f"and gives {kind_name(made)}"
        )
        raise RhinoError("RHI-JAX-004", what, fix="give a tuple, or name one argument in argnums")
    for part, number, one in zip(parts, numbers, chosen, strict=True):
        _check(part, kinds[one], shape.title(number), shape.name, _name(init_fn))
    shardings = jax.tree.leaves([entry.program.in_shardings[one] for one in chosen])
    wanted = [want for number, sharding in enumerate(shardings) for want in _wanted(number, sharding)]
    found: dict[_Rows, jax.Array] = {}
    for mesh in dict.fromkeys(want.sharding.mesh for want in wanted):
        assert isinstance(mesh, Mesh), "a plan has devices"
        own = [want for want in wanted if want.sharding.mesh == mesh]
        if jax.process_index() not in {device.process_index for device in mesh.devices.flat}:
            found |= {want: _absent(jax.tree.leaves(made)[want.leaf], want) for want in own}
            continue
        here = _moved((args, kwargs), mesh) if len(own) < len(wanted) else (args, kwargs)
        found |= zip(own, _make(init_fn, own, here), strict=True)
    leaves = [
        SplitArray([found[want] for want in wanted if want.leaf == number])
        if isinstance(sharding, SplitSharding)
        else next(found[want] for want in wanted if want.leaf == number)
        for number, sharding in enumerate(shardings)
    ]
    return jax.tree.unflatten(jax.tree.structure(made), leaves)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a leaf, all where `rows` is None, and where they are to be."""

    leaf: int
    rows: tuple[int, int] | None
    sharding: NamedSharding

    def of(self, leaf: Any) -> Any:  # noqa: ANN401 - an array
        """Returns the rows of a leaf."""
        return leaf if self.rows is None else leaf[self.rows[0] : self.rows[1]]


def _wanted(leaf: int, sharding: NamedSharding | SplitSharding) -> list[_Rows]:
    """Returns what is to be made of a leaf."""
    if isinstance(sharding, SplitSharding):
        return [_Rows(leaf, rows, own) for rows, own in zip(sharding.rows, sharding.shardings, strict=True)]
    return [_Rows(leaf, None, sharding)]


def _make(init_fn: Callable[..., Any], wanted: Sequence[_Rows], given: Tree) -> list[jax.Array]:
    """Returns some rows of what `init_fn` gives, made on the devices of one mesh; nothing else is computed there."""

    def some(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        leaves = jax.tree.leaves(init_fn(*args, **kwargs))
        return [one.of(leaves[one.leaf]) for one in wanted]

    made: list[jax.Array] = jax.jit(some, out_shardings=[one.sharding for one in wanted])(*given)
    return made


def _absent(kind: Any, wanted: _Rows) -> jax.Array:  # noqa: ANN401 - anything with shape and dtype
    """Returns an array that other processes hold."""
    shape = kind.shape if wanted.rows is None else (wanted.rows[1] - wanted.rows[0], *kind.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, wanted.sharding, [], dtype=kind.dtype)


def _moved(given: Tree, mesh: Mesh) -> Tree:
    """Returns what `init_fn` is given with arrays that are committed to other devices copied to those of a mesh."""
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda leaf: jax.device_put(leaf, replicated) if isinstance(leaf, jax.Array) and leaf.committed else leaf, given
    )


def _check(made: Tree, wanted: Tree, title: str, fn: str, init: str) -> None:
    have, want = (
        {title + keystr(path): _kind(leaf) for path, leaf in tree_flatten_with_path(tree)[0]} for tree in (made, wanted)
    )
    wrong = [
        f"{path}: {init} gives {have.get(path, 'nothing')}, {fn} takes {want.get(path, 'nothing')}"
        for path in {**want, **have}
    ]
    notes = tuple(note for note, path in zip(wrong, {**want, **have}, strict=True) if have.get(path) != want.get(path))
    if notes:
        what = f"what {init} gives is not argument {title} of {fn}, as it was planned"
        raise RhinoError(
            "RHI-JAX-004",
            what,
            notes=notes[:5],
            fix="plan for what it gives: step.plan(jax.eval_shape(init_fn, key), ...)",
        )


def _kind(leaf: Any) -> str:  # noqa: ANN401 - anything with a shape
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _name(init_fn: Callable[..., Any]) -> str:
    return str(getattr(init_fn, "__name__", type(init_fn).__name__))
