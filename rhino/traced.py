"""A user's function as the StableHLO of one device, and what JAX knows of it that a module does not say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh

from rhino.call import CallShape, Key, Pieces, Tree, shapes_of
from rhino.carried import carried
from rhino.ir.cluster.hardware import Device
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.program.loss_scale import NAME
from rhino.ir.request.scope_sharding import renumbered

_JAX_NAMES: Final = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
_OTHER_MESH: Final = "The context mesh"
"""How JAX's refusal of another mesh than that of the context begins (jax 0.10.2)."""


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """One function for arguments of known shapes.

    `code` is its module, with an argument for each leaf, used or not. `out_avals` are JAX's own of the results; `alias`
    says which argument comes back as which result (leaves by number), `kept` which of these the caller keeps, for they
    are not donated. `loss_scale` is the number of the argument that is one, None where there is none. `platform` is
    what the module is for where that is not the platform of JAX's own devices.
    """

    name: str
    code: bytes
    key: Key
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out_tree: jax.tree_util.PyTreeDef
    alias: dict[int, int]
    kept: frozenset[int]
    loss_scale: int | None = None
    platform: str = ""

    @property
    def loss_scale_leaf(self) -> int | None:
        """The first leaf of the loss scale."""
        if self.loss_scale is None:
            return None
        return sum(int(one.num_leaves) for one in self.key.tree.children()[: self.loss_scale])


def trace(
    fn: Callable[..., Any],
    shape: CallShape,
    pieces: Pieces,
    key: Key,
    mesh: AbstractMesh | None,
    device: Device | None = None,
) -> Traced:
    """Returns `fn` traced for the arrays in `pieces`, whose values are not looked at.

    A bare PartitionSpec in it speaks of `mesh`. What JAX's own devices cannot run, as a kernel for others, is written
    for `device`.
    """
    leaves, tree = jax.tree.flatten(pieces.values)
    blank = Pieces(jax.tree.unflatten(tree, shapes_of(leaves)), pieces.names, pieces.static)
    numbers = [one for one in shape.static if isinstance(one, int)]
    names = [one for one in shape.static if isinstance(one, str)]
    args, kwargs = blank.all_arguments()
    jitted = jax.jit(
        fn, static_argnums=sorted(n for n in numbers if n < len(args)), static_argnames=sorted(names), keep_unused=True
    )
    traced, module, given = _lowered(jitted, args, kwargs, shape.name, mesh, device)
    avals = tuple(traced.jaxpr.in_avals)
    specs = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in avals])
    donated = shape.donated_pieces(pieces)
    places = shape.places(pieces)
    scale = places.index(NAME) if NAME in places else None
    pairs = (
        carried(specs, traced.out_info, donated) if scale is None else _carried(specs, traced.out_info, donated, scale)
    )
    owner = [number for number, value in enumerate(specs) for _ in jax.tree.leaves(value)]
    kept = frozenset(leaf for leaf in pairs if owner[leaf] not in donated)
    # Numbers of scopes go on from trace to trace; a program is to be the same each time.
    text = renumbered(str(module.operation.get_asm(enable_debug_info=True)))
    outs = tuple(traced.jaxpr.out_avals)
    return Traced(shape.name, text.encode(), key, avals, outs, traced.out_tree, pairs, kept, scale, given)


def _carried(arguments: Tree, results: Tree, donated: Sequence[int], scale: int) -> dict[int, int]:
    """Returns what `carried` does, for a function with a loss scale as an argument of that number."""
    own, given = results
    pairs = carried((*arguments[:scale], (), *arguments[scale + 1 :]), own, donated)
    first = len(jax.tree.leaves(arguments[:scale]))
    size, end = len(jax.tree.leaves(given)), len(jax.tree.leaves(own))
    found = {leaf + (size if leaf >= first else 0): result for leaf, result in pairs.items()}
    return dict(sorted((found | {first + n: end + n for n in range(size)}).items()))


def _lowered(
    jitted: Any,  # noqa: ANN401 - JAX's
    args: Any,  # noqa: ANN401 - the user's
    kwargs: Any,  # noqa: ANN401 - the user's
    name: str,
    mesh: AbstractMesh | None,
    device: Device | None,
) -> tuple[Any, Any, str]:
    """Returns what jit traces, its module, and the platform this is for where that is not JAX's own.

    A `shard_map` of a mesh with axes of other types (`jax.make_mesh` makes explicit ones) is refused under `mesh`, and
    is fine without it.

    Raises:
        RhinoError: RHI-MESH-002 where it is of a mesh of other axes, or something else in the function needs `mesh`.
    """
    try:
        with contextlib.nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(mesh):
            return _module(jitted, args, kwargs, device)
    except ValueError as error:
        if mesh is None or not str(error).startswith(_OTHER_MESH):
            raise
        refused = str(error)
    planned = ",".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    what = f"{name} is planned for the mesh {planned}, and a shard_map in it is of another"
    fix = "make its mesh with these axes and axis_types=(jax.sharding.AxisType.Auto,) * n, or say that mesh"
    try:
        traced, module, given = _module(jitted, args, kwargs, device)
    except (ValueError, RuntimeError) as error:
        raise RhinoError(
            "RHI-MESH-002", what, Place(name), notes=(refused, str(error).splitlines()[0]), fix=fix
        ) from error
    found = module_mesh(module.operation)
    if found is not None and found[1].axes != tuple(mesh.shape.items()):
        raise RhinoError("RHI-MESH-002", f"{what}: {found[1]}", Place(name), fix=fix)
    return traced, module, given


def _module(
    jitted: Any,  # noqa: ANN401 - JAX's
    args: Any,  # noqa: ANN401 - the user's
    kwargs: Any,  # noqa: ANN401 - the user's
    device: Device | None,
) -> tuple[Any, Any, str]:
    """Returns what jit traces, its module for JAX's own devices, or for `device` where these do not run it, and which.

    Where JAX asks what the device is, as for the sign of an integer in a kernel, it is told so.
    """
    traced = jitted.trace(*args, **kwargs)
    try:
        return traced, traced.lower().compiler_ir("stablehlo"), ""
    except (ValueError, RuntimeError) as error:  # NotImplementedError is one, where an op is not there on a platform
        if device is None or device.platform == jax.default_backend():
            raise
        words: Any = {"lowering_platforms": (_JAX_NAMES[device.platform],)}
        with contextlib.suppress(ValueError, RuntimeError):
            return traced, traced.lower(**words).compiler_ir("stablehlo"), device.platform
        try:
            with jax.sharding.use_abstract_mesh(_of_kind(jax.sharding.get_abstract_mesh(), device)):
                traced = jitted.trace(*args, **kwargs)
                return traced, traced.lower(**words).compiler_ir("stablehlo"), device.platform
        except (ValueError, RuntimeError) as other:
            error.add_note(f"It was lowered for a {device.kind} too: {other}")
            raise error from None


def _of_kind(mesh: AbstractMesh, device: Device) -> AbstractMesh:
    kind = AbstractDevice(device_kind=device.kind, num_cores=1, platform=device.platform)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, mesh.axis_types or None, abstract_device=kind)


def key_dims(aval: Any) -> int:  # noqa: ANN401 - JAX's abstract array
    """Returns how many dims an array has in a module behind those that JAX shows: those of a typed key's words."""
    if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return 0
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return len(words.shape) - len(aval.shape)
