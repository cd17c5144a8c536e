"""The folders depend on one another in one direction only, and MLIR comes in through one door.

ir -> strategies -> passes -> tools and ir -> runtime -> tools: the right may import the left, nothing else. `rhino/`,
what users call, may import all of them and is imported by none. Within a folder rooms stand in an order, too:
docs/rooms.py has it.
"""

import ast
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import rooms

ROOT = Path(__file__).resolve().parents[3]

MAY_IMPORT = {
    "ir": {"ir"},
    "strategies": {"ir", "strategies"},
    "passes": {"ir", "strategies", "passes"},
    "runtime": {"ir", "runtime"},
    "tools": {"ir", "strategies", "passes", "runtime", "tools"},
}
MLIR_DOOR = "rhino.ir.mlir.bindings"
JAX_DOOR = "rhino.embed"
"""Where a program becomes a primitive of JAX, lowered by JAX's own rules."""
FILES = {
    ".".join(("rhino", *path.relative_to(ROOT).with_suffix("").parts)): path
    for folder in MAY_IMPORT
    for path in sorted((ROOT / folder).rglob("*.py"))
} | {f"rhino.{path.stem}": path for path in sorted((ROOT / "rhino").glob("*.py")) if path.stem != "__init__"}


neighbours = cache(rooms.neighbours)  # which reads all modules of a folder


def imports(source: str, module: str) -> set[str]:
    """Dotted names that `module` imports; `from a import b` gives `a.b`, for `b` may be a module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *(node.module.split(".") if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_foreign_mlir(name: str, folder: str) -> bool:
    """Whether `name` is a part of jaxlib that this folder must not see: the runtime may drive JAX, but builds no IR."""
    if inside(name, "jaxlib.mlir", "jax.extend.mlir", "jax.interpreters.mlir", "jax._src.lib.mlir"):
        return True
    return folder != "runtime" and inside(name, "jaxlib", "jax._src.lib")


def violations(source: str, module: str) -> list[str]:
    """What `module` imports and must not, in a sentence each."""
    folder = module.split(".")[1]
    wrong = []
    for name in sorted(imports(source, module)):
        part = name.split(".")[1] if inside(name, "rhino") and "." in name else ""
        if folder in MAY_IMPORT and inside(name, "rhino") and part not in MAY_IMPORT[folder]:
            wrong.append(f"{module} imports {name}: {folder}/ may import only {', '.join(sorted(MAY_IMPORT[folder]))}")
        elif folder == "strategies" and (inside(name, "jax", "jaxlib", "rhino.ir.mlir", "rhino.ir.program")):
            wrong.append(f"{module} imports {name}: strategies/ sees plain data, no MLIR and no JAX")
        elif module not in (MLIR_DOOR, JAX_DOOR) and is_foreign_mlir(name, folder):
            wrong.append(f"{module} imports {name}: MLIR comes in through {MLIR_DOOR}")
    return wrong


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """The modules of `sources` that each imports, whether as a module or for a name in it."""
    return {
        module: {
            known for name in imports(source, module) for known in (name, name.rpartition(".")[0]) if known in sources
        }
        for module, source in sources.items()
    }


@pytest.mark.parametrize("module", FILES)
def test_imports_go_left(module: str):
    assert violations(FILES[module].read_text(encoding="utf-8"), module) == []


def test_no_cycles():
    TopologicalSorter(
        import_graph({module: path.read_text(encoding="utf-8") for module, path in FILES.items()})
    ).prepare()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rhino.ir.graph.graph", "from rhino.strategies.dp import solve"),
        ("rhino.ir.graph.graph", "import rhino.passes"),
        ("rhino.ir.graph.graph", "from rhino import plan"),
        ("rhino.ir.graph.graph", "import rhino"),
        ("rhino.ir.graph.graph", "from ...tools import opt"),
        ("rhino.ir.graph.graph", "from jaxlib.mlir import ir"),
        ("rhino.strategies.dp", "def f():\n    from rhino.passes import registry"),
        ("rhino.strategies.dp", "import jax.numpy as jnp"),
        ("rhino.strategies.dp", "from rhino.ir.mlir.bindings import ir"),
        ("rhino.strategies.dp", "from rhino.ir.mlir import bindings"),
        ("rhino.strategies.dp", "from rhino.ir.program import trip_count"),
        ("rhino.passes.choose", "from rhino.runtime import executor"),
        ("rhino.passes.choose", "from jax.extend.mlir import ir"),
        ("rhino.passes.choose", "from jax.extend import mlir"),
        ("rhino.passes.choose", "from jax.interpreters import mlir"),
        ("rhino.runtime.executor.executor", "from rhino.strategies.dp import solve"),
        ("rhino.runtime.executor.executor", "from rhino.passes import registry"),
        ("rhino.runtime.executor.executor", "import jaxlib.mlir.ir"),
        ("rhino.tools.opt", "import jaxlib"),
        ("rhino.tools.opt", "from rhino.entry import Entry"),
        ("rhino.entry", "from jaxlib.mlir import ir"),
    ],
)
def test_checker_reports(module: str, source: str):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rhino.ir.mlir.bindings", "from jaxlib.mlir import ir\nfrom jax.extend.mlir import passmanager"),
        ("rhino.ir.graph.graph", "from .mesh import Mesh\nimport numpy"),
        ("rhino.strategies.dp", "from rhino.ir.cluster.mesh import Mesh"),
        ("rhino.passes.choose", "from rhino.ir import mlir\nfrom rhino.strategies.dp import solve"),
        ("rhino.runtime.executor.executor", "import jax\nimport jaxlib.xla_client\nfrom rhino.ir import mlir"),
        ("rhino.tools.opt", "from rhino.passes import registry\nfrom rhino.runtime import executor"),
        ("rhino.entry", "import jax\nfrom rhino.tools import files\nfrom rhino.call import Call"),
    ],
)
def test_checker_accepts(module: str, source: str):
    assert violations(source, module) == []


def test_checker_finds_a_cycle():
    sources = {"rhino.ir.a": "from rhino.ir.b import f", "rhino.ir.b": "from . import a"}
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph(sources)).prepare()


def test_every_room_has_a_place_in_the_order():
    for folder, names in rooms.ROOMS.items():
        assert sorted(path.parent.name for path in (ROOT / folder).glob("*/__init__.py")) == sorted(names)


@pytest.mark.parametrize(
    ("folder", "room"), [(folder, room) for folder, names in rooms.ROOMS.items() for room in names]
)
def test_rooms_import_from_rooms_before_them(folder: str, room: str):
    before = rooms.ROOMS[folder][: rooms.ROOMS[folder].index(room)]
    assert neighbours(folder)[room] <= set(before)
    assert all(rooms.about(folder, room)), "a room says what it answers, what comes in and what goes out"


def test_the_drawing_and_the_table_of_rooms_are_up_to_date():
    assert rooms.main(["--check"]) == 0


def test_an_installed_wheel_has_every_package():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {name.rpartition(".")[0] for name in FILES} | {"rhino"}
    assert found == set(declared["packages"])
