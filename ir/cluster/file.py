"""Cluster files: TOML text to `Cluster` and back. `docs/cluster.md` describes the format.

Version 2 has what version 1 has, and what only measurements tell: all of it optional. Version 3 has groups of devices:
each is a table with what a file of version 2 has.
"""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from dataclasses import replace
from typing import Final

from rhino.ir.cluster.groups import joined
from rhino.ir.cluster.hardware import (
    FLOPS_KEYS,
    PLATFORMS,
    TOPOLOGIES,
    Cluster,
    CompileOption,
    Device,
    Level,
    Line,
    Operator,
    Origin,
)
from rhino.ir.cluster.operators import file_operators
from rhino.ir.cluster.table import Table
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.collective_stats import KINDS

VERSIONS: Final = (1, 2, 3)
_DEVICE_FIGURES: Final = (
    "hbm_bytes",
    "usable_hbm_fraction",
    "hbm_bytes_per_s",
    "matmul_efficiency",
    "memory_efficiency",
)
_MEASURED_FIGURES: Final = ("launch_s", "array_s", "op_s", "vector_per_s", "costly_per_s")
_BYTES_FIGURES: Final = ("near_memory_bytes", "workspace_bytes", "host_bytes")
_HOST_RATE: Final = "host_bytes_per_s"
_HEADROOM: Final = "headroom_fraction"
_OPTIONS: Final = "compile_options"
_ORIGIN: Final = ("date", "machine", "platform", "device_kind", "jaxlib")
MOST_DEVICES: Final = 1 << 20
"""Devices of a cluster: ten times those of the largest that there are (some 100,000, 2025), and few enough to list."""
_LEVELS: Final = "one or more [[level]] tables, outermost first"
_GROUPS: Final = "one or more [[group]] tables"
_LEVEL_FIGURES: Final = ("latency_s", "port_bytes_per_s", "efficiency")


def parse_cluster(text: str, file: str = "") -> Cluster:
    """Returns the cluster that `text` describes; `file` is named in errors.

    Raises:
        RhinoError: RHI-CLUSTER-002 where the text is not TOML or a key is missing, unknown or has a bad value.
    """
    root = Table(_toml(text, file), "", file)
    if "version" not in root.data:
        root.keys("version", "name", "about", *_EQUAL_DEVICES, optional=_MAY_BE_THERE)
    version = root.count("version")
    if version not in VERSIONS:
        root.fail("version", " or ".join(map(str, VERSIONS)))
    cluster = _of_groups(root) if "group" in root.data else _of_equal_devices(root, "version")
    if version < _version(cluster):
        why = "groups" if cluster.groups else "measurements"
        root.fail("version", f"{_version(cluster)}, for the file has {why}")
    return cluster


_EQUAL_DEVICES: Final = ("device", "level")
_MAY_BE_THERE: Final = ("measured", "operator", "compile_for")


def _of_equal_devices(root: Table, *more: str) -> Cluster:
    """Returns the cluster of equal devices that a table describes, which has the keys `more` too."""
    root.keys(*more, "name", "about", *_EQUAL_DEVICES, optional=_MAY_BE_THERE)
    origin = _origin(root.table("measured")) if "measured" in root.data else None
    operators = (
        file_operators(root.tables("operator", "one or more [[operator]] tables")) if "operator" in root.data else ()
    )
    device = _device(root.table("device"), operators)
    levels = tuple(_level(table) for table in root.tables("level", _LEVELS))
    if "platform" not in root.table("device").data and any(level.topology == "host" for level in levels):
        device = replace(device, platform="cpu")
    compile_for = root.text("compile_for") if "compile_for" in root.data else ""
    cluster = Cluster(root.text("name"), root.text("about"), device, levels, origin, compile_for)
    _check_levels(cluster, root)
    return cluster


def _of_groups(root: Table) -> Cluster:
    """Returns the cluster of groups that a file describes."""
    root.keys("version", "name", "about", "group", "level")
    tables = root.tables("group", _GROUPS)
    groups = [_of_equal_devices(table) for table in tables]
    for number, (group, table) in enumerate(zip(groups, tables, strict=True)):
        if group.device.platform != groups[0].device.platform:
            table.table("device").fail(
                "platform", f"{groups[0].device.platform}, as the other groups: one compiler for all"
            )
        if group.name in [one.name for one in groups[:number]]:
            table.fail("name", "a name that no other group has")
    levels = root.tables("level", _LEVELS)
    if len(levels) != 1:
        root.fail("level", "one [[level]] table, which joins the groups")
    between = _level(levels[0])
    if between.size != len(groups):
        levels[0].fail("size", f"{len(groups)}, the number of groups")
    cluster = joined(root.text("name"), root.text("about"), groups, between)
    if cluster.num_devices > MOST_DEVICES:
        root.fail("group", f"at most {MOST_DEVICES:,} devices in all")
    if cluster.devices_per_unit(0) % between.devices_per_port:
        unit = cluster.devices_per_unit(0)
        levels[0].fail("devices_per_port", f"a divisor of the {unit} devices that the numbers of all groups divide by")
    return cluster


def _version(cluster: Cluster) -> int:
    """The first version of the format that has all that a cluster has."""
    if cluster.groups:
        return 3
    device = cluster.device
    figures = [getattr(device, key) for key in _MEASURED_FIGURES]
    measured = any(level.collectives or level.transfer for level in cluster.levels)
    return 2 if cluster.measured or device.operators or measured or any(figures) else 1


def cluster_to_text(cluster: Cluster) -> str:
    """Returns the cluster file of `cluster`; `parse_cluster` gives back an equal value."""
    head = [f"version = {_version(cluster)}"]
    if not cluster.groups:
        return "\n".join([*head, *_equal_devices_lines(cluster)]) + "\n"
    lines = [*head, *_name_lines(cluster)]
    for group in cluster.groups:
        lines += ["", "[[group]]", *_equal_devices_lines(group, "group.")]
    between = replace(cluster.levels[0], size=len(cluster.groups))
    return "\n".join([*lines, "", *_level_lines(between)]) + "\n"


def _name_lines(cluster: Cluster) -> list[str]:
    return [f"name = {_string(cluster.name)}", f"about = {_string(cluster.about)}"]


def _equal_devices_lines(cluster: Cluster, path: str = "") -> list[str]:
    """Returns what a file says of a cluster of equal devices, whose tables have names that begin with `path`."""
    lines = _name_lines(cluster)
    lines += [f"compile_for = {_string(cluster.compile_for)}"] if cluster.compile_for else []
    if cluster.measured:
        lines += ["", f"[{path}measured]", *(f"{key} = {_string(getattr(cluster.measured, key))}" for key in _ORIGIN)]
    device, sources = cluster.device, dict(cluster.device.sources)
    lines += ["", f"[{path}device]", f"kind = {_string(device.kind)}", f"platform = {_string(device.platform)}"]
    lines += [_figure_line(key, getattr(device, key), sources[key]) for key in (*_DEVICE_FIGURES, *_known(device))]
    lines += ["", f"[{path}device.flops_per_s]"]
    lines += [_figure_line(key, value, sources[f"flops_per_s.{key}"]) for key, value in device.flops_per_s]
    lines += ["", f"[{path}device.{_OPTIONS}]"] if device.compile_options else []
    lines += [f"{key} = {json.dumps(value)}" for key, value in device.compile_options]
    for one in device.operators:
        lines += ["", f"[[{path}operator]]", f"op = {_string(one.op)}", f"dtype = {_string(one.dtype)}"]
        lines += [f"points = {[list(point) for point in one.points]!r}", f"source = {_string(one.source)}"]
        shapes = (("operands", one.operands), ("results", one.results))
        lines += [f"{key} = [{', '.join(map(_string, types))}]" for key, types in shapes if types]
    for level in cluster.levels:
        lines += ["", *_level_lines(level, path)]
    return lines


def _known(device: Device) -> list[str]:
    return [
        key for key in (_HEADROOM, *_BYTES_FIGURES, _HOST_RATE, *_MEASURED_FIGURES) if getattr(device, key) is not None
    ]


def _level_lines(level: Level, path: str = "") -> list[str]:
    sources = dict(level.sources)
    lines = [
        f"[[{path}level]]",
        f"name = {_string(level.name)}",
        f"size = {level.size}",
        f"topology = {_string(level.topology)}",
    ]
    lines += [f"devices_per_port = {level.devices_per_port}"]
    lines += [_figure_line(key, getattr(level, key), sources[key]) for key in _LEVEL_FIGURES]
    if level.partial_bytes_per_s:
        lines += [f"[{path}level.partial_bytes_per_s]"]
        lines += [
            _figure_line(str(units), rate, sources[f"partial_bytes_per_s.{units}"])
            for units, rate in level.partial_bytes_per_s
        ]
    for kind in KINDS:
        rows = [(units, line) for name, units, line in level.collectives if name == kind]
        lines += [f"[{path}level.collectives.{kind}]"] if rows else []
        lines += [f"{units} = {_line_text(line, sources[f'collectives.{kind}.{units}'])}" for units, line in rows]
    if level.transfer is not None:
        lines += [
            f"[{path}level.transfer]",
            f"latency_s = {level.transfer.fixed_s!r}",
            f"bytes_per_s = {level.transfer.per_s!r}",
        ]
        lines += [f"source = {_string(sources['transfer'])}"]
    return lines


def _line_text(line: Line, source: str) -> str:
    return f"{{ latency_s = {line.fixed_s!r}, bytes_per_s = {line.per_s!r}, source = {_string(source)} }}"


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
        raise RhinoError(
            "RHI-CLUSTER-002", f"the cluster file is not TOML: {message}", place, fix="see docs/cluster.md"
        ) from None


def _origin(table: Table) -> Origin:
    table.keys(*_ORIGIN)
    try:
        datetime.date.fromisoformat(table.text("date"))
    except ValueError:
        table.fail("date", "a day, as 2026-01-31")
    return Origin(*(table.text(key) for key in _ORIGIN))


def _options(table: Table) -> tuple[CompileOption, ...]:
    """Returns the options of a compiler by name."""
    return tuple([(key, table.option(key)) for key in sorted(table.data)])


def _device(table: Table, operators: tuple[Operator, ...]) -> Device:
    table.keys(
        "kind",
        "flops_per_s",
        *_DEVICE_FIGURES,
        optional=("platform", _HEADROOM, _OPTIONS, *_BYTES_FIGURES, _HOST_RATE, *_MEASURED_FIGURES),
    )
    platform = next((name for name in PLATFORMS if name == table.data.get("platform", "gpu")), None)
    if platform is None:
        table.fail("platform", f"one of {', '.join(PLATFORMS)}")
    rated = [key for key in (_HOST_RATE, *_MEASURED_FIGURES) if key in table.data]
    flops = table.table("flops_per_s")
    flops.keys(*FLOPS_KEYS, required=False)
    if not flops.data:
        table.fail("flops_per_s", "at least one element type")
    rates = tuple((key, flops.number(key)) for key in FLOPS_KEYS if key in flops.data)
    counts = [key for key in (_HEADROOM, *_BYTES_FIGURES) if key in table.data]
    sources = [(key, table.source(key)) for key in (*_DEVICE_FIGURES, *counts, *rated)]
    sources += [(f"flops_per_s.{key}", flops.source(key)) for key, _ in rates]
    return Device(
        kind=table.text("kind"),
        flops_per_s=rates,
        hbm_bytes=table.figure_table("hbm_bytes").count("value"),
        usable_hbm_fraction=table.fraction("usable_hbm_fraction"),
        headroom_fraction=_headroom(table),
        hbm_bytes_per_s=table.number("hbm_bytes_per_s"),
        matmul_efficiency=table.fraction("matmul_efficiency"),
        memory_efficiency=table.fraction("memory_efficiency"),
        sources=tuple(sources),
        platform=platform,
        operators=operators,
        compile_options=_options(table.table(_OPTIONS)) if _OPTIONS in table.data else (),
        near_memory_bytes=_count(table, "near_memory_bytes"),
        workspace_bytes=_count(table, "workspace_bytes"),
        host_bytes=_count(table, "host_bytes"),
        **{key: table.number(key) for key in rated},
    )


def _headroom(table: Table) -> float | None:
    if _HEADROOM not in table.data:
        return None
    share = table.fraction(_HEADROOM)
    if share >= 1:
        table.fail(_HEADROOM, "a fraction below 1: a plan needs some memory")
    return share


def _count(table: Table, key: str) -> int | None:
    return table.figure_table(key).count("value") if key in table.data else None


def _level(table: Table) -> Level:
    table.keys(
        "name",
        "size",
        "topology",
        "devices_per_port",
        *_LEVEL_FIGURES,
        optional=("partial_bytes_per_s", "collectives", "transfer"),
    )
    if table.count("size") > MOST_DEVICES:
        table.fail("size", f"at most {MOST_DEVICES:,}")
    topology = next((name for name in TOPOLOGIES if name == table.data["topology"]), None)
    if topology is None:
        table.fail("topology", f"one of {', '.join(TOPOLOGIES)}")
    partial = _partial(table)
    sources = [(key, table.source(key)) for key in _LEVEL_FIGURES]
    sources += [(f"partial_bytes_per_s.{units}", source) for units, _, source in partial]
    collectives = _collectives(table)
    sources += [(f"collectives.{kind}.{units}", source) for kind, units, _, source in collectives]
    transfer = _line(table.table("transfer")) if "transfer" in table.data else None
    sources += [("transfer", transfer[1])] if transfer else []
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
        collectives=tuple((kind, units, line) for kind, units, line, _ in collectives),
        transfer=transfer[0] if transfer else None,
    )


def _partial(table: Table) -> list[tuple[int, float, str]]:
    if "partial_bytes_per_s" not in table.data:
        return []
    rates = table.table("partial_bytes_per_s")
    if table.data["topology"] != "ring":
        table.fail("partial_bytes_per_s", 'no such key unless topology is "ring"')
    sizes = [str(units) for units in range(2, table.count("size"))]
    rates.keys(*sizes, required=False)
    return [(int(key), rates.number(key), rates.source(key)) for key in sizes if key in rates.data]


def _collectives(table: Table) -> list[tuple[str, int, Line, str]]:
    if "collectives" not in table.data:
        return []
    kinds = table.table("collectives")
    kinds.keys(*KINDS, required=False)
    sizes = [str(units) for units in range(2, table.count("size") + 1)]
    rows = []
    for kind in (kind for kind in KINDS if kind in kinds.data):
        groups = kinds.table(kind)
        groups.keys(*sizes, required=False)
        rows += [(kind, int(size), *_line(groups.table(size))) for size in sizes if size in groups.data]
    return rows


def _line(table: Table) -> tuple[Line, str]:
    table.keys("latency_s", "bytes_per_s", "source")
    return Line(table.plain_number("latency_s"), table.plain_number("bytes_per_s")), table.text("source")


def _check_levels(cluster: Cluster, root: Table) -> None:
    if cluster.num_devices > MOST_DEVICES:
        sizes = " x ".join(str(level.size) for level in cluster.levels)
        root.tables("level", _LEVELS)[0].fail("size", f"at most {MOST_DEVICES:,} devices in all, not {sizes}")
    names = [level.name for level in cluster.levels]
    for i, level in enumerate(cluster.levels):
        table = root.tables("level", _LEVELS)[i]
        if level.name in names[:i]:
            table.fail("name", "a name that no other level has")
        unit = cluster.devices_per_unit(i)
        if unit % level.devices_per_port:
            table.fail("devices_per_port", f"a divisor of the {unit} devices in one unit of this level")
