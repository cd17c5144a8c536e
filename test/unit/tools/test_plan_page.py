"""The page of a plan: it holds what the plan says, loads nothing, escapes everything, and a browser shows it."""

import io
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import jax
import mlp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from training import export_step

from rhino.ir.plan.files import load_plan
from rhino.ir.plan.plan import Alternative, Plan
from rhino.passes.planner.diff import diff_text
from rhino.passes.planner.explain import alternatives_text, explain_text
from rhino.tools import opt
from rhino.tools.drawing import ranges, tensor_drawing
from rhino.tools.page_html import page_html
from rhino.tools.plan import run

BROWSER = shutil.which("chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update",
    "--disable-sync --hide-scrollbars --window-size=1280,2000 --force-color-profile=srgb",
)
ALONE = ("--host-resolver-rules=MAP * ~NOTFOUND",)
"""What the browser would ask for by itself goes nowhere."""

COUNTING = """<script>
document.addEventListener("securitypolicyviolation", () => { document.documentElement.dataset.refused = "yes"; });
addEventListener("load", () => {
  document.documentElement.dataset.asked = performance.getEntriesByType("resource").length;
  document.querySelector("#arguments + p + .scroll th:nth-child(5)").click();
});
</script></body>"""
"""Says on the page what it asked for, and clicks the head of a column."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step of an MLP, its plan as one program, and one in two stages, as `rhino-opt` writes them."""
    made = tmp_path_factory.mktemp("plans")
    (made / "step.mlir").write_text(export_step(mlp.model(mlp.MLPConfig(sizes=(16, 32, 16), batch=8))))
    cluster = ("--cluster=v100x8", str(made / "step.mlir"))
    one = ("--auto-shard", "--mesh=auto", f"--plan={made / 'one.json'}")
    stages = (
        "--auto-parallel",
        "--stages=2",
        "--mesh=2",
        "--jobs=1",
        "--strategy=aceso",
        "--candidates=1",
        f"--plan={made / 'stages'}",
    )
    for words in (one, stages):
        errors = io.StringIO()
        assert opt.run([*words, *cluster], io.BytesIO(), io.BytesIO(), errors) == 0, errors.getvalue()
    return made


@pytest.fixture(scope="module")
def one(folder: Path) -> Plan:
    return load_plan(folder / "one.json")


@pytest.fixture(scope="module")
def stages(folder: Path) -> Plan:
    """As it was found, beside one that was slower."""
    plan = load_plan(folder / "stages")
    what = "2 stages of 2, 2 micro-batches, 50% of the activations recomputed"
    lost = Alternative(f"{what}, gpipe", 0.5, 0.1, is_exact=True, why="too slow")
    return replace(plan, alternatives=(lost, replace(lost, what=f"{what}, 1f1b", step_s=0.6, is_exact=False)))


def called(*argv: str) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return run(argv, io.BytesIO(), stdout, stderr), stdout.getvalue(), stderr.getvalue()


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 8), PartitionSpec()),
        ((8, 8), PartitionSpec("x")),
        ((8, 8), PartitionSpec(None, ("y", "x"))),
        ((8, 16), PartitionSpec("y", "x")),
        ((16,), PartitionSpec(("x", "y"))),
        ((4, 8, 8), PartitionSpec(None, "x", "y")),
        ((), PartitionSpec()),
    ],
)
def test_blocks_are_drawn_on_the_devices_that_hold_them(shape: tuple[int, ...], spec: PartitionSpec):
    """JAX says which devices hold which block."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
    whose: dict[str, list[int]] = {}
    for device, index in NamedSharding(mesh, spec).devices_indices_map(shape).items():
        whose.setdefault(str(index), []).append(device.id)
    padded = [*spec, *[None] * (len(shape) - len(spec))]
    dims = [(one,) if isinstance(one, str) else tuple(one or ()) for one in padded]
    drawing = tensor_drawing(shape, dims, {"x": 2, "y": 4})
    assert sorted(box.title.partition("devices ")[2] for box in drawing.boxes) == sorted(map(ranges, whose.values()))
    assert sum(box.width * box.height for box in drawing.boxes) == pytest.approx(drawing.width * drawing.height)


def test_the_page_loads_nothing_and_holds_what_the_plan_says(one: Plan, stages: Plan):
    for plan, names in ((one, [one.path for one in one.arguments]), (stages, [one.path for one in stages.arguments])):
        page = page_html(plan)
        assert all(re.match("#|data:,$", link) for link in re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]*)", page))
        assert "url(" not in page
        assert "http" not in page.replace("http-equiv", "")
        shown = page.replace("&#39;", "'")
        assert all(re.sub(r"\[\d+\]", "[*]", name) in shown or name in shown for name in names)
        assert page == page_html(plan)
    assert 'id="timeline"' in page_html(stages)
    assert "2 stages of 2, 2 micro-batches, 50% of the activations recomputed, gpipe" in page_html(stages)
    assert 'id="alternatives"' in page_html(one)


@pytest.mark.parametrize("times", [0.5, 1.0, 1.56, 10.0])
def test_nothing_is_drawn_beyond_its_canvas(one: Plan, stages: Plan, times: float):
    """What the search counts may be more than the peak that is predicted of the program."""
    memory, peak = one.sharding.memory, one.predicted.largest_peak_bytes
    curve = tuple((time, int(times * peak * (time + 1) / memory.num_times)) for time in range(memory.num_times))
    taller = replace(one.sharding, memory=replace(memory, curve=curve))
    for plan in (replace(one, sharding=taller), stages):
        drawings = re.findall(
            r'<svg[^>]*viewBox="0 0 ([0-9.]+) ([0-9.]+)"[^>]*>(.*?)</svg>', page_html(plan), re.DOTALL
        )
        assert any("polyline" in shapes for _, _, shapes in drawings)
        for width, height, shapes in drawings:
            for right, low in places(shapes):
                assert -0.01 <= right <= float(width) + 0.01
                assert -0.01 <= low <= float(height) + 0.01


def places(shapes: str) -> list[tuple[float, float]]:
    """The corners of the lines and boxes of a drawing."""
    found = [
        tuple(map(float, one.split(",")))
        for points in re.findall(r' points="([^"]*)"', shapes)
        for one in points.split()
    ]
    for tag in re.findall(r"<(?:line|rect)[^>]*>", shapes):
        at = {name: float(value) for name, value in re.findall(r' (x1|x2|y1|y2|x|y|width|height)="([-0-9.]+)"', tag)}
        if "x1" in at:
            found += [(at["x1"], at["y1"]), (at["x2"], at["y2"])]
        else:
            found += [(at["x"], at["y"]), (at["x"] + at["width"], at["y"] + at["height"])]
    return [(x, y) for x, y in found]


def test_a_peak_says_that_it_is_predicted(folder: Path, one: Plan, stages: Plan):
    other = replace(one, predicted=replace(one.predicted, peak_bytes=(2 * one.predicted.largest_peak_bytes,)))
    remarks = io.StringIO()
    assert (
        opt.run(
            ["--auto-shard", "--remarks-filter=gap", "--print-statistics", str(folder / "step.mlir")],
            io.BytesIO(),
            io.BytesIO(),
            remarks,
        )
        == 0
    )
    said = (explain_text(one), diff_text(one, other), explain_text(stages), diff_text(one, stages), remarks.getvalue())
    shown = (page_html(one), page_html(stages))
    for text in said:
        assert "predicted peak" in text
        assert not re.search(r"(?<!predicted )peak[^ ]* [0-9.]+ [KMG]?i?B", text)
    for text in shown:
        assert "predicted peak" in re.sub("<[^>]*>", "", text)
        assert not re.search(r"(?<!predicted )peak [0-9.]+ [KMG]?i?B", re.sub("<[^>]*>", "", text))


def test_limits_that_the_search_has_set_are_no_difference(stages: Plan):
    other = replace(stages, options={**stages.options, "rows": "5", "stage-rows": "6"})
    assert diff_text(stages, other) == ""


def test_names_are_escaped(one: Plan, stages: Plan):
    evil = "<script>alert('\"&')</script>"
    first, *others = one.arguments
    named = replace(one, arguments=(replace(first, path=evil), *others), source=replace(one.source, function=evil))
    arguments = tuple(replace(each, path=evil) for each in stages.arguments)
    in_stages = replace(stages, arguments=arguments, source=replace(stages.source, function=evil))
    for plan in (named, in_stages):
        page = page_html(plan)
        assert "<script>alert" not in page
        assert page.count("&lt;script&gt;alert") >= 2


def test_the_command_takes_both_kinds(folder: Path, tmp_path: Path):
    stages = load_plan(folder / "stages")
    for plan in ("one.json", "stages"):
        assert called("report", str(folder / plan), "-o", str(tmp_path / "plan.html")) == (0, "", "")
        assert (tmp_path / "plan.html").read_text() == page_html(
            stages if plan == "stages" else load_plan(folder / plan)
        )
        assert called("diff", str(folder / plan), str(folder / plan)) == (0, "the plans are the same\n", "")
    assert called("explain", str(folder / "stages")) == (0, explain_text(stages) + "\n", "")
    code, text, _ = called("diff", str(folder / "stages"), str(folder / "one.json"))
    assert code == 0
    assert f"{stages.form()} -> one program on mesh x=8" in text
    assert "step: " in text
    assert "argument state.params" in text
    assert called("explain", str(folder / "stages"), "--why=w")[0] == 2
    module = f"--module={folder / 'step.mlir'}"
    code, text, errors = called("explain", str(folder / "stages"), module, "--why=state.params.0.*", "--why=plan")
    assert (code, errors) == (0, "")
    assert re.search(r"argument f32\[\S+\] on rank \d\n  chosen: .*\n  in stage \d instead of \d: transfers ", text)
    assert "nothing else was looked at" in text or "alternatives:" in text
    code, text, _ = called("explain", str(folder / "one.json"), module)
    assert code == 0
    assert text.startswith(explain_text(load_plan(folder / "one.json")))
    assert "with 5% more memory, " in text.splitlines()[-1]
    assert called("explain", str(folder / "stages"), f"--module={folder / 'one.json'}", "--why=w")[0] == 1
    assert called("report", str(folder / "one.json"), "-o", str(tmp_path / "no" / "plan.html"))[0] == 1
    assert called(
        "report", str(folder / "one.json"), "-o", str(tmp_path / "why.html"), f"--module={folder / 'step.mlir'}"
    ) == (0, "", "")
    assert "Why not otherwise" in (tmp_path / "why.html").read_text()


def test_a_plan_in_stages_says_where_time_and_memory_go(stages: Plan):
    text = explain_text(stages)
    assert f"{stages.num_ranks} ranks" in text
    for words in ("programs: seconds", "transfers: seconds", "arguments: bytes per device", "alternatives:", "rank 1"):
        assert words in text
    slower = replace(stages.predicted, step_s=stages.predicted.step_s * 2)
    other = replace(stages, schedule="gpipe", predicted=slower)
    assert "step: " in diff_text(stages, other)
    assert diff_text(stages, stages) == ""


def browse(page: Path, *options: str) -> str:
    data = page.parent / "data"
    flags = [flag for line in FLAGS for flag in line.split()]
    command = [str(BROWSER), *flags, *ALONE, f"--user-data-dir={data}", *options, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_a_browser_shows_the_page(stages: Plan, tmp_path: Path):
    (tmp_path / "plan.html").write_text(page_html(stages))
    browse(tmp_path / "plan.html", f"--screenshot={tmp_path / 'plan.png'}")
    colours, width, height = read_png(tmp_path / "plan.png")
    assert (width, height) == (1280, 2000)
    assert len(colours) > 30  # text, lines, bars and blocks, not an empty page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_the_page_sorts_and_asks_for_nothing(one: Plan, tmp_path: Path):
    (tmp_path / "plan.html").write_text(page_html(one).replace("</body>", COUNTING))
    dom = browse(tmp_path / "plan.html", "--dump-dom")
    assert 'data-ready="yes"' in dom
    assert 'data-asked="0"' in dom
    assert "data-refused" not in dom
    table = dom[dom.index('id="arguments"') : dom.index("</table>", dom.index('id="arguments"'))]
    sizes = [float(keys[-2]) for keys in (re.findall(r'data-key="([^"]+)"', row) for row in table.split("<tr>")[2:])]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 3
    assert 'data-up="0"' in table


def read_png(path: Path) -> tuple[set[bytes], int, int]:
    """Returns the colours of a PNG's lines as they are stored, and its size; filters left alone."""
    data = path.read_bytes()
    width, height = (int.from_bytes(data[at : at + 4]) for at in (16, 20))
    place, packed = 8, b""
    while place < len(data):
        length = int.from_bytes(data[place : place + 4])
        packed += data[place + 8 : place + 8 + length] if data[place + 4 : place + 8] == b"IDAT" else b""
        place += 12 + length
    rows = zlib.decompress(packed)
    return {rows[at : at + 3] for at in range(1, len(rows) - 3, 997)}, width, height


def test_steps_of_programs_and_estimates_are_told_apart(stages: Plan):
    assert [" ".join(line.split()) for line in alternatives_text(stages)[1:3]] == [
        "500 ms 2 stages of 2, 2 micro-batches, 50% of the activations recomputed, gpipe too slow",
        "about 600 ms 2 stages of 2, 2 micro-batches, 50% of the activations recomputed, 1f1b too slow",
    ]
    assert ">about 600 ms</td>" in page_html(stages)
