"""What a cluster is made of, as values: a device, the levels that join devices, and the source of every number.

Numbers are plain; `sources` names, for each of them, the data sheet, paper or measurement it came from. What only a
measurement tells (fixed times, rates of ops other than products, each kind of collective) is None or empty where nobody
has measured.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Platform = Literal["cpu", "gpu", "tpu"]
PLATFORMS: Final[tuple[Platform, ...]] = get_args(Platform)
Topology = Literal["ring", "switch", "fully-connected", "host"]
CompileOption = tuple[str, bool | int | str]
"""An option of the platform's compiler, and its value."""
TOPOLOGIES: Final[tuple[Topology, ...]] = get_args(Topology)

_FLOAT_CHAINS: Final[dict[str, tuple[str, ...]]] = {
    "f64": ("f64", "f32", "tf32", "bf16", "f16"),
    "f32": ("f32", "f64", "tf32", "bf16", "f16"),
    "tf32": ("tf32", "f32", "f64", "bf16", "f16"),
    "bf16": ("bf16", "tf32", "f32", "f64", "f16"),
    "f16": ("f16", "tf32", "f32", "f64", "bf16"),
    "f8": ("f8", "f16", "bf16", "tf32", "f32", "f64"),
    "f4": ("f4", "f8", "f16", "bf16", "tf32", "f32", "f64"),
}
_INTEGERS: Final = ("i4", "i8", "i16", "i32", "i64")
_INTEGER_CHAINS: Final = {name: (*_INTEGERS[i:], *_FLOAT_CHAINS["f32"]) for i, name in enumerate(_INTEGERS)}
# Where a device has no unit for a type, the next type that holds all its values does the work; where there is none (f32
# on a TPU), the nearest narrower one, which is what XLA's default precision does there.
_CHAINS: Final = {**_FLOAT_CHAINS, **_INTEGER_CHAINS}
FLOPS_KEYS: Final = tuple(_CHAINS)

Pairs = tuple[tuple[str, str], ...]


def flops_key(dtype: str) -> str:
    """Returns the row of a FLOP/s table for an MLIR element type.

    "complex<f32>" is f32, "ui8" and "i1" (stored as a byte) are i8, "index" is i64; a type that is none of these counts
    as f32.
    """
    inner = re.fullmatch(r"complex<(\w+)>", dtype)
    name = inner[1] if inner else dtype
    if name in _CHAINS:
        return name
    integer = re.fullmatch(r"[us]?i(\d+)", "i64" if name == "index" else name)
    if integer:
        bits = 8 if integer[1] == "1" else int(integer[1])
        return next((key for key in _INTEGERS if bits <= int(key[1:])), "i64")
    return {"f8": "f8", "f6": "f8", "f4": "f4"}.get(name[:2], "f32")


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds that grow with work, in FLOPs or bytes: a fixed part, and a second per `per_s` of it."""

    fixed_s: float
    per_s: float

    def seconds(self, work: float) -> float:
        """Returns the seconds of an amount of work."""
        return self.fixed_s + work / self.per_s


@dataclass(frozen=True, slots=True)
class Operator:
    """Measured seconds of one op on elements of one type, at ascending amounts of work [points].

    A point is (work, seconds), and neither falls from one point to the next.

    Work is what the op does on one device: FLOPs of a product, otherwise bytes that it reads and writes. With
    `operands` and `results`, types as MLIR writes them between the brackets of a tensor's ("256x512xf32"), the table is
    of an op whose part on a device has these, and comes before one of all shapes: its last seconds count.
    """

    op: str
    dtype: str
    points: tuple[tuple[float, float], ...]
    source: str
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
        """What one table alone is of."""
        return self.op, self.dtype, self.operands, self.results

    def seconds(self, work: float) -> float:
        """Returns the seconds of an amount of work.

        Between two points they grow as a power of the work, below the first as between the first two, behind the last
        in proportion.
        """
        works = [point for point, _ in self.points]
        after = bisect_left(works, work)
        if after == len(works) or len(works) == 1:
            return self.points[-1][1] * work / works[-1]
        (w0, s0), (w1, s1) = self.points[max(after - 1, 0)], self.points[max(after, 1)]
        power = math.log(s1 / s0) / math.log(w1 / w0)
        return s0 * math.pow(work / w0, power)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and when a cluster was measured.

    That is the day (ISO 8601), the machine, and JAX's names for the platform and the device.
    """

    date: str
    machine: str
    platform: str
    device_kind: str
    jaxlib: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    `platform` says whose compiler makes its programs, and `compile_options` with which options.

    Units: `flops_per_s` is the peak of matrix units by element type, one multiply-add counted as two, dense;
    `hbm_bytes` the memory, of which programs may use `usable_hbm_fraction`, and a plan leaves the share
    `headroom_fraction` of that free, if there is one; `hbm_bytes_per_s` the peak.
    `matmul_efficiency` and `memory_efficiency` are the fractions of the two peaks that large programs reach.
    `near_memory_bytes` is what a compiler has of a memory nearer to the units, for values of one program, and
    `workspace_bytes` what a library's product takes beside its operands and result; None where there is nothing such.
    `host_bytes_per_s` is what large copies between a device's memory and its host's reach, in one direction, with all
    devices of the host busy; None where nobody knows: then nothing is kept in host memory. `host_bytes` is what a
    device's share of that memory holds for a program; None where nobody knows: then it is taken to hold anything.

    Measured, where known: `launch_s` is the fixed time of launching a program and `array_s` what each array that it
    takes or gives adds; `op_s` is the fixed time of an op which is a kernel of its own; `vector_per_s` is how many
    elements an op computes that is no product, `costly_per_s` the same of roots, exponentials and the like; `operators`
    are tables of single ops, which come before these rates.
    """

    kind: str
    flops_per_s: tuple[tuple[str, float], ...]
    hbm_bytes: int
    usable_hbm_fraction: float
    hbm_bytes_per_s: float
    matmul_efficiency: float
    memory_efficiency: float
    sources: Pairs
    platform: Platform = "gpu"
    near_memory_bytes: int | None = None
    workspace_bytes: int | None = None
    headroom_fraction: float | None = None
    host_bytes_per_s: float | None = None
    host_bytes: int | None = None
    launch_s: float | None = None
    array_s: float | None = None
    op_s: float | None = None
    vector_per_s: float | None = None
    costly_per_s: float | None = None
    operators: tuple[Operator, ...] = ()
    compile_options: tuple[CompileOption, ...] = ()

    def operator(self, op: str, dtype: str) -> Operator | None:
        """Returns the table of an op of any shape on elements of an MLIR type, if there is one."""
        return next((one for one in self.operators if one.key == (op, dtype, (), ())), None)

    def peak_flops_per_s(self, dtype: str) -> float:
        """Returns the peak for an MLIR element type (or "tf32").

        A type that is not in the table takes the next listed type that holds its values, else the nearest narrower one.
        """
        table = dict(self.flops_per_s)
        return next(table[key] for key in _CHAINS[flops_key(dtype)] if key in table)

    def matmul_flops_per_s(self, dtype: str) -> float:
        """Returns what a large matrix product or convolution reaches: peak x `matmul_efficiency`."""
        return self.peak_flops_per_s(dtype) * self.matmul_efficiency

    @property
    def memory_bytes_per_s(self) -> float:
        """What a large element-wise program reaches, bytes read plus bytes written: peak x `memory_efficiency`."""
        return self.hbm_bytes_per_s * self.memory_efficiency

    @property
    def near_bytes(self) -> int:
        """The near memory that holds values for longer than a kernel runs: two thirds; 0 where there is none."""
        return (self.near_memory_bytes or 0) * 2 // 3

    @property
    def usable_hbm_bytes(self) -> int:
        """The memory a plan may count on; the sources of the two shares say who takes the rest."""
        return int(self.hbm_bytes * self.usable_hbm_fraction * (1 - (self.headroom_fraction or 0.0)))


@dataclass(frozen=True, slots=True)
class Level:
    """`size` equal units (devices, or whole levels below) joined by one kind of link.

    Each group of `devices_per_port` neighbouring devices of a unit shares a port (a network card, or all of a device's
    own NVLinks) that sends `port_bytes_per_s` and receives as much at the same time. `efficiency` is the fraction that
    collectives reach, `latency_s` the time of one step from a device to the next. On a "ring" whose links are wired
    point to point, a group of fewer devices than the level has fewer links: `partial_bytes_per_s` lists the port's rate
    by number of units in the group.

    Measured, where known: `collectives` are (kind, number of units in the group, seconds by payload) with all groups of
    the level busy; `transfer` is one array on its way from a device to another, outside of programs.
    """

    name: str
    size: int
    topology: Topology
    latency_s: float
    port_bytes_per_s: float
    efficiency: float
    devices_per_port: int
    partial_bytes_per_s: tuple[tuple[int, float], ...]
    sources: Pairs
    collectives: tuple[tuple[str, int, Line], ...] = ()
    transfer: Line | None = None

    def reached_bytes_per_s(self, num_units: int) -> float:
        """Returns what a port reaches, per direction, in a group of `num_units` of the level's units."""
        if num_units >= self.size:
            return self.port_bytes_per_s * self.efficiency
        if self.topology == "fully-connected":
            return self.port_bytes_per_s * self.efficiency * (num_units - 1) / (self.size - 1)
        listed = [rate for units, rate in self.partial_bytes_per_s if units <= num_units]
        return (listed[-1] if listed else self.port_bytes_per_s) * self.efficiency


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices joined by `levels`, outermost (slowest) first: equal ones, or `groups` of them.

    Devices are numbered with the innermost level fastest. `compile_for` is what the platform's compiler calls them: a
    topology for TPUs ("v5e:2x4"), the name of a described device for GPUs ("h100-sxm"); empty where nobody says.

    Where there are unlike `groups`, `device` and `levels` are what all of them have (rhino.ir.cluster.groups). Meshes
    and ranks take devices in `order`, which has each once; empty is as numbered (rhino.ir.cluster.placement).
    """

    name: str
    about: str
    device: Device
    levels: tuple[Level, ...]
    measured: Origin | None = None
    compile_for: str = ""
    groups: tuple[Cluster, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def in_order(self) -> Sequence[int]:
        """The devices in the order in which meshes and ranks take them."""
        return self.order or range(self.num_devices)

    @property
    def num_devices(self) -> int:
        """The product of the level sizes."""
        return math.prod(level.size for level in self.levels)

    def devices_per_unit(self, level: int) -> int:
        """Returns the number of devices in one unit of `levels[level]`."""
        return math.prod(inner.size for inner in self.levels[level + 1 :])
