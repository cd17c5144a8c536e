"""The user's word: how tensors must lie, how they must not, and what the axes of the mesh are for.

As text:  a pin      `PATTERN=[{"x"}, {}]`, Shardy's list of dims; quotes may be left out, `?` leaves a dim open
          a ban      `PATTERN=[{}, {"y"}]` this sharding, or `PATTERN=y` any split along an axis
          a role     `AXIS=batch` or `AXIS=model`
          a scope    `PATTERN=replicate(4)` or `PATTERN=split(4)`; without a number, all devices
          a pad      `PATTERN` or `PATTERN:DIM`
As TOML:  `[[pin]]` and `[[forbid]]` with `name` and `sharding`, or `axis`; `[axis-role]` with an axis for a key;
          `[scope]` with a pattern; `[[pad]]` with `name`, and `dim` if it is one alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.request.scope_sharding import ScopeSharding, parse_scope_sharding

ROLES: Final = ("batch", "model")
_DIM: Final = re.compile(r"\s*\{([^{}]*)\}\s*")
_AXIS: Final = re.compile(r'"?([A-Za-z_][A-Za-z0-9_]*)"?')
_SHARDING: Final = 'a list of dims as [{}, {"x", "y"}, {?}]'
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Dim:
    """The axes that split a dim, outermost first; an open dim may be split further."""

    axes: tuple[str, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class Pin:
    """Tensors whose names match `pattern` lie as `dims` [rank] say. `provenance` is how the user put it."""

    pattern: str
    dims: tuple[Dim, ...]
    provenance: str


@dataclass(frozen=True, slots=True)
class Ban:
    """Tensors whose names match `pattern` do not lie as `dims` [rank] say."""

    pattern: str
    dims: tuple[Dim, ...]
    provenance: str


@dataclass(frozen=True, slots=True)
class AxisBan:
    """Tensors whose names match `pattern` are not split along `axis`."""

    pattern: str
    axis: str
    provenance: str


@dataclass(frozen=True, slots=True)
class AxisRole:
    """What is split along `axis`: one of `ROLES` (see `rhino.strategies.structure.axis_roles`)."""

    axis: str
    role: str
    provenance: str


@dataclass(frozen=True, slots=True)
class Scope:
    """Devices share the ops of the scopes whose names match `pattern` as `sharding` says."""

    pattern: str
    sharding: ScopeSharding
    provenance: str


@dataclass(frozen=True, slots=True)
class Pad:
    """Arguments whose names match `pattern` may be stored with padding along `dim`; None: along any."""

    pattern: str
    dim: int | None
    provenance: str

    @property
    def text(self) -> str:
        """The same as on a command line."""
        return self.pattern if self.dim is None else f"{self.pattern}:{self.dim}"


Constraint = Pin | Ban | AxisBan


@dataclass(frozen=True, slots=True)
class Constraints:
    """All constraints: on tensors, on axes, and on scopes."""

    constraints: tuple[Constraint, ...] = ()
    roles: tuple[AxisRole, ...] = ()
    scopes: tuple[Scope, ...] = ()
    pads: tuple[Pad, ...] = ()


class _MalformedError(Exception):
    """What was expected in place of what was got."""


def parse_pin(text: str) -> Pin:
    """Returns the pin `PATTERN=[dims]`. Raises RHI-CLI-001."""
    origin = f"pin '{text}'"
    return _on_command_line(origin, lambda: _pin(*_halves(text, f"PATTERN={_SHARDING}"), origin))


def parse_forbid(text: str) -> Ban | AxisBan:
    """Returns the ban `PATTERN=[dims]` or `PATTERN=axis`. Raises RHI-CLI-001."""
    origin = f"forbid '{text}'"
    return _on_command_line(origin, lambda: _ban(*_halves(text, f"PATTERN=AXIS, or PATTERN={_SHARDING}"), origin))


def parse_role(text: str) -> AxisRole:
    """Returns the role `AXIS=batch` or `AXIS=model`. Raises RHI-CLI-001."""
    origin = f"axis-role '{text}'"
    return _on_command_line(origin, lambda: _role(*_halves(text, "AXIS=ROLE"), origin))


def parse_scope(text: str) -> Scope:
    """Returns the scope `PATTERN=replicate(N)` or `PATTERN=split(N)`. Raises RHI-CLI-001."""
    origin = f"scope '{text}'"
    return _on_command_line(origin, lambda: _scope(*_halves(text, "PATTERN=replicate(N), or PATTERN=split(N)"), origin))


def parse_pad(text: str) -> Pad:
    """Returns the pad `PATTERN` or `PATTERN:DIM`. Raises RHI-CLI-001."""
    origin = f"pad '{text}'"
    pattern, colon, dim = text.strip().rpartition(":")
    if colon and not (pattern and dim.isdecimal()):
        raise RhinoError(
            "RHI-CLI-001",
            f"{origin}: expected NAME, or NAME:DIM with the number of a dim",
            fix="see docs/constraints.md",
        )
    return Pad(pattern, int(dim), origin) if colon else Pad(dim, None, origin)


def read_constraints(file: str) -> Constraints:
    """Returns what a TOML file says. Raises RHI-CLI-002 where it cannot be read, RHI-PIN-001."""
    root = read_toml(file, "RHI-PIN-001")
    try:
        _check_keys(root, "the file", ("pin", "forbid", "axis-role", "scope", "pad"))
        pins = [_file_pin(row, f"pin {number} of {file}") for number, row in enumerate(_rows(root, "pin"), 1)]
        bans = [_file_ban(row, f"forbid {number} of {file}") for number, row in enumerate(_rows(root, "forbid"), 1)]
        roles = [
            _role(axis, role, f"axis-role '{axis}={role}' of {file}")
            for axis, role in _table(root, "axis-role", "axes")
        ]
        scopes = [
            _scope(name, value, f"scope '{name}={value}' of {file}") for name, value in _table(root, "scope", "names")
        ]
        pads = [_file_pad(row, f"pad {number} of {file}") for number, row in enumerate(_rows(root, "pad"), 1)]
        return Constraints((*pins, *bans), tuple(roles), tuple(scopes), tuple(pads))
    except _MalformedError as error:
        raise RhinoError("RHI-PIN-001", str(error), Place(file), fix="see docs/constraints.md") from None


def read_toml(file: str, id: str) -> dict[str, object]:
    """Returns the root table of a TOML file. Raises RHI-CLI-002 where it cannot be read, `id` where it is not TOML."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        what = f"the file cannot be read: {error.strerror}"
        raise RhinoError("RHI-CLI-002", what, Place(file), fix="give a TOML file that can be read") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "RHI-CLI-002" if isinstance(error, UnicodeDecodeError) else id
        raise RhinoError(
            kind, f"not TOML: {error}", Place(file), fix="correct it; docs/constraints.md shows such files"
        ) from None


def _on_command_line(origin: str, make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except _MalformedError as error:
        raise RhinoError("RHI-CLI-001", f"{origin}: {error}", fix="see docs/constraints.md") from None


def _halves(text: str, expected: str) -> tuple[str, str]:
    """Cuts at the last `=`: names may hold more, shardings hold none."""
    left, equals, right = text.rpartition("=")
    if not (equals and left.strip() and right.strip()):
        raise _MalformedError(f"expected {expected}")
    return left.strip(), right.strip()


def _pin(pattern: str, sharding: str, origin: str) -> Pin:
    return Pin(pattern, _dims(sharding), origin)


def _ban(pattern: str, what: str, origin: str) -> Ban | AxisBan:
    axis = _AXIS.fullmatch(what)
    return AxisBan(pattern, axis[1], origin) if axis else Ban(pattern, _dims(what), origin)


def _role(axis: str, role: str, origin: str) -> AxisRole:
    if role not in ROLES:
        raise _MalformedError(f"got {axis}={role}, expected one of {', '.join(f'{axis}={one}' for one in ROLES)}")
    return AxisRole(axis, role, origin)


def _scope(pattern: str, text: str, origin: str) -> Scope:
    sharding = parse_scope_sharding(text)
    if sharding is None:
        raise _MalformedError(f"got {text}, expected replicate, split, or one of these with a number of devices in ()")
    return Scope(pattern, sharding, origin)


def _dims(text: str) -> tuple[Dim, ...]:
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text, re.DOTALL)
    found = [_DIM.fullmatch(part) for part in re.split(r"(?<=\})\s*,", inner[1])] if inner and inner[1].strip() else []
    dims = tuple(_dim(match[1]) for match in found if match)
    if inner is None or len(dims) != len(found):
        raise _MalformedError(f"got {text}, expected {_SHARDING}")
    axes = [axis for dim in dims for axis in dim.axes]
    for axis in axes:
        if axes.count(axis) > 1:
            raise _MalformedError(f'axis "{axis}" stands twice in {text}')
    return dims


def _dim(text: str) -> Dim:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    is_open = bool(words) and words[-1] == "?"
    axes = [_AXIS.fullmatch(word) for word in (words[:-1] if is_open else words)]
    names = tuple(match[1] for match in axes if match)
    if len(names) != len(axes):
        raise _MalformedError(f"got {{{text}}}, expected whole axes, and ? last if at all")
    return Dim(names, is_open)


def _rows(root: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    rows = root.get(key, [])
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise _MalformedError(f"{key}: expected tables [[{key}]]")
    return rows


def _table(root: Mapping[str, object], key: str, of: str) -> list[tuple[str, str]]:
    table = root.get(key, {})
    if not isinstance(table, dict):
        raise _MalformedError(f"{key}: got {table!r}, expected a table of {of}")
    return [(name, str(value)) for name, value in table.items()]


def _file_pin(row: Mapping[str, object], where: str) -> Pin:
    _check_keys(row, where, ("name", "sharding"))
    return _pin(_text(row, "name", where), _text(row, "sharding", where), _quoted(row, where))


def _file_ban(row: Mapping[str, object], where: str) -> Ban | AxisBan:
    _check_keys(row, where, ("name", "sharding", "axis"))
    if ("sharding" in row) == ("axis" in row):
        raise _MalformedError(f"{where}: expected either sharding or axis")
    return _ban(
        _text(row, "name", where), _text(row, "axis" if "axis" in row else "sharding", where), _quoted(row, where)
    )


def _file_pad(row: Mapping[str, object], where: str) -> Pad:
    _check_keys(row, where, ("name", "dim"))
    dim = row.get("dim")
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim < 0):
        raise _MalformedError(f"{where}: got dim = {dim!r}, expected the number of a dim")
    return Pad(_text(row, "name", where), dim, f"{where}, '{row['name']}'")


def _quoted(row: Mapping[str, object], where: str) -> str:
    return f"{where}, '{row['name']}={row.get('axis', row.get('sharding'))}'"


def _text(row: Mapping[str, object], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise _MalformedError(f"{where}: got {key} = {value!r}, expected text")
    return value


def _check_keys(row: Mapping[str, object], where: str, known: Collection[str]) -> None:
    for key in row:
        if key not in known:
            raise _MalformedError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
