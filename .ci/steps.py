"""Run the project's checks with the current Python: format, lint, types, docs, lit, unit.

    python .ci/steps.py              every step
    python .ci/steps.py lint unit    only these
    python .ci/steps.py fast         between edits: format, lint, types, docs, and what .ci/fast.py chooses of the tests

This is the one place that knows how a check is started; `.ci/check`, ctest and the daily commands call it. Every chosen
step runs even if an earlier one failed, so that one run tells all; the exit code is 1 if any failed. Those of `fast`,
and of a run of every step all but the unit tests, run two at a time, for types and docs use one core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import fast

ROOT: Final = Path(__file__).resolve().parent.parent
SCRIPTS: Final = Path(sysconfig.get_path("scripts"))

# Unit tests come last, so that their count is the last thing that a passing run prints.
STEPS: Final[dict[str, tuple[str, ...]]] = {
    "format": (str(SCRIPTS / "ruff"), "format", "--check", "."),
    "lint": (str(SCRIPTS / "ruff"), "check", "."),
    "types": (sys.executable, ".ci/typecheck.py"),
    "docs": (sys.executable, "docs/pages.py"),
    "lit": (str(SCRIPTS / "lit"), "-j2", "-v", "test/lit"),
    "unit": (str(SCRIPTS / "pytest"), "--numprocesses=auto", "--dist=worksteal"),
}


def fast_steps() -> dict[str, tuple[str, ...]]:
    """Returns the steps of the fast tier, the longest first."""
    return {
        "unit": (*STEPS["unit"], *map(str, fast.unit_modules())),
        "lit": (str(SCRIPTS / "lit"), "-j1", "-q", *map(str, fast.lit_files())),
        **{name: STEPS[name] for name in ("types", "docs", "lint", "format")},
    }


def environment() -> dict[str, str]:
    """Returns the environment of a step: byte code is kept, for tests start hundreds of processes that import Rhino."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_step(name: str, command: tuple[str, ...], *, apart: bool = False) -> bool:
    """Runs one step in the repository's root; returns whether it succeeded.

    Its output is passed through, or where several run at a time (`apart`) printed when it has ended.
    """
    if not apart:
        print(f"== {name}", flush=True)
    start_s = time.monotonic()
    to: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if apart else {}
    done = subprocess.run(command, cwd=ROOT, env=environment(), check=False, text=True, **to)
    passed = done.returncode == 0
    if apart:
        print(f"== {name}\n{done.stdout}", end="", flush=True)
    print(
        f"== {name}: {'ok' if passed else 'FAILED'} in {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True
    )
    return passed


def run_together(steps: dict[str, tuple[str, ...]]) -> list[str]:
    """Runs steps two at a time, in this order; returns those that failed."""
    with ThreadPoolExecutor(2) as pool:
        passed = list(pool.map(lambda name: run_step(name, steps[name], apart=True), steps))
    return [name for name, one in zip(steps, passed, strict=True) if not one]


def run_every_step() -> list[str]:
    """Runs all steps, the unit tests by themselves; returns those that failed."""
    failed = run_together({name: STEPS[name] for name in ("lit", "types", "docs", "lint", "format")})
    return [*failed, *(["unit"] if not run_step("unit", STEPS["unit"]) else [])]


def main(names: list[str]) -> int:
    """Runs the named steps, or all; returns 0 if all succeeded, 1 if one failed, 2 on an unknown name."""
    if names == ["fast"]:
        return _ended(run_together(fast_steps()))
    if not names:
        return _ended(run_every_step())
    if unknown := [name for name in names if name not in STEPS]:
        print(f"unknown step {unknown[0]!r}; there are: {' '.join(STEPS)}", file=sys.stderr)
        return 2
    return _ended([name for name in names if not run_step(name, STEPS[name])])


def _ended(failed: list[str]) -> int:
    if failed:
        print(f"failed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
