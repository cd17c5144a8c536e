"""Profiles: lines through samples, clusters from them, tables from elsewhere, remarks on old ones, a small run."""

import datetime
import os
import random
import subprocess
import sys
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from aceso_part import write_tables

from rhino.ir.cluster.age import MAX_AGE_DAYS, stale
from rhino.ir.cluster.cluster import cluster_to_text, load_cluster, mesh_axes, parse_cluster
from rhino.ir.cluster.hardware import Line, Origin
from rhino.ir.cluster.operators import parse_operators
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.collective_stats import KINDS
from rhino.runtime.profile.cluster import make_cluster, make_groups
from rhino.runtime.profile.fit import errors, fit_line
from rhino.runtime.profile.measure import Sample, Settings, by_kind, measure_between
from rhino.tools import opt
from rhino.tools.profile import run

ORIGIN = Origin("2026-11-22", "a machine, 2 cores", "cpu", "cpu", "0.10.2")
SIZES = (1e3, 1e4, 1e5, 1e6, 1e7)


# Lines


def test_a_line_is_found_exactly():
    found = fit_line([(work, 2e-6 + work / 5e9) for work in SIZES])
    assert found.line.fixed_s == pytest.approx(2e-6)
    assert found.line.per_s == pytest.approx(5e9)
    assert found.worst_error < 1e-9


def test_a_spoilt_sample_does_not_move_the_line():
    points = [(work, 2e-6 + work / 5e9) for work in SIZES]
    points[3] = (points[3][0], points[3][1] * 50)
    found = fit_line(points)
    assert (found.line.fixed_s, found.line.per_s) == (pytest.approx(2e-6), pytest.approx(5e9))
    assert found.median_error < 1e-9
    assert found.worst_error > 0.9


def test_no_line_of_a_grid_is_better():
    rng = random.Random(0)
    for _ in range(20):
        points = [(work, (1e-6 + work / 1e9) * rng.uniform(0.5, 2)) for work in SIZES]
        best = sum(errors(fit_line(points).line, points))
        for fixed in (10**e for e in range(-9, -3)):
            for rate in (10 ** (e / 4) for e in range(24, 44)):
                assert best <= sum(errors(Line(fixed, rate), points)) + 1e-12


@pytest.mark.parametrize("points", [[(100.0, 1e-3)], [(1.0, 1e-3), (2.0, 1e-3)], [(1.0, 2e-3), (2.0, 1e-3)]])
def test_few_or_falling_samples_give_a_line_all_the_same(points):
    line = fit_line(points).line
    assert line.fixed_s > 0
    assert line.per_s > 0


# From samples to a cluster


def samples(count=4):
    """What 4 devices would be measured to take: 10 GFLOP/s, 2 GB/s, collectives of 10 us a device and 1 GB/s."""
    found = [
        Sample("launch", 1, 2.0, 120e-6, 0.1),
        Sample("launch", 1, 128.0, 120e-6 + 126 * 5e-6, 0.1),
        Sample("op", 1, 1.0, 3e-6, 0.1),
    ]
    found += [Sample("product f32", 1, work, 1e-6 + work / 1e10, 0.1) for work in SIZES]
    found += [Sample("convolution f32", 1, work, 1e-5 + work / 5e9, 0.1) for work in SIZES]
    found += [Sample("memory", 1, work, work / 2e9, 0.1) for work in SIZES]
    rates = (("vector", 8e9), ("costly", 1e9), ("step memory", 1e9))
    found += [Sample(group, 1, work, work / rate, 0.1) for group, rate in rates for work in SIZES]
    found += [Sample("transfer", 2, work, 40e-6 + work / 3e9, 0.1) for work in SIZES]
    groups = [inner for inner in range(2, count + 1) if count % inner == 0]
    return [
        *found,
        *(
            Sample(kind, inner, work, 1e-5 * inner + work / 1e9, 0.1)
            for inner in groups
            for kind in KINDS
            for work in SIZES
        ),
    ]


@pytest.fixture
def measured():
    return make_cluster("mine", samples(), jax.devices()[:1] * 4, ORIGIN)


def test_a_cluster_has_what_was_measured(measured):
    device, (level,) = measured.device, measured.levels
    assert measured.num_devices == 4
    assert device.matmul_flops_per_s("f32") == pytest.approx(1e10)
    assert (device.hbm_bytes_per_s, device.memory_bytes_per_s) == (pytest.approx(2e9), pytest.approx(1e9))
    assert (device.launch_s, device.array_s, device.op_s) == (pytest.approx(110e-6), pytest.approx(5e-6), 3e-6)
    assert (device.vector_per_s, device.costly_per_s) == (pytest.approx(8e9), pytest.approx(1e9))
    assert device.operator("stablehlo.convolution", "f32").seconds(1e5) == pytest.approx(3e-5)
    assert level.transfer == Line(pytest.approx(40e-6), pytest.approx(3e9))
    assert [(kind, units) for kind, units, _ in level.collectives] == [
        (kind, units) for kind in KINDS for units in (2, 4)
    ]


def test_unlike_devices_are_groups(tmp_path):
    """Each kind is measured by itself, and the link between kinds on all devices at once."""
    kinds = [SimpleNamespace(device_kind=kind, platform="cpu") for kind in "abba"]
    found = by_kind(kinds)
    assert [[one.device_kind for one in own] for own in found] == [["a", "a"], ["b", "b"]]
    slow = [replace(one, seconds=2 * one.seconds) for one in samples(2)]
    groups = [make_cluster(kind, own, jax.devices()[:1] * 2, ORIGIN) for kind, own in (("a", samples(2)), ("b", slow))]
    devices = [jax.devices()[:2], jax.devices()[2:4]]
    between = measure_between(devices, Settings(rounds=1), lambda _: None)
    assert all(one.seconds > 0 for one in between)
    line = [Sample("transfer", 2, work, 1e-4 + work / 1e8, 0.1) for work in SIZES]
    cluster = make_groups("mixed", groups, line, ORIGIN)
    file = tmp_path / "mixed.toml"
    file.write_text(cluster_to_text(cluster))
    assert load_cluster(str(file)) == cluster
    old = datetime.date.fromisoformat(ORIGIN.date) + datetime.timedelta(MAX_AGE_DAYS + 1)
    assert [why.split("'")[1] for why in stale(cluster, old, ORIGIN.jaxlib, ORIGIN.machine)] == ["a", "b"]
    assert [one.device.matmul_flops_per_s("f32") for one in cluster.groups] == [
        pytest.approx(1e10),
        pytest.approx(5e9),
    ]
    assert cluster.levels[0].transfer == Line(pytest.approx(1e-4), pytest.approx(1e8))


def test_every_figure_says_when_and_where_it_was_measured(measured):
    sources = [
        *measured.device.sources,
        *measured.levels[0].sources,
        *((one.op, one.source) for one in measured.device.operators),
    ]
    own = ("hbm_bytes", "usable_hbm_fraction", "matmul_efficiency", "efficiency")
    for key, source in sources:
        if key not in own:
            assert "2026-11-22, jaxlib 0.10.2, 4 devices at once on a machine, 2 cores" in source, key
            assert "%" in source, key


def test_the_file_of_a_measured_cluster_round_trips(measured):
    assert parse_cluster(cluster_to_text(measured)) == measured
    assert cluster_to_text(measured).startswith("version = 2\n")


def test_axes_take_measured_lines_of_their_size(measured):
    outer, inner = mesh_axes(measured, (2, 2))
    assert inner.line("all_reduce") == outer.line("all_reduce") == Line(pytest.approx(2e-5), pytest.approx(1e9))
    assert mesh_axes(measured, (4,))[0].line("all_gather") == Line(pytest.approx(4e-5), pytest.approx(1e9))
    assert mesh_axes(measured, (3,))[0].line("all_gather") is None
    assert mesh_axes(measured, (3,))[0].link == measured.levels[0].transfer


def test_seconds_of_a_table_never_fall():
    noisy = [*(one for one in samples() if one.group != "product f32")]
    noisy += [
        Sample("product f32", 1, work, seconds, 0.1)
        for work, seconds in ((1e3, 3e-6), (1e4, 2e-6), (1e4, 4e-6), (1e5, 9e-6))
    ]
    table = make_cluster("mine", noisy, jax.devices()[:1] * 4, ORIGIN).device.operator("stablehlo.dot_general", "f32")
    assert table.points == ((1e3, 3e-6), (1e4, 4e-6), (1e5, 9e-6))


def test_one_device_has_a_level_and_no_collectives():
    (level,) = make_cluster("mine", samples(1), jax.devices()[:1], ORIGIN).levels
    assert (level.size, level.collectives, level.transfer) == (1, (), None)


# Tables from elsewhere


TABLE = """{"version": 1, "source": "a vendor", "operators": [
  {"op": "stablehlo.dot_general", "dtype": "bf16", "points": [[1e9, 1e-5], [1e11, 1e-3]]}
]}"""


def test_a_table_is_read():
    (one,) = parse_operators(TABLE)
    assert (one.op, one.dtype, one.source) == ("stablehlo.dot_general", "bf16", "a vendor")
    assert one.seconds(1e10) == pytest.approx(1e-4)  # between two points as a power of the work: here its first
    assert one.seconds(1e8) == pytest.approx(1e-6)
    assert one.seconds(1e12) == pytest.approx(1e-2)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('{"version": 1,', "{", "'version': got nothing"),
        ('"version": 1', '"version": 2', "'version': got 2, expected 1"),
        ('"version": 1', '"version": ,', "is not JSON"),
        ('"dtype"', '"type"', "did you mean 'dtype'?"),
        (
            '"stablehlo.dot_general"',
            '"dot general"',
            "'operators[0].op': got 'dot general', expected the name of an op",
        ),
        ('"bf16"', '"16"', "'operators[0].dtype': got '16'"),
        ("[1e11, 1e-3]", "[1e8, 1e-3]", "'operators[0].points': got"),
        ("[1e11, 1e-3]", "[1e11, 1e-6]", "'operators[0].points': got"),
        ('"points"', '"operands": ["8x"], "results": ["8xf32"], "points"', "'operators[0].operands': got ['8x']"),
        ('"points"', '"operands": ["8xf32"], "points"', "'operators[0].results': got nothing"),
        ("[1e11, 1e-3]", "[1e11, -1]", "'operators[0].points': got"),
        ("[1e11, 1e-3]", "1e11", "'operators[0].points': got"),
        ("[[1e9, 1e-5], [1e11, 1e-3]]", "[]", "'operators[0].points': got []"),
        (TABLE, "[]", "is no JSON object"),
        ("}\n]", "}, {}\n]", "'operators[1].op': got nothing"),
    ],
)
def test_a_malformed_table(old, new, says):
    assert old in TABLE
    with pytest.raises(RhinoError) as error:
        parse_operators(TABLE.replace(old, new, 1), "table.json")
    assert error.value.id == "RHI-CLUSTER-003"
    assert error.value.place.file == "table.json"
    assert says in error.value.render()
    assert error.value.fix


def test_an_op_has_one_table_for_a_type():
    double = TABLE.replace("}\n]", '}, {"op": "stablehlo.dot_general", "dtype": "bf16", "points": [[1, 1]]}\n]')
    with pytest.raises(RhinoError, match="expected an op that has no table for bf16 yet"):
        parse_operators(double)


def profile(*argv):
    """Runs the command line; returns its exit code and what it said on stderr."""
    stderr = StringIO()
    return run(argv, BytesIO(), stderr), stderr.getvalue()


def test_a_table_is_added_to_a_preset(tmp_path):
    (tmp_path / "table.json").write_text(TABLE, encoding="utf-8")
    out = tmp_path / "mine.toml"
    assert profile("--from=h100x8", f"--operators={tmp_path / 'table.json'}", "-o", str(out)) == (0, "")
    mine, preset = load_cluster(str(out)), load_cluster("h100x8")
    assert mine == replace(preset, device=replace(preset.device, operators=parse_operators(TABLE)))
    twice = tmp_path / "twice.toml"
    assert profile(f"--from={out}", f"--operators={tmp_path / 'table.json'}", "-o", str(twice)) == (0, "")
    assert twice.read_text(encoding="utf-8") == out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--from=v100x8",), "nothing to add to it"),
        (("--from-aceso=nowhere",), "without a cluster to add to"),
        (("--from=v100x8", "--from-aceso=nowhere"), "nowhere: error: [RHI-CLUSTER-004]"),
        (("--from=v100x8", "--devices=2", "--operators=x"), "exclude each other"),
        (("--from=cpu2", "--devices=2", "--ops=nowhere.mlir"), "RHI-CLI-002"),
        (("--from=v100x8+p100x8", "--ops=nowhere.mlir"), "has groups of unlike devices"),
        (("--dtypes=f32,int",), "'int' is none of f64, f32"),
        (("--rounds=0",), "0 is not at least 1"),
        (("--devices=none",), "--devices"),
        (("-o", "nowhere/at/all.toml"), "RHI-CLI-003"),
        (("--operators=nowhere.json",), "RHI-CLI-002"),
    ],
)
def test_command_lines_that_are_refused(argv, says):
    code, said = profile(*argv)
    assert code in (1, 2)
    assert says in said


STEP = """func.func @main(%a: tensor<16x8xf32>, %b: tensor<8x8xf32>) -> (tensor<16x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] :
    (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.tanh %0 : tensor<16x8xf32>
  %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [0] :
    (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %3 = stablehlo.dot_general %a, %2, contracting_dims = [0] x [0] :
    (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return %2, %3 : tensor<16x8xf32>, tensor<8x8xf32>
}"""


def test_each_distinct_op_of_a_program_is_measured_once(tmp_path):
    step, out, twice = tmp_path / "local.mlir", tmp_path / "mine.toml", tmp_path / "twice.toml"
    step.write_text(STEP, encoding="utf-8")
    words = ("--devices=2", "--rounds=1")
    assert profile("--from=cpu2", f"--ops={step}", *words, "-o", str(out)) == (0, "")
    found = load_cluster(str(out)).device.operators
    assert [(one.op, one.operands, one.results) for one in found] == [
        ("stablehlo.dot_general", ("16x8xf32", "8x8xf32"), ("16x8xf32",)),
        ("stablehlo.dot_general", ("16x8xf32", "16x8xf32"), ("8x8xf32",)),
    ]
    for one in found:
        ((work, seconds),) = one.points
        assert work == sum(
            np.prod([int(n) for n in kind.split("x")[:-1]]) * 4 for kind in (*one.operands, *one.results)
        )
        assert 0 < seconds < 1
        assert "2 devices at once" in one.source
    # What was measured before gives way, and nothing is there twice.
    assert profile(f"--from={out}", f"--ops={step}", *words, "-o", str(twice)) == (0, "")
    assert [one.key for one in load_cluster(str(twice)).device.operators] == [one.key for one in found]


def test_tables_of_aceso_are_added_to_a_preset(tmp_path):
    """A product takes 2 FLOPs for each row, column and depth, and twice as many in the backward pass."""
    out = tmp_path / "mine.toml"
    assert profile("--from=v100x8x2", f"--from-aceso={write_tables(tmp_path)}", "-o", str(out)) == (0, "")
    mine, preset = load_cluster(str(out)), load_cluster("v100x8x2")
    (products,) = mine.device.operators
    assert (products.op, products.dtype) == ("stablehlo.dot_general", "f16")
    # 4, 6 and 12 MB of two bytes: an operand of 2**21, weights of 3 x 2**20, and a result of 3 x 2**21 elements.
    one = float(f"{2 * (2**21 * 3 * 2**20 * 3 * 2**21) ** 0.5:.4g}")
    two = float(f"{2 * (2**22 * 3 * 2**20 * 3 * 2**22) ** 0.5:.4g}")
    assert products.points == ((one, pytest.approx(200e-6)), (two, pytest.approx(400e-6)))
    outer, inner = mine.levels
    lines = {(kind, count): line for kind, count, line in inner.collectives}
    assert {count for _, count in lines} == {2}
    assert lines["all_reduce", 2].fixed_s == pytest.approx(0.05e-3)
    assert lines["all_reduce", 2].per_s == pytest.approx(2**20 / 0.02e-3)
    assert lines["all_gather", 2].per_s == pytest.approx(2**21 / 0.02e-3), "the payload is what is gathered"
    assert inner.transfer == outer.transfer is not None
    device = replace(mine.device, operators=())
    levels = [replace(level, collectives=(), transfer=None, sources=()) for level in mine.levels]
    assert device == preset.device
    assert levels == [replace(level, sources=()) for level in preset.levels]


# Age


@pytest.mark.parametrize(
    ("today", "jaxlib", "machine", "says"),
    [
        ("2026-11-22", "0.10.2", "a machine, 2 cores", ()),
        ("2027-11-22", "0.10.2", "a machine, 2 cores", ("365 days old",)),
        ("2026-11-22", "0.11.0", "a machine, 2 cores", ("with jaxlib 0.10.2, and this is 0.11.0",)),
        ("2026-11-22", "0.10.2", "a machine, 4 cores", ("on a machine, 2 cores, and this is a machine, 4 cores",)),
    ],
)
def test_why_a_profile_may_not_hold(measured, today, jaxlib, machine, says):
    found = stale(measured, datetime.date.fromisoformat(today), jaxlib, machine)
    assert len(found) == len(says)
    assert all(part in text for part, text in zip(says, found, strict=True))


def test_what_nobody_has_measured_is_never_stale_nor_an_accelerator_elsewhere(measured):
    later = datetime.date(2026, 11, 22) + datetime.timedelta(days=MAX_AGE_DAYS)
    assert stale(load_cluster("v100x8"), datetime.date(2099, 1, 1), "1.0", "any") == ()
    assert stale(replace(measured, measured=replace(ORIGIN, platform="gpu")), later, "0.10.2", "a laptop") == ()


def test_an_old_profile_gets_a_remark_and_is_used(measured, tmp_path):
    file = tmp_path / "old.toml"
    file.write_text(cluster_to_text(replace(measured, measured=replace(ORIGIN, date="2020-01-01"))), encoding="utf-8")
    kind = "tensor<8x8xf32>"
    text = (
        f"func.func public @main(%a: {kind}) -> {kind} {{ %0 = stablehlo.tanh %a : {kind} return %0 : {kind} }}"
    ).encode()
    stdout, stderr = BytesIO(), StringIO()
    assert (
        opt.run(["--auto-shard", f"--cluster={file}", "--remarks-filter=profile"], BytesIO(text), stdout, stderr) == 0
    )
    assert "the profile 'mine' may not hold: it is " in stderr.getvalue()
    assert b"sdy.mesh" in stdout.getvalue()


# A run


def test_two_host_devices_are_measured(tmp_path):
    out = tmp_path / "host2.toml"
    words = ["--devices=2", "--rounds=1", "--limit=1e-6", "--dtypes=f32", "--name=tiny", "-o", str(out)]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    code = "from rhino.tools.profile import main; main()"
    folder = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 devices (cpu) of one machine" in done.stderr
    cluster = load_cluster(str(out))
    assert (cluster.name, cluster.num_devices, cluster.measured.platform) == ("tiny", 2, "cpu")
    assert {(kind, units) for kind, units, _ in cluster.levels[0].collectives} == {(kind, 2) for kind in KINDS}
    assert 1e6 < cluster.device.memory_bytes_per_s < 1e13
