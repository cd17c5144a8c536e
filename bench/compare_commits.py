"""Whether two states of this repository plan the same: IR and plans of a corpus are compared byte for byte.

Only what was renamed on purpose may differ.

    python bench/compare_commits.py BASE [HEAD] [--renamed=FILE] [--pipelines=mlp,gpt] [--keep=FOLDER]

BASE and HEAD are commits; without HEAD the working tree is compared. The corpus is that of BASE: every module of
test/lit by itself, and every model of examples/zoo.py. Each is planned as COMMANDS say, once by each state in a process
of its own; standard output, exit codes, ids of errors, and the plans that are written are compared. `--renamed` is a
JSON object: what stands in outputs, options or plans of BASE (regular expressions) and what stands there instead.
`--keep` keeps all outputs.

Exit code: 0 if all are equal, 1 if some differ (each is named, with the first line that does), 2 if a state cannot be
run.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mutate import ROOT, copied, link_packages
from plan_facts import Facts, facts_of

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "shard": ("--auto-shard", "--cluster=cpu8", "--plan={out}.plan.json"),
    "shard-2x4": ("--auto-shard", "--cluster=cpu8", "--mesh=2x4", "--localize"),
    "tight": ("--auto-shard", "--cluster=cpu4", "--budget=1MiB"),
}
"""What is done with each module; `{out}` is where outputs go."""

PIPELINES: Final[dict[str, tuple[str, ...]]] = {
    "stages": ("--auto-parallel", "--cluster=cpu4", "--stages=2", "--micro-batches=4", "--plan={out}.plan"),
    "open": ("--auto-parallel", "--cluster=cpu4", "--jobs=1", "--plan={out}.plan"),
}
"""What is done with the models of `--pipelines` beside."""

_WORKER: Final = """
import io, json, sys, traceback
from rhino.tools import opt
for out, source, argv in json.load(sys.stdin):
    stdout, stderr = io.BytesIO(), io.StringIO()
    try:
        code = opt.run([*argv, source], io.BytesIO(), stdout, stderr)
    except BaseException:
        code, _ = 70, stderr.write(traceback.format_exc())
    with open(out + ".out", "wb") as file:
        file.write(stdout.getvalue())
    with open(out + ".err", "w") as file:
        file.write(f"{code}\\n{stderr.getvalue()}")
"""

_EXPORTER: Final = """
import sys
from zoo import ZOO
from training import export_step
for name, model in ZOO.items():
    with open(f"{sys.argv[1]}/{name}.mlir", "w") as file:
        file.write(export_step(model))
"""

_OLD_PLAN: Final = "manifest.json"
"""What folders had for a plan's file up to version 2 of the format."""

_ID: Final = re.compile(r"\[(RHI-[A-Z]+-\d+)\]")


def checkout(commit: str | None, into: Path) -> Path:
    """Returns a copy of a commit, or of the working tree, with packages under the names by which they are imported."""
    if commit is None:
        return copied(ROOT, into, "", ()).root
    place = into / "copy"
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")
    link_packages(place)
    return place


def corpus(base: Path, into: Path) -> list[Path]:
    """Returns the modules that are planned: those of test/lit, and then the example models."""
    into.mkdir()
    for file in sorted((base / "test" / "lit").rglob("*.mlir")):
        for number, text in enumerate(file.read_text(encoding="utf-8").split("\n// -----\n")):
            (into / f"{file.parent.name}.{file.stem}.{number}.mlir").write_text(text, encoding="utf-8")
    _python(base, _EXPORTER, str(into))
    return sorted(into.glob("*.mlir"))


def outputs(root: Path, files: Sequence[Path], pipelines: Sequence[str], into: Path, renamed: Renamed) -> None:
    """Writes what a state makes of each file."""
    into.mkdir()
    jobs = []
    for file in files:
        commands = {**COMMANDS, **(PIPELINES if file.stem in pipelines else {})}
        for name, argv in commands.items():
            out = str(into / f"{file.stem}.{name}")
            jobs.append((out, str(file), [renamed.of(word).replace("{out}", out) for word in argv]))
    _python(root, _WORKER, stdin=json.dumps(jobs))


class Renamed:
    """What was renamed on purpose."""

    def __init__(self, table: dict[str, str]) -> None:
        self.table = [(re.compile(old), new) for old, new in table.items()]

    def of(self, text: str) -> str:
        """Returns a text of the old state as the new one has it."""
        for old, new in self.table:
            text = old.sub(new, text)
        return text


def compare(before: Path, after: Path, renamed: Renamed) -> list[str]:
    """Returns what differs, a line each; of what is said on standard error, codes and ids are compared."""
    every = sorted({path.relative_to(side) for side in (before, after) for path in side.rglob("*") if path.is_file()})
    every = [name.with_name("plan.json") if name.name == _OLD_PLAN else name for name in every]
    every = sorted(dict.fromkeys(every))
    found = []
    for name in every:
        sides = [side / name for side in (before, after)]
        sides = [path if path.is_file() or name.name != "plan.json" else path.with_name(_OLD_PLAN) for path in sides]
        missing = [side for side, path in zip(("before", "after"), sides, strict=True) if not path.is_file()]
        if missing:
            found.append(f"{name}: not there {missing[0]}")
            continue
        if name.name.endswith("plan.json"):
            found += _plan_differences(name, facts_of(sides[0]), facts_of(sides[1]), renamed)
            continue
        old, new = (
            path.read_text(encoding="utf-8", errors="replace").replace(str(path.parents[len(name.parts) - 1]), "")
            for path in sides
        )
        old = renamed.of(old)
        if name.suffix == ".err":
            old, new = (f"{text.partition(chr(10))[0]} {_ID.findall(text)}" for text in (old, new))
        if old != new:
            lines = zip(old.splitlines(), new.splitlines(), strict=False)
            first = next(((a, b) for a, b in lines if a != b), ("", "one is longer"))
            found.append(f"{name}:\n  - {_around(*first)}\n  + {_around(*reversed(first))}")
    return found


def _plan_differences(name: Path, old: Facts, new: Facts, renamed: Renamed) -> list[str]:
    """Returns what two plans' files say differently, whatever version they are of, a line each."""
    found = []
    for key in sorted({*old, *new}):
        then, now = renamed.of(json.dumps(old.get(key))), json.dumps(new.get(key))
        if then != now:
            found.append(f"{name}, {key}:\n  - {_around(then, now)}\n  + {_around(now, then)}")
    return found


def _around(line: str, other: str) -> str:
    """Returns what is about the place in a line at which another one differs."""
    at = next((n for n, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    return line[max(0, at - 60) : at + 100]


def _python(root: Path, program: str, *argv: str, stdin: str = "") -> None:
    paths = ":".join(str(root / folder) for folder in (".", "examples"))
    environment = {
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "PATH": "/usr/bin:/bin",
        "HOME": str(root),
    }
    subprocess.run(
        [sys.executable, "-c", program, *argv], cwd=root, env=environment, input=stdin, text=True, check=True
    )


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("base", metavar="BASE")
    parser.add_argument("head", metavar="HEAD", nargs="?")
    parser.add_argument("--renamed", metavar="FILE", type=Path)
    parser.add_argument("--pipelines", default="mlp,gpt")
    parser.add_argument("--keep", metavar="FOLDER", type=Path)
    options = parser.parse_args(argv)
    renamed = Renamed(json.loads(options.renamed.read_text(encoding="utf-8")) if options.renamed else {})
    with tempfile.TemporaryDirectory(prefix="rhino-compare-") as folder:
        place = options.keep or Path(folder)
        sides = {"before": options.base, "after": options.head}
        try:
            roots = {}
            for side, commit in sides.items():
                (place / side).mkdir(parents=True)
                roots[side] = checkout(commit, place / side)
            files = corpus(roots["before"], place / "corpus")
            for side, root in roots.items():
                outputs(
                    root,
                    files,
                    options.pipelines.split(","),
                    place / side / "outputs",
                    renamed if side == "after" else Renamed({}),
                )
        except subprocess.CalledProcessError as error:
            print(f"cannot be run: {' '.join(map(str, error.cmd))[:200]}", file=sys.stderr)
            return 2
        found = compare(place / "before" / "outputs", place / "after" / "outputs", renamed)
        print("\n".join([*found, f"{len(files)} modules; {len(found)} outputs differ"]))
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
