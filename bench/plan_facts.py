"""What a plan's file says, in one form for all versions of the format.

It serves comparisons of plans that two states of Rhino wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""Facts by name."""


def facts_of(file: Path) -> Facts:
    """Returns what a plan's file says, but for hashes, versions and the words of options."""
    data = json.loads(file.read_text(encoding="utf-8"))
    match data["format"], data["version"]:
        case "rhino-spmd-plan", _:
            return _of_old_file(data)
        case "rhino-plan", 1 | 2:
            return _of_manifest(data)
        case _:
            return _of_plan(data)


def _of_plan(data: Facts) -> Facts:
    predicted = data["predicted"]
    facts: Facts = {
        "form": [data["stages"], data["ranks"], data["mesh"], data["schedule"]],
        "step_s": predicted["step_s"],
        "peak_bytes": predicted["peak_bytes"],
        "alternatives": [[step_s, why] for _, step_s, _, _, why in data["alternatives"]],
    }
    if "execution" in data:
        execution = data["execution"]
        names = ("run_s", "temp_bytes", "link_latency_s", "link_bytes_per_s", "nonnegative_arguments")
        facts |= {name: execution[name] for name in names}
        facts["arguments"] = [(row[0], row[1], _argument(row)[4]) for row in data["arguments"]]
        facts["results"] = len(data["results"])
        return facts
    sharding = data["sharding"]
    return facts | {
        "predicted": [predicted["at_least_s"], predicted["budget_bytes"], predicted["kept_bytes"]],
        "parts": [sharding["compute_s"], sharding["communication_s"], sharding["form"]],
        "ops": [data["source"]["ops"], sharding["annotations"], sharding["annotation_of_op"]],
        "costs": [sharding["works"], sharding["costs"], sharding["alive"], sharding["memory"]],
        "curve": [[int(part) for part in point.split(":")] for point in " ".join(sharding["curve"]).split()],
        "arguments": [_argument(row) for row in data["arguments"]],
        "results": [row[:4] for row in data["results"]],
    }


def _argument(row: list[Any]) -> list[Any]:
    usual: list[Any] = [0, None, []]
    _, alias, padded = [*row[4:], *usual[len(row) - 4 :]]
    return [*row[:4], alias, padded]


def _of_old_file(data: Facts) -> Facts:
    predicted, memory = data["predicted"], data["memory"]
    return {
        "form": [1, 1, data["mesh"], ""],
        "step_s": predicted["step_s"],
        "peak_bytes": [predicted["peak_bytes"]],
        "alternatives": [[step_s, why] for _, step_s, _, why in data["rivals"]],
        "predicted": [predicted["at_least_s"], predicted["budget_bytes"], [predicted["kept_bytes"]]],
        "parts": [predicted["compute_s"], predicted["communication_s"], data["form"]],
        "ops": [data["source"]["ops"], data["annotations"]["words"], data["annotations"]["ops"]],
        "costs": [
            data["works"],
            data["costs"],
            memory["alive"],
            [memory["num_times"], memory["peak_time"], memory["peak_op"]],
        ],
        "curve": memory["curve"],
        "arguments": [
            [*row[:4], (row[4] if len(row) > 4 else None), (row[5] if len(row) > 5 else [])]
            for row in data["arguments"]
        ],
        "results": [row[:4] for row in data["results"]],
    }


def _of_manifest(data: Facts) -> Facts:
    about = data["about"]
    axes = [[name, int(size)] for name, _, size in (axis.partition("=") for axis in about["mesh"].split(","))]
    return {
        "form": [about["stages"], about["ranks"], axes, "" if data["version"] == 2 else about["schedule"]],
        "step_s": about["predicted_step_s"],
        "peak_bytes": about["predicted_peak_bytes"],
        "alternatives": _lost(about.get("search")),
        "run_s": about["predicted_run_s"],
        "temp_bytes": about["predicted_temp_bytes"],
        "link_latency_s": about["link_latency_s"],
        "link_bytes_per_s": about["link_bytes_per_s"],
        "nonnegative_arguments": about["nonnegative_arguments"],
        "arguments": [
            (one["name"], f"{one['dtype']}[{','.join(map(str, one['shape']))}]", one.get("alias"))
            for one in data["arguments"]
        ],
        "results": len(data["results"]),
    }


def _lost(search: Facts | None) -> list[list[Any]]:
    """Returns what else was found: its step, and why it lost."""
    if search is None:
        return []
    found = [[one.get("predicted_step_s", one["estimated_step_s"]), one["why"]] for one in search["alternatives"]]
    found += [[None, f"not planned to its end: {one['why']}"] for one in search["cut_off"]]
    return [*found, *([None, one["why"]] for one in search["refused"])]
