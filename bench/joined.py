"""What joining small collectives comes to: as predicted, and as the compiler of the cluster's platform makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
from models import step_text
from others import there
from planning import auto_shard, sharded
from report import Options, Question, key, option

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.hlo.compiled import Compiled
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import bytecode, wrap_manual
from rhino.ir.mlir.shardings import module_mesh
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.planner.aot import step_of
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.sharding.pack_collectives import write_packing
from rhino.runtime.aot.compile import compiler_of
from rhino.strategies.choice.sent_together import sent_together
from rhino.strategies.choice.sharding_plan import Transfer
from rhino.strategies.cost.buckets import Packing, packing_of
from rhino.strategies.cost.cost_model import CostModel

ABOUT: Final = """What joining small collectives comes to, predicted and compiled.

Each model is planned for each cluster. On TPUs `rhino-pack-collectives` joins collectives of the local program, on GPUs
the compiler does; what is joined there is predicted as if it took whatever need not wait for each other.

    alone      collectives of the plan, each by itself: how many, and the seconds of their launches
    joined     the same of those that are left when small ones are joined
    share      what launches are of the predicted step, joined
    compiled   where the compiler of the platform is installed: collectives, step and peak of the program whose
               collectives the pass has not joined, and of the one whose it has

`--statistics=8-parts` takes statistics of the batch as `--batch-statistics=8-parts` does.
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """How many collectives a compiled program sends, and the step and the peak of memory that its compiler says."""

    num: int
    step_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """A model on a cluster: its collectives, the seconds of their launches, the step, and the programs as compiled."""

    model: str
    cluster: str
    step_s: float
    num_bytes: int
    alone: tuple[int, float]
    joined: tuple[int, float]
    compiled: Sequence[Sent]


def records(options: Options) -> Iterator[Row]:
    """Yields a row for each model on each cluster."""
    jax.config.update("jax_platforms", "cpu")  # models are traced, and nothing runs
    for cluster in options.clusters:
        for model in options.models:
            yield _row(model, cluster, options.statistics)


def _row(model: str, cluster: str, statistics: str) -> Row:
    asked: dict[str, Any] = {"batch-statistics": statistics} if statistics else {}
    module, remarks = sharded(step_text(model), model, auto_shard(cluster, **asked))
    chosen = remarks.result(ShardingChoice)
    plan, costs = chosen.plan, chosen.choice.model
    alone = [(one,) for one in plan.transfers()]
    return Row(
        model,
        cluster,
        chosen.answer.cost,
        sum(one.times * one.move.num_bytes for (one,) in alone),
        _launches(costs, alone),
        _launches(costs, [*sent_together(plan, _joining(costs))]),
        _compiled(module, cluster, is_packed=costs.target.is_packed) if there(cluster) else (),
    )


def _joining(model: CostModel) -> Packing | None:
    """Returns what the pass joins, or the compiler does."""
    most = model.target.joined_bytes
    return packing_of(model) or (Packing(most, most) if most else None)


def _launches(model: CostModel, sent: Sequence[tuple[Transfer, ...]]) -> tuple[int, float]:
    """Returns how many collectives are sent in a step, and the seconds of their launches."""
    times = [one[0].times for one in sent]
    alone_s = [model.move_s(replace(one[0].move, num_bytes=0)) for one in sent]
    return sum(times), sum(count * seconds for count, seconds in zip(times, alone_s, strict=True))


def _compiled(module: ir.Module, cluster: str, *, is_packed: bool) -> Sequence[Sent]:
    """Returns what the compiler makes of the local program, before and after its collectives are joined."""
    loaded, found = load_cluster(cluster), module_mesh(module.operation)
    assert found is not None
    compiler = compiler_of(loaded, found[1])
    assert not isinstance(compiler, str), "it is there"
    joined = localized_copy(module)
    with module.context, ir.Location.unknown():
        write_packing(module.operation, None)
    programs = [localized_copy(module), joined] if is_packed else [joined]
    return [_sent(compiler(bytecode(wrap_manual(one))), cluster) for one in programs]


def _sent(made: Compiled, cluster: str) -> Sent:
    loaded = load_cluster(cluster)
    step = step_of(made, loaded)
    return Sent(sum(one.count.num for one in step.collectives), step.step_s, made.peak_bytes)


def _counted(row: Row, which: str) -> str:
    num, seconds = getattr(row, which)
    return f"{num}, {format_seconds(seconds)}"


def _programs(row: Row, write: Callable[[Sent], str]) -> str:
    return " -> ".join(map(write, row.compiled))


QUESTION: Final = Question(
    ABOUT,
    records,
    {
        "model": key("model"),
        "cluster": key("cluster"),
        "sent": key("num_bytes", "bytes"),
        "alone": lambda row: _counted(row, "alone"),
        "joined": lambda row: _counted(row, "joined"),
        "step": key("step_s", "s"),
        "share": lambda row: format(row.joined[1] / row.step_s, ".1%"),
        "compiled": lambda row: _programs(row, lambda one: str(one.num)),
        "step, compiled": lambda row: _programs(row, lambda one: format_seconds(one.step_s)),
        "peak": lambda row: _programs(row, lambda one: format_bytes(one.peak_bytes)),
    },
    (
        option("--models", ["resnet50-real", "gpt-real"], "names of models.py"),
        option("--clusters", ["v5e-8", "h100x8"], "for which they are planned"),
        option("--statistics", "", "as --batch-statistics takes it"),
    ),
    ("cluster",),
)
