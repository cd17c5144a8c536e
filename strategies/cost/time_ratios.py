"""How a step's seconds on some devices compare with those on others, whatever the step."""

from __future__ import annotations

from collections.abc import Iterator

from rhino.ir.cluster.cluster import MeshAxis
from rhino.ir.cluster.hardware import Device, Line
from rhino.strategies.cost.cost_model import CostModel


def least_time_ratio(own: CostModel, common: CostModel) -> float:
    """Returns how many times its seconds by `common` anything takes at least by `own`; 0 where nobody can say.

    Both are models of one mesh, and `common` is as slow as the slowest of several devices.
    """
    return min(_ratios(own, common))


def _ratios(own: CostModel, common: CostModel) -> Iterator[float]:
    """Yields the ratio of each figure that seconds are made of."""
    yield from _device_ratios(own.device, common.device)
    if own.target.hidden(own.device) != common.target.hidden(common.device):
        yield 0.0
    for mine, theirs in zip(own.axes, common.axes, strict=True):
        if mine.size > 1:
            yield from _axis_ratios(mine, theirs)


def _device_ratios(own: Device, common: Device) -> Iterator[float]:
    if own.operators != common.operators or own.near_bytes != common.near_bytes:
        yield 0.0
    for key, _ in (*own.flops_per_s, *common.flops_per_s):
        yield common.matmul_flops_per_s(key) / own.matmul_flops_per_s(key)
        yield common.peak_flops_per_s(key) / own.peak_flops_per_s(key)  # of what is no product
    yield common.memory_bytes_per_s / own.memory_bytes_per_s
    rates = [
        (common.vector_per_s, own.vector_per_s),
        (common.costly_per_s, own.costly_per_s),
        (common.host_bytes_per_s, own.host_bytes_per_s),
    ]
    fixed = [(own.launch_s, common.launch_s), (own.array_s, common.array_s), (own.op_s, common.op_s)]
    for less, more in (*rates, *fixed):
        if less is not None and more is not None:
            yield less / more
        elif less != more:
            yield 0.0


def _axis_ratios(own: MeshAxis, common: MeshAxis) -> Iterator[float]:
    yield own.latency_s / common.latency_s
    yield common.bytes_per_s / own.bytes_per_s
    yield common.all_to_all_bytes_per_s / own.all_to_all_bytes_per_s
    measured = dict(own.measured), dict(common.measured)
    if measured[0].keys() != measured[1].keys():
        yield 0.0
    for kind in measured[0].keys() & measured[1].keys():
        mine, theirs = measured[0][kind], measured[1][kind]
        yield _line_ratio(mine, theirs)


def _line_ratio(own: Line, common: Line) -> float:
    return min(own.fixed_s / common.fixed_s, common.per_s / own.per_s)
