"""What things take, in seconds: a roofline for compute, alpha-beta for collectives.

Both are defined here alone, and the cluster gives the sources of their figures.

Collectives over an axis of n devices, one step costing `latency_s` (alpha), payloads in bytes per device
(`rhino.ir.graph.collective_stats.payload_bytes`), rings as in Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005), section 3:

    all_gather          (n - 1) alpha + (n - 1) / n  payload / rate        payload: the gathered result
    reduce_scatter      (n - 1) alpha + (n - 1) / n  payload / rate        payload: the operand
    all_reduce        2 (n - 1) alpha + 2 (n - 1) / n payload / rate       payload: the operand
    all_to_all          (n - 1) alpha + (n - 1) / n  payload / rate'       payload: the operand
    collective_permute          alpha +              payload / rate

An all_reduce is a reduce_scatter, then an all_gather; rate' is the rate where every pair of devices talks.

An all_reduce over several axes reduces along the inner ones first, so that an outer one has only their share to carry;
a collective_permute over several goes at the pace of the slowest. What is measured of a kind along an axis comes before
the formula.

An op takes as long as the slower of its arithmetic and its memory, and where that is measured a fixed time if it is a
kernel of its own: an op that is computed inside its reader's loop is none. A table of the op comes before all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import inf
from typing import Final, NamedTuple

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.ir.cluster.cluster import MeshAxis
from rhino.ir.cluster.hardware import Device, Line
from rhino.ir.graph.graph import COSTLY, OpClass, TensorType
from rhino.ir.graph.rules import CallWork
from rhino.ir.graph.spec import Spec, partial_axes
from rhino.strategies.cost.reshard import PartedStep, ReshardStep, parted_path
from rhino.strategies.cost.reshard_classes import Pair, pair_classes
from rhino.strategies.cost.target import TARGETS, Target

PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"})
"""Ops that run on matrix units."""

HOST_TRANSFER_S: Final = 10e-6
"""The fixed time of a transfer between a device's memory and its host's: an estimate.

It keeps small arguments on the device.
"""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds on one device of a cluster, with collectives along the axes of a mesh, outermost first."""

    device: Device
    axes: tuple[MeshAxis, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    @property
    def target(self) -> Target:
        """What the platform's compiler does with programs."""
        return TARGETS[self.device.platform]

    def move_s(self, move: ReshardStep) -> float:
        """Returns the seconds of one collective; of a slice, those to read and write the part."""
        if move.kind == "slice":
            return (self.device.op_s or 0.0) + 2 * move.num_bytes / self.device.memory_bytes_per_s
        axes = [self.axes[number] for number in move.axes if self.axes[number].size > 1]
        if move.kind == "all_reduce":
            return self._all_reduce_s(axes, move.num_bytes)
        if not axes:
            return 0.0
        if move.kind == "collective_permute":
            lines = [axis.line(move.kind) or Line(axis.latency_s, axis.bytes_per_s) for axis in axes]
            return max(line.fixed_s for line in lines) + move.num_bytes / min(line.per_s for line in lines)
        (axis,) = axes
        return collective_s(axis, move.kind, move.num_bytes)

    @staticmethod
    def _all_reduce_s(axes: list[MeshAxis], num_bytes: float) -> float:
        seconds = 0.0
        for axis in reversed(axes):
            seconds += collective_s(axis, "all_reduce", num_bytes)
            num_bytes /= axis.size
        return seconds

    def launch_s(self, num_arrays: int) -> float:
        """Returns the seconds that launching a program takes beside its computing.

        The program takes and gives so many arrays in all.
        """
        return (self.device.launch_s or 0.0) + num_arrays * (self.device.array_s or 0.0)

    def host_s(self, num_bytes: float) -> float:
        """Returns the seconds of one transfer between a device's memory and its host's: none where nobody knows."""
        rate = self.device.host_bytes_per_s
        return HOST_TRANSFER_S + num_bytes / rate if rate else 0.0

    def visit_s(self, num_bytes: float, *, is_updated: bool) -> float:
        """Returns the seconds in which an argument comes from host memory, and its next value goes there if it has one.

        Nothing is computed meanwhile: no more than that is ever waited for.
        """
        return (2 if is_updated else 1) * self.host_s(num_bytes)

    def compute_s(self, cls: OpClass, num_bytes: float, divided_by: float, *, is_kernel: bool = False) -> float:
        """Returns the seconds of one op.

        Its work is shared by `divided_by` devices, and it moves `num_bytes` of device memory; `is_kernel` says that its
        results lie there.
        """
        device, flops = self.device, cls.flops / divided_by
        is_product = cls.name in PRODUCTS
        dtype = cls.operands[0].dtype if cls.operands else ""  # a product's inputs decide which unit multiplies
        table = device.operator(cls.name, dtype) if device.operators else None
        if table and not is_product:
            return table.seconds(num_bytes)
        if table:
            return max(table.seconds(flops), num_bytes / device.memory_bytes_per_s)
        product_per_s = self.target.product_flops_per_s
        rate = product_per_s(device, dtype, cls.precision) if is_product else self._vector_per_s(cls)
        fixed_s = device.op_s if is_kernel and device.op_s else 0.0
        if cls.products is not None and not is_product:
            dtype, own = cls.products
            return fixed_s + self.call_s(CallWork(flops, own / divided_by, dtype, num_bytes))
        return fixed_s + max(flops / rate, num_bytes / device.memory_bytes_per_s)

    def call_s(self, work: CallWork) -> float:
        """Returns the seconds of a kernel: its products, its other operations and its transfers go on at once."""
        device, products_s = self.device, 0.0
        if work.product_flops:
            per_s = self.target.product_flops_per_s(device, work.product_dtype, "default")
            products_s = work.product_flops / per_s
        others_s = (work.flops - work.product_flops) / (device.vector_per_s or device.peak_flops_per_s("f32"))
        return max(products_s, others_s, work.bytes / device.memory_bytes_per_s)

    def _vector_per_s(self, cls: OpClass) -> float:
        measured = self.device.costly_per_s if cls.name in COSTLY else self.device.vector_per_s
        return measured or self.device.peak_flops_per_s("f32")


def collective_s(axis: MeshAxis, kind: str, num_bytes: float) -> float:
    """Returns the seconds of one collective along one axis; `num_bytes` is its payload per device."""
    if line := axis.line(kind):
        return line.seconds(num_bytes)
    n = axis.size
    match kind:
        case "all_reduce":
            return 2 * ((n - 1) * axis.latency_s + (n - 1) / n * num_bytes / axis.bytes_per_s)
        case "collective_permute":
            return axis.latency_s + num_bytes / axis.bytes_per_s
        case _:
            rate = axis.all_to_all_bytes_per_s if kind == "all_to_all" else axis.bytes_per_s
            return (n - 1) * axis.latency_s + (n - 1) / n * num_bytes / rate


HIDDEN: Final = ("all_gather", "reduce_scatter", "all_reduce")
"""Collectives that a target may hide, in the order of the seconds of a window."""


class Window(NamedTuple):
    """What is known of a tensor that others need not wait for while it is on its way.

    For so many seconds something is computed while it is gathered, scattered and reduced. So many bytes are sent
    together, of it and others; none if it is alone. `carried` are the seconds in which it, or what it follows from, is
    scattered if that may end in the next trip of a loop, and if it has to in the same, as where a gather follows.
    """

    seconds: tuple[float, float, float]
    joined_bytes: int
    carried: tuple[float, float] = (0.0, 0.0)

    def kept_s(self, gather_s: Floats) -> Floats:
        """Returns the seconds of a scatter that a gather behind it, which takes as long, keeps from the next trip."""
        later_s, same_s = self.carried
        kept: Floats = np.minimum(gather_s, later_s) - np.minimum(gather_s, same_s)
        return np.maximum(kept, 0.0)


def reshard_seconds(
    model: CostModel,
    kind: TensorType,
    given: Sequence[int],
    needed: Sequence[int],
    *,
    is_narrow: bool = False,
    window: Window | None = None,
) -> Floats:
    """Returns the seconds to reshard a tensor from each given spec to each needed one [given, needed].

    They are infinite where there is no path. `is_narrow` says that it is moved in elements half as wide. With a window,
    collectives that the target hides are hidden by what is computed meanwhile, those of one path in the least of their
    windows, and collectives that are joined take their part of the time of the first byte. A gather of what a loop
    would scatter in its next trip takes what that hides in addition.
    """
    affine, which = _affine(model, tuple(given), tuple(needed), is_narrow)
    fixed, slope, joined = affine[:, :3].T
    hidden_fixed, hidden_slope = affine[:, 3:].reshape(-1, 2, len(HIDDEN)).transpose(1, 0, 2)
    seconds: Floats = fixed + slope * kind.num_bytes
    if window is None:
        seconds = seconds + (hidden_fixed + hidden_slope * kind.num_bytes).sum(axis=1)
    else:
        left = _left(window, kind.num_bytes)
        is_joined = np.array([one in model.target.joined for one in HIDDEN])
        sent_s = hidden_fixed * (1 - left * is_joined) + hidden_slope * kind.num_bytes
        room_s = np.where(sent_s > 0, window.seconds, inf).min(axis=1)
        gathers, sums_s = HIDDEN.index("all_gather"), sent_s[:, 1:].sum(axis=1)
        kept_s = np.where(sums_s > 0, 0.0, window.kept_s(sent_s[:, gathers]))
        hidden_s = (np.minimum(sent_s.sum(axis=1), room_s) - kept_s) * (1 - model.target.unhidden)
        seconds = seconds - left * joined + sent_s.sum(axis=1) - hidden_s
    return seconds[which]


def _left(window: Window, num_bytes: int) -> float:
    """Returns the part of a joined collective that other tensors are."""
    return max(0.0, 1 - num_bytes / window.joined_bytes) if window.joined_bytes else 0.0


def step_seconds(
    model: CostModel, kind: TensorType, steps: Sequence[ReshardStep], window: Window | None, needed: Spec
) -> tuple[float, ...]:
    """Returns what `reshard_seconds` counts for each step of a tensor's path to spec `needed`."""
    seconds = [model.move_s(step) for step in steps]
    if window is None:
        return tuple(seconds)
    for number, step in enumerate(steps):
        if step.kind in model.target.joined:
            seconds[number] -= _left(window, kind.num_bytes) * model.move_s(replace(step, num_bytes=0))
    room_s = dict(zip(HIDDEN, window.seconds, strict=True))
    is_hidden = model.target.are_hidden(model.device, [step.kind for step in steps], is_sum=bool(partial_axes(needed)))
    behind = [number for number, second in enumerate(seconds) if is_hidden[number] and second > 0]
    behind_s = sum(seconds[number] for number in behind)
    kinds = [steps[number].kind for number in behind]
    kept_s = float(window.kept_s(np.array(behind_s))) if set(kinds) == {"all_gather"} else 0.0
    for number in behind:
        hidden_s = min(behind_s, *(room_s[kind] for kind in kinds)) - kept_s
        seconds[number] *= 1 - hidden_s * (1 - model.target.unhidden) / behind_s
    return tuple(seconds)


_PROBE = 1 << 40
"""Bytes of the tensor at which the slope is taken.

A reshard's seconds are affine in the bytes, but for rounding to whole bytes.
"""


@lru_cache(maxsize=4096)
def _affine(model: CostModel, given: tuple[int, ...], needed: tuple[int, ...], is_narrow: bool) -> tuple[Floats, Ints]:
    """Returns the seconds of each kind of pair [kinds, 9], as `_pair_s` has them, and the kinds [given, needed].

    The kinds are those of pairs of specs that occur.
    """
    known = _pair_s(model, is_narrow)
    pairs, which = pair_classes(given, needed, len(model.axes))
    return np.array([known(pair) for pair in pairs], dtype=np.float64).reshape(-1, 3 + 2 * len(HIDDEN)), which


_Seconds = tuple[float, ...]


@lru_cache(maxsize=64)
def _pair_s(model: CostModel, is_narrow: bool) -> Callable[[Pair], _Seconds]:
    """Returns a function of a pair of specs: the seconds of the path for no bytes, and per byte of the whole tensor.

    They are without what may be hidden. What of the former may be joined follows, then the seconds for no bytes of each
    of HIDDEN that may be hidden, and those per byte.
    """
    sizes, target = model.sizes, model.target

    def move_s(step: ReshardStep) -> float:
        return model.move_s(step.narrowed() if is_narrow else step)

    def affine(steps: Sequence[PartedStep]) -> tuple[float, float]:
        fixed, probe = (sum([move_s(step.move(num_bytes)) for step in steps]) for num_bytes in (0, _PROBE))
        return fixed, (probe - fixed) / _PROBE

    @cache
    def of_steps(steps: tuple[PartedStep, ...], is_sum: bool) -> _Seconds:
        is_hidden = target.are_hidden(model.device, [step.kind for step in steps], is_sum=is_sum)
        others = [step for step, hidden in zip(steps, is_hidden, strict=True) if not hidden]
        joined, _ = affine([step for step in others if step.kind in target.joined])
        behind = [
            affine([step for step, hidden in zip(steps, is_hidden, strict=True) if hidden and step.kind == kind])
            for kind in HIDDEN
        ]
        return *affine(others), joined, *(fixed for fixed, _ in behind), *(slope for _, slope in behind)

    @cache
    def seconds(pair: Pair) -> _Seconds:
        steps = parted_path(*pair, sizes)
        return (inf, *[0.0] * (2 + 2 * len(HIDDEN))) if steps is None else of_steps(steps, bool(partial_axes(pair[2])))

    return seconds
