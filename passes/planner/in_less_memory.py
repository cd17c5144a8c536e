"""Plans of a step in one program that does not fit as it was asked for, nor with its forward pass recomputed.

Its batch is taken in 2, 4, 8, ... micro-batches, as long as more of them may fit: what a device needs is what it needs
of the state, and a part of the rest that halves each time. Where the state alone is too much, what waits for its update
goes to host memory, if the cluster says how fast that is reached. What the user gives for either is kept.

Errors    of the step as it was asked for, with what was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.groups import largest_memory
from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.units import parse_size
from rhino.passes.base import Remarks
from rhino.passes.planner.choose_layouts import ChooseLayouts
from rhino.passes.planner.module_facts import Unsplit
from rhino.passes.planner.unstaged_plan import Found, search
from rhino.passes.sharding.choose_shardings import DoesNotFitError

MOST_MICRO_BATCHES: Final = 64
"""Six searches: each halves the part of the batch that is there at once."""


@dataclass(frozen=True, slots=True)
class LessMemory:
    """How a step is planned that did not fit as it was asked for, in words."""

    words: str


def search_in_less(
    read: Callable[[], ir.Module],
    name: str,
    options: Mapping[str, str],
    error: RhinoError,
    unsplit: Unsplit | None = None,
) -> Found:
    """Returns the first plan that fits of a step whose search, with these options, has ended in `error`.

    Raises `error` if that is another one, or nothing fits.
    """
    if error.exit_code != ExitCode.DOES_NOT_FIT:
        raise error
    tries = _Tries(read, name, options, error, unsplit)
    found = tries.in_micro_batches() or tries.on_host()
    if found is None:
        raise replace(error, notes=(*error.notes, *tries.refused), fix=tries.fix)
    return found


@dataclass
class _Tries:
    """What was tried of a step that does not fit: why each try does not, and the micro-batches that need least."""

    read: Callable[[], ir.Module]
    name: str
    options: Mapping[str, str]
    error: RhinoError
    unsplit: Unsplit | None
    refused: list[str] = field(default_factory=list)
    micro_batches: int = 1

    def __post_init__(self) -> None:
        self.fix = self.error.fix

    def in_micro_batches(self) -> Found | None:
        """Returns the plan in the fewest micro-batches that fits; None where none does, or their number is given."""
        if "num" in self.options:
            return None
        cluster = load_cluster(self.options["cluster"])
        budget = parse_size(self.options["budget"]) if "budget" in self.options else largest_memory(cluster)
        before, number = _needed(self.error), 2
        while number <= MOST_MICRO_BATCHES:
            found = self.planned(f"in {number} micro-batches", {"num": str(number)})
            if isinstance(found, Found):
                return found
            if found.exit_code != ExitCode.DOES_NOT_FIT:
                return None
            needed = _needed(found)
            if needed < before:  # they may need more, for what they accumulate
                self.micro_batches = number
            if needed < inf and needed - (before - needed) > budget:  # so much is left of ever smaller ones
                return None
            before, number = needed, 2 * number
        return None

    def on_host(self) -> Found | None:
        """Returns the plan with what waits in host memory; None where it does not fit, or whether it may is given."""
        if "offload" in self.options or load_cluster(self.options["cluster"]).device.host_bytes_per_s is None:
            return None
        parts = {"num": str(self.micro_batches)} if self.micro_batches > 1 else {}
        beside = f" and {self.micro_batches} micro-batches" if parts else ""
        found = self.planned(f"with offloading{beside}", {"offload": "true", **parts})
        if isinstance(found, Found):
            return found
        if found.exit_code == ExitCode.DOES_NOT_FIT:
            self.fix = found.fix  # which does not name what was tried
        return None

    def planned(self, how: str, more: Mapping[str, str]) -> Found | RhinoError:
        """Returns the plan with some more options, which says that it is not as asked for, or why there is none."""
        remarks = Remarks(self.name)
        try:
            found = search(self.read(), self.name, {**self.options, **more}, remarks, self.unsplit)
        except RhinoError as error:
            self.refused.append(f"{how}: {error.what}")
            return error
        words = f"{self.error.what}: planned {how}"
        remarks.add(ChooseLayouts.name, Place(self.name), words)
        remarks.record(LessMemory(words))
        return found


def _needed(error: RhinoError) -> float:
    """Returns the bytes that a device would need, infinite where nobody knows."""
    return error.needed_bytes if isinstance(error, DoesNotFitError) else inf
