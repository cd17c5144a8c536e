"""Files of clusters like presets, but for one thing."""

import atexit
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.cluster.groups import joined
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


@cache
def of_two_kinds(preset, times):
    """Returns the file of two groups of a preset's devices, of which the first compute so many times as fast.

    They are joined as two devices of a host are.
    """
    group = load_cluster(preset)
    rates = tuple((name, times * rate) for name, rate in group.device.flops_per_s)
    quick = replace(group.device, flops_per_s=rates, hbm_bytes_per_s=times * group.device.hbm_bytes_per_s)
    mixed = joined(
        "mixed", "two kinds", [replace(group, name="quick", device=quick), group], load_cluster("cpu2").levels[0]
    )
    file = Path(_FOLDER.name) / f"{preset}-{times}.toml"
    file.write_text(cluster_to_text(mixed), encoding="utf-8")
    return str(file)
