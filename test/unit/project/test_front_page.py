"""What the first page and the tutorial tell to type does what they say.

Blocks that are fenced as `python` or `sh` are typed; the others are what comes out.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import export
import pytest
from conftest import FLAGS

from rhino.tools import opt, plan, run

ROOT = Path(__file__).resolve().parents[3]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"

ENVIRONMENTS = ("bash examples/quickstart.sh", "source .venv/bin/activate", "bash .ci/check")
"""What makes or enters a virtual environment: that is for a clone. What the first one runs in it is asked for below."""


def blocks(file: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands(file: Path) -> list[str]:
    return [line for block in blocks(file, "sh") for line in block.splitlines() if line not in ENVIRONMENTS]


def python_output(file: Path, folder: Path) -> str:
    """What the Python of a page prints, in a process of its own."""
    environ = {**os.environ, "XLA_FLAGS": " ".join(flag for flag in FLAGS if "device_count" not in flag)}
    program = "\n".join(blocks(file, "python"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(file: Path) -> list[str]:
    """The lines that a page shows of what comes out, without those that stand for others."""
    page = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [line.strip() for line in re.findall(r"^    (.*)$", page, re.MULTILINE) if line.strip() not in ("...", "")]


def type_in(command: str) -> str:
    """What a command prints; it has to succeed."""
    name, *words = shlex.split(command)
    stdin, out, err = io.BytesIO(), io.BytesIO(), io.StringIO()
    stdout = io.TextIOWrapper(out, write_through=True)
    match name:
        case "mkdir":
            Path(words[-1]).mkdir(exist_ok=True)
            return ""
        case "python":
            assert words[0] == "examples/export.py"
            code = export.run(words[1:])
        case "rhino-opt":
            code = opt.run(words, stdin, out, err)
        case "rhino-run":
            code = run.run(words, stdin, stdout, err)
        case "rhino-plan":
            code = plan.run(words, stdin, stdout, err)
        case _:
            pytest.fail(f"nobody knows how to run {command}")
    assert code == 0, (command, err.getvalue())
    return out.getvalue().decode() + err.getvalue()


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return tmp_path


def test_the_first_page(page_folder: Path):
    explained, last = python_output(README, page_folder).rstrip().rsplit("\n", 1)
    assert explained.startswith("step: one program on mesh x=8, for cpu8")
    loss, sharding = last.split(" ", 1)
    assert float(loss) < 1.0
    assert sharding.startswith("NamedSharding(mesh=Mesh('x': 8")
    printed = {
        command: type_in(command) for command in (*commands(README), "rhino-plan diff out/plan.json out/plan.json")
    }
    said = "\n".join(printed.values())
    assert re.search(r"gap 0\.0\d%\); predicted peak \d\d(\.\d)? GiB of 58\.2 GiB per device", said)
    assert "the results agree with the one-device program" in said
    assert "the plans are the same" in said


def test_the_first_page_says_what_the_quickstart_runs():
    script = (ROOT / "examples" / "quickstart.sh").read_text(encoding="utf-8")
    run = [line.removeprefix(".venv/bin/") for line in script.splitlines() if line.startswith(".venv/bin/")]
    assert run
    assert set(run) <= set(commands(README))


def test_the_tutorial(page_folder: Path):
    printed = python_output(TUTORIAL, page_folder)
    assert "step: one program on mesh x=8, for cpu8" in printed
    assert 'pin: not asked -> state.params.*.up=[{"x"}, {}]' in printed
    assert printed.index("[RHI-SOLVE-001]") < printed.index("[RHI-PLAN-004]")
    assert printed.count("\n1.4257") == 2  # on a mesh, and in stages
    said = "\n".join(type_in(command) for command in commands(TUTORIAL))
    assert said.count("the results agree with the one-device program") == 2
    assert "rank 1 |" in said
    lines = {" ".join(line.split()) for line in f"{printed}\n{said}".splitlines()}
    assert [line for line in shown(TUTORIAL) if " ".join(line.split()) not in lines] == []
