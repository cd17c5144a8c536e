"""Configuration of the lit suite; lit provides `config`."""

import atexit
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lit.formats

here = Path(__file__).resolve().parent

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


# What runs the tools once their imports are done: it ends with this process, which holds its stdin open.
folder = tempfile.mkdtemp(prefix="rhino-lit-")
address, preloaded = f"{folder}/socket", here / "preloaded.py"
server = subprocess.Popen([sys.executable, preloaded, "serve", address], stdin=subprocess.PIPE, env=config.environment)
atexit.register(lambda: (server.stdin.close(), server.wait(), shutil.rmtree(folder)))
while not Path(address).exists() and server.poll() is None:
    time.sleep(0.02)

# The tools of the environment that runs lit: the search path may hold another version.
client = f"'{sys.executable}' -I -S '{preloaded}' '{address}'"
config.substitutions += [
    (word("not"), f"'{sys.executable}' -I -S '{here / 'not.py'}'"),
    ("%python", f"'{sys.executable}'"),
    *((word(tool), f"{client} {tool}") for tool in ("rhino-opt", "rhino-run", "rhino-plan", "filecheck")),
]
