"""What one device of a plan computes, as compiled without a device against measured on one: no link is needed.

In a localized program each collective becomes what one device can do alone with the same shapes and as many bytes of
its own memory: a gather repeats the device's part, a reduce-scatter takes a part, an all-reduce passes on. Such a
program runs on one device, and so kernels, fusion and memory are measured, and nothing of the links.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import jax
import jax.numpy as jnp
from aot import Asked, rank_correlation
from jax import export
from jaxlib.mlir.dialects import stablehlo as hlo
from models import step_text
from report import Options, Question, key, markdown, option, run, say

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.mlir.bindings import ir, serialize_portable_artifact
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.manual import LOCAL, bytecode, strip_shardings
from rhino.ir.mlir.reader import entry_function, walk
from rhino.passes.planner.aot import LOCALIZED, Candidate, step_of
from rhino.passes.planner.request import MOST_COMPILES
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.aot.compile import compiler_of
from rhino.runtime.executor.signature import array_dtype

_ABOUT_WRITE: Final = """Write programs of one device as `jax.export` files, with what they should take.

Each model on the cluster is planned and compared as `aot.py` does it, and each localized plan becomes a program of one
device. `time_exports.py FOLDER OUT` times them where a device is, `one_device.py read FOLDER OUT` compares.
"""

_ABOUT_READ: Final = """Steps and memory of programs of one device: compiled without a device, and measured on one.

    predicted   seconds of the plan without its collectives
    compiled    seconds of the kernels that XLA makes without a device, at the cluster's rates
    measured    seconds of a step on the device
    ratio       compiled over measured
    peak        bytes of the program, compiled without the device, and on it

The lines at the end, by model: rank correlations with the measured seconds, how many times the fastest step the plan
takes that compiled is the fastest (lost), and the ratio: least, median and most.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A plan's program of one device: its file, where its results take over arguments, and its figures.

    Seconds and bytes are those of the device's own work: predicted for the plan, and compiled for the program.
    """

    file: str
    model: str
    plan: str
    predicted_s: float
    compiled_s: float
    compiled_bytes: int
    aliases: tuple[tuple[int, int], ...]


# Programs


def alone(module: ir.Module) -> ir.Module:
    """Returns a planned module's program of one device, with what that does by itself in place of collectives."""
    found = localized_copy(module)
    if LOCAL in found.operation.attributes:
        del found.operation.attributes[LOCAL]
    strip_shardings(found)
    replace_collectives(found)
    for mesh in [one for one in found.body.operations if one.operation.name == "sdy.mesh"]:
        mesh.operation.erase()
    found.operation.verify()
    return found


def replace_collectives(module: ir.Module) -> None:
    """Replaces what a program of several devices sends by what one device does, in place."""
    with module.context, ir.Location.unknown():
        for op in walk(module.operation):
            if (form := _FORMS.get(op.name)) is None:
                continue
            with ir.InsertionPoint(op):
                made = form(op)
            for result, value in zip(op.results, made, strict=True):
                result.replace_all_uses_with(value)
            op.erase()


def _apart(*values: ir.Value[Any]) -> list[ir.Value[Any]]:
    """Returns values that no kernel reads as it makes them, as it is with those that a collective has sent."""
    return list(hlo.OptimizationBarrierOp(list(values)).results)


def _passed_on(op: ir.Operation) -> list[ir.Value[Any]]:
    return _apart(*op.operands)


def _gathered(op: ir.Operation) -> list[ir.Value[Any]]:
    dim = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
    return _apart(
        *(
            hlo.ConcatenateOp([given] * (result.type.shape[dim] // given.type.shape[dim]), dim).result
            for given, result in zip(op.operands, op.results, strict=True)
        )
    )


def _scattered(op: ir.Operation) -> list[ir.Value[Any]]:
    (value,) = _apart(op.operands[0])
    return _apart(_part(value, [0] * value.type.rank, op.results[0].type.shape))


def _part(value: ir.Value[Any], starts: Sequence[int], ends: Sequence[int]) -> ir.Value[Any]:
    made: ir.Value[Any] = hlo.SliceOp(value, list(starts), list(ends), [1] * len(starts)).result
    return made


def _exchanged(op: ir.Operation) -> list[ir.Value[Any]]:
    split, joined = (ir.IntegerAttr(op.attributes[name]).value for name in ("split_dimension", "concat_dimension"))
    count = ir.IntegerAttr(op.attributes["split_count"]).value
    return _apart(*(_parts_joined(value, split, joined, count) for value in op.operands))


def _parts_joined(value: ir.Value[Any], split: int, joined: int, count: int) -> ir.Value[Any]:
    size = value.type.shape[split] // count
    parts = []
    for part in range(count):
        starts, ends = [0] * value.type.rank, list(value.type.shape)
        starts[split], ends[split] = part * size, (part + 1) * size
        parts.append(_part(value, starts, ends))
    made: ir.Value[Any] = hlo.ConcatenateOp(parts, joined).result
    return made


def _first_device(op: ir.Operation) -> list[ir.Value[Any]]:
    return [hlo.ConstantOp(ir.DenseElementsAttr.get_splat(op.results[0].type, _zero(op.results[0].type))).result]


def _zero(kind: ir.Type) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.RankedTensorType(kind).element_type, 0)


_FORMS: Final = {
    "stablehlo.all_gather": _gathered,
    "stablehlo.all_reduce": _passed_on,
    "stablehlo.all_to_all": _exchanged,
    "stablehlo.collective_permute": _passed_on,
    "stablehlo.partition_id": _first_device,
    "stablehlo.reduce_scatter": _scattered,
    "stablehlo.replica_id": _first_device,
}
"""By op that sends, or tells devices apart: what one device does instead."""


def exported(module: ir.Module, platform: str) -> bytes:
    """Returns a module as a `jax.export` file for a platform."""
    entry = entry_function(module)
    arguments, results = ([_aval(kind) for kind in kinds] for kinds in (entry.type.inputs, entry.type.results))

    def stub(*_: jax.Array) -> list[jax.Array]:
        return [jnp.zeros(aval.shape, aval.dtype) for aval in results]

    frame = export.export(jax.jit(stub, keep_unused=True), platforms=[platform])(*arguments)
    code = serialize_portable_artifact(str(module), hlo.get_version_from_compatibility_requirement(_OLDEST))
    return bytes(replace(frame, mlir_module_serialized=code).serialize())


def _aval(kind: ir.Type) -> jax.ShapeDtypeStruct:
    tensor = ir.RankedTensorType(kind)
    return jax.ShapeDtypeStruct(tuple(tensor.shape), array_dtype(str(tensor.element_type)))


_OLDEST: Final = hlo.StablehloCompatibilityRequirement.WEEK_4


def program_of(model: str, candidate: Candidate, cluster: str, folder: Path) -> Program:
    """Writes a candidate's program of one device, and returns what is known of it. Raises RHI-AOT-001, or others."""
    named, plan = load_cluster(cluster), candidate.found.plan
    assert plan.sharding is not None, "it is a plan in one program"
    platform = named.device.platform
    module = alone(candidate.found.module)
    compiler = compiler_of(named, parse_mesh("1"), by_jit=True)
    if isinstance(compiler, str):
        raise SystemExit(compiler)
    compiled = compiler(bytecode(module))
    step = step_of(compiled, named)
    file = f"{model}.{candidate.name.replace(' ', '-')}.export"
    (folder / file).write_bytes(exported(module, "cuda" if platform == "gpu" else platform))
    attributes = boundary_attributes(entry_function(module), "arg")
    aliases = tuple((number, ir.IntegerAttr(one[ALIAS]).value) for number, one in enumerate(attributes) if ALIAS in one)
    figures = (plan.sharding.compute_s, step.kernels_s, compiled.peak_bytes)
    return Program(file, model, candidate.name, *figures, aliases)


def written(options: Options) -> Iterator[Program]:
    """Yields the programs of all models, each once it is written."""
    jax.config.update("jax_platforms", "cpu")  # models are traced, and nothing runs
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Program] = []
    for model in options.models:
        asked = Asked(model, options.cluster, options.mesh, options.compiles, ())
        comparer = asked.comparer(step_text(model))
        comparer.run()
        for candidate in [one for one in comparer.candidates if one.form == LOCALIZED and one.compiled]:
            found.append(program_of(model, candidate, options.cluster, folder))
            (folder / PROGRAMS).write_text(json.dumps([asdict(one) for one in found], indent=1), encoding="utf-8")
            yield found[-1]


PROGRAMS: Final = "programs.json"


# What was measured


@dataclass(frozen=True, slots=True)
class Row:
    """A program of one device, as predicted, compiled without it, and measured on it; None where it did not run."""

    model: str
    plan: str
    predicted_s: float
    compiled_s: float
    compiled_bytes: int
    measured_s: float | None
    measured_bytes: int | None
    why: str

    @property
    def ratio(self) -> float | None:
        """Compiled over measured seconds."""
        return self.compiled_s / self.measured_s if self.measured_s else None


def rows(options: Options) -> Iterator[Row]:
    """Yields what the files say of each program that was timed."""
    programs = json.loads((Path(options.folder) / PROGRAMS).read_text(encoding="utf-8"))
    measured = json.loads(Path(options.measured).read_text(encoding="utf-8"))
    say(f"measured on {measured['device']}, jax {measured['jax']}")
    for one in programs:
        if (what := measured["programs"].get(one["file"])) is not None:
            figures = one["model"], one["plan"], one["predicted_s"], one["compiled_s"], one["compiled_bytes"]
            yield Row(*figures, what.get("step_s"), what.get("peak_bytes"), what.get("why", ""))


def summary(found: Sequence[Row]) -> str:
    """Returns a line for each model, and what all of them come to."""
    lines, ranks = [], []
    for model in dict.fromkeys(one.model for one in found):
        own = [one for one in found if one.model == model and one.measured_s]
        if not own:
            continue
        ranked = {
            "predicted": rank_correlation([(one.predicted_s, one.measured_s) for one in own]),
            "compiled": rank_correlation([(one.compiled_s, one.measured_s) for one in own]),
        }
        ranks.append(ranked)
        best = min(own, key=lambda one: one.compiled_s)
        lost = (best.measured_s or 0.0) / min(one.measured_s or 0.0 for one in own)
        ratios = [one.ratio for one in own if one.ratio]
        lines.append(
            [
                model,
                str(len(own)),
                *("" if rank is None else f"{rank:.2f}" for rank in ranked.values()),
                f"{lost:.3f}",
                f"{min(ratios):.2f} {median(ratios):.2f} {max(ratios):.2f}",
            ]
        )
    head = ("model", "plans", "rank, predicted", "rank, compiled", "lost", "compiled / measured")
    table = markdown(head, lines, {"model", "compiled / measured"})
    ratios = [one.ratio for one in found if one.ratio]
    peaks = [one.compiled_bytes / one.measured_bytes for one in found if one.measured_bytes]
    ends = [
        f"compiled / measured {what} of {len(own)} programs: median {median(own):.2f}, {min(own):.2f} to {max(own):.2f}"
        for what, own in (("step", ratios), ("peak", peaks))
        if own
    ]
    for name in ("predicted", "compiled"):
        if known := [rank for one in ranks if (rank := one[name]) is not None]:
            ends.append(f"rank correlation of {name} and measured step: mean {mean(known):.2f}, least {min(known):.2f}")
    return "\n".join([*table, "", *ends])


_MODELS: Final = ["gpt-real", "t5-real", "moe-real", "dnabert-real", "vit-real", "wide-resnet-real", "unet-real"]

QUESTIONS: Final = {
    "write": Question(
        _ABOUT_WRITE,
        written,
        {
            "file": key("file"),
            "predicted": key("predicted_s", "s"),
            "compiled": key("compiled_s", "s"),
            "compiled peak": key("compiled_bytes", "bytes"),
        },
        (
            option("--folder", "out/one_device", "where files are written"),
            option("--models", _MODELS, "names of models.py"),
            option("--cluster", "h100x8", "which cluster"),
            option("--mesh", "8", "which mesh"),
            option("--compiles", MOST_COMPILES, "the most compiles of --aot for each model"),
        ),
    ),
    "read": Question(
        _ABOUT_READ,
        rows,
        {
            "model": key("model"),
            "plan": key("plan"),
            "predicted": key("predicted_s", "s"),
            "compiled": key("compiled_s", "s"),
            "measured": key("measured_s", "s"),
            "ratio": key("ratio", ".2f"),
            "compiled peak": key("compiled_bytes", "bytes"),
            "measured peak": key("measured_bytes", "bytes"),
            "why not": key("why"),
        },
        (
            option("--folder", "out/one_device", "where files were written"),
            option("--measured", "out/measured.json", "what time_exports.py wrote"),
        ),
        ("plan", "why not"),
        summary=summary,
    ),
}

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTIONS, sys.argv[1:]))
