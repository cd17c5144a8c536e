"""Seconds worked out by hand: rings step by step, reshards by their collective, and ops under the roofline."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rhino.ir.cluster.cluster import MeshAxis
from rhino.ir.cluster.hardware import Device, Line, Operator
from rhino.ir.graph.graph import OpClass, TensorType
from rhino.ir.graph.spec import PARTIAL, REPLICATED, split
from rhino.strategies.cost.cost_model import CostModel, reshard_seconds
from rhino.strategies.cost.reshard import ReshardStep, moves

DEVICE = Device(
    kind="test",
    flops_per_s=(("f32", 1e12), ("bf16", 4e12)),
    hbm_bytes=10**9,
    usable_hbm_fraction=1.0,
    hbm_bytes_per_s=2e9,
    matmul_efficiency=0.5,
    memory_efficiency=0.5,
    sources=(),
)


def model(size):
    """1 us a step, 1 GB/s in rings, 0.5 GB/s in an all-to-all."""
    return CostModel(DEVICE, (MeshAxis("x", size, 1e-6, 1e9, 0.5e9, "ring", ("link",)),))


KIND = TensorType((8, 12), "f32", 4)  # 384 bytes, a quarter is 96
R, P, S0, S1 = REPLICATED, PARTIAL, split(0), split(1)

# On 4 devices: 3 steps of 1 us, and 3/4 of the payload at 1 GB/s.
SECONDS = {
    "all_gather": (384, 3e-6 + 288e-9),
    "reduce_scatter": (384, 3e-6 + 288e-9),
    "all_reduce": (384, 6e-6 + 576e-9),
    "all_to_all": (96, 3e-6 + 144e-9),
    "collective_permute": (96, 1e-6 + 96e-9),
}


@pytest.mark.parametrize("kind", SECONDS)
def test_seconds_of_each_collective(kind):
    num_bytes, seconds = SECONDS[kind]
    assert model(4).move_s(ReshardStep(kind, (0,), num_bytes)) == pytest.approx(seconds, rel=1e-12)


def table_of(one, kind):
    """Seconds between all specs of a tensor: replicated, a sum, split along each dim."""
    specs = [R, P, *(split(dim) for dim in range(len(kind.shape)))]
    return reshard_seconds(one, kind, specs, specs)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_ring_takes_what_its_steps_take(kind, size):
    """In every step each device passes a block of 1/n on; an all-reduce goes round twice."""
    num_bytes = 840
    steps = [1e-6 + num_bytes / size / 1e9] * (size - 1) * (2 if kind == "all_reduce" else 1)
    assert model(size).move_s(ReshardStep(kind, (0,), num_bytes)) == pytest.approx(sum(steps), rel=1e-12)


@pytest.mark.parametrize("kind", SECONDS)
def test_what_sends_nothing_takes_no_time(kind):
    """Along an axis of one device; whatever is measured there, and beside another axis."""
    one = MeshAxis("x", 1, 1e-3, 1e3, 1e3, "ring", ("link",), ((kind, Line(1.0, 1.0)),))
    assert CostModel(DEVICE, (one,)).move_s(ReshardStep(kind, (0,), 10**9)) == 0
    if kind in ("all_reduce", "collective_permute"):
        both = CostModel(DEVICE, (one, *model(4).axes))
        assert both.move_s(ReshardStep(kind, (0, 1), SECONDS[kind][0])) == pytest.approx(SECONDS[kind][1], rel=1e-12)


@pytest.mark.parametrize(
    ("source", "target", "move"),
    [
        (R, R, None),
        (R, S0, ("slice", 96)),
        (R, S1, ("slice", 96)),
        (P, P, None),
        (S0, S0, None),
        (P, R, ("all_reduce", 384)),
        (P, S0, ("reduce_scatter", 384)),
        (P, S1, ("reduce_scatter", 384)),
        (S0, R, ("all_gather", 384)),
        (S1, R, ("all_gather", 384)),
        (S0, S1, ("all_to_all", 96)),
        (S1, S0, ("all_to_all", 96)),
        (R, P, math.inf),
        (S0, P, math.inf),
        (S1, P, math.inf),
    ],
)
def test_each_pair_of_specs_has_one_step_or_none(source, target, move):
    """Nothing becomes a partial sum by moving it: that would take zeros on all devices but one."""
    wanted = {None: (), math.inf: None}.get(
        move, (ReshardStep(move[0], (0,), move[1]),) if isinstance(move, tuple) else ()
    )
    assert moves(KIND.num_bytes, 2, source, target, (4,)) == wanted


def test_the_table_of_reshards_is_the_seconds_of_each():
    gather, scatter, reduce, exchange = (
        SECONDS[kind][1] for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    )
    inf, cut = math.inf, 192e-9  # a quarter, 96 bytes, read and written at 1 GB/s
    wanted = [[0, inf, cut, cut], [reduce, 0, scatter, scatter], [gather, inf, 0, exchange], [gather, inf, exchange, 0]]
    np.testing.assert_allclose(table_of(model(4), KIND), wanted, rtol=1e-12)


def test_a_scalar_is_whole_or_a_sum():
    table = table_of(model(4), TensorType((), "f32", 4))
    np.testing.assert_allclose(table, [[0, math.inf], [6e-6 + 2 * 0.75 * 4e-9, 0]], rtol=1e-12)


def test_no_detour_is_cheaper_than_the_way():
    """Else the search would pay for a reshard what two of them cost less."""
    for size in (2, 4):
        table = table_of(model(size), KIND)
        ways = table[:, :, None] + table[None, :, :]
        through_whole_or_part = ways.min(axis=1)
        assert (table <= through_whole_or_part + 1e-15).all()


def op(name, flops, dtype="f32"):
    kind = TensorType((8, 12), dtype, 4)
    return OpClass(f"stablehlo.{name}", (kind,), (kind,), None, None, (), False, True, flops)


@pytest.mark.parametrize(
    ("cls", "num_bytes", "divided_by", "seconds"),
    [
        (op("dot_general", 10**6), 0, 1, 1e6 / 0.5e12),  # half of the peak is reached
        (op("dot_general", 10**6), 0, 4, 1e6 / 0.5e12 / 4),
        (op("dot_general", 10**6, "bf16"), 0, 1, 1e6 / 2e12),
        (op("dot_general", 10**6), 4000, 1, 4e-6),  # 4000 bytes at 1 GB/s take longer than 2 us
        (op("dot_general", 10**6), 4000, 4, 4e-6),  # bytes are given per device
        (op("add", 10**6), 0, 1, 1e-6),  # vector units: the f32 peak, whatever the type
        (op("add", 10**6, "bf16"), 0, 1, 1e-6),
        (op("add", 10**3), 500, 1, 5e-7),
        (op("add", 0), 0, 1, 0.0),
    ],
)
def test_an_op_takes_the_longer_of_its_work_and_its_bytes(cls, num_bytes, divided_by, seconds):
    assert model(4).compute_s(cls, num_bytes, divided_by) == pytest.approx(seconds, rel=1e-12)


# Several axes: two nodes, 10 us and 0.1 GB/s apart, of four devices each, 1 us and 1 GB/s apart

TWO = CostModel(
    DEVICE, (MeshAxis("x", 2, 1e-5, 1e8, 1e8, "ring", ("net",)), MeshAxis("y", 4, 1e-6, 1e9, 1e9, "ring", ("link",)))
)


def test_a_sum_over_several_axes_is_taken_within_nodes_first():
    """Within nodes it takes twice 3 steps of 1 us and 3/4 of 800 bytes.

    Between nodes it takes twice 10 us and half of the 200 bytes that each has left.
    """
    within, between = 2 * (3e-6 + 600e-9), 2 * (1e-5 + 100e-8)
    assert TWO.move_s(ReshardStep("all_reduce", (0, 1), 800)) == pytest.approx(within + between, rel=1e-12)


@pytest.mark.parametrize(
    ("axes", "lines", "seconds"),
    [
        ((1,), ((), ()), 1e-6 + 300e-9),
        ((0, 1), ((), ()), 1e-5 + 300e-8),  # at the pace of what lies between nodes
        # what starts last, and what carries least
        (
            (0, 1),
            ((), (("collective_permute", Line(5e-5, 2e9)),)),
            5e-5 + 300e-8,
        ),
        ((0, 1), ((), (("collective_permute", Line(1e-6, 1e7)),)), 1e-5 + 300e-7),
    ],
)
def test_a_permutation_over_several_axes_goes_at_the_pace_of_the_slowest(axes, lines, seconds):
    model = CostModel(DEVICE, tuple(replace(axis, measured=line) for axis, line in zip(TWO.axes, lines, strict=True)))
    assert model.move_s(ReshardStep("collective_permute", axes, 300)) == pytest.approx(seconds, rel=1e-12)


# What is measured


MEASURED = replace(DEVICE, launch_s=1e-4, array_s=1e-6, op_s=5e-6, vector_per_s=1e8, costly_per_s=1e7)
LINES = (("all_reduce", Line(1e-5, 1e6)), ("all_gather", Line(2e-5, 2e6)), ("collective_permute", Line(3e-5, 3e6)))


def test_measured_lines_come_before_the_formula():
    axis = MeshAxis("x", 4, 1e-6, 1e9, 0.5e9, "ring", ("link",), LINES)
    one = CostModel(DEVICE, (axis,))
    assert one.move_s(ReshardStep("all_reduce", (0,), 100)) == pytest.approx(1e-5 + 1e-4)
    assert one.move_s(ReshardStep("all_gather", (0,), 100)) == pytest.approx(2e-5 + 5e-5)
    assert one.move_s(ReshardStep("collective_permute", (0,), 300)) == pytest.approx(3e-5 + 1e-4)
    assert one.move_s(ReshardStep("reduce_scatter", (0,), 384)) == model(4).move_s(
        ReshardStep("reduce_scatter", (0,), 384)
    )
    table = table_of(one, KIND)  # a reshard is still affine in the bytes: the sum of a tensor of 384
    assert table[1, 0] == pytest.approx(1e-5 + 384e-6)


def op_class(name, operands, results, flops):
    return OpClass(name, operands, results, None, None, (), free=False, fusible=False, flops=flops)


def test_fixed_times_are_those_of_kernels_and_launches():
    add = op_class("stablehlo.add", (KIND, KIND), (KIND,), 96)
    one, preset = CostModel(MEASURED, ()), CostModel(DEVICE, ())
    assert one.compute_s(add, 0, 1, is_kernel=True) - one.compute_s(add, 0, 1) == pytest.approx(5e-6)
    assert preset.compute_s(add, 0, 1, is_kernel=True) == preset.compute_s(add, 0, 1)
    assert (one.launch_s(10), preset.launch_s(10)) == (pytest.approx(1.1e-4), 0)


def test_arithmetic_of_other_ops_has_rates_of_its_own():
    one = CostModel(MEASURED, ())
    add, tanh = (op_class(f"stablehlo.{name}", (KIND,), (KIND,), 96) for name in ("add", "tanh"))
    assert one.compute_s(add, 0, 2) == pytest.approx(48 / 1e8)
    assert one.compute_s(tanh, 0, 2) == pytest.approx(48 / 1e7)


def test_a_table_comes_before_rates_and_fixed_times():
    tables = tuple(
        Operator(f"stablehlo.{op}", "f32", ((100.0, 1e-3), (10000.0, 1e-2)), "here") for op in ("dot_general", "tanh")
    )
    one = CostModel(replace(MEASURED, operators=tables), ())
    product, tanh = (op_class(f"stablehlo.{name}", (KIND,), (KIND,), 2000) for name in ("dot_general", "tanh"))
    assert one.compute_s(product, 0, 2, is_kernel=True) == pytest.approx(1e-3 * math.sqrt(10))
    assert one.compute_s(product, 10**9, 2) == pytest.approx(1)  # its bytes take longer
    assert one.compute_s(tanh, 10000, 2, is_kernel=True) == pytest.approx(1e-2)
    half = op_class("stablehlo.dot_general", (TensorType((8, 12), "bf16", 2),), (KIND,), 2000)
    assert one.compute_s(half, 0, 1) == pytest.approx(2000 / 2e12)


@pytest.mark.parametrize(
    ("platform", "precision", "flops_per_s"),
    [
        ("cpu", "default", 8e8),
        ("gpu", "default", 4e9),
        ("gpu", "high", 4e9),
        ("gpu", "highest", 8e8),
        ("tpu", "default", 6e9),
        ("tpu", "high", 2e9),
        ("tpu", "highest", 1e9),
    ],
)
def test_products_of_f32_have_the_rate_of_what_the_platform_makes_of_them(platform, precision, flops_per_s):
    rates = (("f32", 8e8), ("tf32", 4e9), ("bf16", 6e9))
    one = CostModel(replace(DEVICE, platform=platform, flops_per_s=rates, matmul_efficiency=1.0), ())
    product = replace(op_class("stablehlo.dot_general", (KIND, KIND), (KIND,), 12 * 10**9), precision=precision)
    assert one.compute_s(product, 0, 2) == pytest.approx(6e9 / flops_per_s)


def test_what_is_moved_in_elements_half_as_wide_takes_half_the_bytes():
    one, specs = model(4), [split(0), PARTIAL, REPLICATED]
    wide, half = (reshard_seconds(one, KIND, specs, [REPLICATED], is_narrow=narrow)[:, 0] for narrow in (False, True))
    latency_s = 3e-6
    assert half[0] - latency_s == pytest.approx((wide[0] - latency_s) / 2)
    assert half[1:].tolist() == wide[1:].tolist() == [wide[1], 0]  # sums are taken as they are
