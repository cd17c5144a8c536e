"""What things take, in seconds: a roofline for compute, alpha-beta for collectives. The one home of both; sources are the cluster's.

Collectives over an axis of n devices, one step costing `latency_s` (alpha), payloads in bytes per device
(`rhino.ir.collectives.payload_bytes`), rings as in Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
in MPICH" (2005), section 3:

    all_gather          (n - 1) alpha + (n - 1) / n  payload / rate        payload: the gathered result
    reduce_scatter      (n - 1) alpha + (n - 1) / n  payload / rate        payload: the operand
    all_reduce        2 (n - 1) alpha + 2 (n - 1) / n payload / rate       payload: the operand (a reduce_scatter, then an all_gather)
    all_to_all          (n - 1) alpha + (n - 1) / n  payload / rate'       payload: the operand; rate' where every pair of devices talks
    collective_permute          alpha +              payload / rate

An all_reduce over several axes reduces along the inner ones first, so that an outer one has only their share to carry; a
collective_permute over several goes at the pace of the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isinf

import numpy as np

from rhino.ir.cluster import MeshAxis
from rhino.ir.graph import OpClass, TensorType
from rhino.ir.hardware import Device
from rhino.strategies.problem import Floats
from rhino.strategies.reshard import Move, moves

PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"})
"""Ops that run on matrix units."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds on one device of a cluster, with collectives along the axes of a mesh, outermost first."""

    device: Device
    axes: tuple[MeshAxis, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    def move_s(self, move: Move) -> float:
        """Returns the seconds of one collective; of a slice, those to read and write the part."""
        if move.kind == "slice":
            return 2 * move.num_bytes / self.device.memory_bytes_per_s
        axes = [self.axes[number] for number in move.axes if self.axes[number].size > 1]
        if move.kind == "all_reduce":
            return self._all_reduce_s(axes, move.num_bytes)
        if not axes:
            return 0.0
        if move.kind == "collective_permute":
            return max(axis.latency_s for axis in axes) + move.num_bytes / min(axis.bytes_per_s for axis in axes)
        (axis,) = axes
        rate = axis.all_to_all_bytes_per_s if move.kind == "all_to_all" else axis.bytes_per_s
        return (axis.size - 1) * axis.latency_s + (axis.size - 1) / axis.size * move.num_bytes / rate

    @staticmethod
    def _all_reduce_s(axes: list[MeshAxis], num_bytes: float) -> float:
        seconds = 0.0
        for axis in reversed(axes):
            n = axis.size
            seconds += 2 * ((n - 1) * axis.latency_s + (n - 1) / n * num_bytes / axis.bytes_per_s)
            num_bytes /= n
        return seconds

    def compute_s(self, cls: OpClass, num_bytes: float, divided_by: int) -> float:
        """Returns the seconds of one op whose work is shared by `divided_by` devices and which moves `num_bytes` of device memory."""
        is_product = cls.name in PRODUCTS  # its inputs' type decides which unit multiplies
        rate = self.device.matmul_flops_per_s(cls.operands[0].dtype) if is_product else self.device.peak_flops_per_s("f32")
        return max(cls.flops / divided_by / rate, num_bytes / self.device.memory_bytes_per_s)


def reshard_seconds(model: CostModel, kind: TensorType, given: Sequence[int], needed: Sequence[int]) -> Floats:
    """Returns the seconds from each given spec of a tensor to each that is needed [given, needed], infinite where there is no way."""
    known = _affine(model, len(kind.shape))
    rows = np.array([[known(g, n) for n in needed] for g in given], dtype=np.float64).reshape(len(given), len(needed), 2)
    seconds: Floats = rows[:, :, 0] + rows[:, :, 1] * kind.num_bytes
    return seconds


_PROBE = 1 << 40
"""Bytes of the tensor at which the slope is taken: a reshard's seconds are affine in the bytes, but for rounding to whole bytes."""


@lru_cache(maxsize=256)
def _affine(model: CostModel, rank: int) -> Callable[[int, int], tuple[float, float]]:
    """Returns a function of two specs of a tensor of `rank`: seconds per reshard, and per byte of the whole tensor."""
    known: dict[tuple[int, int], tuple[float, float]] = {}

    def seconds(source: int, target: int) -> tuple[float, float]:
        pair = known.get((source, target))
        if pair is None:
            fixed, probe = (
                inf if steps is None else sum(map(model.move_s, steps))
                for steps in (moves(num_bytes, rank, source, target, model.sizes) for num_bytes in (0, _PROBE))
            )
            pair = known[source, target] = (fixed, 0.0 if isinf(fixed) else (probe - fixed) / _PROBE)
        return pair

    return seconds
