"""What of the tests is run between edits, so that all of it takes less than a minute on two cores.

There is one rule for unit tests and one for lit tests:

Unit tests the modules that see data alone: they, and the helpers beside them that they import, import neither JAX nor
              any package of Rhino's but `ir` and `strategies`. What compiles or runs programs takes minutes, and is
              left to the whole.
Lit tests     the shortest file of each folder, errors aside: one for each pass and pipeline, and one for the command.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
UNIT: Final = ROOT / "test" / "unit"
LIT: Final = ROOT / "test" / "lit"

HEAVY: Final = {
    "test_dual_ascent.py": "rises along the duals of hundreds of drawn problems",
    "test_search.py": "searches drawn problems by every level, and again by enumeration",
    "test_axis_sweeps.py": "sweeps drawn problems within many budgets",
}
"""Modules that the rule takes and that are left out.

25, 30 and 39 processor seconds, of 156 for all that it takes (2026-11-24).
"""

_SCRIPTS: Final = ("bench", "docs", "examples")
_SEEN: Final = ("rhino.ir", "rhino.strategies")
_STARTS: Final = ("flax", "jax", "jaxlib", "subprocess", "torch")


def unit_modules() -> list[Path]:
    """Returns the modules of unit tests that see data alone, without those that take too long."""
    return [file for file in sorted(UNIT.rglob("test_*.py")) if file.name not in HEAVY and sees_data_alone(file)]


def lit_files() -> list[Path]:
    """Returns a lit file of each folder."""
    found = []
    for folder in sorted(path for path in LIT.iterdir() if path.is_dir()):
        files = [file for file in sorted(folder.glob("*.mlir")) if not file.stem.endswith("errors")]
        found += sorted(files, key=lambda file: file.stat().st_size)[:1]
    return found


@cache
def sees_data_alone(file: Path) -> bool:
    """Says whether a module of tests compiles and runs nothing, as far as its imports tell."""
    for name in _imports(file):
        first = name.partition(".")[0]
        helpers = [folder / f"{first}.py" for folder in (UNIT, *(ROOT / script for script in _SCRIPTS))]
        own = next((helper for helper in helpers if helper.exists()), None)
        if own is not None:
            if not sees_data_alone(own):
                return False
        elif first in _STARTS or (first == "rhino" and not name.startswith(_SEEN)):
            return False
    return True


def _imports(file: Path) -> Iterator[str]:
    """Yields the full names of what a module imports, wherever it does."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{one.name}" for one in names)
