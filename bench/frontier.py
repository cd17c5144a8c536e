"""Plans of the largest models on the clusters that train them, against experts' and against what was published.

Each row is a training step of a scanned model with a kernel for attention, from shapes alone, with `jax.checkpoint`
around layers unless the row's name ends in -free. It is planned as a user plans it, and as its experts say: an expert's
pins (experts.py) for the mesh of a public configuration, completed by the same search. What is published is of the
model and the devices that the source has, which is named in the row, and so is what sets it apart from the row, where
something does.

    plan        mesh, and micro-batches or stages where there are several
    share       FLOP of the model over those of the machine in that time: 6 for each token and parameter (of experts
                those that a token goes to; no lookup of the embedding), 6 for each pair of a query, and a key that it
                sees, and element of a head; nothing for what is recomputed
    planning    processor seconds of the command, tracing left out

Exit code: with `--check` 1 if an expert's plan is faster than ours by more than 0.1 %, a row has no plan, planning
takes more than 120 processor seconds, or a share is off by more than a factor of 1.25 from what was published of the
same.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import jax
from experts import CASES, pins
from models import sized, step_of
from papers import resized
from report import Options, Question, key, option, run, say

from rhino.ir.cluster.cluster import Cluster, cluster_to_text, load_cluster
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.files import load_plan
from rhino.ir.units import format_bytes, format_seconds

TOLERANCE: Final = 1e-3
"""By how much, relatively, an expert may be faster: below it lies the gap that a search may leave."""

MOST_PLANNING_S: Final = 120
"""Processor seconds of a row."""

FACTOR: Final = 1.25
"""By what factor a share may be off from what was published of the same."""

_CUDNN: Final = 91000
"""The version of cuDNN that a step is lowered for: where none is installed, JAX asks for that alone."""

SHARD: Final = ("--auto-shard", "--mesh=auto")


@dataclass(frozen=True, slots=True)
class Kind:
    """Devices of a kind: the preset with the most of them, its levels for fewer, and the attention that they have.

    `between_nodes` is where their network is another than the preset's.
    """

    preset: str
    sides: dict[int, tuple[int, ...]]
    attention: str
    between_nodes: dict[str, Any] = field(default_factory=dict)

    def cluster(self, num_devices: int) -> Cluster:
        """Returns the cluster of so many."""
        whole = load_cluster(self.preset)
        sides = self.sides[num_devices]
        outer, *inner = [resized(*one) for one in zip(whole.levels, sides, strict=True)]
        levels = (replace(outer, **self.between_nodes), *inner)
        card, is_topology, _ = whole.compile_for.partition(":")
        compile_for = f"{card}:{'x'.join(map(str, sides))}" if is_topology else card
        return replace(whole, name=f"{self.preset}-of-{num_devices}", levels=levels, compile_for=compile_for)


_A3: Final = {"devices_per_port": 2, "port_bytes_per_s": 25e9}
"""Google's A3 High: four network cards of 200 Gbit/s for the eight H100 of a node (its documentation)."""

KINDS: Final = {
    "a3": Kind("h100x8x8", {64: (8, 8)}, "cudnn", _A3),
    "h100": Kind("h100x8x8", {count: (count // 8, 8) for count in (16, 64, 128, 256, 512)}, "cudnn"),
    "v5p": Kind("v5p-1024", {16: (4, 2, 2), 64: (4, 4, 4), 128: (8, 4, 4), 256: (8, 8, 4), 512: (8, 8, 8)}, "splash"),
}


@dataclass(frozen=True, slots=True)
class Expert:
    """What an expert says: roles of the axes of a mesh (experts.py), and more options of the command."""

    mesh: str
    roles: tuple[str, ...]
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Says it in words."""
        sizes = [size for _, size in parse_mesh(self.mesh).axes]
        named = " x ".join(f"{role} {size}" for role, size in zip(self.roles, sizes, strict=True))
        return ", ".join([named, *(word.removeprefix("--") for word in self.words)])


@dataclass(frozen=True, slots=True)
class Published:
    """A share of a machine that was published, and by whom; `apart` says what sets the row apart from it."""

    share: float
    source: str
    apart: str = ""

    def __str__(self) -> str:
        """Says it in words."""
        words = f"{self.source}: {self.share:.0%}"
        return f"{words}; not compared: {self.apart}" if self.apart else words


@dataclass(frozen=True, slots=True)
class Row:
    """A model's preset with sizes on so many devices of a kind, how it is planned, its experts, what is published."""

    preset: str
    kind: str
    num_devices: int
    sizes: dict[str, Any]
    experts: tuple[Expert, ...]
    words: tuple[str, ...] = SHARD
    published: Published | None = None

    @property
    def case(self) -> str:
        """Where experts.py has what experts say of the model."""
        return self.preset.partition("-")[0]


def fsdp(mesh: str, *words: str) -> Expert:
    """Returns fully sharded data parallelism over all axes."""
    return Expert(mesh, ("zero-3",) * len(parse_mesh(mesh).axes), words)


def fsdp_tp(mesh: str, *words: str) -> Expert:
    """Returns the same over all axes but the last, and tensor with sequence parallelism over that."""
    return Expert(mesh, (*("zero-3",) * (len(parse_mesh(mesh).axes) - 1), "tp+sp"), words)


_LLAMA3: Final = Published(0.43, "The Llama 3 Herd of Models, table 4: 405B on 8,192 H100 (TP 8, PP 16, DP 64)")
_LLAMA3_LONG: Final = Published(
    0.38, "The Llama 3 Herd of Models, table 4: 405B on 16,384 H100 (TP 8, CP 16, PP 16, DP 8)"
)
_MAXTEXT_64B: Final = Published(
    0.70, "MaxText, configs/v5p/README.md and 64b.sh: 64B on 64, what products give is kept"
)
_MAXTEXT_512B: Final = Published(
    0.64, "MaxText, configs/v5p/README.md and 512b.sh: 512B on 512, whole layers recomputed"
)
_MAXTEXT_70B: Final = Published(0.654, "MaxText, reference/models/tiering.md: Llama 2 70B on 512, sequences of 4,096")
_MAXTEXT_MIXTRAL: Final = Published(0.526, "MaxText, reference/models/tiering.md: 256, sequences of 4,096")
_MAXTEXT_7B: Final = Published(
    0.41,
    "MaxText, configs/a3/llama_2_7b/README.md and 8vm.sh: Llama 2 7B on 64, 4 sequences of 4,096 each: 409 TFLOP/s",
)
_MAXTEXT_7B_APART: Final = replace(_MAXTEXT_7B, apart="another model, and a network of a quarter")

_SCALED: Final = {"vocab": 32000, "seq": 2048}
"""What MaxText's models of a scale have in common: of scale s all sizes are the cube root of s times those of scale 1,
which has 16 layers, 16 heads, 2,048 features, and 7,168 in its feed-forward layers."""

SHORT, LONG = 8192, 131072

ROWS: Final[dict[str, Row]] = {
    "7b-a3-64-free": Row(
        "llama-3-8b",
        "a3",
        64,
        {"vocab": 32000, "seq": 4096, "kv_heads": 32, "ffn": 11008, "batch": 256, "remat": False},
        (fsdp("64"), Expert("8x8", ("dp", "zero-3"))),
        published=_MAXTEXT_7B,
    ),
    "8b-h100-16": Row("llama-3-8b", "h100", 16, {"seq": SHORT, "batch": 32}, (fsdp("16"), fsdp_tp("2x8"))),
    "8b-v5p-16": Row("llama-3-8b", "v5p", 16, {"seq": SHORT, "batch": 32}, (fsdp("16"), fsdp_tp("4x4"))),
    "8b-h100-64": Row(
        "llama-3-8b",
        "h100",
        64,
        {"seq": SHORT, "batch": 128},
        (fsdp("64"), fsdp_tp("8x8")),
        published=_MAXTEXT_7B_APART,
    ),
    "8b-v5p-64": Row(
        "llama-3-8b",
        "v5p",
        64,
        {"seq": SHORT, "batch": 128},
        (fsdp("64"), fsdp_tp("16x4")),
        published=replace(_MAXTEXT_64B, apart="another model, and layers that are recomputed"),
    ),
    "64b-v5p-64-free": Row(
        "llama-3-8b",
        "v5p",
        64,
        {**_SCALED, "layers": 64, "heads": 64, "kv_heads": 64, "hidden": 8192, "ffn": 28672, "batch": 192}
        | {"remat": False},
        (fsdp_tp("16x4"),),
        published=_MAXTEXT_64B,
    ),
    "8b-h100-64-free": Row(
        "llama-3-8b",
        "h100",
        64,
        {"seq": SHORT, "batch": 128, "remat": False},
        (fsdp("64"), fsdp_tp("8x8")),
        published=_MAXTEXT_7B_APART,
    ),
    "70b-h100-64": Row("llama-3-70b", "h100", 64, {"seq": SHORT, "batch": 64}, (fsdp("64"), fsdp_tp("8x8"))),
    "70b-h100-64-free": Row(
        "llama-3-70b", "h100", 64, {"seq": SHORT, "batch": 64, "remat": False}, (fsdp("64"), fsdp_tp("8x8"))
    ),
    "mixtral-h100-64": Row(
        "mixtral-8x7b",
        "h100",
        64,
        {"seq": SHORT, "batch": 128},
        (fsdp("64"), Expert("8x8", ("zero-3", "ep")), fsdp_tp("8x8")),
    ),
    "mixtral-v5p-64": Row(
        "mixtral-8x7b",
        "v5p",
        64,
        {"seq": SHORT, "batch": 128},
        (fsdp("64"), Expert("16x4", ("zero-3", "ep")), fsdp_tp("16x4")),
    ),
    "mixtral-v5p-256": Row(
        "mixtral-8x7b", "v5p", 256, {"seq": 4096, "batch": 2048}, (fsdp("256"),), published=_MAXTEXT_MIXTRAL
    ),
    "70b-h100-256": Row("llama-3-70b", "h100", 256, {"seq": SHORT, "batch": 256}, (fsdp("256"), fsdp_tp("32x8"))),
    "70b-v5p-512": Row(
        "llama-3-70b", "v5p", 512, {"seq": SHORT, "batch": 1024}, (fsdp("512"), fsdp_tp("64x8")), published=_MAXTEXT_70B
    ),
    "405b-h100-512": Row(
        "llama-3-405b",
        "h100",
        512,
        {"seq": SHORT, "batch": 512},
        (
            fsdp_tp("64x8", "--micro-batches=8"),
            fsdp_tp("4x8", "--auto-parallel", "--stages=16", "--micro-batches=128"),
        ),
        ("--auto-parallel", "--jobs=1"),
        _LLAMA3,
    ),
    "405b-v5p-512": Row(
        "llama-3-405b",
        "v5p",
        512,
        {"seq": SHORT, "batch": 512},
        (fsdp("512"), fsdp_tp("64x8")),
        published=replace(_MAXTEXT_512B, apart="another model"),
    ),
    "512b-v5p-512": Row(
        "llama-3-8b",
        "v5p",
        512,
        {**_SCALED, "layers": 128, "heads": 128, "kv_heads": 128, "hidden": 16384, "ffn": 57344, "batch": 1024},
        (fsdp_tp("64x8"),),
        published=_MAXTEXT_512B,
    ),
    "8b-long-h100-64": Row("llama-3-8b", "h100", 64, {"seq": LONG, "batch": 8}, (fsdp_tp("8x8"),)),
    "8b-long-v5p-64": Row("llama-3-8b", "v5p", 64, {"seq": LONG, "batch": 16}, (fsdp_tp("16x4"),)),
    "mixtral-long-h100-64": Row("mixtral-8x7b", "h100", 64, {"seq": LONG, "batch": 8}, (fsdp_tp("8x8"),)),
    "mixtral-long-v5p-64": Row("mixtral-8x7b", "v5p", 64, {"seq": LONG, "batch": 16}, (fsdp_tp("16x4"),)),
    "70b-long-h100-256": Row("llama-3-70b", "h100", 256, {"seq": LONG, "batch": 32}, (fsdp_tp("32x8"),)),
    "70b-long-v5p-512": Row("llama-3-70b", "v5p", 512, {"seq": LONG, "batch": 64}, (fsdp_tp("64x8"),)),
    "405b-long-h100-512": Row(
        "llama-3-405b",
        "h100",
        512,
        {"seq": LONG, "batch": 64},
        (fsdp_tp("64x8", "--offload"),),
        (*SHARD, "--offload"),
        _LLAMA3_LONG,
    ),
    "405b-long-v5p-512": Row(
        "llama-3-405b",
        "v5p",
        512,
        {"seq": LONG, "batch": 64},
        (fsdp_tp("64x8", "--micro-batches=2"),),
        (*SHARD, "--micro-batches=2"),
        replace(_LLAMA3_LONG, apart="H100, and not v5p"),
    ),
}


def step_text(row: Row) -> tuple[bytes, float]:
    """Returns the step of a row as StableHLO, and its FLOP without those of what is recomputed."""
    from jax._src.cudnn import fused_attention_stablehlo  # noqa: PLC0415 - of JAX's own, which has no other door to it

    attention = KINDS[row.kind].attention
    model = sized(row.preset, **{"scan": True, "remat": True, "attention": attention, **row.sizes})
    with ExitStack() as stack:
        if attention == "cudnn":
            known = mock.patch.object(fused_attention_stablehlo, "check_cudnn_version", return_value=_CUDNN)
            stack.enter_context(known)
        return step_of(model), model_flops(model)


def model_flops(model: Any) -> float:  # noqa: ANN401 - a `Model` of examples/training.py
    """Returns the FLOP of a step of a decoder: those of its parameters, and of causal attention."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    cfg = model.loss.args[0]
    sizes = {jax.tree_util.keystr(path): leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
    used = {name: 2 / cfg.experts if "['experts']" in name else 1.0 for name in sizes}
    total = sum(size * used[name] for name, size in sizes.items()) - shapes["embed"].size
    tokens = cfg.batch * cfg.seq
    pairs = tokens * cfg.seq / 2  # of queries and keys
    return float(6 * total * tokens + 6 * 2 * cfg.layers * cfg.hidden * pairs)


# Plans


@dataclass(frozen=True, slots=True)
class Found:
    """A plan: who says it, its form, what it is predicted to take, and processor seconds; or why there is none."""

    who: str
    form: str = ""
    step_s: float = math.inf
    peak_bytes: int = 0
    processor_s: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What a row came to; `peak_flops_per_s` is of the whole machine."""

    name: str
    row: Row
    flops: float
    peak_flops_per_s: float
    ours: Found
    experts: tuple[Found, ...] = field(default=())

    def share(self, step_s: float) -> float:
        """Returns the share of the machine's arithmetic that a step uses."""
        return self.flops / step_s / self.peak_flops_per_s

    @property
    def best_expert(self) -> Found | None:
        """The fastest expert, None where none fits."""
        return min((one for one in self.experts if not one.error), key=lambda one: one.step_s, default=None)

    @property
    def ratio(self) -> float | None:
        """Our step over the best expert's."""
        return self.ours.step_s / self.best_expert.step_s if self.best_expert else None

    @property
    def off(self) -> float | None:
        """Our share over what was published of the same."""
        published = self.row.published
        if published is None or published.apart or self.ours.error:
            return None
        return self.share(self.ours.step_s) / published.share


def planned(who: str, step: Path, words: Sequence[str], timeout_s: float) -> Found:
    """Returns the plan that the command makes of a step, or why it makes none."""
    plan = Path(tempfile.mkdtemp(dir=step.parent)) / "plan"  # one in stages is a folder, another a file
    command = [sys.executable, "-c", "import rhino.tools.opt; rhino.tools.opt.main()", str(step), f"--plan={plan}"]
    before = _children_s()
    try:
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Found(who, processor_s=_children_s() - before, error=f"not done in {timeout_s:.0f} s")
    spent = _children_s() - before
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()[-1:]
        return Found(who, processor_s=spent, error=lines[0].partition("error: ")[2] if lines else "ended")
    found = load_plan(plan)
    return Found(who, found.form(), found.predicted.step_s, found.predicted.largest_peak_bytes, spent)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(name: str, options: Options) -> Result:
    """Returns what a row comes to."""
    row = ROWS[name]
    cluster = KINDS[row.kind].cluster(row.num_devices)
    text, flops = step_text(row)
    peak = cluster.num_devices * dict(cluster.device.flops_per_s)["bf16"]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        step, file = folder / "step.mlir", folder / "cluster.toml"
        step.write_bytes(text)
        file.write_text(cluster_to_text(cluster), encoding="utf-8")
        given = f"--cluster={file}"
        ours = planned("rhino", step, [given, *row.words], options.limit)
        say(f"  {name}: {ours}")
        experts: list[Found] = []
        for expert in () if options.no_experts else row.experts:
            experts.append(planned(str(expert), step, [given, *expert_words(row, expert, text, folder)], options.limit))
            say(f"  {name}: {experts[-1]}")
    return Result(name, row, flops, peak, ours, tuple(experts))


def expert_words(row: Row, expert: Expert, text: bytes, folder: Path) -> list[str]:
    """Returns the options of the command that say what an expert says."""
    case = CASES[row.case]
    module = read_module(text, row.preset, make_context())
    constraints = folder / "expert.toml"
    constraints.write_text(pins(case, module, parse_mesh(expert.mesh), expert.roles), encoding="utf-8")
    how = () if "--auto-parallel" in expert.words else ("--auto-shard",)
    return [*how, f"--mesh={expert.mesh}", f"--constraints={constraints}", *expert.words]


def records(options: Options) -> Iterator[Result]:
    """Yields the result of each row."""
    yield from (measure(name, options) for name in options.rows or ROWS)


def faults(results: Sequence[Result]) -> Iterator[str]:
    """Yields the rows that are not as they should be."""
    for one in results:
        if one.ours.error:
            yield f"{one.name}: {one.ours.error}"
        elif one.ratio is not None and one.ratio > 1 + TOLERANCE:
            yield f"{one.name}: an expert's plan is faster: {one.best_expert}"
        if one.ours.processor_s > MOST_PLANNING_S:
            yield f"{one.name}: planning takes {one.ours.processor_s:.0f} processor s"
        if one.off is not None and not 1 / FACTOR <= one.off <= FACTOR:
            yield f"{one.name}: a share that is {one.off:.2f} times what was published: {one.row.published}"


def _experts_cell(one: Result) -> str:
    if one.best_expert:
        return one.best_expert.who
    return "none fits" if one.experts else "not looked at"


def _expert_share(one: Result) -> str:
    return f"{one.share(one.best_expert.step_s):.0%}" if one.best_expert else ""


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "row": key("name"),
        "sequence": lambda one: f"{one.row.sizes['seq']:,}",
        "batch": lambda one: f"{one.row.sizes['batch']:,}",
        "plan": lambda one: one.ours.form or one.ours.error,
        "step": lambda one: format_seconds(one.ours.step_s) if one.ours.form else "",
        "share": lambda one: f"{one.share(one.ours.step_s):.0%}" if one.ours.form else "",
        "peak": lambda one: format_bytes(one.ours.peak_bytes) if one.ours.form else "",
        "planning": lambda one: f"{one.ours.processor_s:.0f}",
        "best expert": _experts_cell,
        "its share": _expert_share,
        "ours / its": lambda one: f"{one.ratio:.3f}" if one.ratio is not None and one.ours.form else "",
        "published": lambda one: str(one.row.published or ""),
    },
    (
        option("--rows", [], f"which rows, of {', '.join(ROWS)} (default all)"),
        option("--no-experts", False, "only our own plans"),
        option("--limit", 600.0, "seconds for each plan"),
        option("--check", False, "faults make the exit code 1"),
    ),
    ("plan", "best expert", "published"),
    faults,
)

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTION, sys.argv[1:]))
