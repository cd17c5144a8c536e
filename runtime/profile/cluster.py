"""From what was measured to the description of a cluster: a line for each rate, and where it came from."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from typing import Final

import jax

from rhino.ir.cluster.age import machine_words
from rhino.ir.cluster.groups import joined
from rhino.ir.cluster.hardware import FLOPS_KEYS, Cluster, Device, Level, Line, Operator, Origin, Platform
from rhino.ir.graph.collective_stats import KINDS
from rhino.runtime.profile.fit import LEAST_S, Fit, fit_line
from rhino.runtime.profile.measure import Sample

_PLATFORMS: Final[dict[str, Platform]] = {"cpu": "cpu", "tpu": "tpu"}
"""Platforms by JAX's names: what is none of these is a GPU."""
_PRODUCTS: Final = {"product": "stablehlo.dot_general", "convolution": "stablehlo.convolution"}
_RATE: Final = "the figure is measured, not a peak"
_HOST_SHARE: Final = 0.9
_ACCELERATOR_SHARE: Final = 0.75
"""What JAX's allocator takes of a GPU's memory, and says as the limit of a device."""


def origin_of(devices: Sequence[jax.Device], day: datetime.date) -> Origin:
    """Returns where and when these devices are measured."""
    return Origin(day.isoformat(), machine_words(), devices[0].platform, devices[0].device_kind, version("jaxlib"))


def make_cluster(name: str, samples: Sequence[Sample], devices: Sequence[jax.Device], origin: Origin) -> Cluster:
    """Returns the cluster of one level that the samples were measured on."""
    about = f"{len(devices)} devices ({origin.device_kind}) of one machine: {origin.machine}"
    maker = _Maker(samples, devices, origin)
    return Cluster(name, about, maker.device(), (maker.level(),), origin)


def make_groups(name: str, groups: Sequence[Cluster], transfers: Sequence[Sample], origin: Origin) -> Cluster:
    """Returns the cluster of groups of unlike devices, between which `transfers` were measured.

    Collectives over several groups were not: they are priced by the link that a transfer has.
    """
    fit = fit_line([(one.work, one.seconds) for one in transfers])
    count = sum(one.num_devices for one in groups)
    source = measured_on(origin, count, f"arrays from each device to one of the next group: {fit.text}")
    level = Level(
        name="between groups",
        size=len(groups),
        topology="switch",
        latency_s=fit.line.fixed_s,
        port_bytes_per_s=fit.line.per_s,
        efficiency=1.0,
        devices_per_port=1,
        partial_bytes_per_s=(),
        sources=(("latency_s", source), ("port_bytes_per_s", source), ("efficiency", _RATE), ("transfer", source)),
        transfer=fit.line,
    )
    return joined(name, f"{count} unlike devices of one machine: {origin.machine}", groups, level)


def measured_on(origin: Origin, count: int, what: str) -> str:
    """Returns the source of a figure that was measured on all of `count` devices."""
    return f"measured {origin.date}, jaxlib {origin.jaxlib}, {count} devices at once on {origin.machine}; {what}"


@dataclass(frozen=True, eq=False)
class _Maker:
    samples: Sequence[Sample]
    devices: Sequence[jax.Device]
    origin: Origin

    def of(self, group: str, inner: int = 1) -> list[Sample]:
        """The samples of a kind of work in groups of `inner` devices, by work."""
        return sorted(
            (one for one in self.samples if (one.group, one.inner) == (group, inner)),
            key=lambda one: (one.work, one.seconds),
        )

    def fit(self, group: str, inner: int = 1) -> Fit:
        return fit_line([(one.work, one.seconds) for one in self.of(group, inner)])

    def source_of(self, what: str, fit: Fit | None = None, spread: float | None = None) -> str:
        """The source of a figure: when and where it was measured, on what, and how sure it is."""
        sure = f": {fit.text}" if fit else f": timings spread by {spread:.0%}" if spread is not None else ""
        return measured_on(self.origin, len(self.devices), f"{what}{sure}")

    def device(self) -> Device:
        memory, step = self.fit("memory"), self.fit("step memory")
        vector, costly = self.fit("vector"), self.fit("costly")
        few, many = self.of("launch")
        (op,) = self.of("op")
        array_s = max(many.seconds - few.seconds, LEAST_S) / (many.work - few.work)
        rates = self.rates()
        hbm_bytes, fraction, memory_sources = _memory(self.devices)
        return Device(
            kind=f"{self.origin.device_kind} (1 of {len(self.devices)})",
            flops_per_s=tuple((key, fit.line.per_s) for key, fit in rates),
            platform=_PLATFORMS.get(self.origin.platform, "gpu"),
            hbm_bytes=hbm_bytes,
            usable_hbm_fraction=fraction,
            hbm_bytes_per_s=memory.line.per_s,
            matmul_efficiency=1.0,
            memory_efficiency=min(1.0, step.line.per_s / memory.line.per_s),
            launch_s=max(few.seconds - few.work * array_s, LEAST_S),
            array_s=array_s,
            op_s=op.seconds,
            vector_per_s=vector.line.per_s,
            costly_per_s=costly.line.per_s,
            operators=tuple(self.operators()),
            sources=(
                ("hbm_bytes", memory_sources[0]),
                ("usable_hbm_fraction", memory_sources[1]),
                ("hbm_bytes_per_s", self.source_of("sums, transposes and reductions, bytes read plus written", memory)),
                ("matmul_efficiency", _RATE),
                (
                    "memory_efficiency",
                    self.source_of(
                        "the training step of a net of norms, by what its kernels move, over that rate", step
                    ),
                ),
                ("launch_s", self.source_of("a program of one array", spread=few.spread)),
                (
                    "array_s",
                    self.source_of(
                        f"a program of {many.work / 2:.0f} arrays against it, arguments and results", spread=many.spread
                    ),
                ),
                ("op_s", self.source_of("the training step of a net of small layers, by kernel", spread=op.spread)),
                ("vector_per_s", self.source_of("multiplications and additions in one kernel", vector)),
                ("costly_per_s", self.source_of("exp, log, tanh, rsqrt and division in one kernel", costly)),
                *(
                    (f"flops_per_s.{key}", self.source_of("products of matrices, alone and in batches", fit))
                    for key, fit in rates
                ),
            ),
        )

    def rates(self) -> list[tuple[str, Fit]]:
        return [(key, self.fit(f"product {key}")) for key in FLOPS_KEYS if self.of(f"product {key}")]

    def operators(self) -> Iterator[Operator]:
        """Yields tables of products: their rate depends on their size more than a line can say."""
        for group, op in _PRODUCTS.items():
            for key in FLOPS_KEYS:
                if found := self.of(f"{group} {key}"):
                    worst = max(one.spread for one in found)
                    yield Operator(op, key, _rising(found), self.source_of("forward and both gradients", spread=worst))

    def level(self) -> Level:
        count = len(self.devices)
        groups = [inner for inner in range(2, count + 1) if count % inner == 0]
        fits = {(kind, inner): self.fit(kind, inner) for kind in KINDS for inner in groups}
        sources = [
            (f"collectives.{kind}.{inner}", self.source_of(f"all groups of {inner} at once", fit))
            for (kind, inner), fit in fits.items()
        ]
        transfer = self.fit("transfer", 2) if count > 1 else None
        if transfer:
            sources.append(("transfer", self.source_of("arrays from each device to one", transfer)))
        step, source = self.ring_step(fits[KINDS[0], count]) if count > 1 else self.alone()
        return Level(
            name="shared memory" if self.origin.platform == "cpu" else "links",
            size=count,
            topology="host" if self.origin.platform == "cpu" else "switch",
            latency_s=step.fixed_s,
            port_bytes_per_s=step.per_s,
            efficiency=1.0,
            devices_per_port=1,
            partial_bytes_per_s=(),
            sources=(("latency_s", source), ("port_bytes_per_s", source), ("efficiency", _RATE), *sources),
            collectives=tuple((kind, inner, fit.line) for (kind, inner), fit in fits.items()),
            transfer=transfer.line if transfer else None,
        )

    def ring_step(self, fit: Fit) -> tuple[Line, str]:
        """Returns what one step of a ring would take if the all-reduce over all devices were a ring.

        It is for meshes that nobody has measured.
        """
        steps = 2 * (len(self.devices) - 1)
        line = Line(fit.line.fixed_s / steps, fit.line.per_s * steps / len(self.devices))
        return line, self.source_of("the all-reduce over all devices, taken as a ring", fit)

    def alone(self) -> tuple[Line, str]:
        (op,) = self.of("op")
        return Line(op.seconds, self.fit("memory").line.per_s), "there is one device: what an op of its own takes"


def _rising(samples: Sequence[Sample]) -> tuple[tuple[float, float], ...]:
    """Returns the points of a table, in which seconds never fall as work grows.

    Of equal works the slowest counts, and each work takes at least as long as smaller ones.
    """
    seconds = accumulate((one.seconds for one in samples), max)
    return tuple({one.work: (one.work, slowest) for one, slowest in zip(samples, seconds, strict=True)}.values())


def _memory(devices: Sequence[jax.Device]) -> tuple[int, float, tuple[str, str]]:
    """Returns a device's memory, the part of it that a program may use, and the sources of both."""
    stats = devices[0].memory_stats() if devices[0].platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        source = "what JAX's allocator says is a device's limit, over the part of memory that it takes (JAX docs)"
        return int(stats["bytes_limit"] / _ACCELERATOR_SHARE), _ACCELERATOR_SHARE, (source, source)
    share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)
    return share, _HOST_SHARE, ("the host's memory, shared evenly", "estimate: the rest is for the process itself")
