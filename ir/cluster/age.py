"""Whether the measurements of a cluster still hold.

With a profile from another day, jaxlib or machine, planning continues and gives a remark.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rhino.ir.cluster.hardware import Cluster

MAX_AGE_DAYS: Final = 180


def machine_words() -> str:
    """Returns what this machine is: its processor as the system calls it, and the number of cores that may be used."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    name = found[1].strip() if found else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name}, {cores} cores"


def stale_now(cluster: Cluster) -> tuple[str, ...]:
    """Returns why the measurements of a cluster may not hold here and today, in sentences.

    A cluster that was never measured has none.
    """
    return stale(cluster, datetime.datetime.now(tz=datetime.UTC).date(), version("jaxlib"), machine_words())


def stale(cluster: Cluster, today: datetime.date, jaxlib: str, machine: str) -> tuple[str, ...]:
    """Returns why the measurements of a cluster may not hold.

    The machine that plans for accelerators need not have them, so it is not compared then.
    """
    of_groups = tuple([why for group in cluster.groups for why in stale(group, today, jaxlib, machine)])
    origin = cluster.measured
    if origin is None:
        return of_groups
    found = []
    age_days = (today - datetime.date.fromisoformat(origin.date)).days
    if age_days > MAX_AGE_DAYS:
        found.append(f"it is {age_days} days old")
    if origin.jaxlib != jaxlib:
        found.append(f"it was measured with jaxlib {origin.jaxlib}, and this is {jaxlib}")
    if origin.platform == "cpu" and origin.machine != machine:
        found.append(f"it was measured on {origin.machine}, and this is {machine}")
    words = [f"the profile {cluster.name!r} may not hold: {why}; rhino-profile makes a new one" for why in found]
    return (*words, *of_groups)
