"""Every pass and every named pipeline, in one place."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

from rhino.ir.cluster.cluster import Cluster, link_between, load_cluster
from rhino.ir.cluster.groups import largest_memory
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape, option_of_meshes, parse_meshes
from rhino.ir.diagnostics import RhinoError
from rhino.ir.program.replicas import parse_replicas
from rhino.ir.units import parse_size
from rhino.passes.analysis.annotate_candidates import AnnotateCandidates
from rhino.passes.analysis.annotate_work import AnnotateWork
from rhino.passes.analysis.cones import AnnotateCones
from rhino.passes.analysis.critical_path import AnnotateCriticalPath
from rhino.passes.analysis.segments import AnnotateSegments
from rhino.passes.attention.blockwise import BlockwiseAttention
from rhino.passes.base import Item, Pass, make_pass, make_passes, option_names, option_texts
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.layout.materialize_strides import MaterializeStrides
from rhino.passes.layout.pad import PadDims, refuse_pads
from rhino.passes.pipeline.fold_layers import FoldLayers
from rhino.passes.pipeline.join_replicas import JoinReplicas
from rhino.passes.pipeline.micro_batch import BATCH, MicroBatch
from rhino.passes.pipeline.part_statistics import num_statistics_parts
from rhino.passes.pipeline.parted_statistics import PartedStatistics
from rhino.passes.pipeline.pipeline_stages import PipelineStages
from rhino.passes.pipeline.rematerialize import BY_STAGE, Rematerialize, parse_remat
from rhino.passes.pipeline.scope_stages import ScopeStages
from rhino.passes.pipeline.shard_ranks import ShardRanks
from rhino.passes.pipeline.split_replicas import SplitReplicas
from rhino.passes.pipeline.split_scans import SplitScans
from rhino.passes.pipeline.split_stages import SplitStages
from rhino.passes.planner.choose_layouts import ChooseLayouts
from rhino.passes.precision.mixed_precision import MixedPrecision
from rhino.passes.sharding.choose_shardings import ChooseShardings
from rhino.passes.sharding.localize import Localize
from rhino.passes.sharding.op_rules import OpRules
from rhino.passes.sharding.pack_collectives import PackCollectives
from rhino.passes.sharding.pin import PinShardings
from rhino.passes.sharding.strip import Strip
from rhino.strategies.pipeline.schedules import Pipeline, make_order

PASSES: Final[tuple[type[Pass], ...]] = (
    MixedPrecision,
    AnnotateCandidates,
    AnnotateWork,
    BlockwiseAttention,
    ChooseLayouts,
    ChooseShardings,
    AnnotateCones,
    AnnotateCriticalPath,
    FoldLayers,
    JoinReplicas,
    Localize,
    MaterializeStrides,
    MicroBatch,
    Normalize,
    OpRules,
    PackCollectives,
    PadDims,
    PartedStatistics,
    PinShardings,
    PipelineStages,
    Rematerialize,
    ScopeStages,
    AnnotateSegments,
    ShardRanks,
    SplitReplicas,
    SplitScans,
    SplitStages,
    Strip,
)
"""Sorted by name."""


@dataclass(frozen=True, slots=True)
class NamedPipeline:
    """A named list of passes. `takes` are the passes whose options it has; `build` makes the list from their values.

    `own` are the default and the description of each option that means something else here than in a pass, or that
    passes describe in different words.
    """

    doc: str
    takes: tuple[type[Pass], ...]
    build: Callable[[Mapping[str, str]], tuple[Item, ...]]
    own: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def options(self) -> dict[str, tuple[str, str]]:
        """Returns the default and the description of each option, by name."""
        found: dict[str, tuple[str, str]] = {}
        for cls in self.takes:
            for name, text in option_texts(cls).items():
                known = found.setdefault(name, self.own.get(name, text))
                assert name in self.own or known == text, f"passes mean different things by '{name}'"
        return found


def repeats(options: Mapping[str, str]) -> bool:
    """Says whether options change what a step keeps from its forward pass."""
    return "remat" in options or "host-share" in options


PARALLEL: Final = "auto-parallel"
"""The pipeline that ends in a step in stages."""

_ARITHMETIC: Final = (MixedPrecision, BlockwiseAttention)

_CHOICE: Final = (ChooseLayouts, PinShardings, PadDims, OpRules, Rematerialize, PartedStatistics, *_ARITHMETIC)


def _auto_shard(options: Mapping[str, str]) -> tuple[Item, ...]:
    choose, pin, pad, rules, again, parted, *arithmetic = make_passes(_CHOICE, options, "auto-shard")
    if not _is_parted(options) and (unused := [name for name in BATCH if options.get(name)]):
        what = f"'{unused[0]}' is given, and the batch is taken whole"
        raise RhinoError("RHI-PASS-001", what, fix="add --micro-batches, or --batch-statistics=N-parts")
    return (
        Normalize(),  # First: shardings are chosen across calls, and dead or doubled ops would count as work.
        *_asked(arithmetic, options),  # Before all that looks at bytes.
        rules,  # Before Shardy's own rules, which spare what has one, and before the batch is followed through them.
        *_parted_first(parted, options),  # Before all that looks at sizes.
        pad,  # Before all that looks at sizes.
        *((again,) if repeats(options) else ()),  # Before the search, which sees how long values live.
        "func.func(sdy-populate-op-sharding-rules)",  # Before the search, which reads in them what ops can split.
        pin,  # After the calls are inlined, so that every op has its own place to be spoken of.
        # Stores dims as blocks where that is faster, and recomputes where nothing fits; then attributes alone change.
        _recomputing(choose, options),
        "func.func(sdy-drop-sharding-rules)",  # Last: rules follow from ops, and are longer than they; users' own stay.
    )


def _recomputing(choose: Pass, options: Mapping[str, str]) -> Pass:
    """Returns the pass that chooses, which recomputes where nothing else fits, and the user has not said what."""
    assert isinstance(choose, ChooseLayouts)
    return choose if repeats(options) or "recompute" in options else replace(choose, recompute=True)


def _asked(arithmetic: Sequence[Pass], options: Mapping[str, str]) -> tuple[Pass, ...]:
    """Returns those passes that change how things are computed, types first, of which an option is given."""
    return tuple(one for one in arithmetic if any(name in options for name in option_names(type(one))))


def _is_parted(options: Mapping[str, str]) -> bool:
    """Says whether statistics of parts are asked for that are no micro-batches."""
    return num_statistics_parts(options.get("batch-statistics", "")) > 0


def _parted_first(parted: Pass, options: Mapping[str, str]) -> tuple[Pass, ...]:
    """Returns the pass that takes such statistics, where it has something to do; micro-batches come after it."""
    return (parted,) if _is_parted(options) else ()


BEFORE_CHOICE: Final = (
    MicroBatch,
    PinShardings,
    PadDims,
    OpRules,
    Rematerialize,
    PartedStatistics,
    *_ARITHMETIC,
)


def before_choice(options: Mapping[str, str]) -> tuple[Item, ...]:
    """Returns the passes that make of a step the program for which shardings are chosen.

    It is in micro-batches if `options` has their number.
    """
    micro, pin, pad, rules, again, parted, *arithmetic = make_passes(BEFORE_CHOICE, options, PARALLEL)
    return (
        Normalize(),  # First: custom calls may stand in functions that are called.
        *_asked(arithmetic, options),  # As for auto-shard; once for all micro-batches.
        rules,  # Before the batch is followed through them.
        *_parted_first(parted, options),
        # Both again, for the loop that is new, and for calls: those of a part are others, with rules of their own.
        *((micro, Normalize(), rules) if "num" in options else ()),
        pad,  # Before all that looks at sizes; the batch is divided by its own.
        # As for auto-shard; after the batch is divided, for shares are of a micro-batch.
        *((again,) if repeats(options) else ()),
        "func.func(sdy-populate-op-sharding-rules)",  # As for auto-shard.
        pin,
    )


def shard_in_parts(options: Mapping[str, str]) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Returns the passes of `auto-shard`, in two parts, for a step that may be taken in micro-batches first.

    It is taken in micro-batches if `options` has their number. The passes before the first rule are the first part:
    what they leave is the program for which shardings are chosen.
    """
    own = option_names(ChooseLayouts)
    early = {name: text for name, text in options.items() if any(name in option_names(cls) for cls in BEFORE_CHOICE)}
    choose = make_pass(
        ChooseLayouts, {name: text for name, text in options.items() if name in own or name not in early}, PARALLEL
    )
    *rewriting, populate, pin = before_choice(early)
    return tuple(rewriting), (populate, pin, _recomputing(choose, options), "func.func(sdy-drop-sharding-rules)")


_STAGED: Final = (
    MicroBatch,
    JoinReplicas,
    ChooseLayouts,
    PinShardings,
    OpRules,
    PipelineStages,
    SplitStages,
    Rematerialize,
    PartedStatistics,
    SplitReplicas,
    ScopeStages,
    *_ARITHMETIC,
)


def _auto_parallel(options: Mapping[str, str]) -> tuple[Item, ...]:
    refuse_pads(options)
    micro, join, choose, pin, rules, stages, split, again, parted, apart, scopes, *arithmetic = make_passes(
        _STAGED, options, PARALLEL
    )
    assert isinstance(choose, ChooseShardings)
    assert isinstance(pin, PinShardings)
    assert isinstance(stages, PipelineStages)
    assert isinstance(again, Rematerialize)
    cluster = load_cluster(stages.cluster)
    replicas = parse_replicas(options["replicas"]).count if options.get("replicas") else 1
    num_ranks = choose.ranks if "ranks" in options else max(1, stages.stages, replicas)
    meshes = parse_meshes(choose.mesh) if choose.mesh else ()
    rank = meshes[0] if meshes else mesh_of_shape((max(1, cluster.num_devices // num_ranks),))
    budget = parse_size(choose.budget) if choose.budget else largest_memory(cluster)
    # Shardings are chosen for the whole step, which has the memory of all ranks. What each device holds in the end is
    # proven for the list of instructions.
    choose = replace(choose, mesh=str(rank), ranks=num_ranks)
    if options.get("replicas"):
        if len(set(meshes)) > 1:
            what = f"replicas run the same programs, and {option_of_meshes(meshes)} are unlike meshes"
            raise RhinoError("RHI-STAGE-007", what, fix="give one mesh")
        return (
            Normalize(),  # As below.
            *_asked(arithmetic, options),
            rules,
            *_parted_first(parted, options),
            micro,
            Normalize(),
            rules,
            *((again,) if repeats(options) else ()),
            join,  # Before the search, which prices what replicas send.
            "func.func(sdy-populate-op-sharding-rules)",
            pin,
            replace(choose, ranks=1, side_by_side=num_ranks),
            "func.func(sdy-drop-sharding-rules)",
            apart,
        )
    of_stages = _meshes_of_stages(meshes, stages, num_ranks, cluster) if len(meshes) > 1 else ()
    stages = replace(stages, budget=str(budget))
    shard: tuple[Item, ...] = (
        Normalize(),  # Again, for the loop that is new.
        rules,  # Again, for calls of a part are others.
        "func.func(sdy-populate-op-sharding-rules)",  # As for auto-shard.
        pin,
        choose,
        "func.func(sdy-drop-sharding-rules)",
    )
    assert isinstance(micro, MicroBatch)
    shard = shard if rank.num_devices > 1 or choose.offload else ()  # of one device, for what lies in host memory
    on_ranks: tuple[Item, ...] = ()
    if len(set(of_stages)) > 1:
        own = ChooseShardings(*(getattr(choose, one.name) for one in fields(ChooseShardings)))
        inner = ("func.func(sdy-populate-op-sharding-rules)", pin, own, "func.func(sdy-drop-sharding-rules)")
        on_ranks = (ShardRanks(option_of_meshes(of_stages), stages.cluster, inner),)
        shard = (Normalize(), rules, *on_ranks)
    divide: tuple[Item, ...] = (
        rules,  # Before the batch is followed through them.
        *_parted_first(parted, options),
        # A loop of one trip would refuse what stands for the whole batch.
        *((micro,) if stages.stages > 1 or micro.num > 1 else ()),
    )
    # Before all else that reads loops, for each stage is to have its own.
    unlike = option_of_meshes(of_stages) if on_ranks else ""
    trial = (*divide, *shard)
    scans = SplitScans(stages.stages, leaves=True, cluster=stages.cluster, meshes=unlike, trial=trial)
    of_scopes = pin.scope_replicas > 0
    begin = (
        Normalize(boundaries=stages.stages > 1),  # First: custom calls may stand in functions that are called.
        *_asked(arithmetic, options),  # As for auto-shard.
        *((scans,) if stages.stages > 1 and not of_scopes else ()),  # A loop is of the scope that it is in.
        *divide,
        # Before the search, which follows the scopes of the stages on its mesh alone; again normalized, as below.
        *((Normalize(), scopes) if of_scopes else ()),
    )
    if again.remat == BY_STAGE and not again.host_share:
        # Behind the search: what memory asks for follows from how a stage is sharded.
        return (*begin, *shard, replace(stages, recomputes=True), again, *on_ranks, split)
    if repeats(options) and max(parse_remat(again.host_share or again.remat)) > 0:
        # Stages come first, for what each keeps is its own, and a cut through what is put before its backward pass
        # would move gradients. They have no limit: what is saved has not been taken off yet.
        return (*begin, Normalize(), rules, replace(stages, budget=""), again, *shard, split)
    return (
        *begin,
        *shard,
        stages,  # After the search, which need not know of stages: work and bytes are those of a device, as sharded.
        *on_ranks,  # Again, for the cut says what crosses between unlike meshes.
        split,  # Last: it makes functions, one a program.
    )


def _meshes_of_stages(
    meshes: Sequence[Mesh], stages: PipelineStages, num_ranks: int, cluster: Cluster
) -> tuple[Mesh, ...]:
    """Returns the mesh of each stage, of the meshes of ranks.

    Raises:
        RhinoError: RHI-STAGE-001 where they are not as many as ranks, RHI-MESH-001 where the cluster has too few
            devices, RHI-SCHED-001 for the schedule.
    """
    if len(meshes) != num_ranks:
        runs = (
            f"schedule {stages.schedule} runs {stages.stages} stages on {num_ranks} rank{'s' if num_ranks != 1 else ''}"
        )
        what = f"the devices or meshes of {len(meshes)} ranks were given, and {runs}"
        fix = f"give one mesh for all ranks, or one for each of {num_ranks}, as --mesh='2x2;2'"
        raise RhinoError("RHI-STAGE-001", what, fix=fix)
    link_between(cluster, [mesh.num_devices for mesh in meshes])
    order = make_order(stages.schedule, Pipeline(stages.stages, num_ranks, stages.stages // num_ranks))
    return tuple([meshes[rank] for rank in order.rank_of])


def _localize(options: Mapping[str, str]) -> tuple[Item, ...]:
    return make_passes((Localize, PackCollectives), options, "localize")  # Joined are collectives that are written.


_DIVIDED: Final = (MicroBatch, OpRules, PartedStatistics, *_ARITHMETIC)


def _micro_batch(options: Mapping[str, str]) -> tuple[Item, ...]:
    micro, rules, parted, *arithmetic = make_passes(_DIVIDED, options, "micro-batch")
    return (
        Normalize(),  # First: custom calls may stand in functions that are called.
        *_asked(arithmetic, options),  # Parameters are converted once for all micro-batches.
        rules,  # Before the batch is followed through them.
        *_parted_first(parted, options),
        micro,
    )


_OF_DEVICE: Final = option_texts(ChooseShardings)["budget"][1]
_OWN_ARITHMETIC: Final = {
    "amp": ("", f"{option_texts(MixedPrecision)['amp'][1]}; empty leaves types as they are"),
    "attention": ("", f"{option_texts(BlockwiseAttention)['attention'][1]}; empty leaves attention as it is"),
}
_REMAT: Final = "the least share of the activation stash that is recomputed, 0 to 1"

PIPELINES: Final[dict[str, NamedPipeline]] = {
    PARALLEL: NamedPipeline(
        "Cut a step in micro-batches and stages, each sharded, and make a program of each part.",
        _STAGED,
        _auto_parallel,
        {
            "num": (
                "1",
                "how many micro-batches; 1 takes the batch whole where there is one stage, and leaves a loop of one "
                "trip elsewhere",
            ),
            "mesh": (
                "",
                "mesh sizes of one rank, as 8, 2x4 or x=2,y=4, or those of each rank, as 2x2;2;2; empty takes one axis "
                "of as many devices as each rank has",
            ),
            "budget": ("", f"{_OF_DEVICE}; stages are cut so that what they hold fits it"),
            "ranks": ("", "the number of ranks; empty is one for each stage"),
            "remat": (
                "",
                f"{_REMAT}; with stages also one for each, as 0;0.5;1, or auto for what their memory asks for; empty "
                "recomputes nothing",
            ),
            **_OWN_ARITHMETIC,
        },
    ),
    "auto-shard": NamedPipeline(
        "Choose a sharding for every tensor, and write it on the module.",
        _CHOICE,
        _auto_shard,
        {"remat": ("", f"{_REMAT}; empty recomputes nothing"), **_OWN_ARITHMETIC},
    ),
    "localize": NamedPipeline(
        "Rewrite a sharded module into the program that each device runs.", (Localize, PackCollectives), _localize
    ),
    "micro-batch": NamedPipeline(
        "Take the batch in parts: a loop that accumulates gradients, and then applies them.",
        _DIVIDED,
        _micro_batch,
        _OWN_ARITHMETIC,
    ),
}
"""Sorted by name."""


def build_named(name: str, options: Mapping[str, str]) -> tuple[Item, ...] | None:
    """Returns the steps of one of our passes or pipelines; None where `name` is neither.

    Raises:
        RhinoError: RHI-PASS-001 for an option that it does not have, or a value of another kind.
    """
    if name in PIPELINES:
        return PIPELINES[name].build(options)
    cls = next((cls for cls in PASSES if cls.name == name), None)
    return (make_pass(cls, options),) if cls is not None else None


def known_names() -> tuple[str, ...]:
    """Returns the names of our pipelines and passes."""
    return (*PIPELINES, *(cls.name for cls in PASSES))


def closest_names(name: str) -> tuple[str, ...]:
    """Returns the names of ours that `name` may have been meant to be, best first."""
    return tuple(difflib.get_close_matches(name, known_names(), n=3))
