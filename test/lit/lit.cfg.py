"""Configuration of the lit suite; lit provides `config`."""

import re
import sys
import sysconfig
from pathlib import Path

import lit.formats

here = Path(__file__).resolve().parent
scripts = Path(sysconfig.get_path("scripts"))

config.name = "rhino"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = str(here)
config.test_exec_root = str(here.parent.parent / "build" / "lit")
config.environment["JAX_PLATFORMS"] = "cpu"
config.maxIndividualTestTime = 120  # seconds; a guard against hangs, several times the slowest test


def word(name: str) -> str:
    """A pattern for `name` as a command: neither part of a path nor of an option."""
    return rf"(?<![\w/.%=-]){re.escape(name)}(?![\w/.=-])"


# The tools of the environment that runs lit: the search path may hold another version.
config.substitutions += [
    (word("not"), f"'{sys.executable}' '{here / 'not.py'}'"),
    ("%python", f"'{sys.executable}'"),
    *((word(tool), f"'{scripts / tool}'") for tool in ("rhino-opt", "rhino-run", "filecheck")),
]
