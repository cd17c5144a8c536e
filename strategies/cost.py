"""What things take, in seconds: a roofline for compute, alpha-beta for collectives. The one home of both; sources are the cluster's.

Collectives over an axis of n devices, one step costing `latency_s` (alpha), payloads in bytes per device
(`rhino.ir.collectives.payload_bytes`), rings as in Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
in MPICH" (2005), section 3:

    all_gather          (n - 1) alpha + (n - 1) / n  payload / rate        payload: the gathered result
    reduce_scatter      (n - 1) alpha + (n - 1) / n  payload / rate        payload: the operand
    all_reduce        2 (n - 1) alpha + 2 (n - 1) / n payload / rate       payload: the operand (a reduce_scatter, then an all_gather)
    all_to_all          (n - 1) alpha + (n - 1) / n  payload / rate'       payload: the operand; rate' where every pair of devices talks
    collective_permute          alpha +              payload / rate
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rhino.ir.cluster import MeshAxis
from rhino.ir.graph import OpClass, TensorType
from rhino.ir.hardware import Device
from rhino.ir.spec import PARTIAL, REPLICATED, num_specs, split_dim
from rhino.ir.tally import payload_bytes
from rhino.strategies.problem import Floats

PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"})
"""Ops that run on matrix units."""


@dataclass(frozen=True, slots=True)
class Move:
    """One collective: its kind and its payload in bytes per device. `kind` is None where nothing is sent."""

    kind: str | None = None
    num_bytes: int = 0


NOTHING = Move()


def reshard(kind: TensorType, source: int, target: int, axis_size: int) -> Move | None:
    """Returns the collective that takes a tensor from spec `source` to spec `target`, or None where there is none."""
    whole, part = kind.num_bytes, kind.num_bytes // axis_size
    if source in (target, REPLICATED):
        return None if target == PARTIAL and source != target else NOTHING
    if target == PARTIAL:
        return None
    if source == PARTIAL:
        name, before, after = ("all_reduce", whole, whole) if target == REPLICATED else ("reduce_scatter", whole, part)
    elif target == REPLICATED:
        name, before, after = "all_gather", part, whole
    else:
        name, before, after = "all_to_all", part, part
    return Move(name, payload_bytes(name, before, after))


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds on one device of a cluster, with collectives along one mesh axis."""

    device: Device
    axis: MeshAxis

    def move_s(self, move: Move) -> float:
        """Returns the seconds of one collective."""
        n, alpha, rate = self.axis.size, self.axis.latency_s, self.axis.bytes_per_s
        if move.kind is None or n == 1:
            return 0.0
        share = (n - 1) / n * move.num_bytes
        match move.kind:
            case "all_reduce":
                return 2 * ((n - 1) * alpha + share / rate)
            case "all_to_all":
                return (n - 1) * alpha + share / self.axis.all_to_all_bytes_per_s
            case "collective_permute":
                return alpha + move.num_bytes / rate
            case _:
                return (n - 1) * alpha + share / rate

    def slice_s(self, kind: TensorType, source: int, target: int) -> float:
        """Returns the seconds to cut a device's part out of a whole tensor: the part is read and written."""
        cut = source == REPLICATED and split_dim(target) is not None
        return 2 * (kind.num_bytes / self.axis.size) / self.device.memory_bytes_per_s if cut else 0.0

    def compute_s(self, cls: OpClass, num_bytes: float, divided_by: int) -> float:
        """Returns the seconds of one op whose work is shared by `divided_by` devices and which moves `num_bytes` of device memory."""
        is_product = cls.name in PRODUCTS  # its inputs' type decides which unit multiplies
        rate = self.device.matmul_flops_per_s(cls.operands[0].dtype) if is_product else self.device.peak_flops_per_s("f32")
        return max(cls.flops / divided_by / rate, num_bytes / self.device.memory_bytes_per_s)


@lru_cache(maxsize=4096)
def reshard_seconds(model: CostModel, kind: TensorType) -> Floats:
    """Returns the seconds from each spec of a tensor to each other [source specs, target specs], infinite where there is no way."""
    count = num_specs(len(kind.shape))
    table = np.full((count, count), np.inf)
    for source in range(count):
        for target in range(count):
            if not all(_exists(kind, spec, model.axis.size) for spec in (source, target)):
                continue
            move = reshard(kind, source, target, model.axis.size)
            if move is not None:
                table[source, target] = model.move_s(move) + model.slice_s(kind, source, target)
    return table


def _exists(kind: TensorType, spec: int, axis_size: int) -> bool:
    dim = split_dim(spec)
    return dim is None or (kind.shape[dim] > 0 and kind.shape[dim] % axis_size == 0)
