"""How good the plans of the search are: against those that an expert would write down by hand.

    python bench/quality.py [--models=gpt,moe] [--targets=v100x8:8,v100x8:2x4] [--experts=dp,zero-1 tp] [--budget=16GiB]
                            [--share=0.95] [--details] [--check] [--json=FILE]

Each model has layers of a real size, but few of them. An expert's plan is a set of pins, one role for each axis of the mesh: where the
batch, the parameters and the optimizer's state lie, and for sequence parallelism where norms do. What the pins leave open is filled by
the same search under the same cost model and memory, which is generous to the expert. Roles along one axis:

    dp       data parallel: the batch is split, all state is whole
    zero-1   the optimizer's state is split as well (gradients may be: ZeRO-2)
    zero-3   the parameters are split too
    tp       Megatron: column and row pairs, vocabulary; the batch is whole, and so are norms
    tp+sp    the same, with norms and residuals split along the sequence
    ep       GShard: the batch is split, and experts' weights by expert
    head     the batch is split, and the last layer's weights by class

Printed for each target: the predicted step, its proven bound and gap, the predicted peak, the payload of all collectives in each device's
program, the best expert and what it takes, and our step over its. An expert that does not fit loses. With `--share`, the budget of each row
is that share of the peak that our plan takes of its own accord, so that memory binds.

Exit code: with `--check`, 1 if an expert's plan is faster than ours by more than 0.1 %, or fits where we find none.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

from phases import auto_shard
from planning import zoo
from search import machine

from rhino.ir.cluster.mesh import Mesh, parse_mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.program.collectives import module_stats
from rhino.ir.program.named_tensors import argument_tensors
from rhino.ir.units import format_bytes, format_seconds, parse_size
from rhino.passes.base import Remarks
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.solver.answer import Answer

TOLERANCE: Final = 1e-3
"""By how much, relatively, an expert may be faster: below it lies the gap that a search may leave where memory binds."""

TARGETS: Final = ("v100x8:8", "v100x8:2x4", "v100x8x2:2x8", "h100x8:8", "h100x8:2x4")


# Models


@dataclass(frozen=True, slots=True)
class Case:
    """A model and where its experts split it: patterns of weights' names.

    `columns` are split along their last dim, `rows` along the one before; `experts` along their first; `classes` are the last layer's.
    `norms` are the ops, by location, of whose results [batch, sequence, ...] sequence parallelism speaks.
    """

    model: str
    config: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    norms: str = ""

    def roles(self) -> tuple[str, ...]:
        """Returns the roles beside data parallelism that the model has."""
        found = {"tp": self.columns, "tp+sp": self.columns and self.norms, "ep": self.experts, "head": self.classes}
        return tuple(role for role, has in found.items() if has)


_ATTENTION: Final = ("*.q", "*.k", "*.v")
_COLUMNS: Final = (*_ATTENTION, "*.up", "*.up_bias")
_ROWS: Final = ("*.out", "*.down", "*.embed")
_NORMS: Final = "loc:*jvp(*)*/rsqrt"

CASES: Final[dict[str, Case]] = {
    "gpt": Case("gpt", {"layers": 2}, _COLUMNS, _ROWS, norms=_NORMS),
    "moe": Case("moe", {"layers": 2}, _COLUMNS, _ROWS, ("*.experts.*",), norms=_NORMS),
    "vgg-1m": Case(
        "vgg",
        {"classes": 1_000_000, "batch": 256, "dropout": 0.0},
        ("*.classifier.0.*", "*.classifier.2.*"),
        ("*.classifier.1.weight",),
        classes=("*.classifier.2.*",),
    ),
    "dnabert": Case(
        "bert",
        {"layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 4096, "seq": 2048, "convs": 1, "batch": 8},
        _COLUMNS,
        _ROWS,
        norms=_NORMS,
    ),
    "unet": Case(
        "unet",
        {"multipliers": (1, 2, 2, 4), "blocks": 1, "batch": 128},
        ("*.conv1.*", "*.time.weight", "*.time.bias", "*.norm2.*", "*.q", "*.k", "*.v"),
        ("*.conv2.weight", "*.out"),
    ),
    "wide-resnet": Case(
        "resnet",
        {"blocks": (1, 1, 1, 1), "channels": 320, "width_factor": 2, "classes": 1024, "batch": 32},
        ("*.middle.weight", "*.middle.norm.*", "*.head.*"),
        ("*.expand.weight",),
        classes=("*.head.*",),
    ),
    "t5": Case("t5", {"layers": 1}, (*_ATTENTION, "*.up"), _ROWS, norms=_NORMS),
    "llama": Case(
        "llama",
        {"layers": 1, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000, "seq": 2048, "batch": 8},
        (*_ATTENTION, "*.up", "*.gate", "*.head"),
        _ROWS,
        norms=_NORMS,
    ),
}


@cache
def step_text(name: str) -> bytes:
    """Returns the training step of a case as StableHLO text."""
    zoo()  # puts the examples where the next line finds them
    from export import MODELS  # noqa: PLC0415
    from training import export_step  # noqa: PLC0415

    case = CASES[name]
    entry = MODELS[case.model]
    return export_step(entry.model(replace(entry.config(), **case.config))).encode()


# What experts say

DATA: Final = ("dp", "zero-1", "zero-3")

Role = Callable[[Case, str, Sequence[int], int], int | None]
"""Of a case, the dotted name of an argument, its shape as other axes leave it and the axis's size: the dim that is split, or None."""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Says whether one of the patterns speaks of a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _largest(shape: Sequence[int], size: int) -> int | None:
    """The largest dim that an axis divides."""
    found = [(-extent, dim) for dim, extent in enumerate(shape) if extent and extent % size == 0]
    return min(found)[1] if found else None


def _batch(_case: Case, name: str, _shape: Sequence[int], _size: int) -> int | None:
    return None if name.startswith("state.") else 0


def _zero_1(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return _largest(shape, size) if name.startswith(("state.mu.", "state.nu.")) else _batch(case, name, shape, size)


def _zero_3(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return _largest(shape, size) if name.startswith("state.") else _batch(case, name, shape, size)


def _megatron(case: Case, name: str, shape: Sequence[int], _size: int) -> int | None:
    if matches(name, case.experts):
        return None
    return len(shape) - 1 if matches(name, case.columns) else len(shape) - 2 if matches(name, case.rows) else None


def _by_expert(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return 0 if matches(name, case.experts) else _batch(case, name, shape, size)


def _by_class(case: Case, name: str, shape: Sequence[int], size: int) -> int | None:
    return len(shape) - 1 if matches(name, case.classes) else _batch(case, name, shape, size)


ROLES: Final[dict[str, Role]] = {
    "dp": _batch,
    "zero-1": _zero_1,
    "zero-3": _zero_3,
    "tp": _megatron,
    "tp+sp": _megatron,
    "ep": _by_expert,
    "head": _by_class,
}


def experts(case: Case, num_axes: int) -> Iterator[tuple[str, ...]]:
    """Yields a role for each axis, outermost first: each role alone, and on two axes data parallelism outside of each other role too."""
    own = case.roles()
    yield from ((role,) * num_axes for role in (*DATA, *own))
    if num_axes == 2:
        yield from ((data, role) for data in DATA for role in own)


def pins(case: Case, module: ir.Module, mesh: Mesh, roles: Sequence[str]) -> str:
    """Returns what an expert says, as a file of constraints: every dim of every argument, and along which dim norms are split."""
    rows = []
    for tensor in argument_tensors(entry_function(module.operation), "expert"):
        left = list(tensor.shape)
        dims: list[list[str]] = [[] for _ in left]
        for (axis, size), role in reversed(list(zip(mesh.axes, roles, strict=True))):  # ZeRO takes what models' axes leave
            dim = ROLES[role](case, tensor.names[0], left, size)
            if dim is not None and left[dim] % size == 0:
                left[dim] //= size
                dims[dim].insert(0, axis)
        rows.append(_pin(tensor.names[0], dims))
    if case.norms:
        rows += _norms(case, [axis for (axis, _), role in zip(mesh.axes, roles, strict=True) if role == "tp+sp"])
        rows += [_whole(case, axis) for (axis, _), role in zip(mesh.axes, roles, strict=True) if role == "tp"]
    return "\n".join(rows)


def _pin(name: str, dims: Sequence[Sequence[str]]) -> str:
    sharding = ", ".join(f"{{{', '.join(axes)}}}" for axes in dims)
    return f"[[pin]]\nname = '{name}'\nsharding = '[{sharding}]'"


def _norms(case: Case, axes: Sequence[str]) -> list[str]:
    """Norms of a sequence [batch, sequence, ...] are split along it on the axes, if any."""
    return [f"[[pin]]\nname = '{case.norms}'\nsharding = '[{{?}}, {{{', '.join(axes)}, ?}}, {{?}}]'"] if axes else []


def _whole(case: Case, axis: str) -> str:
    """Norms are not split along an axis."""
    return f"[[forbid]]\nname = '{case.norms}'\naxis = '{axis}'"


# Plans


def search(text: bytes, name: str, target: str, budget: str = "", constraints: str = "") -> tuple[ir.Module, Remarks]:
    """Returns a step with its shardings, and what the search says of them, for a target `cluster:mesh` and a file of constraints.

    Raises:
        RhinoError: RHI-SOLVE-001 where it does not fit, and whatever else `rhino-opt --auto-shard` says.
    """
    cluster, _, mesh = target.partition(":")
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.toml"
        file.write_text(constraints, encoding="utf-8")
        pipeline = auto_shard(cluster, mesh, budget).replace("}", f' constraints="{file}"}}')
        build_pass_manager(pipeline, module.context, remarks).run(module.operation)
    return module, remarks


_NO_PLAN: Final = ("RHI-SOLVE-001", "RHI-SOLVE-002")


@dataclass(frozen=True, slots=True)
class Found:
    """What a plan takes, or why there is none. `sent_bytes` is the payload of all collectives in each device's program."""

    step_s: float = float("inf")
    bound_s: float = float("inf")
    gap: float = 0.0
    peak_bytes: float = 0.0
    sent_bytes: int | None = None
    method: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one target: our plan, and those of experts by what they say along each axis. No `budget`: all memory there is."""

    model: str
    target: str
    budget: str
    ours: Found
    experts: Mapping[str, Found]

    @property
    def best(self) -> str:
        """The fastest expert; the first of equals, none where none fits."""
        fitting = [name for name, found in self.experts.items() if not found.error]
        return min(fitting, key=lambda name: self.experts[name].step_s) if fitting else ""

    @property
    def ratio(self) -> float:
        """Our step over the best expert's."""
        return self.ours.step_s / self.experts[self.best].step_s if self.best else 0.0


def found(name: str, target: str, budget: str, constraints: str = "", *, localize: bool = False) -> Found:
    """Returns what the plan under what an expert says takes, or that none fits or was found."""
    try:
        module, remarks = search(step_text(name), name, target, budget, constraints)
    except RhinoError as error:
        if error.id not in _NO_PLAN:
            raise
        return Found(error=f"{error.id}: {error.what}")
    answer: Answer = remarks.statistics["answer"]
    sent = module_stats(localized_copy(module, name)).total.num_bytes if localize else None
    return Found(answer.cost, answer.bound, answer.gap, answer.peak_bytes, sent, answer.method)


def measure(name: str, target: str, budget: str, share: float, wanted: Sequence[str]) -> Row:
    """Returns the row of one model on one target; `wanted` are experts by name, all if empty, `share` as in `--share`, 0 for none."""
    if share:
        budget = str(int(share * found(name, target, budget).peak_bytes))
    case, mesh = CASES[name], parse_mesh(target.partition(":")[2])
    module = read_module(step_text(name), name, make_context())
    plans: dict[str, Found] = {}
    for roles in experts(case, len(mesh.axes)):
        words = " ".join(roles if len(set(roles)) > 1 else roles[:1])
        if not wanted or words in wanted:
            plans[words] = found(name, target, budget, pins(case, module, mesh, roles))
            print(f"  {name} {target} {words}: {_step(plans[words])}", file=sys.stderr, flush=True)
    return Row(name, target, budget, found(name, target, budget, localize=True), plans)


# Tables


def _step(one: Found) -> str:
    return one.error or f"{format_seconds(one.step_s)}, peak {format_bytes(one.peak_bytes)}, by {one.method}"


def cells(row: Row) -> list[str]:
    """Returns the cells of one row."""
    cluster, _, mesh = row.target.partition(":")
    ours, budget = row.ours, format_bytes(parse_size(row.budget)) if row.budget else "-"
    if ours.error:
        return [row.model, cluster, mesh, budget, ours.error, *[""] * 7]
    shown = [format_seconds(ours.step_s), format_seconds(ours.bound_s), f"{ours.gap:.2%}", format_bytes(ours.peak_bytes)]
    best = [row.best, format_seconds(row.experts[row.best].step_s), f"{row.ratio:.3f}"] if row.best else ["none fits", "", ""]
    return [row.model, cluster, mesh, budget, *shown, format_bytes(ours.sent_bytes or 0), *best]


HEAD: Final = ("model", "cluster", "mesh", "budget", "ours", "at least", "gap", "peak", "sent", "best expert", "takes", "ours / expert")


def table(rows: Sequence[Row]) -> str:
    """Returns a Markdown table, a line for each row."""
    lines = [list(HEAD), [*["---"] * 3, *["---:"] * 6, "---", "---:", "---:"], *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", default=",".join(CASES), help="which models (default all)")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"clusters with meshes (default {','.join(TARGETS)})")
    parser.add_argument("--experts", default="", help="which experts, as the first lines of --details name them (default all)")
    parser.add_argument("--budget", default="", help="bytes per device (default: what the cluster's devices have)")
    parser.add_argument("--share", type=float, default=0.0, help="of the peak of our plan, as the budget of each row (default: --budget)")
    parser.add_argument("--details", action="store_true", help="print what every expert's plan takes, or why there is none")
    parser.add_argument("--check", action="store_true", help="fail if an expert's plan is faster than ours")
    parser.add_argument("--json", metavar="FILE", help="write every figure there too")
    options = parser.parse_args(argv)
    wanted = options.experts.split(",") if options.experts else []
    pairs = [(model, target) for model in options.models.split(",") for target in options.targets.split(",")]
    rows = [measure(model, target, options.budget, options.share, wanted) for model, target in pairs]
    print(f"{machine()}\n\n{table(rows)}")
    if options.details:
        print(*(f"{row.model} {row.target} {name}: {_step(one)}" for row in rows for name, one in row.experts.items()), sep="\n")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    return int(options.check and any(row.ratio > 1 + TOLERANCE or (row.ours.error and (row.best or not options.share)) for row in rows))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
