"""What the manifest of a whole plan knows of it: what every plan says is there, and all that is read is of its kind.

Errors    TypeError, ValueError or KeyError that say what is not of its kind; whoever reads the folder names it.
"""

from __future__ import annotations

from typing import Any, Final

from rhino.ir.plan.instructions import Step
from rhino.ir.plan.step_json import amount_of, count_of, list_of, number_of, numbers_of, table_of, text_of

_TEXTS: Final = ("source", "source_sha256", "schedule", "cluster", "mesh")
_COUNTS: Final = ("stages", "micro_batches", "ranks")
_AMOUNTS: Final = ("predicted_step_s", "link_latency_s", "link_bytes_per_s")


def check_about(about: dict[str, Any], step: Step) -> None:
    """Raises what is wrong with what is known of a plan of `step`."""
    for name in _TEXTS:
        text_of(about[name])
    for name in _COUNTS:
        count_of(about[name])
    for name in _AMOUNTS:
        amount_of(about[name])
    for name, count in (
        ("predicted_idle", step.num_ranks),
        ("predicted_peak_bytes", step.num_ranks),
        ("predicted_run_s", len(step.programs)),
        ("predicted_temp_bytes", len(step.programs)),
    ):
        if len([amount_of(one) for one in list_of(about[name])]) != count:
            raise ValueError(f"{name} are {len(about[name])}, expected {count}")
    numbers_of(about.get("nonnegative_arguments", []))
    _check_request(about)
    if about.get("search") is not None:
        _check_search(about["search"])


def _check_request(about: dict[str, Any]) -> None:
    """What it was planned for."""
    for line in list_of(about.get("cluster_file", [])):
        text_of(line)
    for value in table_of(about.get("pipeline", {})).values():
        text_of(value)
    table_of(about.get("asked", {}))
    sides = list_of(about.get("whole", [[], []]))
    for pair in [pair for side in sides for pair in list_of(side)]:
        _, num_dims = numbers_of(pair)
        count_of(num_dims)
    if len(sides) != 2:
        raise ValueError(f"whole is {sides}, expected two lists")


def _check_search(search: dict[str, Any]) -> None:
    """How it was found, and what else was looked at."""
    for name in ("bound_s", "budget_bytes"):
        amount_of(search[name])
    text_of(search["found_by"])
    for count in table_of(search["num_planned"]).values():
        number_of(count)
    for name in ("alternatives", "cut_off", "refused"):
        for shape in list_of(search.get(name, [])):
            _check_shape(shape)
    for shape in list_of(search["alternatives"]):
        text_of(shape["schedule"])


def _check_shape(shape: dict[str, Any]) -> None:
    count_of(shape["stages"])
    numbers_of(shape["mesh"])
    number_of(shape.get("micro_batches", 0))
    for name in ("remat", "predicted_step_s", "estimated_step_s"):
        amount_of(shape.get(name, 0))
    text_of(shape["why"])
