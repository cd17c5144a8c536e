"""Run the project's checks with the current Python: format, lint, types, docs, lit, unit.

    python .ci/steps.py              every step
    python .ci/steps.py lint unit    only these

This is the one place that knows how a check is started; `.ci/check`, ctest and the daily commands call it. Every chosen step
runs even if an earlier one failed, so that one run tells all; the exit code is 1 if any failed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

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


def run_step(name: str) -> bool:
    """Runs one step in the repository's root, its output passed through; returns whether it succeeded."""
    print(f"== {name}", flush=True)
    start_s = time.monotonic()
    passed = subprocess.run(STEPS[name], cwd=ROOT, check=False).returncode == 0
    print(f"== {name}: {'ok' if passed else 'FAILED'} in {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
    return passed


def main(names: list[str]) -> int:
    """Runs the named steps, or all; returns 0 if all succeeded, 1 if one failed, 2 on an unknown name."""
    if unknown := [name for name in names if name not in STEPS]:
        print(f"unknown step {unknown[0]!r}; there are: {' '.join(STEPS)}", file=sys.stderr)
        return 2
    failed = [name for name in names or STEPS if not run_step(name)]
    if failed:
        print(f"failed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
