"""Cluster files: TOML text to `Cluster` and back. `docs/cluster.md` describes the format."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
import sys
import tomllib
from collections.abc import Collection, Mapping
from typing import Final, NoReturn

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.hardware import FLOPS_KEYS, TOPOLOGIES, Cluster, Device, Level

VERSION: Final = 1
_DEVICE_FIGURES: Final = ("hbm_bytes", "usable_hbm_fraction", "hbm_bytes_per_s", "matmul_efficiency", "memory_efficiency")
_LEVEL_FIGURES: Final = ("latency_s", "port_bytes_per_s", "efficiency")


def parse_cluster(text: str, file: str = "") -> Cluster:
    """Returns the cluster that `text` describes; `file` is named in errors.

    Raises:
        RhinoError: RHI-CLUSTER-002 where the text is not TOML or a key is missing, unknown or has a bad value.
    """
    root = _Table(_toml(text, file), "", file)
    root.keys("version", "name", "about", "device", "level")
    if root.count("version") != VERSION:
        root.fail("version", str(VERSION))
    device = _device(root.table("device"))
    levels = tuple(_level(table) for table in root.tables("level"))
    cluster = Cluster(root.text("name"), root.text("about"), device, levels)
    _check_levels(cluster, root)
    return cluster


def cluster_to_text(cluster: Cluster) -> str:
    """Returns the cluster file of `cluster`; `parse_cluster` gives back an equal value."""
    lines = [f"version = {VERSION}", f"name = {_string(cluster.name)}", f"about = {_string(cluster.about)}"]
    device, sources = cluster.device, dict(cluster.device.sources)
    lines += ["", "[device]", f"kind = {_string(device.kind)}"]
    lines += [_figure_line(key, getattr(device, key), sources[key]) for key in _DEVICE_FIGURES]
    lines += ["", "[device.flops_per_s]"]
    lines += [_figure_line(key, value, sources[f"flops_per_s.{key}"]) for key, value in device.flops_per_s]
    for level in cluster.levels:
        lines += ["", *_level_lines(level)]
    return "\n".join(lines) + "\n"


def _level_lines(level: Level) -> list[str]:
    sources = dict(level.sources)
    lines = ["[[level]]", f"name = {_string(level.name)}", f"size = {level.size}", f"topology = {_string(level.topology)}"]
    lines += [f"devices_per_port = {level.devices_per_port}"]
    lines += [_figure_line(key, getattr(level, key), sources[key]) for key in _LEVEL_FIGURES]
    if level.partial_bytes_per_s:
        lines += ["[level.partial_bytes_per_s]"]
        lines += [_figure_line(str(units), rate, sources[f"partial_bytes_per_s.{units}"]) for units, rate in level.partial_bytes_per_s]
    return lines


def _figure_line(key: str, value: float, source: str) -> str:
    return f"{key} = {{ value = {value!r}, source = {_string(source)} }}"


def _string(text: str) -> str:
    # JSON strings are TOML basic strings, but for DEL, which only TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _toml(text: str, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
        place = Place(file, int(at[1]), int(at[2])) if at else Place(file)
        message = str(error).replace(at[0], "") if at else str(error)
        raise RhinoError("RHI-CLUSTER-002", f"the cluster file is not TOML: {message}", place, fix="see docs/cluster.md") from None


def _device(table: _Table) -> Device:
    table.keys("kind", "flops_per_s", *_DEVICE_FIGURES)
    flops = table.table("flops_per_s")
    flops.keys(*FLOPS_KEYS, required=False)
    if not flops.data:
        table.fail("flops_per_s", "at least one element type")
    rates = tuple((key, flops.number(key)) for key in FLOPS_KEYS if key in flops.data)
    sources = [(key, table.source(key)) for key in _DEVICE_FIGURES]
    sources += [(f"flops_per_s.{key}", flops.source(key)) for key, _ in rates]
    return Device(
        kind=table.text("kind"),
        flops_per_s=rates,
        hbm_bytes=table.figure_table("hbm_bytes").count("value"),
        usable_hbm_fraction=table.fraction("usable_hbm_fraction"),
        hbm_bytes_per_s=table.number("hbm_bytes_per_s"),
        matmul_efficiency=table.fraction("matmul_efficiency"),
        memory_efficiency=table.fraction("memory_efficiency"),
        sources=tuple(sources),
    )


def _level(table: _Table) -> Level:
    table.keys("name", "size", "topology", "devices_per_port", *_LEVEL_FIGURES, optional=("partial_bytes_per_s",))
    topology = next((name for name in TOPOLOGIES if name == table.data["topology"]), None)
    if topology is None:
        table.fail("topology", f"one of {', '.join(TOPOLOGIES)}")
    partial = _partial(table)
    sources = [(key, table.source(key)) for key in _LEVEL_FIGURES]
    sources += [(f"partial_bytes_per_s.{units}", source) for units, _, source in partial]
    return Level(
        name=table.text("name"),
        size=table.count("size"),
        topology=topology,
        latency_s=table.number("latency_s"),
        port_bytes_per_s=table.number("port_bytes_per_s"),
        efficiency=table.fraction("efficiency"),
        devices_per_port=table.count("devices_per_port"),
        partial_bytes_per_s=tuple((units, rate) for units, rate, _ in partial),
        sources=tuple(sources),
    )


def _partial(table: _Table) -> list[tuple[int, float, str]]:
    if "partial_bytes_per_s" not in table.data:
        return []
    rates = table.table("partial_bytes_per_s")
    if table.data["topology"] != "ring":
        table.fail("partial_bytes_per_s", 'no such key unless topology is "ring"')
    sizes = [str(units) for units in range(2, table.count("size"))]
    rates.keys(*sizes, required=False)
    return [(int(key), rates.number(key), rates.source(key)) for key in sizes if key in rates.data]


def _check_levels(cluster: Cluster, root: _Table) -> None:
    names = [level.name for level in cluster.levels]
    for i, level in enumerate(cluster.levels):
        table = root.tables("level")[i]
        if level.name in names[:i]:
            table.fail("name", "a name that no other level has")
        unit = cluster.devices_per_unit(i)
        if unit % level.devices_per_port:
            table.fail("devices_per_port", f"a divisor of the {unit} devices in one unit of this level")


class _Table:
    """One table of the file, with the path of its keys for errors; each getter checks what it returns."""

    def __init__(self, data: Mapping[str, object], path: str, file: str) -> None:
        self.data, self._path, self._file = data, path, file

    def _key(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def fail(self, key: str, expected: str, fix: str = "") -> NoReturn:
        """Raises RHI-CLUSTER-002 for `key`, with what it holds and what was expected."""
        got = reprlib.repr(self.data[key]) if key in self.data else "nothing"
        what = f"cluster key {self._key(key)!r}: got {got}, expected {expected}"
        raise RhinoError("RHI-CLUSTER-002", what, Place(self._file), fix=fix or f"correct {self._key(key)!r}; see docs/cluster.md")

    def keys(self, *known: str, required: bool = True, optional: Collection[str] = ()) -> None:
        """Checks that no key is unknown and, with `required`, that each of `known` is there."""
        allowed = (*known, *optional)
        for key in self.data:
            if key not in allowed:
                close = difflib.get_close_matches(key, allowed, n=1)
                fix = f"did you mean {close[0]!r}?" if close else f"remove {self._key(key)!r}"
                self.fail(key, f"no such key; known keys are {', '.join(allowed)}", fix)
        missing = [key for key in known if key not in self.data]
        if required and missing:
            self.fail(missing[0], "a value", f"add {self._key(missing[0])!r}; see docs/cluster.md")

    def text(self, key: str) -> str:
        value = self.data[key]
        return value if isinstance(value, str) and value else self.fail(key, "a text that is not empty")

    def count(self, key: str) -> int:
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(key, "a whole number of at least 1")
        return value

    def table(self, key: str) -> _Table:
        value = self.data[key]
        return _Table(value, self._key(key), self._file) if isinstance(value, dict) else self.fail(key, "a table")

    def tables(self, key: str) -> list[_Table]:
        value = self.data[key]
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            self.fail(key, "one or more [[level]] tables, outermost first")
        return [_Table(item, f"{self._key(key)}[{i}]", self._file) for i, item in enumerate(value)]

    def figure_table(self, key: str) -> _Table:
        """Returns the `{ value = ..., source = "..." }` table of a number."""
        if not isinstance(self.data[key], dict):
            self.fail(key, 'a number with its source: { value = ..., source = "..." }')
        figure = self.table(key)
        figure.keys("value", "source")
        return figure

    def source(self, key: str) -> str:
        return self.figure_table(key).text("source")

    def number(self, key: str) -> float:
        figure = self.figure_table(key)
        value = figure.data["value"]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
            figure.fail("value", "a positive, finite number")
        return float(value)

    def fraction(self, key: str) -> float:
        value = self.number(key)
        return value if value <= 1 else self.figure_table(key).fail("value", "a fraction above 0 and at most 1")
