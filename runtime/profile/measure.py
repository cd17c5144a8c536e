"""Measure the devices at hand: how long each kind of work takes on all of them at once.

Every program is compiled and launched as a step is. A family's programs grow until one takes longer than a limit. Then
all programs are timed in turn, for several rounds, so that what disturbs the machine for a while disturbs them alike;
of the times of a program the lower quartile counts, which a disturbance of less than three quarters of the rounds
leaves alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.ir.graph.collective_stats import KINDS
from rhino.ir.hlo.kernels import kernels
from rhino.ir.mlir.bindings import ir, make_context
from rhino.runtime.executor.executable import Executable, compile_module, wait
from rhino.runtime.profile import programs
from rhino.runtime.profile.fit import LEAST_S
from rhino.runtime.profile.programs import DTYPES, Family, Probe

_CALLS: Final = 3
"""Timed launches of a program in each round, behind one that brings its data back into the caches."""

LEAST_SHARE: Final = 0.05
"""Of a program's time, what at least is not its launch: so that noise leaves no work that takes no time."""

_LAUNCHED: Final = (1, 64)
"""Arrays of the programs that do next to nothing: few, and as many as a small training step has."""

_TRANSFERS: Final = tuple(1 << power for power in (10, 14, 18, 20, 22, 24))
"""Bytes of the arrays that go from one device to another."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds that one amount of work takes on every device at once.

    `spread` is the interquartile range of its timings, as a share of the seconds.
    """

    group: str
    inner: int
    work: float
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure: the seconds after which a family's programs grow no more, and how many rounds there are."""

    limit_s: float = 0.03
    rounds: int = 5
    dtypes: tuple[str, ...] = ("f32", "bf16")


@dataclass(eq=False)
class Timed:
    """What is launched and waited for, with what became of it."""

    group: str
    inner: int
    work: float
    repeats: int
    num_arrays: int
    launch: Callable[[], object]
    times_s: list[float] = field(default_factory=list)

    def once_s(self) -> float:
        """Returns the seconds of one launch."""
        start_s = time.perf_counter()
        self.launch()
        return time.perf_counter() - start_s

    def round(self) -> None:
        """Times a few launches."""
        self.launch()
        self.times_s += [self.once_s() for _ in range(_CALLS)]

    def quartiles_s(self) -> tuple[float, float]:
        """Returns the lower and the upper quartile of the times so far."""
        low, _, high = quantiles(self.times_s, n=4, method="inclusive")
        return low, high


def by_kind(devices: Sequence[jax.Device]) -> tuple[tuple[jax.Device, ...], ...]:
    """Returns devices by their kind, in the order of the first of each."""
    kinds = dict.fromkeys(one.device_kind for one in devices)
    return tuple(tuple([one for one in devices if one.device_kind == kind]) for kind in kinds)


def measure(devices: Sequence[jax.Device], settings: Settings, note: Callable[[str], None]) -> tuple[Sample, ...]:
    """Returns what every kind of work takes on `devices`, all busy, net of what launching it takes.

    `note` gets messages of progress. Launches, one with few arrays and one with many, are not net of anything.
    """
    timed: list[Timed] = []
    for number, family in enumerate(families := list(_families(len(devices), settings.dtypes))):
        note(f"preparing {number + 1} of {len(families)}")
        timed += _prepared(family, devices, settings.limit_s)
    if len(devices) > 1:
        timed += [_transfer(size, devices) for size in _TRANSFERS]
    for number in range(settings.rounds):
        note(f"round {number + 1} of {settings.rounds}")
        for one in timed:
            one.round()
    return tuple(_samples(timed))


def measure_between(
    groups: Sequence[Sequence[jax.Device]], settings: Settings, note: Callable[[str], None]
) -> tuple[Sample, ...]:
    """Returns what arrays take from each device of a group to one of the next group, all of them at once.

    Shapes: `groups` are devices by kind [groups, devices of the group].
    """
    timed = [_transfer_between(size, groups) for size in _TRANSFERS]
    for number in range(settings.rounds):
        note(f"between groups, round {number + 1} of {settings.rounds}")
        for one in timed:
            one.round()
    return tuple([_sample(one, one.quartiles_s()[0]) for one in timed])


def _families(num_devices: int, dtypes: Iterable[str]) -> Iterator[Family]:
    yield from map(programs.launch, _LAUNCHED)
    yield programs.ops()
    for dtype in dtypes:
        yield programs.products(dtype)
    yield programs.elementwise()
    yield programs.copies()
    yield programs.reductions()
    yield programs.norms()
    yield programs.arithmetic()
    yield programs.roots()
    yield programs.convolutions("f32")
    if num_devices > 1:
        yield programs.computing()
    for inner in (size for size in range(2, num_devices + 1) if num_devices % size == 0):
        for kind in KINDS:
            yield programs.collective(kind, inner)


def _prepared(family: Family, devices: Sequence[jax.Device], limit_s: float) -> Iterator[Timed]:
    for probe in family:
        executable, arguments = _compiled(probe, devices)
        found = list(kernels(executable.hlo_text()))
        number, moved = sum(times for _, times in found), sum(one.num_bytes * times for one, times in found)
        one = Timed(
            probe.group,
            probe.inner,
            probe.work or moved,
            probe.repeats or number,
            _num_arrays(executable),
            launcher(executable, arguments),
        )
        one.launch()
        yield one
        if one.once_s() > limit_s:
            return


def _num_arrays(executable: Executable) -> int:
    return len(executable.signature.arguments) + len(executable.signature.results)


def launcher(executable: Executable, arguments: list[jax.Array]) -> Callable[[], object]:
    """Returns what launches a program and waits for its results."""
    return lambda: wait(executable.run(arguments))


def _compiled(probe: Probe, devices: Sequence[jax.Device]) -> tuple[Executable, list[jax.Array]]:
    """Returns a program for all devices, and its arguments.

    Each matrix has ones on its diagonal, so that products stay small.
    """
    mesh = Mesh(np.array(devices).reshape(-1, probe.inner), ("outer", "inner"))
    everywhere = PartitionSpec(("outer", "inner"))
    # Each device's array is one row of the whole: what is local has one dim less.
    mapped = jax.shard_map(_rows(probe.local), mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    with jax.enable_x64(True):
        dtype = DTYPES[probe.dtype]
        sharding = NamedSharding(mesh, everywhere)
        kinds = [jax.ShapeDtypeStruct((len(devices), *shape), dtype, sharding=sharding) for shape in probe.shapes]
        text = jax.jit(mapped).lower(*kinds).as_text()
    executable = compile_module(ir.Module.parse(text, make_context()), devices)
    values = [np.broadcast_to(_value(shape), (len(devices), *shape)).astype(dtype) for shape in probe.shapes]
    return executable, [executable.put(index, value) for index, value in enumerate(values)]


def _rows(local: Callable[..., programs.Arrays]) -> Callable[..., programs.Arrays]:
    return lambda *arrays: tuple(result[None] for result in local(*(array[0] for array in arrays)))


def _value(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    square = len(shape) > 1 and shape[-1] == shape[-2]
    return np.broadcast_to(np.eye(shape[-1]), shape) if square else np.full(shape, 0.5)


def _transfer(num_bytes: int, devices: Sequence[jax.Device]) -> Timed:
    """An array on its way from one device to the next, on all devices in turn."""
    arrays = [jax.device_put(np.ones(num_bytes // 4, np.float32), device) for device in devices]

    def launch() -> None:
        jax.block_until_ready([jax.device_put(array, devices[0]) for array in arrays[1:]])

    return Timed("transfer", 2, float(num_bytes), len(devices) - 1, 0, launch)


def _transfer_between(num_bytes: int, groups: Sequence[Sequence[jax.Device]]) -> Timed:
    """An array on its way from each device of a group to one of the next, on all devices at once."""
    moves = [
        (jax.device_put(np.ones(num_bytes // 4, np.float32), device), others[number % len(others)])
        for own, others in zip(groups, (*groups[1:], groups[0]), strict=True)
        for number, device in enumerate(own)
    ]

    def launch() -> None:
        jax.block_until_ready([jax.device_put(array, device) for array, device in moves])

    return Timed("transfer", 2, float(num_bytes), 1, 0, launch)


def _samples(timed: Sequence[Timed]) -> Iterator[Sample]:
    launches = [one for one in timed if one.group == "launch"]
    (few_s, _), (many_s, _) = (one.quartiles_s() for one in launches)
    array_s = max(many_s - few_s, LEAST_S) / (launches[1].work - launches[0].work)
    launch_s = max(few_s - launches[0].work * array_s, LEAST_S)
    between_s = next((one.quartiles_s()[0] for one in timed if one.group == "between"), 0.0)
    for one in timed:
        low, _ = one.quartiles_s()
        if one.group in ("launch", "transfer"):
            net_s = low
        elif one.group in KINDS:  # the launch is in both
            net_s = low - between_s
        else:
            net_s = low - launch_s - one.num_arrays * array_s
        yield _sample(one, net_s)


def _sample(one: Timed, net_s: float) -> Sample:
    """Returns what was timed, net of what is not the work itself."""
    low, high = one.quartiles_s()
    return Sample(one.group, one.inner, one.work, max(net_s, low * LEAST_SHARE) / one.repeats, (high - low) / low)
