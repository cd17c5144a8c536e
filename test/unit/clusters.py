"""Clusters like presets of GPUs, but for one thing: nothing is hidden behind what is computed."""

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rhino.ir.cluster.presets import PRESETS

_FOLDER = TemporaryDirectory()
atexit.register(_FOLDER.cleanup)


@cache
def waiting(preset):
    """Returns the file of a preset's cluster on which all collectives are waited for, as on hosts.

    Tests in which each has a launch of its own take the fixture `one_by_one`, too.
    """
    file = Path(_FOLDER.name) / f"{preset}.toml"
    lines = [line for line in PRESETS[preset].splitlines() if not line.startswith("compile_for")]
    file.write_text("\n".join(lines).replace('platform = "gpu"', 'platform = "cpu"'), encoding="utf-8")
    return str(file)
