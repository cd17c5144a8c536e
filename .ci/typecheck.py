"""Type-check every package and script with mypy; extra arguments go to mypy.

`rhino.ir` lives in `ir/`, and so on. A type checker cannot follow the installer's import hook that maps one to the
other, so this lays out the packages under their import names, as links in `build/types/`, from the same table that the
installer reads (`[tool.setuptools.package-dir]`), and checks that. Places in the output are turned back to the real
files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FARM: Final = Path("build/types")
SCRIPTS: Final = (".ci", "bench", "docs", "examples")


def package_dirs() -> dict[str, str]:
    """Returns the folder of each package by import name, from `pyproject.toml`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(settings["tool"]["setuptools"]["package-dir"])


def place(package: str) -> Path:
    """Returns where the farm holds a package: `rhino.ir` at `build/types/rhino/ir`."""
    return FARM.joinpath(*package.split("."))


def wanted_links(packages: dict[str, str]) -> dict[Path, Path]:
    """Returns each link of the farm and what it points to.

    A package without others inside is one link, else one per file.
    """
    links: dict[Path, Path] = {}
    for name, folder in packages.items():
        if any(other.startswith(f"{name}.") for other in packages):
            links |= {place(name) / file.name: file for file in (ROOT / folder).glob("*.py*")}
        else:
            links[place(name)] = ROOT / folder
    return links


def link_packages(packages: dict[str, str]) -> None:
    """Brings the farm up to date.

    What is right already stays, so that a second check at the same time is not disturbed.
    """
    links = {ROOT / link: target for link, target in wanted_links(packages).items()}
    for old in (ROOT / FARM).rglob("*"):
        if old.is_symlink() and old.resolve() != links.get(old):
            old.unlink()
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_dir() and not link.is_symlink():  # packages were inside of it that are no longer
            shutil.rmtree(link)
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=target.is_dir())


def check(packages: dict[str, str], arguments: list[str]) -> int:
    """Runs mypy on the farm and on each folder of scripts; returns its exit code."""
    scripts = [folder for folder in SCRIPTS if any((ROOT / folder).glob("*.py"))]
    command = [sys.executable, "-m", "mypy", *arguments, str(FARM), *scripts]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    output = done.stdout
    # The longest names first: `build/types/rhino/ir/` must not be read as a file of `rhino`.
    for name in sorted(packages, key=len, reverse=True):
        output = output.replace(f"{place(name)}/", f"{packages[name]}/")
    print(output, end="")
    return done.returncode


def main(arguments: list[str]) -> int:
    """Lays out the packages and checks them; returns mypy's exit code."""
    packages = package_dirs()
    link_packages(packages)
    return check(packages, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
