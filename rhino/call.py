"""How a function is called: which arguments are arrays, constants or donated, and what their leaves are.

Nothing is traced here.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from rhino.ir.diagnostics import RhinoError
from rhino.split_array import SplitArray

Tree = Any
"""A pytree of arrays."""
Leaf = tuple[tuple[int, ...], Any]
"""Shape and dtype."""

_NUMBERS: Final = (bool, int, float, complex)
_ARRAYS: Final = (jax.Array, SplitArray)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The arrays of one call: positional arguments, then those given by name, in the order of their names.

    `static` are the constants.
    """

    values: tuple[Tree, ...]
    names: tuple[str, ...]
    static: tuple[tuple[int | str, Hashable], ...]

    def with_named(self, name: str, value: Tree) -> Pieces:
        """Returns the arrays of the call with one more argument, by name."""
        place = sum(one < name for one in self.names)
        number = len(self.values) - len(self.names) + place
        values = (*self.values[:number], value, *self.values[number:])
        return replace(self, values=values, names=(*self.names[:place], name, *self.names[place:]))

    def all_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the user's function, constants and all."""
        num_positional = len(self.values) - len(self.names)
        by_name: dict[str, Any] = dict(zip(self.names, self.values[num_positional:], strict=True))
        positional = list(self.values[:num_positional])
        for where, value in self.static:
            if isinstance(where, int):
                positional.insert(where, value)
            else:
                by_name[where] = value
        return tuple(positional), by_name


@dataclass(frozen=True, slots=True)
class Key:
    """What a program is made for: two calls with equal keys run the same one."""

    names: tuple[str, ...]
    static: tuple[tuple[int | str, Hashable], ...]
    tree: jax.tree_util.PyTreeDef
    leaves: tuple[Leaf, ...]


class CallShape:
    """The options for arguments of one function, by number and by name alike."""

    def __init__(
        self,
        fn: Callable[..., Any],
        static: tuple[Iterable[int], Iterable[str]],
        donated: tuple[Iterable[int], Iterable[str]],
    ) -> None:
        self.name = getattr(fn, "__name__", type(fn).__name__)
        try:
            self.signature: inspect.Signature | None = inspect.signature(fn)
        except ValueError:  # a builtin has none
            self.signature = None
        self.static = self._resolve("static", *static)
        self.donated = self._resolve("donate", *donated)
        both = [str(one) for one in self.static if one in self.donated]
        if both:
            raise RhinoError(
                "RHI-JAX-002",
                f"argument {', '.join(both)} of {self.name} is both constant and donated",
                fix="donate arrays alone: leave it out of donate_argnums or of static_argnums",
            )

    def split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pieces:
        """Returns a call's arrays apart from its constants.

        Raises TypeError, as Python would, where the function is not called so.
        """
        if self.signature is not None:
            try:
                bound = self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}") from None
            args, kwargs = bound.args, bound.kwargs
        static: list[tuple[int | str, Hashable]] = [(n, value) for n, value in enumerate(args) if n in self.static]
        static += [(name, kwargs[name]) for name in sorted(kwargs) if name in self.static]
        for where, value in static:
            self._check_hashable(where, value)
        names = tuple(sorted(name for name in kwargs if name not in self.static))
        values = (*(value for n, value in enumerate(args) if n not in self.static), *(kwargs[name] for name in names))
        return Pieces(values, names, tuple(static))

    def donated_pieces(self, pieces: Pieces) -> tuple[int, ...]:
        """Returns which of a call's arrays are donated."""
        return tuple(number for number, where in enumerate(self.places(pieces)) if where in self.donated)

    def places(self, pieces: Pieces) -> tuple[int | str, ...]:
        """Returns where each of a call's arrays stands among the function's arguments: its number, or its name."""
        constants = [where for where, _ in pieces.static if isinstance(where, int)]
        num_positional = len(pieces.values) - len(pieces.names)
        numbers = [number for number in range(num_positional + len(constants)) if number not in constants]
        return (*numbers, *pieces.names)

    def title(self, where: int | str) -> str:
        """Returns what an argument is called, as JAX calls it in names of leaves."""
        parameters = self._positional()
        if isinstance(where, str):
            return where
        return parameters[where] if where < len(parameters) else f"args[{where}]"

    def key(self, pieces: Pieces) -> Key:
        """Returns what a call's program is made for.

        Raises:
            RhinoError: RHI-JAX-001 for a leaf that is no array, RHI-JAX-005 for one that JAX is tracing.
        """
        leaves, tree = jax.tree.flatten(pieces.values)
        try:
            kinds = tuple(map(leaf_kind, leaves))
        except (TypeError, _TracedError):
            raise self._bad_leaf(pieces) from None
        return Key(pieces.names, pieces.static, tree, kinds)

    def named_leaves(self, pieces: Pieces) -> Iterator[tuple[str, Any]]:
        """Yields the leaves of a call's arrays with their pytree paths."""
        titles = [self.title(where) for where in self.places(pieces)]
        for path, leaf in tree_flatten_with_path(pieces.values)[0]:
            yield titles[path[0].idx] + keystr(path[1:]), leaf

    def check_alive(self, pieces: Pieces) -> None:
        """Raises RHI-JAX-007 for an array that was deleted.

        On several host devices, XLA would end the process for it (jaxlib 0.10.2).
        """
        for name, leaf in self.named_leaves(pieces):
            if isinstance(leaf, _ARRAYS) and leaf.is_deleted():
                raise RhinoError(
                    "RHI-JAX-007",
                    f"{name} of {self.name} is gone: it was donated to an earlier call, or deleted",
                    fix=f"go on with what that call returned, state = {self.name}(state, ...), or do not donate",
                )

    def with_own_buffers(self, pieces: Pieces) -> Pieces:
        """Returns the call with copies of donated arrays that it has more than once.

        Each buffer can be donated only once.
        """
        leaves, tree = jax.tree.flatten(pieces.values)
        donated = self.donated_pieces(pieces)
        owners = [number for number, value in enumerate(pieces.values) for _ in jax.tree.leaves(value)]
        count = Counter(map(id, leaves))
        own = [
            leaf.copy() if owner in donated and count[id(leaf)] > 1 and isinstance(leaf, _ARRAYS) else leaf
            for owner, leaf in zip(owners, leaves, strict=True)
        ]
        return replace(pieces, values=jax.tree.unflatten(tree, own))

    def _bad_leaf(self, pieces: Pieces) -> RhinoError:
        for name, leaf in self.named_leaves(pieces):
            try:
                leaf_kind(leaf)
            except _TracedError:
                return RhinoError(
                    "RHI-JAX-005",
                    f"{self.name} is called inside jit, grad, vmap or another transformation: {name} is being traced",
                    fix=f"call it outside; inside of one, call {self.name}.__wrapped__, the function of one device",
                )
            except TypeError:
                return RhinoError(
                    "RHI-JAX-001",
                    f"{name} of {self.name} is {kind_name(leaf)}, no array: {leaf!r:.60}",
                    fix="pass arrays, numbers, or pytrees of them; "
                    "an argument that is a constant goes in static_argnames",
                )
        raise AssertionError("some leaf was refused")

    def _resolve(self, what: str, numbers: Iterable[int], names: Iterable[str]) -> frozenset[int | str]:
        """Returns the arguments that are meant, each by number and by name where it has both."""
        positional = self._positional()
        found: list[int | str] = []
        for number in numbers:
            if not isinstance(number, int):
                what_is = f"{what}_argnums has {number!r}, which is no number"
                raise RhinoError("RHI-JAX-002", what_is, fix=f"count arguments from 0, or name them in {what}_argnames")
            one = number + len(positional) if number < 0 else number
            if not 0 <= one < self._most():
                raise RhinoError(
                    "RHI-JAX-002",
                    f"{what}_argnums names argument {number} of {self.name}, which takes {len(positional)}",
                    fix="arguments are counted from 0",
                )
            found += [one, *positional[one : one + 1]]
        known = self.signature.parameters if self.signature is not None else {}
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
        for name in names:
            if name not in known and not takes_any:
                raise RhinoError(
                    "RHI-JAX-002",
                    f"{what}_argnames names {name!r}, which is no argument of {self.name}",
                    fix=f"its arguments are {', '.join(known) or 'not known'}",
                )
            found += [name, *([positional.index(name)] if name in positional else [])]
        return frozenset(found)

    def _positional(self) -> list[str]:
        parameters = self.signature.parameters.values() if self.signature is not None else ()
        return [one.name for one in parameters if one.kind in _POSITIONAL]

    def _most(self) -> float:
        """The largest number of positional arguments."""
        parameters = self.signature.parameters.values() if self.signature is not None else ()
        takes_any = self.signature is None or any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
        return float("inf") if takes_any else len(self._positional())

    def _check_hashable(self, where: int | str, value: object) -> None:
        try:
            hash(value)
        except TypeError:
            raise RhinoError(
                "RHI-JAX-002",
                f"constant {self.title(where)} of {self.name} is {kind_name(value)}, which has no hash",
                fix="a constant needs __hash__ and __eq__: a tuple for a list, a frozen dataclass for a dict",
            ) from None


class _TracedError(Exception):
    """A leaf is being traced."""


def kind_name(value: object) -> str:
    """Returns what kind of value something is, in words: its type with an article."""
    name = "array" if isinstance(value, jax.Array) else type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def leaf_kind(leaf: object) -> Leaf:
    """Returns shape and dtype of a leaf, as JAX takes it. Raises TypeError for what is no array."""
    if isinstance(leaf, jax.core.Tracer):
        raise _TracedError
    if isinstance(leaf, SplitArray):
        return leaf.shape, leaf.dtype
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        kind = jax.typeof(leaf)
        return kind.shape, kind.dtype
    extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return tuple(leaf.shape), leaf.dtype if extended else jax.dtypes.canonicalize_dtype(leaf.dtype)


def shapes_of(leaves: Sequence[object]) -> list[object]:
    """Returns each leaf as JAX is to trace it: numbers as they are, of arrays only shape and dtype.

    A number must stay as it is, because its dtype is weak.
    """
    return [leaf if isinstance(leaf, _NUMBERS) else jax.ShapeDtypeStruct(*leaf_kind(leaf)) for leaf in leaves]
