"""Draw the pictures of the first page: a plan in stages, and what memory costs.

    python docs/pictures.py

writes docs/plan.svg and docs/remat.svg. Everything in them is predicted, so the same on every machine.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from rhino.ir.plan.files import load_plan
from rhino.ir.plan.plan import Plan, dims_text
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.planner.plan_rows import AlikeTensors, alike, simulation_of
from rhino.tools import opt
from rhino.tools.drawing import Box, tensor_drawing, timeline_drawing

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

MODEL: Final = ("gpt", "--preset=gpt-medium", "--batch=32", "--dtype=bf16")
CLUSTER: Final = "--cluster=v100x8"
SHARES: Final = (0, 0.25, 0.5, 0.75, 1)
TITLE: Final = "A GPT of 356 M parameters"

_WIDTH: Final = 880
COLOURS: Final = ("#2b6cb0", "#c05621")
_HUES: Final = {"forward": 210, "backward": 25, "input-gradient": 25, "weight-gradient": 45, "apply": 140, "setup": 280}
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#333}.small{font-size:10px}.end{text-anchor:end}"
    ".head{font-size:14px;font-weight:600}"
)


def exported(folder: Path) -> Path:
    """Writes the model's training step, and returns its file."""
    import export  # noqa: PLC0415 - of examples/, which is on the path by now

    file = folder / "step.mlir"
    assert export.run([*MODEL, "-o", str(file)]) == 0, "the model is one of examples/"
    return file


def planned(file: Path, *words: str) -> Plan | None:
    """Returns the plan that rhino-opt writes; None where none fits."""
    plan = file.with_name("plan")
    errors = io.StringIO()
    code = opt.run([str(file), CLUSTER, *words, f"--plan={plan}"], io.BytesIO(), io.BytesIO(), errors)
    return load_plan(plan) if code == 0 else None


def plan_picture(plan: Plan) -> str:
    """Returns the timeline of a plan in stages, and the blocks of its largest arguments."""
    assert plan.execution is not None, "it is a plan in stages"
    timeline = simulation_of(plan.execution).timeline
    drawn = timeline_drawing(timeline)
    top, height = 46, 150
    across, down = (_WIDTH - 80) / drawn.width, height / drawn.height
    shapes = [
        text(
            16,
            26,
            f"{TITLE}: {plan.form()}, step {format_seconds(plan.predicted.step_s)}",
            "head",
        ),
        *(text(16, top + height * (rank + 0.5) / plan.num_ranks + 4, f"rank {rank}") for rank in range(plan.num_ranks)),
        *(_box(box, 70, top, across, down) for box in drawn.boxes),
    ]
    phases = dict.fromkeys(span.task.phase for span in timeline.spans)
    for number, phase in enumerate(phases):
        at = 70 + 130 * number
        shapes.append(f'<rect x="{at}" y="{top + height + 12}" width="12" height="12" {_fill(phase)}/>')
        shapes.append(text(at + 18, top + height + 22, phase, "small"))
    below = top + height + 52
    shapes.append(text(16, below, "Its largest arguments, on the mesh of their rank: a block for each device", "head"))
    for number, one in enumerate(alike(plan, plan.arguments)[:4]):
        shapes += _argument(plan, one, 16 + 216 * number, below + 14)
    return svg(below + 130, shapes)


def _argument(plan: Plan, one: AlikeTensors, x: float, y: float) -> Iterator[str]:
    drawing = tensor_drawing(one.first.shape[-2:], one.first.dims[-2:], dict(plan.mesh.axes))
    scale = 56 / max(drawing.width, drawing.height)
    yield from (_box(box, x, y, scale, scale) for box in drawing.boxes)
    name = one.name if len(one.name) < 34 else f"...{one.name[-31:]}"
    yield text(x, y + 76, name, "small")
    words = f"{dims_text(one.first.dims)}, {format_bytes(one.num_bytes)} a device, rank {one.first.rank}"
    yield text(x, y + 92, words, "small")


def memory_chart(lines: Mapping[str, Sequence[tuple[float, float, float]]]) -> str:
    """Returns the step over the peak of a device: a line for each number of micro-batches, by rising rematerialization.

    Of each point: share that is recomputed, peak in bytes, step in seconds.
    """
    points = [point for line in lines.values() for point in line]
    steps, sizes = [step_s for _, _, step_s in points], [size for _, size, _ in points]
    left, top, wide, high = 130, 60, 700, 180
    low_s = min(steps) - 0.1 * (max(steps) - min(steps))

    def place(size: float, step_s: float) -> tuple[float, float]:
        return left + wide * size / max(sizes), top + high * (1 - (step_s - low_s) / (max(steps) - low_s))

    shapes = [text(16, 26, f"{TITLE}, one program on 8 V100s: what rematerialization costs, and what it saves", "head")]
    for (name, line), colour in zip(lines.items(), COLOURS, strict=True):
        every = [(*place(size, step_s), share, size, step_s) for share, size, step_s in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in every)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, share, size, step_s in every:
            shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            words = f"{share:.0%}: {format_seconds(step_s)}, {format_bytes(size)}"
            kind = "small end" if colour != COLOURS[0] or x > left + 0.8 * wide else "small"
            shapes.append(text(x - 8 if "end" in kind else x + 6, y - 8, words, kind))
        x, y, *_ = every[0]
        shapes.append(text(x - 60, y + 20, name))
    shapes.append(
        text(
            16, top + high + 26, "to the right: predicted peak of a device; up: step; at a point: the share recomputed"
        )
    )
    return svg(top + high + 40, shapes)


def _box(box: Box, x: float, y: float, across: float, down: float) -> str:
    place = f'x="{x + box.x * across:.1f}" y="{y + box.y * down:.1f}"'
    size = f'width="{max(box.width * across, 0.5):.1f}" height="{box.height * down:.1f}"'
    colour = _fill(box.name) if box.hue is None else f'fill="hsl({box.hue} 60% 65%)"'
    return f'<rect {place} {size} {colour} stroke="white" stroke-width="0.5"/>'


def _fill(phase: str) -> str:
    return f'fill="hsl({_HUES[phase]} 55% 60%)"' if phase in _HUES else 'fill="#dddddd"'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Returns a line of text as SVG."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def svg(height: float, shapes: Sequence[str]) -> str:
    """Returns a picture of shapes as SVG."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}">'
    back = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="white"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", back, *shapes, "</svg>", ""])


def main() -> None:
    """Writes both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        file = exported(Path(folder))
        stages = planned(file, "--auto-parallel", "--stages=4", "--micro-batches=8", "--mesh=2")
        assert stages is not None, "it fits"
        (ROOT / "docs" / "plan.svg").write_text(plan_picture(stages), encoding="utf-8")
        other = Path(folder) / "one"
        other.mkdir()
        (other / file.name).write_bytes(file.read_bytes())
        lines = {}
        for count in (1, 4):
            words = ("--auto-shard", "--mesh=8", f"--micro-batches={count}")
            plans = {share: planned(other / file.name, *words, f"--remat={share}") for share in SHARES}
            lines[f"{count} micro-batch{'es' if count > 1 else ''}"] = [
                (share, plan.predicted.largest_peak_bytes, plan.predicted.step_s)
                for share, plan in plans.items()
                if plan
            ]
        (ROOT / "docs" / "remat.svg").write_text(memory_chart(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
