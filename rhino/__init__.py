"""Rhino, an automatic parallelizer for tensor programs: StableHLO in, Shardy shardings chosen by search out.

From JAX, one call (docs/parallelize.md):

    step = rhino.parallelize(step, cluster="h100x8", donate_argnums=0)

and step by step, as `rhino-opt` does it:

    context = rhino.make_context()
    module = rhino.read_module(data, "step.mlir", context)
    remarks = rhino.Remarks("step.mlir")
    rhino.build_pass_manager("auto-shard{cluster=v100x8}", context, remarks).run(module.operation)

`add_to` puts a pass of ours into a pass manager of yours (examples/foreign_pipeline.py); `localized_copy` gives each
device's program. A name is loaded when it is first used: `import rhino.runtime` loads no planner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rhino.ir.cluster.cluster import load_cluster as load_cluster
    from rhino.ir.diagnostics import RhinoError as RhinoError
    from rhino.ir.mlir.bindings import make_context as make_context
    from rhino.ir.mlir.reader import read_module as read_module
    from rhino.loss_scale import LossScale as LossScale
    from rhino.parallelized import Parallelized as Parallelized
    from rhino.parallelized import parallelize as parallelize
    from rhino.passes.analysis.annotate_candidates import AnnotateCandidates as AnnotateCandidates
    from rhino.passes.analysis.annotate_work import AnnotateWork as AnnotateWork
    from rhino.passes.base import Pass as Pass
    from rhino.passes.base import Remark as Remark
    from rhino.passes.base import Remarks as Remarks
    from rhino.passes.base import add_to as add_to
    from rhino.passes.frontend.normalize import Normalize as Normalize
    from rhino.passes.sharding.choose_shardings import ChooseShardings as ChooseShardings
    from rhino.passes.sharding.localize import Localize as Localize
    from rhino.passes.sharding.localize import localized_copy as localized_copy
    from rhino.passes.sharding.strip import Strip as Strip
    from rhino.passes.textual_pipelines import build_pass_manager as build_pass_manager
    from rhino.plan import Plan as Plan
    from rhino.scopes import default_strategy as default_strategy
    from rhino.scopes import replicate as replicate
    from rhino.scopes import split as split
    from rhino.split_array import SplitArray as SplitArray
    from rhino.split_array import SplitSharding as SplitSharding
    from rhino.stage_boundary import stage_boundary as stage_boundary
    from rhino.training import Batches as Batches
    from rhino.training import train as train

# Beside the imports above, which type checkers read; a test holds the two together.
_HOMES: Final = {
    "rhino.ir.cluster.cluster": ("load_cluster",),
    "rhino.ir.diagnostics": ("RhinoError",),
    "rhino.ir.mlir.bindings": ("make_context",),
    "rhino.ir.mlir.reader": ("read_module",),
    "rhino.loss_scale": ("LossScale",),
    "rhino.parallelized": ("Parallelized", "parallelize"),
    "rhino.passes.analysis.annotate_candidates": ("AnnotateCandidates",),
    "rhino.passes.analysis.annotate_work": ("AnnotateWork",),
    "rhino.passes.base": ("Pass", "Remark", "Remarks", "add_to"),
    "rhino.passes.sharding.choose_shardings": ("ChooseShardings",),
    "rhino.passes.sharding.localize": ("Localize", "localized_copy"),
    "rhino.passes.frontend.normalize": ("Normalize",),
    "rhino.passes.textual_pipelines": ("build_pass_manager",),
    "rhino.passes.sharding.strip": ("Strip",),
    "rhino.plan": ("Plan",),
    "rhino.scopes": ("default_strategy", "replicate", "split"),
    "rhino.split_array": ("SplitArray", "SplitSharding"),
    "rhino.stage_boundary": ("stage_boundary",),
    "rhino.training": ("Batches", "train"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - most who import this do not ask

        return version("rhino-parallel")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rhino' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
