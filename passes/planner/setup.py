"""What configurations are evaluated for: a step, its cluster, and what is asked of all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.passes.base import Remarks, make_passes
from rhino.passes.frontend.stage_marks import BOUNDARY
from rhino.passes.pipeline.fold_layers import FoldedLayers, FoldLayers
from rhino.passes.pipeline.micro_batch import BATCH
from rhino.passes.pipeline.part_statistics import num_statistics_parts
from rhino.passes.pipeline.parted_statistics import PartedStatistics
from rhino.passes.precision.mixed_precision import MixedPrecision
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.strategies.pipeline.stages.balance import TOLERANCES

GROUPS: Final = 64
"""In how many groups alike layers are planned at least, where there are twice as many or more.

And in two for each device.
"""

CONSTRAINTS: Final = ("axis-role", "constraints", "forbid", "pin", "scope")
"""Options that are constraints on how tensors lie and ops run."""

_BY_NAME: Final = (*CONSTRAINTS, *BATCH, "pad")
"""Options that speak of tensors and ops by name, of which a step with fewer layers does not have all."""


OFFLOAD_OPTION: Final = "offload"
"""The option that leaves it to the choice of shardings what lies in host memory."""

_AMP: Final = "amp"
"""The option that changes the types of a step before it is folded."""

_STATISTICS: Final = "batch-statistics"
"""The option that changes a step before it is folded where it asks for those of parts that are no micro-batches."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What configurations are evaluated for.

    `module` is the step as bytecode, and `options` are those of the passes, by name, as `before_choice` takes them.
    `layers` is the number of alike layers in each stretch of the step that `groups` stands for, where it is folded.
    Stages are cut within one of `tolerances` of the best balance. With `own_shapes` arrays have the shapes of the step
    as written between steps: what is stored as blocks is moved in each, and estimates are of steps without. Replicas
    take `shares` of the micro-batches, where they are given. With `recomputes` each stage may recompute what its memory
    asks for, where a configuration has no share for all.
    """

    module: bytes
    file: str
    cluster: str
    budget_bytes: float
    options: dict[str, str]
    schedules: tuple[str, ...] = tuple(SCHEDULES)
    layers: tuple[int, ...] = ()
    groups: int = 0
    tolerances: tuple[float, ...] = TOLERANCES
    own_shapes: bool = False
    shares: tuple[int, ...] = ()
    recomputes: bool = False


def in_own_types(setup: Setup) -> Setup:
    """Returns a setup whose step computes in the types that were asked for, so that its layers can be folded.

    So are statistics of parts of its batch.
    """
    is_parted = num_statistics_parts(setup.options.get(_STATISTICS, ""), setup.file) > 0
    if not setup.options.get(_AMP) and not is_parted:
        return setup
    context = make_context()
    module = ir.Module.parse(setup.module, context)
    own = {name: text for name, text in setup.options.items() if name in (_AMP, *BATCH)}
    amp, parted = make_passes((MixedPrecision, PartedStatistics), own, setup.file)
    made = [*((amp,) if setup.options.get(_AMP) else ()), *((parted,) if is_parted else ())]
    build_pass_manager(made, context, Remarks(setup.file)).run(module.operation)
    done = {_AMP, _STATISTICS} if is_parted else {_AMP}
    others = {name: text for name, text in setup.options.items() if name not in done}
    return replace(setup, module=bytecode(module), options=others)


def folded(setup: Setup) -> Setup:
    """Returns a setup in which one layer of a deep step stands for several.

    Returns the same setup if there are few layers, or if options refer to names.
    """
    if any(setup.options.get(name) for name in _BY_NAME) or BOUNDARY.encode() in setup.module:
        return setup
    context, remarks = make_context(), Remarks(setup.file)
    module = ir.Module.parse(setup.module, context)
    groups = max(GROUPS, 2 * load_cluster(setup.cluster).num_devices)
    build_pass_manager([FoldLayers(num_groups=groups)], context, remarks).run(module.operation)
    folded_layers = remarks.find(FoldedLayers)
    layers = folded_layers.counts if folded_layers else ()
    return replace(setup, module=bytecode(module), layers=layers, groups=groups) if layers else setup
