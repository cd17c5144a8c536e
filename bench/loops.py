"""What a loop over layers costs: the same training steps unrolled and scanned, as planned and as XLA compiles them.

In one program, and in stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import quality
from jax.experimental import topologies
from models import example, exported, sized, step_of
from pipelines import Setting, plan
from report import Cell, Options, Question, key, option

from rhino.ir.hlo.kernels import KINDS, kernels
from rhino.passes.planner.plan_costs import plan_costs
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.strategies.pipeline.schedules import DEFAULT

FORMS: Final = {"unrolled": False, "scanned": True}
_LLAMA: Final = {"hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "vocab": 32000, "seq": 1024, "batch": 16}
_T5: Final = {"hidden": 1024, "heads": 16, "ffn": 4096, "encoder_seq": 512, "decoder_seq": 256, "batch": 16}
SIZES: Final[Mapping[str, Mapping[str, int]]] = {"gpt": {}, "llama": _LLAMA, "t5": _T5}
LEAST_MS: Final = 0.05
MOST_BY_STAGES: Final = 0.01

Record = dict[str, Any]


# As planned


def plans(options: Options) -> Iterator[Record]:
    """The predicted steps, in ms, of steps whose layers are unrolled or in a loop, each form by its own plan.

    With `--ops` also by kind of op, where the forms differ, the largest difference first.
    """
    for name in options.models:
        for target in options.targets:
            where = f"{name} on {target}"
            (flat_s, flat), (loop_s, loop) = (_planned(name, target, scan) for scan in FORMS.values())
            yield {"where": where, "kind": "step", "unrolled": 1e3 * flat_s, "scanned": 1e3 * loop_s}
            if options.ops:
                yield from _differences(where, flat, loop, 1e3, LEAST_MS)


def _planned(name: str, target: str, scan: bool) -> tuple[float, dict[str, float]]:
    """Returns the predicted step of a model's own plan, and where it goes by kind of op; seconds."""
    model, _, layers = name.partition("-")
    text = step_of(sized(model, **SIZES[model], layers=int(layers), scan=scan))
    _, remarks = quality.search(text, f"{name}.mlir", target)
    costs = plan_costs(remarks.result(ShardingChoice))
    seconds = {"collectives": sum(found for _, found in costs.transfers)}
    for op, found in enumerate(costs.compute_s()):
        kind = costs.plan.graph.cls(op).name.removeprefix("stablehlo.")
        seconds[kind] = seconds.get(kind, 0.0) + found
    return remarks.result(ShardingChoice).answer.cost, seconds


def _differences(
    where: str, flat: Mapping[str, float], loop: Mapping[str, float], scale: float, least: float
) -> Iterator[Record]:
    """Yields what differs by `least` at least, the largest first, then all others together, and all."""
    rows = [
        {"where": where, "kind": kind, **{form: scale * one.get(kind, 0.0) for form, one in _forms(flat, loop)}}
        for kind in dict.fromkeys([*flat, *loop])
    ]
    shown = [row for row in rows if abs(_difference(row)) >= least]
    yield from sorted(shown, key=lambda row: -abs(_difference(row)))
    if len(shown) < len(rows):
        yield _sum(where, "others", [row for row in rows if row not in shown])
    yield _sum(where, "all", rows)


def _forms(flat: Mapping[str, float], loop: Mapping[str, float]) -> Iterator[tuple[str, Mapping[str, float]]]:
    return zip(FORMS, (flat, loop), strict=True)


def _difference(row: Record) -> float:
    return float(row["scanned"] - row["unrolled"])


def _sum(where: str, kind: str, rows: Sequence[Record]) -> Record:
    return {"where": where, "kind": kind, **{form: sum(row[form] for row in rows) for form in FORMS}}


# In stages

_GPT: Final = "gpt --layers=24 --batch=32"
_SMALL: Final = "gpt --layers=16 --hidden=512 --heads=8 --ffn=2048 --seq=128 --batch=64"
_70B: Final = "llama --layers=80 --hidden=8192 --heads=64 --kv-heads=8 --ffn=28672 --seq=2048 --batch=32 --remat=true"
STAGED: Final = [
    f"gpt-24: {_GPT} on v100x8 4 2 8",
    f"gpt-24: {_GPT} on h100x8 4 2 8",
    "gpt-24, batch 8: gpt --layers=24 --batch=8 on v100x8x2 4 4 8",
    f"gpt-16 of 512: {_SMALL} on v100x8 4 2 8",
    f"gpt-16 of 512: {_SMALL} on v100x8 4 2 32",
    "llama-16: llama --layers=16 --hidden=2048 --ffn=5632 --vocab=32000 --batch=16 on v100x8 4 2 8",
    "llama-8, checkpointed: llama --layers=8 --batch=32 --remat=true on h100x8 4 2 8",
]
LARGE: Final = [
    *(f"llama-8b: llama --preset=llama-3-8b --batch=32 --remat=true on h100x8x2 {cut} 16" for cut in ("4 4", "8 2")),
    *(f"llama-70b: {_70B} on h100x8x8 {cut} 16" for cut in ("4 2x8", "8 8")),
]
"""A model's name, words for examples/export.py, a cluster, stages, the mesh of each, and micro-batches."""


def staged(options: Options) -> Iterator[Record]:
    """The predicted steps, in ms, of steps whose layers are unrolled or in a loop, in one program and in 1F1B stages.

    The program is that of the devices of one stage. What a loop costs more in stages than in one program is `by
    stages`; the exit code is 1 if that is more than 1 %. `idle` is the most of any rank, beside that of equal stages.
    With `--large` models of 8 and 70 billion parameters are planned in stages, in a loop alone.
    """
    for case in LARGE if options.large else options.cases:
        name, _, rest = case.partition(":")
        words, _, where = rest.partition(" on ")
        cluster, stages, mesh, parts = where.split()
        settings = {
            "one": Setting(1, int(parts), DEFAULT, mesh, cluster),
            "staged": Setting(int(stages), int(parts), DEFAULT, mesh, cluster),
        }
        record: Record = {"where": f"{name} on {cluster}", "stages": f"{stages} of {mesh}", "parts": int(parts)}
        for form, scan in FORMS.items():
            if options.large and not scan:
                continue
            text = exported([*words.split(), f"--scan={str(scan).lower()}"])
            for kind, setting in settings.items():
                if kind == "staged" or not options.large:
                    timeline = plan(text, f"{name}.mlirbc", setting).simulation.timeline
                    record[f"{form} {kind}"] = 1e3 * timeline.end_s
                    record[f"{form} idle"] = max(map(timeline.idle, range(timeline.num_ranks)))
        last = int(stages) - 1
        yield {**record, "equal": last / (int(parts) + last)}


def _loop(record: Record, kind: str) -> float:
    return float(record[f"scanned {kind}"] / record[f"unrolled {kind}"] - 1)


def _by_stages(record: Record) -> float:
    return _loop(record, "staged") - _loop(record, "one")


def _dearer_in_stages(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if "unrolled one" in record and _by_stages(record) > MOST_BY_STAGES:
            yield f"{record['where']}: a loop costs {_by_stages(record):.1%} more in stages than in one program"


# As compiled


def compiled(options: Options) -> Iterator[Record]:
    """MiB that the kernels of a GPT of four layers (one device, batch 1) read and write in a step, by what they do.

    XLA compiles the program for this machine's processor, "cpu", or for the GPU that a file describes: a
    `GpuTargetConfigProto` as text. XLA's sources have some under `xla/backends/gpu/target_config/specs`. No GPU is
    needed, but the packages `jax-cuda12-plugin` and `jax-cuda12-pjrt` of jaxlib's version, and `nvidia-cuda-nvcc-cu12`.
    Nothing is tuned: every product is compiled by XLA itself where it can do that.
    """
    for where in options.compiled:
        flat, loop = (_moved(where, scan) for scan in FORMS.values())
        yield from _differences(Path(where).stem, flat, loop, 2**-20, 0.0)


def _moved(where: str, scan: bool) -> Counter[str]:
    """Returns the bytes that kernels move in a step, by kind."""
    found = Counter(dict.fromkeys(KINDS, 0))
    for kernel, times in kernels(_compiled(where, sized("gpt", layers=4, batch=1, scan=scan))):
        found[kernel.kind] += times * kernel.num_bytes
    return found


def _compiled(where: str, model: Any) -> str:  # noqa: ANN401 - a `Model` of examples/training.py
    """Returns the HLO text that XLA makes of a training step for "cpu", or the GPU that a file describes."""
    device: Any = jax.devices("cpu")[0]
    options: dict[str, str | bool] = {}
    if where != "cpu":
        described = Path(where).read_text(encoding="utf-8")
        topology = topologies.get_topology_desc(platform="cuda", target_config=described, topology="1x1x1")
        device, options = topology.devices[0], {"xla_gpu_autotune_level": "0"}  # tuning runs kernels
    sharding, training = jax.sharding.SingleDeviceSharding(device), example("training")
    placed = (training.abstract_state(model), model.batch)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), placed)
    step = training.jit_step(model, training.ADAM, 0)
    return str(step.lower(*shapes).compile(options).as_text())


def _if_known(name: str, form: str) -> Cell:
    return lambda record: format(record[name], form) if name in record else ""


def _share(share: Callable[[Record], float]) -> Cell:
    return lambda record: f"{share(record):+.1%}" if "unrolled one" in record else ""


_STAGED: Final = {
    "": key("where"),
    "stages": key("stages"),
    "micro-batches": key("parts"),
    **{name: _if_known(name, ",.1f") for name in ("unrolled one", "scanned one", "unrolled staged", "scanned staged")},
    "loop, one": _share(lambda record: _loop(record, "one")),
    "loop, staged": _share(lambda record: _loop(record, "staged")),
    "by stages": _share(_by_stages),
    **{name: _if_known(name, ".0%") for name in ("unrolled idle", "scanned idle")},
    "equal": key("equal", ".0%"),
}
_COLUMNS: Final = {
    "where": key("where"),
    "kind": key("kind"),
    **{form: key(form, ",.1f") for form in FORMS},
    "difference": lambda row: f"{_difference(row):+,.1f}",
    "relative": lambda row: f"{row['scanned'] / row['unrolled'] - 1:+.1%}" if row["unrolled"] else "",
}
_TARGETS: Final = ["v100x8:8", "h100x8:8"]
_PLANS: Final = (
    option("--models", ["gpt-24", "gpt-72", "llama-16", "t5-12"], "with the number of layers"),
    option("--targets", _TARGETS, "clusters with their meshes"),
    option("--ops", False, "by kind of op, where the forms differ"),
)
_COMPILED: Final = (option("--compiled", ["cpu"], "`cpu`, and files that describe GPUs"),)

_CASES: Final = (
    option("--cases", STAGED, "NAME: words for examples/export.py on CLUSTER STAGES MESH MICRO-BATCHES; ...", ";"),
    option("--large", False, "the scanned models of 8 and 70 billion parameters in their place"),
)

QUESTION: Final = Question(str(plans.__doc__), plans, _COLUMNS, _PLANS, ("kind",))
IN_STAGES: Final = Question(str(staged.__doc__), staged, _STAGED, _CASES, ("stages",), faults=_dearer_in_stages)
KERNELS: Final = Question(str(compiled.__doc__), compiled, _COLUMNS, _COMPILED, ("kind",))
