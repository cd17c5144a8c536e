"""The logical mesh that a user asks for: named axes with sizes, outermost first."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rhino.ir.diagnostics import RhinoError

_AXIS_NAMES: Final = ("x", "y", "z", "w", "v", "u")
_NAMED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([0-9]+)")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes and their sizes, outermost first; devices are numbered row by row (the last axis runs fastest)."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        assert self.axes, "a mesh has at least one axis"
        assert all(size >= 1 for _, size in self.axes), self.axes
        assert len(set(self.names)) == len(self.axes), self.axes

    @property
    def names(self) -> tuple[str, ...]:
        """The axis names, outermost first."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The axis sizes, outermost first."""
        return tuple(size for _, size in self.axes)

    @property
    def num_devices(self) -> int:
        """The product of the axis sizes."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


def mesh_of_shape(shape: tuple[int, ...]) -> Mesh:
    """Returns the mesh of `shape` with the default axis names x, y, z, w, v, u, then axis6, axis7, ..."""
    names = (*_AXIS_NAMES, *(f"axis{i}" for i in range(len(_AXIS_NAMES), len(shape))))
    return Mesh(tuple(zip(names, shape, strict=False)))


def finer_shapes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of three axes next to one, all with as many devices; none next to a single axis.

    Of two axes one is divided; of three one gets a prime factor of another.
    """
    found: list[tuple[int, ...]] = []
    for at, size in enumerate(shape):
        for factor in (factor for factor in range(2, size) if size % factor == 0):
            if len(shape) == 2:
                found.append((*shape[:at], factor, size // factor, *shape[at + 1 :]))
            elif len(shape) == 3 and all(factor % smaller for smaller in range(2, factor)):
                for other in (other for other in range(3) if other != at):
                    moved = {at: size // factor, other: shape[other] * factor}
                    found.append(tuple([moved.get(place, one) for place, one in enumerate(shape)]))
    return tuple(dict.fromkeys(found))


def parse_mesh(text: str) -> Mesh:
    """Returns the mesh written as "8", "2x4" or "x=2,y=4" (outermost axis first).

    Raises:
        RhinoError: RHI-CLI-001 where the text has another form, a size below 1, an axis name twice, or several meshes.
    """
    compact = text.replace(" ", "")
    if count := compact.count(";"):
        what = f"mesh: got {text!r}, which are those of {count + 1} ranks, and one program has one mesh"
        raise RhinoError("RHI-CLI-001", what, fix=f"write one mesh, or ask for as many stages: --stages={count + 1}")
    if re.fullmatch(r"[0-9]+(x[0-9]+)*", compact):
        axes = (
            mesh_of_shape(tuple(int(size) for size in compact.split("x"))).axes if _positive(compact.split("x")) else ()
        )
    else:
        axes = _named_axes(text, compact)
    if not axes:
        raise _bad_mesh(text, "every axis size at least 1")
    return Mesh(axes)


def parse_meshes(text: str) -> tuple[Mesh, ...]:
    """Returns the meshes written one after the other with ; between, as "2x2;2;2".

    Raises:
        RhinoError: RHI-CLI-001 where one of them is none.
    """
    return tuple(map(parse_mesh, text.split(";")))


def option_of_meshes(meshes: Sequence[Mesh]) -> str:
    """Returns the text that `parse_meshes` reads as these meshes; empty where there are none."""
    return ";".join(map(str, meshes))


def _named_axes(text: str, compact: str) -> tuple[tuple[str, int], ...]:
    matches = [_NAMED.fullmatch(part) for part in compact.split(",")]
    pairs = [(match[1], match[2]) for match in matches if match]
    if len(pairs) != len(matches):
        raise _bad_mesh(text, "sizes like 2x4 or named axes like x=2,y=4")
    names = [name for name, _ in pairs]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _bad_mesh(text, f"each axis name once; {name!r} is there twice")
    return tuple((name, int(size)) for name, size in pairs) if _positive([size for _, size in pairs]) else ()


def _positive(sizes: list[str]) -> bool:
    return all(int(size) >= 1 for size in sizes)


def _bad_mesh(text: str, expected: str) -> RhinoError:
    return RhinoError(
        "RHI-CLI-001", f"mesh: got {text!r}, expected {expected}", fix="write a mesh like 8, 2x4 or x=2,y=4"
    )
